"""Distribute the loops of a kernel among the thread blocks of a device.

    for i in range(100):                     for i in range(100):  # grid
      for j in range(60):            -->       for j in range(60):  # block
        c[i, j] = ...                            c[i, j] = ...

This is the mapping of statements that no schedule applies to. Every loop whose iterations are
proven to be independent is run by the device, also one inside of a loop whose iterations are not;
the innermost ones by the threads of a block, so that neighboring threads access neighboring
cells. The other loops are serial in each thread. A kernel becomes several where parts of it depend
on each other: one kernel ends before the next one starts. Statements whose accesses are unknown are
run by a single thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.rounding import ceil_div
from ocannl_core.ir.indexing import AxisIndex, FixedIndex, IndexVar, affine, fresh_var, substitute
from ocannl_core.ir.kernels.dependence import access_set, iterations_are_independent
from ocannl_core.ir.kernels.nest_recognition import perfect_loops
from ocannl_core.ir.kernels.nodes import Kernel, LeafStep, NodeInfos, StepReplacement
from ocannl_core.ir.loops.loop_nests import guarded
from ocannl_core.ir.loops.nodes import AxisKind, Block, For, LoopBound, Resource, Stmt
from ocannl_core.ir.loops.traverse import substitute_in_stmt, walk, with_loops
from ocannl_core.ir.target import ThreadBlocks
from ocannl_core.passes.kernels import parallelize
from ocannl_core.passes.kernels.parallel_scatters import distribute_scatter_cyclically


def distribute(step: LeafStep, nodes: NodeInfos, blocks: ThreadBlocks) -> StepReplacement:
    """Return a step with its independent loops on the axes of a device, unless it has such axes."""
    match step:
        case Kernel(body) if not has_device_axes(body):
            kernels = _distributed(step, nodes, blocks)
            if kernels is not None:
                return StepReplacement(kernels, tuple(parallelize.top_allocations(body)))
            return StepReplacement((replace(step, body=Block(on_one_thread(body))),))
        case _:
            return StepReplacement((step,))


def has_device_axes(body: Block) -> bool:
    """Return True if the device runs some loops of a kernel."""
    return any(
        isinstance(each, For) and each.kind.resource is Resource.DEVICE for each in walk(body)
    )


def on_one_thread(body: Block) -> tuple[Stmt, ...]:
    """Return statements as the only iteration of a grid of one thread."""
    thread = For(fresh_var("thread"), 0, 1, body, AxisKind.BLOCK)
    return (For(fresh_var("block"), 0, 1, Block((thread,)), AxisKind.GRID),)


def _distributed(
    kernel: Kernel, nodes: NodeInfos, blocks: ThreadBlocks
) -> tuple[Kernel, ...] | None:
    """Return the kernels that together do the work of one; None if its accesses are unknown."""
    pieces = parallelize.top_pieces(kernel.body, nodes)
    groups = None if pieces is None else parallelize.group_independent(pieces)
    if groups is None:
        return None
    bodies = (
        Block(tuple(stmt for piece in group for stmt in _on_device(piece.stmt, nodes, blocks)))
        for group in groups
    )
    return tuple(parallelize.with_own_arguments(replace(kernel, body=body)) for body in bodies)


@dataclass(frozen=True, slots=True)
class _Axis:
    """A loop that the device runs."""

    loop: For
    inside: int
    """The number of iterations on the threads of one block."""


def _on_device(stmt: Stmt, nodes: NodeInfos, blocks: ThreadBlocks) -> tuple[Stmt, ...]:
    """Return a statement with its independent loops on axes of the device."""
    loops, inner = perfect_loops(Block((stmt,)))
    found = [loop for loop in loops if _is_independent(loop, loops, inner)]
    if any(loop.stop <= loop.start for loop in loops):
        return on_one_thread(Block((stmt,)))
    serial = [loop for loop in loops if loop not in found]
    cyclic = distribute_scatter_cyclically(inner, serial, found, nodes, blocks)
    if cyclic is not None:
        part, scatter = cyclic
        found, inner = [part, *found], (scatter,)
    if not found:
        return on_one_thread(Block((stmt,)))
    body: tuple[Stmt, ...] = inner
    for loop in reversed(loops):
        if loop not in found:
            body = (replace(loop, body=Block(body), kind=AxisKind.SERIAL),)
        else:
            body = guarded(loop.bound, body)
    return _device_loops(_axes(found, blocks), body)


def _is_independent(loop: For, loops: Sequence[For], inner: tuple[Stmt, ...]) -> bool:
    """Return True if a loop may run outside of all others, its iterations in any order."""
    order = (loop, *(other for other in loops if other is not loop))
    outermost, *others = (replace(each, bound=None) for each in order)
    outermost = replace(outermost, body=with_loops(others, Block(inner)))
    if loop.stop - loop.start == 1:
        return True
    return iterations_are_independent(outermost, access_set(outermost))


def _axes(loops: Sequence[For], blocks: ThreadBlocks) -> list[_Axis]:
    """Return the loops, of which the innermost ones run on the threads of a block."""
    axes: list[_Axis] = []
    threads = blocks.threads
    for loop in reversed(loops):
        extent = loop.stop - loop.start
        inside = min(extent, max(threads, 1))
        axes.insert(0, _Axis(loop, inside))
        threads = threads // inside
    assert prod(axis.inside for axis in axes) <= blocks.max_threads
    return axes


def _device_loops(axes: Sequence[_Axis], body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Return statements in the loops of the grid, and inside of these in the loops of a block."""
    grid: list[For] = []
    block: list[For] = []
    ends: list[LoopBound] = []
    for axis in axes:
        loop = axis.loop
        extent = loop.stop - loop.start
        outer, inner = fresh_var(loop.var.hint), fresh_var(loop.var.hint)
        counts = ceil_div(extent, axis.inside), axis.inside
        position = affine([(axis.inside, outer), (1, inner)], loop.start)
        value: dict[IndexVar, AxisIndex] = {loop.var: position}
        body = substitute_in_stmt(Block(body), value).stmts
        ends = [replace(end, index=substitute(end.index, value)) for end in ends]
        if counts[0] * counts[1] > extent:
            ends.append(LoopBound(position, loop.stop))
        grid.append(For(outer, 0, counts[0], Block(), AxisKind.GRID))
        block.append(For(inner, 0, counts[1], Block(), AxisKind.BLOCK))
    for end in ends:
        body = guarded(end, body)
    body = with_loops((*_kept(grid), *_kept(block)), Block(body)).stmts
    kept = {each.var for each in (*_kept(grid), *_kept(block))}
    single = {each.var for each in (*grid, *block)} - kept
    values: dict[IndexVar, AxisIndex] = {var: FixedIndex(0) for var in single}
    return substitute_in_stmt(Block(body), values).stmts


def _kept(loops: Sequence[For]) -> list[For]:
    """Return the loops of several iterations; one of a single iteration if there are no others."""
    return [loop for loop in loops if loop.stop > 1] or list(loops[-1:])
