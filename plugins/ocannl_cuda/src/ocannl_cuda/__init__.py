"""CUDA devices as a backend of ocannl-core.

This version detects devices and reports obstacles to their use; it generates no CUDA code yet, so
it offers no device.
"""

from __future__ import annotations

import importlib.util

from ocannl_core.backend_api import TargetReport, hookimpl
from ocannl_cuda.driver import Found, NotInstalled, Refused, probe

OCANNL_API = (1, 0)


@hookimpl
def ocannl_targets() -> TargetReport:
    """Return the reason why no device can be used, without initialising one."""
    return report(probe(), pycuda_is_installed=importlib.util.find_spec("pycuda") is not None)


def report(driver: NotInstalled | Refused | Found, *, pycuda_is_installed: bool) -> TargetReport:
    """Return the first obstacle between this machine and a CUDA device.

    Args:
        driver: The result of probing the driver.
        pycuda_is_installed: True if PyCUDA can be imported.
    """
    match driver:
        case NotInstalled(error):
            return TargetReport(
                reason=f"the NVIDIA driver library cannot be loaded: {error}",
                fix="run on a machine with an NVIDIA GPU and its driver",
                details=_details(None, pycuda_is_installed),
            )
        case Refused(call, code, meaning):
            return TargetReport(
                reason=f"the NVIDIA driver does not work: {call} returns {code}, {meaning}",
                fix="`nvidia-smi` lists the devices of the driver",
                details=_details(None, pycuda_is_installed),
            )
        case Found(devices=()):
            return TargetReport(
                reason="the NVIDIA driver is installed and sees no device",
                fix="run on a machine with an NVIDIA GPU; CUDA_VISIBLE_DEVICES may hide devices",
                details=_details(driver, pycuda_is_installed),
            )
        case Found() if not pycuda_is_installed:
            return TargetReport(
                reason="PyCUDA is not installed",
                fix="pip install 'ocannl-cuda[pycuda]'; building it needs the CUDA toolkit",
                details=_details(driver, pycuda_is_installed),
            )
        case Found():
            return TargetReport(
                reason="this version of ocannl-cuda finds devices but generates no CUDA code",
                fix="use another backend: `ocannl backends` lists them",
                details=_details(driver, pycuda_is_installed),
            )


def _details(driver: Found | None, pycuda_is_installed: bool) -> tuple[str, ...]:
    pycuda = "PyCUDA is installed" if pycuda_is_installed else "PyCUDA is not installed"
    if driver is None:
        return (pycuda,)
    major, minor = driver.version
    return (
        f"driver for CUDA {major}.{minor}",
        *(f"device {ordinal}: {name}" for ordinal, name in enumerate(driver.devices)),
        pycuda,
    )
