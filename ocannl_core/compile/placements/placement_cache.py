"""The part of the tuning cache that holds placements, on disk.

    <cache directory>/placements/<processor, compiler, threads>/<program>.json

The key of a routine is the canonical text of its lowered program, so that alpha-equivalent routines
share an entry, together with the placements that the context requires and
the settings that change code, those of numerics among them. An entry is data with a digest: numbers
of nodes, and a mode for each. The passes apply a mode only where it is legal.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ocannl_core.base import settings
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.compile.relevant_settings import settings_after_lowering
from ocannl_core.compile.stages import CompileRequest
from ocannl_core.compile.tuned_placements import (
    FLIPPED,
    Flip,
    PlacementResult,
    TunedPlacements,
    placed,
)
from ocannl_core.ir.node import MemoryMode, TensorNode
from ocannl_core.ir.target import Target
from ocannl_core.schedule.tuning.entry_folder import EntryFolder
from ocannl_core.schedule.tuning.tuning_cache import device_kind


class PlacementCache(EntryFolder[PlacementResult]):
    """The tuned placements of one kind of device."""

    version: ClassVar[int] = 2
    what: ClassVar[str] = "Tuned placements"

    def find(self, request: CompileRequest) -> PlacementResult | None:
        """Return the result of a program's search; None if missing or unreadable."""
        return self.with_key(lambda: program_text(request))

    def keep(self, request: CompileRequest, measured: PlacementResult) -> None:
        """Store the result of the search for a program."""
        self.write(program_text(request), measured, request.lowered.name)

    def to_json(self, measured: PlacementResult) -> dict[str, Any]:
        return {
            "flips": [[each.number, each.name, each.mode.value] for each in measured.flips],
            "seconds": measured.seconds,
            "default_seconds": measured.default_seconds,
            "tried": measured.tried,
            "candidates": measured.candidates,
            "complete": measured.is_complete,
        }

    def from_json(self, found: dict[str, Any]) -> PlacementResult:
        _identifier(found["routine"])
        return PlacementResult(
            tuple(_flip(*each) for each in found["flips"]),
            float(found["seconds"]),
            float(found["default_seconds"]),
            int(found["tried"]),
            int(found["candidates"]),
            bool(found["complete"]),
        )


def placement_cache(target: Target) -> PlacementCache:
    """Return the tuned placements of a device with the settings in force."""
    return PlacementCache(settings.cache_directory() / "placements" / device_kind(target))


def with_tuned_placements(request: CompileRequest, problem: str) -> CompileRequest:
    """Return a request with the placements that the tuning cache has for its program.

    Args:
        problem: The reason why they cannot be used, which is recorded in their place. A cache never
            is the reason why a program does not compile.
    """
    if settings.current().tune == "off":
        return request
    measured = placement_cache(request.target).find(request)
    if measured is None:
        return request
    if problem:
        return replace(request, tuned=TunedPlacements(measured, {}, problem))
    return apply_result(request, measured)


def apply_result(request: CompileRequest, measured: PlacementResult) -> CompileRequest:
    """Return a request with the placements of a result.

    Numbers of nodes that the program does not have are left out.
    """
    nodes = tuple(request.lowered.all_nodes)
    places = {
        nodes[each.number]: placed(each.mode) for each in measured.flips if each.number < len(nodes)
    }
    return replace(request, tuned=TunedPlacements(measured, places))


def program_text(request: CompileRequest) -> str:
    """Return the canonical text of a program with all else that its placements depend on, which
    does not depend on names.
    """

    from ocannl_core.ir.canonical import canonical_program

    def facts(node: TensorNode) -> list[str]:
        stored = request.stored.get(node)
        found = ["inlined"] if node in request.inlined else []
        return found if stored is None else [*found, f"stored {stored.mode.value}"]

    chosen = (f"setting {name} = {value!r}" for name, value in settings_after_lowering())
    return "\n".join([canonical_program(request.lowered, facts), *chosen])


def _flip(number: object, name: object, mode: object) -> Flip:
    """Return a flip that was read from a file."""
    found = MemoryMode(mode)
    if found not in FLIPPED or type(number) is not int or number < 0:
        raise ValueError(number)
    return Flip(number, _identifier(name), found)


def _identifier(name: object) -> str:
    """Return a name that was read from a file, which may be printed."""
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(name)
    return name
