"""Causal masks: the columns that no row of a block needs, and what expressions are worth there.

    weight[q, t] = where(t <= q, ..., 0)            or    exp(where(t <= q, ..., -inf) - ...)

Behind the diagonal scores are minus infinity and weights zero, so that no maximum, sum or product
with finite factors would change. Rows are in order, so the columns that a block of rows needs are
the first ones, or the last ones where rows and columns have changed places.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from operator import eq

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import AxisIndex, IndexVar, affine, as_affine, substitute
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.ranges import visible_difference
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp
from ocannl_core.passes.kernels.rows.flash_attention import FusedAttention
from ocannl_core.passes.kernels.rows.tile_copies import Side


def hidden_value(
    expr: ir.Expr,
    is_mask: Callable[[ir.Expr], bool],
    loaded: Callable[[ir.Load], float | None] = lambda load: None,
) -> float | None:
    """Return the constant value of an expression in columns that a mask hides; None if unknown.

    Args:
        is_mask: Returns True for conditions that hold in no hidden column.
        loaded: Returns the value of a load.
    """

    def value(expr: ir.Expr) -> float | None:
        match expr:
            case ir.Const(number):
                return float(number)
            case ir.Load():
                return loaded(expr)
            case ir.Unary(UnaryOp.IDENTITY, arg):
                return value(arg)
            case ir.Unary(UnaryOp.NEG, arg):
                return _negative(value(arg))
            case ir.Unary(UnaryOp.EXP | UnaryOp.EXP2, arg):
                return 0.0 if value(arg) == -math.inf else None
            case ir.Binary(BinaryOp.MUL, left, right):
                return _product(value(left), value(right))
            case ir.Binary(BinaryOp.DIV, left, right):
                return 0.0 if value(left) == 0.0 and value(right) != 0.0 else None
            case ir.Binary(BinaryOp.ADD, left, right):
                return _sum(value(left), value(right))
            case ir.Binary(BinaryOp.SUB, left, right):
                return _sum(value(left), _negative(value(right)))
            case ir.Ternary(TernaryOp.FMA, left, right, added):
                return _sum(_product(value(left), value(right)), value(added))
            case ir.Ternary(TernaryOp.WHERE, condition, chosen, other):
                if is_mask(condition):
                    return value(other)
                found = value(chosen)
                return found if found == value(other) else None
            case _:
                return None

    return value(expr)


def _negative(number: float | None) -> float | None:
    return None if number is None else -number


def _product(left: float | None, right: float | None) -> float | None:
    """Return 0 if one factor is 0; the other may be unknown, but not known to be infinite."""
    return 0.0 if 0.0 in (left, right) and not {left, right} & {math.inf, -math.inf} else None


def _sum(left: float | None, right: float | None) -> float | None:
    """Return the sum of two numbers, of which one may be unknown."""
    if -math.inf in (left, right) and math.inf not in (left, right):
        return -math.inf
    return None if left is None or right is None else left + right


@dataclass(frozen=True, slots=True)
class CausalMask:
    """A mask by a comparison of a row's position and a column's."""

    attention: FusedAttention
    difference: AxisIndex
    """The position that is below 1 where a column is needed."""
    is_falling: bool
    """True if rows need the last columns."""

    def last_tile(self, columns: Side, rows: Side) -> ir.LoopBound:
        """Return the end of the tiles of columns that a tile of rows needs."""
        last, first = (columns, rows) if self.is_falling else (rows, columns)
        terms, offset = as_affine(last.first)
        values: dict[IndexVar, AxisIndex] = {
            last.axis.var: affine(terms, offset + last.extent - 1),
            first.axis.var: first.first,
        }
        return ir.LoopBound(substitute(self.difference, values), 1)


def causal_mask(attention: FusedAttention) -> CausalMask | None:
    """Return the mask by which tiles of columns may be left out; None if none can be proven."""
    score, neutral = attention.score, -math.inf
    if attention.maximum is None:
        score, neutral = attention.output.term, 0.0
        if attention.row_sums:
            return None
    elif any(each.shift is None for each in (*attention.row_sums, attention.output)):
        return None
    column, row = attention.columns.var, attention.rows.var
    for condition in walk(score):
        found = visible_difference(condition) if isinstance(condition, ir.Binary) else None
        if found is None or hidden_value(score, partial(eq, condition)) != neutral:
            continue
        steps = {var: step for step, var in as_affine(found)[0]}
        if steps.keys() == {column, row} and (steps[column] < 0) != (steps[row] < 0):
            return CausalMask(attention, found, steps[column] < 0)
    return None
