"""Nodes that are dead on entry."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from ocannl_core.assign.nodes import Accumulate, Assignment, ExternalCall, Fetch
from ocannl_core.assign.traverse import Leaf, leaves, reads, targets
from ocannl_core.indexing import is_surjective
from ocannl_core.node import TensorNode


def overwritten(body: Iterable[Assignment], nodes: AbstractSet[TensorNode]) -> set[TensorNode]:
    """Return the nodes that are completely written before any of their cells is read."""
    found: set[TensorNode] = set()
    pending = set(nodes)
    for each in leaves(body):
        pending.difference_update(reads(each))
        for target in targets(each):
            if target in pending:
                pending.discard(target)
                if _writes_all(each):
                    found.add(target)
    return found


def _writes_all(assignment: Leaf) -> bool:
    """Return True if an assignment writes every cell of its target."""
    if isinstance(assignment, Fetch | ExternalCall):
        return True
    is_reset = isinstance(assignment, Accumulate) and assignment.reset
    return is_reset or is_surjective(assignment.projections)
