"""Loop programs after inlining alone."""

from __future__ import annotations

from collections.abc import Collection

from ocannl_core.ir.loops.nodes import Binary, Const, Expr, Stmt
from ocannl_core.ir.loops.verify import verify
from ocannl_core.ir.node import MemoryMode, Placement, Reason, TensorNode
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.passes.loops.inline.decide import InliningResult, Policy, inline
from ocannl_core.testing.drafts import Draft

KEPT = Placement(MemoryMode.ON_DEVICE, Reason.KEPT)
"""The placement of nodes that outlive a call."""


def times(value: Expr, number: float = 2.0) -> Expr:
    """Return a value times a constant."""
    return Binary(BinaryOp.MUL, value, Const(number, value.dtype), value.dtype)


def plus(left: Expr, right: Expr) -> Expr:
    """Return a sum."""
    return Binary(BinaryOp.ADD, left, right, left.dtype)


def inlined(
    draft: Draft,
    *stmts: Stmt,
    keep: str = "xc",
    policy: Policy | None = None,
    requested: Collection[TensorNode] = (),
) -> InliningResult:
    """Return a program after inlining; nodes whose names begin with these letters are kept."""
    program = draft.program(*stmts)
    verify(program)
    stored = {node: KEPT for node in draft.nodes if node.name[0] in keep}
    found = inline(program, stored, policy, requested)
    verify(found.program)
    return found
