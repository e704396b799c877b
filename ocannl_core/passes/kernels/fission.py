"""Fission of stores with several inlined reductions: each reduction gets a kernel of its own.

    for i: y[i] = log({ sum of exp(x[i, k]) }) - { sum of x[i, k] * t[i, k] }

        -->

    for i: first[i] = { sum of exp(x[i, k]) }
    for i: second[i] = { sum of x[i, k] * t[i, k] }
    for i: y[i] = log(first[i]) - second[i]

A nest of independent cells has one reduction; with several, no schedule would apply. The results in
between have the format in which they were computed, so all bits stay the same. Row fusion keeps
them out of memory where the kernels run over the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.indexing import affine
from ocannl_core.ir.kernels.nest import perfect_loops, with_flat_computations, with_value
from ocannl_core.ir.kernels.nodes import (
    Kernel,
    NodeInfos,
    Plan,
    RepeatedSteps,
    Step,
    kernel_of,
    private_nodes,
)
from ocannl_core.ir.kernels.speculation import is_unconditional
from ocannl_core.ir.loops.nodes import Block, For, Load, LocalRead, Scoped, SetLocal, Stmt, Store
from ocannl_core.ir.loops.traverse import free_variables, nodes_of, walk
from ocannl_core.ir.node import NodeInfo, TensorNode


def split_inlined_reductions(plan: Plan) -> Plan:
    """Give inlined reductions kernels of their own where one kernel has several of them."""
    steps, made = _split_steps(plan.steps, plan.nodes)
    private = set(private_nodes(steps))
    added = tuple(node for node in made if node not in private)
    return replace(plan, steps=steps, scratch=(*plan.scratch, *added), nodes={**plan.nodes, **made})


def _split_steps(
    steps: tuple[Step, ...], nodes: NodeInfos
) -> tuple[tuple[Step, ...], dict[TensorNode, NodeInfo]]:
    """Return steps after fission, and the new nodes, those of repeated steps included."""
    result: list[Step] = []
    made: dict[TensorNode, NodeInfo] = {}
    for step in steps:
        if isinstance(step, RepeatedSteps):
            inside, private = _split_steps(step.steps, nodes)
            inner = set(private_nodes(inside))
            added = tuple(node for node in private if node not in inner)
            result.append(replace(step, steps=inside, scratch=(*step.scratch, *added)))
            made |= private
            continue
        loops, stmts = perfect_loops(step.body) if isinstance(step, Kernel) else ([], ())
        reductions = _reductions(loops, stmts, nodes)
        if not isinstance(step, Kernel) or len(reductions) < 2:
            result.append(step)
            continue
        stores = [with_flat_computations(each) for each in stmts if isinstance(each, Store)]
        for each in reductions:
            own = [loop for loop in loops if loop.var in free_variables(each)]
            node = TensorNode(stores[-1].node.id, (*stores[-1].node.label, "part"))
            made[node] = NodeInfo(each.dtype, tuple(loop.stop - loop.start for loop in own))
            cell = tuple(affine([(1, loop.var)], -loop.start) for loop in own)
            result.append(_kernel(f"a sum for {step.title}", own, [Store(node, cell, each)]))
            read = Load(node, cell, each.dtype)
            stores = [with_value(store, each, read) for store in stores]
        result.append(_kernel(step.title, loops, stores))
    return tuple(result), made


def _reductions(
    loops: Iterable[For], stmts: tuple[Stmt, ...], nodes: NodeInfos
) -> tuple[Scoped, ...]:
    """Return the inlined reductions of stores that may be computed before all of the stores."""
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
        written.isdisjoint(nodes_of(each)) and _is_closed(each) and _has_loop(each)
        for each in found
    )
    return tuple(found) if are_independent else ()


def _has_loop(scoped: Scoped) -> bool:
    return any(isinstance(each, For) for each in walk(scoped.body))


def _is_closed(scoped: Scoped) -> bool:
    """Return True if a computation reads no variable but its own, and has no other inside."""
    inside = list(walk(scoped.body))
    return not any(isinstance(each, Scoped) for each in inside) and all(
        each.local == scoped.local for each in inside if isinstance(each, LocalRead | SetLocal)
    )


def _kernel(title: str, loops: Iterable[For], stores: Iterable[Store]) -> Kernel:
    """Return a kernel of loops around some stores."""
    body = Block(tuple(stores))
    for loop in reversed(tuple(loops)):
        body = Block((replace(loop, body=body),))
    return kernel_of(body, title)
