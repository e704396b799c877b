"""Causal masks: the tiles of columns that no row of a tile needs.

Rows are in order, so the columns that a tile of rows needs are the first ones, or the last ones
where rows and columns have changed places.
"""

from __future__ import annotations

import math
from functools import partial
from operator import eq

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import AxisIndex, IndexVar, affine, as_affine, substitute
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.ranges import visible_difference
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.passes.kernels.attention.fused_attention import FusedAttention
from ocannl_core.passes.kernels.attention.tile_copies import Side
from ocannl_core.passes.kernels.rows.masks import hidden_value


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
