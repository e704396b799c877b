"""Print indices, numbers and primitives alike in the text of every language.

A `PrintedNames` object gives each node, variable and local a short name that is unique within one
printed program and depends only on that program, so that printed text is stable.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import assert_never

import numpy as np

from ocannl_core.ir import indexing
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType, float32
from ocannl_core.ir.numbers.primitives import BinaryOp, Op, TernaryOp, UnaryOp

ATOM = 8
"""The precedence of text that never needs parentheses."""

UNARY = 6
"""The precedence of a sign."""

PRECEDENCE = {"||": 1, "&&": 2, **dict.fromkeys(("<", "<=", "==", "!="), 3)}
PRECEDENCE |= {"+": 4, "-": 4, "*": 5, "/": 5, "%": 5, "**": 7}
ASSOCIATES_LEFT = frozenset("+-*/%")
"""Operators that may follow one another without parentheses."""

RESERVED_NAMES = ("inf", "nan", "_")
"""Names that mean numbers and positions, and so no variables."""

Text = tuple[str, int]
"""Printed text and the precedence of its outermost operator."""


def axis_texts(
    dims: Iterable[int], extents: Sequence[indexing.StaticExtent | None]
) -> Iterator[str]:
    """Yield the sizes of axes as text, `n<=256` for an extent at run time."""
    return (
        str(dim if extent is None else extent)
        for dim, extent in zip_longest(dims, extents, fillvalue=None)
    )


class PrintedNames:
    """Unique names within one printed program: `i`, `i1`, `i2`... in the order of requests."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._names: dict[Hashable, str] = {}
        self._numbers: dict[str, int] = {}
        self._scopes: list[list[indexing.LoopVar]] = []

    def node(self, node: TensorNode) -> str:
        """Return the name of a node; a gradient is named after its value: `w1_grad`."""
        known = self._names.get(node)
        if known is not None:
            return known
        value = node.gradient_of
        return self.of(node, node.name if value is None else f"{self.node(value)}_grad")

    def variable(self, var: indexing.IndexVar) -> str:
        known = self._names.get(var)
        if known is not None:
            return known
        return self.of(var, var.hint if isinstance(var, indexing.LoopVar) else var.name)

    def of(self, thing: Hashable, hint: str) -> str:
        """Return the name of an object: its hint, numbered if the name is taken."""
        known = self._names.get(thing)
        if known is not None:
            return known
        hint = hint if hint.isidentifier() else "x"
        # names of loop variables become free again, the others never do
        number = 0 if isinstance(thing, indexing.LoopVar) else self._numbers.get(hint, 0)
        while (name := _with_number(hint, number)) in self._taken:
            number += 1
        self._taken.add(name)
        self._names[thing] = name
        if not isinstance(thing, indexing.LoopVar):
            self._numbers[hint] = number
        elif self._scopes:
            self._scopes[-1].append(thing)
        return name

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Free the names of loop variables on leaving."""
        self._scopes.append([])
        try:
            yield
        finally:
            for var in self._scopes.pop():
                self._taken.discard(self._names.pop(var))

    def index(self, index: indexing.AxisIndex) -> str:
        """Return an axis index as text: `2*o + k - 1`."""
        match index:
            case indexing.VarIndex(var):
                return self.variable(var)
            case indexing.FixedIndex(value):
                return str(value)
            case indexing.AffineIndex(terms, offset):
                return indexing.affine_text([(c, self.variable(var)) for c, var in terms], offset)
            case indexing.SubAxis():
                return "_"
            case indexing.ComputedIndex(operand, at):
                return subscript(f"operand{operand}", map(self.index, at))
            case indexing.ConcatIndex(parts):
                return "^".join(str(p) if isinstance(p, int) else self.variable(p) for p in parts)
            case _:
                assert_never(index)

    def repetition(self, index: indexing.StaticIndex, count: int, is_reversed: bool) -> str:
        """Return the head of a repetition: `repeat t in range(96) reversed`."""
        order = " reversed" if is_reversed else ""
        return f"repeat {self.variable(index)} in range({count}){order}"

    def cell(self, node: TensorNode, indices: Sequence[indexing.AxisIndex]) -> str:
        """Return a cell as text: `w[o, i]`; a node without axes is its name alone."""
        return subscript(self.node(node), map(self.index, indices))


def _with_number(hint: str, number: int) -> str:
    """Return `i`, `i1`, `i2`; a hint that ends in a digit is set apart: `w1_1`."""
    if number == 0:
        return hint
    return f"{hint}_{number}" if hint[-1].isdigit() else f"{hint}{number}"


def subscript(name: str, indices: Iterable[str]) -> str:
    """Return `name[i, j]`, or the name alone when there are no indices."""
    inside = ", ".join(indices)
    return f"{name}[{inside}]" if inside else name


def number_text(value: float, dtype: DType | None = None) -> str:
    """Return the shortest text that denotes the number in its format."""
    is_no_float = isinstance(value, int) and float(value) != value
    if is_no_float or (dtype is not None and dtype.holds_integers):
        return str(int(value))
    if dtype is float32:
        with np.errstate(over="ignore"):
            return str(np.float32(value))
    return repr(float(value))


def parenthesise(text: Text, minimum: int) -> str:
    """Return the text, in parentheses if its operator binds less tightly than `minimum`."""
    return text[0] if text[1] >= minimum else f"({text[0]})"


def application(op: Op, args: Sequence[Text]) -> Text:
    """Return a primitive applied to printed operands, infix where it has a symbol."""
    match op, args:
        case UnaryOp.IDENTITY, [arg]:
            return arg
        case UnaryOp.NEG, [arg]:
            return f"-{parenthesise(arg, UNARY + 1)}", UNARY
        case BinaryOp(), [left, right] if op.value.symbol:
            return infix(op.value.symbol, left, right)
        case ((UnaryOp() | BinaryOp() | TernaryOp()), _):
            return f"{op.value.name}({', '.join(text for text, _ in args)})", ATOM
        case _:
            assert_never(op)


def infix(symbol: str, left: Text, right: Text) -> Text:
    """Return `left symbol right`, with the parentheses that keep the order of evaluation."""
    level = PRECEDENCE[symbol]
    loose = level if symbol in ASSOCIATES_LEFT else level + 1
    return f"{parenthesise(left, loose)} {symbol} {parenthesise(right, level + 1)}", level


def accumulation_symbol(op: BinaryOp) -> str:
    """Return the operator of `target = target op value` between target and value: `+=`, `max=`."""
    special = {BinaryOp.SECOND: "=", BinaryOp.OR: "|=", BinaryOp.AND: "&="}
    return special.get(op, f"{op.value.symbol or op.value.name}=")
