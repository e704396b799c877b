"""Tiles of columns that no row of a tile of rows needs: those behind the diagonal of a causal mask.

    score[q, t] = where(t <= q, ..., -inf)

Where no row of a tile has a column of another tile before its end, all of those scores are minus
infinity, so that no limit, sum or result would change. Rows are in order, so the tiles that are
needed are the first ones.
"""

from __future__ import annotations

import math

from ocannl_core.indexing import AxisIndex, IndexVar, affine, as_affine, substitute, variables
from ocannl_core.kernel_passes.online_reductions.chain import Chain
from ocannl_core.kernel_passes.online_reductions.copies import Side
from ocannl_core.loopir.nodes import Binary, Const, Expr, IndexValue, LoopBound, Ternary
from ocannl_core.ops import BinaryOp, TernaryOp


def last_tile(chain: Chain, columns: Side, rows: Side) -> LoopBound | None:
    """Return the end of the tiles of columns that a tile of rows needs; None if it needs all, or
    if that cannot be proven.

    Args:
        chain: The chain.
        columns: A tile of columns.
        rows: The tile of rows.
    """
    if chain.limit is None or any(each.shift is None for each in (*chain.totals, chain.weighted)):
        return None
    match chain.score:
        case Ternary(TernaryOp.WHERE, condition, _, Const(value)) if value == -math.inf:
            pass
        case _:
            return None
    found = _difference(condition)
    if found is None:
        return None
    column, row = chain.columns.var, chain.rows.var
    steps = {var: step for step, var in as_affine(found)[0]}
    if steps.keys() != {column, row} or steps[column] < 0 or steps[row] > 0:
        return None
    last = affine(as_affine(rows.first)[0], as_affine(rows.first)[1] + rows.extent - 1)
    values: dict[IndexVar, AxisIndex] = {column: columns.first, row: last}
    return LoopBound(substitute(found, values), 1)


def _difference(condition: Expr) -> AxisIndex | None:
    """Return a position that is below 1 where a comparison of positions holds."""
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
