"""Two devices of one platform: PoCL can present the processor twice."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

_SETUP = """
import numpy as np
import ocannl_core as oc
import ocannl_opencl
from ocannl_core.backend import manager
from ocannl_opencl import memory
from ocannl_opencl.devices import device_of

if "opencl" not in {backend.name for backend in manager.load_all()}:
    manager.register("opencl", ocannl_opencl)
targets = manager.backend("opencl").targets().targets
if len(targets) < 2 or device_of(targets[0]).context != device_of(targets[1]).context:
    raise SystemExit("skip")
first, second = oc.Context("opencl", device=0), oc.Context("opencl", device=1)
x = oc.placeholder("x", output=[64], dtype="int32")
total = oc.placeholder("total", output=[64], dtype="int32")
"""


def run(program: str) -> None:
    """Run a program with two devices; skip the test where PoCL has one."""
    text = _SETUP + textwrap.dedent(program)
    env = {**os.environ, "POCL_DEVICES": "pthread pthread"}
    done = subprocess.run(
        [sys.executable, "-c", text], env=env, capture_output=True, text=True, check=False
    )
    if done.stderr.endswith("skip\n"):
        pytest.skip("PoCL does not present two devices")
    assert done.returncode == 0, done.stderr


def test_copies_between_devices_are_ordered_by_events() -> None:
    run("""
    y = x * 2
    p = oc.placeholder("p", output=[64], dtype="int32")
    z = p + 1
    step, follow = first.compile(oc.train.forward(y)), second.compile(oc.train.forward(z))
    first[x] = 1
    for _ in range(20):
        step()
        event = second.copy_from(first, {p: y})
        follow()
        first.copy_from(second, {x: z})
    assert first[x].tolist() == [2 ** 21 - 1] * 64
    event.wait()
    assert event.is_done
    end = memory.record(targets[0])
    assert memory.wait_for(end, targets[1]) is True
    assert memory.wait_for(object(), targets[1]) is None
    """)


def test_merge_buffers_may_be_memory_of_the_other_device() -> None:
    run("""
    y = x * 2
    @oc.cd
    def merging(total, y):
        total += y.merge
    step, merge = first.compile(oc.train.forward(y)), second.compile(merging(total, y))
    second[total] = 0
    for scale in (1, 10):
        first[x] = scale
        step()
        second.fill_merge(y, source=first, streamed=scale > 1)
        merge()
    assert second[total].tolist() == [22] * 64
    """)
