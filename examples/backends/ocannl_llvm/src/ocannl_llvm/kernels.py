"""Kernels of the loop language as functions in LLVM IR."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from ocannl_core.backend_api import (
    CodegenError,
    DType,
    Kernel,
    NodeInfos,
    bfloat16,
    float32,
    int64,
    loops,
    merge_reads,
    uint4x32,
)
from ocannl_core.backend_api.arithmetic import (
    Kind,
    TernaryOp,
    UnaryOp,
    from_bits,
    round_to,
    word_of,
)
from ocannl_core.backend_api.launches import KernelText
from ocannl_llvm.numbers import Numbers, held_type, stored_type

INDEX, POINTER, VOID = ir.IntType(64), ir.PointerType(), ir.VoidType()
STACK = 4096
"""The largest array on the stack; larger ones are private memory of the kernel."""


def kernel_text(symbol: str, kernel: Kernel, nodes: NodeInfos) -> KernelText:
    """Return a kernel as a module with one function of a table of addresses."""
    emitter = Emitter(symbol, kernel, nodes)
    private = (emitter.private,) if emitter.private else ()
    return KernelText(symbol, str(emitter.module), private=private, checks=emitter.checks)


class Emitter:
    """One kernel.

    Attributes:
        module: The module with the function.
        private: The bytes of private memory that the kernel is given.
        checks: True if it checks positions, and is given a flag.
    """

    def __init__(self, symbol: str, kernel: Kernel, nodes: NodeInfos) -> None:
        self.module, self.private = ir.Module(symbol), 0
        self._nodes, self._known = nodes, dict[Any, Any]()
        statements = list(loops.statements(kernel.body))
        self.checks = any(isinstance(each, loops.CheckPositions) for each in statements)
        merges = [("merge buffer", node) for node in merge_reads(kernel.body)]
        given = [*kernel.arguments, *merges, *kernel.indices]
        large = [
            each.node
            for each in statements
            if isinstance(each, loops.Allocate) and self._is_large(each)
        ]
        # aliases are excluded for parameters only, so a wrapper unpacks the table
        count = len(given) + bool(large) + self.checks
        kind = ir.FunctionType(VOID, [POINTER] * count)
        body = ir.Function(self.module, kind, f"{symbol}_body")
        body.linkage = "internal"
        body.attributes.add("alwaysinline")
        self.b = ir.IRBuilder(body.append_basic_block("entry"))
        self.numbers = Numbers(self.b)
        for thing, argument in zip(given, body.args, strict=False):
            argument.add_attribute("noalias")
            self._known[thing] = argument
        for index in kernel.indices:
            self._known[index] = self.b.load(self._known[index], typ=INDEX)
        for node in large:
            start = body.args[len(given)]
            self._known[node] = self._address(start, INDEX(self.private), ir.IntType(8))
            self.private += -(-max(nodes[node].nbytes, 1) // 64) * 64
        self._flag = body.args[-1] if self.checks else None
        self._statement(kernel.body)
        self.b.ret_void()
        self._wrap(symbol, body, count)

    def _wrap(self, symbol: str, body: ir.Function, count: int) -> None:
        function = ir.Function(self.module, ir.FunctionType(VOID, [POINTER]), symbol)
        b = ir.IRBuilder(function.append_basic_block("entry"))
        cells = [b.gep(function.args[0], [INDEX(at)], source_etype=POINTER) for at in range(count)]
        b.call(body, [b.load(cell, typ=POINTER) for cell in cells])
        b.ret_void()

    def _is_large(self, stmt: loops.Allocate) -> bool:
        return self._nodes[stmt.node].nbytes > STACK

    def _statement(self, stmt: loops.Stmt) -> None:
        match stmt:
            case loops.Block(stmts):
                for each in stmts:
                    self._statement(each)
            case loops.For(var, start, stop, body, bound=bound):

                def iterate(number: Any) -> None:
                    self._known[var] = number
                    if bound is None:
                        self._statement(body)
                        return
                    inside = self.b.icmp_signed(
                        "<", self._affine(bound.index), self._end(bound.extent)
                    )
                    with self.b.if_then(inside):
                        self._statement(body)

                self._loop(INDEX(start), INDEX(stop), iterate)
            case loops.Store(node, indices, value):
                self._store(node, self._offset(node, indices), self._value(value))
            case loops.StoreVector(node, indices, length, arg):
                word, first = self._value(arg), self._offset(node, indices)
                for at in range(length):
                    number = self.numbers.uniform(word, self._nodes[node].dtype, at)
                    self._store(node, self.b.add(first, INDEX(at)), number)
            case loops.Scatter(node, indices, axis, position, value):
                inside, at = self._position(node, axis, position)
                with self.b.if_then(inside):
                    self._store(node, self._offset(node, indices, at, axis), self._value(value))
            case loops.Fill(node, value):
                number = constant(value, self._nodes[node].dtype)
                size = INDEX(self._nodes[node].size)
                self._loop(INDEX(0), size, lambda at: self._store(node, at, number))
            case loops.DeclareLocal(local):
                self._known[local] = self._on_stack(held_type(local.dtype))
            case loops.SetLocal(local, value):
                self.b.store(self._value(value), self._known[local])
            case loops.Allocate(node) if not self._is_large(stmt):
                info = self._nodes[node]
                self._known[node] = self._on_stack(stored_type(info.dtype), max(info.size, 1))
            case loops.CheckPositions():
                self._check(stmt)
            case loops.Staged(body=body):
                self._statement(body)
            case loops.Allocate() | loops.Remark() | loops.Prefetch():
                pass
            case _:
                raise CodegenError(
                    "Iterations of this backend run one after the other.", found=type(stmt).__name__
                )

    def _loop(self, start: Any, stop: Any, emit: Callable[[Any], None]) -> None:
        """Emit a loop; the function emits one iteration, given its number."""
        before = self.b.block
        head, body, end = (self.b.append_basic_block() for _ in range(3))
        self.b.branch(head)
        self.b.position_at_end(head)
        number = self.b.phi(INDEX)
        number.add_incoming(start, before)
        self.b.cbranch(self.b.icmp_signed("<", number, stop), body, end)
        self.b.position_at_end(body)
        emit(number)
        number.add_incoming(self.b.add(number, INDEX(1), flags=["nsw"]), self.b.block)
        self.b.branch(head)
        self.b.position_at_end(end)

    def _check(self, check: loops.CheckPositions) -> None:
        """Emit a check, which sets the flag and ends the kernel if a position is out of bounds."""
        info = self._nodes[check.node]
        failed = self._on_stack(ir.IntType(1))
        self.b.store(ir.IntType(1)(0), failed)
        margins = info.padding or (None,) * len(info.dims)

        def along(axis: int, offset: Any) -> None:
            if axis == len(info.dims):
                number = self._load(check.node, offset, info.dtype)
                wide = self.numbers.convert(number, info.dtype, int64)
                inside = self.b.icmp_unsigned("<", wide, INDEX(check.extent))
                with self.b.if_then(self.b.not_(inside)):
                    self.b.store(ir.IntType(1)(1), failed)
                return
            at_run_time = check.extents[axis] if check.extents else None
            end = INDEX(info.dims[axis]) if at_run_time is None else self._known[at_run_time]
            margin, stride = margins[axis], math.prod(info.buffer_dims[axis + 1 :])
            left = margin.left if margin else 0

            def iterate(number: Any) -> None:
                cell = self.b.mul(self.b.add(number, INDEX(left)), INDEX(stride))
                along(axis + 1, self.b.add(offset, cell))

            self._loop(INDEX(0), end, iterate)

        along(0, INDEX(0))
        with self.b.if_then(self.b.load(failed, typ=ir.IntType(1))):
            self.b.store(INDEX(1), self._flag)
            self.b.ret_void()

    def _value(self, expr: loops.Expr) -> Any:
        numbers = self.numbers
        match expr:
            case loops.Load(node, indices, dtype):
                return self._load(node, self._offset(node, indices), dtype)
            case loops.LoadMerge(node, indices, dtype):
                offset = self._offset(node, indices)
                return self._load(node, offset, dtype, self._known["merge buffer", node])
            case loops.Gather(node, indices, axis, position, dtype, beyond):
                inside, at = self._position(node, axis, position)
                return self._choose(
                    inside,
                    lambda: self._load(node, self._offset(node, indices, at, axis), dtype),
                    lambda: constant(beyond, dtype),
                )
            case loops.LocalRead(local):
                return self.b.load(self._known[local], typ=held_type(local.dtype))
            case loops.Scoped(local, body):
                self._statement(loops.Block((loops.DeclareLocal(local), body)))
                return self.b.load(self._known[local], typ=held_type(local.dtype))
            case loops.Unary(UnaryOp.IDENTITY, arg, dtype):
                return numbers.convert(self._value(arg), arg.dtype, dtype)
            case loops.Unary(UnaryOp.WORD, arg):
                return numbers.word(self._value(arg), arg.dtype)
            case loops.Unary(UnaryOp.UNIFORM, arg, dtype):
                single = float32 if dtype is bfloat16 else dtype
                return numbers.convert(numbers.uniform(self._value(arg), single, 0), single, dtype)
            case loops.Unary(op, arg, dtype):
                return numbers.apply(op, [self._value(arg)], arg.dtype, dtype)
            case loops.Binary(op, left, right, dtype):
                return numbers.apply(op, [self._value(left), self._value(right)], left.dtype, dtype)
            case loops.Ternary(TernaryOp.WHERE, condition, first, second):
                is_true = numbers.is_true(self._value(condition), condition.dtype)
                return self._choose(
                    is_true, lambda: self._value(first), lambda: self._value(second)
                )
            case loops.Ternary(op, first, second, third, dtype):
                operands = [self._value(each) for each in (first, second, third)]
                return numbers.apply(op, operands, dtype, dtype)
            case loops.Const(value, dtype):
                return constant(value, dtype)
            case loops.ConstBits(bits, dtype):
                return literal(from_bits(bits & (1 << 64) - 1, dtype), dtype)
            case loops.IndexValue(index, dtype):
                number = self._affine(index)
                return (
                    numbers.word(number, int64)
                    if dtype is uint4x32
                    else numbers.convert(number, int64, dtype)
                )
            case _:
                raise CodegenError("Values are expressions.", found=type(expr).__name__)

    def _choose(self, condition: Any, first: Callable[[], Any], second: Callable[[], Any]) -> Any:
        """Return one of two values, of which only the chosen one is computed."""
        ends = []
        with self.b.if_else(condition) as branches:
            for branch, emit in zip(branches, (first, second), strict=True):
                with branch:
                    ends.append((emit(), self.b.block))
        chosen = self.b.phi(ends[0][0].type)
        for value, block in ends:
            chosen.add_incoming(value, block)
        return chosen

    def _position(self, node: Any, axis: int, position: loops.Expr) -> tuple[Any, Any]:
        """Return the truth that a computed position is inside of an axis, and the position."""
        number, dtype = self._value(position), position.dtype
        at = self.numbers.convert(number, dtype, int64)
        inside = self.b.icmp_unsigned("<", at, INDEX(self._nodes[node].buffer_dims[axis]))
        if dtype.is_float:
            whole = self.b.sitofp(at, number.type)
            inside = self.b.and_(inside, self.b.fcmp_ordered("==", whole, number))
        return inside, at

    def _load(self, node: Any, offset: Any, dtype: DType, array: Any = None) -> Any:
        array = self._known[node] if array is None else array
        if not dtype.is_packed:
            cell = self._address(array, offset, stored_type(dtype))
            return self.numbers.unpack(self.b.load(cell, typ=stored_type(dtype)), dtype)
        byte = ir.IntType(8)  # two cells in a byte, the first one in its low half
        both = self.b.load(self._address(array, self.b.lshr(offset, INDEX(1)), byte), typ=byte)
        shift = self.b.trunc(self.b.shl(self.b.and_(offset, INDEX(1)), INDEX(2)), byte)
        high = self.b.shl(self.b.lshr(both, shift), byte(4))
        return (self.b.ashr if dtype.kind is Kind.SIGNED else self.b.lshr)(high, byte(4))

    def _store(self, node: Any, offset: Any, number: Any) -> None:
        dtype = self._nodes[node].dtype
        cell = self._address(self._known[node], offset, stored_type(dtype))
        self.b.store(self.numbers.pack(number, dtype), cell)

    def _address(self, array: Any, offset: Any, kind: ir.Type) -> Any:
        return self.b.gep(array, [offset], inbounds=True, source_etype=kind)

    def _on_stack(self, kind: ir.Type, count: int = 1) -> Any:
        with self.b.goto_entry_block():
            cells = self.b.alloca(kind, INDEX(count))
            cells.align = 64 if count > 1 else None
        return cells

    def _offset(self, node: Any, indices: Any, at: Any = None, axis: int = -1) -> Any:
        """Return the row-major offset of a cell; a computed position is added along its axis."""
        dims, total = self._nodes[node].buffer_dims, INDEX(0)
        for k, index in enumerate(indices):
            stride = INDEX(math.prod(dims[k + 1 :]))
            total = self._add(total, self._times(self._affine(index), stride))
            if k == axis:
                total = self._add(total, self._times(at, stride))
        return total

    def _affine(self, index: Any) -> Any:
        terms, offset = loops.as_affine(index)
        total = INDEX(offset)
        for factor, var in terms:
            total = self._add(total, self._times(self._known[var], INDEX(factor)))
        return total

    def _add(self, a: Any, b: Any) -> Any:
        return self.b.add(a, b, flags=["nsw"])

    def _times(self, a: Any, b: Any) -> Any:
        return self.b.mul(a, b, flags=["nsw"])

    def _end(self, extent: Any) -> Any:
        return INDEX(extent) if isinstance(extent, int) else self._known[extent]


def constant(value: Any, dtype: DType) -> Any:
    """Return a number in a format; an integer becomes a word for that one."""
    return literal(word_of(value) if dtype.kind is Kind.WORD else round_to(value, dtype), dtype)


def literal(value: Any, dtype: DType) -> Any:
    return held_type(dtype)(list(value) if dtype is uint4x32 else value)
