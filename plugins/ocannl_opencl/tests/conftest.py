"""Fixtures of the tests on OpenCL devices; without one, these tests are skipped."""

from __future__ import annotations

import pytest

import ocannl_opencl
from ocannl_core.backend import manager


@pytest.fixture(autouse=True, scope="session")
def opencl_device() -> str:
    """Return a device, of the plugin in this repository where it is not installed."""
    report = ocannl_opencl.ocannl_targets()
    if not report.targets:
        pytest.skip(f"no OpenCL device: {report.reason}")
    if "opencl" not in {backend.name for backend in manager.load_all()}:
        manager.register("opencl", ocannl_opencl)
    return "opencl"
