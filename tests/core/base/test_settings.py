"""Settings: the precedence of sources, and refusals."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from dataclasses import Field, fields
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from ocannl_core.base import settings
from ocannl_core.base.errors import SettingsError
from ocannl_core.base.setting_formats import FLOAT_FORMATS, PROFILES
from ocannl_core.ir.numbers import dtypes


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory two levels below a project's, without settings in the environment."""
    for variable in [name for name in os.environ if name.startswith("OCANNL_")]:
        monkeypatch.delenv(variable)
    inner = tmp_path / "project" / "inner"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    return inner.parent


def source_of(name: str) -> str:
    return next(each.source for each in settings.describe() if each.name == name)


def test_every_setting_has_a_default_and_a_meaning() -> None:
    described = settings.describe()
    assert settings.current() == settings.Settings()
    assert {each.source for each in described} == {"default"}
    assert all(each.doc for each in described)
    assert [each.name for each in described] == list(settings.Settings.__dataclass_fields__)


def test_each_source_outranks_the_one_below(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.current().seed == 42
    config = project / "ocannl.toml"
    config.write_text("seed = 1\n")
    assert (settings.current().seed, source_of("seed")) == (1, str(config))
    monkeypatch.setenv("OCANNL_SEED", "2")
    assert (settings.current().seed, source_of("seed")) == (2, "OCANNL_SEED")
    with settings.overrides(seed=3) as inside:
        assert inside.seed == settings.current().seed == 3
        assert source_of("seed") == "overrides(...)"
        with settings.overrides(backend="interp"):
            assert settings.current().seed == 3
    assert settings.current().seed == 2


def test_the_command_line_is_between_overrides_and_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OCANNL_SEED", "2")
    monkeypatch.setattr(sys, "argv", ["program.py", "--epochs", "1", "--ocannl_seed=5"])
    assert (settings.current().seed, source_of("seed")) == (5, "--ocannl_seed")
    with settings.overrides(seed=3):
        assert settings.current().seed == 3


@pytest.mark.parametrize(
    ("argument", "name", "value"),
    [
        ("--ocannl_seed=5", "seed", 5),
        ("--OCANNL_Seed=5", "seed", 5),
        ("--ocannl-load-plugins=a,b", "load_plugins", ("a", "b")),
        ("--ocannl_schedule=NONE", "schedule", "none"),
        ("--ocannl_seed=", "seed", 42),
        ("--ocannl_seed", "seed", 42),
        ("--seed=5", "seed", 42),
        ("ocannl_seed=5", "seed", 42),
    ],
)
def test_an_option_is_read_by_the_kind_of_its_setting(
    monkeypatch: pytest.MonkeyPatch, argument: str, name: str, value: object
) -> None:
    monkeypatch.setattr(sys, "argv", ["program.py", argument])
    assert getattr(settings.current(), name) == value


def test_options_behind_two_dashes_belong_to_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["--ocannl_seed=5", "-n", "1", "--", "--ocannl_seed=6", "file"]
    monkeypatch.setattr(sys, "argv", ["program.py", *given])
    assert settings.current().seed == 5
    assert settings.other_arguments() == ["-n", "1", "--", "--ocannl_seed=6", "file"]
    assert settings.other_arguments(["--ocannl-seed=1", "x=y"]) == ["x=y"]


def test_wrong_options_are_errors_or_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_reported", set())
    monkeypatch.setattr(sys, "argv", ["program.py", "--ocannl_seed=four"])
    with pytest.raises(SettingsError) as caught:
        settings.current()
    assert caught.value.where == "command line, --ocannl_seed"
    monkeypatch.setattr(sys, "argv", ["program.py", "--ocannl_seed=4", "--ocannl-SEED=5"])
    with pytest.raises(SettingsError, match="A setting must have one value"):
        settings.current()
    monkeypatch.setattr(sys, "argv", ["program.py", "--ocannl_sede=4"])
    with pytest.warns(UserWarning, match="option --ocannl_sede is no setting: did you mean seed"):
        settings.current()


def test_overrides_end_with_their_block_even_if_it_raises() -> None:
    with pytest.raises(KeyError), settings.overrides(seed=3):
        raise KeyError
    assert settings.current().seed == 42


def test_held_settings_are_those_at_the_beginning_with_overrides_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OCANNL_SEED", "1")
    with settings.held():
        monkeypatch.setenv("OCANNL_SEED", "2")
        assert settings.current() is settings.current()
        assert settings.current().seed == 1
        with settings.overrides(log_runs=3):
            assert settings.current().log_runs == 3
            with settings.held():
                assert settings.current().log_runs == 3
        assert settings.current().log_runs == 0
        assert settings.current().seed == 1
    assert settings.current().seed == 2


def test_overrides_do_not_reach_other_threads() -> None:
    seen: list[int] = []
    with settings.overrides(seed=3):
        thread = threading.Thread(target=lambda: seen.append(settings.current().seed))
        thread.start()
        thread.join()
    assert seen == [42]


def test_a_variable_changes_the_settings_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in (5, 6):
        monkeypatch.setenv("OCANNL_SEED", str(seed))
        assert settings.current().seed == seed


def test_a_table_of_pyproject_holds_settings(project: Path) -> None:
    (project / "pyproject.toml").write_text(
        "[tool.other]\nseed = 9\n\n[tool.ocannl]\ndisable_plugins = ['a', 'b']\n"
    )
    assert settings.current().disable_plugins == ("a", "b")
    assert settings.current().seed == 42


def test_the_nearest_file_wins_and_ocannl_toml_wins_within_a_directory(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "pyproject.toml").write_text("[tool.ocannl]\nseed = 1\n")
    assert settings.current().seed == 1
    (project / "ocannl.toml").write_text("seed = 2\n")
    assert settings.current().seed == 2
    (project / "inner" / "pyproject.toml").write_text("[tool.ocannl]\nseed = 3\n")
    assert settings.current().seed == 3
    monkeypatch.chdir(project)
    assert settings.current().seed == 2


def test_a_pyproject_without_the_table_is_passed_over(project: Path) -> None:
    (project / "ocannl.toml").write_text("seed = 2\n")
    (project / "inner" / "pyproject.toml").write_text("[project]\nname = 'unrelated'\n")
    assert settings.current().seed == 2


def test_an_edited_file_is_read_again(project: Path) -> None:
    config = project / "ocannl.toml"
    config.write_text("seed = 1\n")
    assert settings.current().seed == 1
    config.write_text("seed = 2\n")
    os.utime(config, ns=(1, 1))
    assert settings.current().seed == 2


def message_of(project: Path, text: str) -> str:
    (project / "ocannl.toml").write_text(text)
    with pytest.raises(SettingsError) as caught:
        settings.current()
    return str(caught.value).replace(str(project), "PROJECT")


def test_an_unknown_key_without_close_ones_is_answered_with_all(project: Path) -> None:
    message = message_of(project, "color = 'red'\n")
    assert "try    the settings are accumulation, allow_nan, asynchronous," in message


def test_an_unknown_key_of_a_file_is_answered_with_close_ones(project: Path) -> None:
    assert message_of(project, "bakcend = 'interp'\n") == snapshot("""\
A setting must have a known name.
  found  bakcend
  where  PROJECT/ocannl.toml
  try    did you mean backend?\
""")


@pytest.mark.parametrize(
    ("name", "text", "fix"),
    [
        ("ocannl.toml", "[ocannl]\nseed = 1", ["remove the header [ocannl], and"]),
        ("ocannl.toml", "[tool.ocannl]\nseed = 1", ["remove the header [tool.ocannl], and"]),
        (
            "ocannl.toml",
            "[ocannl.plugins.chip]\nclock = 1",
            ["remove the header [ocannl.plugins.chip], and", "its table is [plugins.chip]"],
        ),
        (
            "pyproject.toml",
            "[tool.ocannl.chip]\nclock = 1",
            [
                "remove the header [tool.ocannl.chip], and",
                "its table is [tool.ocannl.plugins.chip]",
            ],
        ),
    ],
)
def test_a_table_of_a_file_is_answered_with_where_its_settings_stand(
    project: Path, name: str, text: str, fix: list[str]
) -> None:
    (project / name).write_text(text)
    with pytest.raises(SettingsError, match="A file has the settings of the core ") as caught:
        settings.current()
    lines = caught.value.fix.splitlines()
    assert [part in line for part, line in zip(fix, lines, strict=True)] == [True] * len(fix)


def test_a_seed_that_does_not_fit_is_refused_where_it_is_stated(project: Path) -> None:
    assert message_of(project, f"seed = {2**64}\n") == snapshot("""\
The setting `seed` must be an integer of 64 bits.
  found  18446744073709551616
  where  PROJECT/ocannl.toml\
""")


def test_a_value_of_the_wrong_kind_is_answered_with_the_right_kind(project: Path) -> None:
    assert message_of(project, "seed = 'four'\n") == snapshot("""\
The setting `seed` must be an integer of 64 bits.
  found  'four'
  where  PROJECT/ocannl.toml\
""")


def test_a_file_that_is_no_toml_is_named(project: Path) -> None:
    assert "PROJECT/ocannl.toml" in message_of(project, "seed = = 1\n")


def test_an_unknown_override_is_refused_before_the_block_runs() -> None:
    with pytest.raises(SettingsError) as caught, settings.overrides(sede=1):
        pytest.fail("the block ran")
    assert caught.value.fix.splitlines()[0] == snapshot("did you mean seed or schedule?")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", True),
        ("seed", "1"),
        ("strict_plugins", 1),
        ("load_plugins", "interp"),
        ("default_dtype", "int32"),
        ("log_runs", None),
        ("backend", 3),
    ],
)
def test_an_override_of_the_wrong_kind_is_refused(name: str, value: object) -> None:
    with pytest.raises(SettingsError), settings.overrides(**{name: value}):
        pytest.fail("the block ran")


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("OCANNL_SEED", "four"),
        ("OCANNL_TRUSTED_DIRECTORIES", "."),
        ("OCANNL_STRICT_PLUGINS", "maybe"),
        ("OCANNL_DEFAULT_DTYPE", "float"),
    ],
)
def test_a_variable_that_cannot_be_read_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(SettingsError) as caught:
        settings.current()
    assert variable in caught.value.where


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("OCANNL_LOAD_PLUGINS", "a, b", "load_plugins", ("a", "b")),
        ("OCANNL_LOAD_PLUGINS", "", "load_plugins", None),
        ("OCANNL_LOAD_PLUGINS", ",", "load_plugins", ()),
        ("OCANNL_DEFAULT_DTYPE", "Float64", "default_dtype", "float64"),
        ("OCANNL_SCHEDULE", "NONE", "schedule", "none"),
        ("ocannl_Seed", "7", "seed", 7),
        ("OCANNL_STRICT_PLUGINS", "Yes", "strict_plugins", True),
        ("OCANNL_STRICT_PLUGINS", "0", "strict_plugins", False),
        ("OCANNL_BACKEND", "", "backend", None),
        ("OCANNL_CACHE_DIR", "/tmp/x", "cache_dir", "/tmp/x"),
    ],
)
def test_the_text_of_a_variable_is_read_by_the_kind_of_its_setting(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, name: str, value: object
) -> None:
    monkeypatch.setenv(variable, text)
    assert getattr(settings.current(), name) == value


@pytest.mark.parametrize("setting", fields(settings.Settings), ids=lambda each: each.name)
@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_variable_means_the_default(
    project: Path, monkeypatch: pytest.MonkeyPatch, setting: Field[object], text: str
) -> None:
    monkeypatch.setenv(f"OCANNL_{setting.name.upper()}", text)
    assert settings.current() == settings.Settings()
    assert source_of(setting.name) == f"OCANNL_{setting.name.upper()}"


def test_an_empty_text_in_a_file_means_the_default(project: Path) -> None:
    (project / "ocannl.toml").write_text("seed = ''\nlog_runs = ''\n")
    assert settings.current() == settings.Settings()


def test_names_in_a_file_are_read_without_regard_to_case(project: Path) -> None:
    (project / "ocannl.toml").write_text("Seed = 3\n")
    assert settings.current().seed == 3
    (project / "ocannl.toml").write_text("Seed = 3\nseed = 4\n")
    with pytest.raises(SettingsError, match="must have one value"):
        settings.current()


def test_the_variable_in_capitals_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ocannl_seed", "1")
    monkeypatch.setenv("OCANNL_SEED", "2")
    monkeypatch.setenv("Ocannl_Seed", "3")
    assert settings.current().seed == 2


def test_an_unknown_variable_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_reported", set())
    monkeypatch.setenv("OCANNL_BAKEND", "interp")
    with pytest.warns(UserWarning, match="OCANNL_BAKEND is no setting: did you mean backend"):
        settings.current()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings.current()


def test_the_default_number_format_is_any_float() -> None:
    floats = {dtype.name for dtype in dtypes.ALL if dtype.is_float}
    assert set(FLOAT_FORMATS) == floats


def test_the_cache_directory_follows_the_setting_then_the_desktop_convention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert settings.cache_directory() == tmp_path / "ocannl"
    with settings.overrides(cache_dir=tmp_path / "elsewhere"):
        assert settings.cache_directory() == tmp_path / "elsewhere"


@pytest.mark.parametrize("variable", ["OCANNL_CACHE_DIR", "XDG_CACHE_HOME"])
def test_a_cache_directory_whose_name_is_no_text_is_an_error(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, os.fsdecode(b"/tmp/\xff"))
    with pytest.raises(SettingsError, match="UTF-8") as caught:
        settings.cache_directory()
    assert r"/tmp/\udcff" in caught.value.found


def test_a_user_without_a_home_has_to_name_a_cache_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(SettingsError) as caught:
        settings.cache_directory()
    assert str(caught.value) == snapshot("""\
The cache directory must be in a home directory.
  found  '~/.cache/ocannl'
  try    set OCANNL_CACHE_DIR to another directory of your own\
""")


def test_a_profile_stands_for_a_group_of_settings() -> None:
    with settings.overrides(profile="reproducible") as inside:
        assert (inside.schedule, inside.accumulation) == ("none", "exact")
        assert (inside.contract, inside.tune) == (False, "off")
        assert source_of("contract") == "profile reproducible, overrides(...)"
        assert source_of("seed") == "default"


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_a_profile_states_possible_values_of_known_settings(profile: str) -> None:
    values = PROFILES[profile]
    with settings.overrides(**values) as expected, settings.overrides(profile=profile) as inside:
        assert {name: getattr(inside, name) for name in values} == values
        assert {name: getattr(expected, name) for name in values} == values


def test_the_settings_of_a_source_outrank_its_profile_and_that_outranks_weaker_sources(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = project / "ocannl.toml"
    config.write_text('profile = "reproducible"\ncontract = true\ntune = "cached"\n')
    assert (settings.current().contract, settings.current().schedule) == (True, "none")
    monkeypatch.setenv("OCANNL_PROFILE", "performance")
    monkeypatch.setenv("OCANNL_TUNE_PLACEMENTS", "0")
    chosen = settings.current()
    assert (chosen.tune, chosen.tune_placements) == ("search", False)
    assert chosen.accumulation == "float32"  # nothing is left of the profile of the file
    with settings.overrides(schedule="none"), settings.overrides(profile="approximate") as inner:
        assert (inner.schedule, inner.accumulation) == ("default", "fast")
        with settings.overrides(schedule="none", profile="approximate") as own:
            assert own.schedule == "none"
        with settings.overrides(profile=None) as without:
            assert (without.schedule, without.accumulation) == ("none", "float32")
            assert (without.tune, without.contract) == ("cached", True)


def test_an_unknown_profile_names_the_known_ones() -> None:
    with pytest.raises(SettingsError) as caught, settings.overrides(profile="fastest"):
        pass
    assert str(caught.value) == snapshot("""\
The setting `profile` must be one of reproducible, performance, approximate.
  found  'fastest'
  where  overrides(...)\
""")


@pytest.mark.parametrize("size", ["99999999999999999999G", "8589934592G", 1 << 63, -1])
def test_more_bytes_than_an_address_space_has_are_refused(size: str | int) -> None:
    with pytest.raises(SettingsError, match="below 2"):
        settings.overrides(memory_budget=size).__enter__()
    with settings.overrides(memory_budget=(1 << 63) - 1):
        assert settings.current().memory_budget == (1 << 63) - 1


@pytest.mark.parametrize("name", ["max_visits", "max_tracing_dim", "half_constant_cutoff"])
def test_numbers_of_things_are_not_negative(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name}.* integer"), settings.overrides(**{name: -1}):
        pass
