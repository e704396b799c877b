"""OpenCL devices: their targets and queues; the devices of a platform share a context."""

from __future__ import annotations

import hashlib
import warnings
from contextlib import suppress
from functools import cache
from typing import Any

from ocannl_core.backend_api import (
    Capability,
    DeviceError,
    DeviceFailure,
    LaunchLimits,
    LinkError,
    MemoryStatistics,
    Target,
    TargetReport,
    ThreadBlocks,
    dataclass,
    host_memory_statistics,
    settings,
)
from ocannl_core.backend_api.files import ObjectCache, object_cache
from ocannl_opencl.dialect import DIALECT
from ocannl_opencl.driver import POCL_FAULT, cl

BACKEND = "opencl"
PRIORITY = 20
_DOUBLES = "cl_khr_fp64"
_EMPTY = hashlib.sha256(b"").hexdigest()
"""The key of the empty program."""
_LANGUAGE, _ROUNDING = "-cl-std=CL1.2", "-cl-fp32-correctly-rounded-divide-sqrt"


@dataclass(frozen=True, slots=True)
class OpenCLDevice:
    """A device with the queue that runs all of its work in order.

    Attributes:
        device: The device of PyOpenCL.
        context: The context of its platform. Devices of one context copy to each other, and wait
            for each other's events.
    """

    device: Any
    context: Any
    queue: Any

    @property
    def has_doubles(self) -> bool:
        """True if kernels may compute with numbers of float64."""
        return has_doubles(self.device)

    @property
    def options(self) -> list[str]:
        """The options of the compiler: quotients and roots are rounded as IEEE defines, if the
        device can.
        """
        return [_LANGUAGE, *[_ROUNDING] * rounds_quotients(self.device)]


def has_doubles(device: Any) -> bool:
    return _DOUBLES in device.extensions.split()


def rounds_quotients(device: Any) -> bool:
    return bool(device.single_fp_config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT)


def report() -> TargetReport:
    """Return all devices whose driver compiles, or the reason why there are none."""
    try:
        found = _all_devices()
    except cl.Error as error:
        return TargetReport(
            reason=f"no OpenCL platform can be used: {error}",
            fix="install a driver, or PoCL: pip install 'ocannl-opencl[pocl]'",
        )
    usable = _usable()
    if not usable:
        return TargetReport(
            reason="; ".join(_problem(device) for device in found) or "no devices",
            fix="install a driver, or another PoCL: pip install 'ocannl-opencl[pocl]', or the "
            "package of the system",
        )
    targets = tuple(_target(number, device) for number, device in enumerate(usable))
    details = tuple(
        f"device {number}: {device.name.strip()}, {device.platform.version.strip()}"
        + ("" if has_doubles(device) else "; no numbers of float64")
        + ("" if rounds_quotients(device) else "; float32: a / b within 2.5 ulp, sqrt within 3")
        for number, device in enumerate(usable)
    )
    return TargetReport(targets, details=(f"pyopencl {cl.VERSION_TEXT}", *details))


def _all_devices() -> list[Any]:
    return [device for platform in cl.get_platforms() for device in platform.get_devices()]


def _target(number: int, device: Any) -> Target:
    is_gpu = bool(device.type & cl.device_type.GPU)
    limits = _limits(device)
    most = min(limits.threads, limits.block[0])
    blocks = ThreadBlocks(
        max_threads=most,
        threads=min(most, 256 if is_gpu else 64),
        local_bytes=limits.shared_bytes,
        processors=int(device.max_compute_units),
        subgroup=32 if is_gpu else 1,
        vector_bytes=DIALECT.vector_bytes,
        # compilers for processors turn threads into loops: PoCL 3 loses values where only some
        # blocks meet
        has_conditional_barriers=is_gpu,
        limits=limits,
    )
    return Target(
        BACKEND,
        number,
        description=device.name.strip(),
        priority=PRIORITY,
        cores=int(device.max_compute_units),
        has_fma=bool(device.single_fp_config & cl.device_fp_config.FMA),
        cache_bytes=(int(device.global_mem_cache_size),),
        compiler=f"{device.platform.version.strip()} {device.driver_version.strip()}",
        thread_blocks=blocks,
        capabilities=tuple(Capability),
        survives_forks=False,
    )


def _limits(device: Any) -> LaunchLimits:
    """Return the limits of launches of a device; of registers OpenCL states none."""
    threads, local_bytes = int(device.max_work_group_size), int(device.local_mem_size)
    x, y, z, *_ = (*map(int, device.max_work_item_sizes), 1, 1)
    # work items along an axis are counted in the words of the device
    blocks = (2 ** int(device.address_bits) - 1) // threads
    grid = blocks, blocks, blocks
    return LaunchLimits(threads, (x, y, z), grid, local_bytes, local_bytes)


@cache
def _usable() -> tuple[Any, ...]:
    return tuple(device for device in _all_devices() if not _problem(device))


@cache
def _problem(device: Any) -> str:
    """Return the reason why a device cannot be used; empty if it can."""
    name = device.name.strip()
    if POCL_FAULT and "PoCL" in device.platform.version:
        return f"PoCL, the driver of {name}, has {POCL_FAULT}"
    if not _compiles(device):
        # PoCL does, on processors that its compiler does not know
        return f"the driver of {name} refuses every program"
    return ""


def _compiles(device: Any) -> bool:
    """Return True if the driver compiles an empty program; the answer of a driver that does is
    kept on disk, as it takes a tenth of a second.
    """
    with suppress(OSError):
        known = programs(device)
        if known.find(_EMPTY) is not None:
            return True
        if _compiles_now(device):
            known.add([_EMPTY], b"")
            return True
        return False
    return _compiles_now(device)


def programs(device: Any) -> ObjectCache:
    """Return the compiled programs of a device on disk.

    Raises:
        OSError: if they cannot be kept anywhere.
    """
    driver = (device.platform.version, device.driver_version, device.name)
    identity = hashlib.sha256(repr(driver).encode()).hexdigest()[:32]
    return object_cache(settings.cache_directory(), "opencl", identity, ".bin")


def _compiles_now(device: Any) -> bool:
    with warnings.catch_warnings():
        # `compile` does without PyOpenCL's own cache, and warns of that
        warnings.simplefilter("ignore")
        try:
            cl.Program(cl.Context([device]), " ").compile()
        except cl.Error:
            return False
    return True


@cache
def _context(platform: Any) -> Any:
    return cl.Context([device for device in _usable() if device.platform == platform])


_FAILURES = {
    cl.status_code.DEVICE_NOT_AVAILABLE: DeviceFailure.LOST,
    cl.status_code.INVALID_COMMAND_QUEUE: DeviceFailure.LOST,
    cl.status_code.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST: DeviceFailure.FAULT,
    -9999: DeviceFailure.FAULT,  # of NVIDIA: an access out of bounds
}
"""The failures that codes of drivers report; a queue that was valid is invalid after a reset."""
_WAITS = ("clFinish", "clWaitForEvents", "clEnqueueReadBuffer", "clFlush")
"""The functions that report failures of earlier work."""


@cache
def _device(number: int) -> OpenCLDevice:
    device = _usable()[number]
    context = _context(device.platform)
    return OpenCLDevice(device, context, cl.CommandQueue(context, device))


def failure_of(error: cl.Error) -> DeviceError | None:
    """Return the failure of a device that an error of its driver reports, or None."""
    kind = _FAILURES.get(error.code)
    if error.code == cl.status_code.OUT_OF_RESOURCES and error.routine in _WAITS:
        kind = DeviceFailure.FAULT  # as NVIDIA's driver reports an access out of bounds
    return None if kind is None else DeviceError(kind, found=str(error))


def memory_statistics(target: Target) -> MemoryStatistics | None:
    """Return the memory of a device whose driver states the free part: an extension of AMD; memory
    of this machine for devices that use it.
    """
    device = device_of(target).device
    if device.host_unified_memory and device.type & cl.device_type.CPU:
        return host_memory_statistics()
    try:
        free, *_ = device.global_free_memory_amd
    except (AttributeError, cl.Error):
        return None
    return MemoryStatistics(device.global_mem_size, min(1024 * free, device.global_mem_size))


def device_of(target: Target) -> OpenCLDevice:
    """Return the device that a target describes.

    Raises:
        LinkError: if this machine does not have it.
    """
    try:
        return _device(target.device)
    except (cl.Error, IndexError) as error:
        raise LinkError(
            "A target of this backend is a device of this machine.",
            found=f"{target}, which cannot be opened: {error}",
            fix="`ocannl backends` lists the devices",
        ) from None
