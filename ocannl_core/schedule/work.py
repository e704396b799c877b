"""About how many cycles statements take: what decides whether several threads share them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from ocannl_core.indexing import AxisIndex, ConcatIndex, IndexVar, as_affine
from ocannl_core.loopir.nodes import (
    Allocate,
    AxisKind,
    Block,
    Fill,
    For,
    Gather,
    Load,
    LoadMerge,
    Scope,
    Stmt,
    Store,
    StoreVector,
)
from ocannl_core.loopir.ranges import Range
from ocannl_core.loopir.traverse import Node, accesses_at, children, fold, walk
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.passes.cost import own_cost

_LANES = 16
"""Numbers that a vector operation computes with, where the loop says so."""
_GUESSED_LANES = 4
"""The same for innermost loops that are left to the C compiler, which cannot always do it."""
_PER_CYCLE = 2
"""Operations that start in one cycle."""
_BYTES_PER_CYCLE = 8
"""What the memory behind the caches gives to one thread."""


@dataclass(frozen=True, slots=True)
class _Cost:
    """Operations and accesses to memory."""

    operations: int = 0
    accesses: int = 0


def work_of(stmt: Stmt, nodes: Mapping[TensorNode, NodeInfo]) -> int:
    """Returns about how many cycles of one thread running a statement once takes.

    A rough number: operations at the rate of vector registers where loops use them, and bytes at
    the rate of the memory. It does not depend on the machine.
    """
    registers = {
        node.node
        for node in walk(stmt)
        if isinstance(node, Allocate) and node.scope is Scope.THREAD
    }

    def combine(node: Node, inside: tuple[_Cost, ...]) -> _Cost:
        operations = sum(each.operations for each in inside)
        accesses = sum(each.accesses for each in inside)
        match node:
            case Block() | Allocate():
                pass
            case For(_, start, stop):
                times = _times(node, max(0, stop - start))
                return _Cost(times * operations, times * accesses)
            case Store(target) if target in registers:
                accesses = 0  # vectors that are loaded once serve a whole block of registers
            case Load(target) if target in registers:
                pass
            case Load() | LoadMerge() | Gather() | Store() | StoreVector():
                accesses += 1
            case Fill(target):
                accesses += -(-nodes[target].size // _LANES)
            case _:
                operations += own_cost(node, ())
        return _Cost(operations, accesses)

    total = fold(stmt, combine)
    cycles = (total.operations + total.accesses) // _PER_CYCLE
    return max(cycles, _bytes_touched(stmt, nodes) // _BYTES_PER_CYCLE)


def _times(loop: For, extent: int) -> int:
    """Returns how often the inside of a loop costs what it says."""
    if loop.kind is AxisKind.VECTOR:
        return -(-extent // _LANES)
    if loop.kind is AxisKind.UNROLLED or any(
        isinstance(each, For) for child in loop.body.stmts for each in walk(child)
    ):
        return extent
    return -(-extent // _GUESSED_LANES)


def _bytes_touched(stmt: Stmt, nodes: Mapping[TensorNode, NodeInfo]) -> int:
    """Returns the bytes of all cells that a statement may touch, each counted once."""
    ranges: dict[IndexVar, Range] = {}
    cells: dict[TensorNode, int] = {}
    own: set[TensorNode] = set()
    pending: list[Node] = [stmt]
    while pending:
        node = pending.pop()
        pending.extend(reversed(children(node)))
        match node:
            case For(var, start, stop):
                known = ranges.get(var, Range(start, stop - 1))
                ranges[var] = Range(min(known.low, start), max(known.high, stop - 1))
            case Allocate(target):
                own.add(target)
        for access in accesses_at(node):
            dims = nodes[access.node].buffer_dims
            if access.indices is None:
                count = prod(dims)
            else:
                count = 1
                for index, dim in zip(access.indices, dims, strict=True):
                    count *= _positions(index, dim, ranges)
            cells[access.node] = max(cells.get(access.node, 0), count)
    return sum(count * nodes[node].dtype.nbytes for node, count in cells.items() if node not in own)


def _positions(index: AxisIndex, dim: int, ranges: Mapping[IndexVar, Range]) -> int:
    """Returns how many positions along an axis an index takes at most."""
    if isinstance(index, ConcatIndex):
        return dim
    steps = [
        abs(factor) * (ranges[var].extent - 1)
        for factor, var in as_affine(index)[0]
        if var in ranges
    ]
    return max(0, min(dim, 1 + sum(steps)))
