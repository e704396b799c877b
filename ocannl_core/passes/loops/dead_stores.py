"""Dead store elimination and store-to-load forwarding of fills.

c[:] = 0.0
for i in range(4):            -->   for i in range(4):
    c[i] = c[i] + a[i]                  c[i] = 0.0 + a[i]
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from operator import is_

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import AxisIndex, IndexVar
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops import traverse
from ocannl_core.ir.loops.ranges import (
    Box,
    Range,
    boxes_cover,
    index_range,
    ranges_of,
    visits_cells_once,
)
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.passes.loops.algebraic_rules import apply_rules
from ocannl_core.passes.loops.definite_assignment import all_cells, assigned_cells
from ocannl_core.passes.loops.statement_accesses import AnalyzedStatement, analyze_statement


def forward_fills(program: ir.LoopProgram) -> ir.LoopProgram:
    """Forward the values of fills to the loads that read them.

    A fill is forwarded to the next loop nest that accesses its node, if the nest updates each cell
    at most once. The fill sinks in front of that nest, which shortens the live range and keeps the
    initial values in the cache. If the fill is dead then, `remove_dead_stores` removes it.
    """

    def block(stmt: ir.Stmt) -> traverse.Replacement:
        if not isinstance(stmt, ir.Block) or not any(isinstance(s, ir.Fill) for s in stmt.stmts):
            return stmt
        stmts = tuple(_sink_fills(stmt.stmts, program.nodes))
        return stmt if all(map(is_, stmts, stmt.stmts)) else ir.Block(stmts)

    top = program.body.stmts
    has_inner = any(_has_inner_fills(stmt) for stmt in top)
    if not has_inner and not any(isinstance(stmt, ir.Fill) for stmt in top):
        return program
    whole = traverse.rewrite(program.body, on_stmt=block) if has_inner else block(program.body)
    assert isinstance(whole, ir.Block)
    return program if whole is program.body else replace(program, body=whole)


def _has_inner_fills(stmt: ir.Stmt) -> bool:
    """Return True if a statement contains fills; scopes inside of values have none."""
    inside = isinstance(stmt, ir.For | ir.Block | ir.Verbatim)
    return inside and any(isinstance(each, ir.Fill) for each in traverse.statements(stmt))


def _sink_fills(
    stmts: tuple[ir.Stmt, ...], nodes: Mapping[TensorNode, NodeInfo]
) -> Iterator[ir.Stmt]:
    """Sink every fill in front of the next statement that accesses its node."""
    fills: dict[TensorNode, tuple[ir.Stmt, ...]] = {}
    remark: tuple[ir.Stmt, ...] = ()
    for stmt in stmts:
        if isinstance(stmt, ir.Remark) and stmt.origin is not None:
            yield from remark
            remark = (stmt,)
            continue
        waiting: Collection[TensorNode] = ()
        if isinstance(stmt, ir.Barrier):
            waiting = tuple(fills)
        elif fills and not isinstance(stmt, ir.Remark):
            accessed = dict.fromkeys((*traverse.nodes_of(stmt), *traverse.allocated_nodes(stmt)))
            waiting = [node for node in accessed if node in fills]
        rewritten = stmt
        for node in waiting:
            *_, fill = sunk = fills.pop(node)
            yield from sunk
            if isinstance(fill, ir.Fill):
                rewritten = _forward_fill(rewritten, node, ir.Const(fill.value, nodes[node].dtype))
        if isinstance(stmt, ir.Fill):
            fills[stmt.node] = (*remark, stmt)
        else:
            yield from (*remark, rewritten)
        remark = ()
    for sunk in fills.values():
        yield from sunk
    yield from remark


def _forward_fill(nest: ir.Stmt, node: TensorNode, start: ir.Const) -> ir.Stmt:
    """Replace loads of the initial values by `start`, in a nest that updates each cell once."""
    store, loops = _find_only_store(nest, node)
    if store is None or not visits_cells_once(store.indices, ranges_of(loops)):
        return nest
    own = ir.Load(node, store.indices, start.dtype)
    inside = sum(
        n == own for n in traverse.walk(store.value) if isinstance(n, ir.Load) and n.node is node
    )
    touched = [access.writes for access in traverse.accesses(nest) if access.node is node]
    if not inside or len(touched) != inside + 1 or sum(touched) != 1:
        return nest

    def forward(expr: ir.Expr) -> ir.Expr:
        return start if expr == own else apply_rules(expr)

    def update(stmt: ir.Stmt) -> traverse.Replacement:
        return (
            replace(stmt, value=traverse.map_expr(store.value, forward)) if stmt is store else stmt
        )

    rewritten = traverse.rewrite(nest, on_stmt=update)
    return rewritten if isinstance(nest, ir.Block) else rewritten.stmts[0]


def _find_only_store(nest: ir.Stmt, node: TensorNode) -> tuple[ir.Store | None, list[ir.For]]:
    """Return the only store of a nest to a node, and the loops around it."""
    found: list[tuple[ir.Store, list[ir.For]]] = []
    pending: list[tuple[ir.Stmt, list[ir.For]]] = [(nest, [])]
    while pending:
        stmt, loops = pending.pop()
        match stmt:
            case ir.For(body=body):
                pending.append((body, [*loops, stmt]))
            case ir.Block(stmts):
                pending += [(each, loops) for each in stmts]
            case ir.Store(written) if written is node:
                found.append((stmt, loops))
    return (found[0][0], found[0][1]) if len(found) == 1 else (None, [])


def remove_dead_stores(program: ir.LoopProgram) -> ir.LoopProgram:
    """Remove dead stores.

    These are stores to memory of the routine that is never read afterwards, and stores to cells
    that are definitely assigned again before the next read.
    """
    body = program.body
    if any(isinstance(s, ir.Block) and _stores_node_twice(s) for s in traverse.statements(body)):
        body = traverse.rewrite(body, on_stmt=_remove_overwritten)
    statements = [analyze_statement(stmt, 0, {}) for stmt in body.stmts]
    read = {site.node for each in statements for site in each.reads}
    useless = frozenset(traverse.allocated_nodes(body)) - read
    kept = _Liveness(program.nodes, statements, useless).live_statements()
    if len(kept) != len(body.stmts) or not all(map(is_, kept, body.stmts)):
        body = ir.Block(kept)
    return (
        program
        if body is program.body
        else traverse.remove_unused_nodes(replace(program, body=body))
    )


def _stores_node_twice(block: ir.Block) -> bool:
    targets = [each.node for each in block.stmts if isinstance(each, ir.Store)]
    return len(targets) > 1 and len(set(targets)) < len(targets)


def _remove_overwritten(stmt: ir.Stmt) -> traverse.Replacement:
    """c[i] = x; c[i] = y --> c[i] = y, where y does not depend on c."""
    if not isinstance(stmt, ir.Block) or not _stores_node_twice(stmt):
        return stmt
    overwritten: dict[TensorNode, set[tuple[AxisIndex, ...]]] = {}
    kept: list[ir.Stmt] = []
    for each in reversed(stmt.stmts):
        if isinstance(each, ir.Store):
            cells = overwritten.setdefault(each.node, set())
            if each.indices in cells:
                continue
            cells.add(each.indices)
        elif isinstance(each, ir.Barrier | ir.CallExternal | ir.Repeat):
            overwritten.clear()
        for node in traverse.reads(each):
            overwritten.pop(node, None)
        kept.append(each)
    return stmt if len(kept) == len(stmt.stmts) else ir.Block(tuple(reversed(kept)))


@dataclass(slots=True)
class _Liveness:
    """A backward walk over top-level statements."""

    nodes: Mapping[TensorNode, NodeInfo]
    statements: Sequence[AnalyzedStatement]
    useless: frozenset[TensorNode]
    """Nodes that are never read."""
    dead: dict[TensorNode, list[Box]] = field(default_factory=dict)
    """Cells that are written before the next read."""

    def live_statements(self) -> tuple[ir.Stmt, ...]:
        for stmt in (each.stmt for each in self.statements):
            if isinstance(stmt, ir.Allocate) and stmt.scope is ir.Scope.ROUTINE:
                self.dead[stmt.node] = [all_cells(self.nodes[stmt.node])]
        kept: list[ir.Stmt] = []
        is_gone = False
        for analyzed in reversed(self.statements):
            stmt = analyzed.stmt
            if is_gone and isinstance(stmt, ir.Remark) and stmt.origin is not None:
                continue  # the remark of a removed statement
            remaining = self.remove_dead(analyzed)
            is_gone = remaining is None
            if remaining is not None:
                kept.append(remaining)
                self.update(analyzed if remaining is stmt else analyze_statement(remaining, 0, {}))
        return tuple(reversed(kept))

    def remove_dead(self, analyzed: AnalyzedStatement) -> ir.Stmt | None:
        """Remove the dead stores of a statement; return None if nothing is left."""
        seen = {site.node for site in analyzed.reads}
        written = {site.node for site in analyzed.writes}
        dead = {n for n in written if n in self.useless or (n in self.dead and n not in seen)}
        if not dead or traverse.contains(analyzed.stmt, ir.Verbatim):
            return analyzed.stmt

        def on_stmt(each: ir.Stmt) -> traverse.Replacement:
            match each:
                case ir.Store(node) | ir.StoreVector(node) | ir.Fill(node) if node in dead:
                    return () if self.is_dead(each, analyzed.ranges) else each
                case ir.Scatter(node) if node in dead:
                    return () if self.is_dead(each, analyzed.ranges) else each
                case ir.For(body=ir.Block(())) | ir.Block(()):
                    return ()
                case _:
                    return each

        rewritten = traverse.rewrite(analyzed.stmt, on_stmt=on_stmt)
        if not rewritten.stmts:
            return None
        return rewritten.stmts[0] if len(rewritten.stmts) == 1 else rewritten

    def is_dead(
        self,
        store: ir.Store | ir.StoreVector | ir.Scatter | ir.Fill,
        ranges: Mapping[IndexVar, Range],
    ) -> bool:
        """Return True if all cells that a store may write are dead."""
        if store.node in self.useless:
            return True
        boxes = self.dead[store.node]
        if boxes_cover(boxes, self.nodes[store.node].buffer_dims):
            return True
        if not isinstance(store, ir.Store):
            return False
        reach = [index_range(index, ranges) for index in store.indices]
        return any(
            all(
                part is not None and side.low <= part.low and part.high <= side.high
                for part, side in zip(reach, box, strict=True)
            )
            for box in boxes
        )

    def update(self, analyzed: AnalyzedStatement) -> None:
        """Update the dead cells by the reads and the certain writes of a statement."""
        if isinstance(analyzed.stmt, ir.Allocate):
            self.dead.pop(analyzed.stmt.node, None)
            return
        for site in analyzed.writes:
            box = assigned_cells(site, self.nodes[site.node])
            if box is not None:
                self.dead.setdefault(site.node, []).append(box)
        for site in analyzed.reads:
            self.dead.pop(site.node, None)
