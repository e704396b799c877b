"""A sample of `make torture`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="makes files that Linux has")
def test_results_are_right_with_damaged_caches_and_compilers() -> None:
    command = [sys.executable, "-m", "plugins.ocannl_cpu_c.tests.torture", "--sample", "6"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("every result was right\n")
