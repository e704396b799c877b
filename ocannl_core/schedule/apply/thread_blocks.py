"""Apply a schedule for thread blocks to a nest: a pure function to a block that computes the same.

The leaves of the splits are loops: those of the grid outermost, then those of a block, then the
others, serial in each thread. Blocks of a split are all equal; where they exceed an axis, a guard
leaves out the iterations beyond, inside of the loops of a block, so that all of its threads come to
every barrier.

    split j 4; grid j0; block j1, for j in range(6)   -->   for j0 in grid(2):
                                                              for j1 in block(4):
                                                                for once in range(1)
                                                                    while 4 * j0 + j1 + once < 6:

A thread has an accumulator for each of its cells. Where threads of a block run along reduced axes,
their partial results meet in shared memory, and a tree of fixed order combines them. A packed
operand is copied to shared memory by all threads of a block, which then read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from ocannl_core.dtypes import int32, int64
from ocannl_core.errors import UsageError
from ocannl_core.fast_dataclass import dataclass, replace
from ocannl_core.indexing import (
    AxisIndex,
    FixedIndex,
    IndexVar,
    LoopVar,
    affine,
    as_affine,
    fresh_var,
)
from ocannl_core.kernels.nest import KernelNest, LoopAxis, Reduction, with_factors
from ocannl_core.kernels.transforms import (
    AccumulateAt,
    MapToBlock,
    MapToGrid,
    Pack,
    Schedule,
    schedule_text,
)
from ocannl_core.loopir.nodes import (
    Allocate,
    AxisKind,
    Barrier,
    Binary,
    Block,
    Const,
    DeclareLocal,
    Expr,
    For,
    IndexValue,
    Load,
    Local,
    LocalRead,
    LoopBound,
    Scope,
    SetLocal,
    Stmt,
    Store,
    Ternary,
)
from ocannl_core.loopir.traverse import (
    free_variables,
    locals_of,
    map_expr,
    substitute_in_expr,
    substitute_in_stmt,
    walk,
)
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.ops import BinaryOp, TernaryOp
from ocannl_core.schedule.apply.block_axes import BlockAxes, Body, Numbers
from ocannl_core.schedule.apply.loop_ends import guarded
from ocannl_core.schedule.apply.scheduled_nest import ScheduledNest

PADDING_CELLS = 4
"""Cells between rows of a packed operand that threads write across: neighbouring threads then write
to different banks of shared memory, and vectors in a row stay aligned.
"""


def is_for_blocks(schedule: Schedule) -> bool:
    """Return True if a schedule maps axes to thread blocks."""
    return any(isinstance(each, MapToGrid | MapToBlock) for each in schedule)


def apply_block_schedule(nest: KernelNest, schedule: Schedule) -> ScheduledNest:
    """Return a nest on the axes that a schedule maps to the grid and to a block.

    Raises:
        UsageError: for a schedule that does not fit the nest.
    """
    emitter = ThreadEmitter(BlockAxes.of(nest, schedule), nest, schedule)
    inside = emitter.thread_body(emitter.axes.thread_numbers)
    body = emitter.axes.around(inside, tuple(emitter.shared))
    return ScheduledNest((), (), body, emitter.nodes)


# ----- statements of a thread ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SharedOperand:
    """A factor of the reduced term in memory that the threads of a block share.

    Attributes:
        pack: The transform.
        node: The array.
    """

    pack: Pack
    node: TensorNode


@dataclass(slots=True)
class ThreadEmitter:
    """The statements of one thread for one nest.

    Attributes:
        axes: The leaves of the schedule.
        nest: The nest.
        schedule: The schedule.
        nodes: The arrays that the statements use.
        shared: Those that the threads of a block share.
        numbering: The id of the next array.
    """

    axes: BlockAxes
    nest: KernelNest
    schedule: Schedule
    nodes: dict[TensorNode, NodeInfo] = field(default_factory=dict)
    shared: list[TensorNode] = field(default_factory=list)
    numbering: int = 0

    # ----- parts of the schedule --------------------------------------------------------------

    @property
    def cells(self) -> tuple[str, ...]:
        """The serial leaves along which a thread has several cells."""
        return tuple(name for name in self.axes.serial if not self.axes.tree.is_reduced(name))

    @property
    def reduced_threads(self) -> tuple[str, ...]:
        """The leaves of a block along which threads share a result."""
        return tuple(
            name
            for name in self.axes.block
            if self.axes.tree.is_reduced(name) and self.axes.extent(name) > 1
        )

    @property
    def is_fused(self) -> bool:
        return any(isinstance(each, AccumulateAt) and each.fused for each in self.schedule)

    def thread_body(self, numbers: Numbers) -> tuple[Stmt, ...]:
        """Return the statements of a thread; all threads of a block come to their barriers.

        Args:
            numbers: The numbers of the leaves of grid and block.
        """
        reduction = self.nest.reduction
        if reduction is None:
            stmts = self.axes.loops(self.cells, numbers, self._epilogue({}))
            return self.axes.guard(self._outer_cells(numbers), numbers, stmts)
        return self._reduce(reduction, numbers)

    def _outer_cells(self, numbers: Numbers) -> list[str]:
        """Return the axes of cells that grid and block determine."""
        complete = self.axes.complete(numbers)
        return [axis.name for axis in self.nest.cells if axis.name in complete]

    def _new_array(self, name: str, dims: tuple[int, ...], scope: Scope) -> TensorNode:
        assert self.nest.reduction is not None
        node = TensorNode(self.numbering, (name,))
        self.numbering += 1
        self.nodes[node] = NodeInfo(self.nest.reduction.dtype, dims)
        if scope is Scope.GROUP:
            self.shared.append(node)
        return node

    # ----- reductions -------------------------------------------------------------------------

    def _reduce(self, reduction: Reduction, numbers: Numbers) -> tuple[Stmt, ...]:
        accumulator = self._accumulator(reduction)
        packs = self._shared_operands(reduction)
        is_shared = bool(self.reduced_threads)
        outer = self._outer_cells(numbers)

        def clear(inner: Numbers) -> tuple[Stmt, ...]:
            return (accumulator.set(inner, reduction.neutral),)

        cleared = self.axes.loops(self.cells, numbers, clear, is_guarded=False)
        sums = self._accumulate(reduction, accumulator, packs, numbers)
        if not packs:
            sums = self.axes.guard(outer, numbers, sums)
        stmts = (*accumulator.declaration, *cleared, *sums)
        if is_shared:
            combined, results = self._combine(reduction, accumulator, numbers)
            stored = self._results(reduction, accumulator, results, numbers)
            return (*stmts, *combined, *self._first_threads(numbers, stored))
        return (*stmts, *self._results(reduction, accumulator, accumulator.value, numbers))

    def _results(
        self,
        reduction: Reduction,
        accumulator: ThreadAccumulator,
        value: Callable[[Numbers], Expr],
        numbers: Numbers,
    ) -> tuple[Stmt, ...]:
        """Return the epilogue of all cells of a thread."""

        def store(inner: Numbers) -> tuple[Stmt, ...]:
            total = value(inner)
            if not reduction.starts_neutral:
                initial = substitute_in_expr(reduction.initial, self.axes.values(inner))
                total = Binary(reduction.op, initial, total, reduction.dtype)
            result = LocalRead(reduction.result)
            own = accumulator.value(inner)
            if total != own and len(self.nest.epilogue) > 1:
                return (accumulator.set(inner, total), *self._epilogue({result: own})(inner))
            return self._epilogue({result: total})(inner)

        stmts = self.axes.loops(self.cells, numbers, store)
        return self.axes.guard(self._outer_cells(numbers), numbers, stmts)

    def _fresh_local(self, reduction: Reduction) -> Local:
        used = [local.id for store in self.nest.epilogue for local in locals_of(store)]
        return Local(max([*used, reduction.result.id], default=-1) + 1, reduction.dtype)

    def _epilogue(self, results: Mapping[Expr, Expr]) -> Body:
        def stores(numbers: Numbers) -> tuple[Stmt, ...]:
            values = self.axes.values(numbers)
            found: list[Stmt] = []
            for store in self.nest.epilogue:
                for stmt in substitute_in_stmt(store, values).stmts:
                    assert isinstance(stmt, Store)
                    value = map_expr(stmt.value, lambda e: results.get(e, e))
                    found.append(replace(stmt, value=value))
            return tuple(found)

        return stores

    def _accumulator(self, reduction: Reduction) -> ThreadAccumulator:
        wide = tuple(name for name in self.cells if self.axes.extent(name) > 1)
        if not wide:
            return ThreadAccumulator(self.axes, reduction, None, (), self._fresh_local(reduction))
        dims = tuple(self.axes.extent(name) for name in wide)
        node = self._new_array("sums", dims, Scope.THREAD)
        return ThreadAccumulator(self.axes, reduction, node, wide, reduction.result)

    def _accumulate(
        self,
        reduction: Reduction,
        accumulator: ThreadAccumulator,
        packs: Mapping[str, Sequence[SharedOperand]],
        numbers: Numbers,
    ) -> tuple[Stmt, ...]:
        """Return the loops that add up the terms of a thread."""
        every = tuple(each for group in packs.values() for each in group)
        padded = self._padded_terms(reduction, every)

        def update(inner: Numbers) -> tuple[Stmt, ...]:
            factors = {
                each.pack.operand: self._shared_cell(reduction, each, inner) for each in every
            }
            term = with_factors(reduction.term, factors)
            term = substitute_in_expr(term, self.axes.values(inner))
            return (accumulator.add(inner, term, is_fused=self.is_fused),)

        def nested(names: Sequence[str], inner: Numbers) -> tuple[Stmt, ...]:
            for at, name in enumerate(names):
                if name in packs:
                    before, after = names[: at + 1], names[at + 1 :]

                    def filled(
                        point: Numbers, name: str = name, after: Sequence[str] = after
                    ) -> tuple[Stmt, ...]:
                        copies = [
                            stmt
                            for each in packs[name]
                            for stmt in self._fill(reduction, each, point)
                        ]
                        sums = self.axes.loops(after, point, update, is_guarded=not padded)
                        return (Barrier(), *copies, Barrier(), *sums)

                    return self.axes.loops(before, inner, filled, is_guarded=False)
            return self.axes.loops(names, inner, update, is_guarded=not padded)

        stmts = nested(self.axes.serial, numbers)
        if padded:
            return stmts
        reduced = [
            axis.name for axis in self.nest.reduced if axis.name in self.axes.complete(numbers)
        ]
        return self.axes.guard(reduced, numbers, stmts)

    def _padded_terms(self, reduction: Reduction, packs: Sequence[SharedOperand]) -> bool:
        """Return True if all factors are in shared memory: terms beyond an axis are zero there, and
        no load leaves its array.

        Raises:
            UsageError: if some factors are packed, and the others are not.
        """
        if not packs:
            return False
        if len({each.pack.operand for each in packs}) == len(reduction.factors):
            return True
        if any(self.axes.exceeds(axis.name) for axis in self.nest.axes):
            raise UsageError(
                "Where blocks exceed an axis, all factors of the term are packed or none.",
                found=schedule_text(self.schedule),
            )
        return True

    # ----- trees of partial results -----------------------------------------------------------

    def _combine(
        self, reduction: Reduction, accumulator: ThreadAccumulator, numbers: Numbers
    ) -> tuple[tuple[Stmt, ...], Callable[[Numbers], Expr]]:
        """Return the statements that combine the results of threads, and the final result."""
        names = self.reduced_threads
        count = self.axes.count(names)
        rows = tuple(
            name for name in self.axes.block if name not in names and self.axes.extent(name) > 1
        )
        own = accumulator.cells
        dims = (*(self.axes.extent(name) for name in (*own, *rows)), count)
        node = self._new_array("partial", dims, Scope.GROUP)
        thread = self._joint_number(names, numbers)
        around = [numbers[name] for name in rows]

        def cell(inner: Numbers, number: AxisIndex) -> Load:
            indices = (*(inner[name] for name in own), *around, number)
            return Load(node, indices, reduction.dtype)

        def put(inner: Numbers) -> tuple[Stmt, ...]:
            here = cell(inner, thread)
            return (Store(node, here.indices, accumulator.value(inner)),)

        stmts: list[Stmt] = [*self.axes.loops(own, numbers, put, is_guarded=False), Barrier()]
        while count > 1:
            half = -(-count // 2)

            def join(inner: Numbers, half: int = half) -> tuple[Stmt, ...]:
                terms, offset = as_affine(thread)
                here, other = cell(inner, thread), cell(inner, affine(terms, offset + half))
                total = Binary(reduction.op, here, other, reduction.dtype)
                return (Store(node, here.indices, total),)

            joined = self.axes.loops(own, numbers, join, is_guarded=False)
            stmts += [*guarded(LoopBound(thread, count - half), joined), Barrier()]
            count = half
        return tuple(stmts), lambda inner: cell(inner, FixedIndex(0))

    def _first_threads(self, numbers: Numbers, stmts: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """Return statements that the first of the threads run that share a result."""
        thread = self._joint_number(self.reduced_threads, numbers)
        return guarded(LoopBound(thread, 1), stmts)

    def _joint_number(self, names: Sequence[str], numbers: Numbers) -> AxisIndex:
        """Return the number of a thread among those along several leaves."""
        terms: list[tuple[int, IndexVar]] = []
        step = 1
        for name in reversed(names):
            inner, _ = as_affine(numbers[name])
            terms = [(step * coefficient, var) for coefficient, var in inner] + terms
            step *= self.axes.extent(name)
        return affine(terms, 0)

    # ----- shared operands --------------------------------------------------------------------

    def _shared_operands(self, reduction: Reduction) -> dict[str, list[SharedOperand]]:
        """Return the packed factors by the leaf inside of which they are copied."""
        found: dict[str, list[SharedOperand]] = {}
        for pack in self.schedule:
            if not isinstance(pack, Pack):
                continue
            leaf = pack.inside
            if leaf not in self.axes.serial or pack.operand >= len(reduction.factors):
                raise UsageError(
                    "A factor of the term is packed inside of a serial loop of a thread.",
                    found=schedule_text((pack,)),
                    where=f"schedule {schedule_text(self.schedule)!r}",
                )
            dims = [self.axes.extent(name) for name in pack.axes]
            if self._is_written_across(reduction, pack):
                dims[-1] += PADDING_CELLS
            node = self._new_array("packed", tuple(dims), Scope.GROUP)
            dtype = reduction.factors[pack.operand].dtype
            self.nodes[node] = replace(self.nodes[node], dtype=dtype)
            found.setdefault(leaf, []).append(SharedOperand(pack, node))
        return found

    def _is_written_across(self, reduction: Reduction, pack: Pack) -> bool:
        """Return True if neighbouring threads fill different rows of a packed operand."""
        return self._fill_order(reduction, pack)[-1] != pack.axes[-1]

    def _fill_order(self, reduction: Reduction, pack: Pack) -> list[str]:
        """Return the axes of a packed operand in the order of memory, the contiguous one last."""
        factor = reduction.factors[pack.operand]
        steps: dict[str, int] = {}
        for name in pack.axes:
            var = self.axes.tree.axes[name[0]].var
            steps[name] = _least_rank(factor, var)
        return sorted(pack.axes, key=lambda name: steps[name])

    def _shared_cell(self, reduction: Reduction, each: SharedOperand, numbers: Numbers) -> Expr:
        indices = tuple(self.axes.position(name, numbers) for name in each.pack.axes)
        dtype = self.nodes[each.node].dtype
        return Load(each.node, indices, dtype)

    def _fill(
        self, reduction: Reduction, each: SharedOperand, numbers: Numbers
    ) -> tuple[Stmt, ...]:
        """Return the statements by which the threads of a block copy an operand.

        The digits of a thread's number are dealt to the axes, the innermost ones to the axis that
        is contiguous in memory; what they do not cover is a loop.
        """
        digits = [
            (numbers[name], self.axes.extent(name))
            for name in self.axes.block
            if self.axes.extent(name) > 1
        ]
        positions: dict[str, AxisIndex] = {}
        guards: list[LoopBound] = []
        loops: list[For] = []
        for name in reversed(self._fill_order(reduction, each.pack)):
            extent = self.axes.extent(name)
            terms: list[tuple[int, IndexVar]] = []
            covered = 1
            while digits and covered < extent:
                digit, size = digits[-1]
                if covered > 1 and covered * size > extent:
                    break
                digits.pop()
                terms += [(covered * factor, var) for factor, var in as_affine(digit)[0]]
                covered *= size
            if covered < extent:
                var = fresh_var("copy")
                loops.append(For(var, 0, -(-extent // covered), Block(), AxisKind.UNROLLED))
                terms.append((covered, var))
            positions[name] = affine(terms, 0)
            reached = covered * (-(-extent // covered))
            if reached > extent:
                guards.append(LoopBound(positions[name], extent))
        # threads of the digits that are left would copy the same cells again
        for digit, _ in digits:
            guards.append(LoopBound(digit, 1))
        value = self._padded_factor(reduction, each.pack, {**numbers}, positions)
        indices = tuple(positions[name] for name in each.pack.axes)
        stmts: tuple[Stmt, ...] = (Store(each.node, indices, value),)
        for guard in guards:
            stmts = guarded(guard, stmts)
        for loop in loops:
            stmts = (replace(loop, body=Block(stmts)),)
        return stmts

    def _padded_factor(
        self,
        reduction: Reduction,
        pack: Pack,
        numbers: Mapping[str, AxisIndex],
        positions: Mapping[str, AxisIndex],
    ) -> Expr:
        """Return the factor at positions of a packed operand, zero beyond the axes."""
        return self._padded(reduction.factors[pack.operand], numbers, positions)

    def _padded(
        self,
        factor: Expr,
        numbers: Mapping[str, AxisIndex],
        positions: Mapping[str, AxisIndex],
        left: str = "",
    ) -> Expr:
        """Return an expression at positions of a packed operand, zero beyond the axes; one of
        them is left even if no block exceeds it.
        """
        used = set(free_variables(factor))
        values: dict[IndexVar, AxisIndex] = {}
        conditions: list[Expr] = []
        for root, axis in self.axes.tree.axes.items():
            if axis.var not in used:
                continue
            position = self._position_in(root, numbers, positions)
            terms, offset = as_affine(position)
            values[axis.var] = affine(terms, offset + axis.start)
            if root == left or self.axes.exceeds(root):
                conditions.append(_is_inside(axis, position))
        value = substitute_in_expr(factor, values)
        if not conditions:
            return value
        joint = conditions[0]
        for each in conditions[1:]:
            joint = Binary(BinaryOp.AND, joint, each, each.dtype)
        return Ternary(TernaryOp.WHERE, joint, value, Const(0.0, value.dtype), value.dtype)

    def _position_in(
        self,
        name: str,
        numbers: Mapping[str, AxisIndex],
        positions: Mapping[str, AxisIndex],
    ) -> AxisIndex:
        """Return the position along a part whose inner parts are axes of a packed operand."""
        if name in positions:
            return positions[name]
        if name not in self.axes.tree.splits:
            if name not in numbers:
                raise UsageError(
                    "A packed operand has the axes that its copy does not run inside of.",
                    found=f"{name} is not among them",
                    where=f"schedule {schedule_text(self.schedule)!r}",
                )
            return numbers[name]
        outer = as_affine(self._position_in(f"{name}0", numbers, positions))
        inner = as_affine(self._position_in(f"{name}1", numbers, positions))
        size = self.axes.extent(f"{name}1")
        scaled = [(size * coefficient, var) for coefficient, var in outer[0]]
        return affine([*scaled, *inner[0]], size * outer[1] + inner[1])


@dataclass(frozen=True, slots=True)
class ThreadAccumulator:
    """The results of one thread: an array, or a variable for a single cell.

    Attributes:
        axes: The leaves.
        reduction: The reduction.
        node: The array; None for a variable.
        cells: The leaves that are its axes.
        local: The variable.
    """

    axes: BlockAxes
    reduction: Reduction
    node: TensorNode | None
    cells: tuple[str, ...]
    local: Local

    @property
    def declaration(self) -> tuple[Stmt, ...]:
        if self.node is None:
            return (DeclareLocal(self.local),)
        return (Allocate(self.node, Scope.THREAD),)

    def _indices(self, numbers: Numbers) -> tuple[AxisIndex, ...]:
        return tuple(numbers[name] for name in self.cells)

    def value(self, numbers: Numbers) -> Expr:
        """Return the result of a cell."""
        if self.node is None:
            return LocalRead(self.local)
        return Load(self.node, self._indices(numbers), self.reduction.dtype)

    def set(self, numbers: Numbers, value: Expr) -> Stmt:
        """Return the statement that sets the result of a cell."""
        if self.node is None:
            return SetLocal(self.local, value)
        return Store(self.node, self._indices(numbers), value)

    def add(self, numbers: Numbers, term: Expr, *, is_fused: bool) -> Stmt:
        """Return the statement that combines a term with the result of a cell."""
        total, op, dtype = self.value(numbers), self.reduction.op, self.reduction.dtype
        match term:
            case Binary(BinaryOp.MUL, left, right) if is_fused and op is BinaryOp.ADD:
                return self.set(numbers, Ternary(TernaryOp.FMA, left, right, total, dtype))
            case _:
                return self.set(numbers, Binary(op, total, term, dtype))


def _is_inside(axis: LoopAxis, position: AxisIndex) -> Expr:
    """Return the condition that a position is before the end of an axis."""
    bound = axis.bound_at(position) or LoopBound(position, axis.extent)
    reach = max(bound.maximum, axis.extent)
    counter = int32 if reach < 2**30 else int64
    return Binary(
        BinaryOp.LT, IndexValue(bound.index, counter), IndexValue(bound.end, counter), counter
    )


def _least_rank(factor: Expr, var: LoopVar) -> int:
    """Return the least position of a variable among the axes of loads, from the outermost one."""
    ranks = [
        at
        for load in _loads(factor)
        for at, index in enumerate(load.indices, -len(load.indices))
        if any(each is var for _, each in as_affine(index)[0])
    ]
    return max(ranks, default=-100)


def _loads(expr: Expr) -> list[Load]:
    return [each for each in walk(expr) if isinstance(each, Load)]
