"""Expansions: primitives in terms of other primitives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TypeVar

from ocannl_core.ir.numbers.primitives import (
    COMPARISONS,
    PRIMITIVES,
    BinaryOp,
    Expansion,
    Op,
    TernaryOp,
    UnaryOp,
    VectorOp,
    arity,
)

_Value = TypeVar("_Value")

_BY_NAME: Mapping[str, Op] = {op.value.name: op for op in PRIMITIVES}

# of two numbers without an order, one is NaN, and so is their sum
_WHERE_B_IS_MORE = ("where", ("lt", "a", "b"), "b", ("add", "a", "b"))
_WHERE_B_IS_LESS = ("where", ("lt", "b", "a"), "b", ("add", "a", "b"))
_OF_OPERATORS: Mapping[Op, Expansion] = {
    UnaryOp.NEG: ("sub", -0.0, "a"),
    UnaryOp.NOT: ("eq", "a", 0.0),
    # the sum with 0 is 0.0 for -0.0
    UnaryOp.ABS: ("where", ("lt", "a", 0.0), ("neg", "a"), ("add", "a", 0.0)),
    UnaryOp.RELU: ("where", ("lt", "a", 0.0), 0.0, "a"),
    BinaryOp.SUB: ("add", "a", ("neg", "b")),
    BinaryOp.LE: ("or", ("lt", "a", "b"), ("eq", "a", "b")),
    BinaryOp.NE: ("not", ("eq", "a", "b")),
    BinaryOp.AND: ("where", "a", ("where", "b", 1.0, 0.0), 0.0),
    BinaryOp.OR: ("where", "a", 1.0, ("where", "b", 1.0, 0.0)),
    BinaryOp.MAX: ("where", ("le", "b", "a"), "a", _WHERE_B_IS_MORE),
    BinaryOp.MIN: ("where", ("le", "a", "b"), "a", _WHERE_B_IS_LESS),
    TernaryOp.FMA: ("add", ("mul", "a", "b"), "c"),
}
"""Expansions of primitives for which renderers of the C family have code, exact but for `fma`,
whose product is rounded.
"""

DECOMPOSITIONS: Mapping[Op, Expansion] = {
    **_OF_OPERATORS,
    **{op: op.value.expansion for op in PRIMITIVES if op.value.expansion is not None},
}
"""The expansion of each primitive that the core expands for a device without it."""

TWICE_ROUNDED: frozenset[Op] = frozenset({TernaryOp.FMA})
"""Primitives whose decomposition rounds more often than they do."""


def decomposable(missing: frozenset[Op | VectorOp]) -> frozenset[Op]:
    """Return the missing primitives that expand, also in turn, into others that are there."""
    found: set[Op] = set()
    pending = [op for op in DECOMPOSITIONS if op in missing]
    while True:
        ready = [op for op in pending if (_inside(op) & missing) <= found]
        if not ready:
            return frozenset(found)
        found.update(ready)
        pending = [op for op in pending if op not in found]


@cache
def _inside(op: Op) -> frozenset[Op]:
    """Return the primitives that an expansion mentions."""

    def inside(term: Expansion | str | float) -> frozenset[Op]:
        if not isinstance(term, tuple):
            return frozenset()
        return frozenset({_BY_NAME[term[0]]}).union(*map(inside, term[1:]))

    return inside(DECOMPOSITIONS[op])


def expand(
    op: Op,
    operands: Sequence[_Value],
    number: Callable[[float], _Value],
    apply: Callable[[Op, list[_Value]], _Value],
    select: Callable[[Op, list[_Value]], _Value],
    name: Callable[[_Value], _Value] = lambda value: value,
) -> _Value:
    """Return the value of the decomposition of a primitive.

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
            case ("where", (comparison, *compared), *others) if _BY_NAME[comparison] in COMPARISONS:
                return select(_BY_NAME[comparison], [*map(value_of, (*compared, *others))])
            case _:
                return apply(_BY_NAME[term[0]], [*map(value_of, term[1:])])

    return value_of(DECOMPOSITIONS[op])


@cache
def _mentions(op: Op) -> Mapping[str, int]:
    """Count the mentions of each operand in the expansion of a primitive."""

    def count(term: Expansion | str | float, operand: str) -> int:
        if isinstance(term, tuple):
            return sum(count(each, operand) for each in term[1:])
        return int(term == operand)

    return {operand: count(DECOMPOSITIONS[op], operand) for operand in "abc"[: arity(op)]}
