"""Kernels that share a launch, and the reasons why others do not."""

from __future__ import annotations

from enum import Enum

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.kernels.transforms import Schedule
from ocannl_core.ir.node import TensorNode


class Separation(Enum):
    """The reason why two kernels do not share a launch; the value is a sentence for people."""

    DEPENDENCE = "one depends on the other"
    BARRIERS = "different numbers of threads meet at barriers"
    CONDITIONAL_BARRIERS = "the device has no barriers for some blocks of a launch"
    COST = "fewer blocks would run at a time than in two launches"
    SIZE = "there would be too many kernels or arguments"
    TILES = "walks of tiles use a number of registers of their own"
    OPAQUE = "positions are checked, accesses are unknown, or a block has one thread for it"


@dataclass(frozen=True, slots=True)
class LaunchPart:
    """A kernel that shares a launch.

    Attributes:
        blocks: The thread blocks that run it; the blocks of one kernel follow each other.
        threads: The threads of a block that run it.
        schedule: Its schedule; empty for plain loops.
    """

    title: str
    blocks: int
    threads: int
    schedule: Schedule


@dataclass(frozen=True, slots=True)
class KeptApart:
    """The decision not to merge a launch with the one before.

    Attributes:
        title: The title of the launch before.
        nodes: The nodes of a dependence.
    """

    title: str
    reason: Separation
    nodes: tuple[TensorNode, ...] = ()

    def __str__(self) -> str:
        names = ", ".join(node.name for node in self.nodes)
        return f"{self.reason.value}{f', by {names}' if names else ''}"
