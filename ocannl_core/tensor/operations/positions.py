"""Reading and writing at positions that a tensor of integers holds.

    take(x, ids)[..., i, ...]   =  x[..., ids[i], ...]
    scatter(ids, u, size=n)[k]  =  the sum of u[i] over all i with ids[i] = k

The gradient of either is the other one: index maps with a computed position are read and written
alike. Accumulations run in the row-major order of the positions.

    put(x, ids, values, axis)[..., k, ...]  =  values[..., i, ...] for the last i with ids[i] = k,
                                               x[..., k, ...] where there is none

Of equal positions the last one counts, in row-major order, as in NumPy. So a cell of the result is
one cell of `values` or of `x`, and so is its gradient.
"""

from __future__ import annotations

import operator
from contextlib import suppress
from functools import cache
from numbers import Real
from typing import Any, SupportsIndex

from ocannl_core.base.errors import ShapeError, UsageError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.base.identity import ById
from ocannl_core.ir.assignments.nodes import Constant, RangeOverOffsets
from ocannl_core.ir.indexing import StaticExtent
from ocannl_core.ir.numbers.dtypes import DType, int32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.shape.language.shape_terms import stated_size
from ocannl_core.shape.translation.logic import PlaceAlong, PlaceRows, ScatterRows, Take, TakeAlong
from ocannl_core.tensor.derivatives.gradient_terms import filled_like
from ocannl_core.tensor.graph import slots
from ocannl_core.tensor.graph.assignment import accumulator, recorder_for
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.operations import axes
from ocannl_core.tensor.operations.contractions import selected_gradient
from ocannl_core.tensor.operations.rearrangement import broadcast_to, flatten, move, unflatten
from ocannl_core.tensor.operations.reductions import prod, product_gradient
from ocannl_core.tensor.primitives import pointwise_operations as pointwise
from ocannl_core.tensor.primitives.operands import as_tensor, constant, require_operand, session_of
from ocannl_core.tensor.primitives.operation import Operation
from ocannl_core.tensor.primitives.pointwise_operations import add, first, identity, lift, neg

second = lift("second", BinaryOp.SECOND)
"""The operation that returns its second operand; the first only takes part in shape inference."""
_checked = replace(second, name="positions", primitive=None, positions=1)
_take = lift("take", BinaryOp.FIRST, first.gradient, positions=1)
_take_along = lift("take_along", BinaryOp.FIRST, first.gradient, positions=1)


@cache
def _scatter(combine: BinaryOp, axis: int) -> Operation:
    """Return the accumulation at positions along an axis by a primitive."""
    gradients = {
        BinaryOp.ADD: first.gradient,
        BinaryOp.SUB: neg.gradient,
        BinaryOp.MUL: product_gradient,
        BinaryOp.MAX: selected_gradient,
        BinaryOp.MIN: selected_gradient,
    }
    gradient = gradients.get(combine)
    made = lift("scatter", BinaryOp.FIRST, gradient, combine=combine, positions=1)

    def of_products(updates: Tensor, ids: Tensor, g: Tensor) -> tuple[Tensor, None]:
        own, count = axes.axes_of(updates, "scatter"), len(axes.axes_of(ids, "scatter"))
        position = axis if axis >= 0 else axis + len(own) - count + 1
        return take(g, ids, position) * _products_of_others(updates, ids, position), None

    return replace(made, gradient_expression=of_products) if combine is BinaryOp.MUL else made


def _products_of_others(updates: Tensor, ids: Tensor, axis: int) -> Tensor:
    """Return, for each update, the product of the others at its position along an axis.

    It multiplies all pairs of updates: backpropagation divides the product of all by each, which
    has no derivative beside a factor of 0.
    """
    own, places = axes.axes_of(updates, "scatter"), axes.axes_of(ids, "scatter")
    count = len(places)
    if not count:
        return filled_like(updates, 1.0)
    others = [f"other{k}" for k in range(count)]
    last = count - 1
    cells = own.names[axis : axis + count]
    both = ", ".join([cells[last], *others])
    pairs = places.replaced({**dict(enumerate(cells)), last: both})
    here, there = (places.replaced(dict(enumerate(names))) for names in (cells, others))
    numbers = filled_like(ids, RangeOverOffsets(), int32)
    is_same, is_other = (
        axes.apply(compare, (each, each), f"{here}; {there} => {pairs}", name="scatter")
        for compare, each in ((pointwise.equal, ids), (pointwise.not_equal, numbers))
    )
    factors = axes.apply(
        pointwise.where,
        (pointwise.logical_and(is_same, is_other), updates, constant(1.0, updates.session)),
        f"{pairs}; {own.replaced(dict(enumerate(others, axis)))}; |-> => "
        f"{own.replaced({axis + last: both})}",
        name="scatter",
        dtype=updates.dtype,
    )
    result: Tensor = prod(factors, tuple(range(axis + count, axis + 2 * count)))
    return result


def take(
    x: Any,
    ids: Any,
    axis: SupportsIndex = 0,
    *,
    label: str | None = None,
    dtype: DType | str | None = None,
    requires_grad: bool | None = None,
) -> Any:
    """Return the cells of a tensor at positions along one of its axes, as `numpy.take` does.

    The axes of `ids` keep their kinds and replace the selected axis: among axes of its kind they
    stand in its place, among others as close to it as possible. The gradient is added up at the
    positions, in the row-major order of `ids`.

    Args:
        ids: Positions, a tensor of integers. They count from 0; negative ones are errors.
        axis: The axis, counted in buffer order (batch, output, input), from the end if negative.
        requires_grad: False to stop gradients, True for a gradient even if no operand has one.

    Raises:
        UsageError: if the positions are no integers; and when the routine runs, before it writes
            anything, if one is beyond the axis (unless the setting `check_positions` is off).
        ShapeError: if there is no such axis.
    """
    operands = _operands(_take, x, ids)
    logic = Take(_integer(axis, "axis"))
    return _take.tensor(operands, logic, label=label, dtype=dtype, requires_grad=requires_grad)


def take_along(
    x: Any,
    ids: Any,
    axis: SupportsIndex = -1,
    *,
    label: str | None = None,
    dtype: DType | str | None = None,
    requires_grad: bool | None = None,
) -> Any:
    """Return the cells of a tensor at positions along an axis, with other positions for each place
    on the other axes, as `numpy.take_along_axis` does.

    The other axes of both operands line up and are broadcast. Arguments are as for `take`.
    """
    values, places = _operands(_take_along, x, ids)
    operands = values, with_kinds_of(values, places, axis, "take_along")
    logic = TakeAlong(_integer(axis, "axis"))
    return _take_along.tensor(
        operands, logic, label=label, dtype=dtype, requires_grad=requires_grad
    )


def scatter(
    ids: Any,
    updates: Any,
    *,
    size: SupportsIndex | StaticExtent,
    axis: SupportsIndex = 0,
    combine: Any = add,
    label: str | None = None,
    dtype: DType | str | None = None,
    requires_grad: bool | None = None,
) -> Any:
    """Return a tensor in which updates are accumulated at positions along an axis, from the neutral
    element on: sums from 0 as `numpy.add.at` computes them, maxima from minus infinity.

    The accumulation of a cell runs in the row-major order of the positions, for any number of
    threads. Gradients exist for sums, differences, products and extremes. An extreme
    passes its gradient on to the first of equal updates.

    Args:
        ids: Positions, a tensor of integers with axes of one kind; that is the kind of the axis.
        updates: A tensor with the axes of the result, but the axes of `ids` in place of the axis.
        size: The size of the axis, a number or an extent at run time.
        axis: The axis of the result, counted as for `take`; so are the other arguments.
        combine: The accumulating operation: `oc.add`, `oc.multiply`, `oc.maximum`, `oc.minimum`,
            `oc.logical_or` and others with a neutral element.
        dtype: The number format of the result, in which it is accumulated.
    """
    operation = _scatter(accumulator(combine), _integer(axis, "axis"))
    operands = _operands(operation, updates, ids)
    stated = stated_size(size if isinstance(size, StaticExtent) else _integer(size, "size"))
    if not 0 <= stated.n < 1 << 63:
        raise UsageError.at_caller(
            "The size of an axis is from 0 to 2**63 - 1.", found=f"size={stated.n}"
        )
    logic = ScatterRows(_integer(axis, "axis"), stated)
    return operation.tensor(operands, logic, label=label, dtype=dtype, requires_grad=requires_grad)


def checked(ids: Tensor, x: Tensor, axis: int = 0) -> Tensor:
    """Return positions, checked as in `take(x, ids, axis)`; `x` is not read."""
    operands = _operands(_checked, x, ids)
    return _checked.tensor(operands, Take(axis), dtype=ids.dtype, requires_grad=False)


def store_rows(
    target: Tensor, ids: Tensor, axis: int, value: Any, combine: BinaryOp, reset: bool
) -> None:
    """Record `target[ids] = value`, or an accumulation: `target[ids, oc.maximum] = value`, and
    the update of the rows that `target[ids] += rows` computed.

    Raises:
        UsageError: outside a function decorated with `@oc.cd`; for a reset of the cells.
    """
    otherwise = "; oc.scatter(ids, updates, size=n) makes a new tensor"
    recorder = recorder_for(target, "rows of ", otherwise)
    check_integers(ids, "an assignment")
    if reset:
        raise UsageError.at_caller(
            "An accumulation at positions starts from the cells as they are.",
            found=f"oc.neutral beside a tensor of positions in an assignment to {target!r}",
            fix="assign first: c[ids] = 0.0, then c[ids] += rows",
        )
    update = recorder.update_of(value) if combine is BinaryOp.SECOND else None
    own = [ById(target), ById(ids)]
    if update is not None and [*map(ById, update.part.operands)] == own:
        combine, value = update.combine, update.value
    recorder.assign_rows(target, ids, axis, value, combine)


def _operands(operation: Operation, values: Any, ids: Any) -> tuple[Tensor, Tensor]:
    values, ids = (require_operand(each, operation.name) for each in (values, ids))
    check_integers(ids, operation.name)
    session = session_of((values, ids), operation.name)
    made = as_tensor(values, session), as_tensor(ids, session)
    for each in made:
        axes.settle_axes(each, operation.name)
    return made


def with_kinds_of(x: Tensor, ids: Tensor, axis: SupportsIndex, name: str) -> Tensor:
    """Return positions with axes of the kinds that a tensor of as many axes has, one by one.

    This applies only where axes of equal kinds cannot line up, because positions and tensor have
    different numbers of axes of the selected axis's kind: `ids[:, None]` has only batch axes if
    `ids` has.

    Raises:
        ShapeError: if the positions have more or fewer axes of that kind, and in all.
    """
    own, other = axes.known_axes(x, name), axes.known_axes(ids, name)
    if own is None or other is None or own.ranks == other.ranks:
        return ids
    selected = own.position(axis)
    kind = own.kind(selected)
    if own.ranks[kind] == other.ranks[kind]:
        return ids
    if len(own) != len(other):
        raise ShapeError.at_caller(
            "Positions along an axis have the axes of the tensor, at least those of its kind.",
            found=f"positions of the shape {ids.shape} along axis {selected} of a tensor of the "
            f"shape {x.shape}",
            fix="ids[..., None] has one more axis, of size 1; positions with as many axes as the "
            "tensor get their kinds",
        )
    spec = f"{other.spec} => {axes.write_shape(other.names, own.ranks)}"
    found = axes.apply(identity, (ids,), spec, name=name)
    found.relabel(ids.label)
    return found


def check_integers(ids: Tensor, name: str) -> None:
    if not ids.dtype.is_integer or ids.dtype.is_packed:
        raise UsageError.at_caller(
            "Positions are integers.",
            found=f"{ids!r} of {ids.dtype} as the positions of {name}",
            fix='convert them, oc.cast(ids, "int32"), or make them so: dtype="int32"',
        )


def _integer(value: SupportsIndex, name: str) -> int:
    if not isinstance(value, bool | Tensor):
        with suppress(TypeError):
            return operator.index(value)
    raise UsageError.at_caller(f"{name} is an integer.", found=f"{name}={value!r}", fix=f"{name}=0")


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
    given, places = axes.operand(x, "put"), axes.operand(ids, "put")
    check_integers(places, "put")
    new = values if isinstance(values, Real) else axes.operand(values, "put")
    own = axes.sized_axes_of(given, "put")
    if axis is None:
        if isinstance(new, Tensor):
            new = flatten(broadcast_to(new, *axes.sized_axes_of(places, "put").lengths))
        return unflatten(put(flatten(given), flatten(places), new, 0), own, own.lengths)
    position = own.position(axis)
    count = len(axes.axes_of(places, "put"))
    if count != 1:
        raise ShapeError.at_caller(
            "Positions along an axis have one axis.",
            found=f"{count} axes of {places!r}",
            fix="oc.flatten(ids), and values with one axis in their place; oc.put_along takes "
            "positions for each place on the other axes",
        )
    kind = _one_axis_like(own, position)
    source = axes.sized_axes_of(places, "put")
    if source.ranks != kind:
        places = move("put", places, f"{source.spec} => {axes.write_shape(source.names, kind)}")
    if isinstance(new, Tensor) and source.known_sizes != (0,):
        if len(axes.axes_of(new, "put")) == len(own):
            new = with_kinds_of(given, new, position, "put")
        wanted = list(own.lengths)
        wanted[position] = source.lengths[0]
        new = broadcast_to(new, *wanted)
    return _place("put", PlaceRows(position), given, new, places)


def put_along(x: Any, ids: Any, values: Any, axis: SupportsIndex = -1) -> Any:
    """Return a tensor with cells replaced at positions along an axis, with other positions for each
    place on the other axes, as `numpy.put_along_axis` does.

    Of equal positions the last one counts.

    Args:
        ids: Positions, integers that count from 0, with the axes of `x`; all but the selected axis
            may be of size 1.
        values: The new cells, of the shape of `ids`, or a number.
    """
    given, places = axes.operand(x, "put_along"), axes.operand(ids, "put_along")
    check_integers(places, "put_along")
    places = with_kinds_of(given, places, axis, "put_along")
    own, other = axes.sized_axes_of(given, "put_along"), axes.sized_axes_of(places, "put_along")
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
    new = values
    if not isinstance(new, Real):
        new = with_kinds_of(given, axes.operand(new, "put_along"), axis, "put_along")
        cells = axes.sized_axes_of(new, "put_along")
        limit = other.size(position)
        if cells.ranks == own.ranks and limit and cells.size(position) not in (None, 1, limit):
            raise ShapeError.at_caller(
                "The new cells have the shape of the positions.",
                found=f"values of the shape {new.shape} for positions of the shape {places.shape}",
                fix="oc.take_along(values, ids, axis) are the values at these positions",
            )
    return _place("put_along", PlaceAlong(position), given, new, places)


def _one_axis_like(own: axes.Axes, axis: int) -> tuple[int, int, int]:
    """Return the numbers of batch, output and input axes of positions along one axis."""
    kind = own.kind(axis)
    return int(kind == 0), int(kind == 1), int(kind == 2)


def _place(name: str, logic: PlaceRows | PlaceAlong, x: Tensor, new: Any, ids: Tensor) -> Tensor:
    """Return a tensor with cells replaced at positions; for the arguments see `put`."""
    operation = _placement(name, logic)
    return operation.tensor((x, new, ids), operation.forward.parts, shape=x.terms)


@cache
def _placement(name: str, logic: PlaceRows | PlaceAlong) -> Operation:
    """Return the operation `v = v1; v[v3] = v2`."""
    x, new, ids = slots.operand_variables(3)
    replaced = slots.Application(BinaryOp.FIRST, (new, ids))

    def gradient(x: Tensor, new: Tensor, ids: Tensor, g: Tensor) -> tuple[Tensor | None, ...]:
        return _place(name, logic, g, 0.0, ids), _of_last_writes(name, logic, ids, g), None

    return Operation(
        name=name,
        operands=3,
        logic=None,
        forward=slots.Code.of(
            (slots.RESULT, x, new, ids),
            slots.SlotAssignment(slots.RESULT, BinaryOp.SECOND, False, x),
            slots.SlotAssignment(slots.RESULT, BinaryOp.SECOND, False, replaced, logic),
        ),
        positions=1,
        moves_cells=True,
        gradient_expression=gradient,
    )


def _of_last_writes(name: str, logic: PlaceRows | PlaceAlong, ids: Tensor, g: Tensor) -> Tensor:
    """Return the cells of a gradient at positions, 0 for all but the last of equal positions: the
    last one has left its number there.
    """
    own, axis = axes.axes_of(g, name), logic.axis
    numbers = filled_like(ids, RangeOverOffsets(), int32)
    if isinstance(logic, PlaceAlong):
        blank = filled_like(g, Constant(0), int32)
        last = take_along(_place(name, logic, blank, numbers, ids), ids, axis)
        taken, spec = take_along(g, ids, axis), f"{own.spec}; {own.spec}; |-> => {own.spec}"
    else:
        last = scatter(ids, numbers, size=own.known_size(axis), combine=pointwise.maximum)
        last = take(last, ids)
        along = axes.write_shape([own.names[axis]], _one_axis_like(own, axis))
        taken, spec = take(g, ids, axis), f"{along}; {own.spec}; |-> => {own.spec}"
    zero = constant(0.0, g.session, dtype=g.dtype)
    is_last = pointwise.equal(last, numbers)
    return axes.apply(pointwise.where, (is_last, taken, zero), spec, name=name)
