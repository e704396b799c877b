"""Status of the products of a row group."""

from __future__ import annotations

from collections.abc import Sequence

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.kernels.product_status import Obstacle, ProductStatus, ProductUnit
from ocannl_core.ir.kernels.row_fusion import RowFusion
from ocannl_core.schedule.rules.decision import ScheduleDecision

_ROWS = (
    (ProductUnit.MATRIX_INSTRUCTIONS, Obstacle.ROWS),
    (ProductUnit.REGISTER_TILES, Obstacle.ROWS),
)


def products_of_rows(
    fusion: RowFusion, decisions: Sequence[ScheduleDecision]
) -> tuple[ProductStatus, ...]:
    """Return the status of the products of a row group.

    Args:
        decisions: The decisions on the nests inside of the shared loops, those that run along
            others excluded.
    """
    pending = iter(decisions)
    decision = ScheduleDecision(None)
    found: list[ProductStatus] = []
    for at, member in enumerate(fusion.members):
        decision = decision if at in fusion.along else next(pending)
        reasons = {**dict(_ROWS), **dict(decision.refusals)}
        whole = replace(decision, refusals=tuple(reasons.items()))
        found += whole.products(member.nest)
    return tuple(found)
