"""A routine as text of the C family: its distinct kernels, and their launches in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from itertools import count
from typing import TYPE_CHECKING, assert_never

from ocannl_core.base.context_variables import scoped
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.identity import IdentityMap
from ocannl_core.codegen.text.kernel_text import KernelText
from ocannl_core.codegen.text.names import NameRole
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.kernels.nodes import (
    HostCall,
    Kernel,
    LeafStep,
    NodeInfos,
    Plan,
    RepeatedSteps,
    nodes_written,
    with_leaves,
)
from ocannl_core.ir.kernels.stream import KernelStream
from ocannl_core.ir.loops.nodes import CallExternal, CheckPositions
from ocannl_core.ir.loops.traverse import merge_reads, statements
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.text import PrintedNames
from ocannl_core.passes.kernels.parallel_loops import ParallelIterations, parallel_iterations

if TYPE_CHECKING:
    from ocannl_core.codegen.dialect import Dialect


def native_arguments(call: CallExternal) -> tuple[TensorNode, ...]:
    """Return the argument nodes of a call's kernel: inputs, then outputs, without repetition."""
    return tuple(dict.fromkeys((*call.inputs, *call.outputs)))


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a kernel.

    Attributes:
        arguments: The nodes whose memory it is given.
        written: The nodes among these that it writes.
        merges: The nodes whose merge buffers it is given after the arguments.
        indices: The static indices that it is given after the merge buffers.
        title: A description of the kernel.
        shares: The iterations of a parallel kernel that threads may share; None for one thread.
        checks: The checks that it runs; an integer for their failure is the last argument.
    """

    text: KernelText
    arguments: tuple[TensorNode, ...]
    written: tuple[TensorNode, ...]
    merges: tuple[TensorNode, ...] = ()
    indices: tuple[StaticIndex, ...] = ()
    title: str = ""
    shares: ParallelIterations | None = None
    checks: tuple[CheckPositions, ...] = ()

    @classmethod
    def of(cls, step: LeafStep, text: KernelText | None, nodes: NodeInfos) -> Launch:
        """Return the launch of a step's kernel."""
        assert text is not None, "every nest has a kernel"
        match step:
            case Kernel(body, arguments, indices, title):
                written = tuple(node for node in nodes_written(step) if node in arguments)
                found = (each for each in statements(body) if isinstance(each, CheckPositions))
                checks = tuple(found) if text.checks else ()
                shares = parallel_iterations(step.like or step, nodes)
                merges = merge_reads(body)
                return cls(text, arguments, written, merges, indices, title, shares, checks)
            case HostCall(call, title):
                written = nodes_written(step)
                return cls(text, native_arguments(call), written, title=title, shares=text.shares)
            case _:
                assert_never(step)

    def for_copy(self, first: Kernel, copy: Kernel) -> Launch:
        """Return the launch of a kernel that equals this launch's one but for names."""
        names = dict(zip(first.arguments, copy.arguments, strict=True))
        found = (each for each in statements(copy.body) if isinstance(each, CheckPositions))
        return replace(
            self,
            arguments=copy.arguments,
            written=tuple(names[node] for node in self.written),
            merges=tuple(names[node] for node in self.merges),
            indices=copy.indices,
            title=copy.title,
            checks=tuple(found) if self.text.checks else (),
        )


RunStep = Launch | CallExternal
"""A step of the execution of a routine: a launch, or a call of code that is not generated."""


@dataclass(frozen=True, slots=True)
class RoutineSource:
    """The code of one routine.

    Attributes:
        plan: The plan that it was generated from.
        launches: The launch or call of each of `plan.kernels`.
        text: All of it for readers: a file that compiles.
        language: The language of the text.
    """

    plan: Plan
    launches: tuple[RunStep, ...]
    text: str = field(repr=False)
    language: str

    @classmethod
    def of(
        cls, plan: Plan, rendered: Sequence[KernelText | None], dialect: Dialect
    ) -> RoutineSource:
        """Return the code of a plan.

        Args:
            rendered: The kernel of each of `plan.kernels`, as `render_step` returns it.
        """
        launches = tuple(_launches(plan, rendered))
        distinct = {text.symbol: text for text in rendered if text is not None}
        table = "\n".join(_launch_table(plan, launches, dialect))
        return cls(
            plan, launches, f"{dialect.unit(distinct.values())}\n{table}\n", dialect.language
        )

    @property
    def kernels(self) -> tuple[KernelText, ...]:
        """The distinct kernels, in order of first launch."""
        every = (each.text for each in self.launches if isinstance(each, Launch))
        return tuple({text.symbol: text for text in every}.values())

    @property
    def steps(self) -> tuple[RunStep | RepeatedSteps[RunStep], ...]:
        """The launches and calls in the order of execution, with their repetitions."""
        return with_leaves(self.plan.steps, iter(self.launches))


def _launches(plan: Plan, rendered: Sequence[KernelText | None]) -> Iterator[RunStep]:
    """Yield the launches and calls of a plan."""
    known: IdentityMap[Kernel, Launch] = IdentityMap()
    for step, text in zip(plan.kernels, rendered, strict=True):
        if isinstance(step, HostCall) and text is None:
            yield step.call
        elif isinstance(step, Kernel):
            first = step.like
            original = None if first is None else known.find(first)
            if first is None or original is None:
                known[step] = Launch.of(step, text, plan.nodes)
                yield known[step]
            else:
                yield original.for_copy(first, step)
        else:
            yield Launch.of(step, text, plan.nodes)


_known: ContextVar[IdentityMap[LeafStep, KernelText | None] | None]
_known = ContextVar("_known", default=None)


@contextmanager
def texts_in(known: IdentityMap[LeafStep, KernelText | None]) -> Iterator[None]:
    """Let `render_steps` take the texts of known steps from a map inside, and add new texts."""
    with scoped(_known, known):
        yield


def render_steps(
    kernels: KernelStream, render: Callable[[LeafStep, NodeInfos], KernelText | None]
) -> Iterator[KernelText | None]:
    """Yield the kernel of each step; kernels that are equal but for names share their text, and
    known ones keep theirs.

    Args:
        render: Returns the kernel of a step; None for a call of code that is not generated.
    """
    known = _known.get()
    rendered: IdentityMap[LeafStep, KernelText | None] = IdentityMap() if known is None else known
    for step, nodes in kernels:
        first = step.like if isinstance(step, Kernel) and step.like is not None else step
        if first not in rendered:
            rendered[first] = render(first, nodes)
        yield rendered[first]


def _launch_table(plan: Plan, launches: Iterable[RunStep], dialect: Dialect) -> Iterator[str]:
    """Yield comment lines with the arguments of each launch."""
    names = PrintedNames()
    for node in plan.nodes:  # in the order in which titles name them
        names.node(node)
    numbers = count(1)

    def rows(steps: Iterable[RunStep | RepeatedSteps[RunStep]]) -> Iterator[str]:
        for step in steps:
            match step:
                case RepeatedSteps(index, times, is_reversed, inside):
                    order = ", from the last one" if is_reversed else ""
                    yield f"//   {times} times, as {names.variable(index)}{order}:"
                    yield from rows(inside)
                    yield "//   end"
                case CallExternal(op, inputs, outputs):
                    read, made = (", ".join(map(names.node, each)) for each in (inputs, outputs))
                    yield f"//   {next(numbers):>3}  {_comment(op.name)}({read}) -> {made}"
                case Launch(text, title=title):
                    kernel = f"{text.symbol}{dialect.launch_shape(text)}"
                    remark = f"  {_comment(title)}" if title else ""
                    yield f"//   {next(numbers):>3}  {kernel}{remark}"
                    yield f"//        {', '.join(_given(step, names))}"
                case _:
                    assert_never(step)

    yield f"// {_comment(plan.name)} runs:"
    yield from rows(with_leaves(plan.steps, iter(launches)))


def _given(launch: Launch, names: PrintedNames) -> Iterator[str]:
    """Yield the parameters of a launch with their values."""
    merges = (f"{names.node(node)}.merge" for node in launch.merges)
    for role, values in (
        (NameRole.ARGUMENT, map(names.node, launch.arguments)),
        (NameRole.MERGE, merges),
        (NameRole.STATIC, map(names.variable, launch.indices)),
        (NameRole.PRIVATE, (f"{nbytes} bytes" for nbytes in launch.text.private)),
    ):
        yield from (f"{role.name_of(at)} = {value}" for at, value in enumerate(values))
    if launch.shares is not None:
        counts = (launch.shares.outer, launch.shares.inner)
        extents = [str(sum(run.count for run in runs)) for runs in counts if runs]
        yield f"{' x '.join(extents)} iterations on several threads"


def _comment(text: str) -> str:
    """Return text for a line comment, without line breaks or a final backslash."""
    return " ".join(text.split()).rstrip("\\")
