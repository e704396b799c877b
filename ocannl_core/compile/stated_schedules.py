"""Schedules that a user states for kernels of a routine."""

from __future__ import annotations

from collections.abc import Mapping

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.canonical import canonical_text
from ocannl_core.ir.kernels.library_product import OfferProduct
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_plan import nest_kernels
from ocannl_core.ir.kernels.nodes import NodeInfos, Plan
from ocannl_core.ir.kernels.product_status import is_product
from ocannl_core.ir.kernels.transforms import Schedule, parse_schedule
from ocannl_core.ir.loops.nodes import LoopProgram
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.pipeline import nest_plan
from ocannl_core.passes.kernels.schedule_kernels import has_schedules, rule_for
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.schedule.apply.apply_schedule import apply_schedule
from ocannl_core.schedule.rules.decision import Rule, ScheduleDecision


@dataclass(frozen=True, slots=True)
class StatedRule:
    """A rule: the stated schedule of a nest, or another rule's."""

    schedules: Mapping[str, Schedule]
    """The stated schedules by the canonical text of the nest."""
    default: Rule

    def __call__(self, nest: Nest, nodes: NodeInfos) -> ScheduleDecision:
        decision = self.default(nest, nodes)
        stated = self.schedules.get(canonical_text(nest, nodes))
        if stated is None:
            return decision
        return ScheduleDecision(stated, decision.refusals if is_product(nest) else ())


def stated_rule(
    program: LoopProgram,
    compiled: Plan,
    target: Target,
    schedules: Mapping[int, str],
    offer: OfferProduct | None,
) -> Rule:
    """Return the rule for a program with stated schedules of some kernels; kernels that are equal
    but for names get the same.

    Args:
        schedules: Schedules in their notation, by the number of the kernel, from 1; an empty text
            stands for plain loops.
        offer: The library with which it was compiled.

    Raises:
        UsageError: if the target has no schedules, there is no such kernel, it is no nest of
            independent cells that runs alone, or the schedule does not fit it.
    """
    if not has_schedules(target):
        raise UsageError(
            "Schedules are stated for a device that has them.",
            found=f'{target}, with schedule = "none" or without vector registers',
            fix='compile for another backend, such as oc.Context("cpu_c")',
        )
    nests = nest_plan(split_kernels(program), target, offer=offer)
    found: dict[str, Schedule] = {}
    for number, text in schedules.items():
        if not 1 <= number <= len(compiled.kernels):
            raise UsageError(
                "A schedule is stated for a kernel of the routine.",
                found=f"kernel {number} of {len(compiled.kernels)}",
                fix="print(oc.explain(routine)) numbers the kernels",
            )
        title = compiled.kernels[number - 1].title
        named = [each.nest for each in nest_kernels(nests) if each.title == title]
        if not named:
            raise UsageError(
                "A schedule is stated for a nest of independent cells that runs alone.",
                found=f"kernel {number}, {title}: it shares rows with others, is a part of a sum "
                "that was split, is a call of a library, or has other loops",
            )
        schedule = parse_schedule(text)
        for nest in named:
            _check_fits(nest, schedule, nests.nodes, f"kernel {number}, {title}")
            found[canonical_text(nest, nests.nodes)] = schedule
    return StatedRule(found, rule_for(target))


def _check_fits(nest: Nest, schedule: Schedule, nodes: NodeInfos, where: str) -> None:
    try:
        apply_schedule(nest, schedule, nodes)
    except UsageError as error:
        raise UsageError(error.rule, found=error.found, where=where, fix=error.fix) from None
