"""Values whose size along an axis follows from data, up to a bound that the caller states.

A bounded value is padded to the bound, and counts its valid positions. The rules in `_RULES` let
operators accept bounded values: they state the axis of the result and mask the padding. Every other
operator refuses bounded values, so that none computes with padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

import ocannl_core as oc
from ocannl_core import Tensor
from ocannl_onnx.errors import UnknownValueError
from ocannl_onnx.registry import STANDARD, Operator
from ocannl_onnx.values import Item, Sizes, Value

if TYPE_CHECKING:
    from ocannl_onnx.graphs import Node


OPERATORS = ("NonZero", "Compress", "Unique", "NonMaxSuppression", "Loop")
"""Operators whose results have sizes that data decides."""


@dataclass(frozen=True)
class Bounded:
    """A result whose size along an axis follows from data.

    Attributes:
        cells: The cells, padded with zeros to the bound.
        count: The number of valid positions along the axis, a tensor of one cell.
        axis: The position of the axis in the shape of the cells.
    """

    cells: Tensor
    count: Tensor
    axis: int


class BoundedValue(Value):
    """A value whose size along an axis follows from data.

    Attributes:
        axis: The axis, of the size of the bound.
        count: The number of valid positions along the axis.
        source: The name of the node that decides it.
    """

    __slots__ = ("axis", "count", "source")

    def __init__(self, cells: Value, axis: int, count: Tensor, source: str) -> None:
        super().__init__(cells.format, cells.shape, tensor=cells.tensor, inputs=cells.inputs)
        self.axis = axis
        self.count = count
        self.source = source

    @property
    def tensor(self) -> NoReturn:
        """Raise an error: no code reads the cells without their count."""
        raise oc.UsageError(
            f"The size of axis {self.axis} follows from data, and this use does not know it.",
            found=f"a result of {self.source}, with cells up to its bound {self.shape[self.axis]}",
        )

    def filled(self, number: float = 0) -> Value:
        """Return the cells with a number in place of those beyond the count."""
        assert self._tensor is not None
        cells = Value(self.format, self.shape, tensor=self._tensor)
        return self.masked(cells, self.axis, self.rank, number)

    def masked(self, value: Value, axis: int, rank: int, number: float = 0) -> Value:
        """Return a value with a number at positions beyond the count, from which no gradient flows.

        Args:
            axis: The axis of the positions, among as many as `rank`, to which the value is
                broadcast.
        """
        bound = self.shape[self.axis]
        sizes = [1] * rank
        sizes[axis] = bound
        places = oc.tensor(np.arange(bound, dtype=np.int64).reshape(sizes))
        is_inside = oc.less(places, self.count, dtype="bool")
        shape = tuple(np.broadcast_shapes(value.shape, tuple(sizes)))
        filled = oc.where(is_inside, value.tensor, number)
        return Value.of_tensor(filled, value.format, value.inputs | self.inputs, shape)

    def result(self) -> Bounded:
        return Bounded(self.filled().tensor, self.count, self.axis)


class Chosen(NamedTuple):
    """The positions of the cells that a condition chooses, and their number.

    Attributes:
        positions: Positions in order up to the bound; beyond the count they are 0.
    """

    positions: Tensor
    count: Tensor
    source: str

    def value(self, node: Node, tensor: Tensor, axis: int, like: Value | None = None) -> Value:
        """Return a value with one cell for each position along an axis."""
        format = None if like is None else like.format
        return BoundedValue(
            Value.of_tensor(tensor, format, node.dependencies), axis, self.count, self.source
        )


def chosen(node: Node, condition: Tensor, bound: int) -> Chosen:
    """Return the positions at which a condition of one axis holds.

    More of them than the bound are an error at run time.
    """
    (size,) = condition.shape.dims
    running = oc.cumsum(oc.cast(condition, "int64"), axis=0)
    source = node.proto.name or node.proto.output[0]
    counts = oc.tensor(np.arange(bound + 1), label=node.importer.fresh(f"bound_of_{source}"))
    total = oc.primitives.identity(running[size - 1], label=f"count_of_{source}")
    count = oc.take(counts, node.valid_positions(total))  # a position that is checked
    at = oc.where(oc.logical_and(condition, oc.less_equal(running, bound)), running - 1, bound)
    numbers = oc.tensor(np.arange(size, dtype=np.int64))
    positions = oc.scatter(at, numbers, size=bound + 1)[:bound]
    is_inside = oc.less(oc.tensor(np.arange(bound)), count, dtype="bool")
    return Chosen(oc.where(is_inside, positions, 0), count, source)


Arguments = Sequence[Item | None]
Rule = Callable[["Node", Arguments], tuple[list[Any], int | None] | None]
"""A function that returns arguments for an operator and the axis of its results that the count is
about, None for results that all cells have entered; or None if the operator refuses them.
"""

_RULES: dict[str, Rule] = {}


def apply(node: Node, domain: str, operator: Operator, arguments: Arguments) -> Any:
    """Return the results of an operator on values of which some are bounded."""
    bounded = [each for each in arguments if isinstance(each, BoundedValue)]
    first = bounded[0]
    rule = _RULES.get(node.proto.op_type) if domain == STANDARD else None
    if rule is None and operator.is_pointwise and domain == STANDARD:
        rule = _pointwise
    same = all(each.count is first.count for each in bounded)
    found = rule(node, arguments) if rule is not None and same else None
    if found is None:
        raise UnknownValueError(
            node.operator,
            "operand",
            first.inputs,
            where=node.where,
            reason=f"the size of its operand follows from data in {first.source}, and its result "
            "would depend on cells beyond that size",
        )
    plain, axis = found
    results = operator.function(node, *plain)
    if axis is None:
        return results
    several = results if isinstance(results, tuple | list) else [results]
    return [
        BoundedValue(
            each if isinstance(each, Value) else Value.of_tensor(each, inputs=node.dependencies),
            axis,
            first.count,
            first.source,
        )
        for each in several
    ]


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        _RULES.update(dict.fromkeys(names, function))
        return function

    return register


def _plain(arguments: Arguments) -> list[Any]:
    return [each.filled() if isinstance(each, BoundedValue) else each for each in arguments]


def _only(arguments: Arguments) -> BoundedValue | None:
    """Return the first argument if it alone is bounded."""
    first, *others = arguments
    if isinstance(first, BoundedValue) and not any(isinstance(e, BoundedValue) for e in others):
        return first
    return None


def _axes(node: Node, x: Value, given: Any) -> tuple[int, ...] | None:
    """Return the axes of an attribute or an input; None if there are none."""
    axes = node.attr("axes") if given is None else node.known_sizes(given, "axes")
    return None if axes is None else tuple(int(each) % x.rank for each in axes)


@_rule("Cast", "Identity")
def _pointwise(node: Node, arguments: Arguments) -> tuple[list[Any], int | None] | None:
    values = [each for each in arguments if isinstance(each, Value)]
    bounded = [each for each in values if isinstance(each, BoundedValue)]
    rank = max(each.rank for each in values)
    axes = {each.axis + rank - each.rank for each in bounded}
    if len(axes) != 1 or node.version < 7:
        return None
    (axis,) = axes
    plain: list[Any] = []
    for each in arguments:
        if isinstance(each, BoundedValue):
            plain.append(each.filled())
            continue
        if not isinstance(each, Value):
            plain.append(each)
            continue
        own = axis - rank + each.rank
        if own >= 0 and each.shape[own] != 1:
            return None
        is_constant = each.is_known and not each.is_weight
        if is_constant or not each.format.is_float:
            plain.append(each)
        else:  # its gradient is a sum over the cells
            plain.append(bounded[0].masked(each, axis, rank))
    return plain, axis


@_rule("Softmax", "LogSoftmax")
def _along_another_axis(node: Node, arguments: Arguments) -> tuple[list[Any], int | None] | None:
    x = _only(arguments)
    if x is None or node.version < 13 or node.attr("axis", -1) % x.rank == x.axis:
        return None
    return _plain(arguments), x.axis


@_rule("Transpose")
def _transpose(node: Node, arguments: Arguments) -> tuple[list[Any], int | None] | None:
    x = _only(arguments)
    if x is None:
        return None
    order = node.attr("perm", tuple(reversed(range(x.rank))))
    return _plain(arguments), order.index(x.axis)


@_rule("Unsqueeze")
def _unsqueeze(node: Node, arguments: Arguments) -> tuple[list[Any], int | None] | None:
    x = _only(arguments)
    given = arguments[1] if len(arguments) > 1 else None
    if x is None:
        return None
    axes = node.attr("axes") if given is None else node.known_sizes(given, "axes")
    rank = x.rank + len(axes)
    kept = [at for at in range(rank) if at not in {each % rank for each in axes}]
    return _plain(arguments), kept[x.axis]


@_rule("Squeeze")
def _squeeze(node: Node, arguments: Arguments) -> tuple[list[Any], int | None] | None:
    x = _only(arguments)
    axes = None if x is None else _axes(node, x, arguments[1] if len(arguments) > 1 else None)
    if x is None or axes is None or x.axis in axes:
        return None  # the axis would disappear where the count is 1
    return _plain(arguments), x.axis - sum(each < x.axis for each in axes)


@_rule("Concat", "Split")
def _parts(node: Node, arguments: Arguments) -> tuple[list[Any], int | None] | None:
    found = [each for each in arguments if isinstance(each, BoundedValue)]
    first = found[0]
    parts = arguments if node.proto.op_type == "Concat" else arguments[:1]
    default = 1 if node.proto.op_type == "Concat" else 0
    same = all(isinstance(each, BoundedValue) and each.axis == first.axis for each in parts)
    if not same or node.attr("axis", default) % first.rank == first.axis:
        return None
    return _plain(arguments), first.axis


@_rule("Slice")
def _slice(node: Node, arguments: Arguments) -> tuple[list[Any], int | None] | None:
    x = _only(arguments)
    if x is None or node.version < 10:
        return None
    starts = node.known_sizes(arguments[1], "starts")
    given = arguments[3] if len(arguments) > 3 else None
    axes = range(len(starts)) if given is None else node.known_sizes(given, "axes")
    return None if x.axis in {each % x.rank for each in axes} else (_plain(arguments), x.axis)


@_rule("Gather")
def _gather(node: Node, arguments: Arguments) -> tuple[list[Any], int | None] | None:
    x, ids = arguments
    if not isinstance(x, Value) or not isinstance(ids, Value):
        return None
    axis = node.attr("axis", 0) % x.rank
    if isinstance(x, BoundedValue):
        if isinstance(ids, BoundedValue) or axis == x.axis:
            return None
        return _plain(arguments), x.axis if x.axis < axis else x.axis + ids.rank - 1
    assert isinstance(ids, BoundedValue)
    return (_plain(arguments), axis + ids.axis) if x.shape[axis] else None


@_rule("GatherND")
def _gather_nd(node: Node, arguments: Arguments) -> tuple[list[Any], int | None] | None:
    x, ids = arguments
    if not isinstance(ids, BoundedValue) or not isinstance(x, Value) or isinstance(x, BoundedValue):
        return None
    if ids.axis == ids.rank - 1 or node.attr("batch_dims", 0) or 0 in x.shape:
        return None
    return _plain(arguments), ids.axis


@_rule("MatMul")
def _matmul(node: Node, arguments: Arguments) -> tuple[list[Any], int | None] | None:
    x = _only(arguments)
    other = arguments[1]
    is_rows = x is not None and x.rank == 2 and x.axis == 0
    if x is None or not is_rows or not isinstance(other, Value) or other.rank != 2:
        return None
    return _plain(arguments), 0


@_rule("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin")
def _reduce(node: Node, arguments: Arguments) -> tuple[list[Any], int | None] | None:
    x = _only(arguments)
    if x is None or not (x.format.is_float or x.format.is_integer):
        return None
    axes = _axes(node, x, arguments[1] if len(arguments) > 1 else None) or ()
    if not axes and node.attr("noop_with_empty_axes", 0):
        return None
    if axes and x.axis not in axes:
        dropped = 0 if node.attr("keepdims", 1) else sum(each < x.axis for each in axes)
        return _plain(arguments), x.axis - dropped
    return [x.filled(_neutral(node.proto.op_type, x)), *arguments[1:]], None


def _neutral(name: str, x: Value) -> float:
    if name in ("ReduceSum", "ReduceProd"):
        return 0 if name == "ReduceSum" else 1
    low, high = (-np.inf, np.inf) if x.format.is_float else x.format.range
    return low if name == "ReduceMax" else high


def along(positions: Tensor, sizes: Sizes) -> list[Tensor]:
    """Return the position along each axis for positions in row-major order."""
    found, step = [], int(np.prod(sizes))
    for size in sizes:
        step //= size
        found.append(oc.remainder(oc.floor_divide(positions, step), size))
    return found
