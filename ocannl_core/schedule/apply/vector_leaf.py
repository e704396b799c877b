"""The part of an axis whose iterations a thread loads and stores at once."""

from __future__ import annotations

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir import indexing
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_accesses import Vectors, find_vectors
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.kernels.transforms import has_neighbors, root_of
from ocannl_core.ir.loops.loop_nests import guarded
from ocannl_core.ir.loops.nodes import Binary, Const, Expr, Load, LoopBound, Stmt, Unary
from ocannl_core.ir.loops.traverse import free_variables, walk
from ocannl_core.ir.numbers.primitives import UnaryOp
from ocannl_core.schedule.apply.axis_tree import AxisTree, Region
from ocannl_core.schedule.apply.nest_state import NestState
from ocannl_core.schedule.apply.packing import Body, LoopBuilder
from ocannl_core.schedule.apply.vector_accesses import NewArray, vector_iterations


@dataclass(frozen=True, slots=True)
class VectorLeaf:
    """A part of an axis whose iterations are vector accesses of a thread."""

    name: str
    """A leaf, or a part with serial leaves only."""
    vectors: Vectors
    nest: Nest
    nodes: NodeInfos

    @classmethod
    def of(cls, state: NestState, nodes: NodeInfos | None) -> VectorLeaf | None:
        """Return the leaf of a schedule for thread blocks; None if it has none."""
        if not state.is_on_blocks or not state.vectors or nodes is None:
            return None
        (name,), nest, tree = state.vectors, state.nest, state.tree
        axis = tree.axes[root_of(name)]
        vectors = Vectors((), is_complete=False)
        if axis.bound is None and not axis.is_shifting:
            vectors = find_vectors(nest, axis, tree.max_extent(name), nodes)
        return cls(name, vectors, nest, nodes)

    def loop(
        self, region: Region, body: Body, loops: LoopBuilder, new_array: NewArray
    ) -> tuple[Stmt, ...]:
        """Return the iterations of the leaf; at the end of an axis that is no multiple of them, the
        last ones have scalar accesses.
        """
        tree, root = region.tree, root_of(self.name)
        lanes, leaves = tree.max_extent(self.name), tree.leaves(self.name)
        own = [indexing.fresh_var(tree.hint(leaf)) for leaf in leaves]
        inner = region.at(dict(zip(leaves, map(indexing.VarIndex, own), strict=True)))
        if not inner.is_complete(root) or not self.vectors.cells:
            return loops(leaves, region, body)
        cells = self.vectors.at(inner.substitution())
        groups = [(var, tree.max_extent(leaf)) for leaf, var in zip(leaves, own, strict=True)][:-1]
        whole = vector_iterations(
            cells, own[-1], lanes, body(inner), self.nodes, new_array, groups=groups
        )
        if not tree.exceeds(root):
            return whole
        extent = tree.axes[root].extent
        full = extent - extent % lanes
        first = region.at(dict.fromkeys(leaves, indexing.FixedIndex(0))).position(root)
        # vectors begin at multiples of their length: those before `full` end there
        stmts = guarded(LoopBound(first, full - lanes + 1), whole)
        if full == extent:
            return stmts
        # the vector at `full` is not whole: full <= first, as a bound from above
        terms, offset = indexing.as_affine(first)
        negated = indexing.affine([(-step, var) for step, var in terms], full - 1 - offset)
        scalar = loops(leaves, region, body)
        return (*stmts, *guarded(LoopBound(negated, 0), scalar))

    def of_operand(self, tree: AxisTree, factor: Expr, name: str) -> Vectors | None:
        """Return the loads of a factor that are vectors along a part of an axis; None if some are
        not, or if the zeros beyond an axis cannot be those of a load.

        Args:
            name: The part of an axis that is contiguous in memory.
        """
        lanes = tree.max_extent(self.name)
        axis = tree.axes[root_of(name)]
        is_whole = tree.max_extent(name) % lanes == 0 and axis.extent % lanes == 0
        if not is_whole or not has_neighbors(name) or axis.bound is not None:
            return None
        loads = [each for each in walk(factor) if not isinstance(each, Binary | Unary | Const)]
        if not all(isinstance(each, Load) for each in loads):
            return None
        vectors = find_vectors(self.nest, axis, lanes, self.nodes)
        own = frozenset((each.node, each.indices) for each in loads if isinstance(each, Load))
        used = [cell for cell in vectors.cells if cell in own]
        along = [cell for cell in own if any(axis.var in indexing.variables(at) for at in cell[1])]
        if len(used) < len(along) or not used:
            return None
        is_padded = any(
            tree.exceeds(root) and each.var in free_variables(factor)
            for root, each in tree.axes.items()
        )
        is_load = isinstance(factor, Load) or (
            isinstance(factor, Unary)
            and factor.op is UnaryOp.IDENTITY
            and isinstance(factor.arg, Load)
        )
        if is_padded and not is_load:
            return None
        return Vectors(tuple(used), is_complete=True)
