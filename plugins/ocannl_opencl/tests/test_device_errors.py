"""Failures that OpenCL drivers report are failures of the device, and lacks of memory name sizes."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

import ocannl_core as oc
from ocannl_core.backend import manager
from ocannl_core.base.errors import DeviceFailure
from ocannl_core.testing.children import succeeds_in_child
from ocannl_opencl import ocannl_device_error

cl = pytest.importorskip("pyopencl")


def error_of(code: int, routine: str = "clFinish") -> Any:
    record = SimpleNamespace(code=lambda: code, routine=lambda: routine, what=lambda: "failed")
    return cl.RuntimeError(record)


@pytest.mark.parametrize(
    ("code", "routine", "expected"),
    [
        (cl.status_code.DEVICE_NOT_AVAILABLE, "clFinish", DeviceFailure.LOST),
        (cl.status_code.INVALID_COMMAND_QUEUE, "clFlush", DeviceFailure.LOST),
        (-9999, "clEnqueueReadBuffer", DeviceFailure.FAULT),
        (cl.status_code.OUT_OF_RESOURCES, "clFinish", DeviceFailure.FAULT),
        (cl.status_code.OUT_OF_RESOURCES, "clEnqueueNDRangeKernel", None),
        (cl.status_code.INVALID_VALUE, "clFinish", None),
    ],
)
def test_codes_are_classified(code: int, routine: str, expected: DeviceFailure | None) -> None:
    found = ocannl_device_error(error_of(code, routine))
    assert (None if found is None else found.failure) is expected


def test_other_exceptions_are_no_failures_of_devices() -> None:
    assert ocannl_device_error(ValueError("a defect")) is None


def test_a_lack_of_memory_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from ocannl_opencl import memory

    _, target = manager.select("opencl")

    def refuse(*arguments: object) -> None:
        raise cl.MemoryError(SimpleNamespace(code=lambda: -4, routine=str, what=lambda: "full"))

    monkeypatch.setattr(memory.cl, "Buffer", refuse)
    with pytest.raises(MemoryError):
        memory.zeroed(16, target)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_work_in_the_child_of_a_fork_is_refused() -> None:
    """PoCL hangs there."""
    y = oc.tensor([1.0, 2.0]) * 2.0
    ctx = oc.Context("opencl")
    step = ctx.compile(oc.train.forward(y))
    step()

    def run() -> None:
        for work in (step, lambda: ctx[y], ctx.synchronize, lambda: oc.Context("opencl")):
            with pytest.raises(oc.DeviceError, match="the child of a fork"):
                work()

    assert succeeds_in_child(run)
    assert ctx[y].tolist() == [2.0, 4.0]


def test_statistics_are_plausible() -> None:
    backend, target = manager.select("opencl")
    found = backend.memory_statistics(target)
    assert found is None or 0 < found.free <= found.total
