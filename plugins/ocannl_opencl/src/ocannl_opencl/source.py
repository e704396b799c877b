"""OpenCL C of a routine, and the needs of its launches."""

from __future__ import annotations

import re

from ocannl_core.backend_api import (
    Kernel,
    KernelStream,
    LaunchLimits,
    LaunchNeeds,
    LeafStep,
    NodeInfos,
)
from ocannl_core.backend_api.c_family import render_kernel, render_steps
from ocannl_core.backend_api.launches import KernelText, RoutineSource
from ocannl_opencl.dialect import DIALECT, UNFUSED_DIALECT

_DOUBLE = re.compile(r"\b(?:as_)?double")


def generate(
    kernels: KernelStream, limits: LaunchLimits | None = None, *, has_fma: bool = True
) -> RoutineSource:
    """Return the OpenCL C of a routine; kernels that are equal but for names share their text.

    Args:
        limits: The limits of launches of the device.
        has_fma: True if it has fused multiply-add.

    Raises:
        CodegenError: for a statement or number format that OpenCL C cannot express.
    """
    dialect = (DIALECT if has_fma else UNFUSED_DIALECT).for_limits(limits)

    def render(step: LeafStep, nodes: NodeInfos) -> KernelText | None:
        return render_kernel(step, nodes, dialect) if isinstance(step, Kernel) else None

    rendered = list(render_steps(kernels, render))
    return RoutineSource.of(kernels.plan(), rendered, dialect)


def shape_of(kernel: KernelText) -> tuple[tuple[int, ...], int]:
    """Return the grid of work groups of a kernel, and the work items of each."""
    (threads,) = kernel.block or (1,)
    return kernel.grid or (1,), threads


def needs_of(kernel: KernelText) -> LaunchNeeds:
    """Return the needs of the launch of a kernel."""
    grid, threads = shape_of(kernel)
    return LaunchNeeds(grid, (threads,), kernel.group_bytes, kernel.group_bytes)


def computes_with_doubles(kernel: KernelText) -> bool:
    """Return True if a kernel, or a helper that it calls, mentions a number of float64."""
    return _DOUBLE.search(DIALECT.definitions(kernel.helpers) + kernel.text) is not None
