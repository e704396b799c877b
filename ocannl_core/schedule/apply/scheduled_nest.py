"""The statements of a nest after a schedule."""

from __future__ import annotations

from collections.abc import Mapping

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.loops.nodes import Block, Stmt
from ocannl_core.ir.node import NodeInfo, TensorNode


@dataclass(frozen=True, slots=True)
class ScheduledNest:
    """A nest after a schedule.

    Attributes:
        initial_stores: Stores of initial values, if stores to memory hold partial results.
        packing: The loops that fill the buffers that are filled once.
        loops: The other loops, after these.
        nodes: The arrays that they allocate.
    """

    initial_stores: tuple[Stmt, ...]
    packing: tuple[Stmt, ...]
    loops: tuple[Stmt, ...]
    nodes: Mapping[TensorNode, NodeInfo]

    @property
    def body(self) -> Block:
        """All statements of the nest."""
        return Block((*self.initial_stores, *self.packing, *self.loops))
