"""Settings of plugins: declarations, sources, refusals, and the names before plugins had them."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot

from ocannl_core.base import setting_sources, settings
from ocannl_core.base.errors import SettingsError, warn_once
from ocannl_core.base.plugin_settings import setting, violation_of_settings


@dataclass(frozen=True)
class ChipSettings:
    clock: int = setting(800, "the clock in MHz", check=lambda n: n > 0, expected="positive")
    mode: str = setting("fast", "the mode", choices=("fast", "exact"))
    compiler: str | None = setting(None, "the compiler", kind=str, needs_trust=True)
    ratio: float = setting(0.5, "a ratio", affects_code=False)
    units: tuple[str, ...] = setting((), "the units to use")
    checks: bool = setting(True, "whether it checks")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project as the working directory, without other settings."""
    for variable in [name for name in os.environ if name.startswith("OCANNL_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    warn_once.cache_clear()
    before = dict(settings._declared)
    settings.forget_plugins()
    yield folder
    settings.forget_plugins()
    settings._declared.update(before)


def chip() -> ChipSettings:
    return settings.of_plugin("my-chip", ChipSettings)


def source_of(name: str) -> str:
    found = settings.describe_plugin("my-chip")
    return next(each.source for each in found if each.name == name)


def message() -> str:
    with pytest.raises(SettingsError) as caught:
        chip()
    return str(caught.value).replace(os.getcwd(), "PROJECT")


def test_each_source_outranks_the_one_below(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.declare("my-chip", ChipSettings)
    assert (chip(), source_of("my_chip__clock")) == (ChipSettings(), "default")
    own = tmp_path / "config" / "ocannl" / "ocannl.toml"
    own.parent.mkdir(parents=True)
    own.write_text("[plugins.my-chip]\nclock = 1\nmode = 'exact'\ncompiler = 'mine'\n")
    assert (chip().clock, source_of("my_chip__clock")) == (1, str(own))
    config = project / "pyproject.toml"
    config.write_text("[tool.ocannl.plugins.my-chip]\nclock = 2\nunits = ['a', 'b']\n")
    assert (chip().clock, source_of("my_chip__clock")) == (2, str(config))
    monkeypatch.setenv("OCANNL_MY_CHIP__CLOCK", "3")
    monkeypatch.setenv("OCANNL_MY_CHIP__UNITS", "c,d")
    assert (chip().clock, source_of("my_chip__clock")) == (3, "OCANNL_MY_CHIP__CLOCK")
    monkeypatch.setattr(sys, "argv", ["program", "--ocannl-my-chip--clock=4"])
    assert (chip().clock, source_of("my_chip__clock")) == (4, "--ocannl-my-chip--clock")
    with settings.overrides(my_chip__clock=5):
        assert (chip().clock, source_of("my_chip__clock")) == (5, "overrides(...)")
        with settings.overrides(seed=3), settings.held():
            assert chip().clock == 5
    assert chip() == ChipSettings(4, "exact", "mine", 0.5, ("c", "d"), True)


def test_an_empty_value_means_the_default(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "ocannl.toml").write_text("plugins.my-chip.clock = 7\n")
    monkeypatch.setenv("OCANNL_MY_CHIP__CLOCK", "")
    assert chip().clock == 800


def test_a_project_names_no_commands(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "ocannl.toml").write_text("[plugins.my-chip]\ncompiler = './evil'\nclock = 3\n")
    with pytest.warns(UserWarning, match=r"plugins.my-chip.compiler .* is not used") as caught:
        assert chip() == ChipSettings(clock=3)
    assert "Set OCANNL_MY_CHIP__COMPILER" in str(caught[0].message)
    monkeypatch.setenv("OCANNL_TRUSTED_DIRECTORIES", str(project))
    assert chip().compiler == "./evil"


def test_unknown_keys_of_files_are_errors_with_suggestions(project: Path) -> None:
    (project / "ocannl.toml").write_text("[plugins.my-chip]\nclok = 3\n")
    assert message() == snapshot("""\
A setting of the plugin my-chip must have a known name.
  found  clok
  where  PROJECT/ocannl.toml, plugins.my-chip
  try    did you mean clock?
         the settings of my-chip are checks, clock, compiler, mode, ratio, units\
""")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("clock = 'fast'", "must be positive"),
        ("clock = 0", "must be positive"),
        ("mode = 'slow'", "must be one of fast, exact"),
        ("checks = 1", "must be true or false"),
        ("ratio = 'half'", "must be a number"),
        ("units = 'a'", "must be a list of names"),
    ],
)
def test_impossible_values_are_errors(project: Path, text: str, expected: str) -> None:
    (project / "ocannl.toml").write_text(f"[plugins.my-chip]\n{text}\n")
    assert f"of the plugin my-chip {expected}." in message()


def test_an_unknown_variable_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCANNL_MY_CHIP__CLOK", "3")
    with pytest.warns(UserWarning, match="no setting of the plugin my-chip: did you mean clock"):
        assert chip() == ChipSettings()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chip()


def test_settings_of_a_plugin_that_is_not_installed_are_no_error(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "ocannl.toml").write_text("[plugins.absent]\nanything = [1, 2]\n")
    monkeypatch.setenv("OCANNL_OTHER__KEY", "1")
    with warnings.catch_warnings(), settings.overrides(third__key=object()):
        warnings.simplefilter("error")
        assert chip() == ChipSettings()
        unread = {each.name: each.doc for each in settings.unread_settings()}
    assert unread.keys() == {"absent__anything", "other__key", "third__key"}
    assert unread["absent__anything"] == "no plugin absent is loaded"


def test_overrides_of_a_loaded_plugin_are_checked_at_once() -> None:
    with settings.overrides(my_chip__clok=1):
        assert "did you mean clock?" in message()
    settings.declare("my-chip", ChipSettings)
    with pytest.raises(SettingsError, match="known name"), settings.overrides(my_chip__clok=1):
        pytest.fail("the block ran")


def test_tables_of_plugins_are_tables(project: Path) -> None:
    (project / "ocannl.toml").write_text("plugins = 3\n")
    assert "The settings of a plugin are a table, [plugins.NAME]." in message()


@pytest.mark.parametrize(
    "text",
    [
        "[plugins.my-chip]\nclock = 1\nCLOCK = 2\n",
        "[plugins.my-chip]\nclock = 1\n[plugins.my_chip]\nclock = 2\n",
    ],
)
def test_two_values_in_one_file_are_an_error(project: Path, text: str) -> None:
    (project / "ocannl.toml").write_text(text)
    assert "A setting must have one value." in message()


def test_full_names_in_a_table_are_an_error(project: Path) -> None:
    (project / "ocannl.toml").write_text("[plugins.my-chip]\nmy_chip__clock = 1\n")
    assert "has no two underscores" in message()


def test_settings_that_affect_code_are_part_of_keys() -> None:
    settings.declare("my-chip", ChipSettings)
    before = settings.code_settings("my-chip")
    assert "ratio" not in dict(before)
    with settings.overrides(my_chip__ratio=0.75):
        assert settings.code_settings("my-chip") == before
    with settings.overrides(my_chip__mode="exact"):
        assert settings.code_settings("my-chip") != before


@pytest.mark.parametrize(
    ("declared", "violation"),
    [
        (3, "must be a dataclass, and is 3"),
        (
            dataclass(type("Plain", (), {"__annotations__": {"a": int}, "a": 1})),
            "made by `setting`",
        ),
        (
            dataclass(type("Loud", (), {"__annotations__": {"A": int}, "A": setting(1, "")})),
            "an identifier in lower case",
        ),
        (ChipSettings, ""),
    ],
)
def test_declarations_are_checked(declared: object, violation: str) -> None:
    found = violation_of_settings(declared)
    assert violation in found if violation else not found


def test_a_setting_has_a_type() -> None:
    with pytest.raises(TypeError, match="a setting is of type bool, int, float, str, tuple"):
        setting(None, "no type")


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [("cc", "cpu_c__cc", "gcc -pipe"), ("cuda_graphs", "cuda__graphs", "true")],
)
def test_old_names_work_and_warn_with_the_new_spelling(
    project: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, text: str
) -> None:
    monkeypatch.setenv(f"OCANNL_{old.upper()}", text)
    with pytest.warns(FutureWarning, match=f"write OCANNL_{new.upper()}"):
        assert settings._snapshot().plugins[new][-1].value == text
    monkeypatch.setenv(f"OCANNL_{new.upper()}", "new")
    assert settings._snapshot().plugins[new][-1].value == "new"
    with pytest.warns(FutureWarning, match=f"write {new}="), settings.overrides(**{old: "x"}):
        assert settings._snapshot().plugins[new][-1].value == "x"
    plugin, _, key = new.rpartition("__")
    (project / "ocannl.toml").write_text(f"{old} = 'y'\n")
    with pytest.warns(FutureWarning, match=f"write {key} in a table for {plugin}"):
        assert settings._snapshot().plugins[new][0].value == "y"


def test_a_plugin_reads_its_setting_by_the_old_name(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Own:
        graphs: bool = setting(False, "graphs")

    settings.declare("cuda", Own)
    with pytest.warns(DeprecationWarning, match="cuda_graphs is a setting of the plugin cuda"):
        assert settings.current().cuda_graphs is False  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="there is no setting graphs"):
        _ = settings.current().graphs  # type: ignore[attr-defined]


@given(st.from_regex(r"[a-z][a-z0-9]*([_.-]{1,2}[a-z0-9]+)*", fullmatch=True))
def test_full_names_lead_back_to_the_plugin(plugin: str) -> None:
    name = setting_sources.full_name(plugin, "some_key")
    assert name.rpartition("__")[2] == "some_key"
    assert setting_sources.plugin_of(name) == setting_sources.key_of(plugin)
