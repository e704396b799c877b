"""The runner of tests in parts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins.ocannl_cuda.tests.emulated import needs_emulation
from plugins.ocannl_cuda.tests.runs_in_parts import ROOT, Result, counts_of, known_results, parts_of

names = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 99)).map(
        lambda each: "test_{}.py::{}".format(*each)
    ),
    unique=True,
)


@given(names, st.integers(1, 9))
def test_every_test_is_in_one_part_and_no_part_has_too_many(given: list[str], most: int) -> None:
    parts = list(parts_of(given, most))
    assert sorted(name for part in parts for name in part.tests) == sorted(given)
    assert all(1 <= len(part.tests) <= most for part in parts)


def test_parts_of_other_tests_instruments_and_contents_have_other_keys() -> None:
    first, second = parts_of(["a.py::x", "b.py::y"], 1)
    keys = {first.key("c", "races"), second.key("c", "races"), first.key("c", "sanitize")}
    assert len(keys | {first.key("d", "races")}) == 4


def test_the_summary_of_pytest_is_counted() -> None:
    assert counts_of("..F\nsomething\n1 failed, 30 passed, 2 skipped in 3s\n") == {
        "failed": 1,
        "passed": 30,
        "skipped": 2,
    }
    assert counts_of("2 errors in 3s") == {"error": 2}
    assert counts_of("") == {}


def test_a_result_that_was_cut_short_is_no_result(tmp_path: Path) -> None:
    path = tmp_path / "results"
    line = json.dumps(vars(Result("k", 0, 1.0, {"passed": 3})))
    path.write_text(f"{line}\n{line[:20]}")
    assert list(known_results(path)) == ["k"]
    assert known_results(path)["k"].has_passed
    assert not Result("k", 0, 1.0, {"skipped": 3}).has_passed
    assert known_results(tmp_path / "none") == {}


@pytest.mark.slow
@needs_emulation
def test_a_run_goes_on_where_the_last_one_has_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "plugins.ocannl_cuda.tests.runs_in_parts", "emulated"]
    command += ["tests/backends/test_put.py", "--tests", "1", "--processes", "1"]
    command += ["--results", str(tmp_path / "results")]
    paths = os.pathsep.join([str(ROOT), *(path for path in sys.path if path)])

    def run(expression: str, **variables: str) -> tuple[int, str]:
        env = os.environ | {"PYTHONPATH": paths} | variables
        chosen = [*command, "-k", f"cuda and {expression}"]
        done = subprocess.run(chosen, cwd=ROOT, capture_output=True, text=True, env=env)
        return done.returncode, done.stdout + done.stderr

    code, output = run("a_number_is_put")
    assert (code, output.count("\npassed: test_put.py: 1 passed")) == (0, 2), output
    both = "(a_number_is_put or a_position_beyond)"
    code, output = run(both, CUDA_EMULATOR_FAIL="cuMemAlloc_v2:*")
    assert code == 1
    assert "4 parts, 2 of them known" in output
    assert output.count("FAILED with 1: test_put.py: 1 failed") == 2, output
    assert "no room for" in output
    assert output.endswith("2 tests passed, 2 parts failed, 0 parts are left\n"), output
