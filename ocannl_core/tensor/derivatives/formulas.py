"""Formulas: the values that defining functions assign, as trees, and their derivatives.

    def gradient(g, g1, v):         g1 += g * (1 - v * v)

is traced to the assignment of `mul(g, sub(1, mul(v, v)))` to `g1`. The derivative of a formula
follows from the gradient functions of its primitives, by reverse accumulation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from typing import assert_never

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.assignments.nodes import NodeOperand
from ocannl_core.ir.numbers.primitives import BinaryOp, Op, TernaryOp, UnaryOp
from ocannl_core.shape.translation.logic import Logic
from ocannl_core.tensor.graph.slots import Role, Slot, SlotApplication, SlotValue, role_of, trace
from ocannl_core.tensor.primitives.pointwise_operations import primitive_gradient


@dataclass(frozen=True, slots=True)
class Variable:
    """A slot in a formula.

    Attributes:
        role: As in `SlotName`; `selection` stands for the position of the selected cell, which the
            formula compares with `position`.
        position: The result (0) or an operand (from 1).
        name: The name of an intermediate slot.
        occurrence: A number that distinguishes reads of one slot along different axes; 0 if they
            are not distinguished.
    """

    role: Role
    position: int
    name: str = ""
    occurrence: int = 0


@dataclass(frozen=True, slots=True)
class Application:
    """A primitive applied to formulas."""

    op: Op
    args: tuple[Formula, ...]


Formula = Variable | Application | float

COTANGENT = Variable("gradient", 0)
"""The gradient of the result."""
SELECTION = Variable("selection", 0)
POSITION = Variable("position", 0)


@dataclass(frozen=True, slots=True)
class TracedAssignment:
    """An assignment of a defining function, with the logic that is stated for it, if any."""

    target: Variable
    combine: BinaryOp
    reset: bool
    value: Formula
    logic: Logic | None


@lru_cache(maxsize=1024)
def trace_formulas(code: Callable[..., None], operands: int) -> tuple[TracedAssignment, ...]:
    """Return the assignments of a gradient function of an operation with a number of operands."""
    return tuple(
        TracedAssignment(
            _variable(each.target),
            each.combine,
            each.reset,
            _formula(each.value),
            each.value.logic if isinstance(each.value, SlotApplication) else None,
        )
        for each in trace(code, operands)
    )


def _variable(slot: Slot) -> Variable:
    role = role_of(slot.name)
    return Variable(role, slot.position, slot.name if role == "intermediate" else "")


def _formula(value: SlotValue) -> Formula:
    match value:
        case Slot(operand=NodeOperand()):
            found = _variable(value)
            is_selection = found.role == "selection"
            return Application(BinaryOp.EQ, (SELECTION, POSITION)) if is_selection else found
        case Slot():
            raise UsageError(
                "oc.gradients differentiates functions of slots as they are.",
                found=f"{value!r} in the gradient function of an operation",
                fix="merge buffers are read by recorded code",
            )
        case SlotApplication(op=op, args=args):
            return Application(op, tuple(map(_formula, args)))
        case _:
            return float(value)


def variables_in(formula: Formula) -> Iterator[Variable]:
    """Yield the variables of a formula, one for each occurrence."""
    match formula:
        case Variable():
            yield formula
        case Application(args=args):
            for arg in args:
                yield from variables_in(arg)
        case float():
            pass
        case _:
            assert_never(formula)


def substitute(formula: Formula, values: Mapping[Variable, Formula]) -> Formula:
    """Return a formula with variables replaced."""
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


def as_slots(formula: Formula, slots: Mapping[Variable, Slot]) -> SlotValue:
    """Return a formula as a value over slots."""
    match formula:
        case Variable():
            return slots[formula]
        case Application(op, args):
            return SlotApplication(op, tuple(as_slots(arg, slots) for arg in args))
        case float():
            return formula
        case _:
            assert_never(formula)


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
    actual: dict[Variable, Formula] = {COTANGENT: cotangent, Variable("value", 0): value}
    actual |= {Variable("value", i): arg for i, arg in enumerate(value.args, 1)}
    for each in trace_formulas(code, len(value.args)):
        operand = value.args[each.target.position - 1]
        if not isinstance(operand, float):
            term = substitute(each.value, actual)
            yield operand, negated(term) if each.combine is BinaryOp.SUB else term


def check_sum(assignment: TracedAssignment, name: str, where: str) -> None:
    """Refuse an assignment that has no derivative, as it neither sets nor adds."""
    sets = assignment.combine is BinaryOp.SECOND
    if not (sets or assignment.combine in (BinaryOp.ADD, BinaryOp.SUB)):
        raise UsageError(
            "oc.gradients differentiates sums: the gradient function of an operation assigns, or "
            "accumulates with += and -=.",
            found=f"{assignment.combine.value.name} into {assignment.target.name or 'a gradient'} "
            f"in the gradient of {name}",
            where=where,
            fix="compute that part in an operation of its own, whose result is an operand here",
        )
