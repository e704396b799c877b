"""CUDA devices as a backend of ocannl-core.

Kernels are CUDA C++, compiled for the exact architecture of the device, and run through PyCUDA.
Calls enqueue work on a stream and return; transfers to the host wait for it. Importing this module
needs neither PyCUDA nor a driver nor a compiler: they are searched for when devices are listed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ocannl_core.backend_api import (
    Buffer,
    DeviceError,
    Event,
    KernelStream,
    Launcher,
    MemoryStatistics,
    NodeInfo,
    Target,
    TargetReport,
    hookimpl,
)
from ocannl_core.backend_api.launches import RoutineSource
from ocannl_cuda import compilers, driver_probe, targets
from ocannl_cuda.array_memory import allocator
from ocannl_cuda.own_settings import CudaSettings
from ocannl_cuda.source import generate
from ocannl_cuda.user_streams import on_stream

if TYPE_CHECKING:
    from ocannl_cuda.executable import CudaExecutable
    from ocannl_cuda.memory import CudaBuffer

__all__ = [
    "OCANNL_API",
    "OCANNL_SETTINGS",
    "OCANNL_SOURCE",
    "OCANNL_STAGES_UPLOADS",
    "allocator",
    "on_stream",
]

OCANNL_API = (1, 1)
OCANNL_SETTINGS = CudaSettings
OCANNL_SOURCE = RoutineSource
"""The class of sources that later processes may read from disk."""
_LIBRARIES = ("pycuda._driver", "ocannl_cuda.driver_calls")
"""The modules of the errors that the driver causes."""
OCANNL_STAGES_UPLOADS = True
"""Copies from the host go through memory of this backend, on the stream of the kernels."""


@hookimpl
def ocannl_targets() -> TargetReport:
    """Return the devices of the driver, or the first obstacle to their use; no context is made."""
    return targets.report(
        driver_probe.installed(),
        compilers.search(_newest_major()),
        pycuda_is_installed=importlib.util.find_spec("pycuda") is not None,
    )


@hookimpl
def ocannl_device_error(error: BaseException) -> DeviceError | None:
    """Return the failure of a device in an error of the driver that no call has explained."""
    from ocannl_cuda.device import failure_in

    kind = failure_in(str(error)) if type(error).__module__ in _LIBRARIES else None
    return None if kind is None else DeviceError(kind, found=str(error))


@hookimpl
def ocannl_memory_statistics(target: Target) -> MemoryStatistics:
    """Return the memory of a device as the driver counts it."""
    from ocannl_cuda.device import device_of

    return device_of(target).memory_statistics()


@hookimpl
def ocannl_time_launch(launcher: Launcher, values: Sequence[int], target: Target) -> float:
    """Return the time of a launch between two events of the device."""
    from ocannl_cuda.device import device_of

    return device_of(target).time(lambda: launcher(values))


@hookimpl
def ocannl_described() -> dict[str, Target]:
    """Return a device of each architecture, such as `sm_80`."""
    return targets.described()


@hookimpl
def ocannl_generate(kernels: KernelStream, target: Target) -> RoutineSource:
    """Return the CUDA C++ of a routine."""
    blocks = target.thread_blocks
    return generate(kernels, None if blocks is None else blocks.limits)


@hookimpl
def ocannl_compile(source: RoutineSource, target: Target) -> CudaExecutable:
    """Return the routine compiled for the architecture of the target; needs no device."""
    from ocannl_cuda.executable import CudaExecutable

    compiler = compilers.find(_newest_major())
    return CudaExecutable.compiled(source, target, compiler, targets.architecture_in(target))


@hookimpl
def ocannl_allocate(info: NodeInfo, target: Target) -> CudaBuffer:
    """Return zeroed memory of the device."""
    from ocannl_cuda import memory

    return memory.allocate(info, target)


@hookimpl
def ocannl_import(array: object, target: Target) -> CudaBuffer | None:
    """Return memory of another library: DLPack, or `__cuda_array_interface__`."""
    from ocannl_cuda import memory

    return memory.imported(array, target)


@hookimpl
def ocannl_transfer(destination: Buffer, source: Buffer) -> Event | None:
    """Copy within a device, between two of them, and between one and arrays of the host."""
    from ocannl_cuda import memory

    return memory.transfer(destination, source)


@hookimpl
def ocannl_synchronize(target: Target) -> bool:
    """Wait for all work of the device."""
    from ocannl_cuda.device import device_of

    device_of(target).synchronize()
    return True


@hookimpl
def ocannl_record_event(target: Target) -> Event:
    """Return the point after all work submitted to the device so far."""
    from ocannl_cuda import memory

    return memory.recorded(target)


@hookimpl
def ocannl_wait_event(event: Event, target: Target) -> bool | None:
    """Let later work of the device begin after an event of a CUDA device, this one or another."""
    from ocannl_cuda import memory

    return memory.wait_event(event, target)


def _newest_major() -> int | None:
    """Return the newest major version of CUDA that the driver supports; None without a driver."""
    driver = driver_probe.installed()
    return driver.version[0] if isinstance(driver, driver_probe.Found) else None
