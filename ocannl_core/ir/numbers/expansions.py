"""Expansions: primitives in terms of other primitives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TypeVar

from ocannl_core.ir.numbers.primitives import PRIMITIVES, Expansion, Op, arity

_Value = TypeVar("_Value")

_BY_NAME: Mapping[str, Op] = {op.value.name: op for op in PRIMITIVES}


def expand(
    op: Op,
    operands: Sequence[_Value],
    number: Callable[[float], _Value],
    apply: Callable[[Op, list[_Value]], _Value],
    select: Callable[[Op, list[_Value]], _Value],
    name: Callable[[_Value], _Value] = lambda value: value,
) -> _Value:
    """Return the value of the expansion of a primitive.

    Args:
        number: Returns the value of a number.
        apply: Returns the value of a primitive applied to values.
        select: Returns the third or the fourth of four values, by a comparison of the first two.
        name: Returns an operand that is mentioned repeatedly, in a form that may be repeated.
    """
    values = {
        letter: name(value) if count > 1 else value
        for (letter, count), value in zip(_mentions(op).items(), operands, strict=True)
    }

    def value_of(term: Expansion | str | float) -> _Value:
        match term:
            case str():
                return values[term]
            case float():
                return number(term)
            case ("where", (comparison, *compared), *others):
                return select(_BY_NAME[comparison], [*map(value_of, (*compared, *others))])
            case _:
                return apply(_BY_NAME[term[0]], [*map(value_of, term[1:])])

    return value_of(op.value.expansion)


@cache
def _mentions(op: Op) -> Mapping[str, int]:
    """Count the mentions of each operand in the expansion of a primitive."""

    def count(term: Expansion | str | float, operand: str) -> int:
        if isinstance(term, tuple):
            return sum(count(each, operand) for each in term[1:])
        return int(term == operand)

    return {operand: count(op.value.expansion, operand) for operand in "abc"[: arity(op)]}
