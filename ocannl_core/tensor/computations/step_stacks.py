"""Stacks: the values that a node of a step has in all steps of a loop, with the time in front.

They make it possible to add up behind a loop what its steps would add to a larger node:

    repeat t in range(count):                     repeat t in range(count):
        gates_grad = ...                              gates_grad = ...
        w_grad[o, i] += gates_grad[o] * h[t, i]       stack[t, o] = gates_grad[o]
                                                  w_grad[o, i] += stack[t, o] * h[t, i]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import prod

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.origin import Origin
from ocannl_core.ir import indexing
from ocannl_core.ir.assignments.nodes import (
    Accumulate,
    Assignment,
    Constant,
    Fetch,
    Merge,
    NodeOperand,
    Operand,
    Scalar,
)
from ocannl_core.ir.assignments.traverse import (
    Leaf,
    leaves,
    map_leaves,
    reads,
    substitute_indices,
    targets,
)
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp

_MOST_TERMS = 16
"""The terms that a step adds to a cell of a sum, at most: more of them take longer to compute than
the access to the cell.
"""
_BYTES_OF_SUM = 32
"""The bytes of a sum for each byte that is stored in every step: stacks take memory for all steps.
"""


def stacked(info: NodeInfo, count: int) -> NodeInfo:
    """Return the shape and format of the stack of a node for a number of steps."""
    return NodeInfo(info.dtype, (count, *info.dims), extents=info.extents and (None, *info.extents))


def copy_cells(
    target: TensorNode,
    source: Operand,
    cells: NodeInfo,
    count: int = 0,
    *,
    target_at: indexing.IndexMap = (),
    source_at: indexing.IndexMap = (),
    combine: BinaryOp = BinaryOp.SECOND,
    origin: Origin | None = None,
) -> Accumulate:
    """Return the assignment of one node to another of the same extents, but for a time axis of
    `count` steps, of the target or the source, with the position there.
    """
    dims = cells.dims
    sizes = cells.extents or (None,) * len(dims)
    domain = tuple((indexing.fresh_var(size=size), n) for n, size in zip(dims, sizes, strict=True))
    cell: indexing.IndexMap = tuple(indexing.VarIndex(var) for var, _ in domain)
    steps = (count,)
    lhs, lhs_dims = (*target_at, *cell), (*steps[: len(target_at)], *dims)
    rhs, rhs_dims = (*source_at, *cell), (*steps[: len(source_at)], *dims)
    if isinstance(source, Scalar):
        rhs, rhs_dims = (), ()
    projections = indexing.Projections(domain, lhs, (rhs,), lhs_dims, (rhs_dims,))
    return Accumulate(target, combine, False, UnaryOp.IDENTITY, (source,), projections, origin)


@dataclass(frozen=True, slots=True)
class SunkSums:
    """A step without the sums that run behind the loop.

    Attributes:
        body: The step, which stores the operands of these sums to stacks.
        behind: The sums over all steps.
        stacks: The stacks, with their shapes and formats.
    """

    body: list[Assignment]
    behind: list[Accumulate]
    stacks: Mapping[TensorNode, NodeInfo]

    @property
    def nbytes(self) -> int:
        """The bytes of the stacks."""
        return sum(info.nbytes for info in self.stacks.values())


def sink_sums(
    body: Sequence[Assignment],
    index: indexing.StaticIndex,
    count: int,
    nodes: Mapping[TensorNode, NodeInfo],
    shared: AbstractSet[TensorNode],
    room: int | None,
) -> SunkSums:
    """Return a step without its sums into shared nodes, and these sums over all steps, where memory
    for all steps pays: where a step adds at most `_MOST_TERMS` terms to each cell, and the sum has
    `_BYTES_OF_SUM` times the bytes of the operands that need a stack. Operands that are added to
    the gradient of an entry need none: that gradient becomes a copy of the stack.

    A sum stays in the step if the step reads its value, or writes it in another way.

    Args:
        body: The code of a step.
        index: The position of the step.
        count: The number of steps, at least 1.
        nodes: Shapes and formats of the nodes of a step, and of shared ones.
        shared: The nodes that outlive a step.
        room: The most bytes that stacks may take; None is no limit.
    """
    step = _Step(body, index, count, nodes)
    pending = step.sums_into(shared)
    step.note_entries(pending)
    sunk: dict[int, Accumulate] = {}
    size = -1
    while size != len(sunk):  # what one sum stores costs the others nothing
        size = len(sunk)
        for number in sorted(pending - sunk.keys()):
            if (behind := step.sum_behind(number, room)) is not None:
                sunk[number] = behind
    return step.without(sunk)


@dataclass(frozen=True, slots=True)
class _Value:
    """Cells that an assignment of a step reads.

    Attributes:
        node: The node that holds them.
        at: Their position in it, in front of the positions of the step's node.
        version: How often the step has written the node before; None if no step changes it.
    """

    node: TensorNode
    at: indexing.IndexMap
    version: int | None = None


class _Step:
    """The code of a step, and the stacks that it stores values to."""

    def __init__(
        self,
        body: Sequence[Assignment],
        index: indexing.StaticIndex,
        count: int,
        nodes: Mapping[TensorNode, NodeInfo],
    ) -> None:
        self._body = body
        self._position: indexing.IndexMap = (indexing.VarIndex(index),)
        time = indexing.fresh_var("t")
        self._time = (time, count)
        self._in_sum: dict[indexing.IndexVar, indexing.AxisIndex] = {index: indexing.VarIndex(time)}
        self._nodes = nodes
        self._leaves = list(leaves(body))
        self._writes: dict[TensorNode, list[int]] = {}
        """The numbers of the assignments to each node."""
        for number, leaf in enumerate(self._leaves):
            for node in targets(leaf):
                self._writes.setdefault(node, []).append(number)
        self._stacks: dict[_Value, TensorNode] = {}
        self._entries: set[_Value] = set()
        """The values that the gradients of entries hold for all steps."""
        self._stores: dict[int, list[Leaf]] = {}
        """The copies to stacks, by the number of the assignment behind them."""

    def sums_into(self, shared: AbstractSet[TensorNode]) -> set[int]:
        """Return the numbers of the sums into shared nodes that a step only adds to."""
        sums: dict[int, TensorNode] = {}
        accessed: set[TensorNode] = set()
        for number, leaf in enumerate(self._leaves):
            if isinstance(leaf, Accumulate) and leaf.target in shared and _is_sum(leaf):
                sums[number] = leaf.target
                accessed.update(arg.node for arg in leaf.args if isinstance(arg, NodeOperand))
            else:
                accessed.update((*reads(leaf), *targets(leaf)))
        return {number for number, target in sums.items() if target not in accessed}

    def note_entries(self, numbers: Iterable[int]) -> None:
        """Note the values that steps add to the gradients of entries."""
        for number in numbers:
            match self._leaves[number]:
                case Accumulate(op=UnaryOp.IDENTITY, args=(NodeOperand(node),)) as leaf:
                    if self._is_entry(leaf):
                        self._entries.add(self._value(node, number))

    def _is_entry(self, leaf: Accumulate) -> bool:
        """Return True for an addition to cells that each step has for itself."""
        return self._position[0] in leaf.projections.lhs

    def sum_behind(self, number: int, room: int | None) -> Accumulate | None:
        """Return the sum over all steps that an assignment adds to; None if it stays in them."""
        leaf = self._leaves[number]
        assert isinstance(leaf, Accumulate)
        values = [
            self._value(arg.node, number) if isinstance(arg, NodeOperand) else None
            for arg in leaf.args
        ]
        new = {each for each in values if each is not None and each.version is not None}
        new -= self._stacks.keys()
        is_entry = self._is_entry(leaf)
        pays = not new if is_entry else self._pays(leaf, new)
        if not pays or not self._has_room(new, room):
            return None
        self._store(new, number, leaf.origin)
        p = leaf.projections
        args, maps, dims = list(leaf.args), list(p.rhs), list(p.rhs_dims)
        for k, value in enumerate(values):
            if value is not None:
                node = self._stacks.get(value, value.node)
                args[k], maps[k] = NodeOperand(node), (*value.at, *maps[k])
                dims[k] = (*(self._time[1] for _ in value.at), *dims[k])
        rows = 0 if is_entry else len(p.domain) - len(_reduced(p))
        domain = (*p.domain[:rows], self._time, *p.domain[rows:])
        projections = replace(p, domain=domain, rhs=tuple(maps), rhs_dims=tuple(dims))
        behind = substitute_indices(
            replace(leaf, args=tuple(args), projections=projections), self._in_sum
        )
        assert isinstance(behind, Accumulate)
        return behind

    def _pays(self, leaf: Accumulate, new: AbstractSet[_Value]) -> bool:
        """Return True if a sum is worth stacks of some values."""
        stored = self._nbytes(new - self._entries)
        terms = prod(_reduced(leaf.projections))
        nbytes = self._nodes[leaf.target].nbytes
        return terms <= _MOST_TERMS and _BYTES_OF_SUM * stored <= nbytes

    def without(self, sunk: Mapping[int, Accumulate]) -> SunkSums:
        """Return the step without some sums."""
        numbers = iter(range(len(self._leaves)))

        def rest(leaf: Leaf) -> list[Leaf]:
            number = next(numbers)
            stores = self._stores.get(number, [])
            return stores if number in sunk else [*stores, leaf]

        count = self._time[1]
        stacks = {
            stack: stacked(self._nodes[value.node], count) for value, stack in self._stacks.items()
        }
        return SunkSums(
            list(map_leaves(self._body, rest)), [sunk[number] for number in sorted(sunk)], stacks
        )

    def _value(self, node: TensorNode, number: int) -> _Value:
        """Return what a node holds in front of an assignment, from where copies read it."""
        while node in self._writes:
            before = [each for each in self._writes[node] if each < number]
            copy = self._copy(node, before)
            if copy is None:
                return _Value(node, self._position, len(before))
            (source,), (cells,) = copy.args, copy.projections.rhs
            assert isinstance(source, NodeOperand)
            written = self._writes.get(source.node, [])
            if cells == (*self._position, *copy.projections.lhs) and not written:
                return _Value(source.node, self._position)
            is_unchanged = not any(before[-1] < each < number for each in written)
            if cells != copy.projections.lhs or not is_unchanged:
                return _Value(node, self._position, len(before))
            node, number = source.node, before[-1]
        return _Value(node, ())

    def _copy(self, node: TensorNode, writes: Sequence[int]) -> Accumulate | None:
        """Return the copy that a node has all its cells from, unless they are computed."""
        match [self._leaves[each] for each in writes]:
            case [Accumulate(combine=BinaryOp.SECOND) as copy]:
                pass
            case [
                Fetch(source=Constant(0.0)),
                Accumulate(combine=BinaryOp.ADD, reset=False) as copy,
            ]:
                pass
            case _:
                return None
        p, info = copy.projections, self._nodes[node]
        is_whole = indexing.is_surjective(p) and indexing.is_injective(p)
        is_whole = is_whole and copy.op is UnaryOp.IDENTITY and not (p.margins or p.lhs_margins)
        match copy.args:
            case (NodeOperand(source),) if is_whole and self._nodes[source].dtype is info.dtype:
                return copy
        return None

    def _nbytes(self, values: Iterable[_Value]) -> int:
        return sum(self._nodes[each.node].nbytes for each in values)

    def _has_room(self, new: AbstractSet[_Value], room: int | None) -> bool:
        return room is None or self._time[1] * self._nbytes(self._stacks.keys() | new) <= room

    def _store(self, values: Iterable[_Value], number: int, origin: Origin | None) -> None:
        """Store values to stacks in front of an assignment."""
        for value in sorted(values, key=lambda each: each.node.id):
            node = value.node
            stack = self._stacks[value] = TensorNode(node.id, (*node.label, "steps"))
            store = copy_cells(
                stack,
                NodeOperand(node),
                self._nodes[node],
                self._time[1],
                target_at=value.at,
                origin=origin,
            )
            self._stores.setdefault(number, []).append(store)


def _reduced(p: indexing.Projections) -> list[int]:
    """Return the extents of the variables that the result does not have, the last ones."""
    written = {var for each in p.lhs for var in indexing.variables(each)}
    return [extent for var, extent in p.domain if var not in written]


def _is_sum(leaf: Accumulate) -> bool:
    """Return True for an addition of cells that are at hand: not computed, and inside of axes."""
    p = leaf.projections
    indices = (*p.lhs, *(each for index_map in p.rhs for each in index_map))
    return (
        leaf.combine is BinaryOp.ADD
        and not leaf.reset
        and leaf.beyond is None
        and not p.margins
        and not p.lhs_margins
        and not any(isinstance(arg, Merge) for arg in leaf.args)
        and all(isinstance(each, indexing.VarIndex | indexing.FixedIndex) for each in indices)
    )
