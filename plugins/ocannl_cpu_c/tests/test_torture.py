"""A sample of `make torture`."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from .torture import bytes_of, cuts_of

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="makes files that Linux has")
def test_results_are_right_with_damaged_caches_and_compilers() -> None:
    command = [sys.executable, "-m", "plugins.ocannl_cpu_c.tests.torture", "--sample", "6"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("every result was right\n")


def test_cases_have_no_copies_of_files(tmp_path: Path) -> None:
    """There is one for each byte, and forks copy the tables of the memory of all."""
    (tmp_path / "file").write_bytes(bytes(range(256)) * 15)
    tracemalloc.start()
    try:
        cases = [*bytes_of(tmp_path), *cuts_of(tmp_path)]
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(cases) == 2 * 3840
    assert size < 1000 * len(cases)
    cases[300].damage(tmp_path / "file")
    assert (tmp_path / "file").read_bytes()[300] == 300 % 256 ^ 0xFF
    cases[-1].damage(tmp_path / "file")
    assert (tmp_path / "file").stat().st_size == 3839
