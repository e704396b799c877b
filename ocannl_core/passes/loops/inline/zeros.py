"""Additions to zero: `0.0 + x` is `x`, bit for bit, unless `x` is `-0.0`.

Gradients start at zero and are accumulated, so most of them are `0.0 + x` of another gradient; and
a node whose cells are sums that started at zero never holds `-0.0`. Together this makes the
gradient of a copy a copy.
"""

from __future__ import annotations

from collections.abc import Collection
from math import copysign

from ocannl_core.ir.loops import nodes as ir
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
    return facts.is_definitely_assigned and all(_writes_none(site) for _, site in facts.writes)


def _writes_none(site: AccessSite) -> bool:
    """Return True if a write puts no `-0.0` into its node, given that none is there."""
    match site.access:
        case ir.Fill(_, value):
            return value != 0 or copysign(1.0, value) > 0
        case ir.Store(node, _, ir.Binary(BinaryOp.ADD | BinaryOp.SUB, ir.Load(loaded), _)) if (
            loaded is node
        ):
            return True  # a sum is -0.0 only if its first term is
        case ir.Store(_, _, value):
            return is_never_negative_zero(value)
        case _:
            return False


def is_addition(value: ir.Expr, own: TensorNode, positive: Collection[TensorNode]) -> bool:
    """Return True if a value is a node's own cell plus a term that is never `-0.0`."""
    match value:
        case ir.Binary(BinaryOp.ADD, ir.Load(loaded), added) if loaded is own:
            return _is_never_negative_zero(added, positive)
        case _:
            return False


def remove_additions_to_zero(
    stmts: list[ir.Stmt], local: ir.Local, positive: Collection[TensorNode]
) -> list[ir.Stmt]:
    """Remove the addition of a first term to zero.

    v = 0.0; v = v + x   -->   v = x

    Args:
        positive: Nodes that never hold `-0.0`.
    """
    match stmts:
        case [
            ir.SetLocal(_, ir.Const() as zero),
            ir.SetLocal(_, ir.Binary(BinaryOp.ADD, ir.LocalRead(read), added)),
            *rest,
        ] if read == local and is_number(zero, 0.0) and _is_never_negative_zero(added, positive):
            return [ir.SetLocal(local, added), *rest]
        case _:
            return stmts


def _is_never_negative_zero(value: ir.Expr, positive: Collection[TensorNode]) -> bool:
    return is_never_negative_zero(value) or (isinstance(value, ir.Load) and value.node in positive)
