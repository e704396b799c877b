"""Estimate the cycles of statements, to decide whether several threads share them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from ocannl_core.ir import indexing
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.ranges import Range
from ocannl_core.ir.loops.traverse import Access, Node, accesses_at, children
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.schedule.expression_cost import own_cost
from ocannl_core.schedule.machine_model import (
    AUTOVECTORISED_LANES,
    MEMORY_BYTES_PER_CYCLE,
    NOMINAL_LANES,
    OPERATIONS_PER_CYCLE,
)


def estimated_cycles(stmt: ir.Stmt, nodes: Mapping[TensorNode, NodeInfo]) -> int:
    """Return the approximate cycles of one execution of a statement on one thread.

    A rough number: operations at the rate of vector registers where loops use them, and bytes at
    the rate of the memory. It does not depend on the machine.
    """
    counter = _Counter(nodes)
    counted, _ = counter.count(stmt)
    cells: dict[TensorNode, int] = {}
    for access in dict.fromkeys(counter.touched):
        if access.node not in counter.own:
            count = _cells(access, nodes[access.node], counter.ranges)
            cells[access.node] = max(cells.get(access.node, 0), count)
    nbytes = sum(count * nodes[node].dtype.nbytes for node, count in cells.items())
    return max(counted // OPERATIONS_PER_CYCLE, nbytes // MEMORY_BYTES_PER_CYCLE)


class _Counter:
    """Counts operations and accesses to memory."""

    def __init__(self, nodes: Mapping[TensorNode, NodeInfo]) -> None:
        self._nodes = nodes
        self._registers: set[TensorNode] = set()
        self.touched: list[Access] = []
        self.own: set[TensorNode] = set()
        self.ranges: dict[indexing.IndexVar, Range] = {}

    def count(self, stmt: ir.Stmt) -> tuple[int, bool]:
        """Return the operations and accesses of a statement, and whether it has loops."""
        match stmt:
            case ir.Block(stmts):
                inside = [self.count(each) for each in stmts]
                return sum(each for each, _ in inside), any(has for _, has in inside)
            case ir.For(var, start, stop, body):
                known = self.ranges.get(var, Range(start, stop - 1))
                self.ranges[var] = Range(min(known.low, start), max(known.high, stop - 1))
                counted, has_loops = self.count(body)
                return _times(stmt, has_loops) * counted, True
            case ir.Allocate(target, scope):
                self.own.add(target)
                if scope is ir.Scope.THREAD:
                    self._registers.add(target)
                return 0, False
            case ir.Store(target, _, value) if target in self._registers:
                # vectors that are loaded once serve a whole block of registers
                counted, has_loops = self._expression(value, has_loads=False)
                self.touched += accesses_at(stmt)
                return counted, has_loops
            case _:
                return self._expression(stmt, has_loads=True)

    def _expression(self, root: Node, *, has_loads: bool) -> tuple[int, bool]:
        """Return the same for a statement without statements inside, or an expression."""
        total, has_loops = 0, False
        pending: list[Node] = [root]
        while pending:
            node = pending.pop()
            match node:
                case ir.Block() | ir.For():  # of an inlined computation
                    counted, has_inner = self.count(node)
                    total += counted
                    has_loops |= has_inner
                    continue
                case ir.Load(target) if target in self._registers:
                    pass
                case ir.Load() | ir.LoadMerge() | ir.Gather():
                    total += has_loads
                case ir.Store() | ir.StoreVector() | ir.Scatter():
                    total += 1
                case ir.Fill(target):
                    total += -(-self._nodes[target].size // NOMINAL_LANES)
                case _:
                    total += own_cost(node, ())
            self.touched += accesses_at(node)
            pending += children(node)
        return total, has_loops


def _times(loop: ir.For, has_loops: bool) -> int:
    """Return the factor by which the body of a loop counts."""
    extent = max(0, loop.stop - loop.start)
    if loop.kind is ir.AxisKind.VECTOR:
        return -(-extent // NOMINAL_LANES)
    if (
        loop.kind is ir.AxisKind.TILE
    ):  # one instruction takes as long as the innermost of these loops
        inner = (each for each in loop.body.stmts if isinstance(each, ir.For))
        return 1 if any(each.kind is ir.AxisKind.TILE for each in inner) else extent
    return (
        extent
        if has_loops or loop.kind is ir.AxisKind.UNROLLED
        else -(-extent // AUTOVECTORISED_LANES)
    )


def _cells(access: Access, info: NodeInfo, ranges: Mapping[indexing.IndexVar, Range]) -> int:
    """Return an upper bound on the cells that an access touches in all iterations together."""
    if access.indices is None:
        return info.size
    return prod(
        _positions(index, dim, ranges)
        for index, dim in zip(
            access.indices, indexing.joint_extents(access.indices, info.buffer_dims), strict=True
        )
    )


def _positions(
    index: indexing.AxisIndex, dim: int, ranges: Mapping[indexing.IndexVar, Range]
) -> int:
    """Return an upper bound on the positions of an index along an axis."""
    if isinstance(index, indexing.ConcatIndex | indexing.ComputedIndex):
        return dim
    terms, _ = indexing.as_affine(index)
    reach = sum(abs(factor) * (ranges[var].extent - 1) for factor, var in terms if var in ranges)
    return max(0, min(dim, 1 + reach))
