"""CUDA devices as targets, and the obstacles to their use."""

from __future__ import annotations

from ocannl_core.backend_api import (
    Capability,
    LaunchLimits,
    Target,
    TargetReport,
    ThreadBlocks,
    replace,
)
from ocannl_cuda.compiler import CudaCompiler, architecture_of
from ocannl_cuda.compilers import INSTALL, Missing
from ocannl_cuda.dialect import DIALECT
from ocannl_cuda.driver_probe import DeviceFacts, Found, NotInstalled, Refused
from ocannl_cuda.matrix_instructions import copies_of, units_of

PRIORITY = 100
_OLDEST = (7, 5)
"""The oldest compute capability that the compilers have code for."""
_THREADS = 256
REGISTERS = 128
"""Registers of a thread; two blocks of 256 threads take all of a multiprocessor."""
MOST_REGISTERS = 255
"""Registers of a thread, at most: for tiles of matrix instructions in small blocks."""
PROCESSOR_REGISTERS = 65536
"""Registers of a multiprocessor."""


def _facts(
    name: str, capability: tuple[int, int], gib: int, processors: int, shared_kib: int, l2_mib: int
) -> DeviceFacts:
    """Return the properties of a device with the limits of its generation."""
    extents = (1024, 1024, 64), ((1 << 31) - 1, 65535, 65535)
    limits = LaunchLimits(1024, *extents, 48 << 10, shared_kib << 10, PROCESSOR_REGISTERS)
    return DeviceFacts(name, capability, gib << 30, processors, l2_mib << 20, limits)


_DESCRIBED = (
    _facts("T4", (7, 5), 16, 40, 64, 4),
    _facts("A100", (8, 0), 80, 108, 163, 40),
    _facts("GeForce RTX 3090", (8, 6), 24, 82, 99, 6),
    _facts("L4", (8, 9), 24, 58, 99, 48),
    _facts("H100", (9, 0), 80, 132, 227, 50),
    _facts("B200", (10, 0), 180, 148, 227, 126),
    _facts("GeForce RTX 5090", (12, 0), 32, 170, 99, 96),
)
"""A device of each generation."""


def report(
    driver: NotInstalled | Refused | Found,
    compiler: CudaCompiler | Missing,
    *,
    pycuda_is_installed: bool,
) -> TargetReport:
    """Return the devices, or the first obstacle between this machine and a device.

    Args:
        driver: The result of probing the driver.
        compiler: The result of searching for a compiler.
        pycuda_is_installed: True if PyCUDA can be imported.
    """
    details = tuple(_details(driver, compiler, pycuda_is_installed))
    problem = _obstacle(driver, compiler, pycuda_is_installed)
    if problem is not None:
        reason, fix = problem
        # a machine without a driver has no devices that another backend would replace
        priority = PRIORITY if isinstance(driver, Found) and driver.devices else 0
        return TargetReport(reason=reason, fix=fix, details=details, priority=priority)
    assert isinstance(driver, Found)
    assert not isinstance(compiler, Missing)
    targets = tuple(
        _target(ordinal, facts, compiler_key(compiler, architecture_of(facts.capability)))
        for ordinal, facts in enumerate(driver.devices)
    )
    return TargetReport(targets, details=details, priority=PRIORITY)


def _obstacle(
    driver: NotInstalled | Refused | Found, compiler: CudaCompiler | Missing, has_pycuda: bool
) -> tuple[str, str] | None:
    """Return a reason and a repair; None if nothing is missing."""
    match driver:
        case NotInstalled(error):
            return (
                f"the NVIDIA driver library cannot be loaded: {error}",
                "run on a machine with an NVIDIA GPU and its driver",
            )
        case Refused(call, code, meaning):
            return (
                f"the NVIDIA driver does not work: {call} returns {code}, {meaning}",
                "`nvidia-smi` lists the devices of the driver",
            )
        case Found(devices=()):
            return (
                "the NVIDIA driver is installed and sees no device",
                "run on a machine with an NVIDIA GPU; CUDA_VISIBLE_DEVICES may hide devices",
            )
        case Found() if not has_pycuda:
            return (
                "PyCUDA is not installed",
                "pip install 'ocannl-cuda[pycuda]'; building it needs the CUDA toolkit",
            )
        case Found(devices=devices) if any(each.capability < _OLDEST for each in devices):
            old = next(each for each in devices if each.capability < _OLDEST)
            oldest = ".".join(map(str, _OLDEST))
            return (
                f"{old.name} has compute capability {'.'.join(map(str, old.capability))}, and "
                f"compilers have code from {oldest} on",
                "hide it: CUDA_VISIBLE_DEVICES lists the devices to use",
            )
        case Found() if isinstance(compiler, Missing):
            return f"there is no compiler of CUDA C++: {'; '.join(compiler.tried)}", INSTALL
        case Found():
            return None


def described() -> dict[str, Target]:
    """Return a device of each generation, by architecture; none need be here."""
    return {
        architecture: replace(_target(0, facts, f"{architecture} described"), has_device=False)
        for facts in _DESCRIBED
        for architecture in [architecture_of(facts.capability)]
    }


def _target(ordinal: int, facts: DeviceFacts, compiler: str) -> Target:
    limits = facts.limits
    most = min(limits.threads, limits.block[0])
    blocks = ThreadBlocks(
        max_threads=most,
        threads=min(_THREADS, most),
        local_bytes=limits.shared_bytes,
        registers=REGISTERS,
        subgroup=32,
        processors=facts.processors,
        vector_bytes=DIALECT.vector_bytes,
        has_shuffles=True,
        asynchronous_copies=copies_of(facts.capability),
        limits=limits,
    )
    return Target(
        "cuda",
        ordinal,
        description=facts.name,
        priority=PRIORITY,
        cores=facts.processors,
        has_fma=True,
        cache_bytes=(facts.cache_bytes,),
        compiler=compiler,
        matrix_units=units_of(facts.capability),
        thread_blocks=blocks,
        capabilities=tuple(Capability),
        survives_forks=False,
    )


def compiler_key(compiler: CudaCompiler, architecture: str) -> str:
    """Return the field `compiler` of a target: the architecture is its first word."""
    kind = "emulated" if compiler.is_emulator else "compiled"
    return f"{architecture} {kind} by {compiler.name}"


def architecture_in(target: Target) -> str:
    """Return the architecture for which code of a target is compiled."""
    return target.compiler.partition(" ")[0]


def is_emulated(target: Target) -> bool:
    """Return True if a target's device is emulated."""
    return target.compiler.partition(" ")[2].startswith("emulated")


def _details(
    driver: NotInstalled | Refused | Found, compiler: CudaCompiler | Missing, has_pycuda: bool
) -> list[str]:
    lines: list[str] = []
    if isinstance(driver, Found):
        major, minor = driver.version
        lines.append(f"driver for CUDA {major}.{minor}")
        for ordinal, facts in enumerate(driver.devices):
            capability = ".".join(map(str, facts.capability))
            lines.append(
                f"device {ordinal}: {facts.name}, compute capability {capability}, "
                f"{facts.processors} multiprocessors, {facts.nbytes / 2**30:.1f} GiB"
            )
    lines.append("PyCUDA is installed" if has_pycuda else "PyCUDA is not installed")
    lines.append("no compiler" if isinstance(compiler, Missing) else f"compiler {compiler.name}")
    return lines
