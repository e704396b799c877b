"""Expressions and indices of a text, read by Python's own parser.

The notation of expressions is Python's, except for `&&`, `||`, and the format of an operand,
`2.5:float16`, which is read as an attribute. Formats that the text states propagate upwards, then
formats that follow from the context downwards.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
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


_SUM = re.compile(r"-?(\d+\*)?\w+([-+](\d+\*)?\w+)*")
_NUMBER = re.compile(r"-?(inf|nan|0x[0-9a-f]+|\d+(\.\d+)?(e[+-]?\d+)?)")


@dataclass(frozen=True, slots=True)
class _Open:
    """An expression whose number format follows from its context."""

    text: str
    op: primitives.Op | None = None
    """The primitive; None for a number."""
    operands: tuple[_Term, ...] = ()
    dtype: DType | None = None
    """The format that the operands state, for lack of a context."""


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
        try:
            return self._in_format(self._term(self._tree(text)), dtype)
        except RecursionError:
            raise self.error("an expression that is nested too deep") from None

    def cell(self, text: str) -> tuple[TensorNode, tuple[indexing.AxisIndex, ...]]:
        match self.expression(text):
            case ir.Load(node, indices):
                return node, indices
            case _:
                raise self.error(f"`{text}` instead of a cell")

    def number(self, text: str, dtype: DType) -> float:
        return self._number(self._tree(text), dtype)

    def index(self, text: str) -> indexing.AxisIndex:
        found = self._index(text)
        if found is None:
            raise self.error(f"`{text}`, which is no sum of multiples of indices")
        return found

    def _tree(self, text: str) -> ast.expr:
        """Return an expression as a tree of Python's syntax."""
        text = re.sub(r"[^\W\d]\w*", lambda word: python_name(word[0]), text.strip())
        text = re.sub(r":(?=[^\W\d])", " .", text)
        self._source = text.replace("&&", " and ").replace("||", " or ")
        try:
            return ast.parse(self._source, mode="eval").body
        except (SyntaxError, MemoryError):
            raise self.error(f"`{text}`, which is no expression") from None

    def _text(self, node: ast.expr) -> str:
        """Return the part of the source, which is in ASCII, that a node was read from."""
        return self._source[node.col_offset : node.end_col_offset]

    def _term(self, node: ast.expr) -> _Term:
        text = self._text(node)
        match node:
            case _ if _NUMBER.fullmatch(text):
                return _Open(text)
            case ast.Attribute(value, name) if name in FORMATS:
                return self._in_format(self._term(value), FORMATS[name])
            case ast.Call(ast.Name("gather" | "scatter"), [ast.Subscript() as cell, *beyond]):
                return self._gather(cell, beyond)
            case ast.Call(ast.Name(name), [argument]) if name in FORMATS:
                if (index := self._index(self._text(argument))) is not None:
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
        term = _Open(text, op, terms, stated_format(op, [each.dtype for each in terms]))
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
                indices = tuple([self.index(self._text(each)) for each in _positions(node)])
                return load(found, indices, self.infos[found].dtype)

    def _gather(self, cell: ast.Subscript, beyond: Sequence[ast.expr]) -> ir.Gather:
        """Return a cell at a computed position, and its value beyond the axis."""
        node, positions = self.find(self._text(cell.value), TensorNode), _positions(cell)
        found = [self._index(self._text(each)) for each in positions]
        if found.count(None) != 1:
            raise self.error(f"`{self._text(cell)}` without exactly one computed position")
        axis = found.index(None)
        position = self._in_format(self._term(positions[axis]))
        indices = tuple([each or indexing.FixedIndex(0) for each in found])
        dtype = self.infos[node].dtype
        value = self._number(beyond[0], dtype) if beyond else 0.0
        return ir.Gather(node, indices, axis, position, dtype, value)

    def _number(self, node: ast.expr, dtype: DType) -> float:
        match self._in_format(self._term(node), dtype):
            case ir.Const(value):
                return value
            case _:
                raise self.error(f"`{self._text(node)}` instead of a number")

    def _index(self, text: str) -> indexing.AxisIndex | None:
        """Return a sum of multiples of variables and a number; None for other expressions."""
        if text == "_":
            return indexing.SubAxis()
        text = re.sub(r" ?([-+*]) ?", r"\1", text)
        if _SUM.fullmatch(text) is None:
            return None
        terms: list[tuple[int, indexing.IndexVar]] = []
        offset = 0
        for sign, factor, name in re.findall(r"([-+]?)(?:(\d+)\*)?(\w+)", text):
            multiple = int(f"{sign}{factor or 1}")
            if name.isdecimal():
                offset += multiple * int(name)
            elif isinstance(var := self.get(name), indexing.LoopVar | indexing.StaticIndex):
                terms.append((multiple, var))
            else:
                return None
        return indexing.affine(terms, offset)

    def _in_format(self, term: _Term, wanted: DType | None = None) -> ir.Expr:
        """Return an expression in the format that its context needs, if any."""
        dtype = wanted or term.dtype
        if not isinstance(term, _Open):
            if term.dtype is not dtype:
                raise self.error(f"an operand of the format {term.dtype} instead of {dtype}")
            return term
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


def _operand_formats(term: _Open, op: primitives.Op, result: DType) -> Sequence[DType | None]:
    """Return the formats of operands by their position; None if an operand states its own."""
    if op in primitives.COMPARISONS:
        return (term.dtype,) * 2
    is_of_words = op is UnaryOp.UNIFORM or op in primitives.HASHES
    common = uint4x32 if is_of_words else result
    return [None if is_free(op, n) else common for n in range(len(term.operands))]


def _positions(cell: ast.expr) -> Sequence[ast.expr]:
    """Return the indices of a cell; none for an array without axes."""
    inside = cell.slice if isinstance(cell, ast.Subscript) else ast.Tuple([])
    return inside.elts if isinstance(inside, ast.Tuple) else [inside]
