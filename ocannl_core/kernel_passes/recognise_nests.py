"""Recognise kernels whose cells are independent.

for i: for j: c[i, j] = a[i, j] + b[j]  -->  a nest with axes i and j, and one store
"""

from __future__ import annotations

from ocannl_core.kernels.nest import kernel_nest
from ocannl_core.kernels.nest_plan import NestKernel, NestPlan, NestStep
from ocannl_core.kernels.nodes import Kernel, Plan, Step


def recognise_nests(plan: Plan, *, keeps_order: bool = False) -> NestPlan:
    """Return a plan in which kernels of independent cells are nests.

    Args:
        plan: Kernels without schedules.
        keeps_order: True if sums of narrow floats stay in the order of their loops, rounded after
            every term.
    """

    def recognised(step: Step) -> NestStep:
        nest = kernel_nest(step.body) if isinstance(step, Kernel) else None
        if nest is None or (keeps_order and nest.rounds_often):
            return step
        assert isinstance(step, Kernel)
        return NestKernel(nest, step.title, step.body)

    steps = tuple(map(recognised, plan.steps))
    return NestPlan(plan.name, steps, plan.params, plan.scratch, plan.indices, plan.nodes)
