"""A routine as CUDA C++: one kernel per launch, and the table of launches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from itertools import count
from math import prod
from typing import assert_never

from ocannl_core.backend_api import (
    HostCall,
    IdentityMap,
    Kernel,
    KernelStream,
    LaunchLimits,
    LaunchNeeds,
    LeafStep,
    NodeInfos,
    Plan,
    PrintedNames,
    RepeatedSteps,
    Step,
    Target,
    check_launch,
    dataclass,
    merge_reads,
    replace,
)
from ocannl_core.backend_api.c_family import (
    KernelText,
    NameRole,
    WalkTiles,
    native_arguments,
    render_kernel,
    render_native,
)
from ocannl_cuda.dialect import DIALECT, STATIC_SHARED_BYTES, Cuda
from ocannl_cuda.targets import MOST_REGISTERS, PROCESSOR_REGISTERS, REGISTERS


@dataclass(frozen=True, slots=True)
class CudaSource:
    """The code of one routine.

    Attributes:
        plan: The plan that it was generated from.
        kernels: The distinct kernels, in order of first launch.
        launched: The symbol of the kernel of each of `plan.kernels`; None for a call of Python.
        text: All of it for readers: a file that compiles.
    """

    plan: Plan
    kernels: tuple[KernelText, ...]
    launched: tuple[str | None, ...]
    text: str = field(repr=False)

    @property
    def language(self) -> str:
        return DIALECT.language


def generate(kernels: KernelStream, limits: LaunchLimits | None = None) -> CudaSource:
    """Return the CUDA C++ of a routine; kernels that differ only in names share their text.

    Args:
        limits: The limits of launches of the device.

    Raises:
        CodegenError: for a statement or number format that CUDA C++ cannot express.
    """
    dialect = DIALECT.for_limits(limits)
    rendered: IdentityMap[LeafStep, KernelText | None] = IdentityMap()
    texts: list[KernelText | None] = []
    for step, nodes in kernels:
        first = step.like if isinstance(step, Kernel) and step.like is not None else step
        if first not in rendered:
            rendered[first] = _kernel_of(first, nodes, dialect)
        texts.append(rendered[first])
    plan = kernels.plan()
    distinct = {text.symbol: text for text in texts if text is not None}
    launched = tuple(None if text is None else text.symbol for text in texts)
    table = "\n".join(_launch_table(plan, launched, distinct))
    every = tuple(distinct.values())
    return CudaSource(plan, every, launched, f"{unit(every)}\n{table}\n")


def unit(kernels: Iterable[KernelText]) -> str:
    """Return a translation unit with these kernels and the helpers that they use."""
    kernels = list(kernels)
    helpers = {helper for kernel in kernels for helper in kernel.helpers}
    return "\n".join([DIALECT.prelude(helpers), *(kernel.text for kernel in kernels)])


def check_launches(source: CudaSource, target: Target) -> None:
    """Check that a device runs all launches of a routine.

    Raises:
        LaunchLimitError: if it does not.
    """
    limits = None if target.thread_blocks is None else target.thread_blocks.limits
    texts = {kernel.symbol: kernel for kernel in source.kernels}
    for symbol, step in zip(source.launched, source.plan.kernels, strict=True):
        if symbol is not None:
            check_step(step, texts[symbol], needs_of(texts[symbol]), limits, str(target))


def check_step(
    step: LeafStep, text: KernelText, needs: LaunchNeeds, limits: LaunchLimits | None, device: str
) -> None:
    """Check that a device runs the launch of a step.

    Raises:
        LaunchLimitError: if it does not.
    """
    where = text.author or f"kernel {text.symbol}, {step.title}"
    check_launch(needs, limits, device, where, step.title, is_stated=bool(text.author))


def needs_of(text: KernelText, registers: int = 0) -> LaunchNeeds:
    """Return the needs of the launch of a kernel.

    Args:
        registers: The registers of a thread, as far as it is compiled.
    """
    declared = text.group_bytes if text.group_bytes <= STATIC_SHARED_BYTES else 0
    grid = (1,) if text.tensor_maps else text.grid  # any number of blocks runs the grid
    return LaunchNeeds(grid, text.block, declared, text.group_bytes, registers)


def _kernel_of(step: LeafStep, nodes: NodeInfos, dialect: Cuda) -> KernelText | None:
    """Return the kernel of a step; None for a call of code that is not CUDA C++."""
    match step:
        case Kernel():
            walks = [each for each in step.schedule if isinstance(each, WalkTiles)]
            registers = MOST_REGISTERS if any(each.on_tiles for each in walks) else REGISTERS
            text = render_kernel(step, nodes, dialect)
            return _with_launch_bounds(text, registers, has_tiles=bool(walks))
        case HostCall(call):
            native = render_native(call, nodes, dialect)
            return None if native is None else _with_launch_bounds(native)
        case _:
            assert_never(step)


def _with_launch_bounds(
    kernel: KernelText, registers: int = REGISTERS, *, has_tiles: bool = False
) -> KernelText:
    """Return a kernel that states the threads of its blocks: their number limits its registers.

    One that holds tiles also states the blocks that run together, by which the compiler may use
    as many registers as the schedule has counted.
    """
    threads = prod(kernel.block)
    has_tiles |= any(each.startswith("multiply_add_") for each in kernel.helpers)
    together = f", {max(1, PROCESSOR_REGISTERS // (registers * threads))}" if has_tiles else ""
    if kernel.tensor_maps:  # persistent blocks have a multiprocessor for themselves
        together = ", 1"
    bounds = f"__global__ void __launch_bounds__({threads}{together})"
    return replace(kernel, text=kernel.text.replace("__global__ void", bounds, 1))


def _launch_table(
    plan: Plan, launched: Sequence[str | None], kernels: dict[str, KernelText]
) -> Iterator[str]:
    """Yield comment lines with the arguments of each launch."""
    names = PrintedNames()
    for node in plan.nodes:  # in the order in which titles name them
        names.node(node)
    yield f"// {_comment(plan.name)} runs:"
    yield from _rows(plan.steps, iter(launched), kernels, names, count(1))


def _rows(
    steps: Iterable[Step],
    launched: Iterator[str | None],
    kernels: dict[str, KernelText],
    names: PrintedNames,
    numbers: Iterator[int],
) -> Iterator[str]:
    for step in steps:
        if isinstance(step, RepeatedSteps):
            order = ", from the last one" if step.is_reversed else ""
            yield f"//   {step.count} times, as {names.variable(step.index)}{order}:"
            yield from _rows(step.steps, launched, kernels, names, numbers)
            yield "//   end"
            continue
        number, symbol = next(numbers), next(launched)
        match step:
            case HostCall(call) if symbol is None:
                inputs, outputs = (
                    ", ".join(map(names.node, nodes)) for nodes in (call.inputs, call.outputs)
                )
                yield f"//   {number:>3}  {_comment(call.op.name)}({inputs}) -> {outputs}"
                continue
            case HostCall(call):
                given = _given(NameRole.ARGUMENT, map(names.node, native_arguments(call)))
            case Kernel(body, arguments, indices):
                merges = (f"{names.node(node)}.merge" for node in merge_reads(body))
                given = _given(NameRole.ARGUMENT, map(names.node, arguments))
                given += _given(NameRole.MERGE, merges)
                given += _given(NameRole.STATIC, map(names.variable, indices))
            case _:
                assert_never(step)
        assert symbol is not None
        shape = " x ".join(map(str, kernels[symbol].grid or (1,)))
        threads = " x ".join(map(str, kernels[symbol].block or (1,)))
        title = f"  {_comment(step.title)}" if step.title else ""
        yield f"//   {number:>3}  {symbol}<<<{shape}, {threads}>>>{title}"
        yield f"//        {', '.join(given)}"


def _given(role: NameRole, values: Iterable[str]) -> list[str]:
    """Return the parameters of a role with their values."""
    return [f"{role.name_of(position)} = {value}" for position, value in enumerate(values)]


def _comment(text: str) -> str:
    """Return text for a line comment, without line breaks or a final backslash."""
    return " ".join(text.split()).rstrip("\\")
