"""Profiles of routines, and their traces."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import ocannl_core as oc
from ocannl_core.compile.profile import KernelTime, Profile


def test_a_trace_has_an_event_for_each_kernel_in_order(tmp_path: Path) -> None:
    kernels = (KernelTime(1, 'a "b"', 2e-6, "", 64, 32), KernelTime(2, "c", 3e-6, "split i", 8, 0))
    Profile("step", kernels, 3).save_trace(tmp_path / "step.json")
    events = json.loads((tmp_path / "step.json").read_text("utf-8"))["traceEvents"]
    spans = [each for each in events if each["ph"] == "X"]
    assert [(each["name"], each["ts"], each["dur"]) for each in spans] == [
        ('a "b"', 0.0, 2.0),
        ("c", 2.0, 3.0),
    ]
    assert spans[1]["args"] == {"title": "c", "schedule": "split i", "bytes": 8}
    assert [each["args"]["bytes"] for each in events if each["ph"] == "C"] == [32, 0]


def test_a_profile_has_the_bytes_that_each_kernel_accesses() -> None:
    with oc.Session(seed=1):
        x = oc.placeholder("x", batch=[8], output=[4])
        w = oc.param("w", output=[4])
        hidden = oc.exp(w @ x)
        loss = oc.einsum("...|... => 0", oc.exp(w @ hidden))
        ctx = oc.Context("cpu_c")
        step = ctx.compile(oc.train.grad_update(loss))
        ctx.init_params(loss)
        ctx[x] = np.ones((8, 4))
        found = step.profile(seconds=0.0)
    assert all(kernel.nbytes > 0 for kernel in found.kernels)
    most = max(kernel.arena_bytes for kernel in found.kernels)
    assert 0 < most <= step.memory_plan.nbytes_unshared
    assert "<pre>routine grad_update" in found._repr_html_()
