"""Conditions on positions that hide the cells behind a diagonal, as a causal mask does."""

from __future__ import annotations

from ocannl_core.ir.indexing import AxisIndex, affine, as_affine, variables
from ocannl_core.ir.loops.nodes import Binary, Expr, IndexValue
from ocannl_core.ir.numbers.primitives import BinaryOp


def visible_difference(condition: Expr | None) -> AxisIndex | None:
    """Return a position that is below 1 exactly where a comparison of two positions holds; None for
    another condition.
    """
    match condition:
        case Binary(BinaryOp.LE | BinaryOp.LT as op, IndexValue(left), IndexValue(right)) if (
            variables(left) and variables(right)
        ):
            terms, offset = as_affine(left)
            others, start = as_affine(right)
            negated = [(-step, var) for step, var in others]
            return affine([*terms, *negated], offset - start + (op is BinaryOp.LT))
        case _:
            return None
