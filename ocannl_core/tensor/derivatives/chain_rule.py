"""Derivatives of formulas: reverse accumulation over the gradient code of their primitives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import assert_never

from ocannl_core.ir.numbers.primitives import BinaryOp, Op, TernaryOp, UnaryOp
from ocannl_core.tensor.graph.formulas import (
    COTANGENT,
    RESULT,
    Application,
    Formula,
    Variable,
    operand_variables,
    variables_in,
)
from ocannl_core.tensor.primitives.pointwise_operations import primitive_gradient


def substitute(formula: Formula, values: Mapping[Variable, Formula]) -> Formula:
    """Return a formula with variables replaced, and numbers folded."""
    match formula:
        case Variable():
            return values.get(formula, formula)
        case Application(op, args):
            return applied(op, tuple(substitute(arg, values) for arg in args))
        case float():
            return formula
        case _:
            assert_never(formula)


def applied(op: Op, args: tuple[Formula, ...]) -> Formula:
    """Return a primitive applied to formulas, after folding of numbers.

    1 * a  -->  a        a ** 1  -->  a        a ** 0  -->  1        where(1, a, b)  -->  a
    """
    match op, args:
        case _ if all(isinstance(arg, float) for arg in args):
            return float(op.value.meaning(*args))
        case TernaryOp.WHERE, (float(condition), one, other):
            return one if condition else other
        case (BinaryOp.MUL, (1.0, one) | (one, 1.0)) | (BinaryOp.POW, (one, 1.0)):
            return one
        case BinaryOp.POW, (_, 0.0):
            return 1.0
        case _:
            return Application(op, args)


def negated(formula: Formula) -> Formula:
    """Return the negation of a formula."""
    return Application(UnaryOp.NEG, (formula,))


def added(terms: Sequence[Formula]) -> Formula:
    """Return the sum of one formula or more."""
    return reduce(lambda a, b: Application(BinaryOp.ADD, (a, b)), terms)


def derivatives(formula: Formula, cotangent: Formula) -> dict[Variable, Formula]:
    """Return the products of a cotangent and the derivatives of a formula, by variable.

    Variables without a derivative are left out: positions, and operands of primitives that are
    constant almost everywhere.
    """
    found: dict[Variable, list[Formula]] = {}
    pending: list[tuple[Formula, Formula]] = [(formula, cotangent)]
    while pending:
        value, gradient = pending.pop(0)
        if isinstance(value, Variable):
            if value.role not in ("selection", "position"):
                found.setdefault(value, []).append(gradient)
        elif isinstance(value, Application) and any(True for _ in variables_in(value)):
            pending += _partial_derivatives(value, gradient)
    return {variable: added(terms) for variable, terms in found.items()}


def _partial_derivatives(
    value: Application, cotangent: Formula
) -> Iterator[tuple[Formula, Formula]]:
    """Yield the operands of a primitive with the contributions to their gradients."""
    code = primitive_gradient(value.op)
    if code is None:
        return
    actual: dict[Variable, Formula] = {COTANGENT: cotangent, RESULT: value}
    actual |= zip(operand_variables(len(value.args)), value.args, strict=True)
    for each in code.assignments:
        term = substitute(each.value, actual)
        if each.target.role == "intermediate":
            actual[each.target] = term
            continue
        operand = value.args[each.target.position - 1]
        if not isinstance(operand, float):
            yield operand, negated(term) if each.combine is BinaryOp.SUB else term
