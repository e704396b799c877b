"""Translation of loop programs to Python functions: the semantics of the loop language.

A kernel becomes a function of a *frame*, the list of run-time values: index variables, scalar
variables, and the flat arrays of nodes. A name's position in the list, its slot, is assigned
during translation, which follows the scopes of the language; the entry of a name outside its scope
is unreachable. Loops, stores and arithmetic are the text of the function; rarer statements are
closures that it calls. An access is checked when it runs, unless the loops around it keep it inside
its node.

Iterations of BLOCK loops work on copies of the frame, so variables and THREAD allocations are
private to each; other memory is shared. Only statements that contain a barrier pause there: the
loop advances all its iterations to the barrier before any goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import assert_never

from ocannl_core.backend_api import (
    CallExternal,
    DType,
    NodeInfo,
    TensorNode,
    VerifyError,
    dataclass,
)
from ocannl_core.backend_api.arithmetic import (
    BinaryOp,
    Kind,
    Number,
    TernaryOp,
    from_bits,
    meaning_in,
    multiply_add_singles,
    numbers_of,
    round_to,
    rounder,
    word_of,
)
from ocannl_core.backend_api.loops import (
    Allocate,
    AxisIndex,
    AxisKind,
    Barrier,
    Binary,
    Block,
    CheckPositions,
    ComputedIndex,
    ConcatIndex,
    Const,
    ConstBits,
    DeclareLocal,
    Expr,
    Fill,
    For,
    Gather,
    IndexValue,
    IndexVar,
    Load,
    LoadMerge,
    Local,
    LocalRead,
    Prefetch,
    Remark,
    Repeat,
    Scatter,
    Scope,
    Scoped,
    SetLocal,
    Stmt,
    Store,
    StoreVector,
    SubgroupReduce,
    Ternary,
    Unary,
    VarIndex,
    Verbatim,
    affine,
    as_affine,
    check_positions,
    joint_extents,
)
from ocannl_interp.groups import (
    Meeting,
    Steps,
    butterfly,
    contains_barrier,
    lockstep,
    no_subgroup,
    paused_loop,
    unpaused,
)
from ocannl_interp.memory import cell, interior, outside, poison, reader, strides, undefined
from ocannl_interp.offsets import Terms, offset_of, sum_of
from ocannl_interp.python_code import Action, Frame, Functions, PythonCode, Value

Position = Callable[[Frame], int]


@dataclass(frozen=True, slots=True)
class MergeOf:
    """The name of a node's merge buffer."""

    node: TensorNode


Name = TensorNode | MergeOf | Local | IndexVar

GROUP = 0
"""The slot of the memory that the BLOCK iterations around a statement share."""

_DEEPEST = 16
"""The loops around a statement in one Python function: Python allows 20."""
_PLAIN = {BinaryOp.ADD: "+", BinaryOp.SUB: "-", BinaryOp.MUL: "*"}
"""Primitives that are operators of Python on numbers."""
_FLOAT_RESULTS = (*_PLAIN, BinaryOp.DIV, BinaryOp.MAX, BinaryOp.MIN)
"""Primitives with a Python `float` of every two."""


class Translator:
    """Translator of the statements of one routine to actions on one kind of frame.

    Attributes:
        nodes: The infos of all nodes.
        merged: The nodes whose merge buffers are read, as far as translated.
        frame_size: The length of a frame, as far as translated.
    """

    def __init__(self, nodes: Mapping[TensorNode, NodeInfo]) -> None:
        self.nodes = nodes
        self.merged: set[TensorNode] = set()
        self.frame_size = 1
        self._functions = Functions()
        self._scope: dict[Name, int] = {}
        self._iterations: dict[int, range] = {}
        self._private: tuple[int, ...] = ()
        self._is_in_group = False

    def bind(self, name: Name, values: range | None = None) -> int:
        """Return a new slot, to which the name is bound until its scope ends.

        Args:
            values: Integers among which its value always is, if known.
        """
        slot = self._scope[name] = self._new_slot()
        if values:
            self._iterations[slot] = values
        return slot

    def kernel(self, body: Block, names: Sequence[Name]) -> Action:
        """Return the action of a body in which only these names and its own declarations are
        bound.
        """
        outer = self._scope
        self._scope = {name: self._slot(name) for name in names}
        action = self.action(body)
        self._scope = outer
        return action

    def _new_slot(self) -> int:
        self.frame_size += 1
        return self.frame_size - 1

    def _slot(self, name: Name) -> int:
        if name not in self._scope:
            raise VerifyError("A name is used where it is in scope.", found=f"{name!r} is not")
        return self._scope[name]

    def action(self, stmt: Stmt) -> Action:
        """Return the action of a statement; barriers outside BLOCK loops have no effect."""
        return self._functions.action(self._lines(stmt, 1))

    def _lines(self, stmt: Stmt, indent: int) -> list[str]:
        """Return the text of a statement, indented by so many spaces."""
        match stmt:
            case Block(stmts):
                outer, private = dict(self._scope), self._private
                lines = [line for each in stmts for line in self._lines(each, indent)]
                self._scope, self._private = outer, private
                return lines
            case For():
                return self._loop(stmt, indent)
            case Store(node, indices, value):
                offset, number = self._offset(node, indices), self._value(value)
                text = f"f[{self._slot(node)}][{offset.text}] = {number.text}"
            case Fill(node, value):
                number = self._functions.number(constant(value, self.nodes[node].dtype))
                text = f"f[{self._slot(node)}][:] = {number.text}"
            case DeclareLocal(local):
                text = self._declaration(local)
            case SetLocal(local, value):
                text = f"f[{self._slot(local)}] = {self._value(value).text}"
            case Verbatim(_, _, body):
                return self._lines(body, indent)
            case Barrier() | Prefetch() | Remark():
                return []
            case SubgroupReduce():
                raise no_subgroup(stmt, 1)
            case _:
                text = self._functions.result(self._closure(stmt)).text
        return [" " * indent + text]

    def _closure(
        self, stmt: StoreVector | Scatter | CheckPositions | Allocate | CallExternal | Repeat
    ) -> Action:
        match stmt:
            case StoreVector():
                return self._store_vector(stmt)
            case Scatter():
                return self._scatter(stmt)
            case CheckPositions(node, extents=extents, at_run_time=at_run_time):
                slot, info = self._slot(node), self.nodes[node]
                found = filter(None, (*extents, at_run_time))
                ends = {each: self._position(VarIndex(each)) for each in found}
                return lambda frame: check_positions(
                    stmt, interior(frame[slot], info), lambda extent: ends[extent](frame)
                )
            case Allocate():
                return self._allocate(stmt)
            case CallExternal():
                return self._call(stmt)
            case Repeat():
                return self._repeat(stmt)
            case _:
                assert_never(stmt)

    def _loop(self, loop: For, indent: int) -> list[str]:
        if loop.kind is AxisKind.BLOCK:
            return [" " * indent + self._functions.result(self._group(loop)).text]
        if indent > _DEEPEST:
            return [" " * indent + self._functions.result(self.action(loop)).text]
        outer = self._scope.copy()
        slot, positions = self._positions(loop)
        lines = self._lines(loop.body, indent + 1)
        self._scope = outer
        if loop.bound is None:
            values = f"range({loop.start}, {loop.stop})"
        else:
            values = self._functions.result(positions).text
        return [
            " " * indent + f"for f[{slot}] in {values}:",
            *(lines or [" " * (indent + 1) + "pass"]),
        ]

    def _positions(self, loop: For) -> tuple[int, Callable[[Frame], range]]:
        """Bind the variable of a loop; return its slot, and the iterations in a frame."""
        every = range(loop.start, loop.stop)
        slot = self.bind(loop.var, every)
        if loop.bound is None:
            return slot, lambda frame: every
        extent = self._position(loop.bound.end)
        terms, offset = as_affine(loop.bound.index)
        (step,) = (coefficient for coefficient, var in terms if var is loop.var)
        others = affine([term for term in terms if term[1] is not loop.var], offset)
        first = self._position(others)

        def positions(frame: Frame) -> range:
            end = -((first(frame) - extent(frame)) // step)
            return every[: max(0, end - loop.start)]

        return slot, positions

    def _group(self, loop: For) -> Action:
        """Return the action of a BLOCK loop; the outermost one allocates the memory of its
        group.
        """
        is_outermost = not self._is_in_group
        self._is_in_group = True
        run = self._members(loop)
        self._is_in_group = not is_outermost

        def run_group(frame: Frame) -> None:
            if is_outermost:
                frame[GROUP] = {}
            for _ in run(frame):
                pass

        return run_group

    def _members(self, loop: For) -> Steps:
        """Return a BLOCK loop as steps: it pauses when all its iterations wait at a barrier."""
        outer, private = self._scope.copy(), self._private
        slot, positions = self._positions(loop)
        body = self.steps(loop.body)
        self._scope = outer

        def member(frame: Frame, position: int) -> Iterator[Meeting]:
            own = frame.copy()
            own[slot] = position
            for each in private:
                own[each] = own[each].copy()
            yield from body(own)

        return lambda frame: lockstep([member(frame, at) for at in positions(frame)])

    def steps(self, stmt: Stmt) -> Steps:
        """Return a statement inside a BLOCK loop as a generator that pauses at its barriers."""
        match stmt:
            case Barrier():
                return lambda frame: iter((stmt,))
            case SubgroupReduce():
                return self._subgroup_reduce(stmt)
            case For(kind=AxisKind.BLOCK) if contains_barrier(stmt):
                return self._members(stmt)
            case For() if contains_barrier(stmt):
                outer = self._scope.copy()
                slot, positions = self._positions(stmt)
                inner = self.steps(stmt.body)
                self._scope = outer
                return lambda frame: paused_loop(frame, slot, positions(frame), inner)
            case Block(stmts) if contains_barrier(stmt):
                outer, private = self._scope.copy(), self._private
                parts = [self.steps(each) for each in stmts]
                self._scope, self._private = outer, private
                return lambda frame: (barrier for part in parts for barrier in part(frame))
            case Verbatim(_, _, body) if contains_barrier(stmt):
                return self.steps(body)
            case _:
                return unpaused(self.action(stmt))

    def _subgroup_reduce(self, stmt: SubgroupReduce) -> Steps:
        slot, value, dtype = self._slot(stmt.local), self.value(stmt.value), stmt.local.dtype
        meaning, key = meaning_in(stmt.op, dtype, dtype), object()

        def combine(a: Number, b: Number) -> Number:
            return round_to(meaning(a, b), dtype)

        def steps(frame: Frame) -> Iterator[Meeting]:
            # all iterations arrive, in the order of their numbers, before one goes on
            group = frame[GROUP]
            values = group.setdefault(key, [])
            own = len(values)
            values.append(value(frame))
            yield stmt
            if group.get(key) is values:
                del group[key]
            if len(values) % stmt.lanes:
                raise no_subgroup(stmt, len(values))
            first = own - own % stmt.lanes
            frame[slot] = butterfly(values[first : first + stmt.lanes], own - first, combine)

        return steps

    def _repeat(self, stmt: Repeat) -> Action:
        outer, infos = self._scope.copy(), self.nodes
        self.nodes = {**infos, **dict(stmt.private)}
        private = [(self.bind(node), info) for node, info in stmt.private]
        slot = self.bind(stmt.index, stmt.iterations)
        body = self.action(stmt.body)
        self._scope, self.nodes = outer, infos
        return repetition(slot, stmt.iterations, private, [body])

    def _allocate(self, stmt: Allocate) -> Action:
        info, name = self.nodes[stmt.node], stmt.node
        if name in self._scope:
            raise VerifyError("A node is allocated once.", found=f"{name!r} has memory already")
        slot = self.bind(name)
        if stmt.scope is Scope.GROUP and self._is_in_group:
            # the iterations of a group get the same memory at their n-th visit
            visits = self._new_slot()

            def share(frame: Frame) -> None:
                frame[visits] = (frame[visits] or 0) + 1
                key = (slot, frame[visits])
                frame[slot] = frame[GROUP].setdefault(key, undefined(info))

            return share
        if stmt.scope is Scope.THREAD:
            self._private = (*self._private, slot)
        return lambda frame: frame.__setitem__(slot, undefined(info))

    def _declaration(self, local: Local) -> str:
        slot = self._scope.get(local) or self.bind(local)
        return f"f[{slot}] = {self._functions.number(poison(local.dtype)).text}"

    def _store_vector(self, stmt: StoreVector) -> Action:
        info, slot = self.nodes[stmt.node], self._slot(stmt.node)
        positions = [self._position(index) for index in stmt.indices]
        steps, word, length = strides(info), self.value(stmt.arg), stmt.length

        def store(frame: Frame) -> None:
            at = [position(frame) for position in positions]
            first = sum(map(int.__mul__, at, steps))
            if not 0 <= first <= info.size - length:
                raise outside(stmt.node, at, info, f", where {length} cells are written")
            for k, number in enumerate(numbers_of(word(frame), info.dtype)[:length]):
                frame[slot][first + k] = number

        return store

    def _scatter(self, stmt: Scatter) -> Action:
        info, slot, axis = self.nodes[stmt.node], self._slot(stmt.node), stmt.axis
        rest = self._functions.value(self._offset(stmt.node, stmt.indices))
        computed = self.value(stmt.position)
        extent, stride = info.buffer_dims[axis], strides(info)[axis]
        value = self.value(stmt.value)

        def scatter(frame: Frame) -> None:
            position = computed(frame)
            if 0 <= position < extent and position == int(position):
                frame[slot][rest(frame) + int(position) * stride] = value(frame)

        return scatter

    def _call(self, call: CallExternal) -> Action:
        inputs = [(self._slot(node), self.nodes[node]) for node in call.inputs]
        outputs = [(self._slot(node), self.nodes[node]) for node in call.outputs]

        def perform(frame: Frame) -> None:
            call.op.perform(
                [interior(frame[slot], info) for slot, info in inputs],
                [interior(frame[slot], info) for slot, info in outputs],
            )

        return perform

    def _terms(self, index: AxisIndex) -> Terms:
        """Return an index as coefficients with their slots, and the constant."""
        if isinstance(index, ConcatIndex | ComputedIndex):
            kind = "concatenated" if isinstance(index, ConcatIndex) else "computed"
            raise VerifyError(f"Lowering removes {kind} indices.", found=f"{index!r}")
        terms, offset = as_affine(index)
        return [(coefficient, self._slot(var)) for coefficient, var in terms], offset

    def _position(self, index: AxisIndex) -> Position:
        """Return the value of an index."""
        return self._functions.value(sum_of(self._terms(index)))

    def _offset(self, node: TensorNode, indices: Sequence[AxisIndex]) -> PythonCode:
        """Return the row-major offset of a cell, which must exist."""
        info = self.nodes[node]
        if len(indices) != len(info.dims):
            raise VerifyError(
                "An access has an index per axis.",
                found=f"{len(indices)} indices for {len(info.dims)} axes of {node!r}",
            )
        terms = [self._terms(index) for index in indices]
        extents = joint_extents(indices, info.buffer_dims)
        return offset_of(node, info, terms, extents, self._iterations, self._functions)

    def value(self, expr: Expr) -> Value:
        """Return the value of an expression."""
        return self._functions.value(self._value(expr))

    def _value(self, expr: Expr) -> PythonCode:
        match expr:
            case Load(node, indices):
                return self._load(node, self._slot(node), self._offset(node, indices))
            case LoadMerge(node, indices):
                self.merged.add(node)
                return self._load(node, self._slot(MergeOf(node)), self._offset(node, indices))
            case Gather():
                return self._functions.result(self._gather(expr))
            case LocalRead(local):
                return PythonCode(f"f[{self._slot(local)}]")
            case Scoped(local, body):
                return self._functions.result(self._scoped(local, body))
            case Unary(op, arg, dtype):
                a, meaning = self._value(arg), meaning_in(op, arg.dtype, dtype)
                return self._rounded(f"{self._functions.name(meaning)}({a.text})", dtype, a)
            case Binary(op, left, right, dtype):
                a, b = self._value(left), self._value(right)
                if op in _PLAIN:
                    text = f"({a.text} {_PLAIN[op]} {b.text})"
                else:
                    meaning = meaning_in(op, left.dtype, dtype)
                    text = f"{self._functions.name(meaning)}({a.text}, {b.text})"
                if op in _FLOAT_RESULTS and left.dtype.is_float and right.dtype.is_float:
                    return self._rounded_float(text, dtype, a, b)
                return self._rounded(text, dtype, a, b)
            case Ternary(TernaryOp.WHERE, first, second, third, dtype):
                # only the chosen operand: the other one may read outside its node
                test, a, b = self._value(first), self._value(second), self._value(third)
                text = f"({a.text} if {test.text} != 0 else {b.text})"
                if second.dtype is third.dtype is dtype:
                    return self._functions.nested(text, (test, a, b))
                return self._rounded(text, dtype, test, a, b)
            case Ternary(op, first, second, third, dtype):
                a, b, c = self._value(first), self._value(second), self._value(third)
                operands, fused = f"{a.text}, {b.text}, {c.text}", op is TernaryOp.FMA
                if fused and all(
                    map(_fits_single, (first.dtype, second.dtype, third.dtype, dtype))
                ):
                    text = f"{self._functions.name(multiply_add_singles)}({operands})"
                    return self._rounded_float(text, dtype, a, b, c)
                text = f"{self._functions.name(op.value.meaning)}({operands})"
                return self._rounded(text, dtype, a, b, c)
            case Const(number, dtype):
                return self._functions.number(constant(number, dtype))
            case ConstBits(bits, dtype):
                return self._functions.number(from_bits(bits & (1 << 64) - 1, dtype))
            case IndexValue(index, dtype):
                position = sum_of(self._terms(index))
                if dtype.kind is Kind.WORD:
                    return PythonCode(f"{self._functions.name(word_of)}({position.text})")
                return self._rounded(position.text, dtype)
            case _:
                assert_never(expr)

    def _rounded(self, text: str, dtype: DType, *operands: PythonCode) -> PythonCode:
        """Return a result of any type rounded to a number format."""
        name = self._functions.name(rounder(dtype))
        return self._functions.nested(f"{name}({text})", operands)

    def _rounded_float(self, text: str, dtype: DType, *operands: PythonCode) -> PythonCode:
        """Return a Python `float` rounded to a number format."""
        if dtype.name == "float32":
            return self._functions.nested(f"single({text}).value", operands)
        if dtype.name == "float64":
            return self._functions.nested(text, operands)
        return self._rounded(text, dtype, *operands)

    def _load(self, node: TensorNode, slot: int, offset: PythonCode) -> PythonCode:
        dtype = self.nodes[node].dtype
        text = cell(dtype, f"f[{slot}]", offset.text)
        return PythonCode(
            text or f"{self._functions.name(reader(dtype))}(f[{slot}], {offset.text})"
        )

    def _gather(self, expr: Gather) -> Value:
        info, slot, axis = self.nodes[expr.node], self._slot(expr.node), expr.axis
        rest = self._functions.value(self._offset(expr.node, expr.indices))
        computed = self.value(expr.position)
        extent, stride = info.buffer_dims[axis], strides(info)[axis]
        read, beyond = reader(info.dtype), constant(expr.beyond, expr.dtype)

        def gather(frame: Frame) -> Number:
            position = computed(frame)
            if not 0 <= position < extent or position != int(position):
                return beyond
            return read(frame[slot], rest(frame) + int(position) * stride)

        return gather

    def _scoped(self, local: Local, body: Block) -> Value:
        if contains_barrier(body):
            raise VerifyError("A barrier is a statement of a kernel, not part of a value.")
        outer = self._scope.copy()
        declaration = self._declaration(local)
        lines = [" " + declaration, *self._lines(body, 1)]
        slot = self._slot(local)
        self._scope = outer
        return self._functions.action([*lines, f" return f[{slot}]"])


def repetition(
    slot: int, values: range, private: Sequence[tuple[int, NodeInfo]], actions: Sequence[Action]
) -> Action:
    """Return an action that runs others for every value of a static index.

    Args:
        slot: The slot of the index.
        values: Its values, in order.
        private: The slots of nodes whose cells are undefined at the start of an iteration.
        actions: The actions of an iteration, in order.
    """

    def repeat(frame: Frame) -> None:
        for value in values:
            frame[slot] = value
            for each, info in private:
                frame[each] = undefined(info)
            for action in actions:
                action(frame)

    return repeat


def constant(value: float, dtype: DType) -> Number:
    """Return a number in a number format; an integer becomes a 128-bit word for that format."""
    if dtype.kind is Kind.WORD:
        return word_of(value)
    return round_to(value, dtype)


def _fits_single(dtype: DType) -> bool:
    return dtype.is_float and dtype.significand <= 24
