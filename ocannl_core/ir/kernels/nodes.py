"""The nodes of the kernel language: kernels, host calls, and the plan that orders them.

A plan is the result of scheduling and the input of code generation.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar, assert_never

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.kernels.product_status import ProductStatus
from ocannl_core.ir.kernels.transforms import KernelSchedule, Schedule
from ocannl_core.ir.loops.nodes import AxisKind, Block, CallExternal, For
from ocannl_core.ir.loops.traverse import allocated_nodes, nodes_of, static_indices, writes
from ocannl_core.ir.node import NodeInfo, TensorNode

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    LeafT = TypeVarWithDefault("LeafT", covariant=True, default="LeafStep")
else:
    LeafT = TypeVar("LeafT", bound="LeafStep")  # the bound is the form of decoded plans

OtherT = TypeVar("OtherT")


class Separation(Enum):
    """The reason why two kernels do not share a launch; the value is a sentence for people."""

    DEPENDENCE = "one depends on the other"
    BARRIERS = "different numbers of threads meet at barriers"
    CONDITIONAL_BARRIERS = "the device has no barriers for some blocks of a launch"
    COST = "fewer blocks would run at a time than in two launches"
    SIZE = "there would be too many kernels or arguments"
    TILES = "walks of tiles use a number of registers of their own"
    OPAQUE = "positions are checked, accesses are unknown, or a block has one thread for it"


@dataclass(frozen=True, slots=True)
class LaunchPart:
    """A kernel that shares a launch."""

    title: str
    blocks: int
    """The thread blocks that run it; the blocks of one kernel follow each other."""
    threads: int
    """The threads of a block that run it."""
    schedule: KernelSchedule
    """Its schedule; empty for plain loops."""


@dataclass(frozen=True, slots=True)
class KeptApart:
    """The decision not to merge a launch with the one before."""

    title: str
    """The title of the launch before."""
    reason: Separation
    nodes: tuple[TensorNode, ...] = ()
    """The nodes of a dependence."""

    def __str__(self) -> str:
        names = ", ".join(node.name for node in self.nodes)
        return f"{self.reason.value}{f', by {names}' if names else ''}"


NodeInfos = Mapping[TensorNode, NodeInfo]
"""The extents and formats of nodes."""


@dataclass(frozen=True, slots=True)
class TuningResult:
    """The result of a schedule search for a nest."""

    schedule: Schedule
    """The fastest schedule; empty for plain loops."""
    seconds: float
    """The least time of the fastest schedule."""
    default: Schedule
    """The default schedule at the time of the search."""
    default_seconds: float
    """The least time of the default schedule."""
    tried: int
    """The number of schedules that were timed."""
    is_complete: bool = True
    """True if the search ended because nothing was faster, not for lack of time."""
    problem: str = ""
    """The reason why the result is not used; empty if it is used."""


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
            so that all their iterations may run at the same time, and so may the iterations of the
            PARALLEL loops right inside. Scalars in front of them are computed for each part. A
            PARALLEL loop may be the only statement inside serial loops, which each part runs, too.
        measured: The result of a schedule search on this machine; None if there was none.
        products: The products that it computes, with the units that compute them, as far as rules
            have chosen its schedules.
        parts: The kernels that share its launch, if there are several.
        apart: The decisions not to merge it with launches before it.
        like: An earlier kernel of the plan that equals this one up to renaming, so that both have
            the same code; None without one.
    """

    body: Block
    arguments: tuple[TensorNode, ...]
    indices: tuple[StaticIndex, ...]
    title: str = ""
    schedule: KernelSchedule = ()
    is_parallel: bool = False
    measured: TuningResult | None = None
    products: tuple[ProductStatus, ...] = field(default=(), compare=False)
    parts: tuple[LaunchPart, ...] = field(default=(), compare=False)
    apart: tuple[KeptApart, ...] = field(default=(), compare=False)
    like: Kernel | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class HostCall:
    """A call out of the loop language between two kernels."""

    call: CallExternal
    title: str = ""


@dataclass(frozen=True, slots=True)
class RepeatedSteps(Generic[LeafT]):
    """Steps that run several times, each time with another value of a static index.

    Attributes:
        index: The static index that has the number of the iteration.
        count: The number of iterations.
        is_reversed: True if they run from the last one to the first.
        steps: The steps of an iteration, in order.
        scratch: The nodes that are private to an iteration, undefined at its start.
        title: A description for readers.
    """

    index: StaticIndex
    count: int
    is_reversed: bool
    steps: tuple[LeafT | RepeatedSteps[LeafT], ...]
    scratch: tuple[TensorNode, ...]
    title: str = ""

    @property
    def iterations(self) -> range:
        """The values of the index, in the order of the iterations."""
        every = range(self.count)
        return every[::-1] if self.is_reversed else every


LeafStep = Kernel | HostCall
"""A step of a finished plan that contains no others."""

Step = LeafStep | RepeatedSteps


def repeat_as(
    repeated: RepeatedSteps[Any],
    steps: tuple[OtherT | RepeatedSteps[OtherT], ...],
    scratch: tuple[TensorNode, ...],
) -> RepeatedSteps[OtherT]:
    """Return the same repetition of other steps."""
    order = repeated.index, repeated.count, repeated.is_reversed
    return RepeatedSteps(*order, steps, scratch, repeated.title)


def leaf_steps(steps: Iterable[LeafT | RepeatedSteps[LeafT]]) -> Iterator[LeafT]:
    """Yield the steps of a plan in order; a repetition yields the steps of one iteration."""
    for step in steps:
        if isinstance(step, RepeatedSteps):
            yield from leaf_steps(step.steps)
        else:
            yield step


def with_leaves(
    steps: Iterable[object | RepeatedSteps[object]], leaves: Iterator[OtherT]
) -> tuple[OtherT | RepeatedSteps[OtherT], ...]:
    """Return steps with others, in order, in place of those that contain no others."""
    found: list[OtherT | RepeatedSteps[OtherT]] = []
    for step in steps:
        if isinstance(step, RepeatedSteps):
            found.append(repeat_as(step, with_leaves(step.steps, leaves), step.scratch))
        else:
            found.append(next(leaves))
    return tuple(found)


def kernel_of(body: Block, title: str = "") -> Kernel:
    """Return the kernel of some statements, with its arguments and indices."""
    own = set(allocated_nodes(body))
    arguments = tuple(node for node in nodes_of(body) if node not in own)
    return Kernel(body, arguments, static_indices(body), title)


def joint_title(titles: Iterable[str]) -> str:
    """Return the title of several kernels as one."""
    return "; ".join(filter(None, titles))


def parallel_loop(loop: For) -> For | None:
    """Return the outermost PARALLEL loop of perfectly nested ones, or None."""
    while loop.kind is not AxisKind.PARALLEL:
        if len(loop.body.stmts) != 1 or not isinstance(loop.body.stmts[0], For):
            return None
        loop = loop.body.stmts[0]
    return loop


def nodes_of_step(step: Step) -> tuple[TensorNode, ...]:
    """Return the nodes that a step reads or writes, in order of first use."""
    match step:
        case Kernel(arguments=arguments):
            return arguments
        case HostCall(call):
            return nodes_of(call)
        case RepeatedSteps(steps=steps):
            return _visible(step, map(nodes_of_step, steps))
        case _:
            assert_never(step)


def nodes_written(step: Step) -> tuple[TensorNode, ...]:
    """Return the nodes that a step writes."""
    match step:
        case Kernel(body):
            return writes(body)
        case HostCall(call):
            return call.outputs
        case RepeatedSteps(steps=steps):
            return _visible(step, map(nodes_written, steps))
        case _:
            assert_never(step)


def _visible(
    repeated: RepeatedSteps, found: Iterable[tuple[TensorNode, ...]]
) -> tuple[TensorNode, ...]:
    every = dict.fromkeys(node for nodes in found for node in nodes)
    return tuple(node for node in every if node not in repeated.scratch)


@dataclass(frozen=True, slots=True)
class Plan(Generic[LeafT]):
    """A routine as steps that run one after the other.

    Attributes:
        name: The routine's name.
        steps: In the order of execution: in a finished plan kernels, host calls, repetitions.
        params: Nodes whose memory comes from the context.
        scratch: Nodes whose memory is the routine's and outlives an iteration of repeated steps.
        indices: Static indices, in the order in which the routine takes their values.
        nodes: The extents and formats of every node mentioned.
    """

    name: str
    steps: tuple[LeafT | RepeatedSteps[LeafT], ...]
    params: tuple[TensorNode, ...]
    scratch: tuple[TensorNode, ...]
    indices: tuple[StaticIndex, ...]
    nodes: Mapping[TensorNode, NodeInfo]

    def __repr__(self) -> str:
        return (
            f"Plan({self.name!r}, {len(self.steps)} steps, {len(self.params)} params, "
            f"{len(self.scratch)} scratch nodes)"
        )

    @property
    def kernels(self) -> tuple[LeafT, ...]:
        """The steps that contain no others, also inside repeated steps."""
        return tuple(leaf_steps(self.steps))

    @property
    def products(self) -> tuple[ProductStatus, ...]:
        """The products that kernels with schedules compute, with the units that compute them."""
        kernels = (step for step in self.kernels if isinstance(step, Kernel))
        return tuple(each for kernel in kernels for each in kernel.products)

    @property
    def own_nodes(self) -> tuple[TensorNode, ...]:
        """All nodes whose memory belongs to the routine."""
        return (*self.scratch, *private_nodes(self.steps))


def private_nodes(steps: Iterable[LeafT | RepeatedSteps[LeafT]]) -> Iterator[TensorNode]:
    """Yield the nodes that are private to an iteration of repeated steps."""
    for step in steps:
        if isinstance(step, RepeatedSteps):
            yield from step.scratch
            yield from private_nodes(step.steps)


@dataclass(frozen=True, slots=True)
class StepReplacement:
    """The steps that replace one step of a plan."""

    steps: tuple[LeafStep, ...]
    scratch: tuple[TensorNode, ...] = ()
    """Further nodes whose memory belongs to the routine."""
    nodes: NodeInfos = field(default_factory=dict)
    """The extents and formats of nodes that the plan does not have."""
    ahead: int = 0
    """The number of steps, the first ones, that run once, ahead of the repetition around them."""


StepRewrite = Callable[[LeafT, NodeInfos], StepReplacement]
"""A rewrite of one step that does not depend on the others."""


def unchanged(step: LeafStep, nodes: NodeInfos) -> StepReplacement:
    """Return a step as it is."""
    return StepReplacement((step,))


FinishedStep = tuple[LeafStep, NodeInfos]
"""A step to which no pass applies any more, and the nodes that it mentions, among others."""


def rewrite_steps(
    plan: Plan[LeafT], rewrite: StepRewrite[LeafT]
) -> Generator[FinishedStep, None, Plan]:
    """Yield the steps of a plan after rewriting each; return the whole plan.

    Nodes of the routine that no step mentions any more are removed from it.
    """
    nodes = dict(plan.nodes)
    steps: list[Step] = []
    scratch = list(plan.scratch)
    for step in plan.steps:
        found, own, _ = _rewrite(step, nodes, rewrite)
        steps += found
        scratch += own
        leaves: Iterator[LeafStep] = leaf_steps(found)
        for leaf in leaves:
            yield leaf, nodes
    own_nodes = _mentioned_in(steps, scratch)
    return Plan(plan.name, tuple(steps), plan.params, own_nodes, plan.indices, nodes)


def _rewrite(
    step: LeafT | RepeatedSteps[LeafT],
    nodes: dict[TensorNode, NodeInfo],
    rewrite: StepRewrite[LeafT],
) -> tuple[tuple[Step, ...], tuple[TensorNode, ...], int]:
    """Return the steps that replace one, their scratch nodes, and how many run ahead."""
    if not isinstance(step, RepeatedSteps):
        made = rewrite(step, nodes)
        nodes.update(made.nodes)
        return made.steps, made.scratch, made.ahead
    ahead: list[Step] = []
    steps: list[Step] = []
    scratch = list(step.scratch)
    for each in step.steps:
        found, own, count = _rewrite(each, nodes, rewrite)
        ahead += found[:count]
        steps += found[count:]
        scratch += own
    kept = _mentioned_in(ahead, scratch)
    private = _mentioned_in(steps, [node for node in scratch if node not in kept])
    return (*ahead, repeat_as(step, tuple(steps), private)), kept, 0


def _mentioned_in(steps: Iterable[Step], nodes: Iterable[TensorNode]) -> tuple[TensorNode, ...]:
    used = frozenset(node for each in steps for node in nodes_of_step(each))
    return tuple(dict.fromkeys(node for node in nodes if node in used))
