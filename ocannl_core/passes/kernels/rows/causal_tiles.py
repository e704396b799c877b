"""Causal mask of flash attention: skip the tiles of columns that no row of a tile needs.

    weight[q, t] = where(t <= q, ..., 0)            or    exp(where(t <= q, ..., -inf) - ...)

Where no row of a tile has a column of another tile before its end, all of those weights are zero,
so that no maximum, sum or result would change. Rows are in order, so the tiles that are needed are
the first ones, or the last ones where rows and columns have changed places: an attention walks from
that end.
"""

from __future__ import annotations

import math

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import AxisIndex, IndexVar, affine, as_affine, substitute
from ocannl_core.ir.loops.nodes import Binary, Const, Expr, LoopBound, Ternary, Unary
from ocannl_core.ir.loops.ranges import visible_difference
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp
from ocannl_core.passes.kernels.rows.attention import FusedAttention
from ocannl_core.passes.kernels.rows.tile_copies import Side


@dataclass(frozen=True, slots=True)
class CausalMask:
    """A mask by a comparison of a row's position and a column's.

    Attributes:
        difference: The position that is below 1 where a column is needed.
        is_falling: True if rows need the last columns.
    """

    attention: FusedAttention
    difference: AxisIndex
    is_falling: bool

    def last_tile(self, columns: Side, rows: Side) -> LoopBound:
        """Return the end of the tiles of columns that a tile of rows needs."""
        last, first = (columns, rows) if self.is_falling else (rows, columns)
        terms, offset = as_affine(last.first)
        values: dict[IndexVar, AxisIndex] = {
            last.axis.var: affine(terms, offset + last.extent - 1),
            first.axis.var: first.first,
        }
        return LoopBound(substitute(self.difference, values), 1)


def causal_mask(attention: FusedAttention) -> CausalMask | None:
    """Return the mask by which tiles of columns may be left out; None if none can be proven."""
    found = visible_difference(_condition(attention))
    if found is None:
        return None
    column, row = attention.columns.var, attention.rows.var
    steps = {var: step for step, var in as_affine(found)[0]}
    if steps.keys() != {column, row} or (steps[column] < 0) == (steps[row] < 0):
        return None
    return CausalMask(attention, found, steps[column] < 0)


def _condition(attention: FusedAttention) -> Expr | None:
    """Return a condition without which a column adds nothing to a row; None if there is none."""
    if attention.maximum is None:
        return None if attention.row_sums else _factor_condition(attention.output.term)
    if any(each.shift is None for each in (*attention.row_sums, attention.output)):
        return None
    return _score_condition(attention.score)


def _score_condition(score: Expr) -> Expr | None:
    match score:
        case Ternary(TernaryOp.WHERE, condition, _, Const(value)) if value == -math.inf:
            return condition
        case Unary(UnaryOp.IDENTITY, arg):
            return _score_condition(arg)
        case _:
            return None


def _factor_condition(factor: Expr) -> Expr | None:
    """Return the condition without which a factor is zero, if its other parts are finite."""
    match factor:
        case Ternary(TernaryOp.WHERE, condition, _, Const(0.0)):
            return condition
        case Unary(UnaryOp.EXP | UnaryOp.EXP2, Binary(BinaryOp.SUB, score, _)):
            return _score_condition(score)
        case Unary(UnaryOp.IDENTITY | UnaryOp.NEG, arg):
            return _factor_condition(arg)
        case Binary(BinaryOp.ADD, Const(0.0), arg) | Binary(BinaryOp.ADD, arg, Const(0.0)):
            return _factor_condition(arg)
        case Binary(BinaryOp.DIV, arg, _):
            return _factor_condition(arg)
        case Binary(BinaryOp.MUL, left, right) | Ternary(TernaryOp.FMA, left, right, Const(0.0)):
            found = _factor_condition(left)
            return _factor_condition(right) if found is None else found
        case _:
            return None
