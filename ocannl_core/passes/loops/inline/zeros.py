"""Additions to zero: `0.0 + x` is `x`, bit for bit, unless `x` is `-0.0`.

Gradients start at zero and are accumulated, so most of them are `0.0 + x` of another gradient; and
a node whose cells are sums that started at zero never holds `-0.0`. Together this makes the
gradient of a copy a copy.
"""

from __future__ import annotations

from collections.abc import Collection
from math import copysign

from ocannl_core.ir.loops.nodes import (
    Binary,
    Const,
    Expr,
    Fill,
    Load,
    Local,
    LocalRead,
    SetLocal,
    Stmt,
    Store,
)
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.passes.loops.accesses import Accesses, NodeAccesses
from ocannl_core.passes.loops.statement_accesses import AccessSite
from ocannl_core.passes.loops.value_analysis import is_never_negative_zero, is_number


def nodes_without_negative_zero(accesses: Accesses) -> frozenset[TensorNode]:
    """Return the nodes of which no cell is `-0.0` at any read in the routine."""
    return frozenset(
        node for node, facts in accesses.nodes.items() if _holds_no_negative_zero(facts)
    )


def _holds_no_negative_zero(facts: NodeAccesses) -> bool:
    if not facts.info.dtype.is_float:
        return True
    return facts.is_independent and all(_writes_none(site) for _, site in facts.writes)


def _writes_none(site: AccessSite) -> bool:
    """Return True if a write puts no `-0.0` into its node, given that none is there."""
    match site.access:
        case Fill(_, value):
            return value != 0 or copysign(1.0, value) > 0
        case Store(node, _, Binary(BinaryOp.ADD | BinaryOp.SUB, Load(loaded), _)) if loaded is node:
            return True  # a sum is -0.0 only if its first term is
        case Store(_, _, value):
            return is_never_negative_zero(value)
        case _:
            return False


def is_addition(value: Expr, own: TensorNode, positive: Collection[TensorNode]) -> bool:
    """Return True if a value is a node's own cell plus a term that is never `-0.0`."""
    match value:
        case Binary(BinaryOp.ADD, Load(loaded), added) if loaded is own:
            return _is_never_negative_zero(added, positive)
        case _:
            return False


def remove_additions_to_zero(
    stmts: list[Stmt], local: Local, positive: Collection[TensorNode]
) -> list[Stmt]:
    """Remove the addition of a first term to zero.

    v = 0.0; v = v + x   -->   v = x

    Args:
        stmts: Statements that compute a scalar.
        positive: Nodes that never hold `-0.0`.
    """
    match stmts:
        case [
            SetLocal(_, Const() as zero),
            SetLocal(_, Binary(BinaryOp.ADD, LocalRead(read), added)),
            *rest,
        ] if read == local and is_number(zero, 0.0) and _is_never_negative_zero(added, positive):
            return [SetLocal(local, added), *rest]
        case _:
            return stmts


def _is_never_negative_zero(value: Expr, positive: Collection[TensorNode]) -> bool:
    return is_never_negative_zero(value) or (isinstance(value, Load) and value.node in positive)
