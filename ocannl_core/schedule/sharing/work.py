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
from ocannl_core.loopir.traverse import Access, Node, accesses_at, fold
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
    """Operations and accesses to memory, and whether there are loops."""

    operations: int
    accesses: int
    has_loops: bool


def work_of(stmt: Stmt, nodes: Mapping[TensorNode, NodeInfo]) -> int:
    """Returns about how many cycles of one thread running a statement once takes.

    A rough number: operations at the rate of vector registers where loops use them, and bytes at
    the rate of the memory. It does not depend on the machine.
    """
    registers: set[TensorNode] = set()
    ranges: dict[IndexVar, Range] = {}
    touched: list[Access] = []
    own: set[TensorNode] = set()

    def combine(node: Node, inside: tuple[_Cost, ...]) -> _Cost:
        operations = sum([each.operations for each in inside])
        accesses = sum([each.accesses for each in inside])
        has_loops = any(each.has_loops for each in inside)
        match node:
            case Block():
                pass
            case Allocate(target, scope):
                own.add(target)
                if scope is Scope.THREAD:
                    registers.add(target)
            case For(var, start, stop):
                known = ranges.get(var, Range(start, stop - 1))
                ranges[var] = Range(min(known.low, start), max(known.high, stop - 1))
                times = _times(node, has_loops)
                return _Cost(times * operations, times * accesses, has_loops=True)
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
        touched.extend(accesses_at(node))
        return _Cost(operations, accesses, has_loops)

    total = fold(stmt, combine)
    cycles = (total.operations + total.accesses) // _PER_CYCLE
    cells: dict[TensorNode, int] = {}
    for access in dict.fromkeys(touched):
        if access.node not in own:
            count = _cells(access, nodes[access.node], ranges)
            cells[access.node] = max(cells.get(access.node, 0), count)
    nbytes = sum(count * nodes[node].dtype.nbytes for node, count in cells.items())
    return max(cycles, nbytes // _BYTES_PER_CYCLE)


def _times(loop: For, has_loops: bool) -> int:
    """Returns how often the inside of a loop costs what it says."""
    extent = max(0, loop.stop - loop.start)
    if loop.kind is AxisKind.VECTOR:
        return -(-extent // _LANES)
    if loop.kind is AxisKind.TILE:  # one instruction takes as long as the innermost of these loops
        inner = (each for each in loop.body.stmts if isinstance(each, For))
        return 1 if any(each.kind is AxisKind.TILE for each in inner) else extent
    return extent if has_loops or loop.kind is AxisKind.UNROLLED else -(-extent // _GUESSED_LANES)


def _cells(access: Access, info: NodeInfo, ranges: Mapping[IndexVar, Range]) -> int:
    """Returns how many cells an access touches in all iterations together, at most."""
    if access.indices is None:
        return info.size
    return prod(
        _positions(index, dim, ranges)
        for index, dim in zip(access.indices, info.buffer_dims, strict=True)
    )


def _positions(index: AxisIndex, dim: int, ranges: Mapping[IndexVar, Range]) -> int:
    """Returns how many positions along an axis an index takes at most."""
    if isinstance(index, ConcatIndex):
        return dim
    terms, _ = as_affine(index)
    reach = sum(abs(factor) * (ranges[var].extent - 1) for factor, var in terms if var in ranges)
    return max(0, min(dim, 1 + reach))
