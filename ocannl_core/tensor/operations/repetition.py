"""Operations that repeat, shift, reverse, pad and mask the cells along axes.

Axes are counted in buffer order (batch, output, input).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import cache
from numbers import Real
from typing import Any, Literal, cast, get_args

import numpy as np

from ocannl_core.base.errors import ShapeError, UsageError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.indexing import IndexArithmetic, StaticExtent
from ocannl_core.ir.numbers.dtypes import DType, bool_, int32
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.operations.axes import (
    AxisArgument,
    apply,
    axes_of,
    operand,
    require_shapes,
    sized_axes_of,
    write_shape,
)
from ocannl_core.tensor.operations.contractions import where_along
from ocannl_core.tensor.operations.literals import arange, offsets, tensor
from ocannl_core.tensor.operations.rearrangement import concat, move
from ocannl_core.tensor.primitives import pointwise_operations as pointwise
from ocannl_core.tensor.primitives.operands import constant, exact_number
from ocannl_core.tensor.primitives.operation import Operation, define_operation


def select(x: Tensor, axis: int, positions: Sequence[int], name: str) -> Tensor:
    """Return the cells at fixed positions along an axis, whose size is known."""
    own = axes_of(x, name)
    label = own.names[axis]
    chosen = tensor(np.asarray(positions, np.int32))
    one, other = (write_shape([each], (0, 1, 0)) for each in ("new", label))
    both = write_shape(["new", label], (0, 2, 0))
    places = offsets(dtype=int32, output=[own.known_size(axis)])
    is_there = apply(pointwise.equal, (chosen, places), f"{one}; {other} => {both}", name=name)
    nothing = constant(0, x.session)
    spec = f"{both}; {own.spec}; |-> => {own.replaced({axis: 'new'})}"
    dtype = x.dtype if x.dtype.is_short_integer else None  # one cell is chosen, none are added
    return apply(where_along, (is_there, x, nothing), spec, name=name, dtype=dtype)


def flip(x: Any, axis: AxisArgument = None) -> Any:
    """Return the tensor with the order of the cells along axes reversed; along all by default."""
    given = operand(x, "flip")
    own = sized_axes_of(given, "flip")
    for position in own.positions(axis):
        if own.known_size(position) > 1:
            given = part(given, position, slice(None, None, -1))
    return given


def part(x: Tensor, axis: int, key: slice) -> Tensor:
    """Return a slice along an axis."""
    found: Tensor = x[(*(slice(None),) * axis, key)]
    return found


def roll(x: Any, shift: int | Sequence[int], axis: int | Sequence[int]) -> Any:
    """Return the tensor with its cells moved along axes, from the end around to the beginning.

    Args:
        shift: The number of positions by which cells move to the right, for each axis.
        axis: The axis, or several; their sizes must be known.
    """
    given = operand(x, "roll")
    own = sized_axes_of(given, "roll")
    positions = own.positions(axis)
    shifts = tuple(shift) if isinstance(shift, Sequence) else (shift,) * len(positions)
    is_whole = all(map(_is_whole, shifts))
    if len(shifts) != len(positions) or not is_whole:
        raise UsageError.at_caller(
            "Every axis has a shift, a number of positions.",
            found=f"shift={shift!r} along axis={axis!r}",
        )
    for position, distance in zip(positions, shifts, strict=True):
        size, is_extent = own.known_size(position), own.extent(position) is not None
        moved = operator.index(distance) % size if size else 0
        if moved or (distance and is_extent):  # the index maps refuse an extent
            exchanged = (own.replaced({position: parts}) for parts in ("p^q", "q^p"))
            given = move("roll", given, " => ".join(exchanged), {"q": moved})
    return given


@cache
def _padding_with(bits: str) -> Operation:
    """Return the operation that pads with a number in hexadecimal, so that 0.0 is not -0.0."""

    def forward(v: Any, v1: Any) -> None:
        v[:] = float.fromhex(bits)
        v[:] = v1

    def gradient(g: Any, g1: Any) -> None:
        g1 += g

    made = define_operation("pad", forward=forward, gradient=gradient, operands=1)
    return replace(made, moves_cells=True)


_Continuation = Literal["edge", "reflect", "symmetric", "wrap"]
_Continued = tuple[int, tuple[tuple[slice, int], ...]]
"""The position of an axis, and the slices that it becomes, with the copies of each cell."""
_MOST_PARTS = 9
"""The greatest number of parts of a tensor that is continued along two axes at once."""
Widths = int | tuple[int, int] | Sequence[tuple[int, int]]
"""Cells to add on both sides of every axis, before and after every axis, or for each axis."""


def pad(
    x: Any, widths: Widths, *, mode: str = "constant", value: float = 0.0, axis: AxisArgument = None
) -> Any:
    """Return the tensor with cells added before and after axes.

        oc.pad(x, 1)                            # one cell on every side
        oc.pad(x, (0, 2), axis=-1)              # two cells after the last axis
        oc.pad(x, [(1, 1), (0, 2)])             # for each of two axes

    Args:
        widths: The numbers of cells: for both sides, before and after, or a pair for each axis.
        mode: "constant" for cells of a value, "edge" for copies of the last cell, "reflect" for the
            cells beside it in reversed order, "symmetric" for the last cell and the cells beside it
            in reversed order, "wrap" for cells from the other end. All but the first need known
            sizes.
        value: The number in the new cells of the mode "constant".
        axis: The axes; all when not given.
    """
    given = operand(x, "pad")
    own = axes_of(given, "pad") if mode == "constant" else sized_axes_of(given, "pad")
    positions = own.positions(axis)
    pairs = _pairs(widths, len(positions))
    if not isinstance(value, Real):
        raise UsageError.at_caller("New cells hold a number.", found=f"value={value!r}")
    added = [(at, pair) for at, pair in zip(positions, pairs, strict=True) if pair != (0, 0)]
    if mode == "constant":
        parts = {
            at: "^".join(str(n) if n != -1 else own.names[at] for n in (low, -1, high) if n)
            for at, (low, high) in added
        }
        if not parts:
            return given
        number = exact_number(value)
        if isinstance(number, int) and given.dtype.is_integer:  # they wrap around
            return pad(given - number, widths, axis=axis) + number
        spec = f"{own.spec} => {own.replaced(parts)}"
        return apply(_padding_with(float(number).hex()), (given,), spec, name="pad")
    axes = [(at, tuple(_slices(_padded(mode, own.known_size(at), *pair)))) for at, pair in added]
    while axes:
        count = _joint_axes(axes)
        given = _continued(given, axes[-count:])
        del axes[-count:]
    return given


def _joint_axes(axes: Sequence[_Continued]) -> int:
    """Return the number of last axes, at least one, that have few parts together."""
    count, parts = 1, len(axes[-1][1])
    for _, slices in reversed(axes[:-1]):
        parts *= len(slices)
        if parts > _MOST_PARTS:
            break
        count += 1
    return count


def _continued(x: Tensor, axes: Sequence[_Continued]) -> Tensor:
    """Return a tensor with axes continued at once, each part written to its place: one axis after
    the other would copy the tensor for each.
    """
    if not axes:
        return x
    (at, slices), *others = axes
    parts = [_continued(repeat(part(x, at, each), copies, at), others) for each, copies in slices]
    joined: Tensor = concat(parts, axis=at)
    return joined


def _slices(positions: Sequence[int]) -> Iterator[tuple[slice, int]]:
    """Yield slices that have these positions, one after the other, and the copies of each cell."""
    start = 0
    while start < len(positions):
        step = positions[start + 1] - positions[start] if start + 1 < len(positions) else 1
        step = step if abs(step) <= 1 else 1
        stop = start + 1
        while stop < len(positions) and positions[stop] - positions[stop - 1] == step:
            stop += 1
        first, last = positions[start], positions[stop - 1]
        end = last + (step or 1)
        yield slice(first, end if end >= 0 else None, step or 1), 1 if step else stop - start
        start = stop


def _pairs(widths: Widths, count: int) -> list[tuple[int, int]]:
    """Return the numbers of cells before and after each of the axes."""
    given = np.asarray(widths, dtype=object)
    try:
        pairs = np.broadcast_to(given, (count, 2)).tolist() if given.ndim != 1 or count else []
        found = [(operator.index(low), operator.index(high)) for low, high in pairs]
    except (TypeError, ValueError):
        found = [(-1, -1)]
    if (given.ndim == 2 and len(given) != count) or any(n < 0 for pair in found for n in pair):
        raise UsageError.at_caller(
            "Padding is a number of cells, a pair for before and after, or a pair for each axis.",
            found=f"widths={widths!r} for {count} axes",
            fix="oc.pad(x, 1), oc.pad(x, (0, 2), axis=-1), oc.pad(x, [(1, 1), (0, 2)])",
        )
    return found


def _padded(mode: str, size: int, low: int, high: int) -> Sequence[int]:
    """Return the positions of the cells of a padded axis."""
    if mode not in get_args(_Continuation):
        modes = ", ".join(map(repr, get_args(_Continuation)))
        raise UsageError.at_caller(
            f"Axes are padded with a constant, or continued by one of {modes}.",
            found=f"mode={mode!r}",
            fix='mode="constant", mode="reflect" or mode="edge"',
        )
    if size == 0 or (mode == "reflect" and size == 1):
        raise ShapeError.at_caller(
            "An axis is continued by cells that it has.",
            found=f"an axis of size {size} with mode={mode!r}",
        )
    kind = cast(_Continuation, mode)
    positions: list[int] = np.pad(np.arange(size), (low, high), mode=kind).tolist()
    return positions


def repeat(x: Any, repeats: int, axis: int) -> Any:
    """Return the tensor with every cell along an axis repeated: `a, b` to `a, a, b, b`."""
    given = operand(x, "repeat")
    own = axes_of(given, "repeat")
    position = own.position(axis)
    count = _count(repeats, "oc.repeat", "repeats")
    if count == 1 or own.size(position) == 0:
        return given
    if count == 0:
        return _emptied(given, {position})
    widened = own.replaced({position: f"{count}*{own.names[position]}<+copy"})
    return move("repeat", given, f"{own.spec} => {widened}", {"copy": count})


def tile(x: Any, repeats: int | Sequence[int]) -> Any:
    """Return the tensor repeated as a whole along axes: `a, b` to `a, b, a, b`.

    Args:
        x: The tensor, of known sizes.
        repeats: The number of copies along each axis, or along the last ones; more numbers than
            axes add axes on the left.
    """
    given = operand(x, "tile")
    own = sized_axes_of(given, "tile")
    counts = [
        _count(n, "oc.tile", "repeats")
        for n in (repeats if isinstance(repeats, Sequence) else (repeats,))
    ]
    surplus = max(0, len(counts) - len(own))
    counts = [1] * (len(own) - len(counts)) + counts
    for position in range(len(own)):
        if own.known_size(position) == 0:  # copies of no cells
            counts[position + surplus] = 1
    empty = {k for k, count in enumerate(counts[surplus:]) if count == 0}
    if empty:
        given = _emptied(given, empty)
        own = sized_axes_of(given, "tile")
        counts = [*counts[:surplus], *(count or 1 for count in counts[surplus:])]
    _, ranks = own.inserted(range(surplus))
    names = [f"c{position}" for position in range(surplus)]
    values = {f"c{position}": count for position, count in enumerate(counts)}
    for position, name in enumerate(own.names):
        size, label = own.known_size(position), f"c{position + surplus}"
        names.append(f"{size}*{label}<+{name}" if counts[position + surplus] != 1 else name)
    spec = f"{own.spec} => {write_shape(names, ranks)}"
    used = {name: values[name] for name in values if name in spec}
    return move("tile", given, spec, used)


def _emptied(x: Tensor, positions: AbstractSet[int]) -> Tensor:
    """Return a tensor without cells along axes."""
    rank = len(axes_of(x, "repeat"))
    found: Tensor = x[tuple(slice(0, 0) if k in positions else slice(None) for k in range(rank))]
    return found


def _count(given: object, name: str, argument: str, least: int = 0) -> int:
    if isinstance(given, IndexArithmetic):
        operator.index(given)  # an error with advice about extents
    if not isinstance(given, int | np.integer) or isinstance(given, bool) or given < least:
        raise UsageError.at_caller(
            f"{argument} of {name} is an integer, {least} or more.", found=f"{argument}={given!r}"
        )
    return int(given)


def tril(x: Any, k: int = 0) -> Any:
    """Return the tensor with zeros above a diagonal of its last two axes.

    Args:
        k: The diagonal: 0 for the main one, positive ones are above it.
    """
    return _triangle("tril", x, k, pointwise.less_equal)


def triu(x: Any, k: int = 0) -> Any:
    """Return the tensor with zeros below a diagonal; arguments are as for `tril`."""
    return _triangle("triu", x, k - 1, lambda low, high: pointwise.less(high, low))


def _triangle(name: str, x: Any, k: int, compare: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    given = operand(x, name)
    own = sized_axes_of(given, name)  # an axis of size 1 that grew would have more positions
    if len(own) < 2:
        raise ShapeError.at_caller(
            "A triangle lies in two axes.", found=f"{name} of a tensor of {len(own)} axes"
        )
    row, column = own.names[-2:]
    lined_up = write_shape([row, column], (0, 2, 0))
    places = []
    for label, made in ((column, ["0", column]), (row, [row, "0"])):
        numbers, along = offsets(dtype=int32, output=[...]), write_shape([label], (0, 1, 0))
        require_shapes(f"{own.spec}; {along}", given, numbers)
        spec = f"{along} => {write_shape(made, (0, 2, 0))}"
        places.append(apply(pointwise.identity, (numbers,), spec, name=name))
    mask = compare(places[0], places[1] + k)
    zero = constant(False if given.dtype is bool_ else 0, given.session)
    spec = f"{lined_up}; {own.spec}; |-> => {own.spec}"
    return apply(pointwise.where, (mask, given, zero), spec, name=name)


def one_hot(ids: Any, classes: int | StaticExtent, *, dtype: DType | str | None = None) -> Any:
    """Return 1 at the position that an integer names along a new last output axis, 0 elsewhere.

    Args:
        ids: Integers; one outside of the classes gives zeros only.
        classes: The size of the new axis, a number or an extent at run time.
        dtype: The number format of the result; the session's default float when not given.
    """
    given = operand(ids, "one_hot")
    if not isinstance(classes, StaticExtent):
        classes = _count(classes, "oc.one_hot", "classes", 1)
    spec = "...|...->...; |->k, => ...|...->..., k"
    found = apply(pointwise.equal, (given, arange(classes, dtype=int32)), spec, name="one_hot")
    return pointwise.cast(found, dtype or given.session.default_dtype)


def _is_whole(value: Any) -> bool:
    """Return True for integers of Python and NumPy."""
    with suppress(TypeError):
        operator.index(value)
        return not isinstance(value, Tensor)
    return False
