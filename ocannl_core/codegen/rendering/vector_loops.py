"""Rendering of vector loops with the vector extensions of GCC and Clang.

All lanes of one statement run before the next statement. A uniform value is computed once, as a
number, and broadcast; contiguous cells are one load or store, or a part of a register, and every
second cell two loads and a shuffle; other cells are gathered one by one. Loaded values stay in
variables until memory or the scope changes, so that unrolled loops do not repeat loads. A loop
without a vector form raises `NotVectorizedError`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from functools import cache
from math import prod
from typing import assert_never

from ocannl_core.base.rounding import power_above
from ocannl_core.codegen.prelude.vector_types import ELEMENTS, Vector
from ocannl_core.codegen.prelude.vectors import FUNCTIONS_WITH_INSTRUCTIONS
from ocannl_core.codegen.rendering.expressions import Expressions
from ocannl_core.codegen.rendering.render_state import MOST_LANES, NotVectorizedError
from ocannl_core.codegen.rendering.short_formats import (
    address_of,
    exceeds_format,
    is_arithmetic,
    is_exact,
    match_narrow_load,
    match_short_load,
)
from ocannl_core.codegen.text.precedence import (
    CExpr,
    Precedence,
    call,
    cast,
    conditional,
    infix,
    negate,
)
from ocannl_core.codegen.text.scalar_replacement import Position, stride_along
from ocannl_core.ir.indexing import AxisIndex, LoopVar, as_affine
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.expansions import expand
from ocannl_core.ir.numbers.primitives import COMPARISONS, HASHES, BinaryOp, Op, TernaryOp, UnaryOp
from ocannl_core.schedule.rules.vectorizable import DRAWN_FORMATS, HASHED_FORMATS, truncates_lanes

_BIT_SYMBOLS = {BinaryOp.BIT_AND: "&", BinaryOp.BIT_OR: "|", BinaryOp.BIT_XOR: "^"}
"""Operations on the bits of integers, and their operators in C."""

_TRUTH_SYMBOLS = {"+": "|", "*": "&", "-": "^"}
"""The operations on bits that sums, products and differences of truths are."""


class VectorLoop:
    """Renders the body of one vector loop."""

    def __init__(self, loop: ir.For, expressions: Expressions) -> None:
        state = expressions.state
        self._var: LoopVar = loop.var
        self._start = loop.start
        self._count = loop.stop - loop.start
        self._dialect = state.dialect
        self._names = state.names
        self._writer = state.writer
        self._positions = state.positions
        self._state = state
        self._expressions = expressions
        self._lanes = self._width(loop.body)
        self._repeated: AbstractSet[ir.Expr] = frozenset()

    def _width(self, body: ir.Block) -> int:
        """Return the lanes of a register: a power of two, and at least the variables' lanes."""
        needed = self._count
        for node, position in self._positions.cells_of(body):
            if node in self._names.registers and stride_along(position, self._var) == 1:
                first = self._register(node, position)
                needed = max(needed, self._names.registers[node].lanes[first])
        lanes = power_above(needed)
        if lanes > MOST_LANES:
            raise NotVectorizedError
        return lanes

    def render(self, block: ir.Block) -> None:
        """Write all iterations of the loop."""
        with self._names.bind(self._var, self._start):
            self._write_block(block)

    def render_square(self, inner: ir.For, store: ir.Store) -> None:
        """Write a transposing copy of a square.

        This loop runs along the rows of the source, the inner one along the rows of the copy.
        """
        value, dtype = store.value, store.value.dtype
        if isinstance(value, ir.Unary):
            value = match_narrow_load(value) or match_short_load(value) or value
        given = value.dtype
        is_widened = given.in_lanes is not given
        if is_widened and (given.is_packed or dtype not in (dtypes.float32, dtypes.int32)):
            raise NotVectorizedError
        function = f"transpose_{given}" if is_widened else "transpose"
        self._write_transpose(self._helper(dtype, function), value, store, inner)

    def _write_transpose(
        self,
        function: str,
        value: ir.Expr,
        store: ir.Store,
        inner: ir.For,
        dot: ir.For | None = None,
    ) -> None:
        """Write a transposing copy of a square of cells, or of the terms of dot products."""
        width, count = 1 if dot is None else dot.stop - dot.start, inner.stop - inner.start
        if not isinstance(value, ir.Load) or count != self._lanes or self._count != self._lanes:
            raise NotVectorizedError
        if {value.node, store.node} & self._names.registers.keys():
            raise NotVectorizedError
        source, along = self._position(value.node, value.indices)
        target, step = self._position(store.node, store.indices)
        ends = source, target
        stride, beside = (stride_along(each, inner.var) for each in ends)
        inside = {stride_along(each, dot.var) for each in ends} if dot else {1}
        if (along, beside, inside) != (width, width, {1}):
            raise NotVectorizedError
        self._state.written.add(store.node)
        with ExitStack() as stack:
            stack.enter_context(self._names.bind(self._var, self._start))
            for loop in (inner, *([dot] if dot else [])):
                stack.enter_context(self._names.bind(loop.var, loop.start))
            cells = self._cell(value.node, source), self._cell(store.node, target)
        self._writer.line(f"{function}(&{cells[0]}, {stride}, &{cells[1]}, {step});")
        self._writer.forget()

    def _write_block(self, block: ir.Block) -> None:
        for stmt in block.stmts:
            match stmt:
                case ir.Block():
                    self._write_block(stmt)
                case ir.Store():
                    self._write_store(stmt)
                case ir.Remark():
                    pass
                case _:
                    self._write_other(stmt)

    def _write_other(self, stmt: ir.Stmt) -> None:
        """Write a statement that only subclasses support."""
        raise NotVectorizedError

    def _write_store(self, stmt: ir.Store) -> None:
        dtype = stmt.value.dtype
        self._repeated = _repeated_functions(stmt.value)
        self._vector(dtype)
        offset, stride = self._position(stmt.node, stmt.indices)
        if stmt.node in self._names.registers:
            self._write_assignment(stmt, self._value(stmt.value))
            return
        self._state.written.add(stmt.node)
        is_put = dtype.is_narrow and (is_exact(stmt.value) or is_arithmetic(stmt.value))
        value = self._value(stmt.value) if is_put else self._unrounded_value(stmt.value)
        if stride == 0:
            raise NotVectorizedError
        if stride == 1:
            cell = self._cell(stmt.node, offset)
            if dtype.in_lanes is not dtype:
                is_streamed = self._count == self._lanes and stmt.is_streamed
                verb = "stream" if is_streamed else "put" if is_put else "store"
                store = self._helper(dtype, f"{verb}_{dtype}")
                count = "" if is_streamed else f", {self._count}"
                self._writer.line(f"{store}(&{cell}, {value}{count});")
            elif self._count == self._lanes and stmt.is_streamed:
                stream = self._helper(dtype, "stream")
                self._writer.line(f"{stream}(&{cell}, {value});")
            elif self._count == self._lanes:
                self._writer.line(f"*({self._vector(dtype)}_cells *)&{cell} = {value};")
            else:
                store = self._helper(dtype, "store")
                self._writer.line(f"{store}(&{cell}, {value}, {self._count});")
        else:
            name = self._name_value(self._vector(dtype), value)
            for lane in range(self._count):
                cell = self._cell(stmt.node, offset, lane * stride)
                number = CExpr(f"{name}[{lane}]")
                if dtype.is_narrow:
                    number = self._state.helper(f"{dtype}_bits", number)
                self._writer.line(f"{cell} = {number};")
        self._writer.forget()
        is_fixed = not self._names.in_registers(self._positions.nodes_of(stmt.value))
        if stride == 1 and dtype.in_lanes is dtype and is_fixed and value.code.isidentifier():
            # loads of the same cells need not wait for the store
            loaded = self._contiguous(self._cell(stmt.node, offset), self._count, dtype)
            self._writer.cached[loaded.code] = value.code

    def _write_assignment(self, stmt: ir.Store, value: CExpr) -> None:
        offset, stride = self._position(stmt.node, stmt.indices)
        if stride != 1:
            raise NotVectorizedError
        registers, position = self._names.registers[stmt.node], self._register(stmt.node, offset)
        name, dtype = registers.variable(position), stmt.value.dtype
        if self._count < registers.lanes[position]:
            value = self._select(self._first_lanes(dtype), value, CExpr(name), dtype)
        self._writer.assign(name, value.code)

    def _position(self, node: TensorNode, indices: tuple[AxisIndex, ...]) -> tuple[Position, int]:
        """Return the first lane's position and the stride between lanes."""
        position = self._positions.position_of(node, indices)
        return position, stride_along(position, self._var)

    def _register(self, node: TensorNode, position: Position) -> int:
        """Return the position of the variable that holds the lanes of an array in registers."""
        at = self._positions.constant_position(position, self._var, self._start)
        if at not in self._names.registers[node].lanes:
            raise NotVectorizedError
        return at

    def _cell(self, node: TensorNode, position: Position, shift: int = 0) -> str:
        array, is_packed = self._names.array(node), self._state.info(node).dtype.is_packed
        return self._positions.cell(array, position, shift, is_packed=is_packed)

    def _value(self, expr: ir.Expr) -> CExpr:
        """Render the vector of an expression's values, one per lane."""
        value = self._unrounded_value(expr)
        dtype = expr.dtype
        if dtype.is_short_integer and self._is_varying(expr) and exceeds_format(expr):
            return call(self._helper(dtype, f"wrap_{dtype}"), value)
        if not dtype.is_narrow or not self._is_varying(expr) or is_exact(expr):
            return value
        function = "nearest" if is_arithmetic(expr) else "round"
        return call(self._helper(dtype, f"{function}_{dtype}"), value)

    def _unrounded_value(self, expr: ir.Expr) -> CExpr:
        """Render the same vector, before it is rounded or wrapped to the width of its format."""
        self._vector(expr.dtype)
        if isinstance(expr, ir.Gather):
            return self._gather(expr)
        if not self._is_varying(expr):
            return self._broadcast(expr)
        match expr:
            case ir.Unary(UnaryOp.WORD, arg) if arg.dtype in HASHED_FORMATS:
                spread, bits = self._helper(dtypes.uint4x32, "spread"), self._value(arg)
                return call(spread, cast(self._vector(dtypes.uint32), bits))
            case ir.Unary(UnaryOp.UNIFORM, arg, dtype) if dtype in DRAWN_FORMATS:
                function = "uniform" if dtype.is_float else "low"
                drawn = self._helper(
                    dtypes.uint4x32, f"{function}{'_16' * (dtype is dtypes.float16)}"
                )
                number = call(drawn, self._value(arg))
                if dtype is dtypes.int32:
                    number = cast(self._vector(dtype), number)
                # all words are hashed before functions of their numbers, so that processors
                # hash several at a time
                return self._bind(number, dtype)
            case ir.Binary(op, left, right) if op in HASHES:
                hashed = self._helper(dtypes.uint4x32, op.value.name)
                return call(hashed, self._value(left), self._value(right))
            case ir.Load():
                return self._load(expr)
            case ir.Unary(op, arg, dtype):
                return self._once(expr, self._unary(op, arg, dtype))
            case ir.Binary(op, left, right, dtype):
                return self._once(expr, self._binary(op, left, right, dtype))
            case ir.Ternary(TernaryOp.FMA, first, second, third, dtype) if dtype.is_float:
                return self._apply(expr.op, [*map(self._value, (first, second, third))], dtype)
            case ir.Ternary(TernaryOp.WHERE, first, second, third, dtype):
                for part in (*walk(second), *walk(third)):
                    if not isinstance(part, ir.Load | ir.LoadMerge | ir.Gather):
                        continue
                    if not self._state.is_inside(part):
                        raise NotVectorizedError
                return self._where(first, self._value(second), self._value(third), dtype)
            case ir.IndexValue(index, dtype):
                return self._index_value(index, dtype)
            case ir.Ternary() | ir.LoadMerge() | ir.Scoped() | ir.LocalRead():
                raise NotVectorizedError
            case ir.Const() | ir.ConstBits():
                raise NotVectorizedError
            case _:
                assert_never(expr)

    def _once(self, expr: ir.Unary | ir.Binary, value: CExpr) -> CExpr:
        """Name the value of a function that the statement calls again with equal arguments.

        Compilers do not see that calls of functions with branches are equal.
        """
        if expr not in self._repeated or self._names.in_registers(self._positions.nodes_of(expr)):
            return value
        return CExpr(self._cache_value(self._vector(expr.dtype), value))

    def _is_varying(self, expr: ir.Expr) -> bool:
        return self._var in self._positions.free_variables(expr)

    def _broadcast(self, expr: ir.Expr) -> CExpr:
        """Render a uniform value as a vector."""
        if self._positions.has_statements(expr):
            raise NotVectorizedError  # rendering it again would repeat them
        vector, cell = self._vector(expr.dtype), match_narrow_load(expr)
        is_cell = cell is not None and cell.node not in self._names.registers
        splat = self._helper(expr.dtype, f"splat_{cell.dtype}" if cell and is_cell else "splat")

        def spread() -> CExpr:
            if cell is not None and is_cell:
                return call(splat, self._expressions.cell(cell.node, cell.indices))
            return call(splat, self._expressions.value(expr))

        if isinstance(expr, ir.Const):
            return spread()
        before = self._hoist(expr, vector, spread)
        if before is not None:
            return before
        if not self._names.registers.keys().isdisjoint(self._positions.nodes_of(expr)):
            return spread()
        return CExpr(self._cache_value(vector, spread()))

    def _hoist(self, expr: ir.Expr, kind: str, render: Callable[[], CExpr]) -> CExpr | None:
        """Set a variable to an invariant value before the innermost loop; None if it varies."""
        loop = self._writer.reduced_loop
        if loop is None or not self._positions.is_invariant(loop, expr):
            return None
        with self._writer.hoisting():
            code = render().code
        return CExpr(self._writer.hoist_value(loop, kind, code))

    def _load(self, load: ir.Load) -> CExpr:
        offset, stride = self._position(load.node, load.indices)
        registers = self._names.registers.get(load.node)
        if registers is not None:
            if stride != 1:
                raise NotVectorizedError
            return CExpr(registers.variable(self._register(load.node, offset)))
        vector = self._vector(load.dtype)

        def read() -> CExpr:
            return self._read(load.node, offset, stride, load.dtype)

        return self._hoist(load, vector, read) or CExpr(self._cache_value(vector, read()))

    def _gather(self, gather: ir.Gather) -> CExpr:
        """Render a vector of cells at computed positions."""
        dtype, (first, stride) = gather.dtype, self._position(gather.node, gather.indices)
        if self._names.in_registers({gather.node}):
            raise NotVectorizedError
        if not self._is_varying(gather):
            number = self._expressions.value(gather)
            return self._bind(call(self._helper(dtype, "splat"), number), dtype)
        is_varying = self._is_varying(gather.position)
        dims = self._state.info(gather.node).buffer_dims
        if is_varying and gather.position.dtype is dtypes.int32 and _is_word(dtype, dims):
            return self._bind(self._gather_words(gather, first, stride, dims), dtype)
        if is_varying or stride != 1 or dtype.is_packed:
            numbers: list[str] = []
            for lane in range(self._count):
                with self._names.bind(self._var, self._start + lane):
                    numbers.append(self._expressions.value(gather).code)
            return self._bind(CExpr(f"({self._vector(dtype)}){{{', '.join(numbers)}}}"), dtype)
        position = self._expressions.name_value(gather.position)
        found = self._expressions.computed.locate(gather, position)
        beyond = self._number(gather.beyond, dtype)
        if found.cell is None:
            return beyond
        cells = cast(self._vector(dtype), self._contiguous(found.cell.code, self._count, dtype))
        return self._bind(conditional(found.is_inside, cells, beyond), dtype)

    def _gather_words(
        self, gather: ir.Gather, first: Position, stride: int, dims: Sequence[int]
    ) -> CExpr:
        """Render a vector of cells as wide as their positions, each at one of its own."""
        at = self._name(gather.position)
        bounds = infix(at, ">=", CExpr("0")), infix(at, "<", CExpr(str(dims[gather.axis])))
        inside = infix(bounds[0], "&", bounds[1])
        if self._count < self._lanes:
            inside = infix(inside, "&", self._first_lanes(gather.dtype))
        moved = infix(at, "*", CExpr(str(prod(dims[gather.axis + 1 :]))))
        if stride:
            steps = ", ".join(str(lane * stride) for lane in range(self._lanes))
            moved = infix(moved, "+", CExpr(f"({self._vector(dtypes.int32)}){{{steps}}}"))
        start = CExpr(f"&{self._cell(gather.node, first)}")
        beyond = self._number(gather.beyond, gather.dtype)
        return call(self._helper(gather.dtype, "gather"), start, moved, inside, beyond)

    def _read(self, node: TensorNode, offset: Position, stride: int, dtype: dtypes.DType) -> CExpr:
        """Render a vector of cells at a constant stride."""
        if stride == 1:
            return self._contiguous(self._cell(node, offset), self._count, dtype)
        if stride == -1 and dtype.in_lanes is dtype and self._count == self._lanes:
            cells = self._read_row(node, offset, self._count, dtype, 1 - self._count)
            return call(self._helper(dtype, "reversed"), cells)
        if stride == 2 and dtype.in_lanes is dtype:
            return self._read_every_second(node, offset, dtype)
        vector = self._vector(dtype)
        lanes = (self._cell(node, offset, lane * stride) for lane in range(self._count))
        numbers = (self._expressions.convert_cell(CExpr(each), dtype).code for each in lanes)
        return CExpr(f"({vector}){{{', '.join(numbers)}}}")

    def _read_row(
        self, node: TensorNode, offset: Position, count: int, dtype: dtypes.DType, first: int = 0
    ) -> CExpr:
        """Render a vector of contiguous cells, from one behind a position on."""
        return self._contiguous(self._cell(node, offset, first), count, dtype)

    def _contiguous(self, cell: str, count: int, dtype: dtypes.DType) -> CExpr:
        """Render a vector of contiguous cells, of which the first is given."""
        if dtype.in_lanes is not dtype:
            function = self._helper(dtype, f"load_{dtype}")
            address = address_of(cell) if dtype.is_packed else (CExpr(f"&{cell}"),)
            return call(function, *address, CExpr(str(count)))
        if count == self._lanes:
            return CExpr(f"*(const {self._vector(dtype)}_cells *)&{cell}")
        return call(self._helper(dtype, "load"), CExpr(f"&{cell}"), CExpr(str(count)))

    def _read_every_second(self, node: TensorNode, offset: Position, dtype: dtypes.DType) -> CExpr:
        """Render a vector of every second cell, by loads between the first and the last."""
        lanes, cells = self._lanes, 2 * self._count - 1
        low = self._read_row(node, offset, min(cells, lanes), dtype)
        high = low
        if cells > lanes:  # it begins at the last cell of the other one
            high = self._read_row(node, offset, cells - lanes + 1, dtype, lanes - 1)
        return call(self._helper(dtype, "every_second"), low, high)

    def _unary(self, op: UnaryOp, arg: ir.Expr, dtype: dtypes.DType) -> CExpr:
        if op is UnaryOp.IDENTITY:
            return self._convert(arg, dtype)
        if op is UnaryOp.NOT:
            return self._flag(self._mask(ir.Unary(op, arg, dtype), dtype), dtype)
        if not dtype.is_float:
            return self._integer_unary(op, arg, dtype)
        if op is UnaryOp.BIT_NOT:
            return self._flag(self._mask(ir.Unary(UnaryOp.NOT, arg, dtype), dtype), dtype)
        self._helper(dtype, "splat")  # part of every text with such a function, also if unused
        return self._apply(op, [self._value(arg)], dtype)

    def _apply(self, op: Op, args: Sequence[CExpr], dtype: dtypes.DType) -> CExpr:
        """Render a primitive: an operator, a function of vectors, or its expansion."""
        match op:
            case UnaryOp.NEG:
                return negate(args[0])
            case UnaryOp.RELU:
                return call(self._helper(dtype, "above"), *args, self._number(0.0, dtype))
            case BinaryOp.ADD | BinaryOp.SUB | BinaryOp.MUL | BinaryOp.DIV:
                return infix(args[0], op.value.symbol, args[1])
            case BinaryOp.MAX | BinaryOp.MIN | TernaryOp.FMA:
                return call(self._helper(dtype, op.value.name), *args)
            case _ if op.value.expansion is not None:
                return expand(
                    op,
                    args,
                    lambda number: self._number(number, dtype),
                    lambda inner, terms: self._apply(inner, terms, dtype),
                    lambda by, terms: call(self._helper(dtype, f"where_{by.value.name}"), *terms),
                    lambda operand: self._bind(operand, dtype),
                )
            case _:
                return self._call_function(op, args, dtype)

    def _call_function(self, op: Op, args: Sequence[CExpr], dtype: dtypes.DType) -> CExpr:
        """Render the call of a function of vectors, or of a function of C for each lane."""
        name = op.value.function
        if not name and op.value.has_vector_code and dtype.in_lanes is dtypes.float32:
            return call(self._helper(dtype, op.value.name), *args)
        if name and self._dialect.math_helper(name, dtype) is not None:
            return call(self._helper(dtype, name), *args)
        if name in FUNCTIONS_WITH_INSTRUCTIONS:
            return call(self._helper(dtype, name), *args)
        if name and len(args) == 1:
            return call(self._helper(dtype, f"map_{self._dialect.function(name, dtype)}"), *args)
        raise NotVectorizedError

    def _integer_unary(self, op: UnaryOp, arg: ir.Expr, dtype: dtypes.DType) -> CExpr:
        match op:
            case UnaryOp.NEG if dtype is not dtypes.bool_:
                return self._arithmetic("-", ir.Const(0, dtype), arg, dtype)
            case UnaryOp.BIT_NOT if dtype is dtypes.bool_:
                return infix(self._value(arg), "^", self._number(1, dtype))
            case UnaryOp.BIT_NOT:
                return CExpr(f"~{self._value(arg).at(Precedence.PRIMARY)}", Precedence.UNARY)
            case UnaryOp.RELU if dtype.kind is not dtypes.Kind.SIGNED:
                return self._value(arg)
            case UnaryOp.RELU:
                return call(self._helper(dtype, "max"), self._value(arg), self._number(0, dtype))
            case UnaryOp.TRUNC | UnaryOp.FLOOR | UnaryOp.CEIL | UnaryOp.ROUND:
                return self._value(arg)
            case _:
                raise NotVectorizedError

    def _binary(self, op: BinaryOp, left: ir.Expr, right: ir.Expr, dtype: dtypes.DType) -> CExpr:
        if op is BinaryOp.FIRST:
            return self._value(left)
        if op is BinaryOp.SECOND:
            return self._value(right)
        if op in COMPARISONS or op in (BinaryOp.AND, BinaryOp.OR):
            return self._flag(self._mask(ir.Binary(op, left, right, dtype), dtype), dtype)
        if op in (BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL):
            return self._arithmetic(op.value.symbol, left, right, dtype)
        if op in _BIT_SYMBOLS and not dtype.is_float:
            return infix(self._value(left), _BIT_SYMBOLS[op], self._value(right))
        if op is BinaryOp.POW and dtype.is_float and right == ir.Const(2.0, dtype):
            x = self._name(left)
            return infix(x, "*", x)
        if op is BinaryOp.POW and right == ir.Const(-1.0, dtype):
            return self._unary(UnaryOp.RECIP, left, dtype)
        if op is BinaryOp.DIV and dtype.is_float:
            return self._quotient(left, right, dtype)
        if not dtype.is_float and op not in (BinaryOp.MAX, BinaryOp.MIN, BinaryOp.RELU_GATE):
            raise NotVectorizedError
        a, b = map(self._value if op.value.expansion is None else self._name, (left, right))
        return self._apply(op, (a, b), dtype)

    def _quotient(self, left: ir.Expr, right: ir.Expr, dtype: dtypes.DType) -> CExpr:
        is_one = not self._is_varying(right) and not self._positions.has_statements(right)
        if is_one and not isinstance(right, ir.Const):
            kind, factor = self._dialect.value_type(dtype), self._helper(dtype, "factor")

            def number() -> CExpr:
                return self._expressions.value(right)

            def reciprocal() -> CExpr:
                return call(factor, number())

            divisor = self._hoist(right, kind, number) or number()
            inverse = self._hoist(right, kind, reciprocal) or reciprocal()
            return call(self._helper(dtype, "over"), self._value(left), divisor, inverse)
        return infix(self._value(left), "/", self._value(right))

    def _arithmetic(self, symbol: str, left: ir.Expr, right: ir.Expr, dtype: dtypes.DType) -> CExpr:
        if dtype is dtypes.bool_:
            return infix(self._value(left), _TRUTH_SYMBOLS[symbol], self._value(right))
        if dtype.is_short_integer:  # their low bits depend on the operands' low bits alone
            return infix(self._unrounded_value(left), symbol, self._unrounded_value(right))
        a, b = self._value(left), self._value(right)
        if dtype.kind is not dtypes.Kind.SIGNED:
            return infix(a, symbol, b)
        # signed integers wrap around, as unsigned ones do in C
        vector = f"u{self._vector(dtype)}"
        self._writer.helpers.add(vector)
        return cast(self._vector(dtype), infix(cast(vector, a), symbol, cast(vector, b)))

    def _convert(self, arg: ir.Expr, dtype: dtypes.DType) -> CExpr:
        if arg.dtype is dtype:
            return self._value(arg)
        if dtype is dtypes.bool_:
            return self._flag(self._mask(arg, dtype), dtype)
        if arg.dtype.is_float and not dtype.is_float:
            if not truncates_lanes(arg.dtype, dtype):
                raise NotVectorizedError
            whole = call(self._helper(arg.dtype, "truncated"), self._value(arg))
            return whole if dtype.in_lanes is dtypes.int32 else cast(self._vector(dtype), whole)
        if arg.dtype.in_lanes is dtype.in_lanes:
            return self._value(arg)
        return call("__builtin_convertvector", self._value(arg), CExpr(self._vector(dtype)))

    def _index_value(self, index: AxisIndex, dtype: dtypes.DType) -> CExpr:
        if dtype is dtypes.bool_:
            raise NotVectorizedError
        stride = stride_along(as_affine(index), self._var)
        first = self._expressions.value(ir.IndexValue(index, dtype))
        steps = ", ".join(str(lane * stride) for lane in range(self._lanes))
        if dtype.is_float:
            position, limit = self._positions.index(index).code, 1 << min(dtype.significand, 53)
            if not (position.isdigit() and int(position) + MOST_LANES < limit):
                raise NotVectorizedError  # it may be inexact
        spread = call(self._helper(dtype, "splat"), first)
        return infix(spread, "+", CExpr(f"({self._vector(dtype)}){{{steps}}}"))

    def _mask(self, expr: ir.Expr, dtype: dtypes.DType) -> CExpr:
        """Render the mask of the lanes in which a value is not zero, for values of a format."""
        nbytes = dtype.in_lanes.nbytes
        match expr:
            case ir.Unary(UnaryOp.NOT, arg) if arg.dtype.in_lanes.nbytes == nbytes:
                return CExpr(f"({self._mask(arg, dtype).at(Precedence.PRIMARY)} == 0)")
            case ir.Binary(op, left, right) if (
                op in COMPARISONS and left.dtype.in_lanes.nbytes == nbytes
            ):
                compared = infix(self._value(left), op.value.symbol, self._value(right))
                return CExpr(f"({compared})")
            case ir.Binary(BinaryOp.AND | BinaryOp.OR as op, left, right):
                symbol = "&" if op is BinaryOp.AND else "|"
                return infix(self._mask(left, dtype), symbol, self._mask(right, dtype))
            case _ if expr.dtype.in_lanes.nbytes == nbytes:
                return infix(self._value(expr), "!=", self._number(0.0, expr.dtype))
            case ir.Load(dtype=short) if short.is_short_integer:
                lanes = CExpr(self._vector(dtypes.int64))
                wide = call("__builtin_convertvector", self._value(expr), lanes)
                return infix(wide, "!=", self._number(0.0, dtypes.int64))
            case _:
                raise NotVectorizedError

    def _where(self, condition: ir.Expr, chosen: CExpr, other: CExpr, dtype: dtypes.DType) -> CExpr:
        """Render a selection between two vectors by a condition.

        A comparison and the selection are one function, for processors that compare into masks.
        """
        match condition:
            case ir.Binary(op, left, right) if op in COMPARISONS:
                compared = left.dtype.in_lanes
                if compared.nbytes == dtype.in_lanes.nbytes:
                    kind = "" if compared is dtype.in_lanes else f"_{compared}"
                    function = self._helper(dtype, f"where{kind}_{op.value.name}")
                    return call(function, self._value(left), self._value(right), chosen, other)
        return self._select(self._mask(condition, dtype), chosen, other, dtype)

    def _flag(self, mask: CExpr, dtype: dtypes.DType) -> CExpr:
        return self._select(mask, self._number(1.0, dtype), self._number(0.0, dtype), dtype)

    def _first_lanes(self, dtype: dtypes.DType) -> CExpr:
        mask = Vector(dtype.in_lanes.name, self._lanes).mask
        self._writer.helpers.add(mask)
        flags = ", ".join("-1" if lane < self._count else "0" for lane in range(self._lanes))
        return CExpr(f"({mask}){{{flags}}}")

    def _select(self, mask: CExpr, chosen: CExpr, other: CExpr, dtype: dtypes.DType) -> CExpr:
        return call(self._helper(dtype, "select"), mask, chosen, other)

    def _number(self, value: float, dtype: dtypes.DType) -> CExpr:
        return call(self._helper(dtype, "splat"), self._expressions.constant(value, dtype))

    def _name(self, expr: ir.Expr) -> CExpr:
        """Render the name of the vector of an expression's values."""
        return self._bind(self._value(expr), expr.dtype)

    def _bind(self, value: CExpr, dtype: dtypes.DType) -> CExpr:
        """Name a value that the text mentions repeatedly."""
        return CExpr(self._name_value(self._vector(dtype), value))

    def _name_value(self, vector: str, value: CExpr) -> str:
        if value.code.isidentifier():
            return value.code
        name = self._names.fresh()
        self._writer.line(f"const {vector} {name} = {value};")
        return name

    def _cache_value(self, vector: str, value: CExpr) -> str:
        """Return the variable that holds a value of memory, or of a function of it."""
        known = self._writer.cached.get(value.code)
        if known is None:
            known = self._writer.cached[value.code] = self._name_value(vector, value)
        return known

    def _vector(self, dtype: dtypes.DType) -> str:
        """Return the vector type of a format."""
        name = _vector_type(dtype, self._lanes)
        self._writer.helpers.add(name)
        return name

    def _helper(self, dtype: dtypes.DType, function: str) -> str:
        name = f"{self._vector(dtype)}_{function}"
        self._writer.helpers.add(name)
        return name


def _repeated_functions(value: ir.Expr) -> AbstractSet[ir.Expr]:
    """Return the calls of elementary functions that stand in an expression more than once."""
    calls = Counter(
        each
        for each in walk(value)
        if isinstance(each, ir.Unary | ir.Binary)
        and each.op.value.has_vector_code
        and each.dtype.is_float
    )
    return {each for each, count in calls.items() if count > 1}


def _is_word(dtype: dtypes.DType, dims: Sequence[int]) -> bool:
    """Return True if cells of a buffer and their positions fit in lanes of 32 bits."""
    return dtype.in_lanes is dtype and dtype.nbytes == 4 and 0 < prod(dims) < 2**31


@cache
def _vector_type(dtype: dtypes.DType, lanes: int) -> str:
    """Return the type in C of a vector of numbers, or of words."""
    computed = dtype.in_lanes
    if computed.name not in ELEMENTS and computed is not dtypes.uint4x32:
        raise NotVectorizedError
    return f"{computed}x{lanes}"
