"""Expressions and indices of a text, read by Python's own parser.

The notation of expressions is Python's, except for `&&`, `||`, and the format of an operand,
`2.5:float16`, which is read as an attribute. Formats that the text states propagate upwards, then
formats that follow from the context downwards.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir import indexing
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.printer import is_free, stated_format
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers import primitives
from ocannl_core.ir.numbers.dtypes import DType, round_to, uint4x32
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp
from ocannl_core.testing.parser.symbols import FORMATS, Symbols, python_name

_INFIX: Mapping[type, BinaryOp] = {
    ast.Add: BinaryOp.ADD,
    ast.Sub: BinaryOp.SUB,
    ast.Mult: BinaryOp.MUL,
    ast.Div: BinaryOp.DIV,
    ast.Mod: BinaryOp.MOD,
    ast.Pow: BinaryOp.POW,
    ast.Lt: BinaryOp.LT,
    ast.LtE: BinaryOp.LE,
    ast.Eq: BinaryOp.EQ,
    ast.NotEq: BinaryOp.NE,
    ast.And: BinaryOp.AND,
    ast.Or: BinaryOp.OR,
}
_FUNCTIONS = {
    python_name(op.value.name): op for op in primitives.PRIMITIVES if op is not UnaryOp.IDENTITY
}
_APPLICATIONS: Mapping[type, Callable[..., ir.Expr]] = {
    UnaryOp: ir.Unary,
    BinaryOp: ir.Binary,
    TernaryOp: ir.Ternary,
}


@dataclass(frozen=True, slots=True)
class _Open:
    """An expression whose number format follows from its context.

    Attributes:
        op: The primitive; None for a number.
        stated: The format that the operands state, if there is no context.
    """

    text: str
    op: primitives.Op | None = None
    operands: tuple[_Term, ...] = ()
    stated: DType | None = None


_Term = ir.Expr | _Open


class ExpressionParser(Symbols):
    """A parser of the expressions in one line.

    Attributes:
        inlined: The inlined computations of the statement, by the name of their variable, in the
            order in which the expressions mention them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inlined: dict[str, list[ir.Scoped]] = {}
        self._source = ""

    def expression(self, text: str, dtype: DType | None = None) -> ir.Expr:
        """Return an expression; its format is the one that its text states, if none is given."""
        return self._in_format(self._term(self._tree(text)), dtype)

    def cell(self, text: str) -> tuple[TensorNode, tuple[indexing.AxisIndex, ...]]:
        match self.expression(text):
            case ir.Load(node, indices):
                return node, indices
            case _:
                raise self.error(f"`{text}` instead of a cell")

    def number(self, text: str, dtype: DType) -> float:
        return self._number(self._tree(text), dtype)

    def index(self, text: str) -> indexing.AxisIndex:
        (found,) = self._indices([self._tree(text)])
        return found

    def _tree(self, text: str) -> ast.expr:
        """Return an expression as a tree of Python's syntax."""
        text = re.sub(r"[^\W\d]\w*", lambda word: python_name(word[0]), text.strip())
        text = re.sub(r":(?=[^\W\d])", " .", text)
        self._source = text.replace("&&", " and ").replace("||", " or ")
        try:
            return ast.parse(self._source, mode="eval").body
        except (SyntaxError, RecursionError, MemoryError):
            raise self.error(f"`{text}`, which is no expression") from None

    def _text(self, node: ast.expr) -> str:
        """Return the part of the source, which is in ASCII, that a node was read from."""
        return self._source[node.col_offset : node.end_col_offset]

    def _term(self, node: ast.expr) -> _Term:
        text = self._text(node)
        match node:
            case (
                ast.Constant(int() | float())
                | ast.Name("inf" | "nan")
                | ast.UnaryOp(ast.USub(), ast.Constant() | ast.Name("inf" | "nan"))
            ) if "(" not in text:  # -(1.0) is a negation
                return _Open(text)
            case ast.Attribute(value, name) if name in FORMATS:
                return self._in_format(self._term(value), FORMATS[name])
            case ast.Call(ast.Name("gather" | "scatter"), [ast.Subscript() as cell, *beyond]):
                return self._gather(cell, beyond)
            case ast.Call(ast.Name(name), [argument]) if name in FORMATS:
                if (index := self._index(argument)) is not None:
                    return ir.IndexValue(index, FORMATS[name])
                converted = self._in_format(self._term(argument))
                return ir.Unary(UnaryOp.IDENTITY, converted, FORMATS[name])
            case ast.Call(ast.Name(name), arguments) if name in _FUNCTIONS:
                return self._operation(text, _FUNCTIONS[name], arguments)
            case ast.UnaryOp(ast.USub(), argument):
                return self._operation(text, UnaryOp.NEG, [argument])
            case (
                ast.BinOp(left, symbol, right)
                | ast.Compare(left, [symbol], [right])
                | ast.BoolOp(symbol, [left, right])
            ) if type(symbol) in _INFIX:
                return self._operation(text, _INFIX[type(symbol)], [left, right])
            case ast.Name() | ast.Subscript() | ast.Attribute():
                return self._leaf(node)
            case ast.Compare() | ast.BoolOp():
                raise self.error(f"`{text}`, which needs parentheses")
            case _:
                raise self.error(f"`{text}`, which is no call of a format, gather or a primitive")

    def _operation(self, text: str, op: primitives.Op, operands: Sequence[ast.expr]) -> _Term:
        if len(operands) != primitives.arity(op):
            raise self.error(f"{op.value.name} of {len(operands)} operands")
        terms = tuple([self._term(each) for each in operands])
        term = _Open(text, op, terms, stated_format(op, list(map(_stated, terms))))
        has_format = op is UnaryOp.WORD or op in primitives.HASHES
        return self._in_format(term) if has_format else term

    def _leaf(self, node: ast.Name | ast.Subscript | ast.Attribute) -> ir.Expr:
        """Return a variable or a cell."""
        array: ast.expr = node.value if isinstance(node, ast.Subscript) else node
        load: type[ir.Load | ir.LoadMerge] = ir.Load
        if isinstance(array, ast.Attribute) and array.attr == "merge":
            array, load = array.value, ir.LoadMerge
        name = self._text(array)
        if inlined := self.inlined.get(name):
            return inlined.pop(0) if len(inlined) > 1 else inlined[0]
        match self.get(name):
            case ir.Local() as local if array is node:
                return ir.LocalRead(local)
            case indexing.LoopVar() | indexing.StaticIndex():
                raise self.error(f"an index among numbers, where `int64({name})` is one")
            case _:
                found = self.find(name, TensorNode)
                return load(found, self._indices(_positions(node)), self.infos[found].dtype)

    def _gather(self, cell: ast.Subscript, beyond: Sequence[ast.expr]) -> ir.Gather:
        """Return a cell at a computed position, and its value beyond the axis."""
        node, positions = self.find(self._text(cell.value), TensorNode), _positions(cell)
        dtype, found = self.infos[node].dtype, list(map(self._index, positions))
        if found.count(None) != 1:
            raise self.error(f"`{self._text(cell)}` without exactly one computed position")
        axis = found.index(None)
        position = self._in_format(self._term(positions[axis]))
        indices = tuple([each or indexing.FixedIndex(0) for each in found])
        value = self._number(beyond[0], dtype) if beyond else 0.0
        return ir.Gather(node, indices, axis, position, dtype, value)

    def _number(self, node: ast.expr, dtype: DType) -> float:
        match self._in_format(self._term(node), dtype):
            case ir.Const(value):
                return value
            case _:
                raise self.error(f"`{self._text(node)}` instead of a number")

    def _indices(self, positions: Sequence[ast.expr]) -> tuple[indexing.AxisIndex, ...]:
        found = list(map(self._index, positions))
        if None in found:
            text = self._text(positions[found.index(None)])
            raise self.error(f"`{text}`, which is no sum of multiples of indices")
        return tuple(filter(None, found))

    def _index(self, node: ast.expr) -> indexing.AxisIndex | None:
        """Return an index; None for other expressions."""
        if isinstance(node, ast.Name) and node.id == "_":
            return indexing.SubAxis()
        try:
            multiples = list(self._multiples(node, 1))
        except LookupError:
            return None
        terms = [(factor, var) for factor, var in multiples if var is not None]
        return indexing.affine(terms, sum([number for number, var in multiples if var is None]))

    def _multiples(
        self, node: ast.expr, factor: int
    ) -> Iterator[tuple[int, indexing.IndexVar | None]]:
        """Yield multiples of variables, and numbers with None."""
        match node:
            case ast.Constant(int(number)):
                yield factor * number, None
            case ast.UnaryOp(ast.USub(), argument):
                yield from self._multiples(argument, -factor)
            case ast.BinOp(left, ast.Mult(), right):
                ((number, var),) = self._multiples(left, factor)
                if var is not None:
                    raise LookupError
                yield from self._multiples(right, number)
            case ast.BinOp(left, ast.Add(), right):
                yield from self._multiples(left, factor)
                yield from self._multiples(right, factor)
            case ast.BinOp(left, ast.Sub(), right):
                yield from self._multiples(left, factor)
                yield from self._multiples(right, -factor)
            case _:
                symbol = self.get(self._text(node))
                if not isinstance(symbol, indexing.LoopVar | indexing.StaticIndex):
                    raise LookupError
                yield factor, symbol

    def _in_format(self, term: _Term, wanted: DType | None = None) -> ir.Expr:
        """Return an expression in the format that its context needs, if any."""
        if not isinstance(term, _Open):
            if wanted not in (None, term.dtype):
                raise self.error(f"an operand of the format {term.dtype} instead of {wanted}")
            return term
        dtype = wanted or term.stated
        if dtype is None:
            raise self.error(f"`{term.text}`, whose number format does not follow from the context")
        if term.op is None:
            return self._constant(term.text, dtype)
        operands = map(self._in_format, term.operands, _operand_formats(term, term.op, dtype))
        return _APPLICATIONS[type(term.op)](term.op, *operands, dtype)

    def _constant(self, text: str, dtype: DType) -> ir.Const | ir.ConstBits:
        is_pattern = text.startswith("0x")
        if is_pattern and not dtype.is_float:
            return ir.ConstBits(int(text, 16), dtype)
        if dtype.holds_integers and text.removeprefix("-").isdecimal():
            return ir.Const(int(text), dtype)
        if dtype.is_float and not is_pattern:
            value = float(text)
            return ir.Const(round_to(value, dtype) if isfinite(value) else value, dtype)
        raise self.error(f"`{text}` where {dtype} is needed")


def _stated(term: _Term) -> DType | None:
    return term.stated if isinstance(term, _Open) else term.dtype


def _operand_formats(term: _Open, op: primitives.Op, result: DType) -> Sequence[DType | None]:
    """Return the formats of operands by their position; None if an operand states its own."""
    if op in primitives.COMPARISONS:
        return (term.stated,) * 2
    is_of_words = op is UnaryOp.UNIFORM or op in primitives.HASHES
    common = uint4x32 if is_of_words else result
    return [None if is_free(op, n) else common for n in range(len(term.operands))]


def _positions(cell: ast.expr) -> Sequence[ast.expr]:
    """Return the indices of a cell; none for an array without axes."""
    inside = cell.slice if isinstance(cell, ast.Subscript) else ast.Tuple([])
    return inside.elts if isinstance(inside, ast.Tuple) else [inside]
