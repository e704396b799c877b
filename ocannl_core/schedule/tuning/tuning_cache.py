"""The tuning cache: schedules that a search on this machine has found, on disk.

    <cache directory>/schedules/<processor, compiler, threads>/<nest>.json

The key of a nest is its canonical text, so alpha-equivalent nests share an entry. An entry is data
with a digest: its schedule is parsed, and applied only if it fits the nest. A file that was damaged
counts as a problem, not as an entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ocannl_core.base import settings
from ocannl_core.base.files.digests import text_digest
from ocannl_core.ir.kernels.nodes import NodeInfos, TuningResult
from ocannl_core.ir.kernels.transforms import parse_schedule, schedule_text
from ocannl_core.ir.target import Target
from ocannl_core.schedule.tuning.entry_folder import EntryFolder

if TYPE_CHECKING:
    from ocannl_core.ir.kernels.nest import Nest


class TuningCache(EntryFolder[TuningResult]):
    """The tuned schedules of one kind of device."""

    version: ClassVar[int] = 3
    what: ClassVar[str] = "Tuned schedules"

    def find(self, nest: Nest, nodes: NodeInfos) -> TuningResult | None:
        """Return the result of tuning a nest; None if there is none, or its entry is unreadable."""
        # Imported here since a start from disk reads the state of this folder alone.
        from ocannl_core.schedule.rules.vectorizable import is_vectorizable

        if nest.reduction is None or not is_vectorizable(nest, nodes):
            return None
        return self.with_key(lambda: _key(nest, nodes))

    def keep(self, nest: Nest, nodes: NodeInfos, measured: TuningResult) -> None:
        """Store the result of tuning a nest."""
        self.write(_key(nest, nodes), measured)

    def to_json(self, measured: TuningResult) -> dict[str, Any]:
        return {
            "schedule": schedule_text(measured.schedule),
            "seconds": measured.seconds,
            "default": schedule_text(measured.default),
            "default_seconds": measured.default_seconds,
            "tried": measured.tried,
            "complete": measured.is_complete,
        }

    def from_json(self, found: dict[str, Any]) -> TuningResult:
        return TuningResult(
            parse_schedule(found["schedule"]),
            float(found["seconds"]),
            parse_schedule(found["default"]),
            float(found["default_seconds"]),
            int(found["tried"]),
            bool(found["complete"]),
        )


def _key(nest: Nest, nodes: NodeInfos) -> str:
    from ocannl_core.ir.canonical import canonical_text

    return canonical_text(nest, nodes)


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
        *settings.code_settings(target.backend),
    )
    return text_digest(repr(kind))[:16]
