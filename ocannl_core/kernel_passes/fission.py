"""Stores that need several inlined reductions as kernels that have one each.

    for i: y[i] = log({ sum of exp(x[i, k]) }) - { sum of x[i, k] * t[i, k] }

        -->

    for i: first[i] = { sum of exp(x[i, k]) }
    for i: second[i] = { sum of x[i, k] * t[i, k] }
    for i: y[i] = log(first[i]) - second[i]

A nest of independent cells has one reduction; with several, all loops would stay as they are. What
is stored in between has the format in which it was computed, so all bits stay the same. Kernels
over the same rows run together later, and then nothing of it is in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ocannl_core.fast_dataclass import dataclass, replace
from ocannl_core.indexing import affine
from ocannl_core.kernels.nest import (
    is_unconditional,
    perfect_loops,
    with_flat_computations,
    with_value,
)
from ocannl_core.kernels.nodes import Kernel, Step
from ocannl_core.loopir.nodes import Block, For, Load, LocalRead, Scoped, SetLocal, Stmt, Store
from ocannl_core.loopir.traverse import free_variables, nodes_of, static_indices, walk
from ocannl_core.node import NodeInfo, TensorNode


@dataclass(frozen=True, slots=True)
class FissionResult:
    """The steps of a plan, no store of which has several inlined reductions.

    Attributes:
        steps: The steps.
        made: The nodes between them, which the program does not have.
    """

    steps: tuple[Step, ...]
    made: Mapping[TensorNode, NodeInfo]


def split_inlined_reductions(steps: Iterable[Step]) -> FissionResult:
    """Returns the steps of a plan with inlined reductions in kernels of their own, where there are
    several in one.
    """
    result: list[Step] = []
    made: dict[TensorNode, NodeInfo] = {}
    for step in steps:
        loops, stmts = perfect_loops(step.body) if isinstance(step, Kernel) else ([], ())
        reductions = _reductions(stmts)
        if not isinstance(step, Kernel) or len(reductions) < 2:
            result.append(step)
            continue
        stores = [with_flat_computations(each) for each in stmts if isinstance(each, Store)]
        for each in reductions:
            own = [loop for loop in loops if loop.var in free_variables(each)]
            node = TensorNode(stores[-1].node.id, (*stores[-1].node.label, "part"))
            made[node] = NodeInfo(each.dtype, tuple(loop.stop - loop.start for loop in own))
            cell = tuple(affine([(1, loop.var)], -loop.start) for loop in own)
            titled = replace(step, title=f"a sum for {step.title}")
            result.append(_nest(titled, own, [Store(node, cell, each)]))
            read = Load(node, cell, each.dtype)
            stores = [with_value(store, each, read) for store in stores]
        result.append(_nest(step, loops, stores))
    return FissionResult(tuple(result), made)


def _reductions(stmts: tuple[Stmt, ...]) -> tuple[Scoped, ...]:
    """Returns the inlined reductions of stores that may be computed before all of the stores."""
    stores = [with_flat_computations(each) for each in stmts if isinstance(each, Store)]
    if len(stores) != len(stmts) or not all(map(is_unconditional, stores)):
        return ()
    found = dict.fromkeys(
        each for store in stores for each in walk(store) if isinstance(each, Scoped)
    )
    written = {store.node for store in stores}
    are_apart = all(
        written.isdisjoint(nodes_of(each)) and _is_closed(each) and _has_loop(each)
        for each in found
    )
    return tuple(found) if are_apart else ()


def _has_loop(scoped: Scoped) -> bool:
    return any(isinstance(each, For) for each in walk(scoped.body))


def _is_closed(scoped: Scoped) -> bool:
    """True if a computation reads no variable but its own, and has no other inside."""
    inside = list(walk(scoped.body))
    return not any(isinstance(each, Scoped) for each in inside) and all(
        each.local == scoped.local for each in inside if isinstance(each, LocalRead | SetLocal)
    )


def _nest(step: Kernel, loops: Iterable[For], stores: Iterable[Store]) -> Kernel:
    """Returns a nest of a step's loops around some stores."""
    body = Block(tuple(stores))
    for loop in reversed(tuple(loops)):
        body = Block((replace(loop, body=body),))
    return replace(step, body=body, arguments=nodes_of(body), indices=static_indices(body))
