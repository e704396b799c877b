"""Rules about the files of the project."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from ocannl_core.backend.plugins import HOOK_NAMES
from ocannl_core.backend.specs import ALL_SPECS

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(
    path
    for folder in ("ocannl_core", "plugins", "examples", "benchmarks", "tests", "tools")
    for path in (ROOT / folder).rglob("*.py")
)
LONGEST = 800
SMOKE_OF = {"nn": "perceptrons", "train": "sgd"}
"""Packages whose smoke tests have another name."""
SHARED_NAMES = {"__init__", "nodes", "pipeline", "printer", "traverse", "verify"}
"""Names of modules that several packages have, for the same part of each."""
NAMESPACES = {"primitives", "random"}
"""Modules of public names, called as users call them."""


def test_there_are_modules_to_check() -> None:
    assert ROOT / "ocannl_core" / "backend" / "specs.py" in MODULES


def test_no_module_is_longer_than_800_lines() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {path.name: lines for path, lines in lengths.items() if lines > LONGEST} == {}


def test_a_file_name_leads_to_one_module_of_the_core() -> None:
    """The modules of `backend_api` mirror others, and do not count."""
    core = ROOT / "ocannl_core"
    modules = [path for path in core.rglob("*.py") if path.parent != core / "backend_api"]
    counts = Counter(path.stem for path in modules)
    assert {name for name, count in counts.items() if count > 1} == SHARED_NAMES | NAMESPACES


def test_one_module_reads_annotations() -> None:
    """As of Python 3.14 they are evaluated when they are read; another module writes some."""
    own = [path for path in MODULES if ROOT / "ocannl_core" in path.parents or "src" in path.parts]
    found = {path.name for path in own if "__annotations__" in path.read_text(encoding="utf-8")}
    assert found == {"deferred_annotations.py", "fast_dataclass.py"}


def test_the_smoke_tests_exist_and_touch_every_package() -> None:
    listed = (ROOT / "tests" / "smoke.txt").read_text(encoding="utf-8").splitlines()
    assert [path for path in listed if not (ROOT / path).exists()] == []
    # pytest before 9 leaves out tests of a folder if it is given a part of it, too
    assert [path for path in listed if {*map(str, Path(path).parents)} & {*listed}] == []
    touched = {
        part.removeprefix("test_").removesuffix(".py") for p in listed for part in p.split("/")
    }
    packages = {path.parent.name for path in (ROOT / "ocannl_core").glob("*/__init__.py")}
    assert {SMOKE_OF.get(package, package) for package in packages} <= touched


def test_every_hook_carries_the_prefix_of_the_project() -> None:
    public = {name for spec in ALL_SPECS for name in vars(spec) if not name.startswith("_")}
    assert public == set(HOOK_NAMES)


def test_all_distributions_list_the_pythons_of_the_table_of_tests() -> None:
    prefix = "Programming Language :: Python :: 3."
    files = [ROOT / "pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml")]
    projects = [tomllib.loads(file.read_text(encoding="utf-8"))["project"] for file in files]
    listed = {tuple(c[-4:] for c in p["classifiers"] if c.startswith(prefix)) for p in projects}
    text = (ROOT / "docs" / "tutorial" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (3\.\d+(?:, 3\.\d+)*) \|", text, re.MULTILINE)
    assert listed == {tuple(version for row in rows for version in row.split(", "))}
    assert {p["requires-python"] for p in projects} == {f">={min(map(min, listed))}"}


@pytest.mark.parametrize("hook", HOOK_NAMES)
def test_every_hook_is_documented(hook: str) -> None:
    page = ROOT / "docs" / "reference" / "hooks.md"
    assert hook in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("hook", HOOK_NAMES)
def test_every_hook_has_a_docstring(hook: str) -> None:
    (function,) = [vars(spec)[hook] for spec in ALL_SPECS if hook in vars(spec)]
    assert function.__doc__
