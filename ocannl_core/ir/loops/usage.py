"""Reads and writes of a loop program, and the limits of its static indices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.origin import Origin
from ocannl_core.base.rounding import ceil_div
from ocannl_core.ir.indexing import (
    AxisIndex,
    FixedIndex,
    IndexMap,
    IndexVar,
    LoopVar,
    Margin,
    StaticIndex,
    affine,
    as_affine,
    has_static,
)
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.ranges import Range, index_range
from ocannl_core.ir.loops.traverse import Node, accesses_memory, children
from ocannl_core.ir.node import NodeInfo, TensorNode


@dataclass(frozen=True, slots=True)
class IndexBound:
    """An access that stays inside its buffer only for `low <= sum(coefficient * index) <= high`."""

    terms: tuple[tuple[int, StaticIndex], ...]
    """The static indices with their coefficients."""
    low: int
    high: int
    node: TensorNode
    axis: int = 0
    origin: Origin | None = field(default=None, compare=False)

    def describe(self) -> str:
        """Return the access for messages."""
        place = f"axis {self.axis} of {self.node.name}"
        return f"{place} in {self.origin}" if self.origin is not None else place

    def as_range(self) -> range:
        """Return the values that the limit allows for its index, if it has only one."""
        ((coefficient, _),) = self.terms
        low, high = self.low, self.high
        if coefficient < 0:
            low, high, coefficient = -high, -low, -coefficient
        return range(ceil_div(low, coefficient), high // coefficient + 1)


def accepted_range(index: StaticIndex, limits: Iterable[IndexBound]) -> range | None:
    """Return the values that an index may take by itself, or None if nothing bounds it."""
    ranges = [limit.as_range() for limit in limits if [var for _, var in limit.terms] == [index]]
    if index.extent is not None:
        ranges.append(range(index.extent))
    if not ranges:
        return None
    return range(max(each.start for each in ranges), min(each.stop for each in ranges))


@dataclass(frozen=True, slots=True)
class Usage:
    """Reads and writes of nodes whose memory comes from outside."""

    reads: frozenset[TensorNode] = frozenset()
    reads_first: frozenset[TensorNode] = frozenset()
    """Nodes of which some cell is read before the program has written to the node."""
    writes: frozenset[TensorNode] = frozenset()
    """Nodes of which some cell is written; filling their margins does not count."""
    limits: tuple[IndexBound, ...] = ()
    """The constraints on static indices that keep every access inside its buffer."""
    merged: tuple[TensorNode, ...] = ()
    """Nodes whose merge buffers are read, in order of first use."""


def usage_of(program: ir.LoopProgram, known: Mapping[IndexVar, Range] | None = None) -> Usage:
    """Return the reads and writes of a program's parameters, and the limits of its indices.

    Args:
        known: The ranges of static indices that no caller gives.
    """
    reads: set[TensorNode] = set()
    reads_first: set[TensorNode] = set()
    writes: set[TensorNode] = set()
    merged: dict[TensorNode, None] = {}
    limits: dict[IndexBound, None] = {}
    bounds: dict[IndexVar, Range] = dict(known or {})
    params = frozenset(program.params)
    origin: Origin | None = None

    def read(node: TensorNode) -> None:
        if node not in reads:
            reads.add(node)
            if node not in writes and 0 not in program.nodes[node].dims:
                reads_first.add(node)

    for node in _in_order(program.body, bounds):
        if isinstance(node, ir.Remark):
            origin = node.origin or origin
            continue
        if isinstance(node, ir.Repeat):
            inside = _usage_inside(node, program, bounds)
            limits.update(dict.fromkeys(inside.limits))
            reads |= inside.reads & params
            reads_first |= (inside.reads_first & params).difference(writes)
            writes |= inside.writes & params
            continue
        match node:
            case ir.Load() | ir.Gather() | ir.CheckPositions():
                read(node.node)
            case ir.Store(written, indices) | ir.StoreVector(written, indices):
                if written not in writes and _may_reach_interior(
                    indices, program.nodes[written], bounds
                ):
                    writes.add(written)
            case ir.Fill() | ir.Scatter():
                writes.add(node.node)
            case ir.LoadMerge():
                merged[node.node] = None
            case ir.CallExternal(_, inputs, outputs):
                for each in inputs:
                    read(each)
                writes.update(outputs)
        if isinstance(node, _AT_CELL):
            info = program.nodes[node.node]
            if info.extents or has_static(node.indices):
                limits.update(dict.fromkeys(_limits(node, info, bounds, origin)))
    used = params & reads, params & reads_first, params & writes
    return Usage(*used, tuple(limits), tuple(merged))


_AT_CELL = (ir.Load, ir.Store, ir.Gather, ir.Scatter, ir.StoreVector, ir.LoadMerge)


def _in_order(body: ir.Block, bounds: dict[IndexVar, Range]) -> Iterator[Node]:
    """Yield remarks and the nodes that access memory in the order of the first iteration of every
    loop.

    Loops without iterations are left out. `bounds` holds the variables of the loops around, and of
    earlier ones.
    """
    pending: list[Node | tuple[Node]] = [body]
    while pending:
        node = pending.pop()
        if isinstance(node, tuple):  # after the nodes inside
            yield node[0]
            continue
        if isinstance(node, ir.For):
            if node.start >= node.stop:
                continue
            bounds[node.var] = Range(node.start, node.stop - 1)
        inner = children(node)
        if accesses_memory(node) or isinstance(node, ir.Remark):
            if not inner:
                yield node
                continue
            pending.append((node,))
        pending += inner[::-1]


def _usage_inside(
    stmt: ir.Repeat, program: ir.LoopProgram, bounds: Mapping[IndexVar, Range]
) -> Usage:
    """Return the reads and writes of a repetition; none if it has no iterations."""
    if stmt.count == 0:
        return Usage()
    nodes = {**program.nodes, **dict(stmt.private)}
    inside = ir.LoopProgram(program.name, tuple(nodes), program.indices, nodes, stmt.body)
    return usage_of(inside, {**bounds, stmt.index: Range(0, stmt.count - 1)})


def _may_reach_interior(
    indices: IndexMap, info: NodeInfo, bounds: Mapping[IndexVar, Range]
) -> bool:
    """Return False only if an access certainly stays in the margins, as that of a fill."""
    for index, extent, margin in zip(indices, info.dims, info.padding, strict=False):
        reached = index_range(index, bounds)
        if reached is not None and (
            reached.high < margin.left or reached.low >= margin.left + extent
        ):
            return False
    return True


def _limits(
    access: ir.Load | ir.LoadMerge | ir.Gather | ir.Store | ir.StoreVector | ir.Scatter,
    info: NodeInfo,
    bounds: Mapping[IndexVar, Range],
    origin: Origin | None,
) -> Iterator[IndexBound]:
    """Yield the constraints on static indices in an access, for all values of loop variables.

    A position given by static indices alone is one of the node's own cells, not of its margins.
    """
    dims = info.buffer_dims
    margins = info.padding or (Margin(),) * len(dims)
    spans = [1] * len(dims)
    indices: list[AxisIndex] = list(access.indices)
    if isinstance(access, ir.StoreVector) and dims:
        spans[-1] = access.length
    if isinstance(access, ir.Gather | ir.Scatter):
        indices[access.axis] = FixedIndex(0)  # the position computed there never leaves the axis
    sizes = info.extents or (None,) * len(dims)
    axes = zip(indices, dims, margins, spans, sizes, strict=True)
    for axis, (index, extent, margin, span, size) in enumerate(axes):
        terms, offset = as_affine(index)
        if size is not None and not any(isinstance(var, LoopVar) for _, var in terms):
            before = [
                (-c, var) for c, var in terms if isinstance(var, StaticIndex) and var not in bounds
            ]
            repeated = index_range(affine([t for t in terms if t[1] in bounds], offset), bounds)
            if repeated is not None:
                low = repeated.high + 1
                yield IndexBound(((1, size), *before), low, size.maximum, access.node, axis, origin)
        statics = tuple(
            (c, var) for c, var in terms if isinstance(var, StaticIndex) and var not in bounds
        )
        if statics:
            rest = affine([each for each in terms if each not in statics], offset)
            reached = index_range(rest, bounds)
            if reached is not None:
                low, high = -reached.low, extent - span - reached.high
                if len(statics) == len(terms):
                    low, high = low + margin.left, high - margin.right
                yield IndexBound(statics, low, high, access.node, axis, origin)
