"""The decision on the schedule of a nest, with the reasons against faster units for its product;
and the status of the products of a row group, by the decisions on its nests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nodes import NodeInfos, TuningResult
from ocannl_core.ir.kernels.product_status import (
    COMMON_UNITS,
    Obstacle,
    ProductStatus,
    ProductUnit,
    Refusal,
    is_product,
    unit_of,
)
from ocannl_core.ir.kernels.transforms import Schedule
from ocannl_core.ir.target import Target

if TYPE_CHECKING:
    from ocannl_core.ir.kernels.row_fusion import RowFusion


@dataclass(frozen=True, slots=True)
class ScheduleDecision:
    """The decision on the schedule of a nest."""

    schedule: Schedule | None
    """The schedule; None for plain loops."""
    refusals: tuple[Refusal, ...] = ()
    """The units that the product of the nest could have used, in the order in which they were
    tried, each with the reason why it does not.
    """
    measured: TuningResult | None = None
    """The result of tuning the nest; None if there is none."""

    def products(self, nest: Nest) -> tuple[ProductStatus, ...]:
        """Return the status of the product that a nest computes; () if it computes none."""
        if not is_product(nest):
            return ()
        unit = unit_of(self.schedule)
        units = list(ProductUnit)
        faster = units[: units.index(unit)]
        known = dict(self.refusals)
        if self.measured is not None and not self.measured.problem:
            others = (each for each in faster if each in COMMON_UNITS)
            known = {**dict.fromkeys(others, Obstacle.TUNED), **known}
        reasons = tuple((each, known[each]) for each in faster if each in known)
        return (ProductStatus(nest.epilogue[0].node, unit, reasons),)


Rule = Callable[[Nest, NodeInfos], ScheduleDecision]
"""Decide on the schedule of a nest."""

UnitRule = Callable[[Nest, NodeInfos, Target], Schedule | Obstacle]
"""Return the schedule of a reduction for a unit, or an obstacle."""


def choose_unit(
    rules: Sequence[tuple[ProductUnit, UnitRule]], nest: Nest, nodes: NodeInfos, target: Target
) -> ScheduleDecision:
    """Return the decision for the first unit that has a schedule; plain loops if none has.

    Args:
        rules: The rule of each unit, the fastest unit first.
    """
    refusals: list[Refusal] = []
    for unit, rule in rules:
        found = rule(nest, nodes, target)
        if not isinstance(found, Obstacle):
            return ScheduleDecision(found, tuple(refusals))
        if found is not Obstacle.ABSENT or unit in COMMON_UNITS:
            refusals.append((unit, found))
    return ScheduleDecision(None, tuple(refusals))


def products_of_rows(
    fusion: RowFusion, decisions: Sequence[ScheduleDecision]
) -> tuple[ProductStatus, ...]:
    """Return the status of the products of a row group.

    Args:
        decisions: The decisions on the nests inside of the shared loops alone.
    """
    pending = iter(decisions)
    decision = ScheduleDecision(None)
    found: list[ProductStatus] = []
    for at, member in enumerate(fusion.members):
        decision = decision if at in fusion.along else next(pending)
        reasons = {**dict.fromkeys(COMMON_UNITS, Obstacle.ROWS), **dict(decision.refusals)}
        whole = replace(decision, refusals=tuple(reasons.items()))
        found += whole.products(member.nest)
    return tuple(found)
