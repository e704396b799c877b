"""The positions at which a sequence of statements, or of steps of a plan, accesses nodes.

A value may be computed again at another position while no operand of it is written in between.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from ocannl_core.ir.node import TensorNode


class NodePositions:
    """The positions of each node in a sequence.

    Args:
        sequence: The nodes at each position.
    """

    def __init__(self, sequence: Iterable[Iterable[TensorNode]]) -> None:
        self._positions: dict[TensorNode, list[int]] = {}
        for position, nodes in enumerate(sequence):
            self.add(position, nodes)

    def add(self, position: int, nodes: Iterable[TensorNode]) -> None:
        """Add a position of nodes."""
        for node in nodes:
            positions = self._positions.setdefault(node, [])
            if not positions or positions[-1] < position:
                positions.append(position)
            elif positions[(at := bisect_left(positions, position))] != position:
                positions.insert(at, position)

    def remove(self, position: int, nodes: Iterable[TensorNode]) -> None:
        """Remove a position of nodes."""
        for node in nodes:
            self._positions[node].remove(position)

    def of(self, node: TensorNode) -> Sequence[int]:
        """Return the positions of a node, in ascending order."""
        return self._positions.get(node, ())

    def is_between(self, node: TensorNode, after: int, before: int) -> bool:
        """Return True if a position of a node lies between two others."""
        positions = self.of(node)
        at = bisect_right(positions, after)
        return at < len(positions) and positions[at] < before
