"""The script that checks a machine with a device, on an emulated one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def check(folder: Path, **variables: str) -> tuple[list[list[str]], str, int]:
    """Run the script, and return the words of its summary, its output and its exit code."""
    own = {
        "PATH": os.pathsep.join([str(folder), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYTHON": sys.executable,
        "EMULATED": "1",
        "ONLY": "x + y",
        "TESTS": "matrix_product",
        "TMPDIR": str(folder),
    }
    command = ["bash", str(SCRIPT)]
    env = os.environ | own | variables
    result = subprocess.run(command, capture_output=True, text=True, env=env)
    _, _, summary = result.stdout.partition("===== summary")
    found = [re.sub(r" +\d+ s$", "", line).split() for line in summary.splitlines()[1:]]
    return found, result.stdout + result.stderr, result.returncode


def tool(folder: Path, text: str) -> None:
    path = folder / "compute-sanitizer"
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.slow
def test_every_step_runs_and_is_summed_up(tmp_path: Path) -> None:
    tool(tmp_path, SANITIZER)
    found, output, code = check(tmp_path)
    assert found == [
        ["doctor", "passed"],
        ["first", "results", "passed"],
        ["conformance", "passed"],
        ["benchmarks", "passed"],
        ["conformance,", "graphs", "passed"],
        ["asynchronous", "products", "passed"],
        ["racecheck", "passed"],
        ["memcheck", "failed", "with", "9"],
    ], output
    assert code == 1
    assert output.count("Emulated device 0") >= 3
    assert output.count("right to") >= 3


def test_steps_that_hang_and_those_without_time_are_summed_up(tmp_path: Path) -> None:
    tool(tmp_path, "#!/bin/sh\nexec sleep 60\n")
    begun = "import time; time.sleep(60)"
    (tmp_path / "sitecustomize.py").write_text(begun)  # every Python hangs
    paths = os.pathsep.join([str(tmp_path), *(path for path in sys.path if path)])
    found, output, code = check(tmp_path, LIMIT="7", PYTHONPATH=paths)
    assert found[0] == ["doctor", "cut", "off"], output
    assert [each[-4:] for each in found[1:]] == [["left", "out:", "no", "time"]] * (len(found) - 1)
    assert len(found) >= 6
    assert code == 0
