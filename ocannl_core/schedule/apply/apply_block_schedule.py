"""Apply a schedule for the grid and thread blocks of a device to a nest, as a pure function.

The leaves of the splits are loops: the grid's outermost, then a block's, then the
others, serial in each thread. Blocks of a split are all equal; where they exceed an axis, a guard
leaves out the iterations beyond, inside of the loops of a block, so that all of its threads come to
every barrier.

    split j 4; grid j0; block j1, for j in range(6)   -->   for j0 in grid(2):
                                                              for j1 in block(4):
                                                                for once in range(1)
                                                                    while 4 * j0 + j1 + once < 6:

A thread has an accumulator for each of its cells. Where threads of a block run along reduced axes,
their partial results meet in shared memory, and a tree of fixed order combines them. A packed
operand, a factor of the reduced term or a load of cells without a reduction, is copied to shared
memory by all threads of a block, which then read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from types import MappingProxyType

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import AxisIndex, IndexVar, affine, affine_sum, as_affine
from ocannl_core.ir.kernels import transforms
from ocannl_core.ir.kernels.nest import KernelNest, LoopAxis, Reduction, with_factors
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.loop_nests import guarded, guarded_by
from ocannl_core.ir.loops.traverse import (
    free_variables,
    locals_of,
    map_expr,
    substitute_in_expr,
    substitute_in_stmt,
)
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import DType, int32, int64
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp
from ocannl_core.schedule.apply.block_axes import BlockAxes, Body, Numbers
from ocannl_core.schedule.apply.partial_results import PartialResults
from ocannl_core.schedule.apply.shared_fill import (
    ThreadCells,
    distribute_cyclically,
    least_rank,
    loads_of_cells,
)
from ocannl_core.schedule.apply.thread_accumulator import ThreadAccumulator
from ocannl_core.schedule.apply.vector_accesses import Ranges, vector_iterations
from ocannl_core.schedule.apply.vector_leaf import VectorLeaf


@dataclass(frozen=True, slots=True)
class ScheduledNest:
    """A nest after a schedule.

    Attributes:
        initial_stores: Stores of initial values, if stores to memory hold partial results.
        packing: The loops that fill the buffers that are filled once.
        loops: The other loops, after these.
    """

    initial_stores: tuple[ir.Stmt, ...]
    packing: tuple[ir.Stmt, ...]
    loops: tuple[ir.Stmt, ...]
    nodes: Mapping[TensorNode, NodeInfo]

    @property
    def body(self) -> ir.Block:
        """All statements of the nest."""
        return ir.Block((*self.initial_stores, *self.packing, *self.loops))


Rules = Sequence[tuple[str, bool]]
"""Rules of schedules, each with True if a schedule keeps it."""

PADDING_CELLS = 4
"""Cells between rows of a packed operand that threads write across: neighbouring threads then write
to different banks of shared memory, and vectors in a row stay aligned.
"""


@dataclass(frozen=True, slots=True)
class SharedOperand:
    """A factor of the reduced term, or a load of cells without a reduction, in memory that the
    threads of a block share.
    """

    pack: transforms.Pack
    node: TensorNode


@dataclass(slots=True)
class ThreadEmitter:
    """The statements of one thread for one nest.

    Attributes:
        vectors: The accesses of a vectorised leaf; None if there are none.
        shared: Those that the threads of a block share.
    """

    axes: BlockAxes
    nest: KernelNest
    schedule: transforms.Schedule
    vectors: VectorLeaf | None = None
    nodes: dict[TensorNode, NodeInfo] = field(default_factory=dict)
    shared: list[TensorNode] = field(default_factory=list)
    numbering: int = 0

    @classmethod
    def of(
        cls,
        nest: KernelNest,
        schedule: transforms.Schedule,
        nodes: NodeInfos | None = None,
        around: Ranges = MappingProxyType({}),
    ) -> ThreadEmitter:
        """Return the emitter for a schedule; without `nodes` all accesses are scalar."""
        axes = BlockAxes.of(nest, schedule)
        return cls(axes, nest, schedule, VectorLeaf.of(axes, nest, nodes, around))

    def scheduled(self) -> ScheduledNest:
        """Return the nest.

        Raises:
            UsageError: for a schedule that does not fit the nest.
        """
        for rule, is_kept in self._rules():
            if not is_kept:
                raise UsageError(rule, found=transforms.schedule_text(self.schedule))
        inside = self.thread_body(self.axes.thread_numbers)
        return ScheduledNest((), (), self.axes.around(inside, tuple(self.shared)), self.nodes)

    def _rules(self) -> Rules:
        """Return the rules of its schedules."""
        return ()

    @property
    def cells(self) -> tuple[str, ...]:
        """The serial leaves along which a thread has several cells at a time."""
        around = self.around
        return tuple(
            name
            for name in self.axes.serial
            if not self.axes.tree.is_reduced(name) and name not in around
        )

    @property
    def around(self) -> tuple[str, ...]:
        """The serial leaves whose cells a thread reduces one after the other: those outside of all
        terms, where threads neither share results nor copy operands together.
        """
        has_packs = any(isinstance(each, transforms.Pack) for each in self.schedule)
        if self.nest.reduction is None or has_packs or self.reduced_threads:
            return ()
        found: list[str] = []
        for name in self.axes.serial:
            if self.axes.tree.is_reduced(name) or name in self.axes.unrolled:
                break
            found.append(name)
        return tuple(found)

    @property
    def reduced_threads(self) -> tuple[str, ...]:
        """The leaves of a block along which threads share a result."""
        return tuple(
            name
            for name in self.axes.block
            if self.axes.tree.is_reduced(name) and self.axes.extent(name) > 1
        )

    @property
    def lanes(self) -> int:
        """The neighbouring threads that exchange results without memory, at most."""
        return max(
            (each.lanes for each in self.schedule if isinstance(each, transforms.Shuffle)),
            default=1,
        )

    @property
    def is_fused(self) -> bool:
        return any(
            isinstance(each, transforms.AccumulateAt) and each.fused for each in self.schedule
        )

    def thread_body(self, numbers: Numbers) -> tuple[ir.Stmt, ...]:
        """Return the statements of a thread; all threads of a block come to their barriers."""
        reduction = self.nest.reduction
        if reduction is None:
            return self._cells(numbers)

        def reduced(inner: Numbers) -> tuple[ir.Stmt, ...]:
            return self._reduce(reduction, inner)

        return self.axes.loops(self.around, numbers, reduced)

    def _cells(self, numbers: Numbers) -> tuple[ir.Stmt, ...]:
        """Return the stores of cells without a reduction, after copies of packed loads."""
        loads = loads_of_cells(self.nest)
        packs = [each for each in self.schedule if isinstance(each, transforms.Pack)]
        if any(each.inside is not None or each.operand >= len(loads) for each in packs):
            raise UsageError(
                "A load of cells without a reduction is packed once.",
                found=f"{len(loads)} loads, and {transforms.schedule_text(tuple(packs))}",
                where=f"schedule {transforms.schedule_text(self.schedule)!r}",
            )
        packed: dict[ir.Expr, SharedOperand] = {
            loads[each.operand]: self._packed(loads[each.operand], each) for each in packs
        }
        stmts = self._loops(self.cells, numbers, self._epilogue({}, packed))
        stmts = self.axes.guard(self._outer_cells, numbers, stmts)
        if not packed:
            return stmts
        copies = [stmt for load, each in packed.items() for stmt in self._fill(load, each, numbers)]
        return (*copies, ir.Barrier(), *stmts)

    def _loops(
        self, names: Sequence[str], numbers: Numbers, body: Body, *, is_guarded: bool = True
    ) -> tuple[ir.Stmt, ...]:
        """Return loops of a thread around statements, the innermost one as vectors if it can be."""
        vectors = self.vectors
        leaves = () if vectors is None else self.axes.tree.leaves(vectors.name)
        is_inside = set(leaves) <= set(names) and names[-1:] == leaves[-1:]
        if vectors is None or not is_guarded or not leaves or not is_inside:
            return self.axes.loops(names, numbers, body, is_guarded=is_guarded)

        def innermost(inner: Numbers) -> tuple[ir.Stmt, ...]:
            return vectors.loop(self.axes, inner, body, self._new_vector)

        others = [name for name in names if name not in leaves]
        return self.axes.loops(others, numbers, innermost)

    def _new_vector(self, name: str, dtype: DType, lanes: int) -> TensorNode:
        node = TensorNode(self.numbering, (name,))
        self.numbering += 1
        self.nodes[node] = NodeInfo(dtype, (lanes,))
        return node

    @property
    def _outer_cells(self) -> list[str]:
        """The axes of cells that grid and block determine."""
        complete = self.axes.complete(self.axes.variables)
        return [axis.name for axis in self.nest.cells if axis.name in complete]

    def _new_array(
        self, name: str, dims: tuple[int, ...], scope: ir.Scope, dtype: DType | None = None
    ) -> TensorNode:
        """Return a new array, by default in the format of the reduction."""
        if dtype is None:
            assert self.nest.reduction is not None
            dtype = self.nest.reduction.dtype
        node = TensorNode(self.numbering, (name,))
        self.numbering += 1
        self.nodes[node] = NodeInfo(dtype, dims)
        if scope is ir.Scope.GROUP:
            self.shared.append(node)
        return node

    def _reduce(self, reduction: Reduction, numbers: Numbers) -> tuple[ir.Stmt, ...]:
        accumulator = self._accumulator(reduction)
        packs = self._shared_operands(reduction)
        is_shared = bool(self.reduced_threads)
        outer = self._outer_cells

        def clear(inner: Numbers) -> tuple[ir.Stmt, ...]:
            return (accumulator.set(inner, reduction.neutral),)

        cleared = self.axes.loops(self.cells, numbers, clear, is_guarded=False)
        sums = self._accumulate(reduction, accumulator, packs, numbers)
        if not packs:
            sums = self.axes.guard(outer, numbers, sums)
        stmts = (*accumulator.declaration, *cleared, *sums)
        if is_shared:
            combined, results = PartialResults(
                self.axes,
                self.reduced_threads,
                numbers,
                reduction,
                accumulator,
                self._fresh_local(reduction),
                self.lanes,
                self._new_array,
            ).combine()
            stored = self._results(reduction, accumulator, results, numbers)
            return (*stmts, *combined, *self._first_threads(numbers, stored))
        return (*stmts, *self._results(reduction, accumulator, accumulator.value, numbers))

    def _results(
        self,
        reduction: Reduction,
        accumulator: ThreadAccumulator,
        value: Callable[[Numbers], ir.Expr],
        numbers: Numbers,
    ) -> tuple[ir.Stmt, ...]:
        """Return the epilogue of all cells of a thread."""

        def store(inner: Numbers) -> tuple[ir.Stmt, ...]:
            total = value(inner)
            if not reduction.starts_neutral:
                initial = substitute_in_expr(reduction.initial, self.axes.values(inner))
                total = ir.Binary(reduction.op, initial, total, reduction.dtype)
            result = ir.LocalRead(reduction.result)
            own = accumulator.value(inner)
            if total != own and len(self.nest.epilogue) > 1:
                return (accumulator.set(inner, total), *self._epilogue({result: own})(inner))
            return self._epilogue({result: total})(inner)

        stmts = self._loops(self.cells, numbers, store)
        return self.axes.guard(self._outer_cells, numbers, stmts)

    def _fresh_local(self, reduction: Reduction) -> ir.Local:
        used = [local.id for store in self.nest.epilogue for local in locals_of(store)]
        return ir.Local(max([*used, reduction.result.id], default=-1) + 1, reduction.dtype)

    def _epilogue(
        self,
        results: Mapping[ir.Expr, ir.Expr],
        packed: Mapping[ir.Expr, SharedOperand] | None = None,
    ) -> Body:
        def stores(numbers: Numbers) -> tuple[ir.Stmt, ...]:
            values = self.axes.values(numbers)
            copies = {
                load: self._shared_cell(each, numbers) for load, each in (packed or {}).items()
            }
            found: list[ir.Stmt] = []
            for store in self.nest.epilogue:
                value = map_expr(store.value, lambda e: copies.get(e, e)) if copies else store.value
                for stmt in substitute_in_stmt(replace(store, value=value), values).stmts:
                    assert isinstance(stmt, ir.Store)
                    value = map_expr(stmt.value, lambda e: results.get(e, e))
                    found.append(replace(stmt, value=value))
            return tuple(found)

        return stores

    def _accumulator(self, reduction: Reduction) -> ThreadAccumulator:
        wide = tuple(name for name in self.cells if self.axes.extent(name) > 1)
        if not wide:
            return ThreadAccumulator(self.axes, reduction, None, (), self._fresh_local(reduction))
        dims = tuple(self.axes.extent(name) for name in wide)
        node = self._new_array("sums", dims, ir.Scope.THREAD)
        return ThreadAccumulator(self.axes, reduction, node, wide, reduction.result)

    def _accumulate(
        self,
        reduction: Reduction,
        accumulator: ThreadAccumulator,
        packs: Mapping[str, Sequence[SharedOperand]],
        numbers: Numbers,
    ) -> tuple[ir.Stmt, ...]:
        """Return the loops that add up the terms of a thread."""
        every = tuple(each for group in packs.values() for each in group)
        padded = self._padded_terms(reduction, every)

        def update(inner: Numbers) -> tuple[ir.Stmt, ...]:
            factors = {each.pack.operand: self._shared_cell(each, inner) for each in every}
            term = with_factors(reduction.term, factors)
            term = substitute_in_expr(term, self.axes.values(inner))
            return (accumulator.add(inner, term, is_fused=self.is_fused),)

        def nested(names: Sequence[str], inner: Numbers) -> tuple[ir.Stmt, ...]:
            for at, name in enumerate(names):
                if name in packs:
                    before, after = names[: at + 1], names[at + 1 :]

                    def filled(
                        point: Numbers, name: str = name, after: Sequence[str] = after
                    ) -> tuple[ir.Stmt, ...]:
                        copies = [
                            stmt
                            for each in packs[name]
                            for stmt in self._fill(
                                reduction.factors[each.pack.operand], each, point
                            )
                        ]
                        sums = self.axes.loops(after, point, update, is_guarded=not padded)
                        return (ir.Barrier(), *copies, ir.Barrier(), *sums)

                    return self.axes.loops(before, inner, filled, is_guarded=False)
            return self._loops(names, inner, update, is_guarded=not padded)

        serial = [name for name in self.axes.serial if name not in self.around]
        stmts = nested(serial, numbers)
        if padded:
            return stmts
        reduced = [
            axis.name for axis in self.nest.reduced if axis.name in self.axes.complete(numbers)
        ]
        return self.axes.guard(reduced, numbers, stmts)

    def _padded_terms(self, reduction: Reduction, packs: Sequence[SharedOperand]) -> bool:
        """Return True if all factors are in shared memory: terms beyond an axis are zero there, and
        no load leaves its array.
        """
        if not packs:
            return False
        if len({each.pack.operand for each in packs}) == len(reduction.factors):
            return True
        if any(self.axes.exceeds(axis.name) for axis in self.nest.axes):
            raise UsageError(
                "Where blocks exceed an axis, all factors of the term are packed or none.",
                found=transforms.schedule_text(self.schedule),
            )
        return True

    def _first_threads(self, numbers: Numbers, stmts: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        """Return statements that the first of the threads run that share a result."""
        thread = self.axes.joint_number(self.reduced_threads, numbers)
        return guarded(ir.LoopBound(thread, 1), stmts)

    def _shared_operands(self, reduction: Reduction) -> dict[str, list[SharedOperand]]:
        """Return the packed factors by the leaf inside of which they are copied."""
        found: dict[str, list[SharedOperand]] = {}
        for pack in self.schedule:
            if not isinstance(pack, transforms.Pack):
                continue
            leaf = pack.inside
            if leaf not in self.axes.serial or pack.operand >= len(reduction.factors):
                raise UsageError(
                    "A factor of the term is packed inside of a serial loop of a thread.",
                    found=transforms.schedule_text((pack,)),
                    where=f"schedule {transforms.schedule_text(self.schedule)!r}",
                )
            made = self._packed(reduction.factors[pack.operand], pack)
            found.setdefault(leaf, []).append(made)
        return found

    def _packed(self, operand: ir.Expr, pack: transforms.Pack) -> SharedOperand:
        """Return a new shared array for an operand."""
        dims = [self.axes.extent(name) for name in pack.axes]
        if self._fill_order(operand, pack)[-1] != pack.axes[-1]:
            dims[-1] += self._padding(operand)  # neighbouring threads fill different rows
        node = self._new_array("packed", tuple(dims), ir.Scope.GROUP, operand.dtype)
        return SharedOperand(pack, node)

    def _padding(self, operand: ir.Expr) -> int:
        """Return the cells between rows of a packed operand that threads write across: a word where
        each thread reads single cells.
        """
        return PADDING_CELLS if self.nest.reduction else max(1, 4 // operand.dtype.nbytes)

    def _fill_order(self, operand: ir.Expr, pack: transforms.Pack) -> list[str]:
        """Return the axes of a packed operand in the order of memory, the contiguous one last."""
        steps: dict[str, int] = {}
        for name in pack.axes:
            var = self.axes.tree.axes[name[0]].var
            steps[name] = least_rank(operand, var)
        return sorted(pack.axes, key=lambda name: steps[name])

    def _shared_cell(self, each: SharedOperand, numbers: Numbers) -> ir.Expr:
        indices = tuple(self.axes.position(name, numbers) for name in each.pack.axes)
        dtype = self.nodes[each.node].dtype
        return ir.Load(each.node, indices, dtype)

    def _fill(self, factor: ir.Expr, each: SharedOperand, numbers: Numbers) -> tuple[ir.Stmt, ...]:
        """Return the statements by which the threads of a block copy an operand."""
        order, pack = self._fill_order(factor, each.pack), each.pack
        row = None if order[-1] == pack.axes[-1] else self._padding(factor)
        vectors = None
        if self.vectors is not None:
            vectors = self.vectors.of_operand(self.axes, factor, order[-1])
        if vectors is None:
            copied = self._distribute(order, numbers, 1, row)
            value = self._padded(factor, {**numbers}, copied.positions)
            indices = tuple(copied.positions[name] for name in pack.axes)
            return copied.around((ir.Store(each.node, indices, value),))
        copied = self._distribute(order, numbers, vectors.lanes, row)
        lane = copied.lane
        values: dict[IndexVar, AxisIndex] = {}
        ends: list[ir.LoopBound] = []
        for root, axis in self.axes.tree.axes.items():
            if axis.var in free_variables(factor):
                terms, offset = as_affine(self._position_in(root, numbers, copied.positions))
                values[axis.var] = affine(terms, offset + axis.start)
                if self.axes.exceeds(root):
                    first = affine([term for term in terms if term[1] is not lane], offset)
                    ends.append(axis.bound_at(first) or ir.LoopBound(first, axis.extent))

        guard = partial(guarded_by, ends) if ends else None
        indices = tuple(copied.positions[name] for name in pack.axes)
        places = [*vectors.at(values), *([(each.node, indices)] if row is None else [])]
        store = ir.Store(each.node, indices, substitute_in_expr(factor, values))
        known = {**self.vectors.nodes, **self.nodes} if self.vectors is not None else {}
        copies = vector_iterations(
            places, lane, vectors.lanes, (store,), known, self._new_vector, guard
        )
        return copied.around(copies)

    def _distribute(
        self, order: Sequence[str], numbers: Numbers, lanes: int, padding: int | None
    ) -> ThreadCells:
        """Return the cells of axes that each thread of a block copies."""
        digits = ((numbers[name], self.axes.extent(name)) for name in self.axes.block)
        extents = {name: self.axes.extent(name) for name in order}
        return distribute_cyclically(digits, extents, lanes, padding)

    def _padded(
        self, factor: ir.Expr, numbers: Mapping[str, AxisIndex], positions: Mapping[str, AxisIndex]
    ) -> ir.Expr:
        """Return an expression at positions of a packed operand, zero beyond the axes."""
        used = set(free_variables(factor))
        values: dict[IndexVar, AxisIndex] = {}
        conditions: list[ir.Expr] = []
        for root, axis in self.axes.tree.axes.items():
            if axis.var not in used:
                continue
            position = self._position_in(root, numbers, positions)
            terms, offset = as_affine(position)
            values[axis.var] = affine(terms, offset + axis.start)
            if self._is_padded(root, positions):
                conditions.append(is_inside(axis, position))
        value = substitute_in_expr(factor, values)
        if not conditions:
            return value
        joint = conditions[0]
        for each in conditions[1:]:
            joint = ir.Binary(BinaryOp.AND, joint, each, each.dtype)
        return ir.Ternary(TernaryOp.WHERE, joint, value, ir.Const(0.0, value.dtype), value.dtype)

    def _is_padded(self, root: str, positions: Mapping[str, AxisIndex]) -> bool:
        """Return True if a packed operand has cells beyond an axis."""
        return self.axes.exceeds(root)

    def _position_in(
        self, name: str, numbers: Mapping[str, AxisIndex], positions: Mapping[str, AxisIndex]
    ) -> AxisIndex:
        """Return the position along a part whose inner parts are axes of a packed operand."""
        if name in positions:
            return positions[name]
        if name not in self.axes.tree.splits:
            if name not in numbers:
                raise UsageError(
                    "A packed operand has the axes that its copy does not run inside of.",
                    found=f"{name} is not among them",
                    where=f"schedule {transforms.schedule_text(self.schedule)!r}",
                )
            return numbers[name]
        outer = self._position_in(f"{name}0", numbers, positions)
        inner = self._position_in(f"{name}1", numbers, positions)
        return affine_sum((self.axes.extent(f"{name}1"), outer), (1, inner))


def is_inside(axis: LoopAxis, position: AxisIndex) -> ir.Expr:
    """Return the condition that a position is before the end of an axis."""
    bound = axis.bound_at(position) or ir.LoopBound(position, axis.extent)
    reach = max(bound.maximum, axis.extent)
    counter = int32 if reach < 2**30 else int64
    return ir.Binary(
        BinaryOp.LT, ir.IndexValue(bound.index, counter), ir.IndexValue(bound.end, counter), counter
    )
