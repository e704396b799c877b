"""The emission of loops for the leaves of a schedule, on processors and on thread blocks.

Loops are emitted from the outermost inwards, with the number of iterations of each part known at
every point. On processors, where a split has a remainder, the rest of the nest is emitted a second
time with the smaller number. So every loop has constant bounds and no iteration is guarded.

    split j 4, for j in range(6)   -->   for j0 in range(1): for j1 in range(4): ... 4 * j0 + j1
                                         for j1 in range(2): ... 4 + j1

On a device the grid's loops are outermost, then a block's. Blocks of a split are all equal; where
they exceed an axis, a guard leaves out the iterations beyond, inside of the loops of a block, so
that all of its threads come to every barrier.

    split j 4; grid j0; block j1, for j in range(6)   -->   for j0 in grid(2):
                                                              for j1 in block(4):
                                                                for once in range(1)
                                                                    while 4 * j0 + j1 + once < 6:
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir import indexing
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.kernels.transforms import root_of
from ocannl_core.ir.loops.loop_nests import guarded
from ocannl_core.ir.loops.nodes import Allocate, AxisKind, Block, For, LoopBound, Scope, Stmt
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.schedule.apply.axis_tree import Region
from ocannl_core.schedule.apply.loop_ends import loop_end
from ocannl_core.schedule.apply.nest_state import NestState
from ocannl_core.schedule.apply.packing import Body
from ocannl_core.schedule.apply.vector_leaf import VectorLeaf

Fill = Callable[[str | None, Region], tuple[Stmt, ...]]
"""Return the statements that fill the buffers of a loop in one of its iterations; of None, the
statements in front of all loops.
"""


@dataclass(slots=True)
class Emission:
    """The loops and the arrays of a nest under a schedule."""

    state: NestState
    vectors: VectorLeaf | None = None
    """The accesses of a vectorized part, on thread blocks; None if there are none."""
    operands: NodeInfos | None = None
    """Extents and formats of the operands; None if unknown."""
    fill: Fill = field(default=lambda inside, region: ())
    nodes: dict[TensorNode, NodeInfo] = field(default_factory=dict)
    """The arrays of the nest."""
    shared: list[TensorNode] = field(default_factory=list)
    """The arrays that the threads of a block share."""

    def new_array(
        self, name: str, dtype: DType, dims: tuple[int, ...], scope: Scope = Scope.KERNEL
    ) -> TensorNode:
        node = TensorNode(len(self.nodes), (name,))
        self.nodes[node] = NodeInfo(dtype, dims)
        if scope is Scope.GROUP:
            self.shared.append(node)
        return node

    def new_vector(self, name: str, dtype: DType, lanes: int) -> TensorNode:
        return self.new_array(name, dtype, (lanes,))

    def loops(
        self,
        names: Sequence[str],
        region: Region,
        body: Body,
        *,
        fills: bool = False,
        unrolls: bool = True,
        guards: bool = True,
    ) -> tuple[Stmt, ...]:
        """Return nested loops of a thread, one for each number of iterations inside of a leaf.

        Args:
            fills: True for the loops that compute, in which buffers are filled.
            unrolls: False for loops that are neither unrolled nor tiles in any schedule.
            guards: False if iterations of equal blocks beyond an axis run as well.
        """
        if not names:
            return body(region)
        name, rest = names[0], names[1:]
        kind = self.state.kinds[name] if unrolls else self._plain_kind(name)
        has_end = guards or not self.state.is_on_blocks
        emitted: list[Stmt] = []
        for run in region.ranges(name):
            var = indexing.fresh_var(self.state.tree.hint(name))
            index = indexing.VarIndex(var) if run.count > 1 else indexing.FixedIndex(0)
            inner = region.bind(name, run, index)
            filling = self.fill(name, inner) if fills else ()
            inside = self.loops(rest, inner, body, fills=fills, unrolls=unrolls, guards=guards)
            stmts = (*filling, *inside)
            bound = loop_end(name, kind, inner) if has_end else None
            if run.count > 1 and kind.is_whole:
                stmts, bound = guarded(bound, stmts), None
            if run.count > 1 and stmts:
                emitted.append(For(var, 0, run.count, Block(stmts), kind, bound=bound))
            elif bound is not None:
                emitted += guarded(bound, stmts)
            else:
                has_memory = any(isinstance(each, Allocate) for each in filling)
                emitted += (Block(stmts),) if has_memory else stmts
        return tuple(emitted)

    def _plain_kind(self, name: str) -> AxisKind:
        """Return the kind of a loop that is neither unrolled nor a tile."""
        kind, tile = self.state.kinds[name], self.state.tile
        if kind is AxisKind.TILE and tile is not None and name == tile.lanes:
            return AxisKind.VECTOR
        return AxisKind.SERIAL if kind in (AxisKind.UNROLLED, AxisKind.TILE) else kind

    def loops_over_cells(
        self, names: tuple[str, ...], region: Region, body: Body
    ) -> tuple[Stmt, ...]:
        """Return loops of which the innermost, if it is a vectorized part, is vector accesses."""
        vectors = self.vectors
        leaves = () if vectors is None else self.state.tree.leaves(vectors.name)
        is_inside = set(leaves) <= set(names) and names[-1:] == leaves[-1:]
        if vectors is None or not is_inside:
            return self.loops(names, region, body)

        def innermost(inner: Region) -> tuple[Stmt, ...]:
            return vectors.loop(inner, body, self.loops, self.new_vector)

        others = [name for name in names if name not in leaves]
        return self.loops(others, region, innermost)

    def on_device(self, body: Body) -> tuple[Stmt, ...]:
        """Return the statements of a thread in the loops of its block and of the grid."""
        state, tree = self.state, self.state.tree
        variables = {
            name: indexing.fresh_var(tree.hint(name)) for name in (*state.grid, *state.block)
        }
        numbers: dict[str, indexing.AxisIndex] = {
            name: indexing.VarIndex(var) if tree.max_extent(name) > 1 else indexing.FixedIndex(0)
            for name, var in variables.items()
        }
        stmts = body(tree.full_region.at(numbers))
        shared = [Allocate(node, Scope.GROUP) for node in self.shared]
        for names, kind in ((state.block, AxisKind.BLOCK), (state.grid, AxisKind.GRID)):
            wide = [name for name in names if tree.max_extent(name) != 1]
            for name in reversed(wide):
                bound = self._tile_bound(name, wide, variables) if kind is AxisKind.GRID else None
                extent = tree.max_extent(name)
                stmts = (For(variables[name], 0, extent, Block(stmts), kind, bound=bound),)
            if not wide:
                stmts = (For(indexing.fresh_var(kind.value), 0, 1, Block(stmts), kind),)
            stmts = (*shared, *stmts) if kind is AxisKind.BLOCK else stmts
        return stmts

    def _tile_bound(
        self, name: str, grid: Sequence[str], variables: dict[str, indexing.LoopVar]
    ) -> LoopBound | None:
        """Return the bound of a leaf of the grid that leaves out blocks whose tiles are beyond the
        end of an axis; None if there are none, or if another leaf has it.
        """
        root, tree = root_of(name), self.state.tree
        own = [each for each in grid if root_of(each) == root]
        if own[-1] != name or not tree.exceeds(root):
            return None
        first = tree.full_region.at(dict.fromkeys(tree.leaves(root), indexing.FixedIndex(0)))
        last = first.at({leaf: indexing.FixedIndex(tree.max_extent(leaf) - 1) for leaf in own})
        _, reach = indexing.as_affine(last.position(root))
        extent = tree.axes[root].extent
        if reach < extent:
            return None
        here = first.at({leaf: indexing.VarIndex(variables[leaf]) for leaf in own})
        return LoopBound(here.position(root), extent)
