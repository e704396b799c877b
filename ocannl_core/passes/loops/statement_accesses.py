"""Accesses of the top-level statements of a routine.

Top-level statements run one after the other, and each reads the memory as its predecessors left it.
Passes order effects at this granularity; within a statement they analyze cells.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import AxisIndex, IndexVar
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.ranges import Range, include_loop, static_ranges
from ocannl_core.ir.loops.traverse import Node, accesses_at, children, flattened
from ocannl_core.ir.node import TensorNode

Accessing = (
    ir.Load
    | ir.LoadMerge
    | ir.Gather
    | ir.Store
    | ir.StoreVector
    | ir.Scatter
    | ir.Fill
    | ir.CheckPositions
    | ir.CallExternal
    | ir.Repeat
)


class AccessSite(NamedTuple):
    """One access of a node's memory."""

    node: TensorNode
    access: Accessing
    indices: tuple[AxisIndex, ...] | None
    """The cell; None where the access covers the whole node."""
    loops: tuple[ir.For, ...]
    """The loops around it, outermost first."""
    store: ir.Stmt | None = None
    """The store whose value contains it; for a store, the store itself."""
    is_verbatim: bool = False
    """True inside code that a backend supplied as text."""

    @property
    def is_own(self) -> bool:
        """Return True for a load of a cell in the value stored to the same cell."""
        return (
            isinstance(self.access, ir.Load)
            and isinstance(self.store, ir.Store)
            and self.store.node is self.node
            and self.store.indices == self.indices
        )

    @property
    def never_runs(self) -> bool:
        return any(loop.stop <= loop.start for loop in self.loops)


@dataclass(frozen=True, slots=True)
class AnalyzedStatement:
    """One top-level statement."""

    position: int
    stmt: ir.Stmt
    reads: tuple[AccessSite, ...]
    """Its reads, in the order of a first iteration; merge buffers included."""
    writes: tuple[AccessSite, ...]
    ranges: dict[IndexVar, Range]
    next_local: int = 0
    """A number above its scalars' numbers; 0 if it has none."""


def analyze_statements(program: ir.LoopProgram) -> tuple[AnalyzedStatement, ...]:
    """Analyze the top-level statements in order; flatten blocks without declarations."""
    statics = static_ranges(program.indices)
    return tuple(
        analyze_statement(stmt, position, statics)
        for position, stmt in enumerate(flattened(program.body, keeps_scopes=True))
    )


def analyze_statement(
    stmt: ir.Stmt, position: int, statics: dict[IndexVar, Range]
) -> AnalyzedStatement:
    """Collect the accesses of a statement."""
    if isinstance(stmt, ir.Remark):
        return AnalyzedStatement(position, stmt, (), (), statics)
    reads: list[AccessSite] = []
    writes: list[AccessSite] = []
    ranges = dict(statics)
    next_local = 0
    context: _Context = (), None, False
    pending: list[Any] = [stmt]
    while pending:
        node = pending.pop()
        kind = type(node)
        if kind is tuple:  # after the children of the node
            node, context = node
            kind = type(node)
        else:
            inside = _INSIDE.get(kind)
            if inside is not None:
                pending.append((node, context))
                pending += children(node)[::-1]
                context = inside(node, context)
                continue
            pending += children(node)[::-1]
        if kind in _CELLS_READ:
            reads.append(AccessSite(node.node, node, node.indices, *context))
        elif kind is ir.Store or kind is ir.StoreVector:
            loops, _, is_verbatim = context
            writes.append(AccessSite(node.node, node, node.indices, loops, node, is_verbatim))
        elif kind is ir.For:
            include_loop(ranges, node)
        elif kind in _OF_SCALARS:
            next_local = max(next_local, node.local.id + 1)
        else:
            loops, _, is_verbatim = context
            for each in accesses_at(node):
                sites = writes if each.writes else reads
                sites.append(AccessSite(each.node, node, None, loops, node, is_verbatim))
    return AnalyzedStatement(position, stmt, tuple(reads), tuple(writes), ranges, next_local)


_CELLS_READ = frozenset((ir.Load, ir.Gather, ir.LoadMerge))
_OF_SCALARS = frozenset((ir.Scoped, ir.LocalRead, ir.SetLocal, ir.DeclareLocal, ir.SubgroupReduce))
_Context = tuple[tuple[ir.For, ...], ir.Stmt | None, bool]
"""The loops around a node, the store whose value contains it, and `AccessSite.is_verbatim`."""


_INSIDE: dict[type[Node], Callable[[Any, _Context], _Context]] = {
    ir.For: lambda node, context: ((*context[0], node), *context[1:]),
    **dict.fromkeys(
        (ir.Store, ir.StoreVector, ir.Scatter), lambda node, context: (context[0], node, context[2])
    ),
    ir.Verbatim: lambda _, context: (*context[:2], True),
    ir.Gather: lambda _, context: context,
}
"""The contexts of the children of nodes that are accounted for after these."""
