"""Commands that other distributions add to `ocannl`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from ocannl_core.backend import registry
from ocannl_core.backend.registry import PluginEntry
from ocannl_core.cli import main

HELLO = SimpleNamespace(
    HELP="greet",
    DESCRIPTION="Greets.",
    add_arguments=lambda command: command.add_argument("name"),
    run=lambda arguments: print(f"hello {arguments.name}") or 3,
)


def _broken() -> object:
    raise ImportError("No module named 'missing'")


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Install three commands, and return the names of the loaded ones."""
    loaded: list[str] = []

    def entry(name: str, load: Callable[[], object]) -> tuple[PluginEntry, Callable[[], object]]:
        def note() -> object:
            loaded.append(name)
            return load()

        return PluginEntry(name, f"{name}.command", f"ocannl-{name}", "1.0"), note

    added = {
        "broken": entry("broken", _broken),
        "config": entry("config", lambda: HELLO),
        "hello": entry("hello", lambda: HELLO),
    }
    monkeypatch.setattr(registry, "commands", lambda: added)
    return loaded


def test_a_plugin_adds_a_command(loads: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hello", "world"]) == 3
    assert capsys.readouterr().out == "hello world\n"
    assert loads == ["hello"]


def test_commands_of_the_core_load_no_plugin(
    loads: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config"]) == 0
    assert "default_dtype" in capsys.readouterr().out
    assert loads == []


def test_the_help_lists_commands_of_plugins_and_those_that_do_not_load(
    loads: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert "greet" in text
    assert "(does not load: ocannl-broken)" in text
    assert "config" not in loads


def test_a_command_that_does_not_load_names_the_error_and_the_distribution(
    loads: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["broken", "any", "--thing"]) == 1
    text = capsys.readouterr().err
    assert "No module named 'missing'" in text
    assert "repair or uninstall ocannl-broken" in text


def test_a_module_without_the_parts_of_a_command_does_not_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = PluginEntry("empty", "empty", "ocannl-empty", "1.0")
    added = {"empty": (owner, lambda: argparse)}
    monkeypatch.setattr(registry, "commands", lambda: added)
    assert main(["empty"]) == 1
    assert "HELP" in capsys.readouterr().err


def _raise(command: argparse.ArgumentParser) -> None:
    raise KeyError("no arguments")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"add_arguments": _raise}, "no arguments"),
        ({"HELP": "100% of it"}, "TypeError: %o format"),
        ({"DESCRIPTION": 5}, "TypeError"),
        ({"run": None}, "its run must be a function, and is None"),
    ],
    ids=["add_arguments", "help", "description", "run"],
)
def test_a_defective_command_leaves_the_others(
    changes: dict[str, object],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    owner = PluginEntry("defective", "defective", "ocannl-defective", "1.0")
    command = SimpleNamespace(**{**vars(HELLO), **changes})
    monkeypatch.setattr(registry, "commands", lambda: {"defective": (owner, lambda: command)})
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "(does not load: ocannl-defective)" in capsys.readouterr().out
    assert main(["defective", "world"]) == 1
    assert reason in capsys.readouterr().err
