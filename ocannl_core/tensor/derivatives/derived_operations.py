"""Operations derived from other operations' code: derivatives of formulas, and their operations.

The assignment `g1 += g * v2` of gradient code becomes an operation whose result has the axes
of `v1` and whose operands are `g` and `v2`, over the domain of the operation that it belongs to
(`shape.translation.logic.Adjoint`). Its own gradient follows from the formula.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, reduce

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.identity import IdentityMap
from ocannl_core.ir.numbers.primitives import BinaryOp, Op, TernaryOp, UnaryOp, neutral
from ocannl_core.tensor.graph.slots import (
    COTANGENT,
    COUNT,
    PLACE,
    POSITION,
    RESULT,
    Application,
    Code,
    Formula,
    SlotAssignment,
    Variable,
    fold,
    map_variables,
    operand_variables,
    slot_texts,
    variables_in,
)
from ocannl_core.tensor.primitives.operation import Operation
from ocannl_core.tensor.primitives.pointwise_operations import primitive_gradient


def substitute(formula: Formula, values: Mapping[Variable, Formula]) -> Formula:
    """Return a formula with variables replaced, and numbers folded. A part that occurs more than
    once, as one object, stays one object.
    """
    return map_variables(
        formula,
        lambda variable: values.get(variable, variable),
        lambda p, args: applied(p.op, args),
    )


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

    A part that occurs more than once, as one object, gets the sum of its gradients first: otherwise
    second and third derivatives would have a term for each way through the formula.

    Variables without a derivative are left out: positions, and operands of primitives that are
    constant almost everywhere.
    """
    found: dict[Variable, list[Formula]] = {}
    inner: IdentityMap[Formula, list[Formula]] = IdentityMap()

    def add(part: Formula, gradient: Formula) -> None:
        if isinstance(part, Application):
            inner.setdefault(part, []).append(gradient)
        elif isinstance(part, Variable) and part.role not in ("selection", "position"):
            found.setdefault(part, []).append(gradient)

    add(formula, cotangent)
    parts: list[Application] = []
    fold(formula, lambda leaf: None, lambda part, args: parts.append(part))
    for part in reversed(parts):
        if part in inner:
            for operand, gradient in _partial_derivatives(part, added(inner[part])):
                add(operand, gradient)
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


_NO_POSITION = -1.0
"""The selection of cells that a result does not have."""


@dataclass(frozen=True, eq=False, kw_only=True)
class DerivedOperation(Operation):
    """An operation derived from the code of another one."""

    slots: tuple[Variable, ...]
    """The slots of the other operation's code that the operands stand for."""
    padding: BinaryOp | None
    """The accumulation of the other operation, whose neutral element windows over its operands read
    beyond an axis; None for 0.
    """

    @property
    def selection(self) -> int | None:
        """The operand with the positions of selected cells, if there is one."""
        return next((i for i, each in enumerate(self.slots) if each.role == "selection"), None)


def slot_behind(operation: Operation, slot: Variable) -> Variable:
    """Return the slot of the other operation's code that a value stands for in derived code."""
    if isinstance(operation, DerivedOperation) and slot.role == "value" and slot.position:
        return operation.slots[slot.position - 1]
    return slot


def padding_of(operation: Operation) -> BinaryOp | None:
    """Return the accumulation whose neutral element is read beyond an axis; None for 0."""
    if isinstance(operation, DerivedOperation):
        return operation.padding
    return operation.forward.accumulation


def value_beyond(operation: Operation, slot: Variable) -> float:
    """Return the number that windows read beyond an axis: the neutral element for operands of the
    accumulation, no position for a selection, and 0 for results and gradients.
    """
    slot, padding = slot_behind(operation, slot), padding_of(operation)
    if slot.role == "selection":
        return _NO_POSITION
    is_operand = slot.role == "value" and slot.position > 0
    return neutral(padding) if is_operand and padding is not None else 0.0


@lru_cache(maxsize=4096)
def term_operation(
    name: str,
    formula: Formula,
    slots: tuple[Variable, ...],
    padding: BinaryOp | None,
    positions: int = 0,
) -> DerivedOperation:
    """Return the operation that sums a formula of its operands over the cells of its domain."""
    count = len(slots)
    values, targets = operand_variables(count), operand_variables(count, "gradient")
    places = [POSITION] if POSITION in variables_in(formula) else []

    def gradient() -> Iterator[SlotAssignment]:
        partial = derivatives(formula, COTANGENT)
        for value, target in zip(values, targets, strict=True):
            if value in partial:
                yield SlotAssignment(target, BinaryOp.ADD, False, partial[value])

    return DerivedOperation(
        name=name,
        operands=count,
        logic=None,
        forward=Code.of(
            (RESULT, *values, *places), SlotAssignment(RESULT, BinaryOp.ADD, True, formula)
        ),
        gradient=Code(slot_texts((COTANGENT, *targets, *values, *places)), gradient),
        slots=slots,
        padding=padding,
        positions=positions,
    )


@lru_cache(maxsize=1024)
def search_operation(name: str, forward: Code, operands: int, positions: int) -> DerivedOperation:
    """Return the search, in a maximum and its operands, for the positions that it selects.

    Args:
        positions: The number of operands, the last ones, that hold positions.
    """
    extreme = forward.extreme
    if extreme is None:
        raise UsageError(
            "The slot `selected` stands for the selection of a maximum or minimum.",
            found=f"{name}, whose forward function does not accumulate one into v",
            fix="v[oc.neutral, oc.maximum] = v1",
        )
    combine, value = extreme
    result, *others = operand_variables(1 + operands)
    value = map_variables(
        value, lambda each: replace(others[each.position - 1], is_merge=each.is_merge)
    )
    search = position_search(combine, result, rounded(value, result))
    return DerivedOperation(
        name=f"{name}_search",
        operands=1 + operands,
        logic=None,
        forward=Code.of(
            (RESULT, result, *others, POSITION), SlotAssignment(RESULT, BinaryOp.MIN, True, search)
        ),
        gradient=None,
        slots=(RESULT, *operand_variables(operands)),
        padding=forward.accumulation,
        positions=positions,
    )


def rounded(value: Formula, like: Variable) -> Application:
    """Return a value that is stored in the number format of a variable."""
    if isinstance(value, Application):
        return replace(value, like=like)
    return Application(UnaryOp.IDENTITY, (value,), like)


def position_search(combine: BinaryOp, result: Formula, value: Formula) -> Application:
    """Return the value whose minimum is the position of the first cell that equals a maximum.

        v[i] max= v1[i, j]
    -->
        first[i] min= v1[i, j] < v[i] ? the number of positions : j
    """
    others = (value, result) if combine is BinaryOp.MAX else (result, value)
    return Application(TernaryOp.WHERE, (Application(BinaryOp.LT, others), COUNT, PLACE))
