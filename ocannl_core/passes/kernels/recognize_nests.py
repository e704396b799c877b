"""Recognize kernels whose cells are independent.

for i: for j: c[i, j] = a[i, j] + b[j]  -->  a nest with axes i and j, and one store
"""

from __future__ import annotations

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.kernels.nest_plan import NestKernel, NestPlan, NestStep
from ocannl_core.ir.kernels.nest_recognition import kernel_nest
from ocannl_core.ir.kernels.nodes import Kernel
from ocannl_core.ir.kernels.product_status import Obstacle, ProductUnit
from ocannl_core.schedule.rules.decision import ScheduleDecision

_IN_ORDER = (
    (ProductUnit.MATRIX_INSTRUCTIONS, Obstacle.ACCUMULATION),
    (ProductUnit.REGISTER_TILES, Obstacle.ORDER),
)
"""The reasons for plain loops of products that add up narrow floats in order."""


def recognize_nests(plan: NestPlan, *, keeps_order: bool = False) -> NestPlan:
    """Return a plan in which kernels of independent cells are nests.

    Args:
        keeps_order: True if sums of narrow floats keep their order, rounded after every term.
    """

    def recognized(step: NestStep) -> NestStep:
        nest = kernel_nest(step.body, plan.nodes) if isinstance(step, Kernel) else None
        if not isinstance(step, Kernel) or nest is None:
            return step
        if keeps_order and nest.rounds_often:
            return replace(step, products=ScheduleDecision(None, _IN_ORDER).products(nest))
        return NestKernel(nest, step.title, step.body)

    return replace(plan, steps=tuple(map(recognized, plan.steps)))
