"""Programs in processes of their own, on emulated devices."""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent

import pytest

from ocannl_cuda_emulator import driver

needs_emulation = pytest.mark.skipif(
    importlib.util.find_spec("pycuda") is None or shutil.which("g++") is None,
    reason="needs PyCUDA (python tools/build_pycuda.py --install) and g++",
)

SERVER = Path(__file__).with_name("program_server.py")

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


class Server:
    """A process that starts programs after it has imported what they all need, which takes longer
    than most of them.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(SERVER)],
            env=os.environ | environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == "ready"
        atexit.register(self._process.communicate)

    def run(self, program: str, variables: Mapping[str, str], folder: Path) -> tuple[int, str, str]:
        """Return the exit code of a program, its output and its errors."""
        output, errors = folder / "program.output", folder / "program.errors"
        for each in (output, errors):
            each.write_bytes(b"")
        order = {"program": program, "variables": dict(variables)}
        assert self._process.stdin is not None
        files = {"output": str(output), "errors": str(errors)}
        self._process.stdin.write(json.dumps(order | files) + "\n")
        self._process.stdin.flush()
        return int(self._answer()), output.read_text(), errors.read_text()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")


@cache
def server() -> Server:
    """Return the server of this process."""
    return Server()


@cache
def environment() -> dict[str, str]:
    """Return the environment variables of a program on one emulated device."""
    paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return paths | driver.environment()


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
    own = environment() | {"CUDA_EMULATOR_DEVICES": str(devices)}
    own |= {"CUDA_EMULATOR_REPORT": str(report)} | variables
    if sanitize:  # its library is the first one of a process
        env = os.environ | driver.with_sanitizer(own)
        command = [sys.executable, "-c", dedent(program)]
        result = subprocess.run(command, capture_output=True, text=True, env=env)
        code, output, errors = result.returncode, result.stdout, result.stderr
    else:
        code, output, errors = server().run(dedent(program), os.environ | own, folder)
    left = json.loads(report.read_text()) if report.is_file() else {}
    return Outcome(code, output, errors, left)


def left_of(outcome: Outcome) -> dict[str, int]:
    """Return the objects that the driver still had at exit."""
    return {name: count for name, count in outcome.left.items() if name in NOTHING_LEFT}
