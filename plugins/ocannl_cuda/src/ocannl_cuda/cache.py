"""Compiled kernels on disk, found by their content.

    <cache directory>/cuda/<identity>/cubins/<hash>.cubin   the results of the compiler
                                      kernels/<symbol>.json the cubin that has a kernel

The identity covers the compiler, the architecture and the text in front of all kernels; the symbol
of a kernel is a hash of its text. Files are renamed into place when complete; those whose digest
differs are built again. When there are too many cubins, the least recently used half is removed.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from ocannl_core.backend_api import dataclass, settings
from ocannl_core.backend_api.files import (
    PrivateDirectory,
    add_json_digest,
    private_directory,
    strip_json_digest,
    temporary_directory,
)

_MOST_CUBINS = 2000
_LARGEST_RECORD = 1 << 12


@dataclass(frozen=True, slots=True)
class Cubin:
    """Compiled kernels.

    Attributes:
        digest: The hash of the content.
        content: The code, for the driver.
    """

    digest: str
    content: bytes

    @classmethod
    def of(cls, content: bytes) -> Cubin:
        return cls(hashlib.sha256(content).hexdigest(), content)


class DiskCache:
    """The compiled kernels of one compiler for one architecture.

    Args:
        root: The directory of all such caches.
        identity: The name of this one.

    Raises:
        OSError: if its directories cannot be made.
    """

    def __init__(self, root: PrivateDirectory, identity: str) -> None:
        own = root.child(identity)
        self._cubins = own.child("cubins")
        self._kernels = own.child("kernels")
        self._recent: dict[str, Cubin] = {}

    def is_current(self) -> bool:
        """Return True if its directories still exist and are still private."""
        return self._cubins.is_current() and self._kernels.is_current()

    def find(self, symbol: str) -> Cubin | None:
        """Return the cubin that has a kernel; None if there is none, or its digest differs."""
        name = f"{symbol}.json"
        content = self._kernels.read(name, limit=_LARGEST_RECORD)
        record = None if content is None else strip_json_digest(name, content)
        return None if record is None else self._intact(str(record.get("cubin")))

    def add(self, symbols: list[str], content: bytes) -> Cubin:
        """Store a cubin that has these kernels.

        Raises:
            OSError: if it cannot be written.
        """
        cubin = Cubin.of(content)
        self._cubins.write(f"{cubin.digest}.cubin", content)
        for symbol in symbols:
            record = f"{symbol}.json"
            self._kernels.write(record, add_json_digest(record, {"cubin": cubin.digest}))
        self._drop_old()
        return cubin

    def keep_source(self, name: str, text: str) -> Path:
        """Write a source that was rejected, for the reader of the error; return its path."""
        self._cubins.write(name, text.encode())
        return self._cubins.path / name

    def _intact(self, digest: str) -> Cubin | None:
        """Return a cubin whose digest is right; consecutive kernels of one cubin read it once."""
        found = self._recent.get(digest)
        if found is None:
            content = (
                self._cubins.read(f"{digest}.cubin", is_use=True) if digest.isalnum() else None
            )
            if content is None or Cubin.of(content).digest != digest:
                return None
            found = Cubin(digest, content)
            self._recent = {digest: found}
        return found

    def _drop_old(self) -> None:
        names = self._cubins.names()
        if len(names) <= _MOST_CUBINS:
            return
        names.sort(key=self._cubins.last_use)
        for name in names[: len(names) // 2]:
            self._cubins.remove(name)


def open_cache(identity: str) -> DiskCache:
    """Return the cache in the user's cache directory, or a temporary one after a warning.

    Raises:
        OSError: if no temporary one can be made either.
    """
    directory = settings.cache_directory()
    found = _opened(directory, identity)
    if not found.is_current():
        _opened.cache_clear()
        found = _opened(directory, identity)
    return found


@lru_cache(maxsize=8)
def _opened(directory: Path, identity: str) -> DiskCache:
    try:
        return DiskCache(private_directory(directory, "cuda"), identity)
    except OSError as error:
        return DiskCache(temporary_directory(directory, "cuda", error), identity)
