"""The CPU backend: generated C, compiled at run time, cached on disk, called through cffi.

Importing this module needs no compiler; it is searched for when devices are listed or code is
compiled.
"""

from __future__ import annotations

from ocannl_core.backend_api import (
    Buffer,
    Event,
    KernelStream,
    MemoryStatistics,
    NodeInfo,
    Target,
    TargetReport,
    hookimpl,
    host_memory_statistics,
    replace,
)
from ocannl_core.backend_api.launches import RoutineSource
from ocannl_cpu_c import devices, loader, memory
from ocannl_cpu_c.executable import CExecutable
from ocannl_cpu_c.own_settings import CSettings

OCANNL_API = (1, 1)
OCANNL_SETTINGS = CSettings
OCANNL_SOURCE = RoutineSource
"""The class of sources that later processes may read from disk."""


@hookimpl
def ocannl_targets() -> TargetReport:
    """Return this machine's processor, or the reason why no C compiler can be used."""
    report = devices.report()
    if not report.targets:
        return report
    loader.prepare()
    return replace(report, details=(*report.details, loader.check_state()))


@hookimpl
def ocannl_described() -> dict[str, Target]:
    """Return processors that this machine need not have, by the names that compilers have."""
    return devices.DESCRIBED


@hookimpl
def ocannl_generate(kernels: KernelStream, target: Target) -> RoutineSource:
    """Return the C code of a routine, and start compilers on its kernels."""
    from ocannl_cpu_c.code_generation import generate

    return generate(kernels, target)


@hookimpl
def ocannl_compile(source: RoutineSource, target: Target) -> CExecutable:
    """Return the routine compiled; kernels that the cache holds are not compiled again."""
    return CExecutable.load(source, target)


@hookimpl
def ocannl_allocate(info: NodeInfo, target: Target) -> memory.CBuffer:
    """Return zeroed memory of this process."""
    return memory.allocate(info, target)


@hookimpl
def ocannl_share(buffer: Buffer, target: Target) -> memory.CBuffer | None:
    """Return memory over an array of another backend in this process."""
    return memory.shared(buffer, target)


@hookimpl
def ocannl_transfer(destination: Buffer, source: Buffer) -> Event | None:
    """Copy between arrays of this backend and of the host."""
    return memory.transfer(destination, source)


@hookimpl
def ocannl_memory_statistics(target: Target) -> MemoryStatistics | None:
    """Return the memory of this machine."""
    return host_memory_statistics()
