"""The commands on the first page of the README work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment that Make treats as complete, and that runs this interpreter."""
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    python = venv / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    for stamp in (".made", ".for-examples", ".for-test"):
        (venv / stamp).touch()
    return venv


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    kept.pop("MAKEFLAGS", None)
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT,
        env=kept,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_readme_names_exactly_the_commands_tested_here() -> None:
    readme = (ROOT / "README.md").read_text()
    assert re.findall(r"^make (\w+)", readme, re.MULTILINE) == ["demo", "test"]


@pytest.mark.slow
def test_make_demo_trains_on_the_digits_and_prints_the_path_of_generated_code(
    environment: Path, tmp_path: Path
) -> None:
    arguments = f"--seeds 1 --epochs 2 --hidden 8 --quiet --out {tmp_path / 'out'}"
    done = make("demo", f"VENV={environment}", f"ARGS={arguments}")
    assert done.returncode == 0, done.stderr
    assert "held-out accuracy" in done.stdout
    assert str(tmp_path / "out" / "step.c") in done.stdout
    assert (tmp_path / "out" / "step.c").exists()


def test_make_test_runs_the_tests_of_the_core_and_of_every_plugin(environment: Path) -> None:
    done = make("test", f"VENV={environment}", "--dry-run")
    assert done.returncode == 0, done.stderr
    program, *options = done.stdout.split()
    assert (program, options[:2]) == (f"{environment}/bin/python", ["-m", "pytest"])
    # without a path, pytest runs the folders of its settings
    assert all(each.startswith("-") for each in options[2:])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    places = project["tool"]["pytest"]["ini_options"]["testpaths"]
    folders = {each for place in places for each in ROOT.glob(place)}
    assert folders >= {ROOT / "tests", *(each / "tests" for each in plugins())}


def plugins() -> list[Path]:
    return sorted(path for path in (ROOT / "plugins").iterdir() if (path / "tests").is_dir())
