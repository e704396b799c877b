"""Literals: tensors of numbers, arrays, nested lists, files and functions of indices."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from ocannl_core.base import settings
from ocannl_core.base.deferred_annotations import signature_of
from ocannl_core.base.errors import UsageError, printable
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.base.files.trust import open_regular
from ocannl_core.base.garbage import collect_if_due, note_memory
from ocannl_core.base.origin import Origin, caller_location
from ocannl_core.ir import host_arrays
from ocannl_core.ir.assignments.nodes import Constant, ConstantFill, EmbedIndex, RangeOverOffsets
from ocannl_core.ir.indexing import (
    IndexArithmetic,
    IndexExpression,
    StaticExtent,
    StaticIndex,
    axis_index,
)
from ocannl_core.ir.numbers.dtypes import DType, dtype_of, is_format, promote, uint4x32
from ocannl_core.shape.environment import Axes
from ocannl_core.shape.language.shape_terms import Row, RowKind, Shape, Size, closed_shape
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.definitions import LITERAL, Literal
from ocannl_core.tensor.graph.precision import Precision, choose_precision, widen_for_range
from ocannl_core.tensor.graph.session import Session
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.operations.contractions import stack
from ocannl_core.tensor.operations.nested_literals import (
    NestedLiteral,
    as_array,
    batch,
    cells_of,
    is_array,
    parse_nested,
    to_buffer_order,
)
from ocannl_core.tensor.primitives.operands import constant, fill_tensor

# fmt: off
__all__ = [
    "arange", "batch", "from_function", "mapped", "number", "offsets", "reshape", "tensor",
]
# fmt: on

Basis = str | Sequence[str | None] | None
"""Names for the positions of axes: one name, or one per axis of the value, outermost first."""


def tensor(
    value: Any,
    *,
    batch_axes: int = 0,
    input_axes: int = 0,
    margins: Sequence[tuple[int, int]] | None = None,
    basis: Basis = None,
    dtype: DType | str | None = None,
    label: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor with the given cells, of exactly the shape of the value.

    In nested Python literals, lists are output axes, tuples input axes and `oc.batch(...)` batch
    axes: `[(1, 2, 3), (4, 5, 6)]` has the shape `3->2`. The axes of an array are output axes, but
    for the leading `batch_axes` and the trailing `input_axes`; nested lists take these two
    arguments, too.

    Literals may hold tensors: `[[a, b], [c, d]]` is computed from them, with new leftmost axes.

    Args:
        value: A number, nested literals, a NumPy array, or an object with `__dlpack__`. Arrays are
            copied; a `np.memmap` is read when its cells go to a device.
        batch_axes: The number of leading axes of an array that are batch axes.
        input_axes: The number of trailing axes of an array that are input axes.
        margins: For padded data, the cells before and after the tensor's own ones, axis by axis of
            the array; they are left out. The padding of windows depends on the operation instead.
        basis: Names for the positions of an axis, such as "rgb": one name, or one for each axis of
            the value, outermost first, with None where there is none. A number with a basis has one
            output axis.
        dtype: The number format. Without it, literals and float64 arrays get the session's default
            float; other arrays keep theirs.
        requires_grad: True to compute the gradient with respect to these cells, too: `x.grad`.

    Raises:
        UsageError: for ragged literals, other values, or more axes named than there are; for a
            gradient of integers, or of cells computed from tensors, which have theirs anyway.
        TransferError: if a cell is NaN, or is not a number of the format.
    """
    session = sessions.current()
    literal = parse_nested(value)
    if literal.holds_tensors:
        stated = {"margins": margins, "basis": basis, "dtype": dtype}
        if requires_grad:
            raise UsageError.at_caller(
                "A literal that holds tensors is computed from them, and has a gradient if one of "
                "them has.",
                found="requires_grad=True",
                fix="leave requires_grad out, and give it where those tensors are made",
            )
        return _stack_tensors(literal, {**stated, "axes": batch_axes or input_axes}, label)
    cells = as_array(value) if is_array(value) else cells_of(literal)
    if margins is not None:
        cells = _strip_margins(cells, margins)
    if basis is not None and cells.ndim == 0:
        cells = cells.reshape(1)
    kinds = _kinds(literal, cells.ndim, batch_axes, input_axes)
    is_literal = not literal.holds_arrays
    cells, precision = _to_format(session, cells, dtype, is_literal=is_literal)
    cells, shape = to_buffer_order(cells, kinds, _bases(basis, cells.ndim))
    origin = Origin("literal", caller_location())
    return _make_literal(
        session, cells, shape, precision, label, origin, requires_grad=requires_grad
    )


def number(
    value: float | StaticIndex | IndexExpression,
    *,
    basis: str | None = None,
    dtype: DType | str | None = None,
    label: str | None = None,
) -> Tensor:
    """Return a tensor of one cell: a constant, or the value of static indices at run time.

    With a basis it has one output axis of size 1. Like every axis of size 1 it broadcasts.
    """
    session = sessions.current()
    where = caller_location() or ""
    precision = choose_precision(dtype, session.default_dtype)
    shape = Shape(output=Row(trailing=(Size(1, basis),))) if basis else closed_shape()
    if isinstance(value, StaticIndex | IndexExpression):
        index, name = axis_index(value), label or str(value)
        return fill_tensor(session, lambda: EmbedIndex(index), shape, precision, name)
    if not isinstance(value, Real):
        raise UsageError.at_caller(
            "A number tensor is made from a number or a static index.",
            found=reprlib.repr(value),
            fix="wrap arrays and lists with oc.tensor(...)",
        )
    cell = host_arrays.plain_number(value, where)
    host_arrays.check_number(cell, precision.dtype, where)
    if basis is None:
        return constant(cell, session, dtype=precision, label=label)
    return fill_tensor(
        session, lambda: Constant(cell), shape, precision, label or f"{cell:g}", cell
    )


_MOST_CALLS = 2**28
"""The greatest number of calls of a Python function: an hour, and memory for as many objects."""


def from_function(
    function: Callable[..., float],
    *,
    batch: Sequence[int | Size] = (),
    input: Sequence[int | Size] = (),
    output: Sequence[int | Size] = (),
    dtype: DType | str | None = None,
    label: str | None = None,
) -> Tensor:
    """Return a tensor whose cells are a function of their indices.

        oc.from_function(lambda o, i: 1.0 if o == i else 0.0, input=[3], output=[3])

    Args:
        function: Called once for each cell, with the indices of its batch, output and input axes.
        batch: Sizes of the batch axes.
        input: Sizes of the input axes.
        output: Sizes of the output axes.
        dtype: The number format; by default that of its uses, else the session's default float.
    """
    session = sessions.current()
    origin = Origin("literal", caller_location())
    shape = session.environment.fresh_shape(batch=batch, input=input, output=output)
    if not shape.is_closed:
        raise UsageError(
            "A function of indices is evaluated when the tensor is made, so that sizes are known.",
            found=f"shape {shape}",
            where=str(origin),
        )
    _check_indices(function, len(shape.dims))
    if prod(shape.dims) > _MOST_CALLS:
        raise UsageError.at_caller(
            "A function of indices is called once for each cell.",
            found=f"shape {shape}, of {prod(shape.dims)} cells",
            fix="oc.primitives.offsets has the indices as tensors, for a formula that a routine "
            "computes",
        )
    numbers = [_cell(function, position) for position in product(*map(range, shape.dims))]
    cells = cells_of(parse_nested(numbers)).reshape(shape.dims)
    name = label or getattr(function, "__name__", "function").strip("<>")
    cells, precision = _to_format(session, cells, dtype, is_literal=True)
    return _make_literal(session, cells, shape, precision, name, origin)


def mapped(
    path: str | os.PathLike[str],
    *,
    batch_axes: int = 1,
    input_axes: int = 0,
    output: Sequence[int] | None = None,
    input: Sequence[int] | None = None,
    dtype: DType | str | None = None,
    label: str | None = None,
) -> Tensor:
    """Return a tensor whose cells are in a file, which is read when they go to a device.

    A `.npy` file states its shape and format. Any other file holds cells of a stated format, one
    after the other; the sizes of one entry are stated, and the length of the file gives the number
    of entries, which is the batch axis.

    Args:
        batch_axes: The number of leading axes of a `.npy` file that are batch axes.
        input_axes: The number of trailing axes of a `.npy` file that are input axes.
        output: For other files, the sizes of the output axes of one entry.
        input: For other files, the sizes of the input axes of one entry.
        dtype: The number format of the cells in the file. For a `.npy` file, the format of the
            tensor, by default the file's, or the session's default float for float64.
        label: A name; the file's by default.

    Raises:
        UsageError: if the file cannot be read, or does not consist of entries of that size.
    """
    file = Path(path)
    try:
        if file.suffix == ".npy":
            array = _map_array(file)
        else:
            array = _map_entries(file, (*(output or ()), *(input or ())), dtype)
            batch_axes, input_axes = 1, len(input or ())
    except (OSError, ValueError) as error:
        raise UsageError.at_caller(
            "A mapped tensor is made from a file of cells.", found=f"{file}: {error}"
        ) from error
    return tensor(
        array,
        batch_axes=batch_axes,
        input_axes=input_axes,
        dtype=dtype,
        label=label or printable(file.stem),
    )


def _map_array(file: Path) -> np.memmap[Any, Any]:
    """Return the array of a `.npy` file, read on demand."""
    open_regular(file).close()  # a pipe would make NumPy wait
    try:
        return np.lib.format.open_memmap(file, mode="r")
    except Exception as error:  # NumPy's tokenizer and Python's parser have errors of their own
        raise ValueError(str(error) or type(error).__name__) from error


def reshape(value: Any, *, dtype: DType | str | None = None, label: str | None = None) -> Tensor:
    """Return the given cells, in row-major order, in the shape that follows from their use.

    Only the number of cells is fixed: six of them fill a vector, a matrix, or a batch of either.
    The axes are in the order batch, output, input, the last one fastest. A few cells (the setting
    `fill_limit`) are written into the code; more are data.

    Args:
        value: Nested literals or an array, whose own axes do not matter.
        dtype: The number format, with the default of `oc.tensor`.
    """
    session = sessions.current()
    literal = parse_nested(value)
    if literal.holds_tensors:
        raise UsageError.at_caller(
            "Host data takes the shape of its use; computed tensors have shapes of their own.",
            found="a tensor in oc.reshape",
            fix='rearrange axes with a specification, as in oc.einsum("a,b => b,a", x)',
        )
    cells = as_array(value) if is_array(value) else cells_of(literal)
    is_literal = not literal.holds_arrays
    cells, precision = _to_format(session, cells, dtype, is_literal=is_literal)
    cells = cells.reshape(-1)
    origin = Origin("reshape", caller_location())
    environment = session.environment
    shape = environment.fresh_shape(name=label or "reshape")
    environment.total_elements(shape, cells.size, origin)
    if 1 <= cells.size <= settings.current().fill_limit and precision.dtype is not uint4x32:
        wide = np.float64 if precision.dtype.is_float else np.dtype(precision.dtype.numpy)
        values = tuple(cells.astype(wide).tolist())
        return fill_tensor(
            session, lambda: ConstantFill(values), shape, precision, label or "reshape"
        )
    environment.leaf(shape, origin)
    return _make_literal(session, cells, shape, precision, label or "reshape", origin)


def offsets(
    *,
    batch: Axes = None,
    input: Axes = None,
    output: Axes = None,
    dtype: DType | str | None = None,
    label: str | None = None,
) -> Tensor:
    """Return a tensor in which every cell holds its own row-major offset: 0, 1, 2, ...

    Without sizes its shape follows from its use. With sizes, it has these axes and no others, but
    where `...` stands among them.
    """
    session = sessions.current()
    precision = choose_precision(dtype, session.default_dtype)
    if (batch, input, output) != (None, None, None):
        batch, input, output = batch or (), input or (), output or ()
    name = label or "offsets"
    shape = session.environment.fresh_shape(batch=batch, input=input, output=output, name=name)
    return fill_tensor(session, RangeOverOffsets, shape, precision, name)


def arange(
    start: int | StaticExtent,
    stop: int | StaticExtent | None = None,
    step: int = 1,
    *,
    dtype: DType | str | None = None,
    label: str | None = None,
) -> Tensor:
    """Return one output axis holding 0, 1, ..., or the integers from `start` to before `stop`.

    `arange(n)` starts at 0, as `range` does; `n` may be an extent at run time, and so may the
    number of integers in `arange(3, n + 3)`.
    """
    if stop is None:
        start, stop = 0, start
    try:
        size = stop - start if isinstance(stop, IndexArithmetic) and step == 1 else None
        if not isinstance(size, StaticExtent):
            values = range(start, stop, step)
            start, step = values.start, values.step
            size = (values[-1] - start) // step + 1 if values else 0  # len may overflow
    except (TypeError, ValueError) as error:
        raise UsageError.at_caller(
            "A range is made of integers, with a step other than 0.",
            found=f"oc.arange({start!r}, {stop!r}, {step!r}): {error}",
            fix="scale it: 0.1 * oc.arange(10)",
        ) from None
    if isinstance(size, int) and size >= 2**63:
        raise UsageError.at_caller(
            "A range has less than 2**63 numbers.",
            found=f"{size} of them, from start={start!r}, stop={stop!r}, step={step!r}",
            fix="oc.arange(10)",
        )
    name = label or "arange"
    whole = offsets(output=[size], dtype=dtype, label=name)
    scaled = whole if step == 1 else whole * step
    moved: Tensor = scaled if isinstance(start, int) and start == 0 else scaled + start
    moved.relabel((name,))
    return moved


def _check_indices(function: Callable[..., float], axes: int) -> None:
    """Raise UsageError unless a function takes as many indices as there are axes."""
    try:
        signature_of(function).bind(*range(axes))
    except TypeError as error:
        raise UsageError.at_caller(
            "A function of indices takes one for each axis: batch, then output, then input axes.",
            found=f"{error}, for {axes} axes",
        ) from None
    except ValueError:
        pass  # a function of an extension module may have no signature


def _cell(function: Callable[..., float], position: tuple[int, ...]) -> float:
    value = function(*position)
    if not isinstance(value, Real):
        raise UsageError.at_caller(
            "A function of indices returns numbers.",
            found=f"{value!r} at {', '.join(map(str, position))}",
        )
    return value if isinstance(value, int) else float(value)


def _make_literal(
    session: Session,
    cells: host_arrays.Array,
    shape: Shape,
    precision: Precision,
    label: str | None,
    origin: Origin,
    *,
    requires_grad: bool = False,
) -> Tensor:
    if not isinstance(cells, np.memmap):
        collect_if_due()
        kept = cells.dtype if precision.follows else precision.dtype.numpy
        cells = np.array(cells, dtype=kept, order="C")
        cells.flags.writeable = False
        note_memory(cells, cells.nbytes)
    definition, labels = Literal(cells), (label or LITERAL,)
    return Tensor(
        session, definition, shape, precision, labels, origin, requires_grad=requires_grad
    )


def _to_format(
    session: Session, cells: host_arrays.Array, dtype: DType | str | None, *, is_literal: bool
) -> tuple[host_arrays.Array, Precision]:
    """Return cells in the tensor's number format, and the format.

    Cells of files are converted on the way to a device. Cells without a stated format keep their
    digits until the format is final.
    """
    where = str(caller_location() or "")
    dtype = host_arrays.packed_format(cells) if dtype is None else dtype
    cells = host_arrays.numbers_of(cells, None if dtype is None else dtype_of(dtype), where)
    has_default = cells.dtype.newbyteorder("=") == np.float64 or (
        is_literal and cells.dtype != np.bool_
    )
    own = None if has_default else cells.dtype
    if own is not None and own.names and own != uint4x32.numpy:
        # NumPy would read one of its fields as numbers
        host_arrays.check_kind(cells, session.default_dtype, where)
    if dtype is None and own is not None and not is_format(own):
        raise UsageError.at_caller(
            "An array without dtype= keeps its number format, which has to be one of the "
            "supported ones.",
            found=f"an array of dtype {own}",
            fix='state the format of the tensor, as in dtype="int32" or dtype="float32"',
        )
    precision = choose_precision(own if dtype is None else dtype, session.default_dtype)
    if precision.follows:
        precision = replace(precision, dtype=widen_for_range(precision.dtype, cells))
    if precision.dtype is uint4x32:
        return cells, precision
    host_arrays.check_kind(cells, precision.dtype, where)
    if isinstance(cells, np.memmap):
        return cells, precision
    host_arrays.refuse_nan(cells, where)
    rounded = host_arrays.convert(cells, precision.dtype, where)
    return (cells if precision.follows else rounded), precision


def _kinds(literal: NestedLiteral, axes: int, batch_axes: int, input_axes: int) -> list[RowKind]:
    """Return the kind of each axis of a literal's cells."""
    if literal.states_kinds:
        if batch_axes or input_axes:
            raise UsageError.at_caller(
                "The containers of a literal determine its batch and input axes.",
                found=f"batch_axes={batch_axes}, input_axes={input_axes} beside a tuple or "
                "oc.batch",
                fix="use lists only, or leave out the numbers of axes",
            )
        inner = axes - len(literal.axes)
        return [*(axis.kind for axis in literal.axes), *[RowKind.OUTPUT] * inner]
    are_counts = isinstance(batch_axes, Integral) and isinstance(input_axes, Integral)
    if not are_counts or batch_axes < 0 or input_axes < 0 or batch_axes + input_axes > axes:
        raise UsageError.at_caller(
            "The batch and input axes of an array are among its axes.",
            found=f"batch_axes={batch_axes!r}, input_axes={input_axes!r} for an array of {axes} "
            "axes",
            fix="batch_axes=1 for an array whose first axis is the batch",
        )
    middle = axes - batch_axes - input_axes
    return [RowKind.BATCH] * batch_axes + [RowKind.OUTPUT] * middle + [RowKind.INPUT] * input_axes


def _bases(basis: Basis, axes: int) -> list[str | None]:
    """Return the name for the positions of each axis."""
    if basis is None:
        return [None] * axes
    names: list[str | None] = (
        [basis] if isinstance(basis, str) or not isinstance(basis, Sequence) else list(basis)
    )
    if len(names) != axes or not all(name is None or isinstance(name, str) for name in names):
        raise UsageError.at_caller(
            "A basis names the positions of an axis, axis by axis.",
            found=f"basis={basis!r} for {axes} axes",
            fix="give one name per axis, outermost first, with None where there is none",
        )
    return names


def _stack_tensors(literal: NestedLiteral, stated: dict[str, object], label: str | None) -> Tensor:
    """Return a literal of tensors: stacks of them, innermost first."""
    if any(stated.values()):
        names = ", ".join(name for name, value in stated.items() if value)
        raise UsageError.at_caller(
            "A literal of tensors takes formats and bases from them.",
            found=f"a literal with tensors, and {names}",
        )
    for position, leaf in enumerate(literal.leaves):
        if is_array(leaf):
            raise UsageError.at_caller(
                "A literal that holds tensors holds no arrays beside them.",
                found=f"{type(leaf).__name__}, entry {position} of the literal",
                fix="wrap the array with oc.tensor(...)",
            )
    entries = [
        _constant_among(leaf, literal.leaves) if isinstance(leaf, Real) else leaf
        for leaf in literal.leaves
    ]
    for depth in reversed(range(len(literal.axes))):
        axis = literal.axes[depth]
        named = label if depth == 0 else None
        entries = [
            stack(*entries[first : first + axis.n], axis=axis.kind.value, label=named)
            for first in range(0, len(entries), axis.n)
        ]
    (block,) = entries
    made: Tensor = block
    return made


def _constant_among(value: Real, leaves: tuple[Any, ...]) -> Tensor:
    """Return a constant in the shape and the format of the other tensors of a literal."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    session = tensors[0].session
    shape = session.environment.fresh_shape()
    dtype = promote(*(each.dtype for each in tensors))
    cell = float(value)
    precision = Precision.by_default(dtype)
    return fill_tensor(session, lambda: Constant(cell), shape, precision, f"{cell:g}")


def _map_entries(
    file: Path, entry: tuple[int, ...], dtype: DType | str | None
) -> np.memmap[Any, Any]:
    """Return the cells of a file without a header, with the entries along the first axis."""
    if dtype is None:
        raise UsageError.at_caller(
            "The number format of cells in a file without a header is stated.",
            found=str(file),
            fix='oc.data.memmap(path, dtype="float32", output=[...])',
        )
    stored = dtype_of(dtype).numpy
    with open_regular(file) as opened:
        nbytes = os.fstat(opened.fileno()).st_size
    count, rest = divmod(nbytes, prod(entry) * stored.itemsize) if prod(entry) else (0, nbytes)
    if rest or not count:
        raise ValueError(
            f"{nbytes} bytes are no entries of {prod(entry)} cells of {dtype_of(dtype)}"
        )
    return np.memmap(file, dtype=stored, mode="r", shape=(count, *entry))


def _strip_margins(
    array: host_arrays.Array, margins: Sequence[tuple[int, int]]
) -> host_arrays.Array:
    fits = len(margins) == array.ndim and all(
        left >= 0 and right >= 0 and left + right <= n
        for n, (left, right) in zip(array.shape, margins, strict=True)
    )
    if not fits:
        raise UsageError.at_caller(
            "Margins are two numbers of cells for each axis of an array, no more than it has.",
            found=f"margins={list(margins)} for an array of shape {array.shape}",
        )
    own = zip(array.shape, margins, strict=True)
    cells: host_arrays.Array = array[tuple(slice(left, n - right) for n, (left, right) in own)]
    return cells
