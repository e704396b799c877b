"""CUDA C++ of a routine, and the needs of its launches."""

from __future__ import annotations

from functools import partial
from math import prod

from ocannl_core.backend_api import (
    Kernel,
    KernelStream,
    LaunchLimits,
    LaunchNeeds,
    LeafStep,
    NodeInfos,
    Target,
    check_launch,
    replace,
)
from ocannl_core.backend_api.c_family import WalkTiles, render_step, render_steps
from ocannl_core.backend_api.launches import KernelText, Launch, RoutineSource
from ocannl_cuda.dialect import DIALECT, STATIC_SHARED_BYTES, Cuda
from ocannl_cuda.targets import MOST_REGISTERS, PROCESSOR_REGISTERS, REGISTERS


def generate(kernels: KernelStream, limits: LaunchLimits | None = None) -> RoutineSource:
    """Return the CUDA C++ of a routine; kernels that differ only in names share their text.

    Args:
        limits: The limits of launches of the device.

    Raises:
        CodegenError: for a statement or number format that CUDA C++ cannot express.
    """
    dialect = DIALECT.for_limits(limits)
    rendered = list(render_steps(kernels, partial(_kernel_of, dialect=dialect)))
    return RoutineSource.of(kernels.plan(), rendered, dialect)


def check_launches(source: RoutineSource, target: Target) -> None:
    """Check that a device runs all launches of a routine.

    Raises:
        LaunchLimitError: if it does not.
    """
    limits = None if target.thread_blocks is None else target.thread_blocks.limits
    for launch in source.launches:
        if isinstance(launch, Launch):
            check_needs(launch, needs_of(launch.text), limits, str(target))


def check_needs(
    launch: Launch, needs: LaunchNeeds, limits: LaunchLimits | None, device: str
) -> None:
    """Check that a device runs a launch.

    Raises:
        LaunchLimitError: if it does not.
    """
    text, title = launch.text, launch.title
    where = text.author or f"kernel {text.symbol}, {title}"
    check_launch(needs, limits, device, where, title, is_stated=bool(text.author))


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
    text = render_step(step, nodes, dialect)
    schedule = step.schedule if isinstance(step, Kernel) else ()
    walks = [each for each in schedule if isinstance(each, WalkTiles)]
    registers = MOST_REGISTERS if any(each.on_tiles for each in walks) else REGISTERS
    return None if text is None else _with_launch_bounds(text, registers, has_tiles=bool(walks))


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
