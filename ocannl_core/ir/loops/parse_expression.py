"""Expressions and indices of printed loop programs.

A precedence-climbing parser, on a trampoline so that no expression is too deep, writes the terms of
an expression in postfix order. Number formats are inferred over that sequence: formats
that the text states propagate upwards, then formats that follow from the context downwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import isfinite

from ocannl_core.base.errors import ParseError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.trampoline import Steps, run_trampoline
from ocannl_core.ir.indexing import AxisIndex, ConcatIndex, FixedIndex, IndexVar, SubAxis, affine
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.printer import operand_formats, stated_format
from ocannl_core.ir.loops.tokens import Cursor, Token
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import ALL, PACKED, DType, int64, round_to, uint4x32
from ocannl_core.ir.numbers.primitives import (
    HASHES,
    PRIMITIVES,
    BinaryOp,
    Op,
    TernaryOp,
    UnaryOp,
    arity,
)
from ocannl_core.ir.text import ASSOCIATES_LEFT, PRECEDENCE, UNARY

_FORMATS = {str(dtype): dtype for dtype in (*ALL, *PACKED)}
_INFIX = {op.value.symbol: op for op in BinaryOp if op.value.symbol}
_FUNCTIONS = {
    op.value.name: op
    for op in PRIMITIVES
    if not op.value.symbol and op not in (UnaryOp.IDENTITY, UnaryOp.NEG)
}
_NUMBERS = frozenset({"inf", "nan"})


@dataclass(slots=True)
class SymbolTable:
    """The names that a text has defined so far."""

    nodes: dict[str, TensorNode] = field(default_factory=dict)
    infos: dict[TensorNode, NodeInfo] = field(default_factory=dict)
    scalars: dict[str, ir.Local] = field(default_factory=dict)
    variables: dict[str, IndexVar] = field(default_factory=dict)


def read_format(cursor: Cursor) -> DType:
    """Consume the name of a number format."""
    dtype = _FORMATS.get(cursor.peek().text)
    if dtype is None:
        raise cursor.error("a number format")
    cursor.take()
    return dtype


def read_node(cursor: Cursor, names: SymbolTable) -> TensorNode:
    """Consume the name of an array."""
    node = names.nodes.get(cursor.peek().text)
    if node is None:
        raise cursor.error("an array that is a parameter or allocated above")
    cursor.take()
    return node


def read_indices(cursor: Cursor, names: SymbolTable) -> tuple[AxisIndex, ...]:
    """Consume the indices of a cell in brackets, or nothing for an array without axes."""
    if not cursor.accept("["):
        return ()
    indices = [read_index(cursor, names)]
    while cursor.accept(","):
        indices.append(read_index(cursor, names))
    cursor.expect("]")
    return tuple(indices)


def read_constant(cursor: Cursor, dtype: DType) -> float:
    """Consume a number of a format."""
    token = cursor.peek()
    sign = "-" if cursor.accept("-") else ""
    if not _is_number(cursor.peek()):
        raise cursor.error("a number")
    constant = _constant(cursor, token, sign + cursor.take().text, dtype)
    return constant.value if isinstance(constant, ir.Const) else constant.bits


def read_expression(
    cursor: Cursor,
    names: SymbolTable,
    dtype: DType,
    inlined: Mapping[str, Sequence[ir.Scoped]],
    *,
    is_computed_cell: bool = False,
) -> ir.Expr:
    """Consume an expression.

    Args:
        dtype: The format of the place that the value is stored to.
        inlined: The inlined computations of the statement, by the name of their variable, in the
            order in which the expression mentions them.
        is_computed_cell: True for a cell at a computed position in front of `=`, read as a gather;
            it has the format of its array.
    """
    reader = _Reader(cursor, names, {name: list(found) for name, found in inlined.items()})
    run_trampoline(reader.expression())
    if is_computed_cell and isinstance(reader.terms[-1].content, ir.Gather):
        dtype = reader.terms[-1].content.dtype
    return _with_formats(cursor, reader.terms, dtype)


def read_index(cursor: Cursor, names: SymbolTable) -> AxisIndex:
    if cursor.accept("_"):
        return SubAxis()
    if cursor.peek(1).text == "^":
        return _read_concatenation(cursor, names)
    terms: list[tuple[int, IndexVar]] = []
    offset, sign = 0, -1 if cursor.accept("-") else 1
    while True:
        if cursor.peek().kind == "number":
            number = sign * cursor.expect_integer()
            if cursor.accept("*"):
                terms.append((number, _read_variable(cursor, names)))
            else:
                offset += number
        else:
            terms.append((sign, _read_variable(cursor, names)))
        if cursor.peek().text not in ("+", "-"):
            return affine(terms, offset)
        sign = 1 if cursor.take().text == "+" else -1


def _read_concatenation(cursor: Cursor, names: SymbolTable) -> AxisIndex:
    parts: list[IndexVar | int] = []
    while True:
        is_number = cursor.peek().kind == "number"
        parts.append(cursor.expect_integer() if is_number else _read_variable(cursor, names))
        if not cursor.accept("^"):
            return ConcatIndex(tuple(parts))


def _read_variable(cursor: Cursor, names: SymbolTable) -> IndexVar:
    variable = names.variables.get(cursor.peek().text)
    if variable is None:
        raise cursor.error("the variable of an enclosing loop, or a static index")
    cursor.take()
    return variable


def _try_index(cursor: Cursor, names: SymbolTable, ends: Sequence[str]) -> AxisIndex | None:
    """Consume an index in front of one of these tokens; consume nothing if there is none."""
    start = cursor.position
    try:
        index = read_index(cursor, names)
    except ParseError:
        index = None
    if index is None or cursor.peek().text not in ends:
        cursor.position = start
        return None
    return index


@dataclass(frozen=True, slots=True)
class _FormatTerm:
    """A conversion, `float32(x)`, or the format of an operand, `x:float32`."""

    dtype: DType
    is_conversion: bool


_OPEN = ir.Const(0, int64)
"""The position of a gather until its number format is inferred."""

_Leaf = ir.Load | ir.LoadMerge | ir.LocalRead | ir.Scoped | ir.IndexValue
_Content = _Leaf | _FormatTerm | ir.Gather | Op | str


@dataclass(frozen=True, slots=True)
class _Term:
    """One node of an expression, before the number formats are inferred.

    Attributes:
        content: The node without its operands; the text of a number.
        operands: The places of its operands in the sequence of terms.
    """

    token: Token
    content: _Content
    operands: tuple[int, ...] = ()


@dataclass(slots=True)
class _Reader:
    """The state of the parser."""

    cursor: Cursor
    names: SymbolTable
    inlined: dict[str, list[ir.Scoped]]
    terms: list[_Term] = field(default_factory=list)

    def add(self, token: Token, content: _Content, *operands: int) -> int:
        """Append a term; return its place."""
        self.terms.append(_Term(token, content, operands))
        return len(self.terms) - 1

    def expression(self, least: int = 1) -> Steps[int]:
        """Consume operators of this precedence and above; return the place of the last one."""
        cursor = self.cursor
        place: int = yield self.operand()
        before = 0
        while (level := PRECEDENCE.get(cursor.peek().text, 0)) >= least:
            symbol = cursor.peek()
            if cursor.peek(1).text == "=":
                break  # an accumulation
            if level == before and symbol.text not in ASSOCIATES_LEFT:
                raise cursor.error_at(
                    symbol,
                    f"{symbol} after an operator of the same precedence",
                    "write parentheses around one of the two",
                )
            cursor.take()
            right = yield self.expression(level + 1)
            place = self.add(symbol, _INFIX[symbol.text], place, right)
            before = level
        return place

    def operand(self) -> Steps[int]:
        """Consume an operand and the format stated behind it."""
        cursor = self.cursor
        token = cursor.peek()
        if cursor.accept("-"):
            if not _is_number(cursor.peek()) or cursor.peek(1).text == "**":
                return self.add(token, UnaryOp.NEG, (yield self.expression(UNARY + 1)))
            place = self.add(token, "-" + cursor.take().text)
        elif cursor.accept("("):
            place = yield self.expression()
            cursor.expect(")")
        elif _is_number(token):
            place = self.add(cursor.take(), token.text)
        elif token.kind != "name":
            raise cursor.error("an expression")
        elif cursor.peek(1).text == "(":
            place = yield self.call()
        else:
            place = self.add(token, self.reference())
        while (colon := cursor.peek()).text == ":":
            cursor.take()
            place = self.add(colon, _FormatTerm(read_format(cursor), False), place)
        return place

    def reference(self) -> _Leaf:
        """Consume the name of a variable, or a cell."""
        cursor, names = self.cursor, self.names
        token = cursor.peek()
        if inlined := self.inlined.get(token.text):
            cursor.take()
            return inlined.pop(0) if len(inlined) > 1 else inlined[0]
        if local := names.scalars.get(token.text):
            cursor.take()
            return ir.LocalRead(local)
        if token.text in names.variables:
            raise cursor.error_at(
                token,
                f"the index {token} among numbers",
                f"convert it, as in `int64({token.text})`",
            )
        if token.text not in names.nodes:
            raise cursor.error("an array or a variable that is declared above")
        node = read_node(cursor, names)
        dtype = names.infos[node].dtype
        if cursor.accept("."):
            cursor.expect("merge")
            return ir.LoadMerge(node, read_indices(cursor, names), dtype)
        return ir.Load(node, read_indices(cursor, names), dtype)

    def call(self) -> Steps[int]:
        """Consume a gather, a conversion, or a primitive without a symbol."""
        cursor = self.cursor
        token = cursor.take()
        cursor.expect("(")
        if token.text in ("gather", "scatter"):
            gathered: int = yield self.gather(token)
            return gathered
        dtype = _FORMATS.get(token.text)
        content = _FUNCTIONS.get(token.text) if dtype is None else _FormatTerm(dtype, True)
        if content is None:
            raise cursor.error_at(
                token,
                f"{token}, which is no function",
                f"use a number format, `gather`, or one of {', '.join(sorted(_FUNCTIONS))}",
            )
        if dtype is not None and (index := _try_index(cursor, self.names, [")"])) is not None:
            cursor.expect(")")
            return self.add(token, ir.IndexValue(index, dtype))
        operands = [(yield self.expression())]
        while len(operands) < (1 if isinstance(content, _FormatTerm) else arity(content)):
            cursor.expect(",")
            operands.append((yield self.expression()))
        cursor.expect(")")
        return self.add(token, content, *operands)

    def gather(self, token: Token) -> Steps[int]:
        """Consume a cell at a computed position, and its value beyond the axis."""
        cursor, names = self.cursor, self.names
        node = read_node(cursor, names)
        dtype = names.infos[node].dtype
        indices: list[AxisIndex] = []
        computed: tuple[int, int] | None = None
        cursor.expect("[")
        while not indices or cursor.accept(","):
            index = _try_index(cursor, names, [",", "]"])
            if index is None:
                if computed is not None:
                    raise cursor.error("an index, because only one position is computed")
                computed = len(indices), (yield self.expression())
            indices.append(FixedIndex(0) if index is None else index)
        if computed is None:
            raise cursor.error("a position that is computed")
        cursor.expect("]")
        beyond = read_constant(cursor, dtype) if cursor.accept(",") else 0.0
        cursor.expect(")")
        axis, place = computed
        return self.add(token, ir.Gather(node, tuple(indices), axis, _OPEN, dtype, beyond), place)


def _is_number(token: Token) -> bool:
    return token.kind == "number" or token.text in _NUMBERS


def _with_formats(cursor: Cursor, terms: Sequence[_Term], dtype: DType) -> ir.Expr:
    """Return the expression that terms describe, its value being of a format."""
    stated: list[DType | None] = []
    for term in terms:
        stated.append(_stated_by(term, stated))
    wanted: list[DType | None] = [None] * len(terms)
    wanted[-1] = dtype
    formats: list[DType] = []
    for place in reversed(range(len(terms))):
        term = terms[place]
        own = _agree(cursor, term, wanted[place], stated[place])
        formats.append(own)
        for operand, each in zip(term.operands, _passed_on(term, own, stated), strict=True):
            wanted[operand] = each
    built: list[ir.Expr] = []
    for term, own in zip(terms, reversed(formats), strict=True):
        built.append(_build(cursor, term, own, [built[each] for each in term.operands]))
    return built[-1]


def _stated_by(term: _Term, stated: Sequence[DType | None]) -> DType | None:
    """Return the format that the text of a term states."""
    match term.content:
        case str():
            return None
        case UnaryOp() | BinaryOp() | TernaryOp() as op:
            return stated_format(op, [stated[each] for each in term.operands])
        case content:
            return content.dtype


def _agree(cursor: Cursor, term: _Term, wanted: DType | None, stated: DType | None) -> DType:
    """Return the format of a term: the one that its context needs, or else the one it states."""
    content = term.content
    if wanted is None:
        if stated is None:
            text = content if isinstance(content, str) else "(...)"
            raise cursor.error_at(
                term.token,
                f"{term.token}, whose number format does not follow from the context",
                f"state the format, as in `{text}:float32`",
            )
        return stated
    is_derived = isinstance(content, Op) and content is not UnaryOp.WORD and content not in HASHES
    if not is_derived and stated not in (None, wanted):
        raise cursor.error_at(
            term.token,
            f"{term.token} of the format {stated} instead of {wanted}",
            f"convert it, as in `{wanted}(...)`",
        )
    return wanted


def _passed_on(term: _Term, own: DType, stated: Sequence[DType | None]) -> Sequence[DType | None]:
    """Return the formats that the operands of a term get from it."""
    match term.content:
        case _FormatTerm(dtype, is_conversion):
            return (None if is_conversion else dtype,)
        case UnaryOp() | BinaryOp() | TernaryOp() as op:
            return operand_formats(op, own, [stated[each] for each in term.operands])
        case _:
            return (None,) * len(term.operands)


def _build(cursor: Cursor, term: _Term, dtype: DType, operands: Sequence[ir.Expr]) -> ir.Expr:
    match term.content, operands:
        case str(text), _:
            return _constant(cursor, term.token, text, dtype)
        case _FormatTerm(_, is_conversion), (arg,):
            return ir.Unary(UnaryOp.IDENTITY, arg, dtype) if is_conversion else arg
        case ir.Gather() as gather, (position,):
            return replace(gather, position=position)
        case UnaryOp() as op, (arg,):
            return ir.Unary(op, arg, dtype)
        case BinaryOp() as op, (left, right):
            return ir.Binary(op, left, right, dtype)
        case TernaryOp() as op, (first, second, third):
            return ir.Ternary(op, first, second, third, dtype)
        case (
            ir.Load() | ir.LoadMerge() | ir.LocalRead() | ir.Scoped() | ir.IndexValue()
        ) as leaf, _:
            return leaf
        case _:
            raise AssertionError(f"{term.content} of {len(operands)} operands")


def _constant(cursor: Cursor, token: Token, text: str, dtype: DType) -> ir.Const | ir.ConstBits:
    """Return a constant of a format."""
    if text.startswith("0x") and not dtype.is_float:
        return ir.ConstBits(int(text, 16), dtype)
    if dtype.holds_integers and text.removeprefix("-").isdecimal():
        return ir.Const(int(text), dtype)
    if dtype.is_float and not text.startswith("0x"):
        value = float(text)
        return ir.Const(round_to(value, dtype) if isfinite(value) else value, dtype)
    example = "0x2a" if dtype is uint4x32 else "1.0" if dtype.is_float else "1"
    raise cursor.error_at(
        token, f"`{text}` where {dtype} is needed", f"write a number of that format: `{example}`"
    )
