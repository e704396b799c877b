"""Dead code elimination: dead top-level statements, and definitions after inlining."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.ir.node import TensorNode
from ocannl_core.passes.loops.accesses import Accesses
from ocannl_core.passes.loops.statement_accesses import AnalyzedStatement


def find_live_statements(
    accesses: Accesses, needed: Collection[TensorNode]
) -> tuple[frozenset[int], frozenset[TensorNode]]:
    """Return the positions of the statements that needed nodes depend on, and all live nodes.

    Statements with effects other than stores of numbers count as needed.
    """
    pending = list(needed)
    live: set[int] = set()
    seen = set(pending)

    def need(nodes: Iterable[TensorNode]) -> None:
        for node in nodes:
            if node not in seen:
                seen.add(node)
                pending.append(node)

    def visit(analyzed: AnalyzedStatement) -> None:
        if analyzed.position not in live:
            live.add(analyzed.position)
            need(site.node for site in analyzed.reads)

    for analyzed in accesses.statements:
        if not _only_stores(analyzed.stmt):
            visit(analyzed)
            need(site.node for site in analyzed.writes)
    while pending:
        for position, _ in accesses.nodes[pending.pop()].writes:
            visit(accesses.statements[position])
    return frozenset(live), frozenset(seen)


def _only_stores(stmt: ir.Stmt) -> bool:
    """Return True if the only effects of a statement are stores of numbers in nodes."""
    while isinstance(stmt, ir.For) and len(stmt.body.stmts) == 1:
        (stmt,) = stmt.body.stmts
    if isinstance(stmt, ir.Store | ir.StoreVector | ir.Scatter | ir.Fill | ir.Remark):
        return True
    declared: set[ir.Local] = set()
    assigned: set[ir.Local] = set()
    for each in walk(stmt):
        match each:
            case (
                ir.CallExternal()
                | ir.Repeat()
                | ir.CheckPositions()
                | ir.Verbatim()
                | ir.Barrier()
                | ir.SubgroupReduce()
            ):
                return False
            case ir.DeclareLocal(local) | ir.Scoped(local):
                declared.add(local)
            case ir.SetLocal(local):
                assigned.add(local)
    return assigned <= declared and not isinstance(stmt, ir.DeclareLocal)


def remove_nodes(
    stmts: Sequence[ir.Stmt],
    statements: Sequence[AnalyzedStatement],
    removed: Collection[TensorNode],
) -> tuple[ir.Stmt, ...]:
    """Remove the stores to removed nodes, and the loops and blocks that become empty.

    The remark in front of a store is removed with it; titles of sections have no origin, and stay.
    """
    kept: list[ir.Stmt] = []
    for stmt, analyzed in zip(stmts, statements, strict=True):
        if not any(site.node in removed for site in analyzed.writes):
            if not (isinstance(stmt, ir.Allocate) and stmt.node in removed):
                kept.append(stmt)
            continue
        rest = _remove_stores(stmt, removed)
        if not rest and kept and isinstance(kept[-1], ir.Remark) and kept[-1].origin is not None:
            kept.pop()
        kept += rest
    return tuple(kept)


def _remove_stores(stmt: ir.Stmt, removed: Collection[TensorNode]) -> tuple[ir.Stmt, ...]:
    """Remove the stores to removed nodes from a statement; return () if it becomes empty."""
    match stmt:
        case (
            ir.Store(node)
            | ir.StoreVector(node)
            | ir.Scatter(node)
            | ir.Fill(node)
            | ir.Allocate(node)
        ) if node in removed:
            return ()
        case ir.For(body=body):
            left = _with_effects(body, removed)
            return (replace(stmt, body=ir.Block(left)),) if left else ()
        case ir.Block():
            left = _with_effects(stmt, removed)
            return (ir.Block(left),) if left else ()
        case _:
            return (stmt,)


def _with_effects(block: ir.Block, removed: Collection[TensorNode]) -> tuple[ir.Stmt, ...]:
    """Return the statements of a block without those stores; none if no other has an effect."""
    left = tuple([one for each in block.stmts for one in _remove_stores(each, removed)])
    declared = (ir.Remark, ir.Allocate, ir.DeclareLocal)
    return () if all(isinstance(one, declared) for one in left) else left
