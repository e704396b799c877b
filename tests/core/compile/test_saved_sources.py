"""The sources of which plugins are saved, and the files that they depend on."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from ocannl_core.backend import manager
from ocannl_core.backend.interface_use import files_of
from ocannl_core.backend_api import Plan, TargetReport, hookimpl
from ocannl_core.backend_api.launches import RoutineSource
from ocannl_core.compile import saved_code

pytestmark = pytest.mark.usefixtures("fresh_plugins")


@hookimpl
def ocannl_targets() -> TargetReport:
    return TargetReport(reason="it is for tests")


def backend_of(module: ModuleType, source: object) -> manager.Backend:
    vars(module).update(OCANNL_API=(1, 1), OCANNL_SOURCE=source, ocannl_targets=ocannl_targets)
    manager.register("mine", module)
    return manager.backend("mine")


def package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a package with a module, a template and a compiled module, and return its folder."""
    found = folder / "sources_of_mine"
    (found / "__pycache__").mkdir(parents=True)
    for name in ("__init__.py", "plugin.py", "kernel.template", "__pycache__/plugin.pyc"):
        (found / name).write_text("")
    (found / ".#plugin.py").symlink_to("user@host.1")  # the lock of an editor
    monkeypatch.syspath_prepend(str(folder))
    return found


def test_every_file_of_a_package_is_part_of_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = package(tmp_path, monkeypatch)
    places = [place for place, _ in saved_code._source_files(str(folder), "")]
    assert places == ["__init__.py", "kernel.template", "plugin.py"]


@pytest.mark.parametrize("namespace", ["", "namespace_of_mine"])
def test_a_plugin_in_a_module_of_a_package_has_the_files_of_the_package(
    namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = package(tmp_path / namespace, monkeypatch)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"{namespace}.sources_of_mine.plugin".lstrip(".")
    backend = backend_of(importlib.import_module(name), RoutineSource)
    assert files_of(backend) == [folder / "__init__.py", folder / "plugin.py"]
    assert saved_code.why_not_saved(backend) == ""


@dataclass(frozen=True)
class Tool:
    handle: object


@dataclass(frozen=True)
class WithTool:
    plan: Plan
    tools: tuple[Tool, ...]


@dataclass(frozen=True)
class WithAnything:
    plan: Plan
    symbols: tuple  # type: ignore[type-arg]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (None, ""),
        (RoutineSource, "the plugin is no package"),
        ("RoutineSource", "it is no class"),
        (int, "int is no dataclass"),
        (WithAnything, "the field symbols of WithAnything holds more than data"),
        (WithTool, "the field handle of Tool holds more than data"),
    ],
    ids=str,
)
def test_the_reason_for_sources_that_are_not_saved(source: object, reason: str) -> None:
    assert saved_code.why_not_saved(backend_of(ModuleType("mine"), source)) == reason
