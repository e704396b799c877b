"""Formulas: the values that the code of operations assigns, as trees over variables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Literal, assert_never

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.numbers.primitives import Op, Result, TernaryOp

Role = Literal["value", "gradient", "intermediate", "selection", "position", "count"]


@dataclass(frozen=True, slots=True)
class Variable:
    """A slot in a formula.

    Attributes:
        role: The value or the gradient of a tensor, an intermediate tensor with its axes, the
            position of the cell that a maximum or minimum selects, the position on the reduced
            axes, or the number of these positions.
        position: The tensor: the result (0) or an operand (from 1).
        name: The name of an intermediate slot.
        occurrence: A number that distinguishes reads of one slot along different axes; 0 if they
            are not distinguished.
        is_merge: True for the merge buffer of the tensor.
    """

    role: Role
    position: int
    name: str = ""
    occurrence: int = 0
    is_merge: bool = False


@dataclass(frozen=True, slots=True)
class Application:
    """A primitive applied to formulas."""

    op: Op
    args: tuple[Formula, ...]
    like: Variable | None = None
    """The variable in whose number format the value is stored; None where the format follows from
    the operands.
    """


Formula = Variable | Application | float

RESULT = Variable("value", 0)
COTANGENT = Variable("gradient", 0)
"""The gradient of the result."""
SELECTION = Variable("selection", 0)
POSITION = Variable("position", 0)
COUNT = Variable("count", 0)


def operand_variables(operands: int, role: Role = "value") -> tuple[Variable, ...]:
    """Return the values or the gradients of the operands of an operation."""
    return tuple(Variable(role, position) for position in range(1, operands + 1))


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


def makes_floats(formula: Formula) -> bool:
    """Return True if a formula has fractional values for integers, too."""
    match formula:
        case Application(op=op, args=args):
            if op.value.result in (Result.TRUTH, Result.BITS):
                return False
            chosen = args[1:] if op is TernaryOp.WHERE else args
            return op.value.is_real or any(map(makes_floats, chosen))
        case float():
            return formula % 1 != 0
        case Variable():
            return False
        case _:
            assert_never(formula)


def map_variables(formula: Formula, function: Callable[[Variable], Formula]) -> Formula:
    """Return a formula with every occurrence of a variable replaced, in order."""
    match formula:
        case Variable():
            return function(formula)
        case Application(args=args):
            return replace(formula, args=tuple(map_variables(arg, function) for arg in args))
        case float():
            return formula
        case _:
            assert_never(formula)


def with_occurrences(formula: Formula) -> Formula:
    """Return a formula whose variables occur once each, numbered in order."""
    numbers = count(1)
    return map_variables(formula, lambda variable: replace(variable, occurrence=next(numbers)))
