"""The nodes of the kernel language: kernels, host calls, and the plan that orders them.

A plan is the result of scheduling and the input of code generation.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import field
from typing import assert_never

from ocannl_core.fast_dataclass import dataclass, replace
from ocannl_core.indexing import StaticIndex
from ocannl_core.kernels.transforms import Schedule
from ocannl_core.loopir.nodes import Block, CallExternal
from ocannl_core.loopir.traverse import allocated_nodes, nodes_of, static_indices, writes
from ocannl_core.node import NodeInfo, TensorNode

NodeInfos = Mapping[TensorNode, NodeInfo]
"""The extents and formats of nodes."""


@dataclass(frozen=True, slots=True)
class TuningResult:
    """The result of a schedule search for a nest.

    Attributes:
        schedule: The fastest; empty for plain loops.
        seconds: Its least time.
        default: The default schedule at that time.
        default_seconds: The default's least time.
        tried: The number of schedules that were timed.
        is_complete: True if the search ended because nothing was faster, not for lack of time.
        problem: The reason why it is not used; empty if it is.
    """

    schedule: Schedule
    seconds: float
    default: Schedule
    default_seconds: float
    tried: int
    is_complete: bool = True
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Kernel:
    """Statements that become one kernel.

    Attributes:
        body: The statements. They mention no node or static index beyond the two tuples below and
            the nodes that they allocate.
        arguments: The nodes that are passed to the kernel, in order of first use.
        indices: The static indices that are passed to the kernel, in order of first use.
        title: A description for readers; kernels that differ only in their titles are equal.
        schedule: The schedule that was applied; empty if the body is the nest of the program.
        is_parallel: True if the body consists of PARALLEL loops that are independent of each other,
            so that all their iterations may run at the same time; and so may those of the PARALLEL
            loops right inside each.
        measured: The result of a schedule search on this machine; None if there was none.
        like: An earlier kernel of the plan that equals this one up to renaming, so that both have
            the same code; None if there is none.
    """

    body: Block
    arguments: tuple[TensorNode, ...]
    indices: tuple[StaticIndex, ...]
    title: str = ""
    schedule: Schedule = ()
    is_parallel: bool = False
    measured: TuningResult | None = None
    like: Kernel | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class HostCall:
    """A call out of the loop language between two kernels."""

    call: CallExternal
    title: str = ""


Step = Kernel | HostCall


def kernel_of(body: Block, title: str = "") -> Kernel:
    """Return the kernel of some statements, with its arguments and indices."""
    own = set(allocated_nodes(body))
    arguments = tuple(node for node in nodes_of(body) if node not in own)
    return Kernel(body, arguments, static_indices(body), title)


def nodes_of_step(step: Step) -> tuple[TensorNode, ...]:
    """Return the nodes that a step reads or writes, in order of first use."""
    match step:
        case Kernel(arguments=arguments):
            return arguments
        case HostCall(call):
            return nodes_of(call)
        case _:
            assert_never(step)


def nodes_written(step: Step) -> tuple[TensorNode, ...]:
    """Return the nodes that a step writes."""
    match step:
        case Kernel(body):
            return writes(body)
        case HostCall(call):
            return call.outputs
        case _:
            assert_never(step)


@dataclass(frozen=True, slots=True)
class Plan:
    """A routine as steps that run one after the other.

    Attributes:
        name: The routine's name.
        steps: Kernels and external calls in the order of execution.
        params: Nodes whose memory comes from the context.
        scratch: Nodes whose memory belongs to the routine.
        indices: Static indices, in the order in which the routine takes their values.
        nodes: The extents and formats of every node mentioned.
    """

    name: str
    steps: tuple[Step, ...]
    params: tuple[TensorNode, ...]
    scratch: tuple[TensorNode, ...]
    indices: tuple[StaticIndex, ...]
    nodes: Mapping[TensorNode, NodeInfo]


@dataclass(frozen=True, slots=True)
class StepReplacement:
    """The steps that replace one step of a plan.

    Attributes:
        steps: The steps, in order.
        scratch: Further nodes whose memory belongs to the routine.
    """

    steps: tuple[Step, ...]
    scratch: tuple[TensorNode, ...] = ()


StepRule = Callable[[Step, NodeInfos], StepReplacement]
"""A rewrite of one step that does not depend on the others."""


def unchanged(step: Step, nodes: NodeInfos) -> StepReplacement:
    """Return a step as it is."""
    return StepReplacement((step,))


FinishedStep = tuple[Step, NodeInfos]
"""A step to which no pass applies any more, and the nodes that it mentions, among others."""


def rewrite_steps(plan: Plan, rule: StepRule = unchanged) -> Generator[FinishedStep, None, Plan]:
    """Yield the steps of a plan after applying a rule to each; return the whole plan."""
    steps: list[Step] = []
    scratch = dict.fromkeys(plan.scratch)
    for step in plan.steps:
        found = rule(step, plan.nodes)
        steps += found.steps
        scratch.update(dict.fromkeys(found.scratch))
        for each in found.steps:
            yield each, plan.nodes
    return replace(plan, steps=tuple(steps), scratch=tuple(scratch))
