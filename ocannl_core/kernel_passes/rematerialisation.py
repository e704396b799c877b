"""Rematerialisation: readers of a large node compute it where memory would take longer.

    for i, j: d[i, j] = x[i, j] - m[j]                          (nothing)
    for i, j: v[j] += d[i, j] * d[i, j]             -->         v[j] += the square of x[i, j] - m[j]
    for i, j: y[i, j] = d[i, j] * s[j]                          y[i, j] = (x[i, j] - m[j]) * s[j]

Storing a node beyond the near caches and loading it again costs more than a few additions; the
readers must load less than before. Row fusion decides the same later for nodes in a near cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from ocannl_core.kernel_passes.row_fusion.inline_nodes import inline_node
from ocannl_core.kernels.nest import KernelNest
from ocannl_core.kernels.nest_plan import NestKernel, NestPlan, NestStep, mentioned
from ocannl_core.kernels.nodes import NodeInfos
from ocannl_core.loopir.traverse import nodes_of
from ocannl_core.node import TensorNode


def rematerialise(plan: NestPlan, cache: int) -> NestPlan:
    """Compute large nodes of the routine in each kernel that reads them.

    Args:
        plan: The plan.
        cache: Bytes; nodes that fit are stored.
    """
    steps = plan.steps
    for node in plan.scratch:
        info = plan.nodes[node]
        if info.nbytes > cache and not info.padding:
            steps = _rematerialise_node(steps, node, plan.nodes)
    return plan.with_steps(steps)


def _rematerialise_node(
    steps: tuple[NestStep, ...], node: TensorNode, nodes: NodeInfos
) -> tuple[NestStep, ...]:
    """Return the steps without a node; the same ones if that is not possible, or no gain."""
    uses = [at for at, step in enumerate(steps) if node in mentioned(step)]
    if len(uses) < 2:
        return steps
    span = steps[uses[0] : uses[-1] + 1]
    kernels = [step for step in span if isinstance(step, NestKernel)]
    nests = [kernel.nest for kernel in kernels]
    if len(kernels) < len(span) or not _is_less(nests, node, nodes):
        return steps
    found = inline_node(nests, node, nodes[node])
    if found is None:
        return steps
    changed = [
        kernel.with_nest(kernel.nest if nest == kernel.nest else nest)
        for kernel, nest in zip(kernels, found, strict=True)
    ]
    left = [kernel for kernel in changed if kernel.nest.epilogue]
    return (*steps[: uses[0]], *left, *steps[uses[-1] + 1 :])


def _is_less(nests: Sequence[KernelNest], node: TensorNode, nodes: NodeInfos) -> bool:
    """Return True if the readers load less in place of a node than storing and loading it takes."""
    stores = [store for nest in nests for store in nest.epilogue if store.node is node]
    if len(stores) != 1:
        return False
    needed = set(nodes_of(stores[0].value))
    readers = [nest for nest in nests if node in nest.mentioned and stores[0] not in nest.epilogue]
    more = sum(nodes[each].nbytes for nest in readers for each in needed - nest.mentioned)
    return more < (len(readers) + 1) * nodes[node].nbytes
