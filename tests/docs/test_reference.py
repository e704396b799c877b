"""The reference pages list all hooks with their arguments, all settings and all public names."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import ocannl_core as oc
from ocannl_core.backend.specs import ALL_SPECS
from ocannl_core.backend_api import Kernel, MemoryPlan, NodeInfo, Plan, RepeatedSteps
from ocannl_core.backend_api.c_family import BlockDialect, Dialect
from ocannl_core.base.plugin_settings import PluginTable
from ocannl_core.base.setting_sources import full_name
from ocannl_core.base.settings import Settings
from ocannl_core.cli import COMMANDS
from ocannl_core.passes.loops.algebraic_rules import RULES
from ocannl_core.runtime.routine import Routine
from ocannl_cpu_c.own_settings import CSettings
from ocannl_cuda.own_settings import CudaSettings
from ocannl_mpi.own_settings import MpiSettings

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
HOOKS = {
    name: list(inspect.signature(hook).parameters)[1:]
    for spec in ALL_SPECS
    for name, hook in vars(spec).items()
    if name.startswith("ocannl_")
}


def text_of(page: str) -> str:
    return (REFERENCE / page).read_text(encoding="utf-8")


def test_there_are_hooks() -> None:
    assert len(HOOKS) == 18


@pytest.mark.parametrize("hook", sorted(HOOKS))
def test_a_hook_is_documented_with_exactly_its_arguments(hook: str) -> None:
    headings = re.findall(rf"^### {hook}\((.*)\)$", text_of("hooks.md"), re.MULTILINE)
    assert headings == [", ".join(HOOKS[hook])]


def test_no_hook_is_documented_that_does_not_exist() -> None:
    assert set(re.findall(r"^### (ocannl_\w+)", text_of("hooks.md"), re.MULTILINE)) == set(HOOKS)


@pytest.mark.parametrize("setting", fields(Settings), ids=lambda setting: setting.name)
def test_a_setting_is_documented_with_its_variable_and_meaning(setting) -> None:  # type: ignore[no-untyped-def]
    row = f"| `{setting.name}` | `OCANNL_{setting.name.upper()}` | "
    rows = [line for line in text_of("settings.md").splitlines() if line.startswith(row)]
    assert len(rows) == 1
    assert rows[0].endswith(f"| {setting.metadata['doc']} |")


@pytest.mark.parametrize(
    ("plugin", "declared"), [("cpu_c", CSettings), ("cuda", CudaSettings), ("mpi", MpiSettings)]
)
def test_settings_of_plugins_are_documented(plugin: str, declared: type[Any]) -> None:
    table = PluginTable(plugin, declared)
    for name, setting in table.declarations().items():
        full = full_name(plugin, name)
        row = f"| `{full}` | `OCANNL_{full.upper()}` | "
        rows = [line for line in text_of("settings.md").splitlines() if line.startswith(row)]
        assert len(rows) == 1
        assert rows[0].endswith(f"| {setting.doc} |")
        assert ("†" in rows[0]) == setting.needs_trust


def test_exactly_the_commands_are_documented_in_their_order() -> None:
    documented = re.findall(r"^\| `ocannl ([\w-]+)", text_of("commands.md"), re.MULTILINE)
    names = [each.__name__.rpartition(".")[2].replace("_", "-") for each in COMMANDS]
    assert documented == names


def test_exactly_the_public_names_are_documented() -> None:
    documented = set(re.findall(r"`oc\.(\w+)", text_of("api.md")))
    assert documented == set(oc.__all__)


def test_exactly_the_laws_of_simplification_are_documented() -> None:
    rows = set(
        re.findall(r"^\| (`.*`) \| `` (.*) `` \|$", text_of("simplification.md"), re.MULTILINE)
    )
    operations: dict[str, list[str]] = {}
    for op, laws in RULES.items():
        for law in laws:
            operations.setdefault(law.text, []).append(f"`{op.value.name}`")
    assert {(names, law.replace("\\|", "|")) for names, law in rows} == {
        (", ".join(names), law) for law, names in operations.items()
    }


def names_in_tables(page: str) -> set[str]:
    """Return the names in the first cells of all rows of a page, without arguments."""
    cells = re.findall(r"^\| (`.*?`) \| ", text_of(page), re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)(?:\([^`]*\))?`", cell)}


def test_exactly_the_names_of_dialects_are_documented() -> None:
    own = {
        name for each in (Dialect, BlockDialect) for name in vars(each) if not name.startswith("_")
    }
    assert names_in_tables("dialects.md") == own


@pytest.mark.parametrize("each", [Dialect, BlockDialect], ids=lambda each: each.__name__)
def test_the_methods_of_dialects_are_documented_with_their_arguments(each: type) -> None:
    text = text_of("dialects.md")
    for name, method in vars(each).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            arguments = ", ".join(list(inspect.signature(method).parameters)[1:])
            if f"`{name}`" not in text:  # named again, as one that a subclass changes
                assert f"`{name}({arguments})`" in text


@pytest.mark.parametrize("each", [Plan, Kernel, RepeatedSteps, NodeInfo, MemoryPlan])
def test_the_attributes_for_exporters_are_documented(each: type) -> None:
    public = {field.name for field in fields(each)}
    public |= {name for name, value in vars(each).items() if isinstance(value, property)}
    assert public - {"iterations"} <= names_in_tables("routines.md")


def test_attributes_of_routines_that_are_documented_exist() -> None:
    rows = text_of("routines.md").partition("| attribute of a routine |")[2].partition("\n\n")[0]
    names = re.findall(r"^\| (`.*?`) \| ", rows, re.MULTILINE)
    found = {name for cell in names for name in re.findall(r"`(\w+)`", cell)}
    assert "plan" in found
    assert found <= set(dir(Routine))
