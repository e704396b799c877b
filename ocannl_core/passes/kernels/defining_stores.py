"""Definitions of nodes: the one store that computes every cell of a node.

A node with a definition may be computed again, by any step before which no other one has written
to what the definition loads.
"""

from __future__ import annotations

from dataclasses import field

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import FixedIndex, LoopVar, VarIndex
from ocannl_core.ir.kernels.nest import KernelNest
from ocannl_core.ir.kernels.nest_plan import NestPlan, nest_of, written
from ocannl_core.ir.loops import traverse
from ocannl_core.ir.loops.nodes import Gather, LoadMerge, Scoped, Store
from ocannl_core.ir.node import NodeInfo, TensorNode


@dataclass(frozen=True, slots=True)
class DefiningStore:
    """The store that alone computes a node, every cell of it."""

    position: int
    nest: KernelNest
    store: Store


@dataclass(slots=True)
class Definitions:
    """The nodes of a routine that one store computes."""

    plan: NestPlan
    _writers: dict[TensorNode, list[int]] = field(default_factory=dict)
    _found: dict[TensorNode, DefiningStore | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for at, step in enumerate(self.plan.steps):
            for node in written(step):
                self._writers.setdefault(node, []).append(at)

    def of(self, node: TensorNode) -> DefiningStore | None:
        """Return the store that alone computes a node; None if there is none."""
        if node not in self._found:
            self._found[node] = self._find(node)
        return self._found[node]

    def _find(self, node: TensorNode) -> DefiningStore | None:
        plan = self.plan
        writers = self._writers.get(node, [])
        if len(writers) != 1 or node not in plan.scratch or plan.nodes[node].padding:
            return None
        (at,) = writers
        nest = nest_of(plan.steps[at])
        if nest is None or not is_plain(nest) or any(axis.bound for axis in nest.axes):
            return None
        stores = [store for store in nest.epilogue if store.node is node]
        used = complete_axes(nest, stores[0], plan.nodes[node]) if len(stores) == 1 else None
        if used is None or any(a.extent > 1 for a in nest.cells if a.var not in used):
            return None
        return DefiningStore(at, nest, stores[0])


def is_plain(nest: KernelNest) -> bool:
    """Return True if the axes of a nest count from 0, and it computes nothing inside of loads."""
    if any(axis.start or axis.is_shifting or axis.extent < 1 for axis in nest.axes):
        return False
    return not any(
        isinstance(each, Scoped | LoadMerge | Gather)
        for root in nest.roots
        for each in traverse.walk(root)
    )


def complete_axes(nest: KernelNest, store: Store, info: NodeInfo) -> frozenset[LoopVar] | None:
    """Return the axes by which a store fills every cell of a node; None if it does not."""
    extents = {axis.var: axis.extent for axis in nest.cells}
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
