"""Give the kernels of a plan their schedules, each by the rule for its target."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, assert_never

from ocannl_core.base import settings
from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.kernels import nodes as kernel_ir
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_plan import NestKernel, NestLeaf, NestPlan
from ocannl_core.ir.kernels.nodes import (
    LeafStep,
    StepReplacement,
    StepRewrite,
    TuningResult,
    rewrite_steps,
)
from ocannl_core.ir.kernels.product_status import is_product
from ocannl_core.ir.kernels.row_fusion import RowFusion
from ocannl_core.ir.kernels.transforms import Schedule
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops import traverse
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.deduplicate import new_memo
from ocannl_core.schedule.apply.apply_schedule import apply_schedule
from ocannl_core.schedule.rules.decision import Rule, ScheduleDecision
from ocannl_core.schedule.rules.processor_rules import decide_on_processor
from ocannl_core.schedule.tuning.tuning_cache import TuningCache, tuning_cache

if TYPE_CHECKING:
    from ocannl_core.passes.kernels.rows.apply import FusedKernel


def has_schedules(target: Target) -> bool:
    """Return True if kernels for a target get schedules with the settings in force."""
    has_parallelism = target.vector_registers > 0 or target.thread_blocks is not None
    return has_parallelism and settings.current().schedule != "none"


def rule_for(target: Target) -> Rule:
    """Return the rule that chooses schedules for a target with the settings in force."""

    def default(nest: Nest, nodes: kernel_ir.NodeInfos) -> ScheduleDecision:
        if target.thread_blocks is not None:
            from ocannl_core.schedule.rules.block_rules import decide_on_blocks

            return decide_on_blocks(nest, nodes, target)
        return decide_on_processor(nest, nodes, target)

    return (
        default if settings.current().tune == "off" else CachedRule(tuning_cache(target), default)
    )


class CachedRule:
    """A rule: the tuned schedule of a nest if there is one that fits, otherwise another rule's.

    The result of tuning states the reason if its schedule does not apply.
    """

    def __init__(self, cache: TuningCache, default: Rule) -> None:
        self._cache = cache
        self._default = default

    def __call__(self, nest: Nest, nodes: kernel_ir.NodeInfos) -> ScheduleDecision:
        measured = self._look_up(nest, nodes)
        if measured is None or measured.problem:
            return replace(self._default(nest, nodes), measured=measured)
        # the status of a product has the reasons of the other rule
        refusals = self._default(nest, nodes).refusals if is_product(nest) else ()
        return ScheduleDecision(measured.schedule, refusals, measured)

    def _look_up(self, nest: Nest, nodes: kernel_ir.NodeInfos) -> TuningResult | None:
        measured = self._cache.find(nest, nodes)
        if measured is None or not measured.schedule:
            return measured
        try:
            apply_schedule(nest, measured.schedule)
        except UsageError as error:
            return replace(measured, problem=error.rule)
        return measured


def schedule_kernels(
    plan: NestPlan, rule: Rule, finish: StepRewrite[LeafStep] = kernel_ir.unchanged
) -> Generator[kernel_ir.FinishedStep, None, kernel_ir.Plan]:
    """Yield the steps of a plan, in which every nest has a schedule; return the whole plan.

    Kernels that are equal but for names are scheduled once.
    """
    memo = new_memo()

    def scheduled(step: NestLeaf, nodes: kernel_ir.NodeInfos) -> StepReplacement:
        make = partial(_schedule_step, step, rule, nodes, finish)
        match step:
            case RowFusion():
                members = tuple([replace(each, title="") for each in step.members])
                return memo.made((replace(step, members=members),), step.titles, nodes, make)
            case NestKernel(nest, title, body):
                return memo.made((nest, body is None), [title], nodes, make)
            case kernel_ir.Kernel(body, title=title, schedule=schedule) if schedule:
                made = memo.made((body, schedule), [title], nodes, make)
                # results that the kernel does not mention would be its original's
                kernel, *others = made.steps
                assert isinstance(kernel, kernel_ir.Kernel)
                if kernel.products == step.products:
                    return made
                own = replace(kernel, products=step.products)
                return replace(made, steps=(own, *others))
            case kernel_ir.Kernel() | kernel_ir.HostCall():
                return make()
            case _:
                assert_never(step)

    return rewrite_steps(plan, scheduled)


def _schedule_step(
    step: NestLeaf, rule: Rule, nodes: kernel_ir.NodeInfos, finish: StepRewrite[LeafStep]
) -> StepReplacement:
    known = dict(nodes)
    ahead: list[LeafStep] = []
    scratch: list[TensorNode] = []
    scheduled: list[LeafStep]
    match step:
        case RowFusion():
            fused = _fuse(step, rule, known)
            known.update(fused.nodes)
            scratch += fused.partial
            sums = (_schedule_nest(each, rule, known).kernel for each in fused.sums)
            scheduled = [fused.kernel, *sums]
        case NestKernel():
            made = _schedule_nest(step, rule, known)
            ahead += made.ahead
            scratch += made.copies
            scheduled = [made.kernel]
        case kernel_ir.Kernel() | kernel_ir.HostCall():
            scheduled = [step]
        case _:
            assert_never(step)
    steps: list[LeafStep] = []
    finished_ahead = 0
    for kernels in (ahead, scheduled):
        finished_ahead = len(steps)
        for each in kernels:
            found = finish(each, known)
            steps += found.steps
            scratch += found.scratch
            known.update(found.nodes)
    new_nodes = dict(islice(known.items(), len(nodes), None))
    return StepReplacement(tuple(steps), tuple(scratch), new_nodes, finished_ahead)


def _fuse(fusion: RowFusion, rule: Rule, nodes: kernel_ir.NodeInfos) -> FusedKernel:
    """Return the loops over rows; modules are imported for the first group of a process."""
    if fusion.threads:
        from ocannl_core.passes.kernels.rows.on_blocks import fuse_on_blocks

        return fuse_on_blocks(fusion, nodes)
    from ocannl_core.passes.kernels.rows.apply import fuse_group

    return fuse_group(fusion, rule, nodes)


@dataclass(frozen=True, slots=True)
class _ScheduledNest:
    """A nest with a schedule."""

    kernel: kernel_ir.Kernel
    ahead: tuple[kernel_ir.Kernel, ...] = ()
    """The kernel that copies constant operands, once for all iterations of a repetition."""
    copies: tuple[TensorNode, ...] = ()
    """The nodes of these copies: memory of the routine."""


def _schedule_nest(
    kernel: NestKernel, rule: Rule, nodes: dict[TensorNode, NodeInfo]
) -> _ScheduledNest:
    nest = kernel.nest
    decision = rule(nest, nodes)
    schedule = decision.schedule or ()
    body, ahead, copies = kernel.body, ir.Block(()), tuple[TensorNode, ...]()
    if schedule or body is None:
        result = apply_schedule(nest, schedule, nodes)
        nodes.update(result.nodes)
        copies = _constant_copies(nest, result.packing)
        ahead, packing = _divide(result.packing, copies)
        body = replace(result, packing=packing).body
    scheduled = replace(
        kernel_ir.kernel_of(body, kernel.title),
        schedule=schedule,
        measured=decision.measured,
        products=decision.products(nest),
    )
    if not copies:
        return _ScheduledNest(scheduled)
    title = f"copies for {kernel.title}" if kernel.title else ""
    return _ScheduledNest(scheduled, (kernel_ir.kernel_of(ahead, title),), copies)


def _constant_copies(nest: Nest, packing: Sequence[ir.Stmt]) -> tuple[TensorNode, ...]:
    """Return the buffers of copies that are equal in all iterations of a repetition."""
    constants = nest.repetition.constants if nest.repetition is not None else ()
    loaded: dict[TensorNode, set[TensorNode]] = {}
    for stmt in packing:
        for buffer in traverse.writes(stmt):
            loaded.setdefault(buffer, set()).update(traverse.reads(stmt))
    return tuple(each for each, nodes in loaded.items() if nodes and nodes.issubset(constants))


def _divide(
    packing: Sequence[ir.Stmt], copies: Collection[TensorNode]
) -> tuple[ir.Block, tuple[ir.Stmt, ...]]:
    """Return the loops that fill some buffers, and the statements of the others."""
    fills: list[ir.Stmt] = []
    others: list[ir.Stmt] = []
    for stmt in packing:
        if not set(copies).isdisjoint(traverse.writes(stmt)):
            fills.append(stmt)
        elif not (isinstance(stmt, ir.Allocate) and stmt.node in copies):
            others.append(stmt)
    return ir.Block(tuple(fills)), tuple(others)


def schedule_variants(
    plan: NestPlan, kernel: NestKernel, schedules: Sequence[Schedule], runs: int = 1
) -> kernel_ir.Plan:
    """Return a plan that computes one nest by each of some schedules, one after the other.

    Args:
        kernel: The nest; all nodes that it mentions become parameters.
        schedules: The schedules; an empty one stands for plain loops.
        runs: The iterations of the repetition around a nest that has constant operands.
    """
    nodes = dict(plan.nodes)
    steps: list[kernel_ir.Step] = []
    copies: list[TensorNode] = []
    for chosen in schedules:
        made = _schedule_nest(kernel, lambda *_, each=chosen: ScheduleDecision(each), nodes)
        steps += made.ahead
        copies += made.copies
        if kernel.nest.repetition is None:
            steps.append(made.kernel)
        else:
            run = StaticIndex("run", runs)
            steps.append(kernel_ir.RepeatedSteps(run, runs, False, (made.kernel,), ()))
    leaves = [each for each in kernel_ir.leaf_steps(steps) if isinstance(each, kernel_ir.Kernel)]
    mentioned = dict.fromkeys(node for each in leaves for node in each.arguments)
    params = tuple(node for node in mentioned if node not in copies)
    around = dict.fromkeys(index for each in leaves for index in each.indices)
    indices = tuple(dict.fromkeys((*plan.indices, *around)))
    return kernel_ir.Plan(plan.name, tuple(steps), params, tuple(copies), indices, nodes)
