"""Code for described devices, which this machine need not have."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.backend import manager
from ocannl_core.base import settings
from ocannl_core.ir.target import Target

NAMES = [
    (name, target)
    for name in ("cpu_c", "cuda", "opencl", "interp")
    for target in manager.backend(name).described()
]


def network() -> oc.Computation:
    x = oc.tensor(np.ones((16, 32), np.float32), batch_axes=1)
    return oc.train.forward(oc.softmax(oc.param("w", output=[24]) @ oc.tanh(x)))


@pytest.mark.parametrize(("backend", "name"), NAMES, ids="-".join)
def test_every_described_device_gets_code(backend: str, name: str) -> None:
    with oc.Session():
        code = oc.compile_for(network(), backend, name, name="net")
    assert code.source
    assert code.name == code.plan.name == "net"
    assert [node.name for node in code.memory] == [node.name for node in code.plan.params]
    assert {node.name for node in code.reads} >= {"w"}
    assert {node.name for node in code.writes} == {code.plan.params[-1].name}
    assert code.memory_plan.nbytes > 0
    assert "for" in code.loop_ir
    assert code.assignments
    assert not code.target.has_device
    with pytest.raises(oc.UsageError, match="which is described only"):
        code()


def test_instruction_sets_make_a_difference() -> None:
    with oc.Session():
        found = {
            name: oc.compile_for(network(), "cpu_c", name).source
            for name in ("x86-64", "x86-64-v3", "x86-64-v4", "aarch64")
        }
    assert len(set(found.values())) == 4
    assert "float32x4" in found["aarch64"]
    assert "float32x16" in found["x86-64-v4"]
    with oc.Session():
        x = oc.placeholder("x", batch=[256], output=[256], dtype="bfloat16")
        code = oc.train.forward(oc.param("w", output=[256], dtype="bfloat16") @ x)
        old, new = (oc.compile_for(code, "cuda", each).source for each in ("sm_75", "sm_80"))
    assert ("mma.sync" in new, "mma.sync" in old) == (True, False)


def test_a_described_device_like_one_that_is_here_gets_its_code() -> None:
    with oc.Session():
        context = oc.Context("cpu_c")
        described = dataclasses.replace(context.target, has_device=False)
        code = oc.compile_for(network(), "cpu_c", described)
        assert code.source == context.compile(network()).source


def test_code_on_disk_is_kept_by_target(saved_routines: Any, tmp_path: Path) -> None:
    texts = []
    for _ in range(2):
        for name in ("x86-64", "x86-64-v3"):
            with oc.Session():
                texts.append(oc.compile_for(network(), "cpu_c", name).source)
    assert texts[:2] == texts[2:]
    assert texts[0] != texts[1]


def test_nothing_is_compiled_or_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_c = pytest.importorskip("ocannl_cpu_c.code_generation")
    monkeypatch.setattr(cpu_c, "begin_compilation", lambda: pytest.fail("it is compiled"))
    with oc.Session(), settings.overrides(tune="search", tune_placements=True):
        assert oc.compile_for(network(), "cpu_c", "aarch64").source


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("x86", "cpu_c knows portable, x86-64, x86-64-v3, x86-64-v4, aarch64, wasm32"),
        (Target("interp"), "a target of interp, and the backend cpu_c"),
    ],
    ids=["name", "target"],
)
def test_a_target_is_known_to_its_backend(target: Any, message: str) -> None:
    with oc.Session(), pytest.raises(oc.OcannlError, match=message):
        oc.compile_for(network(), "cpu_c", target)


def test_shapes_are_fixed_by_the_code() -> None:
    with oc.Session(), pytest.raises(oc.ShapeError):
        oc.compile_for(oc.train.forward(oc.param("w") * 2.0 @ oc.param("v")), "interp", "interp")
