"""Attention with an online softmax, as data: the fused pair of products of flash attention.

    s[q, t] = the sum of a[q, d] * b[t, d]          the score of a row and a column
    m[q]    = the maximum of s[q, t]                a row maximum
    l[q]    = the sum of exp(s[q, t] - m[q])        a row sum
    o[q, e] = the sum of exp(s[q, t] - m[q]) / l[q] * v[t, e]

The kernel reads the columns `t` once, tile by tile, and keeps a running value of each reduction. A
sum over the tiles so far has terms `exp(s - m)` with a maximum that is not the last one. Where the
maximum becomes `m'`, the sum is multiplied by `exp(m - m')` (Milakov and Gimelshein, "Online
normalizer calculation for softmax", 2018). Factors that depend on a row only, and on row sums, are
applied when all columns have been read.

An attention may also have several products of rows and columns, and no statistics of its own:

    s[q, t] = the sum of a[q, d] * b[t, d],   p[q, t] = the sum of c[q, e] * g[t, e]
    o[q, f] = the sum of f(s[q, t], p[q, t], m[q], l[q], n[t]) * v[t, f]

Values of a row or of a column alone, such as statistics that another kernel has stored, are
computed once for each of them.
"""

from __future__ import annotations

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import LoopVar
from ocannl_core.ir.kernels.nest import LoopAxis
from ocannl_core.ir.loops.nodes import Expr, Local, Store


@dataclass(frozen=True, slots=True)
class Product:
    """A product of rows and columns: scores.

    Attributes:
        left: The factor of rows and terms.
        right: The factor of columns and terms.
        terms: The reduced axis.
    """

    result: Local
    left: Expr
    right: Expr
    terms: LoopAxis


@dataclass(frozen=True, slots=True)
class RowMaximum:
    """A maximum over the columns of a row of an expression of the row and a column."""

    result: Local
    term: Expr


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum over the columns of a row.

    Attributes:
        term: The part of its term that depends on the column; `exp(maximum.term - shift)` is a
            factor of it if there is a shift.
        shift: An expression of the maximum, by which the sum is corrected where that changes; None
            if its terms do not depend on the maximum.
        exponential: The factor `exp(maximum.term - shift)`, with the maximum in place of its term;
            None without a shift.
        numerators: Factors that depend on the row, for the whole sum.
        denominators: Likewise, divisors.
    """

    result: Local
    term: Expr
    shift: Expr | None
    exponential: Expr | None
    numerators: tuple[Expr, ...] = ()
    denominators: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Invariant:
    """A value of a row, or of a column, that is computed once."""

    result: Local
    value: Expr


@dataclass(frozen=True, slots=True)
class FusedAttention:
    """Products of rows and columns, an online softmax of their rows, and a product with it.

    All expressions have the variables of the axes below, and those that hold results.

    Attributes:
        batch: The axes of rows that each thread block has one position along.
        rows: The axis of rows that tiles run along.
        products: The products of rows and columns, the first of which has the statistics.
        score: The value of a row and a column that is kept: the term of the maximum if there is
            one.
        row_sums: The other statistics, in the order of the program.
        output: The sums of the last product, the accumulator.
        operand: Its factor of columns and cells.
        cells: The axis of cells of a row.
        row_stores: The stores of a row: functions of its statistics.
    """

    batch: tuple[LoopAxis, ...]
    rows: LoopAxis
    columns: LoopAxis
    products: tuple[Product, ...]
    score: Expr
    maximum: RowMaximum | None
    row_sums: tuple[Sum, ...]
    output: Sum
    operand: Expr
    cells: LoopAxis
    epilogue: tuple[Store, ...]
    row_stores: tuple[Store, ...] = ()
    row_invariants: tuple[Invariant, ...] = ()
    column_invariants: tuple[Invariant, ...] = ()

    @property
    def row_vars(self) -> frozenset[LoopVar]:
        """The variables of the axes of rows."""
        return frozenset((self.rows.var, *(axis.var for axis in self.batch)))
