"""The devices of this machine that are usable."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base import settings

cl = pytest.importorskip("pyopencl")
devices = pytest.importorskip("ocannl_opencl.devices")
executable = pytest.importorskip("ocannl_opencl.executable")


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


def test_a_library_that_cannot_be_imported_is_the_reason(tmp_path: Path) -> None:
    (tmp_path / "pyopencl.py").write_text("raise ImportError('NumPy 1 is needed')")
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    program = "import ocannl_opencl as o; r = o.ocannl_targets(); print(r.reason, r.fix, sep='; ')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.stdout == (
        "PyOpenCL cannot be imported: NumPy 1 is needed; pip install --upgrade pyopencl\n"
    ), done.stderr


def test_kernels_without_doubles_run_on_a_device_that_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "has_doubles", lambda device: False)
    x = oc.tensor(np.arange(1, 7, dtype=np.float32))
    y = oc.exp(oc.sqrt(x) / 3.0)
    context = oc.Context("opencl")
    routine = context.compile(oc.train.forward(y))
    routine()
    np.testing.assert_allclose(context[y], np.exp(np.sqrt(np.arange(1, 7)) / 3), rtol=1e-6)
    text = str(routine.source)
    assert not re.search(r"^(?!.*fma_double).*double", text, re.MULTILINE)
    wide = oc.tensor(np.arange(6, dtype=np.float64), dtype="float64") * 2.0
    with pytest.raises(oc.CompileError, match="compute with float64") as error:
        context.compile(oc.train.forward(wide))
    assert "routine forward" in str(error.value)
    assert "no numbers of float64" in devices.report().details[1]


def test_quotients_are_rounded_correctly_only_where_the_device_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flag = "-cl-fp32-correctly-rounded-divide-sqrt"
    target = oc.Context("opencl").target
    assert flag in devices.device_of(target).options
    monkeypatch.setattr(devices, "rounds_quotients", lambda device: False)
    assert flag not in devices.device_of(target).options
    assert "a / b within 2.5 ulp" in devices.report().details[1]
    x = oc.tensor(np.arange(1, 7, dtype=np.float32))
    y = x / 3.0
    context = oc.Context("opencl")
    context.compile(oc.train.forward(y))()
    np.testing.assert_allclose(context[y], np.arange(1, 7) / 3, rtol=3e-7)


def test_pocl_without_a_linker_is_refused_before_it_ends_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(executable.shutil, "which", lambda name: None)
    x = oc.tensor(np.arange(6, dtype=np.float32))
    with pytest.raises(oc.CompileError, match="PoCL links the code of kernels"):
        oc.Context("opencl").compile(oc.train.forward(x * 7.25))
