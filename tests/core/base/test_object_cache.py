"""Compiled objects on disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ocannl_core.base.files import object_cache
from ocannl_core.base.files.digests import add_json_digest
from ocannl_core.base.files.directory import PrivateDirectory, open_private
from ocannl_core.base.files.object_cache import ObjectCache


@pytest.fixture
def root(tmp_path: Path) -> PrivateDirectory:
    return open_private(tmp_path / "cache", create=True).child("backend")


@pytest.fixture
def compiled(root: PrivateDirectory) -> ObjectCache:
    return ObjectCache(root, "compiler", ".code")


def test_kernels_of_one_object_are_found_by_their_keys(compiled: ObjectCache) -> None:
    added = compiled.add(["a", "b"], b"the code of both")
    assert compiled.find("a") == compiled.find("b") == added
    assert added.content == b"the code of both"
    assert compiled.find("c") is None


def test_stored_objects_are_found_by_other_processes(root: PrivateDirectory) -> None:
    added = ObjectCache(root, "compiler", ".code").add(["a"], b"code")
    again = ObjectCache(root, "compiler", ".code").find("a")
    assert again == added
    assert again is not None
    assert again.content == b"code"
    assert ObjectCache(root, "another compiler", ".code").find("a") is None


@pytest.mark.parametrize("content", [b"", b"cod", b"codE", b"code and more"])
def test_a_damaged_object_counts_as_missing(root: PrivateDirectory, content: bytes) -> None:
    name = ObjectCache(root, "compiler", ".code").add(["a"], b"code").name
    compiled = ObjectCache(root, "compiler", ".code")
    (compiled.objects.path / name).write_bytes(content)
    assert compiled.find("a") is None
    compiled.add(["a"], b"code")
    assert compiled.find("a") is not None


def test_a_record_is_found_under_its_own_key_alone(compiled: ObjectCache) -> None:
    compiled.add(["a"], b"code")
    os.rename(compiled.kernels.path / "a.json", compiled.kernels.path / "b.json")
    assert compiled.find("a") is None
    assert compiled.find("b") is None


@pytest.mark.parametrize("name", ["../secret.code", "/etc/passwd", "secret.txt", ".code", ""])
def test_a_record_names_no_file_elsewhere(compiled: ObjectCache, name: str) -> None:
    (compiled.objects.path / ".." / "secret.code").write_bytes(b"secret")
    compiled.kernels.write("a.json", add_json_digest("a.json", {"object": name}))
    assert compiled.find("a") is None


def test_the_files_used_least_recently_are_removed_first(
    root: PrivateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit holds for the objects of all compilers; records of removed objects go, too."""
    monkeypatch.setattr(object_cache, "_MOST_FILES", 5)
    names = ("compiler", "another")
    stored = [ObjectCache(root, name, ".code") for name in names]

    def add(number: int) -> None:
        added = stored[number % 2].add([f"{number:032x}"], b"code %d" % number)
        os.utime(added.path, (number, number))

    for number in range(5):
        add(number)
    stored[0].drop_old()
    assert len(list(root.path.rglob("*.code"))) == 5
    add(5)
    stored[0].drop_old()
    assert len(list(root.path.rglob("*.code"))) == 3
    assert sorted(each.stem for each in root.path.rglob("*.json")) == [
        f"{k:032x}" for k in (3, 4, 5)
    ]
    again = [ObjectCache(root, name, ".code") for name in names]
    assert [again[number % 2].find(f"{number:032x}") is not None for number in range(6)] == [
        *[False] * 3,
        *[True] * 3,
    ]
