"""The devices of this machine that are usable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ocannl_core import settings

cl = pytest.importorskip("pyopencl")
devices = pytest.importorskip("ocannl_opencl.devices")


@pytest.fixture
def tried(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The devices whose driver was tried, with an empty cache."""
    found: list[Any] = []
    original = devices._compiles_now
    monkeypatch.setattr(devices, "_compiles_now", lambda d: found.append(d) or original(d))
    with settings.overrides(cache_dir=str(tmp_path / "cache")):
        yield found


def usable() -> Any:
    return devices._usable()[0]


def test_that_a_driver_compiles_is_found_out_once(tried: list[Any]) -> None:
    device = usable()
    assert devices._compiles(device)
    assert devices._compiles(device)
    assert tried == [device]


def test_a_device_whose_driver_compiles_nothing_is_not_usable(
    tried: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = usable()

    def refuse(*_: object) -> None:
        raise cl.LogicError("clCompileProgram failed: COMPILE_PROGRAM_FAILURE")

    monkeypatch.setattr(cl.Program, "compile", refuse)
    devices._usable.cache_clear()
    devices._problem.cache_clear()
    try:
        report = devices.report()
    finally:
        devices._usable.cache_clear()
        devices._problem.cache_clear()
    assert not report.targets
    assert f"the driver of {device.name.strip()} refuses every program" in report.reason
    assert "another PoCL" in report.fix
    assert not devices._compiles(device)  # a refusal is not kept: the driver may be repaired
    monkeypatch.undo()
    assert devices._compiles_now(device)
