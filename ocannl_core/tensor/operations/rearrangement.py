"""Operations that move cells: axes exchanged, inserted, removed, split and joined; tensors side by
side, along an axis that `axis=` counts or that a specification names.

Axes are counted in buffer order (batch, output, input). A rearrangement copies cells; where its
result is only read, the optimizer reads the operand instead.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, SupportsIndex

import numpy as np

from ocannl_core.base.errors import ShapeError, UsageError
from ocannl_core.base.origin import Origin, caller_depth, caller_location
from ocannl_core.ir.indexing import StaticExtent
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.ir.numbers.primitives import UnaryOp
from ocannl_core.shape.language.constraints import DimEqual
from ocannl_core.shape.language.shape_terms import Shape, Size
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.operations import contractions
from ocannl_core.tensor.operations.axes import (
    Axes,
    AxisArgument,
    apply,
    axes_of,
    operand,
    sized_axes_of,
    write_shape,
)
from ocannl_core.tensor.operations.literals import reshape as literal_of_cells
from ocannl_core.tensor.primitives import pointwise_operations as pointwise
from ocannl_core.tensor.primitives.dimension import Capture
from ocannl_core.tensor.primitives.operands import constant
from ocannl_core.tensor.primitives.specifications import composite_operation

rearrange = pointwise.lift("rearrange", UnaryOp.IDENTITY, pointwise.identity.gradient)


def move(name: str, x: Tensor, spec: str, values: dict[str, int] | None = None) -> Tensor:
    return apply(rearrange, (x,), spec, name=name, values=values)


def permute(x: Any, *axes: Any) -> Any:
    """Return the tensor with its axes in another order: axis `i` of the result is `axes[i]`.

    Kinds stay in place: the result has as many batch, output and input axes as `x`.

    Args:
        axes: All axes, one by one or as a sequence; reversed when not given.
    """
    given = operand(x, "permute")
    own = axes_of(given, "permute")
    wanted = axes[0] if len(axes) == 1 and isinstance(axes[0], Sequence) else axes
    order = own.positions(tuple(wanted)) if wanted else tuple(range(len(own)))[::-1]
    if len(order) != len(own):
        raise UsageError.at_caller(
            "A permutation names every axis once.",
            found=f"{len(order)} of {len(own)} axes",
            fix="oc.moveaxis(x, a, b) and oc.swapaxes(x, a, b) name the axes that move",
        )
    return _permute("permute", given, own, order)


def transpose(x: Any, *axes: Any) -> Any:
    """Return the tensor with its axes in another order: `permute` by NumPy's name.

    `x.T` exchanges the input and the output axes.
    """
    if not axes:  # until programs with the old meaning have changed
        warnings.warn(
            "oc.transpose(x) reverses all axes, as NumPy's does. Where that is meant, state the "
            "axes: oc.transpose(x, (1, 0)). Before, it exchanged input and output axes, as x.T "
            "does, which `ocannl migrate` writes.",
            DeprecationWarning,
            stacklevel=caller_depth(),
        )
    return permute(x, *axes)


def _permute(name: str, x: Tensor, own: Axes, order: Sequence[int]) -> Tensor:
    names = [own.names[position] for position in order]
    return move(name, x, f"{own.spec} => {write_shape(names, own.ranks)}")


def moveaxis(x: Any, source: AxisArgument, destination: AxisArgument) -> Any:
    """Return the tensor with axes moved to other positions; the others keep their order.

        oc.moveaxis(x, 0, -1)                # the first axis becomes the last one

    Kinds stay in place, as for `permute`.

    Args:
        source: The axis, or several, counted in buffer order, from the end if negative.
        destination: The position in the result of each.
    """
    given = operand(x, "moveaxis")
    own = axes_of(given, "moveaxis")
    origins, targets = own.positions(source), own.positions(destination)
    if len(origins) != len(targets):
        raise UsageError.at_caller(
            "Every axis that moves has a destination.",
            found=f"{len(origins)} axes and {len(targets)} destinations",
        )
    order = [position for position in range(len(own)) if position not in origins]
    for target, origin in sorted(zip(targets, origins, strict=True)):
        order.insert(target, origin)
    return _permute("moveaxis", given, own, order)


def swapaxes(x: Any, first: int, second: int) -> Any:
    """Return the tensor with two axes exchanged. Kinds stay in place, as for `permute`."""
    given = operand(x, "swapaxes")
    own = axes_of(given, "swapaxes")
    order = list(range(len(own)))
    one, other = own.position(first), own.position(second)
    order[one], order[other] = other, one
    return _permute("swapaxes", given, own, order)


def length_of(x: Tensor) -> int:
    """Return the size of the first axis."""
    own = sized_axes_of(x, "len")
    if not len(own):
        raise ShapeError.at_caller(
            "A tensor has a length along its first axis.",
            found=f"no axis: {x!r}",
            fix="ctx.item(x) is its number",
        )
    size = own.lengths[0]
    if isinstance(size, StaticExtent):
        raise ShapeError.at_caller(
            "A length, and a loop over slices, are of a size that is constant.",
            found=f"the extent {size}, which calls give, along axis 0 of {x.describe()}",
            fix=f"oc.number({size.name}) is the extent as a tensor, and operations go over all "
            "positions of an axis",
        )
    return size


def slices_of(x: Tensor) -> Iterator[Tensor]:
    """Yield the slices along the first axis, of a size that is known."""
    count, own = length_of(x), axes_of(x, "iteration")
    kept = own.replaced({0: None})
    for position in range(count):
        yield move("iteration", x, f"{own.replaced({0: str(position)})} => {kept}")


def expand_dims(x: Any, axis: int | Sequence[int]) -> Any:
    """Return the tensor with axes of size 1 at positions of the result.

    A new axis is of the kind (batch, output, input) of the axis to its right, or of the last one.
    """
    given = operand(x, "expand_dims")
    own = axes_of(given, "expand_dims")
    wanted = tuple(axis) if isinstance(axis, Sequence) else (axis,)
    positions = [own.position(each, extra=len(wanted)) for each in wanted]
    if len(set(positions)) < len(positions):
        raise UsageError.at_caller("New axes have different positions.", found=f"axis={axis!r}")
    names, ranks = own.inserted(positions)
    return move(
        "expand_dims", given, f"{own.spec} => {write_shape([n or '0' for n in names], ranks)}"
    )


def squeeze(x: Any, axis: AxisArgument = None) -> Any:
    """Return the tensor without axes of size 1.

    Args:
        axis: The axes, whose sizes must be 1; all axes known to have size 1 when not given.
    """
    given = operand(x, "squeeze")
    own = sized_axes_of(given, "squeeze") if axis is None else axes_of(given, "squeeze")
    if axis is None:
        positions = tuple(p for p in range(len(own)) if own.size(p) == 1)
    else:
        positions = own.positions(axis)
    where = Origin("squeeze", caller_location())
    wide = [position for position in positions if own.size(position) not in (1, None)]
    if wide:
        raise ShapeError(
            "Axes of size 1 can be squeezed out.",
            found=f"size {own.size(wide[0])} of axis {wide[0]}",
            where=str(where),
            fix="sum, mean and max reduce longer axes; oc.reshape joins axes",
        )
    open_sizes = [own.sizes[position] for position in positions if own.size(position) is None]
    given.session.environment.constrain([DimEqual(dim, Size(1), where) for dim in open_sizes])
    read = own.replaced(dict.fromkeys(positions, "0"))
    return move("squeeze", given, f"{read} => {own.replaced(dict.fromkeys(positions))}")


def reshape(x: Any, *sizes: Any, **rows: Any) -> Any:
    """Return the cells of a tensor, in row-major order, in another shape.

        oc.reshape(x, 6, 4)      oc.reshape(x, (6, -1))      oc.reshape(x, batch=[6], output=[4])

    One size may be -1, to be computed from the others. Axes are output axes, but leading batch axes
    of `x` whose sizes stay in place stay batch axes: `2,3|4` in the sizes 2, 12 is `2|12`. Keywords
    state the kinds. The sizes of `x` must be known. An extent at run time keeps its place, as in
    `oc.reshape(x, n, 24)` of `n, 4, 6`.

    `oc.reshape(values)` of an array or of numbers is a literal that takes its shape from its use.
    """
    if not isinstance(x, Tensor) and not sizes and not rows.keys() & {"batch", "output", "input"}:
        return literal_of_cells(x, **rows)
    if unknown := rows.keys() - {"batch", "output", "input"}:
        raise UsageError.at_caller(
            "reshape takes sizes, or the rows batch=, output= and input=.",
            found=", ".join(sorted(unknown)),
        )
    given = operand(x, "reshape")
    own = sized_axes_of(given, "reshape")
    source = own.known_sizes
    if rows:
        parts = [tuple(rows.get(row) or ()) for row in ("batch", "output", "input")]
        ranks = (len(parts[0]), len(parts[1]), len(parts[2]))
        wanted: Sequence[Any] = [size for part in parts for size in part]
        if sizes:
            raise UsageError.at_caller(
                "The sizes of a new shape are stated once.",
                found=f"{sizes} and {', '.join(f'{row}=' for row in rows)}",
            )
    else:
        wanted = _flat(sizes)
    target = _complete(tuple(map(_maximum, wanted)), source)
    _check_extents(own.lengths, target, wanted)
    if not rows:
        pairs = zip(target, source[: own.ranks[0]], strict=False)
        kept = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        ranks = (kept, len(wanted) - kept, 0)
    if target == source and ranks == own.ranks:
        return given
    return _reshape(given, own, target, ranks)


def _flat(sizes: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return sizes that are given one by one, or as a sequence or a shape."""
    first = sizes[0] if len(sizes) == 1 else None
    return tuple(first) if isinstance(first, Sequence | Shape) else sizes


def _complete(sizes: tuple[SupportsIndex, ...], source: tuple[int, ...]) -> tuple[int, ...]:
    """Return sizes with the number for -1, checked against the number of cells."""
    cells = math.prod(source)
    found = f"{', '.join(map(str, sizes))} for {cells} cells of sizes {', '.join(map(str, source))}"
    try:
        target = [int(size.__index__()) for size in sizes]
    except (AttributeError, TypeError):
        target = [-1, -1]
    missing = [position for position, size in enumerate(target) if size == -1]
    rest = math.prod(size for size in target if size != -1)
    if len(missing) == 1 and rest > 0 and cells % rest == 0:
        target[missing[0]] = cells // rest
    elif missing or rest != cells or min(target, default=0) < 0:
        raise ShapeError.at_caller(
            "A new shape has as many cells as the old one; one size may be -1.",
            found=found,
            fix=f"{cells} is the product of its sizes, and -1 stands for the one that is missing",
        )
    return tuple(target)


def _maximum(size: Any) -> Any:
    return size.maximum if isinstance(size, StaticExtent) else size


def _check_extents(
    source: Sequence[int | StaticExtent], target: tuple[int, ...], wanted: Sequence[Any]
) -> None:
    """Check that axes with an extent at run time keep their places among the cells."""
    places = {
        (math.prod(map(_maximum, source[:k])), size.maximum): size
        for k, size in enumerate(source)
        if isinstance(size, StaticExtent)
    }
    made = {(math.prod(target[:k]), size): wanted[k] for k, size in enumerate(target)}
    stated = {place: size for place, size in made.items() if isinstance(size, StaticExtent)}
    if places.keys() - made.keys() or any(places.get(k) != each for k, each in stated.items()):
        raise ShapeError.at_caller(
            "An axis with an extent at run time keeps its place in a new shape: as many cells "
            "precede it and follow it.",
            found=f"{', '.join(map(str, wanted))} for the sizes {', '.join(map(str, source))}",
            fix="oc.reshape(x, n, 24) of n, 4, 6; oc.moveaxis moves an axis",
        )


def _reshape(x: Tensor, own: Axes, target: tuple[int, ...], ranks: tuple[int, ...]) -> Tensor:
    """Split and join axes two by two: all that are independent of each other in one operation. Axes
    of size 1 are dropped by the first operation, and made by the last one.
    """
    if 0 in target:
        empty: Tensor = pointwise.cast(constant(0.0, x.session), x.dtype)
        return broadcast_to_ranks(empty, target, ranks)
    sizes = [size for size in own.known_sizes if size != 1]
    wanted = [size for size in target if size != 1]
    before: tuple[Sequence[int], Sequence[int]] = own.known_sizes, own.ranks
    while True:
        read, made, sizes, values = _step(sizes, wanted)
        after = (target, ranks) if sizes == wanted else (sizes, (0, len(sizes), 0))
        x = move("reshape", x, f"{_shape(read, *before)} => {_shape(made, *after)}", values)
        if sizes == wanted:
            return x
        before = after


def _shape(axes: Sequence[str], sizes: Sequence[int], ranks: Sequence[int]) -> str:
    """Return axes as a shape of a specification, with 0 for sizes of 1."""
    left = iter(axes)
    return write_shape(["0" if size == 1 else next(left) for size in sizes], ranks)


def _step(
    sizes: Sequence[int], wanted: Sequence[int]
) -> tuple[list[str], list[str], list[int], dict[str, int]]:
    """Return an operation that splits or joins an axis of every group that is to change: the axes
    of its operand and of its result, the extents of the result, and values of the specification.
    """
    read, made, after, values = list[str](), list[str](), list[int](), dict[str, int]()
    for number, (old, new) in enumerate(_groups(sizes, wanted)):
        kept = [f"a{number}_{position}" for position in range(len(old))]
        first = old[0]
        if first == new[0]:
            read += kept
            made += kept
            after += old
            continue
        is_split = first > new[0] and first % new[0] == 0
        inner = first // new[0] if is_split else old[1]
        outer, last = f"p{number}", f"q{number}"
        joined = f"{inner}*{outer}<+{last}"
        values[last] = inner
        if is_split:
            read += [joined, *kept[1:]]
            made += [outer, last, *kept[1:]]
            after += [new[0], inner, *old[1:]]
        else:
            read += [outer, last, *kept[2:]]
            made += [joined, *kept[2:]]
            after += [first * inner, *old[2:]]
    return read, made, after, values


def _groups(
    sizes: Sequence[int], wanted: Sequence[int]
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Yield the shortest runs of neighboring axes of equal cell counts; no size is 1."""
    begin = made = 0
    while begin < len(sizes):
        end, made_end = begin + 1, made + 1
        while (missing := math.prod(sizes[begin:end]) - math.prod(wanted[made:made_end])) != 0:
            if missing < 0:
                end += 1
            else:
                made_end += 1
        yield sizes[begin:end], wanted[made:made_end]
        begin, made = end, made_end


def flatten(x: Any) -> Any:
    """Return the cells of a tensor along one output axis, in row-major order."""
    return reshape(x, output=[-1])


def unflatten(x: Any, own: Axes, sizes: Sequence[int | StaticExtent]) -> Any:
    """Return cells as axes of the kinds that another tensor has."""
    batch, output, _ = own.ranks
    rest = sizes[batch:]
    return reshape(x, batch=sizes[:batch], output=rest[:output], input=rest[output:])


def broadcast_to(x: Any, *sizes: Any) -> Any:
    """Return the tensor repeated along axes of size 1 and new axes on the left, as in NumPy.

    Axes are lined up from the right; new ones are of the kind of the first axis of `x`. A size may
    be an extent at run time.
    """
    given = operand(x, "broadcast_to")
    own = axes_of(given, "broadcast_to")
    wanted = _flat(sizes)
    if not all(
        isinstance(size, StaticExtent) or (isinstance(size, int | np.integer) and size >= 0)
        for size in wanted
    ):
        raise UsageError.at_caller(
            "A shape is a row of sizes.",
            found=f"broadcast_to(x, {', '.join(map(repr, wanted))})",
            fix="oc.broadcast_to(x, 5, 3)",
        )
    target = tuple(size if isinstance(size, StaticExtent) else int(size) for size in wanted)
    surplus = len(target) - len(own)
    if surplus < 0:
        raise ShapeError.at_caller(
            "A broadcast adds axes and never removes one.",
            found=f"{len(target)} sizes for a tensor of {len(own)} axes",
        )
    _, ranks = own.inserted(range(surplus))
    return broadcast_to_ranks(given, target, ranks)


def broadcast_to_ranks(
    x: Tensor, sizes: Sequence[int | StaticExtent], ranks: Sequence[int]
) -> Tensor:
    """Return the tensor broadcast to sizes in buffer order, of stated numbers of axes by kind."""
    result: Tensor = pointwise.identity(x)
    environment = x.session.environment
    origin = Origin("broadcast_to", caller_location())
    batch, output, input = ranks
    environment.set_ranks(result.terms, (batch, output, input), origin)
    environment.exact(result.terms, sizes, origin)
    return result


def concat(
    spec: str | Sequence[Any],
    *operands: Any,
    axis: int | None = None,
    capture: Capture = (),
    label: str | None = None,
    dtype: DType | str | None = None,
    requires_grad: bool | None = None,
) -> Any:
    """Return the operands one after the other along axes of the result.

    `oc.concat([x, y], axis=-1)` concatenates along an axis counted in buffer order, 0 by default;
    the tensors have as many batch, output and input axes. `oc.concat("...,a; ...,b => ...,a^b", x,
    y)` does so along the last output axis, and `oc.concat("i,k; j,l => i^j,k^l", x, y)` makes a
    block matrix, with zeros where no operand is. `oc.einsum("...,a^b => ...,a", xy)` extracts a
    part of an axis. Further arguments are as for `einsum`.

    Args:
        spec: Tensors, or a specification whose result has an axis `a^b^...`.
        operands: After a specification, one tensor for each operand of it.
        axis: The axis, for tensors.

    Raises:
        SpecError: if an operand has an axis that the result lacks, or two have the same place.
    """
    if isinstance(spec, str) and axis is None:
        return contractions.concat(
            spec, *operands, capture=capture, label=label, dtype=dtype, requires_grad=requires_grad
        )
    if isinstance(spec, str | Tensor) or operands or capture:
        raise UsageError.at_caller(
            "concat takes a list of tensors and an axis, or a specification and tensors.",
            found=f"a {'specification' if isinstance(spec, str) else type(spec).__name__.lower()} "
            f"and {len(operands)} tensors, axis={axis!r}",
            fix='oc.concat([x, y], axis=0), or oc.concat("a; b => a^b", x, y)',
        )
    return _concat_along("concat", spec, axis or 0, label, dtype, requires_grad)


def _concat_along(
    name: str,
    operands: Sequence[Any],
    axis: int,
    label: str | None,
    dtype: DType | str | None,
    requires_grad: bool | None = None,
) -> Any:
    given = [operand(each, name) for each in operands]
    if not given:
        raise UsageError.at_caller(f"{name} takes a tensor or more.", found="none")
    axes = [axes_of(each, name) for each in given]
    first = axes[0]
    for position, own in enumerate(axes):
        if own.ranks != first.ranks:
            raise ShapeError.at_caller(
                f"{name} along axis {axis} takes tensors with equally many axes of each kind.",
                found=f"{given[position].shape} beside {given[0].shape}",
                fix="oc.reshape(x, batch=[8], output=[1]) states the axes of each kind",
            )
    at = first.position(axis)
    parts = [f"p{position}" for position in range(len(given))]
    if len(parts) == 1:
        return given[0]
    shapes = "; ".join(first.replaced({at: part}) for part in parts)
    spec = f"{shapes} => {first.replaced({at: '^'.join(parts)})}"
    with composite_operation(name, tuple(given)):
        return contractions.concat(
            spec, *given, label=label, dtype=dtype, requires_grad=requires_grad
        )


def stack(
    *operands: Any,
    axis: str | int = "output",
    label: str | None = None,
    dtype: DType | str | None = None,
) -> Any:
    """Return the operands along a new axis, after broadcasting them to a common shape.

    Args:
        operands: One tensor or more, or numbers; also as a list.
        axis: The kind of the new axis, which becomes the leftmost of its kind: "batch", "input" or
            "output". Or its position in the result, in buffer order: it is then of the kind of the
            axis to its right, and the tensors have as many axes.
    """
    given = (
        operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    )
    if isinstance(axis, str):
        return contractions.stack(*given, axis=axis, label=label, dtype=dtype)
    widened = [expand_dims(each, axis) for each in given]
    return _concat_along("stack", widened, axis, label, dtype)
