"""The processor of this machine as a device, or as several, each with its share of the cores."""

from __future__ import annotations

import os
import platform
import shlex
from functools import cache
from pathlib import Path

from ocannl_core.backend_api import Capability, OcannlError, Target, TargetReport, settings
from ocannl_cpu_c import own_settings
from ocannl_cpu_c.compiler import Compiler, find

PRIORITY = 50
_NO_POSIX = "the backend runs compilers and loads their code on Linux and macOS alone"
_INSTEAD = "install ocannl-interp, or run the program in the Windows Subsystem for Linux"
CAPABILITIES = (
    Capability.EXTERNAL_CALLS,
    Capability.MERGE_BUFFERS,
    Capability.POSITION_CHECKS,
    Capability.REPETITIONS,
    Capability.SCATTERS,
    Capability.SEVERAL_DEVICES,
)


def _described(
    arch: str, vector_bytes: int, registers: int, *, has_fma: bool, cores: int = 8
) -> Target:
    return Target(
        "cpu_c",
        description=arch,
        vector_bytes=vector_bytes,
        cores=cores,
        vector_registers=registers,
        has_fma=has_fma,
        cache_bytes=(32 << 10, 1 << 20, 16 << 20) if cores > 1 else (),
        compiler=arch,
        capabilities=CAPABILITIES,
        has_device=False,
    )


DESCRIBED = {
    "portable": _described("portable", 0, 0, has_fma=False),
    "x86-64": _described("x86-64", 16, 16, has_fma=False),
    "x86-64-v3": _described("x86-64-v3", 32, 16, has_fma=True),
    "x86-64-v4": _described("x86-64-v4", 64, 32, has_fma=True),
    "aarch64": _described("aarch64", 16, 32, has_fma=True),
    # engines keep some of the 16 registers of x86-64 for products, addresses and moves
    "wasm32": _described("wasm32", 16, 12, has_fma=False),
    "cortex-m0": _described("cortex-m0", 0, 0, has_fma=False, cores=1),
    "cortex-m4": _described("cortex-m4", 0, 0, has_fma=True, cores=1),
}
"""Processors by the names of compilers for their instruction sets, with 8 cores and caches of
usual sizes. Code for the portable one is plain loops, which any processor runs. The
microcontrollers have one core without caches and vectors: one without instructions for floats, the
other with those for `float32`.
"""


def report() -> TargetReport:
    """Return the processor, or the reason why it cannot be used; never raise."""
    if not hasattr(os, "register_at_fork"):
        return TargetReport(reason=_NO_POSIX, fix=_INSTEAD, priority=PRIORITY)
    try:
        compiler = find()
    except OcannlError as error:
        reason = " ".join(f"{error.rule.rstrip('.')}: {error.found}".split())
        return TargetReport(reason=reason, fix=error.fix, priority=PRIORITY)
    count = settings.current().host_devices
    targets = tuple(target(compiler, device, count) for device in range(count))
    return TargetReport(targets, details=_details(compiler), priority=PRIORITY)


def target(compiler: Compiler, device: int = 0, count: int = 1) -> Target:
    """Return one of `count` equal parts of this machine as a target of a compiler."""
    return Target(
        "cpu_c",
        device,
        description=_processor(),
        priority=PRIORITY,
        vector_bytes=compiler.vector_bytes,
        cores=max(1, processors() // count),
        vector_registers=compiler.vector_registers,
        has_fma=compiler.has_fma,
        matrix_units=compiler.matrix_units,
        cache_bytes=_cache_bytes(),
        compiler=compiler.identity,
        capabilities=CAPABILITIES,
    )


def _details(compiler: Compiler) -> tuple[str, ...]:
    return (
        f"compiler {shlex.join(compiler.command)}, from {compiler.origin}: {compiler.version}",
        f"flags {' '.join(compiler.flags)}",
        f"processor {own_settings.current().arch}: {_abilities(compiler)}",
        f"cache {settings.cache_directory() / 'cpu_c'}",
    )


def _abilities(compiler: Compiler) -> str:
    """Return the vector registers and instructions that code is generated for."""
    if not compiler.vector_bytes:
        return "no vectors"
    fused = "with" if compiler.has_fma else "without"
    count, size = compiler.vector_registers, compiler.vector_bytes
    tiles = f", {compiler.tiles}" if compiler.tiles else ""
    return f"{count} registers of {size} bytes, {fused} fused multiply-adds{tiles}"


def processors() -> int:
    """Return the number of logical processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_CACHES = "/sys/devices/system/cpu/cpu0/cache"  # linux: a missing folder has no files


@cache
def _cache_bytes(folder: str = _CACHES) -> tuple[int, ...]:
    """Return the sizes of the data caches as Linux reports them, nearest first; none elsewhere."""
    sizes: dict[int, int] = {}
    for index in sorted(Path(folder).glob("index*")):
        try:
            kind, level, size = (
                (index / name).read_text(encoding="utf-8").strip()
                for name in ("type", "level", "size")
            )
            unit = {"K": 10, "M": 20, "G": 30}.get(size[-1], 0)
            if kind != "Instruction":
                sizes[int(level)] = int(size.rstrip("KMG")) << unit
        except (OSError, ValueError):
            continue
    return tuple(sizes[level] for level in sorted(sizes))


@cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
