"""Removing code that nothing stored depends on: dead units, and definitions after inlining."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import cast

from ocannl_core.fast_dataclass import replace
from ocannl_core.loopir.nodes import (
    Allocate,
    Barrier,
    Block,
    CallExternal,
    DeclareLocal,
    Fill,
    For,
    Local,
    Remark,
    Scoped,
    SetLocal,
    Staged,
    Stmt,
    Store,
    StoreVector,
)
from ocannl_core.loopir.traverse import Node, fold, walk
from ocannl_core.node import TensorNode
from ocannl_core.passes.accesses import Accesses
from ocannl_core.passes.inline.definition import nested_statements
from ocannl_core.passes.statement_accesses import AnalysedStatement


def live_units(
    accesses: Accesses, needed: Collection[TensorNode]
) -> tuple[frozenset[int], frozenset[TensorNode]]:
    """Returns the positions of the units that needed nodes depend on, and all nodes that matter.

    Units that do anything but store numbers count as needed.
    """
    pending = list(needed)
    live: set[int] = set()
    seen = set(pending)

    def need(nodes: Iterable[TensorNode]) -> None:
        for node in nodes:
            if node not in seen:
                seen.add(node)
                pending.append(node)

    def visit(unit: AnalysedStatement) -> None:
        if unit.position not in live:
            live.add(unit.position)
            need(site.node for site in unit.reads)

    for unit in accesses.units:
        if not _only_stores(unit.stmt):
            visit(unit)
            need(site.node for site in unit.writes)
    while pending:
        for position, _ in accesses.nodes[pending.pop()].writes:
            visit(accesses.units[position])
    return frozenset(live), frozenset(seen)


def _only_stores(stmt: Stmt) -> bool:
    """True if a statement does nothing but store numbers in nodes."""
    while isinstance(stmt, For) and len(stmt.body.stmts) == 1:
        (stmt,) = stmt.body.stmts
    if isinstance(stmt, Store | StoreVector | Fill | Remark):
        return True
    declared: set[Local] = set()
    assigned: set[Local] = set()
    for each in walk(stmt):
        match each:
            case CallExternal() | Staged() | Barrier():
                return False
            case DeclareLocal(local) | Scoped(local):
                declared.add(local)
            case SetLocal(local):
                assigned.add(local)
            case _:
                pass
    return assigned <= declared and not isinstance(stmt, DeclareLocal)


def remove_nodes(
    stmts: Sequence[Stmt], units: Sequence[AnalysedStatement], removed: Collection[TensorNode]
) -> tuple[Stmt, ...]:
    """Returns rewritten units without the stores to removed nodes, and without what is left empty.

    The remark in front of a store goes with it; titles of sections have no origin, and stay.
    """
    kept: list[Stmt] = []
    for stmt, unit in zip(stmts, units, strict=True):
        if not any(site.node in removed for site in unit.writes):
            if not (isinstance(stmt, Allocate) and stmt.node in removed):
                kept.append(stmt)
            continue
        rest = _rest(stmt, removed)
        if not rest and kept and isinstance(kept[-1], Remark) and kept[-1].origin is not None:
            kept.pop()
        kept += rest
    return tuple(kept)


def _rest(stmt: Stmt, removed: Collection[TensorNode]) -> tuple[Stmt, ...]:
    """Returns a statement without the stores to removed nodes; nothing if nothing else is in it."""

    def combine(each: Node, inner: tuple[tuple[Stmt, ...], ...]) -> tuple[Stmt, ...]:
        kept = tuple(one for group in inner for one in group)
        match each:
            case Store(node) | StoreVector(node) | Fill(node) | Allocate(node) if node in removed:
                return ()
            case For() | Block():
                empty = all(isinstance(one, Remark | Allocate | DeclareLocal) for one in kept)
                body = Block(kept)
                if empty:
                    return ()
                return (replace(each, body=body) if isinstance(each, For) else body,)
            case _:
                return (cast(Stmt, each),)

    return fold(stmt, combine, nested_statements)
