"""Placements that a search by measurement has chosen against the rules of the passes."""

from __future__ import annotations

from collections.abc import Mapping

from ocannl_core.base.errors import OcannlError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.node import MemoryMode, Placement, Reason, TensorNode

FLIPPED = {MemoryMode.VIRTUAL: MemoryMode.LOCAL, MemoryMode.LOCAL: MemoryMode.VIRTUAL}
"""The other mode of each of the two between which a search chooses."""


@dataclass(frozen=True, slots=True)
class Flip:
    """A node in another mode than the default."""

    number: int
    """The number of the node in the lowered program, in the order of first mention."""
    name: str
    """The name of the node, for readers."""
    mode: MemoryMode
    """The mode that it has: virtual or local."""

    def __str__(self) -> str:
        return f"{self.name}: {self.mode.value}, {FLIPPED[self.mode].value} by default"


@dataclass(frozen=True, slots=True)
class PlacementResult:
    """The result of a search for the placements of a routine."""

    flips: tuple[Flip, ...]
    """The differences of the fastest placements from the default, if any."""
    seconds: float
    """The least time of a run with them."""
    default_seconds: float
    tried: int
    """The number of arms, the default among them."""
    candidates: int = 0
    """The number of nodes that might have been flipped."""
    is_complete: bool = True
    """True if the search ended because nothing was faster, not for lack of time."""


@dataclass(frozen=True, slots=True)
class TunedPlacements:
    """Placements from the tuning cache, for the nodes of one program."""

    measured: PlacementResult
    places: Mapping[TensorNode, Placement]
    problem: str = ""
    """The reason why none of them is used; empty if they are."""

    def unused(self, placements: Mapping[TensorNode, Placement]) -> list[str]:
        """Return why flips are not in force in compiled code, a text for each reason."""
        if self.problem:
            return [f"the cached placements are not used: {self.problem}"]
        found = ((node, placements.get(node), wanted) for node, wanted in self.places.items())
        return [
            f"a cached placement is not used: {node.name} is {placement.mode.value}, "
            f"because {placement.why}"
            for node, placement, wanted in found
            if placement is not None and placement.mode is not wanted.mode
        ]


def describe_in_line(error: BaseException) -> str:
    """Return an error as one line."""
    if isinstance(error, OcannlError):
        return " ".join(f"{error.rule} {error.found}".split())
    return " ".join(f"{type(error).__name__}: {error}".split())


def placed(mode: MemoryMode) -> Placement:
    """Return the placement of a node in a mode that a search has chosen."""
    return Placement(mode, Reason.MEASURED_FASTEST)
