"""Tensors of one number, identity matrices and evenly spaced numbers.

Sizes are optional: what is not stated follows from the use of the tensor. No gradient flows into
these tensors, nor from `zeros_like(x)` and its kind into `x`, of which only the shape is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from types import EllipsisType
from typing import Any

import numpy as np

from ocannl_core.base.errors import UsageError
from ocannl_core.base.origin import caller_location
from ocannl_core.ir import host_arrays
from ocannl_core.ir.assignments.nodes import Constant
from ocannl_core.ir.indexing import StaticExtent
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.shape.language.shape_terms import Shape, Size
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.precision import choose_precision
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.operations.axes import apply, operand, require_shape, share_shape
from ocannl_core.tensor.operations.literals import offsets
from ocannl_core.tensor.operations.literals import tensor as literal
from ocannl_core.tensor.primitives import pointwise_operations as pointwise
from ocannl_core.tensor.primitives.operands import fill_tensor

SizeArgument = int | Size | StaticExtent
Rows = SizeArgument | Sequence[int | Size | StaticExtent | EllipsisType]
"""The sizes of a row; `...` among them stands for axes that follow from uses."""


def zeros(
    shape: SizeArgument | Sequence[SizeArgument] | None = None,
    *,
    batch: Rows | None = None,
    input: Rows | None = None,
    output: Rows | None = None,
    dtype: DType | str | None = None,
    label: str | None = None,
) -> Tensor:
    """Return a tensor of zeros.

        oc.zeros((2, 3))                 # two output axes, as in NumPy
        oc.zeros(input=3, output=2)      # 3->2
        oc.zeros()                       # the shape of its use

    Args:
        shape: The sizes of output axes, in place of `output=`.
        batch: The sizes of batch axes; without any size, the shape follows from uses.
        input: The sizes of input axes.
        output: The sizes of output axes.
        dtype: The number format; the session's default when not given.
    """
    return _filled("zeros", 0, shape, (batch, input, output), dtype, label)


def ones(
    shape: SizeArgument | Sequence[SizeArgument] | None = None,
    *,
    batch: Rows | None = None,
    input: Rows | None = None,
    output: Rows | None = None,
    dtype: DType | str | None = None,
    label: str | None = None,
) -> Tensor:
    """Return a tensor of ones; arguments are as for `zeros`."""
    return _filled("ones", 1, shape, (batch, input, output), dtype, label)


def full(
    shape: SizeArgument | Sequence[SizeArgument] | None,
    fill_value: float,
    *,
    batch: Rows | None = None,
    input: Rows | None = None,
    output: Rows | None = None,
    dtype: DType | str | None = None,
    label: str | None = None,
) -> Tensor:
    """Return a tensor of one number; other arguments are as for `zeros`.

    Args:
        shape: The sizes of output axes, or None for the rows, or for the shape of its use.
        fill_value: The number.
    """
    return _filled("full", fill_value, shape, (batch, input, output), dtype, label)


def zeros_like(x: Any, *, dtype: DType | str | None = None, label: str | None = None) -> Tensor:
    """Return zeros in the shape and the number format of a tensor.

    Args:
        dtype: Another number format.
    """
    return _filled_like("zeros_like", x, 0, dtype, label)


def ones_like(x: Any, *, dtype: DType | str | None = None, label: str | None = None) -> Tensor:
    """Return ones in the shape and the number format of a tensor; `dtype=` states another one."""
    return _filled_like("ones_like", x, 1, dtype, label)


def full_like(
    x: Any, fill_value: float, *, dtype: DType | str | None = None, label: str | None = None
) -> Tensor:
    """Return one number in a tensor's shape and format; `dtype=` states another one."""
    return _filled_like("full_like", x, fill_value, dtype, label)


def eye(
    n_rows: SizeArgument | None = None,
    n_cols: SizeArgument | None = None,
    *,
    k: int = 0,
    input: Rows | None = None,
    output: Rows | None = None,
    dtype: DType | str | None = None,
    label: str | None = None,
) -> Tensor:
    """Return a matrix of ones on a diagonal and zeros elsewhere.

        oc.eye(3)                        # two output axes, as in NumPy
        oc.eye(input=3)                  # 3->3: `oc.eye(input=3) @ x` is `x`
        oc.eye(input=[2, 3])             # 2,3->2,3: the cells of a row in row-major order
        oc.eye(input=3, output=4)        # 3->4
        oc.eye()                         # two output axes of the sizes of its use

    A matrix is square where one size is given.

    Args:
        n_rows: The number of rows, an output axis.
        n_cols: The number of columns, an output axis.
        k: The diagonal: 0 for the main one, positive ones are above it.
        input: The number of columns, an input axis, or the sizes of several input axes.
        output: The number of rows of a matrix with input axes, or the sizes of several output axes.
        dtype: The number format; the session's default when not given.
    """
    if isinstance(k, bool) or not isinstance(k, int | np.integer):
        raise UsageError.at_caller("The diagonal is an integer.", found=f"k={k!r}", fix="k=0")
    is_map = input is not None or output is not None
    if is_map and not (n_rows is None and n_cols is None):
        raise UsageError.at_caller(
            "A matrix has two output axes, or an output and an input axis.",
            found=f"n_rows={n_rows!r}, n_cols={n_cols!r} beside input={input!r}, output={output!r}",
            fix="oc.eye(3, 4), or oc.eye(output=3, input=4)",
        )
    rows, columns = (output, input) if is_map else (n_rows, n_cols)
    sizes: tuple[Any, Any] = columns if rows is None else rows, rows if columns is None else columns
    session = sessions.current()
    precision = choose_precision(dtype, session.default_dtype)
    row, column = (
        require_shape(offsets(dtype="int32"), "a")
        if size is None
        else offsets(output=_row(size) if is_map else [size], dtype="int32", label="eye")
        for size in sizes
    )
    spec = "|->..i..; |->..j.. => |..j..->..i.." if is_map else "|->i; |->j => |->i, j"
    found = apply(pointwise.equal, (row + k if k else row, column), spec, name="eye")
    made: Tensor = pointwise.cast(found, precision.dtype)
    made.relabel((label or "eye",))
    return made


def linspace(
    start: float,
    stop: float,
    num: int = 50,
    *,
    endpoint: bool = True,
    dtype: DType | str | None = None,
    label: str | None = None,
) -> Tensor:
    """Return one output axis of evenly spaced numbers.

    Args:
        start: The first number.
        stop: The last number, or the one after the last.
        num: The number of numbers.
        endpoint: False to leave out `stop`.
        dtype: The number format; the session's default when not given.
    """
    if isinstance(num, bool) or not isinstance(num, int | np.integer) or num < 0:
        raise UsageError.at_caller(
            "The number of evenly spaced numbers is an integer, 0 or more.",
            found=f"num={num!r}",
            fix="oc.linspace(0, 1, 11)",
        )
    for name, value in (("start", start), ("stop", stop)):
        if not isinstance(value, Real):
            raise UsageError.at_caller(
                "Evenly spaced numbers lie between two numbers.", found=f"{name}={value!r}"
            )
    session = sessions.current()
    precision = choose_precision(dtype, session.default_dtype)
    cells = np.linspace(float(start), float(stop), int(num), endpoint=endpoint)
    if not precision.dtype.is_float:
        cells = np.floor(cells)
    return literal(cells, dtype=dtype, label=label or "linspace")


def _number(name: str, value: Any, dtype: DType) -> float:
    """Return the number that fills a tensor, which its format can represent."""
    if not isinstance(value, Real):
        raise UsageError.at_caller(
            f"oc.{name} fills a tensor with a number.",
            found=f"fill_value={value!r}",
            fix="oc.broadcast_to(x, 3, 4) repeats the cells of a tensor",
        )
    where = caller_location() or ""
    cell = host_arrays.plain_number(value, where)
    host_arrays.check_number(cell, dtype, where)
    return cell


def _filled(
    name: str,
    value: Any,
    shape: SizeArgument | Sequence[SizeArgument] | None,
    rows: tuple[Rows | None, Rows | None, Rows | None],
    dtype: DType | str | None,
    label: str | None,
) -> Tensor:
    batch, input, output = rows
    if shape is not None:
        if output is not None:
            raise UsageError.at_caller(
                "The sizes of output axes are stated once.",
                found=f"{shape!r} and output={output!r}",
                fix=f"oc.{name}(output=...), or the sizes alone",
            )
        output = shape
    session = sessions.current()
    precision = choose_precision(dtype, session.default_dtype)
    cell = _number(name, value, precision.dtype)
    if (batch, input, output) != (None, None, None):
        batch, input, output = (() if row is None else row for row in (batch, input, output))
    sizes = session.environment.fresh_shape(
        batch=_row(batch), input=_row(input), output=_row(output), name=label or name
    )
    return fill_tensor(session, lambda: Constant(cell), sizes, precision, label or f"{cell:g}")


def _row(sizes: Rows | None) -> Any:
    if isinstance(sizes, tuple | list) or sizes is None:
        return sizes
    return (sizes,) if not isinstance(sizes, Sequence) else tuple(sizes)


def _filled_like(
    name: str, x: Any, value: Any, dtype: DType | str | None, label: str | None
) -> Tensor:
    like = operand(x, name)
    precision = choose_precision(like.dtype if dtype is None else dtype, like.session.default_dtype)
    cell = _number(name, value, precision.dtype)
    sizes: Shape = like.session.environment.fresh_shape(name=label or name)
    made = fill_tensor(like.session, lambda: Constant(cell), sizes, precision, label or f"{cell:g}")
    share_shape(like, made, name)
    return made
