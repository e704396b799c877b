"""The cells of each node that a kernel may access, as boxes: one range of positions per axis.

for i in grid(4):                                a: 0 .. 29
    for j in block(8):                   -->     c: 2 .. 31
        for once in range(1) while 8*i + j + once < 30:
            c[8*i + j + 2] = a[8*i + j]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from ocannl_core.ir.indexing import AxisIndex, IndexVar, StaticIndex, SubAxis, variables
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.loops.loop_nests import inner_statements
from ocannl_core.ir.loops.nodes import Block, For, Gather, Scatter, Stmt, StoreVector
from ocannl_core.ir.loops.ranges import Box, Range, bounded_range, include_loop
from ocannl_core.ir.loops.traverse import accesses_at, walk
from ocannl_core.ir.node import TensorNode

Regions = Mapping[TensorNode, Box]


def accessed_regions(body: Block, nodes: NodeInfos) -> Regions:
    """Return a box for each node that holds all cells that a kernel reads or writes; the whole node
    where positions are computed.
    """
    found: dict[TensorNode, Box] = {}
    ranges: dict[IndexVar, Range] = {}
    for each in walk(body):
        if isinstance(each, For):
            include_loop(ranges, each)
    _collect(body, nodes, ranges, (), found)
    return found


def are_disjoint(first: Box, second: Box) -> bool:
    """Return True if two boxes of one node have no cell in common."""
    return any(a.high < b.low or b.high < a.low for a, b in zip(first, second, strict=True))


def _collect(
    stmt: Stmt,
    nodes: NodeInfos,
    ranges: Mapping[IndexVar, Range],
    ends: tuple[tuple[AxisIndex, int], ...],
    found: dict[TensorNode, Box],
) -> None:
    """Add the accesses of a statement, inside of loops with some ends."""
    inside = inner_statements(stmt)
    if inside:
        bound = stmt.bound if isinstance(stmt, For) else None
        within = ends if bound is None else (*ends, (bound.index, bound.maximum))
        for each in inside:
            _collect(each, nodes, ranges, within, found)
        return
    for part in walk(stmt):
        for access in accesses_at(part):
            info = nodes.get(access.node)
            if info is None or access.merge:
                continue
            box = _whole(info.buffer_dims)
            is_plain = not isinstance(part, Gather | Scatter | StoreVector)
            if access.indices is not None and is_plain:
                box = _box(access.indices, info.buffer_dims, ranges, ends)
            known = found.get(access.node)
            found[access.node] = box if known is None else _hull(known, box)


def _whole(dims: Sequence[int]) -> Box:
    return tuple(Range(0, dim - 1) for dim in dims)


def _hull(first: Box, second: Box) -> Box:
    pairs = zip(first, second, strict=True)
    return tuple(Range(min(a.low, b.low), max(a.high, b.high)) for a, b in pairs)


def _box(
    indices: Sequence[AxisIndex],
    dims: Sequence[int],
    ranges: Mapping[IndexVar, Range],
    ends: Iterable[tuple[AxisIndex, int]],
) -> Box:
    """Return the positions of an access along each axis, without positions beyond the node."""
    found: list[Range] = []
    first = 0  # of the axes that one index covers
    for at, index in enumerate(indices):
        if isinstance(index, SubAxis):
            continue
        reach = None
        if not any(isinstance(var, StaticIndex) for var in variables(index)):
            reach = bounded_range(index, ranges, ends)
        inner = prod(dims[first + 1 : at + 1])
        outermost = Range(0, dims[first] - 1)
        if reach is not None and inner:
            low, high = max(reach.low, 0) // inner, reach.high // inner
            outermost = Range(low, min(high, dims[first] - 1))
        found += [outermost, *_whole(dims[first + 1 : at + 1])]
        first = at + 1
    return tuple(found)
