"""Operator precedence in C expressions, and the necessary parentheses.

The levels follow the C grammar; CUDA C++ and OpenCL C share them.
"""

from __future__ import annotations

from enum import IntEnum

from ocannl_core.base.fast_dataclass import dataclass


class Precedence(IntEnum):
    """Precedence of the outermost operator of an expression; a higher level binds tighter."""

    CONDITIONAL = 3
    OR = 4
    AND = 5
    BIT_OR = 6
    BIT_XOR = 7
    BIT_AND = 8
    EQUALITY = 9
    RELATION = 10
    SHIFT = 11
    SUM = 12
    PRODUCT = 13
    UNARY = 14
    PRIMARY = 16


_SYMBOLS = {
    Precedence.OR: "||",
    Precedence.AND: "&&",
    Precedence.BIT_OR: "|",
    Precedence.BIT_XOR: "^",
    Precedence.BIT_AND: "&",
    Precedence.EQUALITY: "== !=",
    Precedence.RELATION: "< <= > >=",
    Precedence.SHIFT: ">>",
    Precedence.SUM: "+ -",
    Precedence.PRODUCT: "* / %",
}
_INFIX = {symbol: level for level, symbols in _SYMBOLS.items() for symbol in symbols.split()}
_TIGHTER = {
    level: next(each for each in Precedence if each > level) for level in set(_INFIX.values())
}


@dataclass(frozen=True, slots=True)
class CExpr:
    """An expression of the generated language."""

    code: str
    level: Precedence = Precedence.PRIMARY

    def at(self, level: Precedence) -> str:
        """Return the code, in parentheses if it binds less tightly than `level`."""
        return self.code if self.level >= level else f"({self.code})"

    def __str__(self) -> str:
        return self.code


def infix(left: CExpr, symbol: str, right: CExpr) -> CExpr:
    """Return `left symbol right`, associating to the left.

    (a - b) - c  -->  a - b - c
    a - (b - c)  -->  a - (b - c)
    """
    level = _INFIX[symbol]
    tighter = _TIGHTER[level]
    if symbol == "||":
        # parentheses for readers, although && binds tighter
        return CExpr(f"{left.at(Precedence.EQUALITY)} || {right.at(Precedence.EQUALITY)}", level)
    if symbol in ("&", "|"):
        # likewise, although these bind less tightly than comparisons
        return CExpr(f"{left.at(Precedence.SHIFT)} {symbol} {right.at(Precedence.SHIFT)}", level)
    associates = level not in (Precedence.RELATION, Precedence.EQUALITY)
    return CExpr(f"{left.at(level if associates else tighter)} {symbol} {right.at(tighter)}", level)


def negate(operand: CExpr) -> CExpr:
    """Return `-operand`, without adjacent minus signs."""
    code = operand.at(Precedence.UNARY)
    return CExpr(f"-({code})" if code.startswith("-") else f"-{code}", Precedence.UNARY)


def cast(type_name: str, operand: CExpr) -> CExpr:
    """Return `(type_name)operand`."""
    return CExpr(f"({type_name}){operand.at(Precedence.UNARY)}", Precedence.UNARY)


def call(function: str, *arguments: CExpr) -> CExpr:
    """Return `function(arguments)`."""
    return CExpr(f"{function}({', '.join(each.code for each in arguments)})")


def conditional(condition: CExpr, chosen: CExpr, other: CExpr) -> CExpr:
    """Return `condition ? chosen : other`; a chain in the last operand needs no parentheses."""
    test, consequent = condition.at(Precedence.OR), chosen.at(Precedence.OR)
    code = f"{test} ? {consequent} : {other.at(Precedence.CONDITIONAL)}"
    return CExpr(code, Precedence.CONDITIONAL)
