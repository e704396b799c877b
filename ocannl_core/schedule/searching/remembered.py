"""Schedules that a search on this machine has found, on disk.

    <cache directory>/schedules/<processor, compiler, threads>/<nest>.json

A nest is found by its canonical text, so whatever is equal up to renaming shares an entry. An entry
is data: its schedule is read in the notation of schedules, and applied only if it fits the nest.
Files appear whole by renaming, and what cannot be read as expected counts as a problem, not as an
entry.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ocannl_core import settings
from ocannl_core.errors import OcannlError
from ocannl_core.records import dataclass
from ocannl_core.schedule.cells import CellNest
from ocannl_core.schedule.choosing.lanes import has_lanes
from ocannl_core.schedule.plan import Infos, Measured
from ocannl_core.schedule.searching.canonical import canonical_text, digest
from ocannl_core.schedule.transforms import parse, to_text
from ocannl_core.target import Target

_VERSION = 1
"""Of what an entry means; entries of another version are none."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a memory.

    Attributes:
        path: The file.
        measured: What it says; None if it cannot be read as an entry.
        nest: The canonical text of the nest.
    """

    path: Path
    measured: Measured | None
    nest: str = ""


class Memory:
    """The remembered schedules of one kind of device.

    Args:
        folder: Where they are; it need not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, nest: CellNest, nodes: Infos) -> Measured | None:
        """Returns what was found for a nest; None if nothing was, or an unreadable entry."""
        if nest.reduction is None or not self.folder.is_dir() or not has_lanes(nest, nodes):
            return None
        text = canonical_text(nest, nodes)
        entry = _read(self._path(text))
        return entry.measured if entry is not None and entry.nest == text else None

    def keep(self, nest: CellNest, nodes: Infos, measured: Measured) -> None:
        """Remembers what a search found.

        Raises:
            OSError: if the folder cannot be written.
        """
        text = canonical_text(nest, nodes)
        content = {
            "version": _VERSION,
            "schedule": to_text(measured.schedule),
            "seconds": measured.seconds,
            "default": to_text(measured.default),
            "default_seconds": measured.default_seconds,
            "tried": measured.tried,
            "complete": measured.is_complete,
            "nest": text,
        }
        _write(self._path(text), json.dumps(content, indent=1))

    def entries(self) -> Iterator[Entry]:
        """Yields everything that is remembered."""
        for path in sorted(self.folder.glob("*.json")):
            yield _read(path) or Entry(path, None)

    def state(self) -> str:
        """Returns a text that changes whenever what is remembered does."""
        files = sorted(self.folder.glob("*.json"))
        return " ".join(f"{path.stem}:{path.stat().st_mtime_ns}" for path in files)

    def forget(self) -> int:
        """Removes all entries; returns how many there were."""
        paths = list(self.folder.glob("*.json"))
        for path in paths:
            path.unlink(missing_ok=True)
        return len(paths)

    def _path(self, text: str) -> Path:
        return self.folder / f"{digest(text)}.json"


def memory_of(target: Target) -> Memory:
    """Returns the memory for a device with the settings in force."""
    threads = settings.current().threads or target.cores
    kind = (
        target.backend,
        target.description,
        target.compiler,
        target.vector_bytes,
        target.vector_registers,
        target.has_fma,
        target.cache_bytes,
        threads,
    )
    return Memory(settings.cache_directory() / "schedules" / digest(repr(kind))[:16])


def _read(path: Path) -> Entry | None:
    """Returns an entry; None if there is no file, or something else in it."""
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        if content["version"] != _VERSION:
            return None
        measured = Measured(
            parse(content["schedule"]),
            float(content["seconds"]),
            parse(content["default"]),
            float(content["default_seconds"]),
            int(content["tried"]),
            bool(content["complete"]),
        )
        return Entry(path, measured, str(content["nest"]))
    except (OSError, ValueError, KeyError, TypeError, OcannlError):
        return None


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
