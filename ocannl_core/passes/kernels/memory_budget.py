"""Fusion within a memory budget: nodes of a fused kernel live at the same time."""

from __future__ import annotations

from itertools import accumulate

from ocannl_core.ir.kernels.nest_plan import NestPass, NestPlan, RepeatedNests, mentioned


def within_budget(run: NestPass, budget: int) -> NestPass:
    """Return a pass that leaves a plan as it is where the nodes that live at the same time would
    take more bytes than the budget, and more than before.
    """

    def guarded(plan: NestPlan) -> NestPlan:
        result = run(plan)
        needed = live_bytes(result)
        return result if needed <= budget or needed <= live_bytes(plan) else plan

    return guarded


def live_bytes(plan: NestPlan) -> int:
    """Return the most bytes of nodes of the routine that live at the same time."""
    first: dict[object, int] = {}
    last: dict[object, int] = {}
    sizes: dict[object, int] = {}
    own, folded = frozenset(plan.scratch), plan.folded
    inner = [0] * len(plan.steps)
    for position, step in enumerate(plan.steps):
        if isinstance(step, RepeatedNests):
            inner[position] = sum(plan.nodes[node].nbytes for node in step.scratch)
        for node in (mentioned(step) & own) - folded:
            first.setdefault(node, position)
            last[node], sizes[node] = position, plan.nodes[node].nbytes
    change = [0] * (len(plan.steps) + 1)
    for each, nbytes in sizes.items():
        change[first[each]] += nbytes
        change[last[each] + 1] -= nbytes
    live = accumulate(change)
    return max((here + more for here, more in zip(live, inner, strict=False)), default=0)
