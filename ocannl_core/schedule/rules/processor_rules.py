"""Rules for processors with vector registers.

A nest without a reduction has vectors along its cells (`pointwise`). A reduction has the tiles of a
matrix unit (`amx_schedules`) or register tiles of vectors (`vector_reductions`), whichever takes
fewer cycles by the cost model.
"""

from __future__ import annotations

from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.kernels.product_status import ProductUnit
from ocannl_core.ir.target import Target
from ocannl_core.schedule.rules.amx_schedules import find_amx_schedule
from ocannl_core.schedule.rules.decision import ScheduleDecision, UnitRule, choose_unit
from ocannl_core.schedule.rules.pointwise import pointwise_schedule
from ocannl_core.schedule.rules.vector_reductions import find_vector_schedule

_UNITS: tuple[tuple[ProductUnit, UnitRule], ...] = (
    (ProductUnit.MATRIX_INSTRUCTIONS, find_amx_schedule),
    (ProductUnit.REGISTER_TILES, find_vector_schedule),
)


def decide_on_processor(nest: Nest, nodes: NodeInfos, target: Target) -> ScheduleDecision:
    """Return the decision on a nest for a processor."""
    if nest.reduction is None:
        return ScheduleDecision(pointwise_schedule(nest, nodes, target))
    return choose_unit(_UNITS, nest, nodes, target)
