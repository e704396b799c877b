"""The script that checks a machine with a device, on an emulated one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from plugins.ocannl_cuda.tests.emulated import needs_emulation

pytestmark = needs_emulation

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "plugins" / "ocannl_cuda" / "check_device.sh"
SANITIZER = """#!/bin/sh
[ "$2" = memcheck ] && exit 9
shift 4
exec "$@"
"""
"""A tool that finds a fault in the memory accesses of every program."""


def test_every_step_runs_and_is_summed_up(tmp_path: Path) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(SANITIZER)
    tool.chmod(0o755)
    own = {
        "PATH": os.pathsep.join([str(tmp_path), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYTHON": sys.executable,
        "EMULATED": "1",
        "ONLY": "x + y",
        "TESTS": "matrix_product",
    }
    command = ["bash", str(SCRIPT)]
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ | own)
    _, _, summary = result.stdout.partition("===== summary")
    found = [line.split()[:-2] for line in summary.splitlines()[1:]]
    assert found == [
        ["doctor", "passed"],
        ["first", "results", "passed"],
        ["conformance", "passed"],
        ["benchmarks", "passed"],
        ["racecheck", "passed"],
        ["memcheck", "failed", "with", "9"],
    ], result.stdout + result.stderr
    assert result.returncode == 1
    assert result.stdout.count("Emulated device 0") >= 3
    assert result.stdout.count("right to") == 3
