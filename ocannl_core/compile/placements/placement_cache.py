"""The part of the tuning cache that holds placements, on disk.

    <cache directory>/placements/<processor, compiler, threads>/<program>.json

The key of a routine is the text of its lowered program with numbers for names, so that
alpha-equivalent routines share an entry, together with the placements that the context requires and
the settings that change code, those of numerics among them. An entry is data with a digest: numbers
of nodes, and a mode for each. The passes apply a mode only where it is legal.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ocannl_core.base import settings
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.compile.relevant_settings import settings_after_lowering
from ocannl_core.compile.stages import CompileRequest
from ocannl_core.compile.tuned_placements import (
    FLIPPED,
    Flip,
    PlacementResult,
    TunedPlacements,
    placed,
)
from ocannl_core.ir.kernels.canonical_text import CanonicalPrinter, NumberedNames
from ocannl_core.ir.loops.nodes import Block, LoopProgram, Repeat
from ocannl_core.ir.node import MemoryMode, NodeInfo, TensorNode
from ocannl_core.ir.target import Target
from ocannl_core.ir.text import RESERVED_NAMES
from ocannl_core.schedule.tuning.entry_folder import EntryFolder
from ocannl_core.schedule.tuning.tuning_cache import device_kind

_VERSION = 2


@dataclass(frozen=True, slots=True)
class PlacementEntry:
    """One file of the cache.

    Attributes:
        routine: The name of the routine that was searched for.
        measured: Its content; None if it cannot be read as an entry.
    """

    path: Path
    routine: str
    measured: PlacementResult | None


class PlacementCache(EntryFolder):
    """The tuned placements of one kind of device.

    Args:
        folder: The directory of the entries; it need not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, _VERSION, "Tuned placements")

    def find(self, request: CompileRequest) -> PlacementResult | None:
        """Return the result of the search for a program; None if there is none, or its entry is
        unreadable.
        """
        found = self.with_key(lambda: program_text(request))
        return None if found is None else _result(found)

    def keep(self, request: CompileRequest, measured: PlacementResult) -> None:
        """Store the result of the search for a program."""
        content = {
            "routine": request.lowered.name,
            "flips": [[each.number, each.name, each.mode.value] for each in measured.flips],
            "seconds": measured.seconds,
            "default_seconds": measured.default_seconds,
            "tried": measured.tried,
            "candidates": measured.candidates,
            "complete": measured.is_complete,
        }
        self.write(program_text(request), content)

    def entries(self) -> Iterator[PlacementEntry]:
        """Yield all entries."""
        for name in self.names():
            found = self.read(name) or {}
            measured = _result(found)
            routine = "" if measured is None else str(found["routine"])
            yield PlacementEntry(self.folder / name, routine, measured)


def _result(found: dict[str, Any]) -> PlacementResult | None:
    """Return the content of an entry; None if it is damaged."""
    try:
        _identifier(found["routine"])
        return PlacementResult(
            tuple(_flip(*each) for each in found["flips"]),
            float(found["seconds"]),
            float(found["default_seconds"]),
            int(found["tried"]),
            int(found["candidates"]),
            bool(found["complete"]),
        )
    except (ValueError, KeyError, TypeError):
        return None


def placement_cache(target: Target) -> PlacementCache:
    """Return the tuned placements of a device with the settings in force."""
    return PlacementCache(settings.cache_directory() / "placements" / device_kind(target))


def with_tuned_placements(request: CompileRequest, problem: str = "") -> CompileRequest:
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
    nodes = numbered_nodes(request.lowered)
    places = {
        nodes[each.number]: placed(each.mode) for each in measured.flips if each.number < len(nodes)
    }
    return replace(request, tuned=TunedPlacements(measured, places))


def numbered_nodes(program: LoopProgram) -> tuple[TensorNode, ...]:
    """Return the nodes of a program in the order of their first mention, those of iterations
    included.
    """
    private = (node for node, _ in private_nodes(program.body))
    return tuple(dict.fromkeys((*program.nodes, *private)))


def program_text(request: CompileRequest) -> str:
    """Return the canonical text of a program with all else that its placements depend on, which
    does not depend on names.
    """
    program = request.lowered
    printer = CanonicalPrinter(program, NumberedNames(RESERVED_NAMES))
    lines = [f"routine({printer.signature()}):", *printer.body()]
    for node, info in (*program.nodes.items(), *private_nodes(program.body)):
        facts = [f"margins {margin.left}+{margin.right}" for margin in info.padding]
        facts += [
            "extent " + ("constant" if each is None else printer.names.variable(each))
            for each in info.extents
        ]
        facts += ["inlined"] if node in request.inlined else []
        if node in request.stored:
            facts.append(f"stored {request.stored[node].mode.value}")
        lines.append(" ".join([printer.array(node), *facts]))
    lines += [f"setting {name} = {value!r}" for name, value in settings_after_lowering()]
    return "\n".join(lines)


def private_nodes(body: Block) -> Iterator[tuple[TensorNode, NodeInfo]]:
    """Yield the nodes that are private to iterations, with their extents."""
    for stmt in body.stmts:
        if isinstance(stmt, Repeat):
            yield from stmt.private
            yield from private_nodes(stmt.body)


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
