"""Rendering of expressions as C expressions, and of the statements to run before them.

Every value has the *value type* of its format: the storage type, or `float` for the narrow floats,
which then hold a number of their format. C evaluates only the chosen branch of a conditional; where
a branch needs statements, they go into the branch of an `if`, so that a guarded access stays
guarded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_never

import numpy as np

from ocannl_core.base.errors import CodegenError
from ocannl_core.codegen.prelude.prelude import has_helper
from ocannl_core.codegen.prelude.vector_types import ELEMENTS
from ocannl_core.codegen.prelude.vectors import HORIZONTAL_REDUCTIONS
from ocannl_core.codegen.rendering.position_accesses import ComputedPositions
from ocannl_core.codegen.rendering.render_state import RenderState
from ocannl_core.codegen.rendering.short_formats import address_of, is_exact
from ocannl_core.codegen.text.helper import headers_for
from ocannl_core.codegen.text.precedence import CExpr, Precedence, cast, conditional, infix, negate
from ocannl_core.codegen.text.scalar_replacement import reduction_leaves
from ocannl_core.ir.indexing import AxisIndex
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.traverse import contains, walk
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.dtypes import (
    DType,
    Kind,
    float32,
    float64,
    int32,
    int64,
    round_to,
    uint4x32,
    uint16,
    uint32,
    uint64,
)
from ocannl_core.ir.numbers.expansions import expand
from ocannl_core.ir.numbers.primitives import (
    COMPARISONS,
    HASHES,
    LOGICAL,
    BinaryOp,
    Op,
    TernaryOp,
    UnaryOp,
)

_ZERO = CExpr("0")


class Expressions:
    """Renders expressions at the current point of a kernel.

    Args:
        state: The state of the kernel; its writer receives the statements to run before.
    """

    def __init__(self, state: RenderState, run_block: Callable[[ir.Block], None]) -> None:
        self.state = state
        self.computed = ComputedPositions(state)
        self._dialect = state.dialect
        self._names = state.names
        self._writer = state.writer
        self._positions = state.positions
        self._helper = state.helper
        self._library = state.c_library
        self._run_block = run_block

    def cell(
        self,
        node: TensorNode,
        indices: tuple[AxisIndex, ...],
        shift: int = 0,
        is_merge: bool = False,
    ) -> CExpr:
        """Render the cell `shift` cells after a multi-index, of a node or its merge buffer."""
        dims = self.state.info(node).buffer_dims
        if len(indices) != len(dims):
            raise CodegenError(
                "A cell is addressed with one index per axis.",
                found=f"{len(indices)} indices for {node.name} of {len(dims)} axes",
            )
        position = self._positions.position_of(node, indices)
        registers = self._names.registers.get(node)
        if registers is not None and not is_merge:
            return CExpr(registers.cell(self._positions.constant_position(position) + shift))
        array = self._names.merge(node) if is_merge else self._names.array(node)
        is_packed = self.state.info(node).dtype.is_packed
        return CExpr(self._positions.cell(array, position, shift, is_packed=is_packed))

    def value(self, expr: ir.Expr) -> CExpr:
        """Render the value of an expression, after writing the statements that it needs."""
        text = self.unrounded_value(expr)
        if expr.dtype.is_narrow and not is_exact(expr):
            return self._helper(f"{expr.dtype}_round", text)
        return text

    def storage_value(self, expr: ir.Expr) -> CExpr:
        """Render the value of an expression in the storage type of its format."""
        if not expr.dtype.is_narrow:
            return self.value(expr)
        if isinstance(expr, ir.Load):
            return self.cell(expr.node, expr.indices)  # bits are copied
        return self._helper(f"{expr.dtype}_bits", self.unrounded_value(expr))

    def update(
        self, variable: str, value: ir.Expr, own: ir.Load | ir.LocalRead | ir.Gather
    ) -> bool:
        """Write `x = x op y` as `x op= y`; return False, and write nothing, for other values."""
        match value:
            case ir.Binary(op, first, right, dtype) if op in _COMPOUND and first == own:
                wraps = dtype in (uint32, uint64) and op is not BinaryOp.DIV
                if wraps or dtype in (float32, float64):
                    self._writer.line(f"{variable} {op.value.symbol}= {self.value(right)};")
                    return True
        return False

    def update_cell(self, cell: CExpr, value: ir.Expr, own: ir.Load | ir.Gather) -> None:
        """Write the store of a value to a cell in memory."""
        if not self.update(cell.code, value, own):
            self._writer.line(f"{cell} = {self.storage_value(value)};")

    def convert_cell(self, cell: CExpr, dtype: DType) -> CExpr:
        """Convert a cell from its storage type to its value type."""
        if dtype.is_packed:
            array, offset = address_of(cell.code)
            both = CExpr(f"{array}[{offset.at(Precedence.SUM)} >> 1]")
            return self._helper(f"{dtype}_cell", both, offset)
        return self._helper(f"{dtype}_value", cell) if dtype.is_narrow else cell

    def unrounded_value(self, expr: ir.Expr) -> CExpr:
        """Render the value of an expression; a narrow float may still need rounding."""
        self.state.note_type(expr.dtype)
        match expr:
            case ir.Load(node, indices, dtype):
                return self.convert_cell(self.cell(node, indices), dtype)
            case ir.LoadMerge(node, indices, dtype):
                return self.convert_cell(self.cell(node, indices, is_merge=True), dtype)
            case ir.Gather():
                return self._gather(expr)
            case ir.LocalRead(local):
                return CExpr(self._names.local(local))
            case ir.Scoped():
                return self._scoped(expr)
            case ir.Unary(op, arg, dtype):
                return self._unary(op, arg, dtype)
            case ir.Binary(op, left, right, dtype):
                whole = self._horizontal_reduction(expr) if op in HORIZONTAL_REDUCTIONS else None
                return whole or self._binary(op, left, right, dtype)
            case ir.Ternary():
                return self._ternary(expr)
            case ir.Const(value, dtype):
                return self.constant(value, dtype)
            case ir.ConstBits(bits, dtype):
                return self._bits(bits, dtype)
            case ir.IndexValue(index, dtype):
                return self._index_value(index, dtype)
            case _:
                assert_never(expr)

    def condition(self, expr: ir.Expr) -> CExpr:
        """Render a C condition that holds if the value is not zero."""
        match expr:
            case ir.Unary(UnaryOp.NOT, ir.Unary(UnaryOp.NOT) | ir.Binary() as arg) if (
                arg.op.value.gives_truth
            ):
                return CExpr(f"!{self.condition(arg).at(Precedence.PRIMARY)}", Precedence.UNARY)
            case ir.Unary(UnaryOp.NOT, arg) if arg.dtype.kind is not Kind.WORD:
                return infix(self.value(arg), "==", _ZERO)
            case ir.Binary(op, left, right) if op in COMPARISONS:
                self._reject_words(op.value.name, left.dtype, right.dtype)
                return infix(self.value(left), op.value.symbol, self.value(right))
            case ir.Binary(BinaryOp.AND | BinaryOp.OR as op, left, right):
                first, second = self.condition(left), self.condition(right)
                # a load that depends on the first operand would be a masked one: see _where
                depends = _reads_memory(right)
                return infix(first, op.value.symbol[0] if depends else op.value.symbol, second)
            case _:
                self._reject_words("a condition", expr.dtype)
                return infix(self.value(expr), "!=", _ZERO)

    def constant(self, value: float, dtype: DType) -> CExpr:
        """Return a literal; convert an integer to a 128-bit word if necessary."""
        if dtype.kind is Kind.WORD:
            low = round_to(value, uint64)
            return self._helper("word_of", CExpr(str(low) if low < 2**31 else f"{low:#x}ULL"))
        constant = self._dialect.constant(value, dtype)
        self._writer.helpers.update(headers_for(constant.code))
        return constant

    def _index_value(self, index: AxisIndex, dtype: DType) -> CExpr:
        text = self._positions.index(index)
        if text.code.removeprefix("-").isdigit():
            return self.constant(int(text.code), dtype)
        if dtype.kind is Kind.WORD:
            return self._helper("word_of", text)
        is_wide = self._dialect.index_type == self._dialect.value_type(int64)
        return self._convert(text, int64 if is_wide else int32, dtype)

    def _bits(self, bits: int, dtype: DType) -> CExpr:
        """Return the number with a given bit pattern: its low bytes, or the low half of a word."""
        if dtype.kind is Kind.WORD:
            return self.constant(bits, dtype)
        pattern = (bits & (2**64 - 1)).to_bytes(8, "little")[: dtype.nbytes]
        if not dtype.is_float:
            return self.constant(int.from_bytes(pattern, "little") & (1 << dtype.bits) - 1, dtype)
        return self.constant(float(np.frombuffer(pattern, dtype.numpy)[0]), dtype)

    def _gather(self, gather: ir.Gather) -> CExpr:
        """Render the cell at a computed position, or the value beyond the axis."""
        known = self.computed.known_cell(gather)
        if known is not None:
            return self.convert_cell(known, gather.dtype)
        found = self.computed.locate(gather, self.name_value(gather.position))
        beyond = self.constant(gather.beyond, gather.dtype)
        if found.cell is None:
            return beyond
        cell = self.convert_cell(found.cell, gather.dtype)
        return self._choose(found.is_inside, cell, beyond, gather.dtype)

    def name_value(self, expr: ir.Expr) -> CExpr:
        """Name a value that the text mentions repeatedly."""
        text = self.value(expr)
        return text if _is_atom(expr) else self._name(text, expr.dtype)

    def _name(self, value: CExpr, dtype: DType) -> CExpr:
        """Write a variable that holds a value; return it."""
        if value.code.isidentifier():
            return value
        name = self._names.fresh()
        self._writer.line(f"const {self._dialect.value_type(dtype)} {name} = {value};")
        return CExpr(name)

    def _scoped(self, scoped: ir.Scoped) -> CExpr:
        """Write an inlined computation before the statement that uses it; return its variable."""
        self.state.note_type(scoped.local.dtype)
        type_name = self._dialect.value_type(scoped.local.dtype)
        with self._names.block():
            match [each for each in scoped.body.stmts if not isinstance(each, ir.Remark)]:
                case [ir.SetLocal(local, value)] if local == scoped.local:
                    text = self.value(value)
                    name = self._names.fresh()
                    self._writer.line(f"const {type_name} {name} = {text};")
                case _:
                    name = self._names.declare(scoped.local)
                    self._writer.declare(type_name, name)
                    self._run_block(scoped.body)
        return CExpr(name)

    def _horizontal_reduction(self, expr: ir.Binary) -> CExpr | None:
        """Render a horizontal reduction of a register, neighbors first; return None for others.

        t[0] + t[1] + (t[2] + t[3])  -->  float32x4_sum(t)
        """
        lanes = reduction_leaves(expr)
        if not lanes or expr.dtype.name not in ELEMENTS:
            return None
        if expr.dtype.kind is Kind.SIGNED and expr.op in (BinaryOp.ADD, BinaryOp.MUL):
            return None  # signed integers wrap around
        node = lanes[0].node
        registers = self._names.registers.get(node)
        if registers is None or any(each.node is not node for each in lanes):
            return None
        positions = [
            self._positions.constant_position(self._positions.position_of(node, each.indices))
            for each in lanes
        ]
        first = positions[0]
        if registers.lanes.get(first) != len(lanes):
            return None
        if positions != list(range(first, first + len(lanes))):
            return None
        name = f"{expr.dtype.name}x{len(lanes)}_{HORIZONTAL_REDUCTIONS[expr.op]}"
        return self._helper(name, CExpr(registers.variable(first)))

    def _unary(self, op: UnaryOp, arg: ir.Expr, dtype: DType) -> CExpr:
        if op is UnaryOp.IDENTITY:
            return self._convert(self.value(arg), arg.dtype, dtype)
        if op is UnaryOp.WORD:
            return self._word(arg, dtype)
        if op is UnaryOp.UNIFORM:
            return self._number_of_word(arg, dtype)
        if op is UnaryOp.BITCAST:
            return self._bitcast(arg, dtype)
        if op is UnaryOp.NOT:
            return self._flag(self.condition(ir.Unary(op, arg, dtype)), dtype)
        self._reject_words(op.value.name, arg.dtype, dtype)
        x = self.value(arg)
        if dtype.is_float:
            return self._apply(op, (x,), dtype)
        return self._integer_unary(op, x, dtype)

    def _apply(self, op: Op, args: Sequence[CExpr], dtype: DType) -> CExpr:
        """Render a primitive of floats: an operator, a function, a helper, or its expansion."""
        match op, args:
            case UnaryOp.NEG, [x]:
                return negate(x)
            case _, [a, b] if op in _COMPOUND:
                return infix(a, op.value.symbol, b)
            case _ if op.value.function:
                return self._function(op.value.function, dtype, *args)
            case _ if op.value.expansion is None or has_helper(_helper_name(op.value.name, dtype)):
                return self._helper(_helper_name(op.value.name, dtype), *args)
            case _:
                return expand(
                    op,
                    args,
                    lambda number: self.constant(number, dtype),
                    lambda inner, terms: self._apply(inner, terms, dtype),
                    _select,
                    lambda operand: self._name(operand, dtype),
                )

    def _function(self, name: str, dtype: DType, *arguments: CExpr) -> CExpr:
        """Render the call of an elementary function."""
        own = self._dialect.math_helper(name, dtype)
        if own is not None:
            return self._helper(own, *arguments)
        return self._library(name, dtype, *arguments)

    def _integer_unary(self, op: UnaryOp, x: CExpr, dtype: DType) -> CExpr:
        match op:
            case UnaryOp.NEG:
                return self._wrap(_ZERO, "-", x, dtype)
            case UnaryOp.TRUNC | UnaryOp.FLOOR | UnaryOp.CEIL | UnaryOp.ROUND:
                return x
            case UnaryOp.RELU if dtype.kind is not Kind.SIGNED:
                return x
            case UnaryOp.ABS | UnaryOp.SIGN | UnaryOp.BIT_NOT | UnaryOp.RELU:
                return self._helper(_helper_name(op.value.name, dtype), x)
            case UnaryOp.SAT01:
                return self._flag(infix(x, ">", _ZERO), dtype)
            case _:
                wide = self._apply(op, (self._convert(x, dtype, float64),), float64)
                return self._convert(wide, float64, dtype)

    def _binary(self, op: BinaryOp, left: ir.Expr, right: ir.Expr, dtype: DType) -> CExpr:
        if op is BinaryOp.FIRST:
            return self.value(left)
        if op is BinaryOp.SECOND:
            return self.value(right)
        if op in LOGICAL:
            return self._flag(self.condition(ir.Binary(op, left, right, dtype)), dtype)
        if op in HASHES:
            return self._helper(op.value.name, self.value(left), self.value(right))
        self._reject_words(op.value.name, left.dtype, dtype)
        if op is BinaryOp.POW and dtype.is_float and isinstance(right, ir.Const):
            # two exponents whose powers are rounded exactly
            if right.value == 2:
                return self._helper(_helper_name("square", dtype), self.value(left))
            if right.value == -1:
                return self._apply(UnaryOp.RECIP, (self.value(left),), dtype)
        a, b = self.value(left), self.value(right)
        if dtype.is_float:
            return self._apply(op, (a, b), dtype)
        return self._integer_binary(op, a, b, dtype)

    def _integer_binary(self, op: BinaryOp, a: CExpr, b: CExpr, dtype: DType) -> CExpr:
        match op:
            case BinaryOp.ADD | BinaryOp.SUB | BinaryOp.MUL:
                return self._wrap(a, op.value.symbol, b, dtype)
            case BinaryOp.SAT01_GATE:
                # no integer lies strictly between 0 and 1
                return self._dialect.constant(0, dtype)
            case _ if op.value.is_real and op is not BinaryOp.DIV:
                wide = [self._convert(each, dtype, float64) for each in (a, b)]
                return self._convert(self._apply(op, wide, float64), float64, dtype)
            case _:
                return self._helper(_helper_name(op.value.name, dtype), a, b)

    def _ternary(self, expr: ir.Ternary) -> CExpr:
        match expr.op:
            case TernaryOp.WHERE:
                return self._where(expr)
            case TernaryOp.FMA:
                a, b, c = (self.value(each) for each in (expr.first, expr.second, expr.third))
                self._reject_words("fma", expr.dtype, expr.first.dtype)
                if not expr.dtype.is_float:
                    product = self._wrap(a, "*", b, expr.dtype)
                    return self._wrap(product, "+", c, expr.dtype)
                return self._library("fma", expr.dtype, a, b, c)
            case _:
                assert_never(expr.op)

    def _where(self, expr: ir.Ternary) -> CExpr:
        """Render the chosen branch.

        Branches whose loads are certainly in bounds are both evaluated: GCC (12.2, with AVX) turns
        a conditional load into a masked load, and gives copies of one unrolled loop the masks of
        others. Other branches must not be evaluated unless chosen; a barrier prevents masked loads
        there.
        """
        condition = self.condition(expr.first)
        branches = (expr.second, expr.third)
        loads = [
            part
            for each in branches
            for part in walk(each)
            if isinstance(part, ir.Load | ir.LoadMerge)
        ]
        has_statements = any(map(self._positions.has_statements, branches))
        if not has_statements and all(map(self.state.is_inside, loads)):
            second, third = map(self.value, branches)
            if loads:
                return self._choose(condition, second, third, expr.dtype)
            return conditional(condition, second, third)
        name = self._names.fresh()
        self._writer.line(f"{self._dialect.value_type(expr.dtype)} {name};")
        for head, branch in ((f"if ({condition})", expr.second), ("else", expr.third)):
            with self._writer.braces(head):
                for line in self._dialect.compiler_barrier() if _reads_memory(branch) else ():
                    self._writer.line(line)
                self._writer.line(f"{name} = {self.value(branch)};")
        return CExpr(name)

    def _choose(self, condition: CExpr, second: CExpr, third: CExpr, dtype: DType) -> CExpr:
        """Select one of two values, both of which are computed."""
        if dtype is uint4x32:
            return self._helper("where_word", condition, second, third)
        return self._helper(_helper_name("where", dtype), condition, second, third)

    def _wrap(self, a: CExpr, symbol: str, b: CExpr, dtype: DType) -> CExpr:
        """Render an integer operation modulo the width of its format, computed without sign.

        int32  a + b  -->  (int32_t)((uint32_t)a + b)
        bool   a + b  -->  a + b != 0
        """
        if dtype.kind is Kind.BOOL:
            return self._flag(infix(infix(a, symbol, b), "!=", _ZERO), dtype)
        if dtype.kind is Kind.SIGNED and dtype.nbytes >= 4 and self._dialect.signed_wraps:
            return negate(b) if a.code == "0" and symbol == "-" else infix(a, symbol, b)
        if dtype.kind is Kind.SIGNED:
            a = cast(f"u{self._dialect.value_type(dtype)}", a)
        elif dtype is uint16 and symbol == "*":
            a = cast("uint32_t", a)  # the product of two promoted operands can exceed an int
        result = infix(a, symbol, b)
        if dtype.kind is Kind.UNSIGNED and dtype.nbytes >= 4:
            return negate(b) if a.code == "0" and symbol == "-" else result
        return cast(self._dialect.value_type(dtype), result)

    def _convert(self, text: CExpr, source: DType, dtype: DType) -> CExpr:
        """Convert a value to another format; the caller rounds narrow floats."""
        if source is dtype:
            return text
        self._reject_words("a conversion", source, dtype)
        if dtype.kind is Kind.BOOL:
            return self._flag(infix(text, "!=", _ZERO), dtype)
        target_type = self._dialect.value_type(dtype)
        if source.is_float and dtype.is_integer:
            return cast(target_type, self._helper("integer_of", text))
        if self._dialect.value_type(source) == target_type:
            return text
        return cast(target_type, text)

    def _word(self, arg: ir.Expr, dtype: DType) -> CExpr:
        """Render the bits of a number as a word."""
        self._reject_words("word", arg.dtype, arg.dtype)
        if dtype is not uint4x32:
            raise CodegenError("WORD makes a 128-bit word.", found=str(dtype))
        value = self.value(arg)
        if arg.dtype in (int32, uint32):
            return self._helper("spread_word", self._convert(value, arg.dtype, uint32))
        if not arg.dtype.is_float:
            if arg.dtype.is_short_integer:  # its own bits, without copies of the sign
                value = cast(f"uint{8 * arg.dtype.nbytes}_t", value)
            return self._helper("word_of", self._convert(value, arg.dtype, uint64))
        return self._helper("word_of", self._helper(f"{arg.dtype}_pattern", value))

    def _bitcast(self, arg: ir.Expr, dtype: DType) -> CExpr:
        """Render the bits of a number, reinterpreted as a number of another format."""
        self._reject_words("bitcast", arg.dtype, dtype)
        bits = self.value(arg)
        if arg.dtype.is_float:
            bits = self._helper(f"{arg.dtype}_pattern", bits)
        if not dtype.is_float:
            return cast(self._dialect.value_type(dtype), bits)
        bits = cast(f"uint{dtype.bits}_t", bits)
        if dtype.is_narrow:
            return self._helper(f"{dtype}_value", bits)
        return self._helper("float_of" if dtype is float32 else "float64_of", bits)

    def _number_of_word(self, arg: ir.Expr, dtype: DType) -> CExpr:
        """Render the first number in a word; 16-bit floats still need rounding."""
        word = self.value(arg)
        lane = CExpr(f"{word.at(Precedence.PRIMARY)}.a")
        match dtype:
            case dtypes.float32 | dtypes.bfloat16:
                return self._helper("uniform_of", lane)
            case dtypes.float16:
                return CExpr(f"(float)({lane} & 0xffff) * 0x1p-16f", Precedence.PRODUCT)
            case dtypes.float64:
                return CExpr(
                    f"(double){self._helper('low_half_of', word)} * 0x1p-64", Precedence.PRODUCT
                )
            case _ if dtype.is_float:
                return self._helper(f"{dtype}_value", cast(self._dialect.storage_type(dtype), lane))
        if dtype.kind is Kind.BOOL:
            return infix(lane, "&", CExpr("1"))
        bits = self._helper("low_half_of", word) if dtype.nbytes == 8 else lane
        return cast(self._dialect.value_type(dtype), bits)

    def _flag(self, condition: CExpr, dtype: DType) -> CExpr:
        """Convert a condition to the number 1 or 0."""
        if dtype is int32:
            return condition
        return cast(self._dialect.value_type(dtype), condition)

    def _reject_words(self, operation: str, *dtypes: DType) -> None:
        if uint4x32 in dtypes:
            raise CodegenError(
                "Numbers and 128-bit words meet only in WORD, UNIFORM and THREEFRY4X32.",
                found=f"{operation} of {' and '.join(dict.fromkeys(map(str, dtypes)))}",
            )


def _select(comparison: Op, terms: Sequence[CExpr]) -> CExpr:
    a, b, chosen, other = terms
    return conditional(infix(a, comparison.value.symbol, b), chosen, other)


def _helper_name(name: str, dtype: DType) -> str:
    return f"{name}_{float32 if dtype.is_narrow else dtype}"


_COMPOUND = frozenset({BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.DIV})


def _reads_memory(expr: ir.Expr) -> bool:
    return contains(expr, (ir.Load, ir.LoadMerge))


def _is_atom(expr: ir.Expr) -> bool:
    """Return True if repeating the expression repeats no work."""
    return isinstance(expr, ir.LocalRead | ir.Const) or (
        isinstance(expr, ir.IndexValue) and expr.dtype is int64
    )
