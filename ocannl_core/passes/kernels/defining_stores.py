"""Nodes that one store of a plan computes: their values at a cell, and where these may move.

A value may be computed again, at a later step, from the operands of its store while no step in
between has stored to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import AxisIndex, FixedIndex, IndexVar, LoopVar, VarIndex
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_plan import NestPlan, nest_of, written
from ocannl_core.ir.loops import traverse
from ocannl_core.ir.loops.nodes import Gather, LoadMerge, Scoped, Store
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.passes.loops.node_positions import NodePositions


@dataclass(frozen=True, slots=True)
class DefiningStore:
    """The store that alone computes a node, every cell of it."""

    position: int
    nest: Nest
    store: Store

    def iteration(self, indices: Sequence[AxisIndex]) -> dict[IndexVar, AxisIndex]:
        """Return the values of the variables of the cells where it stores a cell."""
        values: dict[IndexVar, AxisIndex] = {
            axis.var: FixedIndex(0) for axis in self.nest.output_axes if axis.extent == 1
        }
        for own, index in zip(self.store.indices, indices, strict=True):
            if isinstance(own, VarIndex):
                values[own.var] = index
        return values


class DefiningStores:
    """The nodes of a routine that one store computes.

    Args:
        may_end: True to include nodes whose cells end at run time: others are undefined.
    """

    def __init__(self, plan: NestPlan, *, may_end: bool = False) -> None:
        self.plan = plan
        self._may_end = may_end
        self._writes = NodePositions(map(written, plan.steps))
        self._found: dict[TensorNode, DefiningStore | None] = {}

    def of(self, node: TensorNode) -> DefiningStore | None:
        """Return the store that alone computes a node; None if there is none."""
        if node not in self._found:
            self._found[node] = self._find(node)
        return self._found[node]

    def is_changed(self, nodes: Iterable[TensorNode], since: int, until: int) -> bool:
        """Return True if a step between two positions stores to one of some nodes."""
        return any(self._writes.is_between(node, since, until) for node in nodes)

    def _find(self, node: TensorNode) -> DefiningStore | None:
        plan, writers = self.plan, self._writes.of(node)
        if len(writers) != 1 or node not in plan.scratch or plan.nodes[node].padding:
            return None
        (at,) = writers
        nest = nest_of(plan.steps[at])
        if nest is None or not is_plain(nest):
            return None
        if not self._may_end and any(axis.bound for axis in nest.axes):
            return None
        stores = [store for store in nest.epilogue if store.node is node]
        used = complete_axes(nest, stores[0], plan.nodes[node]) if len(stores) == 1 else None
        if used is None or any(a.extent > 1 for a in nest.output_axes if a.var not in used):
            return None
        return DefiningStore(at, nest, stores[0])


def is_plain(nest: Nest) -> bool:
    """Return True if the axes of a nest count from 0, and it computes nothing inside of loads."""
    if any(axis.start or axis.is_shifting or axis.extent < 1 for axis in nest.axes):
        return False
    return not any(
        isinstance(each, Scoped | LoadMerge | Gather)
        for root in nest.roots
        for each in traverse.walk(root)
    )


def complete_axes(nest: Nest, store: Store, info: NodeInfo) -> frozenset[LoopVar] | None:
    """Return the axes by which a store fills every cell of a node; None if it does not."""
    extents = {axis.var: axis.extent for axis in nest.output_axes}
    used: list[LoopVar] = []
    for index, extent in zip(store.indices, info.buffer_dims, strict=True):
        match index:
            case FixedIndex(0) if extent == 1:
                continue
            case VarIndex(var) if isinstance(var, LoopVar) and extents.get(var) == extent:
                used.append(var)
            case _:
                return None
    return frozenset(used) if len(set(used)) == len(used) else None
