"""Nodes whose placement a search may change, the most promising first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from ocannl_core.base import settings
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.compile.stages import CompileRequest, GeneratedCode
from ocannl_core.compile.tuned_placements import FLIPPED, Flip
from ocannl_core.ir.node import MemoryMode, NodeInfo, Reason, TensorNode
from ocannl_core.ir.text import RESERVED_NAMES, PrintedNames
from ocannl_core.passes.loops.accesses import Accesses, analyze_accesses
from ocannl_core.schedule.cost_model import estimated_cycles, transfer_cycles

ObserveModes = Callable[[TensorNode, NodeInfo, tuple[MemoryMode, ...]], None]
"""Called with a node, and the memory modes that are open for it, the default first."""


class Generate(Protocol):
    """A function that generates the code of a program."""

    def __call__(
        self, request: CompileRequest, observe: ObserveModes | None = None
    ) -> GeneratedCode: ...


_FIXED = frozenset({Reason.CONSTANT_SCALAR, Reason.INLINED_FILL, Reason.INLINING_DISABLED})
"""Reasons for a mode that a search does not try to change: numbers, which take no time to compute,
and the setting that switches inlining off.
"""


@dataclass(frozen=True, slots=True)
class PlacementCandidate:
    """A node that may be virtual and may be local."""

    node: TensorNode
    flip: Flip
    """Its other mode than the default."""
    promise: int
    """The estimate of the cycles that the other mode saves; negative where it costs."""


def find_candidates(
    request: CompileRequest, generate: Generate
) -> tuple[GeneratedCode, tuple[PlacementCandidate, ...]]:
    """Return a program's code with default placements, and candidates, the best ones first."""
    defaults: dict[TensorNode, MemoryMode] = {}

    def observe(node: TensorNode, info: NodeInfo, modes: tuple[MemoryMode, ...]) -> None:
        if FLIPPED.keys() <= set(modes) and modes[0] in FLIPPED:
            defaults[node] = modes[0]

    code = generate(request, observe)
    infos, names = request.lowered.all_nodes, PrintedNames(RESERVED_NAMES)
    numbers = {node: (number, names.node(node)) for number, node in enumerate(infos)}
    accesses = analyze_accesses(request.lowered)
    found = []
    for node, mode in defaults.items():
        placement = code.program.placements[node]
        if placement.mode is not mode or placement.reason in _FIXED:
            continue
        saved = _cycles_saved_by_storing(node, accesses, infos)
        flip = Flip(*numbers[node], FLIPPED[mode])
        found.append(
            PlacementCandidate(node, flip, saved if mode is MemoryMode.VIRTUAL else -saved)
        )
    found.sort(key=lambda each: (-each.promise, each.flip.number))
    return code, tuple(found)


def _cycles_saved_by_storing(
    node: TensorNode, accesses: Accesses, infos: Mapping[TensorNode, NodeInfo]
) -> int:
    """Return the cycles saved by reading a node from memory rather than computing it again."""
    traffic = transfer_cycles(2 * infos[node].nbytes)
    facts = accesses.nodes.get(node)
    if facts is None:  # of an iteration
        return -traffic
    visits = facts.count_reads(settings.current().max_tracing_dim).most
    statements = {position: accesses.statements[position].stmt for position, _ in facts.writes}
    work = sum(estimated_cycles(stmt, infos) for stmt in statements.values())
    return max(0, visits - 1) * work - traffic
