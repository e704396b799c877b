"""The nodes of the kernel language: kernels, host calls, and the plan that orders them.

A plan is the result of scheduling and the input of code generation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import assert_never

from ocannl_core.fast_dataclass import dataclass, replace
from ocannl_core.indexing import StaticIndex
from ocannl_core.kernels.transforms import Schedule
from ocannl_core.loopir.nodes import Block, CallExternal
from ocannl_core.loopir.traverse import allocated_nodes, nodes_of, static_indices, writes
from ocannl_core.node import NodeInfo, TensorNode

NodeInfos = Mapping[TensorNode, NodeInfo]
"""What is known of nodes."""


@dataclass(frozen=True, slots=True)
class TuningResult:
    """What a search found for a nest.

    Attributes:
        schedule: The fastest; empty for plain loops.
        seconds: Its least time.
        default: What the default was then.
        default_seconds: The default's least time.
        tried: How many schedules were timed.
        is_complete: True if the search ended because nothing was faster, not for want of time.
        problem: Why it is not used; empty if it is.
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
            what they allocate.
        arguments: Nodes whose memory the kernel is given, in order of first use.
        indices: Static indices that the kernel is given, in order of first use.
        title: What it computes, for readers; kernels that differ only in their titles are equal.
        schedule: How the nest of the program became the body; empty if it is that nest.
        is_parallel: True if the body consists of PARALLEL loops that are independent of each other,
            so that all their iterations may run at the same time; and so may those of the PARALLEL
            loops right inside each.
        measured: What a search on this machine found for the nest; None if there was none.
        like: An earlier nest of the plan that is this one but for names, so that both have the same
            code; None if there is none.
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
        nodes: What is known of every node mentioned.
    """

    name: str
    steps: tuple[Step, ...]
    params: tuple[TensorNode, ...]
    scratch: tuple[TensorNode, ...]
    indices: tuple[StaticIndex, ...]
    nodes: Mapping[TensorNode, NodeInfo]


@dataclass(frozen=True, slots=True)
class StepReplacement:
    """What stands for one step of a plan.

    Attributes:
        steps: The steps, in order.
        scratch: Nodes of theirs whose memory belongs to the routine, beyond those of the plan.
    """

    steps: tuple[Step, ...]
    scratch: tuple[TensorNode, ...] = ()


StepRule = Callable[[Step, NodeInfos], StepReplacement]
"""What becomes of each step, whatever the others are."""


def unchanged(step: Step, nodes: NodeInfos) -> StepReplacement:
    """Returns a step as it is."""
    return StepReplacement((step,))


def map_steps(plan: Plan, rule: StepRule) -> Plan:
    """Returns a plan in which a rule was applied to every step."""
    found = [rule(step, plan.nodes) for step in plan.steps]
    steps = tuple(step for each in found for step in each.steps)
    shared = dict.fromkeys(node for each in found for node in each.scratch)
    return replace(plan, steps=steps, scratch=(*plan.scratch, *shared))
