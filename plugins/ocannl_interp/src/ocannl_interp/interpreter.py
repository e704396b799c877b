"""Translation of loop programs to Python closures: the semantics of the loop language.

Every statement becomes a function of a *frame*, the list of run-time values: index variables,
scalar variables, and the flat arrays of nodes. A name's position in the list, its slot, is assigned
during translation, which follows the scopes of the language; the entry of a name outside its scope
is unreachable.

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
    Kind,
    Number,
    TernaryOp,
    from_bits,
    meaning_in,
    numbers_of,
    round_to,
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
    Staged,
    Stmt,
    Store,
    StoreVector,
    SubgroupReduce,
    Ternary,
    Unary,
    VarIndex,
    affine,
    as_affine,
    check_positions,
)
from ocannl_interp.groups import (
    Action,
    Frame,
    Meeting,
    Steps,
    butterfly,
    contains_barrier,
    lockstep,
    no_subgroup,
    paused_loop,
    unpaused,
)
from ocannl_interp.memory import interior, poison, reader, undefined

Value = Callable[[Frame], Number]
Position = Callable[[Frame], int]


@dataclass(frozen=True, slots=True)
class MergeOf:
    """The name of a node's merge buffer."""

    node: TensorNode


Name = TensorNode | MergeOf | Local | IndexVar

GROUP = 0
"""The slot of the memory that the BLOCK iterations around a statement share."""


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
        self._scope: dict[Name, int] = {}
        self._private: tuple[int, ...] = ()
        self._is_in_group = False

    def bind(self, name: Name) -> int:
        """Return a new slot, to which the name is bound until its scope ends."""
        self._scope[name] = self._new_slot()
        return self._scope[name]

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

    # ----- statements ----------------------------------------------------------------------------

    def action(self, stmt: Stmt) -> Action:
        """Return the action of a statement; barriers outside BLOCK loops have no effect."""
        match stmt:
            case Block(stmts):
                return self._block(stmts)
            case For():
                return self._loop(stmt)
            case Store(node, indices, value):
                return self._store(node, self._offset(node, indices), self.value(value))
            case StoreVector():
                return self._store_vector(stmt)
            case Fill(node, value):
                slot, number = self._slot(node), constant(value, self.nodes[node].dtype)
                return lambda frame: frame[slot].__setitem__(slice(None), number)
            case Scatter():
                return self._scatter(stmt)
            case CheckPositions(node, extents=extents):
                slot, info = self._slot(node), self.nodes[node]
                ends = {e: self._position(VarIndex(e)) for e in extents if e is not None}
                return lambda frame: check_positions(
                    stmt, interior(frame[slot], info), lambda extent: ends[extent](frame)
                )
            case DeclareLocal(local):
                return self._declare(local)
            case SetLocal(local, value):
                return self._set(self._slot(local), self.value(value))
            case Allocate():
                return self._allocate(stmt)
            case CallExternal():
                return self._call(stmt)
            case Repeat():
                return self._repeat(stmt)
            case Staged(_, _, body):
                return self.action(body)
            case Barrier() | Prefetch() | Remark():
                return lambda frame: None
            case SubgroupReduce():
                raise no_subgroup(stmt, 1)
            case _:
                assert_never(stmt)

    def _block(self, stmts: Sequence[Stmt]) -> Action:
        outer, private = dict(self._scope), self._private
        actions = [self.action(stmt) for stmt in stmts]
        self._scope, self._private = outer, private

        def run(frame: Frame) -> None:
            for action in actions:
                action(frame)

        return run

    def _loop(self, loop: For) -> Action:
        if loop.kind is AxisKind.BLOCK:
            return self._group(loop)
        outer = self._scope.copy()
        slot, positions = self._positions(loop)
        body = self.action(loop.body)
        self._scope = outer

        def run(frame: Frame) -> None:
            for position in positions(frame):
                frame[slot] = position
                body(frame)

        return run

    def _positions(self, loop: For) -> tuple[int, Callable[[Frame], range]]:
        """Bind the variable of a loop; return its slot, and the iterations in a frame."""
        slot = self.bind(loop.var)
        every = range(loop.start, loop.stop)
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
            case Staged(_, _, body) if contains_barrier(stmt):
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
        slot = self.bind(stmt.index)
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

    def _declare(self, local: Local) -> Action:
        slot = self._scope.get(local) or self.bind(local)
        return lambda frame: frame.__setitem__(slot, poison(local.dtype))

    def _set(self, slot: int, value: Value) -> Action:
        def set_local(frame: Frame) -> None:
            frame[slot] = value(frame)

        return set_local

    def _store(self, node: TensorNode, offset: Position, value: Value) -> Action:
        slot = self._slot(node)

        def store(frame: Frame) -> None:
            frame[slot][offset(frame)] = value(frame)

        return store

    def _store_vector(self, stmt: StoreVector) -> Action:
        info, slot = self.nodes[stmt.node], self._slot(stmt.node)
        positions = [self._position(index) for index in stmt.indices]
        strides, word, length = _strides(info), self.value(stmt.arg), stmt.length

        def store(frame: Frame) -> None:
            at = [position(frame) for position in positions]
            first = sum(map(int.__mul__, at, strides))
            if not 0 <= first <= info.size - length:
                raise _outside(stmt.node, at, info, f", where {length} cells are written")
            for k, number in enumerate(numbers_of(word(frame), info.dtype)[:length]):
                frame[slot][first + k] = number

        return store

    def _scatter(self, stmt: Scatter) -> Action:
        info, slot, axis = self.nodes[stmt.node], self._slot(stmt.node), stmt.axis
        rest, computed = self._offset(stmt.node, stmt.indices), self.value(stmt.position)
        extent, stride = info.buffer_dims[axis], _strides(info)[axis]
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

    # ----- positions -----------------------------------------------------------------------------

    def _position(self, index: AxisIndex) -> Position:
        """Return the value of an index."""
        if isinstance(index, ConcatIndex | ComputedIndex):
            kind = "concatenated" if isinstance(index, ConcatIndex) else "computed"
            raise VerifyError(f"Lowering removes {kind} indices.", found=f"{index!r}")
        terms, offset = as_affine(index)
        slots = [(coefficient, self._slot(var)) for coefficient, var in terms]
        return lambda frame: offset + sum(c * frame[slot] for c, slot in slots)

    def _offset(self, node: TensorNode, indices: Sequence[AxisIndex]) -> Position:
        """Return the row-major offset of a cell, which must exist."""
        info = self.nodes[node]
        if len(indices) != len(info.dims):
            raise VerifyError(
                "An access has an index per axis.",
                found=f"{len(indices)} indices for {len(info.dims)} axes of {node!r}",
            )
        positions = [self._position(index) for index in indices]
        axes = list(zip(positions, info.buffer_dims, _strides(info), strict=True))

        def offset(frame: Frame) -> int:
            total = 0
            for position, extent, stride in axes:
                value = position(frame)
                if not 0 <= value < extent:
                    raise _outside(node, [position(frame) for position in positions], info)
                total += value * stride
            return total

        return offset

    # ----- expressions ---------------------------------------------------------------------------

    def value(self, expr: Expr) -> Value:
        """Return the value of an expression."""
        match expr:
            case Load(node, indices):
                return self._load(node, self._slot(node), self._offset(node, indices))
            case LoadMerge(node, indices):
                self.merged.add(node)
                return self._load(node, self._slot(MergeOf(node)), self._offset(node, indices))
            case Gather():
                return self._gather(expr)
            case LocalRead(local):
                slot = self._slot(local)
                return lambda frame: frame[slot]
            case Scoped(local, body):
                return self._scoped(local, body)
            case Unary(op, arg, dtype):
                meaning, a = meaning_in(op, arg.dtype, dtype), self.value(arg)
                return lambda frame: round_to(meaning(a(frame)), dtype)
            case Binary(op, left, right, dtype):
                meaning = meaning_in(op, left.dtype, dtype)
                a, b = self.value(left), self.value(right)
                return lambda frame: round_to(meaning(a(frame), b(frame)), dtype)
            case Ternary():
                return self._ternary(expr)
            case Const(number, dtype):
                result = constant(number, dtype)
                return lambda frame: result
            case ConstBits(bits, dtype):
                result = from_bits(bits & (1 << 64) - 1, dtype)
                return lambda frame: result
            case IndexValue(index, dtype):
                position = self._position(index)
                return lambda frame: constant(position(frame), dtype)
            case _:
                assert_never(expr)

    def _load(self, node: TensorNode, slot: int, offset: Position) -> Value:
        read = reader(self.nodes[node].dtype)
        return lambda frame: read(frame[slot], offset(frame))

    def _gather(self, expr: Gather) -> Value:
        info, slot, axis = self.nodes[expr.node], self._slot(expr.node), expr.axis
        rest, computed = self._offset(expr.node, expr.indices), self.value(expr.position)
        extent, stride = info.buffer_dims[axis], _strides(info)[axis]
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
        declare, run = self._declare(local), self.action(body)
        slot = self._slot(local)
        self._scope = outer

        def scoped(frame: Frame) -> Number:
            declare(frame)
            run(frame)
            return frame[slot]

        return scoped

    def _ternary(self, expr: Ternary) -> Value:
        meaning, dtype = expr.op.value.meaning, expr.dtype
        a, b, c = self.value(expr.first), self.value(expr.second), self.value(expr.third)
        if (
            expr.op is TernaryOp.WHERE
        ):  # only the chosen operand: the other one may read outside its node
            return lambda frame: round_to(b(frame) if a(frame) != 0 else c(frame), dtype)
        return lambda frame: round_to(meaning(a(frame), b(frame), c(frame)), dtype)


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


def _strides(info: NodeInfo) -> tuple[int, ...]:
    """Return the stride of each axis, in cells."""
    strides = [1]
    for extent in reversed(info.buffer_dims[1:]):
        strides.insert(0, strides[0] * extent)
    return tuple(strides[: len(info.dims)])


def _outside(
    node: TensorNode, positions: Sequence[int], info: NodeInfo, detail: str = ""
) -> VerifyError:
    return VerifyError(
        "Accesses stay inside the node.",
        found=f"position {list(positions)} of extents {list(info.buffer_dims)}{detail}",
        where=repr(node),
    )
