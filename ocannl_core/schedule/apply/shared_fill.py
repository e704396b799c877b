"""Cyclic distribution of an operand among the threads that copy it to shared memory.

The digits of a thread's number run along the axes of the operand, the innermost ones along the axis
that is contiguous in memory, so that neighbouring threads load neighbouring cells or vectors. A
loop covers the cells that are left.

Shared memory has banks, each of which serves one word at a time. Where the operand is transposed on
its way, neighbouring threads store to different rows, which padding moves to different banks. So
many threads, and no more, are neighbours along the contiguous axis that the banks of their rows do
not meet again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import (
    AxisIndex,
    IndexVar,
    LoopVar,
    VarIndex,
    affine,
    affine_sum,
    as_affine,
    fresh_var,
)
from ocannl_core.ir.kernels.nest import KernelNest
from ocannl_core.ir.loops.loop_nests import guarded_by
from ocannl_core.ir.loops.nodes import AxisKind, Block, Expr, For, Load, LoopBound, Stmt
from ocannl_core.ir.loops.traverse import walk

BANKS = 32
"""The words of shared memory that are accessed at the same time."""


@dataclass(frozen=True, slots=True)
class ThreadCells:
    """The cells of an operand that a thread copies.

    Attributes:
        guards: Bounds of these positions, and of threads that copy nothing.
        loops: The loops over cells or vectors of one thread, innermost first.
        vector: The position of its vector among the vectors of a row.
    """

    positions: dict[str, AxisIndex]
    guards: tuple[LoopBound, ...]
    loops: tuple[For, ...]
    lane: LoopVar
    vector: AxisIndex

    def around(self, stmts: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """Return the statements of one cell, or vector, for all of them."""
        stmts = guarded_by(self.guards, stmts)
        for loop in self.loops:
            stmts = (replace(loop, body=Block(stmts)),)
        return stmts


def distribute_cyclically(
    digits: Iterable[tuple[AxisIndex, int]],
    extents: Mapping[str, int],
    lanes: int = 1,
    padding: int | None = None,
) -> ThreadCells:
    """Distribute the cells of an operand cyclically among the threads of a block.

    Args:
        digits: The digits of a thread's number, the outermost first, and their iterations.
        extents: The axes of the operand, that which is contiguous in memory last.
        lanes: The cells of a vector along that one.
        padding: The cells between rows of the copy if that one runs across them; else None.
    """
    left = [digit for digit in digits if digit[1] > 1]
    lane = fresh_var("lane")
    order = list(extents)
    contiguous = order[-1]
    positions: dict[str, AxisIndex] = {}
    guards: list[LoopBound] = []
    loops: list[For] = []
    terms_of: dict[str, list[tuple[int, IndexVar]]] = {name: [] for name in order}
    covered = dict.fromkeys(order, 1)
    counts = {**extents, contiguous: extents[contiguous] // lanes}
    turns = [(name, counts[name]) for name in reversed(order)]
    if padding is not None:
        # few neighbours along the contiguous axis first, then the others, then the rest of it
        few = min(counts[contiguous], max(1, BANKS // (padding * lanes)))
        turns = [(contiguous, few), *turns[1:], turns[0]]
    for name, most in turns:
        for digit, size in left[::-1]:
            if covered[name] > 1 and covered[name] * size > most:
                continue
            if covered[name] >= most:
                break
            left.remove((digit, size))
            terms_of[name] += [(covered[name] * step, var) for step, var in as_affine(digit)[0]]
            covered[name] *= size
    for name in reversed(order):
        terms, repeats = terms_of[name], -(-counts[name] // covered[name])
        if repeats > 1:
            var = fresh_var("copy")
            loops.append(For(var, 0, repeats, Block(), AxisKind.UNROLLED))
            terms.append((covered[name], var))
        if covered[name] * repeats > counts[name]:
            guards.append(LoopBound(affine(terms), counts[name]))
        positions[name] = affine(terms)
    vector = positions[contiguous]
    if lanes > 1:
        positions[contiguous] = affine_sum((lanes, vector), (1, VarIndex(lane)))
    # threads of the digits that are left would copy the same cells again
    guards += [LoopBound(digit, 1) for digit, _ in left]
    return ThreadCells(positions, tuple(guards), tuple(loops), lane, vector)


def loads_of_cells(nest: KernelNest) -> tuple[Load, ...]:
    """Return the loads of a nest without a reduction, each once, which a schedule may pack."""
    return tuple(dict.fromkeys(load for store in nest.epilogue for load in _loads(store.value)))


def least_rank(factor: Expr, var: LoopVar) -> int:
    """Return the least position of a variable among the axes of loads, from the outermost one."""
    ranks = [
        at
        for load in _loads(factor)
        for at, index in enumerate(load.indices, -len(load.indices))
        if any(each is var for _, each in as_affine(index)[0])
    ]
    return max(ranks, default=-100)


def _loads(expr: Expr) -> list[Load]:
    return [each for each in walk(expr) if isinstance(each, Load)]
