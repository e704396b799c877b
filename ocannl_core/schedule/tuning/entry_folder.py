"""Folders of measured results: JSON files with digests that only this user can change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from ocannl_core.base.errors import OcannlError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.files.digests import add_json_digest, strip_json_digest, text_digest
from ocannl_core.base.files.directory import PrivateDirectory, open_private, warn_of_loss
from ocannl_core.base.files.trust import UntrustedError

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Entry(Generic[Result]):
    """One file of a folder."""

    path: Path
    measured: Result | None
    """Its content; None if it cannot be read as an entry."""
    key: str = ""
    """The canonical text of the code that was measured."""
    title: str = ""
    """The name of the code, for readers."""


class EntryFolder(ABC, Generic[Result]):
    """The files of one kind of result for one kind of device, by the canonical text of the code
    that was measured.

    Args:
        folder: The directory of the entries; it need not exist yet.
    """

    version: ClassVar[int]
    """The version of the format; entries of other versions are ignored."""
    what: ClassVar[str]
    """The results, for messages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def to_json(self, measured: Result) -> dict[str, Any]:
        """Return a result as values of JSON."""

    @abstractmethod
    def from_json(self, found: dict[str, Any]) -> Result:
        """Return the result that was written; raise any error if there is none."""

    def entries(self) -> Iterator[Entry[Result]]:
        """Yield all entries."""
        for name in self.names():
            found = self.read(name) or {}
            key, title = str(found.get("key", "")), str(found.get("routine", ""))
            yield Entry(self.folder / name, self._result(found), key, title)

    def names(self) -> list[str]:
        """Return the names of all entries, in a fixed order."""
        directory = self._existing()
        return [] if directory is None else _names(directory)

    def with_key(self, compute_key: Callable[[], str]) -> Result | None:
        """Return the result with a key; None if there is none, or its entry is unreadable."""
        if not self.names():  # a key takes time
            return None
        key = compute_key()
        found = self.read(_name(key))
        return None if found is None or found["key"] != key else self._result(found)

    def _result(self, found: dict[str, Any]) -> Result | None:
        try:
            return self.from_json(found)
        except (ValueError, KeyError, TypeError, AttributeError, OcannlError):  # it is damaged
            return None

    def read(self, name: str) -> dict[str, Any] | None:
        """Return an entry's content; None if it is missing, damaged or of another version."""
        directory = self._existing()
        content = None if directory is None else directory.read(name)
        found = None if content is None else strip_json_digest(name, content)
        is_whole = found is not None and found.get("version") == self.version and "key" in found
        return found if is_whole else None

    def write(self, key: str, measured: Result, title: str = "") -> None:
        """Write the entry with a key; warn unless the folder is writable for the user alone."""
        name = _name(key)
        entry = {"version": self.version, "key": key, "routine": title, **self.to_json(measured)}
        try:
            open_private(self.folder, create=True).write(name, add_json_digest(name, entry))
        except OSError as error:
            warn_of_loss(f"{self.what} are not kept", self.folder, error)

    def state(self) -> str:
        """Return a text that changes whenever an entry does."""
        directory = self._existing()
        if directory is None:
            return ""
        return " ".join(f"{name}:{directory.last_use(name)}" for name in _names(directory))

    def forget(self) -> int:
        """Remove all entries; return their number."""
        directory = self._existing()
        if directory is None:
            return 0
        names = [name for name in directory.removable_names() if name.endswith(".json")]
        for name in names:
            directory.remove(name)
        return len(names)

    def _existing(self) -> PrivateDirectory | None:
        """Return the folder; None if there is none, or if others can change it."""
        try:
            return open_private(self.folder) if self.folder.is_dir() else None
        except UntrustedError as error:
            warn_of_loss(f"{self.what} are not used", self.folder, error)
            return None
        except OSError:  # also one that the user cannot look at
            return None


def _name(key: str) -> str:
    return f"{text_digest(key)[:32]}.json"


def _names(directory: PrivateDirectory) -> list[str]:
    return sorted(name for name in directory.names() if name.endswith(".json"))
