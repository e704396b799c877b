"""Programs in processes of their own, on emulated devices."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

from ocannl_cuda.emulation import driver

needs_emulation = pytest.mark.skipif(
    importlib.util.find_spec("pycuda") is None or shutil.which("g++") is None,
    reason="needs PyCUDA (python tools/build_pycuda.py --install) and g++",
)

NOTHING_LEFT = {
    "allocations": 0,
    "host_allocations": 0,
    "streams": 0,
    "events": 0,
    "modules": 0,
    "contexts": 0,
    "graphs": 0,
}
"""The objects of the driver after a clean end."""


@dataclass(frozen=True)
class Outcome:
    """The end of a program.

    Attributes:
        code: Its exit code.
        output: Its standard output.
        errors: Its standard error.
        left: Objects that the emulated driver still had at exit, and counts of calls; empty if it was
            not used, or the process was aborted.
    """

    code: int
    output: str
    errors: str
    left: dict[str, int]


def run(
    program: str, folder: Path, *, devices: int = 1, sanitize: bool = False, **variables: str
) -> Outcome:
    """Run a program on emulated devices.

    Args:
        program: Its text.
        folder: The directory of its report.
        devices: The number of devices.
        sanitize: True to run kernels under the address sanitizer.
        variables: More environment variables.
    """
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    own = driver.environment(devices)
    own = driver.with_sanitizer(own) if sanitize else own
    paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    env = os.environ | paths | own | {"CUDA_EMULATOR_REPORT": str(report)} | variables
    command = [sys.executable, "-c", dedent(program)]
    result = subprocess.run(command, capture_output=True, text=True, env=env)
    left = json.loads(report.read_text()) if report.is_file() else {}
    return Outcome(result.returncode, result.stdout, result.stderr, left)


def left_of(outcome: Outcome) -> dict[str, int]:
    """Return the objects that the driver still had at exit."""
    return {name: count for name, count in outcome.left.items() if name in NOTHING_LEFT}
