"""CPUs as a backend: generated C, compiled on the spot, cached on disk, called through cffi.

Importing this module needs no compiler; it is looked for when devices are asked for or code is
compiled.
"""

from __future__ import annotations

from ocannl_core.hooks.specs import hookimpl
from ocannl_core.kernels.stream import KernelStream
from ocannl_core.node import NodeInfo
from ocannl_core.target import Buffer, Event, Target, TargetReport
from ocannl_cpu_c import devices, loader, memory
from ocannl_cpu_c.code_generation import generate
from ocannl_cpu_c.executable import CExecutable
from ocannl_cpu_c.source import CSource

OCANNL_API = (1, 0)
OCANNL_SOURCE = CSource
"""What later processes may read from disk."""


@hookimpl
def ocannl_targets() -> TargetReport:
    """Returns this machine's processor, or why no C compiler can be used."""
    report = devices.report()
    if report.targets:
        loader.prepare()
    return report


@hookimpl
def ocannl_generate(kernels: KernelStream, target: Target) -> CSource:
    """Return the C code of a routine, and start compilers on its kernels."""
    return generate(kernels)


@hookimpl
def ocannl_compile(source: CSource, target: Target) -> CExecutable:
    """Returns the routine compiled; kernels that the cache holds are not compiled again."""
    return CExecutable.compiled(source, target)


@hookimpl
def ocannl_allocate(info: NodeInfo, target: Target) -> memory.CBuffer:
    """Returns zeroed memory of this process."""
    return memory.allocate(info, target)


@hookimpl
def ocannl_transfer(destination: Buffer, source: Buffer) -> Event | None:
    """Copies between arrays of this backend and of the host."""
    return memory.transfer(destination, source)


@hookimpl
def ocannl_synchronize(target: Target) -> bool:
    """Returns at once: a routine has finished when its call returns."""
    return True
