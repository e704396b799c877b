"""Terms of an online softmax, taken apart: factors that run with the columns, and the others."""

from __future__ import annotations

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import LoopVar
from ocannl_core.ir.loops.nodes import Binary, Const, Expr, Local, LocalRead, Ternary, Unary
from ocannl_core.ir.loops.traverse import free_variables, locals_of, map_expr
from ocannl_core.ir.numbers.dtypes import DType, Kind
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp
from ocannl_core.passes.kernels.flash_attention.fused_attention import RowMaximum, Sum
from ocannl_core.schedule.apply.software_pipelines import staged_expr

_EXPONENTIALS = (UnaryOp.EXP, UnaryOp.EXP2)


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of an attention, and what is known of its rows."""

    var: LoopVar
    score: Local
    maximum: RowMaximum | None
    row_sums: frozenset[Local]

    def varies(self, expr: Expr) -> bool:
        """Return True if an expression depends on the column."""
        return self.var in free_variables(expr) or self.score in locals_of(expr)

    def statistics(self, expr: Expr) -> frozenset[Local]:
        """Return the results of statistics that an expression depends on."""
        own = {self.maximum.result} if self.maximum is not None else set()
        return (self.row_sums | own) & frozenset(locals_of(expr))


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
            case Unary(UnaryOp.IDENTITY, Binary(BinaryOp.MUL | BinaryOp.DIV) as inner, dtype) if (
                _is_widening(inner.dtype, dtype)
            ):
                pending.append((inner, is_factor))
            case _:
                own = as_format(each, expr.dtype)
                (numerators if is_factor else denominators).append(own)
    return numerators, denominators


def _is_widening(narrow: DType, wide: DType) -> bool:
    return narrow.is_float and wide.is_float and narrow.nbytes <= wide.nbytes


def as_format(expr: Expr, dtype: DType) -> Expr:
    """Return an expression in a number format."""
    return expr if expr.dtype is dtype else Unary(UnaryOp.IDENTITY, expr, dtype)


def joined(numerators: list[Expr], denominators: list[Expr], dtype: DType) -> Expr:
    """Return a product of factors, divided by others."""
    result: Expr = numerators[0] if numerators else Const(1.0, dtype)
    for each in numerators[1:]:
        result = Binary(BinaryOp.MUL, result, each, dtype)
    for each in denominators:
        result = Binary(BinaryOp.DIV, result, each, dtype)
    return result


def online_sum(
    result: Local, numerators: list[Expr], denominators: list[Expr], columns: Columns
) -> Sum | None:
    """Return a sum whose terms are a quotient of factors; None if it cannot run with the columns.

    Args:
        numerators: The factors, in its format.
        denominators: The divisors, likewise.
    """
    dtype = result.dtype
    if dtype.kind is not Kind.FLOAT:
        return None
    waiting = [each for each in numerators if not columns.varies(each)]
    waiting_divisors = [each for each in denominators if not columns.varies(each)]
    running = [each for each in numerators if columns.varies(each)]
    divisors = [each for each in denominators if columns.varies(each)]
    if any(columns.statistics(each) for each in divisors):
        return None
    dependent = [each for each in running if columns.statistics(each)]
    shift = exponential = None
    if dependent:
        maximum = columns.maximum
        if len(dependent) > 1 or maximum is None:
            return None
        shift = _shift(dependent[0], maximum, columns)
        if shift is None:
            return None
        exponential = replaced_score(dependent[0], maximum.term, LocalRead(maximum.result))
    return Sum(
        result,
        joined(running, divisors, dtype),
        shift,
        exponential,
        tuple(waiting),
        tuple(waiting_divisors),
    )


def _shift(factor: Expr, maximum: RowMaximum, columns: Columns) -> Expr | None:
    """Return `b` of a factor `exp(a - b)`, where `a` is the term of the maximum, and `b` depends
    on the maximum alone; None for any other factor.
    """
    while isinstance(factor, Unary) and factor.op is UnaryOp.IDENTITY:
        if not _is_widening(factor.arg.dtype, factor.dtype):
            return None
        factor = factor.arg
    match factor:
        case Unary(op, Binary(BinaryOp.SUB, first, shift)) if op in _EXPONENTIALS:
            pass
        case _:
            return None
    is_known = columns.statistics(shift) == {maximum.result} and not columns.varies(shift)
    return shift if is_known and first in (maximum.term, staged_expr(maximum.term)) else None


def exponential_of(op: Expr, difference: Expr) -> Expr:
    """Return the exponential function of an attention, applied to another difference."""
    while isinstance(op, Unary) and op.op is UnaryOp.IDENTITY:
        op = op.arg
    assert isinstance(op, Unary)
    return Unary(op.op, difference, difference.dtype)


def replaced(expr: Expr, old: Expr | None, new: Expr) -> Expr:
    """Return an expression with a part of it replaced wherever it occurs."""
    return expr if old is None else map_expr(expr, lambda e: new if e == old else e)


def replaced_score(expr: Expr, score: Expr, value: Expr) -> Expr:
    """Return an expression with a score replaced, also where it is not widened."""
    narrow = staged_expr(score)
    return replaced(replaced(expr, score, value), narrow, as_format(value, narrow.dtype))


def where(condition: Expr, value: Expr, other: Expr) -> Expr:
    """Return one of two values."""
    return Ternary(TernaryOp.WHERE, condition, value, other, value.dtype)
