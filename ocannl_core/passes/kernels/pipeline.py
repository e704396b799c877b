"""The pipeline of kernel passes, from an optimized loop program to a plan of scheduled kernels.

    LoopProgram -- split_kernels, plan_passes() --> Plan
    Plan -- nest_passes(), of which recognize_nests is the first --> NestPlan
    NestPlan -- schedule_kernels, finish_for() --> Plan
    Plan -- merge_launches, on thread blocks alone --> Plan

Each pass returns a new plan. Scheduling and what finishes a kernel run step by step, so that code
generation can begin with the first kernels while later ones are scheduled. Within a memory budget a
fusion is left out where more bytes would live at the same time.

Passes for thread blocks, and for a library of products, are imported for the first target with
some: imports are a large part of the time to compile a first program.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial

from ocannl_core.base import settings
from ocannl_core.ir.kernels import nodes as kernel_ir
from ocannl_core.ir.kernels.library_product import OfferProduct
from ocannl_core.ir.kernels.live_ranges import live_bytes
from ocannl_core.ir.kernels.nest_plan import (
    NestKernel,
    NestPass,
    NestPlan,
    folded_nodes,
    mentioned,
    run_in_repetitions,
)
from ocannl_core.ir.kernels.stream import KernelStream, map_steps
from ocannl_core.ir.kernels.transforms import Schedule
from ocannl_core.ir.loops.nodes import LoopProgram
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.target import Target, ThreadBlocks
from ocannl_core.passes.kernels.block_sums import block_long_sums
from ocannl_core.passes.kernels.collapse_axes import collapse_axes
from ocannl_core.passes.kernels.decompose import with_decomposition
from ocannl_core.passes.kernels.find_constants import find_constants
from ocannl_core.passes.kernels.fission import distribute_rows, split_inlined_reductions
from ocannl_core.passes.kernels.fusion import fuse_distant_kernels, fuse_neighbors
from ocannl_core.passes.kernels.hoist_scalars import hoist_scalars
from ocannl_core.passes.kernels.inline_nodes import (
    forward_stores,
    initialize_reductions,
    rematerialize,
)
from ocannl_core.passes.kernels.parallelize import allocate_workspace, parallelize_step
from ocannl_core.passes.kernels.reassociate_products import reassociate_products
from ocannl_core.passes.kernels.recognize_nests import recognize_nests
from ocannl_core.passes.kernels.rows.choose import group_rows
from ocannl_core.passes.kernels.schedule_kernels import (
    has_schedules,
    rule_for,
    schedule_kernels,
    schedule_variants,
)
from ocannl_core.passes.kernels.sink_scalars import sink_scalars
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.passes.kernels.split_reductions import split_reductions
from ocannl_core.passes.kernels.widen_accumulators import (
    widen_accumulators,
    widen_integers,
    widen_scoped_sums,
)
from ocannl_core.schedule.machine_model import MachineModel
from ocannl_core.schedule.rules.decision import Rule

PlanPass = Callable[[kernel_ir.Plan], kernel_ir.Plan]

PlanObserver = Callable[[str, NestPlan], None]
"""A function that is called with each intermediate plan, after the name of the pass."""


def plan_passes(target: Target | None) -> list[tuple[str, PlanPass]]:
    """Return the named passes in front of the recognition of nests, in order.

    Args:
        target: The processor; None for passes that suit all.
    """
    passes: list[tuple[str, PlanPass]] = [("split inlined reductions", split_inlined_reductions)]
    if target is None:
        return passes
    on_blocks = target.thread_blocks is not None
    if not on_blocks:
        passes.append(("distribute rows", distribute_rows))
    passes.append(("sink scalars", partial(sink_scalars, only_nests=not on_blocks)))
    return passes


def nest_passes(target: Target | None, offer: OfferProduct | None) -> list[tuple[str, NestPass]]:
    """Return the named passes from the recognition of nests to their schedules, in order.

    Args:
        target: The processor; None for passes that need no cache sizes.
        offer: Returns the calls of a library for products; None without a library.
    """
    accumulation, budget = settings.current().accumulation, settings.current().memory_budget
    on_blocks = target is not None and target.thread_blocks is not None
    widen = partial(widen_accumulators, is_fast=accumulation == "fast", in_pieces=not on_blocks)

    def fusion(run: NestPass) -> NestPass:
        return run if budget is None else within_budget(run, budget)

    recognize = partial(recognize_nests, keeps_order=accumulation == "exact")
    passes: list[tuple[str, NestPass]] = [("recognize nests", recognize)]
    if on_blocks:
        from ocannl_core.passes.kernels.gather_windows import gather_windows

        passes.append(("gather windows", gather_windows))
    passes += [
        ("initialize reductions", initialize_reductions),
        ("fuse distant kernels", fusion(fuse_distant_kernels)),
        ("fuse neighbors", fusion(fuse_neighbors)),
        ("forward stores", forward_stores),
    ]
    if offer is not None:
        from ocannl_core.passes.kernels.offer_products import offer_products

        passes.append(("offer products", partial(offer_products, offer=offer)))
    passes += [("widen accumulators", widen), ("widen integers", widen_integers)]
    if accumulation != "exact":
        passes.append(("widen scoped sums", widen_scoped_sums))
    passes.append(("reassociate products", reassociate_products))
    if target is not None and on_blocks:
        from ocannl_core.passes.kernels.attention.fuse_attention import fuse_flash_attention
        from ocannl_core.passes.kernels.gather_windows import unroll_shifts

        flash = partial(fuse_flash_attention, target=target)
        passes += [("unroll shifts", unroll_shifts), ("fuse flash attention", flash)]
    if target is not None:
        cache = MachineModel.of(target).l2_bytes
        passes.append(("rematerialize", partial(rematerialize, cache=cache)))
    # a group packs the operands of all its kernels, which a budget has no room for
    if target is not None and budget is None:
        passes.append(("group rows", partial(group_rows, target=target)))
    if target is not None:
        lanes = 0 if on_blocks else MachineModel.of(target).lanes(float32.nbytes)
        passes.append(("collapse axes", partial(collapse_axes, lanes=lanes)))
    passes.append(("split reductions", partial(split_reductions, on_blocks=on_blocks)))
    # copies for all iterations live as long as the repetition, which a budget has no room for
    if target is not None and not on_blocks and budget is None:
        passes.append(("find constants", find_constants))
    return passes


def nest_plans(
    plan: kernel_ir.Plan, target: Target | None, offer: OfferProduct | None = None
) -> Iterator[tuple[str, NestPlan]]:
    """Yield the plan after each pass before scheduling, with the name of the pass.

    Args:
        target: The processor; None for passes that need no cache sizes.
        offer: As for `nest_passes`.
    """
    for name, run in plan_passes(target):
        plan = run(plan)
        yield name, plan
    nests: NestPlan = plan
    for name, nest_pass in nest_passes(target, offer):
        nests = run_in_repetitions(nests, nest_pass)
        yield name, nests


def nest_plan(
    plan: kernel_ir.Plan,
    target: Target | None,
    observers: Sequence[PlanObserver] = (),
    offer: OfferProduct | None = None,
) -> NestPlan:
    """Return the last of `nest_plans`, after calling the observers with each."""
    for name, nests in nest_plans(plan, target, offer):
        for observer in observers:
            observer(name, nests)
    return nests


def schedule_for(
    plan: kernel_ir.Plan,
    target: Target,
    finish: kernel_ir.StepRewrite = kernel_ir.unchanged,
    observers: Sequence[PlanObserver] = (),
    rule: Rule | None = None,
    offer: OfferProduct | None = None,
) -> KernelStream:
    """Return the kernels of a plan, each scheduled for a target when it is iterated over.

    Targets without vector registers get the kernels as the program states them, and so does every
    target with the setting `schedule = "none"`. Schedules from the tuning cache are used unless the
    setting `tune` is `off`.

    Args:
        observers: Called with the plan after each pass before scheduling.
        rule: Chooses the schedules; by default the rule for the target.
        offer: As for `nest_passes`.
    """
    if not has_schedules(target):
        return KernelStream(kernel_ir.rewrite_steps(plan, finish))
    rule = rule or rule_for(target)
    return KernelStream(_schedule_steps(plan, target, finish, observers, rule, offer))


def _schedule_steps(
    plan: kernel_ir.Plan,
    target: Target,
    finish: kernel_ir.StepRewrite,
    observers: Sequence[PlanObserver],
    rule: Rule,
    offer: OfferProduct | None,
) -> Generator[kernel_ir.FinishedStep, None, kernel_ir.Plan]:
    nests = nest_plan(plan, target, observers, offer)
    scheduled = schedule_kernels(nests, rule, finish)
    if target.thread_blocks is None:
        return (yield from scheduled)
    from ocannl_core.passes.kernels.merge_launches import merge_launches

    # launches are merged across the whole plan
    merged = merge_launches(KernelStream(scheduled).plan(), target.thread_blocks)
    return (yield from kernel_ir.rewrite_steps(merged, kernel_ir.unchanged))


def plan_kernels(
    optimized: LoopProgram,
    target: Target,
    observers: Sequence[PlanObserver] = (),
    rule: Rule | None = None,
    offer: OfferProduct | None = None,
) -> KernelStream:
    """Return the finished kernels of a program, each scheduled when it is iterated over.

    Args:
        offer: As for `nest_passes`.
    """
    plan = split_kernels(optimized)
    for observer in observers:
        observer("split kernels", plan)
    return schedule_for(plan, target, finish_for(target), observers, rule, offer)


def plan_variants(
    plan: NestPlan, kernel: NestKernel, schedules: Sequence[Schedule], target: Target, runs: int = 1
) -> kernel_ir.Plan:
    """Return a plan of one nest by each of some schedules, finished like other kernels.

    Args:
        runs: As for `schedule_variants`.
    """
    return map_steps(schedule_variants(plan, kernel, schedules, runs), finish_for(target))


def finish_for(target: Target) -> kernel_ir.StepRewrite:
    """Return the rewrite of each scheduled step for a target."""
    if target.thread_blocks is None:
        return with_decomposition(finish_kernel, target)
    return with_decomposition(partial(_finish_on_blocks, blocks=target.thread_blocks), target)


def _finish_on_blocks(
    step: kernel_ir.LeafStep, nodes: kernel_ir.NodeInfos, blocks: ThreadBlocks
) -> kernel_ir.StepReplacement:
    from ocannl_core.passes.kernels.distribute import distribute, has_device_axes

    if isinstance(step, kernel_ir.Kernel) and not has_device_axes(step.body):
        step = block_long_sums(step)
    return distribute(step, nodes, blocks)


def finish_kernel(
    step: kernel_ir.LeafStep, nodes: kernel_ir.NodeInfos
) -> kernel_ir.StepReplacement:
    """Divide the long sums of a step, hoist scalars, parallelize, and move large buffers out."""
    if isinstance(step, kernel_ir.Kernel):
        step = hoist_scalars(block_long_sums(step), nodes)
    phases = parallelize_step(step, nodes)
    found = [allocate_workspace(each, nodes) for each in phases.steps]
    steps = tuple(each for every in found for each in every.steps)
    scratch = (*phases.scratch, *(node for each in found for node in each.scratch))
    made = {node: info for each in (phases, *found) for node, info in each.nodes.items()}
    return kernel_ir.StepReplacement(steps, scratch, made)


def within_budget(run: NestPass, budget: int) -> NestPass:
    """Return a pass that keeps a plan where its result would exceed the budget, and live bytes."""

    def guarded(plan: NestPlan) -> NestPlan:
        result = run(plan)
        needed = _most_live_bytes(result)
        return result if needed <= budget or needed <= _most_live_bytes(plan) else plan

    return guarded


def _most_live_bytes(plan: NestPlan) -> int:
    """Return the most bytes of nodes of the routine that live at the same time."""
    return max(live_bytes(plan, mentioned, folded_nodes(plan)), default=0)
