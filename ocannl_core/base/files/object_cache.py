"""Compiled kernels on disk, found by keys of their text.

    <cache directory>/<backend>/<identity>/objects/<hash><suffix>  the results of a compiler
                                           ir/kernels/<key>.json      the object of a kernel

The identity covers the compiler, its flags and the processor. Objects are named after a hash of
their bytes. When there are too many files, the least recently used half is removed. There are no
locks: files are renamed into place when complete, and a file whose digest differs is a missing one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import field
from pathlib import Path

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.files.digests import add_json_digest, strip_json_digest
from ocannl_core.base.files.directory import PrivateDirectory, open_private, temporary_directory

_MOST_FILES = 4000
"""The greatest number of objects and sources, some hundred megabytes."""
_LARGEST_RECORD = 1 << 12


@dataclass(frozen=True, slots=True)
class CachedObject:
    """Compiled kernels.

    Attributes:
        name: The name of the file, a hash of its bytes.
    """

    name: str
    content: bytes = field(repr=False, compare=False)
    path: Path = field(repr=False, compare=False)


class ObjectCache:
    """The compiled kernels of one compiler for one kind of processor.

    Args:
        root: The directory of all such caches of a backend.
        identity: The name of this one.
        suffix: The end of the names of objects, such as `.so`.

    Attributes:
        objects: The directory of the objects, and of sources beside them.
        kernels: The directory of the records of kernels.
        scratch: The directory of unfinished files.

    Raises:
        OSError: if its directories cannot be made.
    """

    def __init__(self, root: PrivateDirectory, identity: str, suffix: str) -> None:
        self.objects = root.child(identity, "objects")
        self.kernels = root.child(identity, "kernels")
        self.scratch = root.scratch
        self._root = root
        self._identity = identity
        self._suffix = suffix
        self._recent: dict[str, CachedObject] = {}

    def find(self, key: str) -> CachedObject | None:
        """Return the object that has a kernel; None if it is missing, or its digest differs."""
        name = _object_name(self.kernels, f"{key}.json")
        return None if name is None else self._intact(name)

    def add(self, keys: Iterable[str], content: bytes) -> CachedObject:
        """Store an object that has these kernels.

        Raises:
            OSError: if it cannot be written.
        """
        name = self._name(content)
        self.objects.write(name, content)
        for key in keys:
            record = f"{key}.json"
            self.kernels.write(record, add_json_digest(record, {"object": name}))
        return CachedObject(name, content, self.objects.path / name)

    def drop_old(self) -> None:
        """Remove the least recently used half of all files, if there are too many."""
        owns = []
        for identity in self._root.names():
            with suppress(OSError):
                owns.append(self._root.existing_child(identity))
        places = [own.child("objects") for own in owns]
        files = [(place.last_use(n), n, place) for place in places for n in place.removable_names()]
        if len(files) <= _MOST_FILES:
            return
        files.sort(key=lambda each: each[:2])
        half = len(files) // 2
        for _, name, place in files[:half]:
            place.remove(name)
        left = {name for _, name, _ in files[half:]}
        for place in [own.child("kernels") for own in owns]:
            for name in place.removable_names():
                if _object_name(place, name) not in left:
                    place.remove(name)

    def replacement(self, error: OSError) -> ObjectCache:
        """Return a cache in a temporary directory, after a warning with the reason why this one
        cannot be used.

        Raises:
            CompileError: if a limit of the process is reached.
            OSError: if there is no temporary directory.
        """
        place = self._root.path
        return _temporary(place, place.name, self._identity, self._suffix, error)

    def _name(self, content: bytes) -> str:
        return f"{hashlib.sha256(content).hexdigest()}{self._suffix}"

    def _intact(self, name: str) -> CachedObject | None:
        """Return an object if its digest is right; consecutive kernels read it once."""
        if name not in self._recent:
            is_name = name.endswith(self._suffix) and name.removesuffix(self._suffix).isalnum()
            content = self.objects.read(name, is_use=True) if is_name else None
            if content is None or self._name(content) != name:
                return None
            self._recent[name] = CachedObject(name, content, self.objects.path / name)
        return self._recent[name]


def object_cache(directory: Path, backend: str, identity: str, suffix: str) -> ObjectCache:
    """Return a cache in the user's cache directory, or in a temporary one after a warning.

    Raises:
        CompileError: if a limit of the process is reached.
        OSError: if no temporary directory can be made either.
    """
    try:
        root = open_private(directory, create=True).child(backend)
        return ObjectCache(root, identity, suffix)
    except OSError as error:
        return _temporary(directory, backend, identity, suffix, error)


def _temporary(
    refused: Path, backend: str, identity: str, suffix: str, error: OSError
) -> ObjectCache:
    root = temporary_directory(refused, backend, error=error)
    return ObjectCache(root, identity, suffix)


def _object_name(place: PrivateDirectory, name: str) -> str | None:
    """Return the name of the object of a kernel; None if its record is missing or damaged."""
    content = place.read(name, limit=_LARGEST_RECORD)
    record = None if content is None else strip_json_digest(name, content)
    return None if record is None else str(record.get("object"))
