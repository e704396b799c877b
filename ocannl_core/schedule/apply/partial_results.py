"""Trees of fixed order over the partial results of the threads of a block.

Each step halves the number of results: thread `t` adds the result of thread `t + half` to its
own. So the bits depend on the number of threads alone. Several steps have one barrier, as a thread
loads all results that meet in its own; the last ones, among neighbours, are shuffles where the
schedule has them. For 64 threads and shuffles among 4:

    partial[t] = own                  # t = 0 .. 63
    barrier
    if t < 8: partial[t] = ((own + partial[t + 32]) + (partial[t + 16] + partial[t + 48])) + ...
    barrier
    if t < 4: own = partial[t] + partial[t + 4]
    own = subgroup 4 add(own)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import AxisIndex, FixedIndex, affine, as_affine
from ocannl_core.ir.kernels.nest import Reduction
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.loop_nests import guarded
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.schedule.apply.block_axes import BlockAxes, Numbers
from ocannl_core.schedule.apply.thread_accumulator import ThreadAccumulator

_MOST_STEPS = 3
"""The steps of a tree between two barriers, at most."""


@dataclass(frozen=True, slots=True)
class PartialResults:
    """The partial results of the threads that share a result.

    Attributes:
        spare: A variable that is not in use.
        lanes: The neighbouring threads that exchange results by shuffles, at most; 1 for none.
    """

    axes: BlockAxes
    names: tuple[str, ...]
    numbers: Numbers
    reduction: Reduction
    accumulator: ThreadAccumulator
    spare: ir.Local
    lanes: int
    new_array: Callable[[str, tuple[int, ...], ir.Scope], TensorNode]

    @property
    def count(self) -> int:
        """The number of threads that share a result."""
        return self.axes.count(self.names)

    @property
    def neighbors(self) -> int:
        """The number of threads whose results meet in shuffles; 1 if there are none."""
        wide = [name for name in self.axes.block if self.axes.extent(name) > 1]
        are_innermost = tuple(wide[-len(self.names) :]) == self.names
        is_power = self.count & (self.count - 1) == 0
        return min(self.lanes, self.count) if are_innermost and is_power else 1

    @property
    def thread(self) -> AxisIndex:
        """The number of a thread among those that share its results."""
        return self.axes.joint_number(self.names, self.numbers)

    def combine(self) -> tuple[tuple[ir.Stmt, ...], Callable[[Numbers], ir.Expr]]:
        """Return the statements that combine the results of threads, and the final result, which
        the first thread has.
        """
        stmts: tuple[ir.Stmt, ...] = ()
        neighbors = self.neighbors
        value: Callable[[Numbers], ir.Expr] = self.accumulator.value
        if self.count > neighbors:
            node = self._array()
            stmts = self._fold(node, neighbors)
            if neighbors == 1:
                value = self._reader(node)
        if neighbors > 1:
            stmts = (*stmts, *self._shuffle(neighbors))
        return stmts, value

    def _array(self) -> TensorNode:
        rows = [
            name
            for name in self.axes.block
            if name not in self.names and self.axes.extent(name) > 1
        ]
        own = self.accumulator.cells
        dims = (*(self.axes.extent(name) for name in (*own, *rows)), self.count)
        return self.new_array("partial", dims, ir.Scope.GROUP)

    def _cell(self, node: TensorNode, inner: Numbers, number: AxisIndex) -> ir.Load:
        around = [
            self.numbers[name]
            for name in self.axes.block
            if name not in self.names and self.axes.extent(name) > 1
        ]
        own = (inner[name] for name in self.accumulator.cells)
        return ir.Load(node, (*own, *around, number), self.reduction.dtype)

    def _reader(self, node: TensorNode) -> Callable[[Numbers], ir.Expr]:
        return lambda inner: self._cell(node, inner, FixedIndex(0))

    def _loops(self, body: Callable[[Numbers], tuple[ir.Stmt, ...]]) -> tuple[ir.Stmt, ...]:
        """Return statements for each result of a thread."""
        return self.axes.loops(self.accumulator.cells, self.numbers, body, is_guarded=False)

    def _fold(self, node: TensorNode, neighbors: int) -> tuple[ir.Stmt, ...]:
        """Return the steps until so many results are left."""

        def put(inner: Numbers) -> tuple[ir.Stmt, ...]:
            here = self._cell(node, inner, self.thread)
            return (ir.Store(node, here.indices, self.accumulator.value(inner)),)

        count = self.count
        stmts: list[ir.Stmt] = [*self._loops(put), ir.Barrier()]
        while count > neighbors:
            merged = 2
            while (
                merged < 1 << _MOST_STEPS
                and count % (2 * merged) == 0
                and count // (2 * merged) >= neighbors
            ):
                merged *= 2
            left = -(-count // merged)
            is_last = left == neighbors

            def join(
                inner: Numbers, left: int = left, merged: int = merged, is_last: bool = is_last
            ) -> tuple[ir.Stmt, ...]:
                total = self._tree(node, inner, [at * left for at in range(merged)])
                if is_last and neighbors > 1:
                    return (self.accumulator.set(inner, total),)
                return (ir.Store(node, self._cell(node, inner, self.thread).indices, total),)

            # an odd number of results leaves the middle one as it is
            running = left if count % merged == 0 else count - left
            stmts += guarded(ir.LoopBound(self.thread, running), self._loops(join))
            # the first thread reads its own result
            if not is_last:
                stmts.append(ir.Barrier())
            count = left
        return tuple(stmts)

    def _tree(self, node: TensorNode, inner: Numbers, offsets: Sequence[int]) -> ir.Expr:
        """Return the results at some distances from a thread, combined in halves."""
        terms, start = as_affine(self.thread)
        values: list[ir.Expr] = [
            self._cell(node, inner, affine(terms, start + offset)) for offset in offsets
        ]
        while len(values) > 1:
            half = len(values) // 2
            values = [
                ir.Binary(self.reduction.op, values[at], values[at + half], self.reduction.dtype)
                for at in range(half)
            ]
        return values[0]

    def _shuffle(self, lanes: int) -> tuple[ir.Stmt, ...]:
        op: BinaryOp = self.reduction.op
        if self.accumulator.node is None:
            local = self.accumulator.local
            return (ir.SubgroupReduce(local, ir.LocalRead(local), op, lanes),)

        def exchange(inner: Numbers) -> tuple[ir.Stmt, ...]:
            own = self.accumulator.value(inner)
            reduced = ir.SubgroupReduce(self.spare, own, op, lanes)
            return (reduced, self.accumulator.set(inner, ir.LocalRead(self.spare)))

        return (ir.DeclareLocal(self.spare), *self._loops(exchange))
