"""Tests write to directories of their run, and a test that writes elsewhere fails."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import ocannl_core as oc
from ocannl_core.base import settings
from tests.support.isolation import ROOT, WrittenFiles, environment_of, take_measurements

IDENTITY = "import os, ocannl_core; from ocannl_core.base import settings; "


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that stands for the checkout, and is the working directory."""
    folder = tmp_path / "checkout"
    (folder / "docs").mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def written(checkout: Path, tmp_path: Path) -> WrittenFiles:
    (tmp_path / "temporary").mkdir()
    found = WrittenFiles(checkout, tmp_path / "temporary")
    found.watch()
    return found


def test_files_that_stay_in_the_checkout_are_found(written: WrittenFiles, checkout: Path) -> None:
    Path("network.svg").write_text("<svg/>")
    (checkout / "docs" / "page").mkdir()
    os.close(os.open("opened", os.O_CREAT | os.O_WRONLY))
    Path("old").touch()
    Path("old").rename("new")
    names = ("network.svg", "docs/page", "opened", "new")
    assert written.take() == [str(checkout / name) for name in names]
    assert written.take() == []


def test_files_that_are_read_or_removed_are_none(written: WrittenFiles, checkout: Path) -> None:
    Path("removed").write_text("")
    Path("removed").unlink()
    assert os.listdir() == ["docs"]
    with pytest.raises(FileNotFoundError):
        Path("removed").read_text()
    assert written.take() == []


def test_temporary_directories_and_those_of_tools_are_for_files(
    written: WrittenFiles, checkout: Path, tmp_path: Path
) -> None:
    (tmp_path / "temporary" / "file").write_text("")
    (checkout / "__pycache__").mkdir()
    (checkout / "__pycache__" / "module.pyc").write_text("")
    Path("/dev/null").write_text("")
    with tempfile.TemporaryFile(dir=tmp_path / "temporary") as file:  # opens the directory
        file.write(b"no name")
    assert written.take() == []


def test_files_of_a_private_directory_are_not_taken_for_those_of_the_working_directory(
    written: WrittenFiles, tmp_path: Path
) -> None:
    directory = os.open(tmp_path / "temporary", os.O_RDONLY)
    os.mkdir("inside", dir_fd=directory)
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=directory))
    os.rename("file", "other", src_dir_fd=directory, dst_dir_fd=directory)
    os.close(directory)
    assert written.take() == []


def test_files_of_this_checkout_are_found(written_files: WrittenFiles) -> None:
    path = ROOT / "left_by_a_test"
    path.touch()
    try:
        assert written_files.take() == [str(path)]
    finally:
        path.unlink()


def test_programs_and_their_children_have_the_private_cache_of_the_run() -> None:
    cache = settings.cache_directory()
    program = f"{IDENTITY}print(settings.cache_directory(), os.path.expanduser('~'))"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    home = os.path.expanduser("~")
    assert child.stdout.split() == [str(cache), home]
    assert cache.parents[1] == Path(home).parent
    for each in (cache, Path(home)):
        assert each.stat().st_mode & 0o777 == 0o700


def test_code_of_routines_is_not_saved(tmp_path: Path) -> None:
    with oc.Session(), settings.overrides(cache_dir=str(tmp_path)):
        assert oc.Context("cpu_c").compile(oc.train.forward(oc.tensor([1.25]) * 3.5)).source
    assert (tmp_path / "cpu_c").exists()
    assert not (tmp_path / "routines").exists()


def test_schedules_that_were_tuned_before_are_not_there(tmp_path: Path) -> None:
    for name in ("schedules", "routines", "kernels", "cpu_c"):
        (tmp_path / "cache" / "ocannl" / name / "device").mkdir(parents=True)
    cache = environment_of(tmp_path)["OCANNL_CACHE_DIR"]
    assert os.listdir(cache) == ["cpu_c"]


def test_schedules_in_the_cache_of_the_run_are_found_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "ocannl" / "schedules" / "device").mkdir(parents=True)
    assert take_measurements() == ["schedules"]
    assert take_measurements() == []
