"""Pieces of C expressions that know how tightly they bind: parentheses appear where they must.

The levels are those of the C grammar; CUDA C++ and OpenCL C share them.
"""

from __future__ import annotations

from enum import IntEnum

from ocannl_core.records import dataclass


class Level(IntEnum):
    """How tightly the outermost operator of an expression binds; a higher level binds tighter."""

    CONDITIONAL = 3
    OR = 4
    AND = 5
    BIT_OR = 6
    BIT_AND = 8
    EQUALITY = 9
    RELATION = 10
    SHIFT = 11
    SUM = 12
    PRODUCT = 13
    UNARY = 14
    PRIMARY = 16


_INFIX = {
    "||": Level.OR,
    "&&": Level.AND,
    "|": Level.BIT_OR,
    "&": Level.BIT_AND,
    "==": Level.EQUALITY,
    "!=": Level.EQUALITY,
    "<": Level.RELATION,
    "<=": Level.RELATION,
    ">": Level.RELATION,
    ">=": Level.RELATION,
    ">>": Level.SHIFT,
    "+": Level.SUM,
    "-": Level.SUM,
    "*": Level.PRODUCT,
    "/": Level.PRODUCT,
    "%": Level.PRODUCT,
}


_TIGHTER = {level: next(each for each in Level if each > level) for level in set(_INFIX.values())}


@dataclass(frozen=True, slots=True)
class Text:
    """An expression of the generated language.

    Attributes:
        code: The characters.
        level: The level of the outermost operator.
    """

    code: str
    level: Level = Level.PRIMARY

    def at(self, level: Level) -> str:
        """Returns the code, in parentheses if it binds less tightly than `level`."""
        return self.code if self.level >= level else f"({self.code})"

    def __str__(self) -> str:
        return self.code


def infix(left: Text, symbol: str, right: Text) -> Text:
    """Returns `left symbol right`, associating to the left.

    (a - b) - c  -->  a - b - c
    a - (b - c)  -->  a - (b - c)
    """
    level = _INFIX[symbol]
    tighter = _TIGHTER[level]
    if symbol == "||":
        # for readers: nobody should have to know that && binds tighter
        return Text(f"{left.at(Level.EQUALITY)} || {right.at(Level.EQUALITY)}", level)
    if symbol in ("&", "|"):
        # nor that these bind less tightly than comparisons
        return Text(f"{left.at(Level.SHIFT)} {symbol} {right.at(Level.SHIFT)}", level)
    associates = level not in (Level.RELATION, Level.EQUALITY)
    return Text(f"{left.at(level if associates else tighter)} {symbol} {right.at(tighter)}", level)


def negated(operand: Text) -> Text:
    """Returns `-operand`; two minus signs never touch."""
    code = operand.at(Level.UNARY)
    return Text(f"-({code})" if code.startswith("-") else f"-{code}", Level.UNARY)


def cast(type_name: str, operand: Text) -> Text:
    """Returns `(type_name)operand`."""
    return Text(f"({type_name}){operand.at(Level.UNARY)}", Level.UNARY)


def call(function: str, *arguments: Text) -> Text:
    """Returns `function(arguments)`."""
    return Text(f"{function}({', '.join(each.code for each in arguments)})")


def conditional(condition: Text, chosen: Text, other: Text) -> Text:
    """Returns `condition ? chosen : other`; a chain in the last operand needs no parentheses."""
    code = f"{condition.at(Level.OR)} ? {chosen.at(Level.OR)} : {other.at(Level.CONDITIONAL)}"
    return Text(code, Level.CONDITIONAL)
