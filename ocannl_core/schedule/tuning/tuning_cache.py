"""The tuning cache: schedules that a search on this machine has found, on disk.

    <cache directory>/schedules/<processor, compiler, threads>/<nest>.json

The key of a nest is its canonical text, so alpha-equivalent nests share an entry. An entry is data
with a digest: its schedule is parsed, and applied only if it fits the nest. A file that was damaged
counts as a problem, not as an entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ocannl_core.base import settings
from ocannl_core.base.errors import OcannlError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.kernels.canonical_text import canonical_text
from ocannl_core.ir.kernels.nest import KernelNest
from ocannl_core.ir.kernels.nodes import NodeInfos, TuningResult
from ocannl_core.ir.kernels.transforms import parse_schedule, schedule_text
from ocannl_core.ir.target import Target
from ocannl_core.schedule.rules.vectorisable import is_vectorisable
from ocannl_core.schedule.tuning.entry_folder import EntryFolder, short_digest

_VERSION = 3
"""The version of the format; entries of other versions are ignored."""


@dataclass(frozen=True, slots=True)
class TuningEntry:
    """One file of a tuning cache.

    Attributes:
        measured: Its content; None if it cannot be read as an entry.
    """

    path: Path
    measured: TuningResult | None
    key: str = ""


class TuningCache(EntryFolder):
    """The tuned schedules of one kind of device.

    Args:
        folder: The directory of the entries; it need not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, _VERSION, "Tuned schedules")

    def find(self, nest: KernelNest, nodes: NodeInfos) -> TuningResult | None:
        """Return the result of tuning a nest; None if there is none, or its entry is unreadable."""
        if nest.reduction is None or not is_vectorisable(nest, nodes):
            return None
        found = self.with_key(lambda: canonical_text(nest, nodes))
        return None if found is None else _result(found)

    def keep(self, nest: KernelNest, nodes: NodeInfos, measured: TuningResult) -> None:
        """Store the result of tuning a nest."""
        content = {
            "schedule": schedule_text(measured.schedule),
            "seconds": measured.seconds,
            "default": schedule_text(measured.default),
            "default_seconds": measured.default_seconds,
            "tried": measured.tried,
            "complete": measured.is_complete,
        }
        self.write(canonical_text(nest, nodes), content)

    def entries(self) -> Iterator[TuningEntry]:
        """Yield all entries."""
        for name in self.names():
            found = self.read(name) or {}
            yield TuningEntry(self.folder / name, _result(found), str(found.get("key", "")))


def _result(found: dict[str, Any]) -> TuningResult | None:
    """Return the content of an entry; None if it is damaged."""
    try:
        return TuningResult(
            parse_schedule(found["schedule"]),
            float(found["seconds"]),
            parse_schedule(found["default"]),
            float(found["default_seconds"]),
            int(found["tried"]),
            bool(found["complete"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OcannlError):
        return None


def tuning_cache(target: Target) -> TuningCache:
    """Return the tuning cache of a device with the settings in force."""
    return TuningCache(settings.cache_directory() / "schedules" / device_kind(target))


def device_kind(target: Target) -> str:
    """Return a folder name that is equal for devices on which times are comparable."""
    threads = settings.current().threads or target.cores
    kind = (
        target.backend,
        target.description,
        target.compiler,
        target.vector_bytes,
        target.vector_registers,
        target.has_fma,
        target.cache_bytes,
        target.matrix_units,
        target.thread_blocks,
        threads,
    )
    return short_digest(repr(kind))[:16]
