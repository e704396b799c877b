"""Discovery of configuration files, and settings that a project's file may contain."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from ocannl_core.base import config_files, settings
from ocannl_core.base.errors import SettingsError, warn_once

OTHER = 65001
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory in a project's, and a user with an empty configuration directory."""
    for variable in [name for name in os.environ if name.startswith("OCANNL_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    inner = tmp_path / "project" / "inner"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    warn_once.cache_clear()
    return inner.parent


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The user's own file."""
    path = tmp_path / "config" / "ocannl" / "ocannl.toml"
    path.parent.mkdir(parents=True)
    return path


def source_of(name: str) -> str:
    return next(each.source for each in settings.describe() if each.name == name)


def warning(tmp_path: Path) -> str:
    """Return the one warning of looking at the settings twice."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        settings.current()
        settings.current()
    (only,) = caught
    assert only.category is UserWarning
    return str(only.message).replace(str(tmp_path), "TMP")


def test_the_order_of_sources(project: Path, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own.write_text("seed = 1\n")
    assert (settings.current().seed, source_of("seed")) == (1, str(own))
    (project / "ocannl.toml").write_text("seed = 2\n")
    assert settings.current().seed == 2
    monkeypatch.setenv("OCANNL_SEED", "3")
    assert settings.current().seed == 3
    with settings.overrides(seed=4):
        assert settings.current().seed == 4


def test_the_users_own_file_chooses_everything(own: Path) -> None:
    own.write_text(
        "timeline = '/t'\ncache_dir = '/c'\ndump_dir = '/d'\nload_plugins = ['interp']\n"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = settings.current()
    assert (found.timeline, found.cache_dir, found.dump_dir) == ("/t", "/c", "/d")
    assert found.load_plugins == ("interp",)


def test_the_users_own_file_stays_that_from_its_own_directory(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.write_text("timeline = 'gcc'\n")
    monkeypatch.chdir(own.parent)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert settings.current().timeline == "gcc"


def test_the_users_own_file_has_to_be_the_users_own(tmp_path: Path, own: Path) -> None:
    own.write_text("seed = 1\n")
    own.chmod(0o666)
    assert warning(tmp_path) == snapshot(
        "The configuration file TMP/config/ocannl/ocannl.toml is not used: another user may have written it (TMP/config/ocannl/ocannl.toml: every user can write to it). Let only yourself write to it, and to the directory that it is in."
    )
    assert settings.current().seed == 42


def test_without_a_home_directory_there_is_no_such_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert config_files.user_path() == ""
    assert settings.current() == settings.Settings()


@pytest.mark.parametrize("name", ["ocannl.toml", "pyproject.toml"])
def test_a_file_that_others_write_to_is_passed_over(
    tmp_path: Path, project: Path, name: str
) -> None:
    (tmp_path / "ocannl.toml").write_text("seed = 1\n")
    (project / name).write_text(
        "seed = 2\n" if name == "ocannl.toml" else "[tool.ocannl]\nseed = 2\n"
    )
    (project / name).chmod(0o666)
    found = warning(tmp_path)
    assert found.startswith(f"The configuration file TMP/project/{name} is not used: another user")
    assert "OCANNL_TRUSTED_DIRECTORIES=TMP/project." in found
    assert settings.current().seed == 1


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_a_file_in_a_directory_that_others_write_to_is_passed_over(
    tmp_path: Path, project: Path, mode: int
) -> None:
    """Also where only owners replace files: another user may have linked it there."""
    (project / "ocannl.toml").write_text("seed = 2\n")
    project.chmod(mode)
    assert f"TMP/{project.name}: every user can write to it" in warning(tmp_path)
    assert settings.current().seed == 42


def test_a_link_where_others_can_make_some_is_passed_over(tmp_path: Path, project: Path) -> None:
    own = tmp_path / "other.toml"
    own.write_text("seed = 2\n")
    (project / "ocannl.toml").symlink_to(own)
    project.chmod(0o1777)
    assert f"TMP/{project.name}: every user can write to it" in warning(tmp_path)
    assert settings.current().seed == 42


@as_root
def test_a_file_of_another_user_is_ignored(tmp_path: Path, project: Path) -> None:
    path = project / "ocannl.toml"
    path.write_text("seed = 2\n")
    os.chown(path, OTHER, OTHER)
    assert "ocannl.toml: it belongs to user 65001" in warning(tmp_path)
    assert settings.current().seed == 42


def test_other_peoples_files_about_other_things_cause_no_warning(project: Path) -> None:
    (project / "pyproject.toml").write_text("[project]\nname = 'unrelated'\nbroken = \n")
    (project / "pyproject.toml").chmod(0o666)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings.current()


@pytest.mark.parametrize("name", ["ocannl.toml", "pyproject.toml"])
@pytest.mark.parametrize("kind", ["fifo", "folder", "zeros"])
def test_a_configuration_path_that_is_no_regular_file_is_ignored(
    project: Path, name: str, kind: str
) -> None:
    path = project / name
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case _:
            path.symlink_to("/dev/zero")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert settings.current() == settings.Settings()


def test_a_file_that_becomes_the_users_own_is_used(project: Path) -> None:
    path = project / "ocannl.toml"
    path.write_text("seed = 2\n")
    path.chmod(0o666)
    with pytest.warns(UserWarning, match="another user may have written it"):
        assert settings.current().seed == 42
    path.chmod(0o644)
    assert settings.current().seed == 2


CHOICES = {
    "cache_dir": "'cache'",
    "dump_dir": "'dump'",
    "load_plugins": "['evil']",
    "timeline": "'trace.json'",
    "trusted_directories": "['/']",
}


def test_these_settings_need_trust() -> None:
    assert settings._TABLE.in_trusted_files == CHOICES.keys()


@pytest.mark.parametrize("name", CHOICES)
def test_a_projects_file_sets_no_commands_and_directories(
    tmp_path: Path, project: Path, name: str
) -> None:
    (project / "ocannl.toml").write_text(f"seed = 3\n{name} = {CHOICES[name]}\n")
    found = warning(tmp_path)
    assert found.startswith(f"The setting {name} of TMP/project/ocannl.toml is not used: ")
    for remedy in (
        f"OCANNL_{name.upper()}",
        "TMP/config/ocannl/ocannl.toml",
        "OCANNL_TRUSTED_DIRECTORIES=TMP/project",
    ):
        assert remedy in found
    assert settings.current() == settings.Settings(seed=3)


def test_settings_that_a_project_may_not_set_keep_the_users_values(
    project: Path, own: Path
) -> None:
    own.write_text("timeline = 'gcc'\n")
    (project / "pyproject.toml").write_text("[tool.ocannl]\ntimeline = './evil'\n")
    with pytest.warns(UserWarning, match=r"pyproject.toml, table \[tool.ocannl\]"):
        assert settings.current().timeline == "gcc"


@pytest.mark.parametrize("by", ["variable", "file", "override"])
def test_a_trusted_directory_chooses_everything(
    tmp_path: Path, project: Path, own: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    path = project / "ocannl.toml"
    path.write_text("timeline = './good'\n")
    path.chmod(0o666)  # trusted, although anybody can write it
    trusted: dict[str, object] = {}
    match by:
        case "variable":
            monkeypatch.setenv("OCANNL_TRUSTED_DIRECTORIES", f"/nowhere, {project}")
        case "file":
            own.write_text(f"trusted_directories = ['{tmp_path}']\n")
        case _:
            trusted = {"trusted_directories": [str(tmp_path)]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with settings.overrides(**trusted):
            assert settings.current().timeline == "./good"


def test_the_directory_beside_a_trusted_one_is_not_trusted(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "ocannl.toml").write_text("timeline = './evil'\n")
    monkeypatch.setenv("OCANNL_TRUSTED_DIRECTORIES", str(project)[:-1])
    with pytest.warns(UserWarning, match="The setting timeline"):
        assert settings.current().timeline is None


SPELLINGS = [
    "[tool.ocannl]\nseed = 7",
    "[ tool . ocannl ]\nseed = 7",
    "[tool.'ocannl']\nseed = 7",
    '["tool"."ocannl"]\nseed = 7',
    "[tool]\nocannl = {seed = 7}",
    "[tool]\nocannl.seed = 7",
    "tool = {ocannl = {seed = 7}}",
    "tool.ocannl.seed = 7",
    "[tool]\n[tool.ocannl] # settings\nseed = 7",
]


@pytest.mark.parametrize("text", SPELLINGS)
def test_the_table_is_found_however_it_is_written(project: Path, text: str) -> None:
    (project / "pyproject.toml").write_text(text)
    assert settings.current().seed == 7


@pytest.mark.parametrize("name", ["ocannl.toml", "pyproject.toml"])
def test_a_file_may_begin_with_a_byte_order_mark(project: Path, name: str) -> None:
    text = "seed = 7\n" if name == "ocannl.toml" else "[tool.ocannl]\nseed = 7\n"
    (project / name).write_text(text, encoding="utf-8-sig")
    assert settings.current().seed == 7


@pytest.mark.parametrize("text", SPELLINGS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_broken_file_that_may_hold_the_table_is_an_error(
    project: Path, text: str, encoding: str
) -> None:
    path = project / "pyproject.toml"
    broken = f"name = = \n{text}" if encoding == "utf-8" else text
    path.write_text(broken, encoding=encoding)
    with pytest.raises(SettingsError, match="must be TOML") as caught:
        settings.current()
    assert caught.value.where == str(path)


def test_a_table_that_is_none_is_an_error(project: Path) -> None:
    (project / "pyproject.toml").write_text("[tool]\nocannl = 3\n")
    with pytest.raises(SettingsError) as caught:
        settings.current()
    assert str(caught.value).replace(str(project), "PROJECT") == snapshot("""\
The settings of a project are a table, [tool.ocannl].
  found  3
  where  PROJECT/pyproject.toml\
""")


def test_a_mere_mention_is_no_table(project: Path) -> None:
    (project.parent / "ocannl.toml").write_text("seed = 2\n")
    (project / "pyproject.toml").write_text(
        "[project]\ndependencies = ['ocannl-core']\n[tool.other]\npackages = ['ocannl']\n"
    )
    assert settings.current().seed == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_of_the_user_that_cannot_be_read_is_an_error(project: Path) -> None:
    path = project / "ocannl.toml"
    path.write_text("seed = 1\n")
    path.chmod(0)
    with pytest.raises(SettingsError, match="must be readable"):
        settings.current()
