"""Tensors with cells replaced at positions that a tensor of integers holds.

    put(x, ids, values, axis)[..., k, ...]  =  values[..., i, ...] for the last i with ids[i] = k,
                                               x[..., k, ...] where there is none

Of equal positions the last one counts, in row-major order, as in NumPy. So a cell of the result is
one cell of `values` or of `x`, and so is its gradient.
"""

from __future__ import annotations

from numbers import Real
from typing import Any, SupportsIndex

from ocannl_core.base.errors import ShapeError
from ocannl_core.base.origin import Origin, caller_location
from ocannl_core.ir.numbers.dtypes import int32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.shape.language.constraints import equal_shapes
from ocannl_core.shape.translation.logic import Adjoint, Logic, Take, TakeAlong
from ocannl_core.tensor.derivatives.gradient_terms import derived_tensor
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.operations.axes import apply, axes_of, operand, sized_axes_of, write_shape
from ocannl_core.tensor.operations.literals import offsets
from ocannl_core.tensor.operations.positions import check_integers, take, take_along, with_kinds_of
from ocannl_core.tensor.operations.rearrangement import broadcast_to, flatten, move, unflatten
from ocannl_core.tensor.primitives import pointwise_operations as pointwise
from ocannl_core.tensor.primitives.operands import as_tensor, constant

_last_write = pointwise.lift("last_write", BinaryOp.FIRST, combine=BinaryOp.MAX, positions=1)
"""The greatest of the numbers written at a position; the least integer where there is none."""


def put(x: Any, ids: Any, values: Any, axis: SupportsIndex | None = None) -> Any:
    """Return a tensor with cells replaced at positions along an axis, where `take` would read.

    Of equal positions the last one counts, in row-major order.

    Args:
        x: The tensor, of known sizes.
        ids: Positions, integers that count from 0; along an axis, a tensor of one axis.
        values: The new cells, with the axis of `ids` in place of the axis of `x`, or a number.
        axis: The axis. When not given, positions count all cells in row-major order, as in
            `numpy.put`, and `values` has the shape of `ids`.

    Raises:
        UsageError: if positions are no integers; when the routine runs, if one is beyond.
        ShapeError: if the shapes do not fit.
    """
    given, places = operand(x, "put"), operand(ids, "put")
    check_integers(places, "put")
    new = values if isinstance(values, Real) else operand(values, "put")
    own = sized_axes_of(given, "put")
    if axis is None:
        if isinstance(new, Tensor):
            new = flatten(broadcast_to(new, *sized_axes_of(places, "put").lengths))
        return unflatten(put(flatten(given), flatten(places), new, 0), own, own.lengths)
    position = own.position(axis)
    count = len(axes_of(places, "put"))
    if count != 1:
        raise ShapeError.at_caller(
            "Positions along an axis have one axis.",
            found=f"{count} axes of {places!r}",
            fix="oc.flatten(ids), and values with one axis in their place; oc.put_along takes "
            "positions for each place on the other axes",
        )
    kind = [(1, 0, 0), (0, 1, 0), (0, 0, 1)][own.kind(position)]
    source = sized_axes_of(places, "put")
    if source.ranks != kind:
        places = move("put", places, f"{source.spec} => {write_shape(source.names, kind)}")
    whole = write_shape([own.names[position]], kind)
    numbered = offsets(dtype=int32, output=[own.known_size(position)])
    cells = move("put", numbered, f"{write_shape([own.names[position]], (0, 1, 0))} => {whole}")
    taken = take(cells, places)
    last = _last_writes("put", Take(0), offsets(dtype=int32), taken, cells, places)
    if isinstance(new, Tensor) and source.known_sizes != (0,):
        if len(axes_of(new, "put")) == len(own):
            new = with_kinds_of(given, new, position, "put")
        wanted = list(own.lengths)
        wanted[position] = source.lengths[0]
        new = take(broadcast_to(new, *wanted), pointwise.maximum(last, 0), position)
        replacing = own.spec
    else:
        new, replacing = _number_for(new), "|->"
    spec = f"{whole}; {replacing}; {own.spec} => {own.spec}"
    chosen = as_tensor(new, given.session)
    return apply(pointwise.where, (pointwise.less_equal(0, last), chosen, given), spec, name="put")


def put_along(x: Any, ids: Any, values: Any, axis: SupportsIndex = -1) -> Any:
    """Return a tensor with cells replaced at positions along an axis, with other positions for each
    place on the other axes, as `numpy.put_along_axis` does.

    Of equal positions the last one counts.

    Args:
        ids: Positions, integers that count from 0, with the axes of `x`; all but the selected axis
            may be of size 1.
        values: The new cells, of the shape of `ids`, or a number.
    """
    given, places = operand(x, "put_along"), operand(ids, "put_along")
    check_integers(places, "put_along")
    places = with_kinds_of(given, places, axis, "put_along")
    own, other = sized_axes_of(given, "put_along"), sized_axes_of(places, "put_along")
    position = own.position(axis)
    fits = own.ranks == other.ranks and all(
        k == position or other.size(k) in (None, 1, own.size(k)) or own.size(k) is None
        for k in range(len(own))
    )
    if not fits:
        raise ShapeError.at_caller(
            "Positions along an axis have the axes of the tensor; others than that may be 1.",
            found=f"positions of the shape {places.shape} for a tensor of the shape {given.shape}",
        )
    taken = take_along(given, places, position)
    along = write_shape([own.names[position]], (0, 1, 0))
    steps = apply(
        pointwise.identity,
        (offsets(dtype=int32, output=[...]),),
        f"{along} => {own.spec}",
        name="put_along",
    )
    last = _last_writes("put_along", TakeAlong(position), steps, taken, given, places)
    if isinstance(values, Real) or other.size(position) == 0:
        new = _number_for(values)
    else:
        new = with_kinds_of(given, operand(values, "put_along"), axis, "put_along")
        sizes = sized_axes_of(new, "put_along")
        if sizes.size(position) == 1 and other.size(position) != 1:
            new = broadcast_to(new, *sized_axes_of(taken, "put_along").lengths)
        new = take_along(new, pointwise.maximum(last, 0), position)
    return pointwise.where(pointwise.less_equal(0, last), new, given)


def _number_for(values: Any) -> Any:
    """Return a number, or one in the format of cells, none of which is written."""
    return values if isinstance(values, Real) else constant(0.0, values.session, dtype=values.dtype)


def _last_writes(
    name: str, logic: Logic, numbers: Tensor, taken: Tensor, x: Tensor, places: Tensor
) -> Tensor:
    """Return, for each cell of `x`, the greatest of the numbers at positions that `taken` reads."""
    origin = Origin(name, caller_location())
    numbers.session.environment.constrain(equal_shapes(numbers.terms, taken.terms, origin))
    adjoint = Adjoint(logic, (taken.terms, x.terms, places.terms), 1, (0, 2))
    return derived_tensor(_last_write, (numbers, places), adjoint, x, origin, dtype=int32)
