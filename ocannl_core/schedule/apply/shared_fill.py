"""Cyclic distribution of an operand among the threads that copy it to shared memory.

The digits of a thread's number run along the axes of the operand, the innermost ones along the axis
that is contiguous in memory, so that neighboring threads load neighboring cells or vectors. A
loop covers the cells that are left.

Shared memory has banks, each of which serves one word at a time. Where the operand is transposed on
its way, neighboring threads store to different rows, which padding moves to different banks. So
many threads, and no more, are neighbors along the contiguous axis that the banks of their rows do
not meet again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.rounding import ceil_div
from ocannl_core.ir.indexing import AxisIndex, IndexVar, LoopVar, affine, as_affine, fresh_var
from ocannl_core.ir.loops.loop_nests import guarded_by
from ocannl_core.ir.loops.nodes import AxisKind, Block, Expr, For, Load, LoopBound, Stmt
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.schedule.machine_model import BANKS


@dataclass(frozen=True, slots=True)
class ThreadCells:
    """The cells of an operand that a thread copies."""

    positions: dict[str, AxisIndex]
    guards: tuple[LoopBound, ...]
    """Bounds of these positions, and of threads that copy nothing."""
    loops: tuple[For, ...]
    """The loops over cells or vectors of one thread, innermost first."""
    lane: LoopVar

    def around(self, stmts: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """Return the statements of one cell, or vector, for all of them."""
        stmts = guarded_by(self.guards, stmts)
        for loop in self.loops:
            stmts = (replace(loop, body=Block(stmts)),)
        return stmts


def distribute_cyclically(
    threads: Iterable[tuple[AxisIndex, int]],
    extents: Mapping[str, int],
    lanes: int,
    padding: int | None = None,
) -> ThreadCells:
    """Distribute the cells of an operand cyclically among the threads of a block.

    Args:
        threads: The digits of a thread's number, each with its values.
        extents: The cells along each axis of the operand, the last of which is contiguous.
        lanes: The cells of a vector along that one.
        padding: The cells between rows of the copy if that one runs across them; else None.
    """
    digits = [(digit, count) for digit, count in threads if count > 1]
    order = tuple(extents)
    lane = fresh_var("lane")
    positions: dict[str, AxisIndex] = {}
    guards: list[LoopBound] = []
    loops: list[For] = []
    terms_of: dict[str, list[tuple[int, IndexVar]]] = {name: [] for name in order}
    covered = dict.fromkeys(order, 1)
    contiguous = order[-1]
    counts = {**extents, contiguous: extents[contiguous] // lanes}
    turns = [(name, counts[name]) for name in reversed(order)]
    if padding is not None:
        # few neighbors along the contiguous axis first, then the others, then the rest of it
        few = min(counts[contiguous], max(1, BANKS // (padding * lanes)))
        turns = [(contiguous, few), *turns[1:], turns[0]]
    for name, most in turns:
        for digit, size in digits[::-1]:
            if covered[name] > 1 and covered[name] * size > most:
                continue
            if covered[name] >= most:
                break
            digits.remove((digit, size))
            terms_of[name] += [(covered[name] * step, var) for step, var in as_affine(digit)[0]]
            covered[name] *= size
    for name in reversed(order):
        extent, terms = counts[name], terms_of[name]
        if covered[name] < extent:
            var = fresh_var("copy")
            count = ceil_div(extent, covered[name])
            loops.append(For(var, 0, count, Block(), AxisKind.UNROLLED))
            terms.append((covered[name], var))
            reached = covered[name] * count
        else:
            reached = covered[name]
        if reached > extent:
            guards.append(LoopBound(affine(terms), extent))
        if lanes > 1 and name == contiguous:
            terms = [*((lanes * step, var) for step, var in terms), (1, lane)]
        positions[name] = affine(terms)
    # threads of the digits that are left would copy the same cells again
    guards += [LoopBound(digit, 1) for digit, _ in digits]
    return ThreadCells(positions, tuple(guards), tuple(loops), lane)


def least_rank(factor: Expr, var: LoopVar) -> int:
    """Return the least position of a variable among the axes of loads, from the outermost one."""
    ranks = [
        at
        for load in walk(factor)
        if isinstance(load, Load)
        for at, index in enumerate(load.indices, -len(load.indices))
        if any(each is var for _, each in as_affine(index)[0])
    ]
    return max(ranks, default=-100)
