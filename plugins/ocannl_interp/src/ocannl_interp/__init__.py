"""The reference interpreter of the loop language, as a backend.

It needs nothing but NumPy, runs everywhere, and defines the semantics of loop programs: every other
backend is compared with it. It is slow, so its priority is low.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ocannl_core.backend_api import (
    Buffer,
    Capability,
    Done,
    Event,
    HostBuffer,
    KernelStream,
    MemoryStatistics,
    NodeInfo,
    Target,
    TargetReport,
    hookimpl,
    host_memory_statistics,
    replace,
    settings,
)
from ocannl_interp.memory import ArrayBuffer

if TYPE_CHECKING:
    from ocannl_interp.routine import Interpretation, LoopSource

OCANNL_API = (1, 1)
TARGET = Target(
    "interp",
    description="pure-Python reference interpreter",
    priority=10,
    has_fma=True,
    capabilities=tuple(Capability),
    is_reference=True,
)


@hookimpl
def ocannl_targets() -> TargetReport:
    """Return the number of equal devices that the setting `host_devices` states."""
    count = settings.current().host_devices
    return TargetReport(tuple(replace(TARGET, device=device) for device in range(count)))


@hookimpl
def ocannl_described() -> dict[str, Target]:
    """Return the interpreter as a device that code is generated for."""
    return {"interp": replace(TARGET, has_device=False)}


@hookimpl
def ocannl_generate(kernels: KernelStream, target: Target) -> LoopSource:
    # The selection of a backend imports every plugin; only this one needs the interpreter.
    from ocannl_interp.routine import LoopSource

    return LoopSource(kernels.plan())


@hookimpl
def ocannl_compile(source: LoopSource, target: Target) -> Interpretation:
    from ocannl_interp.routine import Interpretation

    return Interpretation(source.plan)


@hookimpl
def ocannl_allocate(info: NodeInfo, target: Target) -> ArrayBuffer:
    return ArrayBuffer(np.zeros(info.memory_dims, info.memory_numpy), info, target)


@hookimpl
def ocannl_share(buffer: Buffer, target: Target) -> ArrayBuffer | None:
    """Return memory over an array of another backend in this process."""
    array: object = getattr(buffer, "array", None)
    info = buffer.info
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
        return None
    if array.shape != info.memory_dims or array.dtype != info.memory_numpy:
        return None
    return ArrayBuffer(array, info, target)


@hookimpl
def ocannl_transfer(destination: Buffer, source: Buffer) -> Event | None:
    """Copy between arrays of the interpreter, and between them and arrays of the host."""
    served = ArrayBuffer | HostBuffer
    if not isinstance(destination, served) or not isinstance(source, served):
        return None
    np.copyto(destination.array, source.array, casting="no")
    return Done()


@hookimpl
def ocannl_memory_statistics(target: Target) -> MemoryStatistics | None:
    """Return the memory of this machine."""
    return host_memory_statistics()
