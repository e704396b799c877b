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
from ocannl_core.ir.kernels.nest import LoopAxis
from ocannl_core.ir.loops.conversions import as_format, unconverted, unwidened
from ocannl_core.ir.loops.nodes import Binary, Const, Expr, Local, Store, Ternary, Unary
from ocannl_core.ir.loops.traverse import map_expr, nodes_of
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp


@dataclass(frozen=True, slots=True)
class Product:
    """A product of rows and columns: scores."""

    result: Local
    left: Expr
    """The factor of rows and terms."""
    right: Expr
    """The factor of columns and terms."""
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
    """

    batch: tuple[LoopAxis, ...]
    """The axes of rows that each thread block has one position along."""
    rows: LoopAxis
    """The axis of rows that tiles run along."""
    columns: LoopAxis
    products: tuple[Product, ...]
    """The products of rows and columns, the first of which has the statistics."""
    score: Expr
    """The value of a row and a column that is kept: the term of the maximum, if any."""
    maximum: RowMaximum | None
    row_sums: tuple[Sum, ...]
    """The other statistics, in the order of the program."""
    output: Sum
    """The sums of the last product, the accumulator."""
    operand: Expr
    """Its factor of columns and cells."""
    head_axis: LoopAxis
    """The axis of the cells of a row: the width of a head."""
    epilogue: tuple[Store, ...]
    row_stores: tuple[Store, ...] = ()
    """The stores of a row: functions of its statistics."""
    row_invariants: tuple[Invariant, ...] = ()
    column_invariants: tuple[Invariant, ...] = ()

    @property
    def loaded(self) -> frozenset[TensorNode]:
        """The nodes that its kernel loads."""
        exprs = [self.operand, self.score, *(store.value for store in self.epilogue)]
        exprs += [factor for each in self.products for factor in (each.left, each.right)]
        exprs += [each.value for each in (*self.row_invariants, *self.column_invariants)]
        for each in (*self.row_sums, self.output):
            shift = () if each.shift is None else (each.shift,)
            exprs += [each.term, *shift, *each.numerators, *each.denominators]
        return frozenset(node for expr in exprs for node in nodes_of(expr))


def factors_of(expr: Expr) -> tuple[list[Expr], list[Expr]]:
    """Return the factors of an expression and its divisors, in its format."""
    numerators: list[Expr] = []
    denominators: list[Expr] = []
    pending: list[tuple[Expr, bool]] = [(expr, True)]
    while pending:
        each, is_factor = pending.pop()
        match each:
            case Binary(BinaryOp.MUL, left, right):
                pending += [(right, is_factor), (left, is_factor)]
            case Binary(BinaryOp.DIV, left, right):
                pending += [(right, not is_factor), (left, is_factor)]
            case Unary(UnaryOp.IDENTITY, arg, dtype) if (
                arg.dtype.is_float and dtype.is_float and _is_product(unconverted(arg))
            ):
                pending.append((arg, is_factor))
            case _:
                own = as_format(each, expr.dtype)
                (numerators if is_factor else denominators).append(own)
    return numerators, denominators


def _is_product(expr: Expr) -> bool:
    return isinstance(expr, Binary) and expr.op in (BinaryOp.MUL, BinaryOp.DIV)


def joined(numerators: list[Expr], denominators: list[Expr], dtype: DType) -> Expr:
    """Return a product of factors, divided by others."""
    result: Expr = numerators[0] if numerators else Const(1.0, dtype)
    for each in numerators[1:]:
        result = Binary(BinaryOp.MUL, result, each, dtype)
    for each in denominators:
        result = Binary(BinaryOp.DIV, result, each, dtype)
    return result


def exponential_of(op: Expr, difference: Expr) -> Expr:
    """Return the exponential function of an attention, applied to another difference."""
    op = unconverted(op)
    assert isinstance(op, Unary)
    return Unary(op.op, difference, difference.dtype)


def replaced(expr: Expr, old: Expr | None, new: Expr) -> Expr:
    """Return an expression with a part of it replaced wherever it occurs."""
    return expr if old is None else map_expr(expr, lambda e: new if e == old else e)


def replaced_score(expr: Expr, score: Expr, value: Expr) -> Expr:
    """Return an expression with a score replaced, also where it is not widened."""
    narrow = unwidened(score)
    return replaced(replaced(expr, score, value), narrow, as_format(value, narrow.dtype))


def where(condition: Expr, value: Expr, other: Expr) -> Expr:
    """Return one of two values."""
    return Ternary(TernaryOp.WHERE, condition, value, other, value.dtype)


def inside_or(condition: Expr | None, value: Expr, beyond: float = 0.0) -> Expr:
    """Return a value where a condition holds, and a number elsewhere; None always holds."""
    return value if condition is None else where(condition, value, Const(beyond, value.dtype))
