"""Dependence analysis: the cells that statements access, and proofs that accesses are disjoint.

The tests are sufficient, not necessary: they prove that the positions along one axis of a node are
disjoint ranges.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir import indexing
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.ranges import Range, include_loop, index_range
from ocannl_core.ir.loops.traverse import accesses_at, walk
from ocannl_core.ir.node import TensorNode

Indices = tuple[indexing.AxisIndex | None, ...]
"""The position of an access, one index per axis; None for any position along the axis."""


@dataclass(frozen=True, slots=True)
class AccessSet:
    """The accesses of a statement, except to memory that it allocates itself."""

    indices: Mapping[TensorNode, tuple[Indices, ...]]
    """The positions of accesses to each node; none for a node that is accessed as a whole."""
    written: frozenset[TensorNode]
    spans: Mapping[TensorNode, int]
    """The number of cells along the last axis that the stores to a node cover, if several."""
    ranges: Mapping[indexing.IndexVar, Range]

    def reaches(
        self, node: TensorNode, var: indexing.LoopVar | None = None
    ) -> Iterator[_Interval | None]:
        """Yield, for each axis of a node, the positions of all accesses along it: None unless all
        have the same steps, also in `var`.
        """
        columns = list(zip(*self.indices[node], strict=True))
        for axis, column in enumerate(columns):
            span = self.spans.get(node, 1) if axis == len(columns) - 1 else 1
            yield _reach(column, var, self.ranges, span)


def access_set(stmt: ir.Stmt, constants: Collection[ir.Local] = ()) -> AccessSet | None:
    """Return the accesses of a statement; None if they are unknown, or it shares variables.

    Args:
        constants: The scalars that it may share with others if it only reads them.
    """
    own: set[TensorNode] = set()
    declared: set[ir.Local] = set()
    mentioned: set[ir.Local] = set()
    ranges: dict[indexing.IndexVar, Range] = {}
    indices: dict[TensorNode, list[Indices]] = {}
    whole: set[TensorNode] = set()
    written: set[TensorNode] = set()
    spans: dict[TensorNode, int] = {}
    for node in walk(stmt):
        match node:
            case (
                ir.Verbatim()
                | ir.Barrier()
                | ir.SubgroupReduce()
                | ir.CallExternal()
                | ir.Repeat()
                | ir.CheckPositions()
            ):
                return None
            case ir.For(kind=kind):
                if kind.resource is ir.Resource.DEVICE:
                    return None
                include_loop(ranges, node)
            case ir.Allocate(target):
                own.add(target)
            case ir.Scoped(local) | ir.DeclareLocal(local):
                declared.add(local)
            case ir.LocalRead(local) if local in constants:
                pass
            case ir.LocalRead(local) | ir.SetLocal(local):
                mentioned.add(local)
            case ir.StoreVector(target, length=length):
                spans[target] = max(spans.get(target, 1), length)
        for access in accesses_at(node):
            if access.merge:
                continue
            if access.writes:
                written.add(access.node)
            if access.indices is None:
                whole.add(access.node)
                continue
            found: list[indexing.AxisIndex | None] = list(access.indices)
            if isinstance(node, ir.Gather | ir.Scatter):
                found[node.axis] = None  # computed: it may be anywhere
            indices.setdefault(access.node, []).append(tuple(found))
    if not mentioned <= declared:
        return None
    known = {node: tuple(dict.fromkeys(found)) for node, found in indices.items()}
    known |= dict.fromkeys(whole, ())
    shared = {node: found for node, found in known.items() if node not in own}
    return AccessSet(shared, frozenset(written - own), spans, ranges)


def iterations_are_independent(loop: ir.For, touched: AccessSet | None) -> bool:
    """True only if no two iterations of a loop touch the same cell and one of them writes it.

    Along some axis of every node that is written, all accesses lie at `coefficient * variable +
    rest`, and the rests are closer together than the coefficient. Variables of loops around this
    one are the same number for all iterations.
    """
    if touched is None or loop.stop - loop.start < 2:
        return False
    return all(
        any(
            reach is not None and reach.high - reach.low < abs(reach.steps[0])
            for reach in touched.reaches(node, loop.var)
        )
        for node in touched.written
    )


def are_independent(first: AccessSet, second: AccessSet) -> bool:
    """True only if neither of two statements touches a cell that the other one writes.

    Variables of loops around both are the same number for both.
    """
    shared = (first.written & second.indices.keys()) | (second.written & first.indices.keys())
    return all(
        any(
            a is not None and b is not None and a.steps == b.steps and a.is_apart_from(b)
            for a, b in zip(first.reaches(node), second.reaches(node), strict=False)
        )
        for node in shared
    )


@dataclass(frozen=True, slots=True)
class _Interval:
    """Positions along one axis."""

    steps: tuple[int, frozenset[tuple[int, indexing.IndexVar]]]
    """The coefficient of a variable, and the terms that all accesses share."""
    low: int
    high: int

    def is_apart_from(self, other: _Interval) -> bool:
        return self.high < other.low or other.high < self.low


def _reach(
    positions: Iterable[indexing.AxisIndex | None],
    var: indexing.LoopVar | None,
    ranges: Mapping[indexing.IndexVar, Range],
    span: int,
) -> _Interval | None:
    steps: set[tuple[int, frozenset[tuple[int, indexing.IndexVar]]]] = set()
    lows: list[int] = []
    highs: list[int] = []
    for position in positions:
        if position is None or isinstance(
            position, indexing.SubAxis | indexing.ConcatIndex | indexing.ComputedIndex
        ):
            return None
        terms, offset = indexing.as_affine(position)
        # what no loop inside varies is the same number for all, so it moves them together
        fixed = frozenset(term for term in terms if term[1] not in ranges)
        coefficient = sum(factor for factor, each in terms if each == var)
        rest = indexing.affine([t for t in terms if t not in fixed and t[1] != var], offset)
        reached = index_range(rest, ranges)
        if reached is None:
            return None
        steps.add((coefficient, fixed))
        lows.append(reached.low)
        highs.append(reached.high + span - 1)
    return _Interval(steps.pop(), min(lows), max(highs)) if len(steps) == 1 else None
