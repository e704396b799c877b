"""Plans of kernels without schedules: the data of most kernel passes.

    Plan -- recognize_nests --> NestPlan -- kernel passes --> NestPlan -- schedule_kernels --> Plan

A step is a nest of independent cells, a group of nests that run together row by row, a kernel of
other statements, a host call, or a repetition of these. Passes rewrite nests; other kernels stay as
they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter, is_

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.kernels import nodes as kernel_ir
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nodes import Plan, RepeatedSteps
from ocannl_core.ir.kernels.row_fusion import RowFusion
from ocannl_core.ir.loops.nodes import Block
from ocannl_core.ir.node import NodeInfo, TensorNode


@dataclass(frozen=True, slots=True)
class NestKernel:
    """A step of a plan: a kernel that is a nest, as another `Kernel` is a block of statements.

    A nest has no title, so that equal ones have one schedule.
    """

    nest: Nest
    title: str = ""
    body: Block | None = None
    """The statements that the nest was read from; None once a pass has rewritten the nest."""

    def with_nest(self, nest: Nest) -> NestKernel:
        """Return the kernel with another nest; the kernel itself if the nest is unchanged."""
        return self if nest is self.nest else NestKernel(nest, self.title)


NestLeaf = NestKernel | RowFusion | kernel_ir.LeafStep
NestStep = NestLeaf | RepeatedSteps[NestLeaf]
NestPlan = Plan[NestLeaf]


def nest_kernels(plan: NestPlan) -> tuple[NestKernel, ...]:
    """Return the nests that run alone, also inside repeated steps."""
    return tuple(each for each in plan.kernels if isinstance(each, NestKernel))


def folded_nodes(plan: NestPlan) -> frozenset[TensorNode]:
    """Return the nodes of which row groups store one row at a time."""
    groups = (each for each in plan.kernels if isinstance(each, RowFusion))
    return frozenset(node for each in groups for node in each.folded)


def with_steps(
    plan: NestPlan, steps: Sequence[NestStep], made: Mapping[TensorNode, NodeInfo] | None = None
) -> NestPlan:
    """Return a plan with other steps, and with further nodes of the routine.

    Nodes of the routine that no step mentions any more are removed from it.
    """
    more = made or {}
    if not more and len(steps) == len(plan.steps) and all(map(is_, steps, plan.steps)):
        return plan
    used = frozenset[TensorNode]().union(*map(mentioned, steps))
    kept = tuple(node for node in (*plan.scratch, *more) if node in used)
    nodes = {**plan.nodes, **more} if more else plan.nodes
    return replace(plan, steps=tuple(steps), scratch=kept, nodes=nodes)


def map_nests(plan: NestPlan, function: Callable[[Nest], Nest]) -> NestPlan:
    """Return a plan with a function applied to the nests that run alone."""
    steps = [
        step.with_nest(function(step.nest)) if isinstance(step, NestKernel) else step
        for step in plan.steps
    ]
    return with_steps(plan, steps)


def replace_nests(
    plan: NestPlan, rule: Callable[[Nest], NestReplacement | None], parts: str = ""
) -> NestPlan:
    """Return a plan with several nests in place of one where a rule has a replacement.

    Args:
        parts: The beginning of the titles of all nests but the last one.
    """
    steps: list[NestStep] = []
    made: dict[TensorNode, NodeInfo] = {}
    for step in plan.steps:
        found = rule(step.nest) if isinstance(step, NestKernel) else None
        if not isinstance(step, NestKernel) or found is None:
            steps.append(step)
            continue
        made |= found.made
        *nests, last = found.nests
        steps += [NestKernel(nest, f"{parts}{step.title}") for nest in nests]
        steps.append(NestKernel(last, step.title))
    return with_steps(plan, steps, made)


@dataclass(frozen=True, slots=True)
class NestReplacement:
    """Nests that together compute the results of another one."""

    nests: tuple[Nest, ...]
    """The nests, in the order in which they run."""
    made: Mapping[TensorNode, NodeInfo]
    """The nodes that only they write and read, with extents and formats."""


NestPass = Callable[[NestPlan], NestPlan]


def run_in_repetitions(plan: NestPlan, run: NestPass) -> NestPlan:
    """Apply a pass to the steps of every iteration, as a plan of their own, and then to the plan.

    To the steps of an iteration, all nodes but the private ones are parameters: other iterations
    access them.
    """
    if not any(isinstance(step, RepeatedSteps) for step in plan.steps):
        return run(plan)
    nodes = dict(plan.nodes)
    steps: list[NestStep] = []
    for step in plan.steps:
        if isinstance(step, RepeatedSteps):
            used = frozenset[TensorNode]().union(*map(mentioned, step.steps))
            params = tuple(node for node in nodes if node in used.difference(step.scratch))
            indices = (*plan.indices, step.index)
            inside = NestPlan(plan.name, step.steps, params, step.scratch, indices, nodes)
            inside = run_in_repetitions(inside, run)
            nodes.update(inside.nodes)
            step = replace(step, steps=inside.steps, scratch=inside.scratch)
        steps.append(step)
    return run(replace(plan, steps=tuple(steps), nodes=nodes))


def nest_of(step: NestStep) -> Nest | None:
    """Return the nest of a step, if it is one."""
    return step.nest if isinstance(step, NestKernel) else None


def mentioned(step: NestStep) -> frozenset[TensorNode]:
    """Return the nodes that a step reads or writes."""
    return _nodes(step, attrgetter("mentioned"), kernel_ir.nodes_of_step)


def written(step: NestStep) -> frozenset[TensorNode]:
    """Return the nodes that a step writes."""
    return _nodes(step, attrgetter("written"), kernel_ir.nodes_written)


def _nodes(
    step: NestStep,
    of_nest: Callable[[Nest], frozenset[TensorNode]],
    of_step: Callable[[kernel_ir.LeafStep], Iterable[TensorNode]],
) -> frozenset[TensorNode]:
    match step:
        case NestKernel(nest):
            return of_nest(nest)
        case RowFusion():
            return frozenset().union(*map(of_nest, step.nests))
        case RepeatedSteps(steps=steps, scratch=scratch):
            inside = (_nodes(each, of_nest, of_step) for each in steps)
            return frozenset().union(*inside).difference(scratch)
        case _:
            return frozenset(of_step(step))
