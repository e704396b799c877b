"""Backends written for earlier versions of the interface work with this core, as wheels.

`tests/frozen_backends/MAJOR.MINOR/` has sources as they were when that version was current; they
are never edited. `docs/reference/backend_versions.md` states the period for which they must pass.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ocannl_core.backend.protocols import BACKEND_API
from tests.core.backend.test_third_party import ROOT, pip, run

FROZEN = ROOT / "tests" / "frozen_backends"
BACKENDS = sorted(path.parent for path in FROZEN.glob("*/*/pyproject.toml"))
IDS = [f"{path.parent.name}-{path.name}" for path in BACKENDS]
PARTS = {
    "tiny_c": "not (random_programs or primitive or words or constants or conversions)",
    "tiny_py": "hand_made or memory",
    "tiny_numba": "hand_made or memory",
}
"""The tests of the suite that a backend runs."""


def marks(source: Path) -> list[pytest.MarkDecorator]:
    """Installing Numba and compiling by it take longest."""
    return [pytest.mark.long] if source.name == "tiny_numba" else []


@pytest.fixture(
    scope="module", params=[pytest.param(each, marks=marks(each)) for each in BACKENDS], ids=IDS
)
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a frozen backend's wheel, installed beside nothing else."""
    source: Path = request.param
    site = tmp_path_factory.mktemp("frozen") / source.name
    if "numba" in source.name and importlib.util.find_spec("numba") is None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
        done = subprocess.run([*command, str(site), "numba", "llvmlite"], capture_output=True)
        if done.returncode != 0:
            pytest.skip(f"numba cannot be installed: {done.stderr.decode().strip()[-200:]}")
    wheels = site.with_name("wheels")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(source))
    (wheel,) = wheels.glob("*.whl")
    pip("install", "--no-index", "--no-deps", "--target", str(site), str(wheel))
    return site


def test_every_minor_version_of_the_present_major_one_is_frozen() -> None:
    """A version joins when its successor is made."""
    major, minor = BACKEND_API
    kept = {tuple(map(int, path.name.split("."))) for path in FROZEN.iterdir() if path.is_dir()}
    assert {(major, each) for each in range(minor)} <= kept


@pytest.mark.slow
def test_it_is_listed_as_available(installed: Path) -> None:
    name = installed.name
    done = run(installed, "-m", "ocannl_core.cli", "backends", "--json", OCANNL_LOAD_PLUGINS=name)
    (row,) = [row for row in json.loads(done.stdout) if row["name"] == name]
    assert (row["status"], row["reason"]) == ("available", "")
    assert "eprecat" not in done.stderr, "users see no deprecations of plugins"


@pytest.mark.slow
def test_it_passes_the_conformance_suite(installed: Path) -> None:
    name = installed.name
    done = run(installed, "-m", "ocannl_core.cli", "check-backend", name, "-k", PARTS[name])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "everything that is declared works" in done.stdout.splitlines()
