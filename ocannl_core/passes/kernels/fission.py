"""Fission: kernels of several nests become several kernels, so that a schedule applies to each.

Each of several inlined reductions gets a kernel of its own.

    for i: y[i] = log({ sum of exp(x[i, k]) }) - { sum of x[i, k] * t[i, k] }

        -->

    for i: first[i] = { sum of exp(x[i, k]) }
    for i: second[i] = { sum of x[i, k] * t[i, k] }
    for i: y[i] = log(first[i]) - second[i]

A nest of independent cells has one reduction; with several, no schedule would apply. The results in
between have the format in which they were computed, so all bits stay the same. Row fusion keeps
them out of memory where the kernels run over the same rows.

Loops around several nests are distributed among them, if any of these computes more than a few
cheap operations. C compilers vectorize the others, in one pass over the rows.

    for i:
      for j in range(3): y[i, j] = 0.0
      for j in range(3, 64): y[i, j] = exp(x[i, j - 3])

        -->

    for i: for j in range(3): y[i, j] = 0.0
    for i: for j in range(3, 64): y[i, j] = exp(x[i, j - 3])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ocannl_core.ir.indexing import affine
from ocannl_core.ir.kernels import nodes as kernel_ir
from ocannl_core.ir.kernels.dependence import access_set, iterations_are_independent
from ocannl_core.ir.kernels.nest import with_flat_computations, with_value
from ocannl_core.ir.kernels.nest_recognition import perfect_loops
from ocannl_core.ir.kernels.speculation import is_unconditional
from ocannl_core.ir.kernels.stream import map_steps
from ocannl_core.ir.loops.nodes import Block, For, Load, LocalRead, Scoped, SetLocal, Stmt, Store
from ocannl_core.ir.loops.traverse import clone_stmt, free_variables, nodes_of, walk, with_loops
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.schedule.cost_model import is_cheap


def split_inlined_reductions(plan: kernel_ir.Plan) -> kernel_ir.Plan:
    """Give inlined reductions kernels of their own where one kernel has several of them."""
    return map_steps(plan, _split)


def distribute_rows(plan: kernel_ir.Plan) -> kernel_ir.Plan:
    """Give nests kernels of their own where independent iterations of loops run several of them."""
    return map_steps(plan, _distributed)


def _distributed(step: kernel_ir.LeafStep, nodes: kernel_ir.NodeInfos) -> kernel_ir.StepReplacement:
    if not isinstance(step, kernel_ir.Kernel):
        return kernel_ir.StepReplacement((step,))
    parts = tuple(_parts(step.body))
    if len(parts) == 1:
        return kernel_ir.StepReplacement((step,))
    copies = (clone_stmt(each) for part in parts for each in part.stmts)
    return kernel_ir.StepReplacement(
        tuple(kernel_ir.kernel_of(each, step.title) for each in copies)
    )


def _parts(body: Block) -> Iterator[Block]:
    """Yield the loops around each nest or store, or around several that stay together."""
    loops, stmts = perfect_loops(body)
    if len(stmts) < 2 or not _is_distributable(loops, stmts):
        yield body
        return
    for each in stmts:
        yield from _parts(with_loops(loops, Block((each,))))


def _is_distributable(loops: Sequence[For], stmts: tuple[Stmt, ...]) -> bool:
    """Return True of nests and stores in independent iterations, one of which is expensive."""
    if not loops or not all(isinstance(each, For | Store) for each in stmts):
        return False
    if not any(isinstance(each, For) for each in stmts):
        return False  # a nest of several stores
    values = (e.value for each in stmts for e in walk(each) if isinstance(e, Store))
    if all(map(is_cheap, values)):
        return False
    touched = access_set(loops[0])
    return all(iterations_are_independent(loop, touched) for loop in loops)


def _split(step: kernel_ir.LeafStep, nodes: kernel_ir.NodeInfos) -> kernel_ir.StepReplacement:
    loops, stmts = perfect_loops(step.body) if isinstance(step, kernel_ir.Kernel) else ([], ())
    reductions = _reductions(loops, stmts, nodes)
    if len(reductions) < 2:
        return kernel_ir.StepReplacement((step,))
    kernels: list[kernel_ir.Kernel] = []
    made: dict[TensorNode, NodeInfo] = {}
    stores = [with_flat_computations(each) for each in stmts if isinstance(each, Store)]
    for each in reductions:
        loops_of_sum = [loop for loop in loops if loop.var in free_variables(each)]
        node = TensorNode(stores[-1].node.id, (*stores[-1].node.label, "part"))
        made[node] = NodeInfo(each.dtype, tuple(loop.stop - loop.start for loop in loops_of_sum))
        cell = tuple(affine([(1, loop.var)], -loop.start) for loop in loops_of_sum)
        body = with_loops(loops_of_sum, Block((Store(node, cell, each),)))
        kernels.append(kernel_ir.kernel_of(body, f"a sum for {step.title}"))
        read = Load(node, cell, each.dtype)
        stores = [with_value(store, each, read) for store in stores]
    last = kernel_ir.kernel_of(with_loops(loops, Block(tuple(stores))), step.title)
    return kernel_ir.StepReplacement((*kernels, last), tuple(made), made)


def _reductions(
    loops: Iterable[For], stmts: tuple[Stmt, ...], nodes: kernel_ir.NodeInfos
) -> tuple[Scoped, ...]:
    """Return several inlined reductions of stores that may be computed before all stores."""
    if sum(isinstance(each, Scoped) for stmt in stmts for each in walk(stmt)) < 2:
        return ()
    stores = [with_flat_computations(each) for each in stmts if isinstance(each, Store)]
    if len(stores) != len(stmts):
        return ()
    if not all(is_unconditional(each, loops, nodes) for each in stores):
        return ()
    found = dict.fromkeys(
        each for store in stores for each in walk(store) if isinstance(each, Scoped)
    )
    written = {store.node for store in stores}
    are_independent = all(
        written.isdisjoint(nodes_of(each)) and _is_closed_loop(each) for each in found
    )
    return tuple(found) if are_independent else ()


def _is_closed_loop(scoped: Scoped) -> bool:
    """Return True if a loop reads no variable but its own, and has no computation inside."""
    inside = list(walk(scoped.body))
    return (
        any(isinstance(each, For) for each in inside)
        and not any(isinstance(each, Scoped) for each in inside)
        and all(
            each.local == scoped.local for each in inside if isinstance(each, LocalRead | SetLocal)
        )
    )
