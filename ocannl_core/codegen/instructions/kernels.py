"""Kernels as instructions: statements, indices, checks of positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ocannl_core.base.errors import CodegenError
from ocannl_core.base.identity import IdentityMap
from ocannl_core.codegen.instructions.builder import InstructionBuilder, MachineType, Value
from ocannl_core.codegen.instructions.numbers import Numbers, held_type, joined, parts, stored_type
from ocannl_core.codegen.text.kernel_text import KernelText
from ocannl_core.codegen.text.routine_source import Launch, RoutineSource, RunStep
from ocannl_core.ir.indexing import AxisIndex, StaticIndex, as_affine
from ocannl_core.ir.kernels.nodes import HostCall, Kernel, NodeInfos
from ocannl_core.ir.kernels.stream import KernelStream
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.traverse import merge_reads, statements
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType, from_bits, int64, uint4x32
from ocannl_core.ir.numbers.primitives import TernaryOp, UnaryOp

_I64 = MachineType.I64


class KernelInstructions:
    """A kernel, to be appended to functions of a language.

    Attributes:
        arguments: The number of arrays that it is given: nodes, merge buffers, static indices,
            private memory, and the flag of failed checks, as `Launch` has them.
        private: The size in bytes of each private array.
        checks: True if it checks positions.
    """

    def __init__(self, kernel: Kernel, nodes: NodeInfos, stack_limit: int = 4096) -> None:
        """Args:
        stack_limit: The bytes of the largest array on the stack; larger ones are private memory.
        """
        self.kernel = kernel
        self._nodes = nodes
        inside = list(statements(kernel.body))
        self.checks = any(isinstance(each, ir.CheckPositions) for each in inside)
        kinds = {each.kind for each in inside if isinstance(each, ir.For)}
        self.has_plain_tiles = not kinds.isdisjoint((ir.AxisKind.VECTOR, ir.AxisKind.TILE))
        allocated = (each.node for each in inside if isinstance(each, ir.Allocate))
        self._private = [each for each in allocated if nodes[each].nbytes > stack_limit]
        self.private = tuple(nodes[each].nbytes for each in self._private)
        self._merges = merge_reads(kernel.body)
        given = len(kernel.arguments) + len(self._merges) + len(kernel.indices)
        self.arguments = given + len(self._private) + self.checks

    def append(self, builder: InstructionBuilder, arguments: Sequence[Value]) -> None:
        """Append the statements of the kernel.

        Args:
            arguments: The arrays that the kernel is given, of which no two share memory.
        """
        given = iter(arguments)
        arrays = {node: next(given) for node in self.kernel.arguments}
        merges = {node: next(given) for node in self._merges}
        numbers = Numbers(builder)
        zero = numbers.integer(0, _I64)
        indices: dict[Any, Value] = {
            index: builder.load(next(given), zero, _I64) for index in self.kernel.indices
        }
        arrays |= {node: next(given) for node in self._private}
        flag = next(given) if self.checks else None
        _Statements(numbers, self._nodes, arrays, merges, indices, flag).append(self.kernel.body)


class _Statements:
    def __init__(
        self,
        numbers: Numbers,
        nodes: NodeInfos,
        arrays: dict[TensorNode, Value],
        merges: dict[TensorNode, Value],
        indices: dict[Any, Value],
        flag: Value | None,
    ) -> None:
        self.b = numbers.b
        self.numbers = numbers
        self._nodes = nodes
        self._arrays = arrays
        self._merges = merges
        self._indices = indices
        self._locals: dict[ir.Local, list[Value]] = {}
        self._flag = flag

    def append(self, stmt: ir.Stmt) -> None:
        match stmt:
            case ir.Block(stmts):
                for each in stmts:
                    self.append(each)
            case ir.Verbatim(body=body):
                self.append(body)
            case ir.For(start=start, stop=stop):
                ends = (self._int(start), self._int(stop))
                self.b.loop(*ends, lambda number: self._iteration(stmt, number))
            case ir.Store(node, indices, value):
                self._store(node, self._offset(node, indices), self.value(value))
            case ir.StoreVector(node, indices, length, arg):
                word, first = self.value(arg), self._offset(node, indices)
                for at in range(length):
                    number = self.numbers.uniform(word, self._nodes[node].dtype, at)
                    self._store(node, self._sum([first, self._int(at)]), number)
            case ir.Scatter():
                self._scatter(stmt)
            case ir.Fill(node, value):
                info = self._nodes[node]
                number = self.numbers.constant(value, info.dtype)
                self.b.loop(
                    self._int(0), self._int(info.size), lambda at: self._store(node, at, number)
                )
            case ir.DeclareLocal(local):
                self._declare(local)
            case ir.SetLocal(local, value):
                kind = held_type(local.dtype)
                found = parts(self.value(value), local.dtype)
                for register, each in zip(self._locals[local], found, strict=True):
                    self.b.store(register, self._int(0), kind, each)
            case ir.Allocate(node):
                if node not in self._arrays:
                    info = self._nodes[node]
                    lanes = 4 if info.dtype is uint4x32 else 1
                    count = max(info.size, 1) * lanes
                    self._arrays[node] = self.b.local(stored_type(info.dtype), count)
            case ir.CheckPositions():
                self._check(stmt)
            case ir.Remark() | ir.Prefetch():
                pass
            case _:
                raise CodegenError(
                    "Kernels of instructions have iterations that run one after the other.",
                    found=type(stmt).__name__,
                    fix="declare no Capability of thread blocks",
                )

    def _iteration(self, loop: ir.For, number: Value) -> None:
        self._indices[loop.var] = number
        bound = loop.bound
        if bound is None:
            self.append(loop.body)
            return
        extent = bound.extent
        end = self._int(extent) if isinstance(extent, int) else self._indices[extent]
        inside = self.b.compare("slt", self._affine(bound.index), end)
        self.b.branch(inside, lambda: self.append(loop.body))

    def _scatter(self, stmt: ir.Scatter) -> None:
        inside, at = self._position(stmt.node, stmt.axis, stmt.position)

        def store() -> None:
            offset = self._offset(stmt.node, stmt.indices, at, stmt.axis)
            self._store(stmt.node, offset, self.value(stmt.value))

        self.b.branch(inside, store)

    def _declare(self, local: ir.Local) -> None:
        count = 4 if local.dtype is uint4x32 else 1
        kind = held_type(local.dtype)
        self._locals[local] = [self.b.local(kind) for _ in range(count)]

    def _read(self, local: ir.Local) -> Value:
        kind = held_type(local.dtype)
        found = [self.b.load(each, self._int(0), kind) for each in self._locals[local]]
        return joined(found, local.dtype)

    def _check(self, check: ir.CheckPositions) -> None:
        """Append a check, which sets the flag and ends the kernel if a position is out of range."""
        b, info = self.b, self._nodes[check.node]
        failed = b.local(MachineType.I8)
        b.store(failed, self._int(0), MachineType.I8, self.numbers.integer(0, MachineType.I8))
        margins = info.padding or (None,) * len(info.dims)

        def along(axis: int, terms: list[Value]) -> None:
            if axis == len(info.dims):
                number = self._load(check.node, self._sum(terms), info.dtype)
                wide = self.numbers.convert(number, info.dtype, int64)
                limit = self._end(check.extent, check.at_run_time)
                is_outside = b.compare("ule", limit, wide)
                one = self.numbers.integer(1, MachineType.I8)
                b.branch(is_outside, lambda: b.store(failed, self._int(0), MachineType.I8, one))
                return
            at_run_time = check.extents[axis] if check.extents else None
            end = self._end(info.dims[axis], at_run_time)
            stride, margin = math.prod(info.buffer_dims[axis + 1 :]), margins[axis]
            left = self._int(margin.left * stride if margin else 0)
            b.loop(
                self._int(0),
                end,
                lambda at: along(axis + 1, [*terms, left, self._times(at, stride)]),
            )

        def fail() -> None:
            b.store(self._flag, self._int(0), _I64, self._int(1))
            b.leave()

        along(0, [])
        found = b.load(failed, self._int(0), MachineType.I8)
        b.branch(b.compare("ne", found, self.numbers.integer(0, MachineType.I8)), fail)

    def value(self, expr: ir.Expr) -> Value:
        numbers = self.numbers
        match expr:
            case ir.Load(node, indices, dtype):
                return self._load(node, self._offset(node, indices), dtype)
            case ir.LoadMerge(node, indices, dtype):
                return numbers.load(self._merges[node], self._offset(node, indices), dtype)
            case ir.Gather(node, indices, axis, position, dtype, beyond):
                inside, at = self._position(node, axis, position)
                return self._choose(
                    inside,
                    dtype,
                    lambda: self._load(node, self._offset(node, indices, at, axis), dtype),
                    lambda: numbers.constant(beyond, dtype),
                )
            case ir.LocalRead(local):
                return self._read(local)
            case ir.Scoped(local, body):
                self._declare(local)
                self.append(body)
                return self._read(local)
            case ir.Unary(UnaryOp.IDENTITY, arg, dtype):
                return numbers.convert(self.value(arg), arg.dtype, dtype)
            case ir.Unary(UnaryOp.WORD, arg):
                return numbers.word(self.value(arg), arg.dtype)
            case ir.Unary(UnaryOp.UNIFORM, arg, dtype):
                return numbers.first_uniform(self.value(arg), dtype)
            case ir.Unary(UnaryOp.BITCAST, arg, dtype):
                return numbers.bitcast(self.value(arg), arg.dtype, dtype)
            case ir.Unary(op, arg, dtype):
                return numbers.apply(op, [self.value(arg)], arg.dtype, dtype)
            case ir.Binary(op, left, right, dtype):
                return numbers.apply(op, [self.value(left), self.value(right)], left.dtype, dtype)
            case ir.Ternary(TernaryOp.WHERE, condition, first, second, dtype):
                is_true = numbers.is_true(self.value(condition), condition.dtype)
                return self._choose(
                    is_true, dtype, lambda: self.value(first), lambda: self.value(second)
                )
            case ir.Ternary(op, first, second, third, dtype):
                operands = [self.value(each) for each in (first, second, third)]
                return numbers.apply(op, operands, dtype, dtype)
            case ir.Const(value, dtype):
                return numbers.constant(value, dtype)
            case ir.ConstBits(bits, dtype):
                return numbers.constant(from_bits(bits & (1 << 64) - 1, dtype), dtype)
            case ir.IndexValue(index, dtype):
                number = self._affine(index)
                is_word = dtype is uint4x32
                return (
                    numbers.word(number, int64)
                    if is_word
                    else numbers.convert(number, int64, dtype)
                )
            case _:
                raise CodegenError("Values are expressions.", found=type(expr).__name__)

    def _choose(
        self,
        condition: Value,
        dtype: DType,
        first: Callable[[], Value],
        second: Callable[[], Value],
    ) -> Value:
        """Return one of two numbers, of which only the chosen one is computed."""
        kinds = [held_type(dtype)] * (4 if dtype is uint4x32 else 1)
        found = self.b.choose(
            condition, kinds, lambda: parts(first(), dtype), lambda: parts(second(), dtype)
        )
        return joined(found, dtype)

    def _position(self, node: TensorNode, axis: int, position: ir.Expr) -> tuple[Value, Value]:
        """Return the bit that a computed position is inside of an axis, and the position."""
        b, dtype = self.b, position.dtype
        number = self.value(position)
        at = self.numbers.convert(number, dtype, int64)
        inside = b.compare("ult", at, self._int(self._nodes[node].buffer_dims[axis]))
        if dtype.is_float:
            whole = b.cast("sitofp", at, held_type(dtype))
            inside = b.binary("and", inside, b.compare("oeq", whole, number))
        return inside, at

    def _load(self, node: TensorNode, offset: Value, dtype: DType) -> Value:
        return self.numbers.load(self._arrays[node], offset, dtype)

    def _store(self, node: TensorNode, offset: Value, number: Value) -> None:
        self.numbers.store(self._arrays[node], offset, number, self._nodes[node].dtype)

    def _offset(
        self, node: TensorNode, indices: Sequence[Any], at: Value = None, axis: int = -1
    ) -> Value:
        """Return the row-major offset of a cell; a computed position is added along its axis."""
        dims, terms = self._nodes[node].buffer_dims, list[Value]()
        constant = 0
        for k, index in enumerate(indices):
            stride = math.prod(dims[k + 1 :])
            factors, offset = as_affine(index)
            constant += offset * stride
            terms += [self._times(self._indices[var], factor * stride) for factor, var in factors]
            if k == axis:
                terms.append(self._times(at, stride))
        return self._sum([*terms, self._int(constant)] if constant or not terms else terms)

    def _affine(self, index: AxisIndex) -> Value:
        factors, offset = as_affine(index)
        terms = [self._times(self._indices[var], factor) for factor, var in factors]
        return self._sum([*terms, self._int(offset)] if offset or not terms else terms)

    def _end(self, extent: int, at_run_time: StaticIndex | None) -> Value:
        return self._int(extent) if at_run_time is None else self._indices[at_run_time]

    def _sum(self, terms: Sequence[Value]) -> Value:
        if not terms:
            return self._int(0)
        total, *others = terms
        for each in others:
            total = self.b.binary("index_add", total, each)
        return total

    def _times(self, value: Value, factor: int) -> Value:
        return value if factor == 1 else self.b.binary("index_mul", value, self._int(factor))

    def _int(self, number: int) -> Value:
        return self.numbers.integer(number, _I64)


def instruction_source(
    kernels: KernelStream,
    write: Callable[[str, KernelInstructions], str],
    language: str,
    *,
    stack_limit: int = 4096,
    head: str = "",
) -> RoutineSource:
    """Return the source of a routine, with one text for equal kernels.

    Args:
        write: Returns the text of a kernel with a symbol.
        stack_limit: The bytes of the largest array on the stack of a kernel.
        head: The first line of the text for readers.
    """
    plan = kernels.plan()
    texts: IdentityMap[Kernel, KernelText] = IdentityMap()
    launches: list[RunStep] = []
    for step, nodes in kernels:
        if isinstance(step, HostCall):
            launches.append(step.call)
            continue
        first = step.like or step
        if first not in texts:
            symbol = f"k{len(launches)}"
            found = KernelInstructions(first, nodes, stack_limit)
            texts[first] = KernelText(
                symbol,
                write(symbol, found),
                private=found.private,
                checks=found.checks,
                has_plain_tiles=found.has_plain_tiles,
            )
        launches.append(Launch.of(step, texts[first], nodes))
    distinct = dict.fromkeys(each.text for each in launches if isinstance(each, Launch))
    text = "\n".join([*([head] if head else []), *(each.text for each in distinct)])
    return RoutineSource(plan, tuple(launches), text, language)
