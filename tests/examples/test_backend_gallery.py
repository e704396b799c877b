"""The backends of `examples/backends` conform, where their packages are installed."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from ocannl_core.backend import manager
from ocannl_core.backend.protocols import TargetReport
from ocannl_core.testing.allowances import Outcome, allowances_of
from ocannl_core.testing.conformance import BackendConformance
from ocannl_core.testing.contexts import ContextConformance
from ocannl_core.testing.corpora import primitive_edges
from ocannl_core.testing.subject import Subject, subject_named
from ocannl_core.testing.training import TrainingConformance

GALLERY = Path(__file__).resolve().parents[2] / "examples" / "backends"
PACKAGES = {"wasm": ("wasmtime", "ziglang"), "llvm": ("llvmlite",)}
MOST_LINES = 400
"""The lines of Python of a distribution, so that readers see all of it."""


def missing(name: str) -> str:
    """Return the reason why a backend cannot run here; empty if it can."""
    lacking = [each for each in PACKAGES[name] if find_spec(each) is None]
    return f"not installed: {', '.join(lacking)}" if lacking else ""


def marks(name: str) -> list[pytest.MarkDecorator]:
    """Zig compiles a C library for WebAssembly first, which takes half a minute."""
    skip = pytest.mark.skipif(bool(missing(name)), reason=missing(name))
    return [skip, pytest.mark.long] if name == "wasm" else [skip]


@pytest.fixture(params=[pytest.param(name, marks=marks(name)) for name in PACKAGES])
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name = str(request.param)
    monkeypatch.syspath_prepend(str(GALLERY / f"ocannl_{name}" / "src"))
    if name not in {entry.name for entry in manager.backend_entries()}:
        manager.register(name, import_module(f"ocannl_{name}"))
    return name


@pytest.mark.slow
class TestGallery(BackendConformance):
    oracle_name = "interp"


@pytest.mark.slow
class TestContextsOfGallery(ContextConformance):
    pass


@pytest.mark.slow
class TestTrainingOnGallery(TrainingConformance):
    @pytest.fixture
    def oracle(self) -> Subject:
        return subject_named("interp")


@pytest.mark.slow
def test_primitives_have_their_meaning_at_the_edges(target: str) -> None:
    subject = subject_named(target)
    allowances = allowances_of(subject.backend)
    found = primitive_edges.results(subject, subject_named("interp"), allowances)
    results = [allowances.apply(each) for each in found]
    assert [each for each in results if each.outcome is Outcome.FAILED] == []
    assert allowances.stale(results, is_complete=True) == []


@pytest.mark.parametrize("name", PACKAGES)
def test_it_imports_the_interface_and_nothing_else_of_the_core(name: str) -> None:
    for file in files_of(name):
        for module in imports(file):
            if module.startswith("ocannl_core"):
                assert module.startswith("ocannl_core.backend_api"), f"{file.name}: {module}"


@pytest.mark.parametrize("name", PACKAGES)
def test_it_is_a_whole_distribution_that_can_be_read(name: str) -> None:
    folder = GALLERY / f"ocannl_{name}"
    project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"]["ocannl.backends"] == {name: f"ocannl_{name}"}
    assert all(any(each in text for text in project["dependencies"]) for each in PACKAGES[name])
    assert (folder / "README.md").read_text("utf-8").startswith(f"# ocannl-{name}\n")
    assert list((folder / "tests").glob("test_*.py"))
    assert sum(len(file.read_text("utf-8").splitlines()) for file in files_of(name)) < MOST_LINES


@pytest.mark.parametrize("name", PACKAGES)
def test_without_its_packages_it_reports_why(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(GALLERY / f"ocannl_{name}" / "src"))
    module = import_module(f"ocannl_{name}")
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    report = module.ocannl_targets()
    assert isinstance(report, TargetReport)
    assert report.targets == ()
    assert report.reason
    assert report.fix.startswith("pip install ")


def files_of(name: str) -> list[Path]:
    found = sorted((GALLERY / f"ocannl_{name}" / "src").rglob("*.py"))
    assert found
    return found


def imports(file: Path) -> Iterator[str]:
    """Yield the modules that a file imports."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        match node:
            case ast.ImportFrom(module=str(module)):
                yield module
            case ast.Import(names):
                yield from (each.name for each in names)


def test_importing_one_loads_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module of a backend imports without its driver."""
    for name, packages in PACKAGES.items():
        monkeypatch.syspath_prepend(str(GALLERY / f"ocannl_{name}" / "src"))
        for package in packages:
            monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.delitem(sys.modules, f"ocannl_{name}", raising=False)
        import_module(f"ocannl_{name}")
