"""OpenCL devices as a backend of ocannl-core.

Kernels are OpenCL C, compiled by the driver of the device when a routine is compiled. Calls enqueue
work and return; transfers to the host wait for it.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from ocannl_core.backend_api import (
    Buffer,
    DeviceError,
    Event,
    KernelStream,
    MemoryStatistics,
    NodeInfo,
    Target,
    TargetReport,
    hookimpl,
)
from ocannl_core.backend_api.launches import RoutineSource
from ocannl_opencl.source import generate

if TYPE_CHECKING:
    from ocannl_opencl.executable import OpenCLExecutable
    from ocannl_opencl.memory import OpenCLBuffer

OCANNL_API = (1, 1)
OCANNL_SOURCE = RoutineSource
"""The class of sources that later processes may read from disk."""


@hookimpl
def ocannl_targets() -> TargetReport:
    """Return the devices of all OpenCL platforms, or the reason why there are none."""
    if importlib.util.find_spec("pyopencl") is None:
        return TargetReport(
            reason="PyOpenCL is not installed", fix="pip install 'ocannl-opencl[pocl]'"
        )
    try:
        from ocannl_opencl import devices
    except ImportError as error:  # such as wheels for another major version of NumPy
        return TargetReport(
            reason=f"PyOpenCL cannot be imported: {error}", fix="pip install --upgrade pyopencl"
        )
    return devices.report()


@hookimpl
def ocannl_described() -> dict[str, Target]:
    """Return devices that this machine need not have, by name."""
    from ocannl_opencl.described import DESCRIBED

    return DESCRIBED


@hookimpl
def ocannl_generate(kernels: KernelStream, target: Target) -> RoutineSource:
    """Return the OpenCL C of a routine."""
    blocks = target.thread_blocks
    limits = None if blocks is None else blocks.limits
    return generate(kernels, limits, has_fma=target.has_fma)


@hookimpl
def ocannl_compile(source: RoutineSource, target: Target) -> OpenCLExecutable:
    """Return the routine compiled by the driver of the device."""
    from ocannl_opencl.executable import OpenCLExecutable

    return OpenCLExecutable(source, target)


@hookimpl
def ocannl_allocate(info: NodeInfo, target: Target) -> OpenCLBuffer:
    """Return zeroed memory of the device."""
    from ocannl_opencl import memory

    return memory.allocate(info, target)


@hookimpl
def ocannl_transfer(destination: Buffer, source: Buffer) -> Event | None:
    """Copy between memory of one device, and between the device and arrays of the host."""
    from ocannl_opencl import memory

    return memory.transfer(destination, source)


@hookimpl
def ocannl_synchronize(target: Target) -> bool:
    """Wait for all work of the device."""
    from ocannl_opencl import devices

    devices.device_of(target).queue.finish()
    return True


@hookimpl
def ocannl_record_event(target: Target) -> Event:
    """Return the end of the work submitted to the device so far."""
    from ocannl_opencl import memory

    return memory.record(target)


@hookimpl
def ocannl_wait_event(event: Event, target: Target) -> bool | None:
    """Let later work of the device begin after an event of its platform."""
    from ocannl_opencl import memory

    return memory.wait_for(event, target)


@hookimpl
def ocannl_device_error(error: BaseException) -> DeviceError | None:
    """Return the failure of a device that an error of its driver reports."""
    if not type(error).__module__.startswith("pyopencl"):
        return None
    from ocannl_opencl import devices
    from ocannl_opencl.driver import cl

    return devices.failure_of(error) if isinstance(error, cl.Error) else None


@hookimpl
def ocannl_memory_statistics(target: Target) -> MemoryStatistics | None:
    """Return the memory of a device as its driver counts it, where that states it."""
    from ocannl_opencl import devices

    return devices.memory_statistics(target)
