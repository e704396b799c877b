"""Trees of fixed order over the partial results of the threads of a block.

Each step halves the number of results: thread `t` adds the result of thread `t + half` to its
own. So the bits depend on the number of threads alone. Several steps have one barrier, as a thread
loads all results that meet in its own; the last ones, among neighbors, are shuffles where the
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
from ocannl_core.base.rounding import ceil_div
from ocannl_core.ir.indexing import AxisIndex, FixedIndex, affine, as_affine
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.loop_nests import guarded
from ocannl_core.ir.node import TensorNode
from ocannl_core.schedule.apply.accumulators import Accumulators
from ocannl_core.schedule.apply.axis_tree import Region
from ocannl_core.schedule.apply.emission import Emission
from ocannl_core.schedule.apply.packing import Body

_MOST_STEPS = 3
"""The steps of a tree between two barriers, at most."""


@dataclass(frozen=True, slots=True)
class PartialResults:
    """The partial results of the threads that share a result."""

    emission: Emission
    accumulators: Accumulators
    """The results of one thread."""

    @property
    def region(self) -> Region:
        """The point of the thread."""
        return self.accumulators.region

    @property
    def names(self) -> tuple[str, ...]:
        """The leaves of the block along which threads share a result."""
        return self.emission.state.reduced_threads

    @property
    def others(self) -> tuple[str, ...]:
        """The other leaves of the block."""
        tree, names = self.region.tree, self.names
        block = self.emission.state.block
        return tuple(name for name in block if name not in names and tree.max_extent(name) > 1)

    @property
    def count(self) -> int:
        """The number of threads that share a result."""
        return self.region.tree.count(self.names)

    @property
    def neighbors(self) -> int:
        """The number of threads whose results meet in shuffles; 1 if there are none."""
        state, tree = self.emission.state, self.region.tree
        wide = [name for name in state.block if tree.max_extent(name) > 1]
        are_innermost = tuple(wide[-len(self.names) :]) == self.names
        is_power = self.count & (self.count - 1) == 0
        return min(state.lanes, self.count) if are_innermost and is_power else 1

    @property
    def thread(self) -> AxisIndex:
        """The number of a thread among those that share its results."""
        return self.region.joint_number(self.names)

    def combine(self) -> tuple[tuple[ir.Stmt, ...], Callable[[Region], ir.Expr]]:
        """Return the statements that combine threads' results, and the first thread's total."""
        stmts: tuple[ir.Stmt, ...] = ()
        neighbors = self.neighbors
        value: Callable[[Region], ir.Expr] = self.accumulators.value
        if self.count > neighbors:
            node = self._array()
            stmts = self._fold(node, neighbors)
            if neighbors == 1:
                value = self._reader(node)
        if neighbors > 1:
            stmts = (*stmts, *self._shuffle(neighbors))
        return stmts, value

    def _array(self) -> TensorNode:
        own = self.accumulators.axes
        dims = (*map(self.region.tree.max_extent, (*own, *self.others)), self.count)
        return self.emission.new_array("partial", self.accumulators.dtype, dims, ir.Scope.GROUP)

    def _cell(self, node: TensorNode, inner: Region, number: AxisIndex) -> ir.Load:
        axes = (*self.accumulators.axes, *self.others)
        own = (inner.numbers[name] for name in axes)
        return ir.Load(node, (*own, number), self.accumulators.dtype)

    def _reader(self, node: TensorNode) -> Callable[[Region], ir.Expr]:
        return lambda inner: self._cell(node, inner, FixedIndex(0))

    def _loops(self, body: Body) -> tuple[ir.Stmt, ...]:
        """Return statements for each result of a thread."""
        return self.emission.loops(self.accumulators.axes, self.region, body, guards=False)

    def _fold(self, node: TensorNode, neighbors: int) -> tuple[ir.Stmt, ...]:
        """Return the steps until so many results are left."""

        def put(inner: Region) -> tuple[ir.Stmt, ...]:
            here = self._cell(node, inner, self.thread)
            return (ir.Store(node, here.indices, self.accumulators.value(inner)),)

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
            left = ceil_div(count, merged)
            is_last = left == neighbors

            def join(
                inner: Region, left: int = left, merged: int = merged, is_last: bool = is_last
            ) -> tuple[ir.Stmt, ...]:
                total = self._tree(node, inner, [at * left for at in range(merged)])
                if is_last and neighbors > 1:
                    return (self.accumulators.store(inner, total),)
                return (ir.Store(node, self._cell(node, inner, self.thread).indices, total),)

            # an odd number of results leaves the middle one as it is
            running = left if count % merged == 0 else count - left
            stmts += guarded(ir.LoopBound(self.thread, running), self._loops(join))
            # the first thread reads its own result
            if not is_last:
                stmts.append(ir.Barrier())
            count = left
        return tuple(stmts)

    def _tree(self, node: TensorNode, inner: Region, offsets: Sequence[int]) -> ir.Expr:
        """Return the results at some distances from a thread, combined in halves."""
        terms, start = as_affine(self.thread)
        values: list[ir.Expr] = [
            self._cell(node, inner, affine(terms, start + offset)) for offset in offsets
        ]
        op, dtype = self.accumulators.reduction.op, self.accumulators.dtype
        while len(values) > 1:
            half = len(values) // 2
            values = [ir.Binary(op, values[at], values[at + half], dtype) for at in range(half)]
        return values[0]

    def _shuffle(self, lanes: int) -> tuple[ir.Stmt, ...]:
        registers, op = self.accumulators, self.accumulators.reduction.op
        spare = registers.local
        if not registers.axes:
            return (ir.SubgroupReduce(spare, ir.LocalRead(spare), op, lanes),)

        def exchange(inner: Region) -> tuple[ir.Stmt, ...]:
            reduced = ir.SubgroupReduce(spare, registers.value(inner), op, lanes)
            return (reduced, registers.store(inner, ir.LocalRead(spare)))

        return (ir.DeclareLocal(spare), *self._loops(exchange))
