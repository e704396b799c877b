"""Compiled kernels on disk, found by keys of their text.

    <cache directory>/<backend>/<identity>/objects/<hash><suffix>  the results of a compiler
                                           ir/kernels/<key>.json      the object of a kernel

The identity covers the compiler, its flags and the processor. Objects are named after a hash of
their bytes. When there are too many files, the least recently used half is removed. There are no
locks: files are renamed into place when complete, and those whose digest differs count as missing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import field
from functools import lru_cache
from pathlib import Path

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.files.digests import add_json_digest, strip_json_digest
from ocannl_core.base.files.directory import (
    PrivateDirectory,
    private_directory,
    temporary_directory,
)

_MOST_FILES = 4000
"""The greatest number of objects and sources, some hundred megabytes."""
_LARGEST_RECORD = 1 << 12
_MOST_RECENT = 8


@dataclass(frozen=True, slots=True)
class CachedObject:
    """Compiled kernels.

    Attributes:
        name: The name of the file, which is that of its bytes.
        content: The bytes.
        directory: The directory of the file.
    """

    name: str
    content: bytes = field(repr=False, compare=False)
    directory: PrivateDirectory = field(repr=False, compare=False)


class ObjectCache:
    """The compiled kernels of one compiler for one kind of processor.

    Args:
        root: The directory of all such caches of a backend.
        identity: The name of this one.
        suffix: The end of the names of objects, such as `.so`.
        is_temporary: True if it replaces a cache that cannot be written.

    Attributes:
        objects: The directory of the objects, and of sources beside them.
        kernels: The directory of the records of kernels.
        scratch: The directory of unfinished files.
        is_temporary: As given.

    Raises:
        OSError: if its directories cannot be made.
    """

    def __init__(
        self, root: PrivateDirectory, identity: str, suffix: str, *, is_temporary: bool = False
    ) -> None:
        own = root.child(identity)
        self.objects = own.child("objects")
        self.kernels = own.child("kernels")
        self.scratch = root.scratch
        self.is_temporary = is_temporary
        self._root = root
        self._identity = identity
        self._suffix = suffix
        self._recent: dict[str, CachedObject] = {}

    def is_current(self) -> bool:
        """Return True if its directories still exist and are still private."""
        return all(each.is_current() for each in (self.scratch, self.objects, self.kernels))

    def find(self, key: str) -> CachedObject | None:
        """Return the object that has a kernel; None if there is none, or its digest differs."""
        record = _record(self.kernels, f"{key}.json")
        return None if record is None else self._intact(record)

    def add(self, keys: Iterable[str], content: bytes) -> CachedObject:
        """Store an object that has these kernels.

        Raises:
            OSError: if it cannot be written.
        """
        found = CachedObject(self._name(content), content, self.objects)
        self.objects.write(found.name, content)
        for key in keys:
            record = f"{key}.json"
            self.kernels.write(record, add_json_digest(record, {"object": found.name}))
        return found

    def drop_old(self) -> None:
        """Remove the least recently used half of the files of all identities, if there are too
        many.
        """
        files = [
            (place, name) for place in self._places("objects") for name in place.removable_names()
        ]
        if len(files) <= _MOST_FILES:
            return
        files.sort(key=lambda each: each[0].last_use(each[1]))
        for place, name in files[: len(files) // 2]:
            place.remove(name)
        left = {name for _, name in files[len(files) // 2 :]}
        for place in self._places("kernels"):
            for name in place.removable_names():
                if _record(place, name) not in left:
                    place.remove(name)

    def replacement(self, error: OSError) -> ObjectCache:
        """Return a cache in a temporary directory, after a warning.

        Args:
            error: The reason why this one cannot be used.

        Raises:
            OSError: if there is no temporary directory.
        """
        place = self._root.path
        return _temporary(place, place.name, self._identity, self._suffix, error)

    def _name(self, content: bytes) -> str:
        return f"{hashlib.sha256(content).hexdigest()}{self._suffix}"

    def _intact(self, name: str) -> CachedObject | None:
        """Return an object if its digest is right; consecutive kernels of one object read it
        once.
        """
        found = self._recent.get(name)
        if found is None:
            is_name = name.endswith(self._suffix) and name.removesuffix(self._suffix).isalnum()
            content = self.objects.read(name, is_use=True) if is_name else None
            if content is None or self._name(content) != name:
                return None
            found = self._recent[name] = CachedObject(name, content, self.objects)
            while len(self._recent) > _MOST_RECENT:
                self._recent.pop(next(iter(self._recent)), None)  # another thread may have
        return found

    def _places(self, name: str) -> list[PrivateDirectory]:
        """Return the directories of this name of all identities."""
        found = []
        for identity in self._root.names():
            with suppress(OSError):
                found.append(self._root.existing_child(identity).existing_child(name))
        return found


def object_cache(directory: Path, backend: str, identity: str, suffix: str) -> ObjectCache:
    """Return a cache in the user's cache directory, or in a temporary one after a warning.

    Args:
        directory: The user's cache directory.
        backend: The name of the directory of the backend.
        identity: The name of the cache.
        suffix: The end of the names of objects, such as `.so`.

    Raises:
        OSError: if no temporary directory can be made either.
    """
    found = _opened(directory, backend, identity, suffix)
    if not found.is_current():
        _opened.cache_clear()
        found = _opened(directory, backend, identity, suffix)
    return found


@lru_cache(maxsize=8)
def _opened(directory: Path, backend: str, identity: str, suffix: str) -> ObjectCache:
    try:
        return ObjectCache(private_directory(directory, backend), identity, suffix)
    except OSError as error:
        return _temporary(directory, backend, identity, suffix, error)


def _temporary(
    refused: Path, backend: str, identity: str, suffix: str, error: OSError
) -> ObjectCache:
    root = temporary_directory(refused, backend, error)
    return ObjectCache(root, identity, suffix, is_temporary=True)


def _record(place: PrivateDirectory, name: str) -> str | None:
    """Return the name of the object of a kernel; None if its record is damaged."""
    content = place.read(name, limit=_LARGEST_RECORD)
    record = None if content is None else strip_json_digest(name, content)
    return None if record is None else str(record.get("object"))
