"""A routine as C: one function per kernel, and the table of their launches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from itertools import count
from typing import assert_never

from ocannl_core.backend_api import (
    CallExternal,
    HostCall,
    Kernel,
    LeafStep,
    NodeInfos,
    Plan,
    PrintedNames,
    RepeatedSteps,
    StaticIndex,
    Step,
    Target,
    TensorNode,
    dataclass,
    merge_reads,
)
from ocannl_core.backend_api.c_family import (
    UNFUSED,
    Dialect,
    KernelText,
    NameRole,
    native_arguments,
    render_kernel,
    render_native,
)
from ocannl_core.backend_api.loops import Block, CheckPositions, statements
from ocannl_core.backend_api.parallel import ParallelIterations, parallel_iterations
from ocannl_core.backend_api.rendering import RenderState
from ocannl_cpu_c.amx import AmxLoops


class ThreadedC(Dialect):
    """C whose large kernels several threads share."""

    partitions_loops = True
    reports_failures = True
    signed_wraps = True

    def device_loops(self, kernel: Kernel, state: RenderState) -> AmxLoops:
        return AmxLoops(self, state)


class UnfusedC(ThreadedC):
    """C of `ThreadedC` for processors without fused multiply-add."""

    required_helpers = frozenset({UNFUSED})


DIALECT = ThreadedC()


def dialect_of(target: Target) -> Dialect:
    """Return the dialect for a device."""
    return DIALECT if target.has_fma else UnfusedC()


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One call of a kernel.

    Attributes:
        kernel: The kernel's symbol.
        arguments: The nodes whose memory it is given.
        merges: The nodes whose merge buffers it is given after the arguments.
        indices: The static indices that it is given after the merge buffers.
        title: A description of the kernel.
        private: The sizes in bytes of the per-thread buffers that it is given after the indices.
        shares: The iterations of a parallel kernel that threads share; their bounds follow.
        checks: The checks that it runs; an integer for their failure is the last argument.
    """

    kernel: str
    arguments: tuple[TensorNode, ...]
    merges: tuple[TensorNode, ...]
    indices: tuple[StaticIndex, ...]
    title: str = ""
    private: tuple[int, ...] = ()
    shares: ParallelIterations | None = None
    checks: tuple[CheckPositions, ...] = ()


@dataclass(frozen=True, slots=True)
class RepeatedCalls:
    """Calls that run several times.

    Attributes:
        index: The static index that has the number of the iteration.
        count: The number of iterations.
        is_reversed: True if they run from the last one to the first.
        steps: The calls of an iteration.
    """

    index: StaticIndex
    count: int
    is_reversed: bool
    steps: tuple[RunStep, ...]

    @property
    def calls_python(self) -> bool:
        """Return True if an iteration calls code that is not C."""
        return any(
            isinstance(step, CallExternal)
            or (isinstance(step, RepeatedCalls) and step.calls_python)
            for step in self.steps
        )


RunStep = KernelCall | CallExternal | RepeatedCalls
"""One step of the execution of a routine."""


@dataclass(frozen=True, slots=True)
class CSource:
    """The code of one routine.

    Attributes:
        plan: The plan that it was generated from.
        kernels: The distinct kernels, in order of first launch.
        steps: Launches and calls out of the loop language, in the order of execution.
        text: All of it for readers: a C file that compiles.
    """

    plan: Plan
    kernels: tuple[KernelText, ...]
    steps: tuple[RunStep, ...]
    text: str = field(repr=False)

    @property
    def language(self) -> str:
        return DIALECT.language


def assemble(plan: Plan, rendered: Sequence[KernelText | None]) -> CSource:
    """Return the C code of a plan.

    Args:
        rendered: The kernel of each of `plan.kernels`, as `kernel_of` returns it.
    """
    kernels: dict[str, KernelText] = {}
    launches: list[KernelCall | CallExternal] = []
    for step, kernel in zip(plan.kernels, rendered, strict=True):
        if kernel is not None:
            kernels.setdefault(kernel.symbol, kernel)
        launches.append(_launch(step, kernel, plan))
    steps = _repeated(plan.steps, iter(launches))
    table = "\n".join(_launch_table(plan, steps))
    return CSource(plan, tuple(kernels.values()), steps, f"{unit(kernels.values())}\n{table}\n")


def _repeated(
    steps: Iterable[Step], launches: Iterator[KernelCall | CallExternal]
) -> tuple[RunStep, ...]:
    """Return the steps of a plan with the launches of its kernels, in order."""
    found: list[RunStep] = []
    for step in steps:
        if isinstance(step, RepeatedSteps):
            order = step.index, step.count, step.is_reversed
            found.append(RepeatedCalls(*order, _repeated(step.steps, launches)))
        else:
            found.append(next(launches))
    return tuple(found)


def kernel_of(step: LeafStep, nodes: NodeInfos, dialect: Dialect = DIALECT) -> KernelText | None:
    """Return the kernel of a step; None for a call of code that is not C.

    Raises:
        CodegenError: for a statement or number format that C cannot express.
    """
    match step:
        case Kernel():
            return render_kernel(step, nodes, dialect)
        case HostCall(call):
            return render_native(call, nodes, dialect)
        case _:
            assert_never(step)


def _launch(step: LeafStep, kernel: KernelText | None, plan: Plan) -> KernelCall | CallExternal:
    """Return the call of a step's kernel."""
    match step:
        case Kernel(body, arguments, indices, title) if kernel is not None:
            merges, dealt = merge_reads(body), parallel_iterations(step.like or step, plan.nodes)
            checks = checks_of(body) if kernel.checks else ()
            return KernelCall(
                kernel.symbol, arguments, merges, indices, title, kernel.private, dealt, checks
            )
        case HostCall(call, title) if kernel is not None:
            return KernelCall(kernel.symbol, native_arguments(call), (), (), title)
        case HostCall(call):
            return call
        case _:
            raise AssertionError("every nest has a kernel")


def checks_of(body: Block) -> tuple[CheckPositions, ...]:
    """Return the checks of positions in the body of a kernel."""
    return tuple(stmt for stmt in statements(body) if isinstance(stmt, CheckPositions))


def unit(kernels: Iterable[KernelText]) -> str:
    """Return a C file with these kernels and their helpers from the prelude."""
    kernels = list(kernels)
    helpers = {helper for kernel in kernels for helper in kernel.helpers}
    return "\n".join([DIALECT.prelude(helpers), *(kernel.text for kernel in kernels)])


def _launch_table(plan: Plan, steps: Iterable[RunStep]) -> Iterator[str]:
    """Yield comment lines with the arguments of each launch."""
    names = PrintedNames()
    for node in plan.nodes:  # in the order in which titles name them
        names.node(node)
    yield f"// {_comment(plan.name)} runs:"
    yield from _launch_rows(steps, names, count(1))


def _launch_rows(
    steps: Iterable[RunStep], names: PrintedNames, numbers: Iterator[int]
) -> Iterator[str]:
    for step in steps:
        if isinstance(step, RepeatedCalls):
            order = ", from the last one" if step.is_reversed else ""
            yield f"//   {step.count} times, as {names.variable(step.index)}{order}:"
            yield from _launch_rows(step.steps, names, numbers)
            yield "//   end"
            continue
        number = next(numbers)
        if isinstance(step, CallExternal):
            inputs, outputs = (
                ", ".join(map(names.node, nodes)) for nodes in (step.inputs, step.outputs)
            )
            yield f"//   {number:>3}  {_comment(step.op.name)}({inputs}) -> {outputs}"
            continue
        given = [
            f"{NameRole.ARGUMENT.name_of(position)} = {names.node(node)}"
            for position, node in enumerate(step.arguments)
        ]
        given += [
            f"{NameRole.MERGE.name_of(position)} = {names.node(node)}.merge"
            for position, node in enumerate(step.merges)
        ]
        given += [
            f"{NameRole.STATIC.name_of(position)} = {names.variable(index)}"
            for position, index in enumerate(step.indices)
        ]
        given += [
            f"{NameRole.PRIVATE.name_of(position)} = {nbytes} bytes"
            for position, nbytes in enumerate(step.private)
        ]
        if step.shares is not None:
            counts = (step.shares.outer, step.shares.inner)
            extents = [str(sum(run.count for run in runs)) for runs in counts if runs]
            given.append(f"{' x '.join(extents)} iterations on several threads")
        title = f"  {_comment(step.title)}" if step.title else ""
        yield f"//   {number:>3}  {step.kernel}{title}"
        yield f"//        {', '.join(given)}"


def _comment(text: str) -> str:
    """Return text for a line comment, without line breaks or a final backslash."""
    return " ".join(text.split()).rstrip("\\")
