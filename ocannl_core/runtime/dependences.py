"""Dependences between routines of a lineage: accesses whose result the order of calls decides."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.node import TensorNode
from ocannl_core.runtime.store import RoutineRecord


class Hazard(Enum):
    """The kind of a dependence."""

    READ_AFTER_WRITE = "read after write"
    WRITE_AFTER_READ = "write after read"
    WRITE_AFTER_WRITE = "write after write"


@dataclass(frozen=True, slots=True)
class Dependence:
    """An access to memory that a routine compiled before accesses too, one of them writing it.

    Attributes:
        routine: The name of the earlier routine.
    """

    hazard: Hazard
    node: TensorNode
    routine: str

    def __str__(self) -> str:
        return f"{self.hazard.value} of {self.node.name}: {self.routine}"


def dependences(routine: RoutineRecord, earlier: RoutineRecord) -> Iterator[Dependence]:
    """Yield the dependences of a routine on one that was compiled before it, by node."""
    shared = [
        node
        for node, stored in routine.memory.items()
        if earlier.memory.get(node) is stored  # not a node of that name in another child
    ]
    for node in sorted(shared, key=lambda each: each.id):
        if node in routine.reads and node in earlier.writes:
            yield Dependence(Hazard.READ_AFTER_WRITE, node, earlier.name)
        if node in routine.writes and node in earlier.reads:
            yield Dependence(Hazard.WRITE_AFTER_READ, node, earlier.name)
        if node in routine.writes and node in earlier.writes:
            yield Dependence(Hazard.WRITE_AFTER_WRITE, node, earlier.name)
