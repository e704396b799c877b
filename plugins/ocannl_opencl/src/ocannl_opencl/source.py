"""A routine as OpenCL C: its distinct kernels, and the launches in order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from typing import assert_never

from ocannl_core.backend_api import (
    CallExternal,
    HostCall,
    IdentityMap,
    Kernel,
    KernelStream,
    LaunchLimits,
    LaunchNeeds,
    Plan,
    RepeatedSteps,
    StaticIndex,
    Step,
    TensorNode,
    dataclass,
    merge_reads,
)
from ocannl_core.backend_api.c_family import KernelText, render_kernel
from ocannl_core.backend_api.loops import CheckPositions, statements
from ocannl_opencl.dialect import DIALECT, UnfusedOpenCL

_DOUBLE = re.compile(r"\b(?:as_)?double")


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a kernel.

    Attributes:
        kernel: The kernel's symbol.
        grid: The extents of the grid of work groups.
        threads: The work items of each.
        arguments: The nodes whose memory it is given.
        merges: The nodes whose merge buffers it is given after the arguments.
        indices: The static indices that it is given after the merge buffers.
        checks: The checks that it runs; an integer for their failure is the last argument.
        title: A description of the kernel.
        shared_bytes: The bytes of memory that the work items of a group share.
    """

    kernel: str
    grid: tuple[int, ...]
    threads: int
    arguments: tuple[TensorNode, ...]
    merges: tuple[TensorNode, ...]
    indices: tuple[StaticIndex, ...]
    checks: tuple[CheckPositions, ...] = ()
    title: str = ""
    shared_bytes: int = 0

    @property
    def needs(self) -> LaunchNeeds:
        """The needs of the launch."""
        return LaunchNeeds(self.grid, (self.threads,), self.shared_bytes, self.shared_bytes)


@dataclass(frozen=True, slots=True)
class RepeatedLaunches:
    """Launches that run several times.

    Attributes:
        index: The static index that has the number of the iteration.
        count: The number of iterations.
        is_reversed: True if they run from the last one to the first.
        steps: The launches of an iteration.
    """

    index: StaticIndex
    count: int
    is_reversed: bool
    steps: tuple[RunStep, ...]


RunStep = Launch | CallExternal | RepeatedLaunches
"""One step of the execution of a routine."""


@dataclass(frozen=True, slots=True)
class OpenCLSource:
    """The code of one routine.

    Attributes:
        plan: The plan that it was generated from.
        kernels: The distinct kernels, in order of first launch.
        steps: Launches and calls out of the loop language, in the order of execution.
        text: All of it for readers: a program that compiles.
    """

    plan: Plan
    kernels: tuple[KernelText, ...]
    steps: tuple[RunStep, ...]
    text: str = field(repr=False)

    @property
    def language(self) -> str:
        return DIALECT.language


def generate(
    kernels: KernelStream, limits: LaunchLimits | None = None, *, has_fma: bool = True
) -> OpenCLSource:
    """Return the OpenCL C of a routine; kernels that are equal but for names share their text.

    Args:
        limits: The limits of launches of the device.
        has_fma: True if it has fused multiply-add.

    Raises:
        CodegenError: for a statement or number format that OpenCL C cannot express.
    """
    dialect = (DIALECT if has_fma else UnfusedOpenCL()).for_limits(limits)
    rendered: IdentityMap[Kernel, KernelText] = IdentityMap()
    launches: list[Launch | CallExternal] = []
    for step, nodes in kernels:
        match step:
            case HostCall(call):
                launches.append(call)
            case Kernel():
                first = step.like or step
                if first not in rendered:
                    rendered[first] = render_kernel(first, nodes, dialect)
                launches.append(_launch(step, rendered[first]))
            case _:
                assert_never(step)
    plan = kernels.plan()
    distinct = {kernel.symbol: kernel for kernel in rendered.values()}
    steps = _repeated(plan.steps, iter(launches))
    text = unit(distinct.values()) + "".join(f"{row}\n" for row in _rows(steps))
    return OpenCLSource(plan, tuple(distinct.values()), steps, text)


def _launch(step: Kernel, kernel: KernelText) -> Launch:
    """Return the launch of a step by its kernel."""
    checks = tuple(s for s in statements(step.body) if isinstance(s, CheckPositions))
    (threads,) = kernel.block or (1,)
    return Launch(
        kernel.symbol,
        kernel.grid or (1,),
        threads,
        step.arguments,
        merge_reads(step.body),
        step.indices,
        checks if kernel.checks else (),
        step.title,
        kernel.group_bytes,
    )


def _repeated(
    steps: Iterable[Step], launches: Iterator[Launch | CallExternal]
) -> tuple[RunStep, ...]:
    """Return the steps of a plan with the launches of its kernels, in order."""
    found: list[RunStep] = []
    for step in steps:
        if isinstance(step, RepeatedSteps):
            order = step.index, step.count, step.is_reversed
            found.append(RepeatedLaunches(*order, _repeated(step.steps, launches)))
        else:
            found.append(next(launches))
    return tuple(found)


def unit(kernels: Iterable[KernelText]) -> str:
    """Return a program with these kernels and the helpers that they use."""
    kernels = list(kernels)
    helpers = {helper for kernel in kernels for helper in kernel.helpers}
    return "\n".join([DIALECT.prelude(helpers), *(kernel.text for kernel in kernels)])


def computes_with_doubles(kernel: KernelText) -> bool:
    """Return True if a kernel, or a helper that it calls, mentions a number of float64."""
    return _DOUBLE.search(DIALECT.definitions(kernel.helpers) + kernel.text) is not None


def _rows(steps: Sequence[RunStep], margin: str = "//   ") -> Iterator[str]:
    """Yield comment lines with the launches."""
    for step in steps:
        match step:
            case Launch(kernel, grid, threads, title=title):
                blocks = " x ".join(map(str, (*grid, threads)))
                yield f"{margin}{kernel}: {blocks}  {_comment(title)}".rstrip()
            case CallExternal(op):
                yield f"{margin}{_comment(op.name)} on the host"
            case RepeatedLaunches(_, count, is_reversed, inside):
                yield f"{margin}{count} times{', from the last one' if is_reversed else ''}:"
                yield from _rows(inside, f"{margin}  ")
            case _:
                assert_never(step)


def _comment(text: str) -> str:
    """Return text for a line comment, without line breaks or a final backslash."""
    return " ".join(text.split()).rstrip("\\")
