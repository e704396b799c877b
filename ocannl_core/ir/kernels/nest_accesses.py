"""Analyses of the accesses of a nest: distances in memory, loads of cells, and vectors.

A thread accesses several neighboring cells at once where the first one is proven to be at a
multiple of their number: memory begins at a multiple of every length of a vector. Loads that the
program may leave out, in a branch that is not chosen, are proven to be in bounds as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir import indexing
from ocannl_core.ir.kernels.nest import LoopAxis, Nest
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.ranges import Range, is_in_bounds, static_ranges
from ocannl_core.ir.loops.traverse import free_variables, unconditional_subexpressions, walk
from ocannl_core.ir.node import NodeInfo, TensorNode

Cell = tuple[TensorNode, tuple[indexing.AxisIndex, ...]]
"""A node and the indices of a cell."""
Ranges = Mapping[indexing.IndexVar, Range]


def strides(
    axes: Iterable[LoopAxis], accesses: Iterable[ir.Load | ir.Gather | ir.Store], nodes: NodeInfos
) -> dict[str, int]:
    """Return the largest distance in memory between neighboring iterations, per axis.

    A descending axis has a stride of 2 at least: vectors are loaded upwards.
    """
    found: dict[str, int] = {}
    for access in accesses:
        terms, _ = indexing.as_affine(
            indexing.row_major(access.indices, nodes[access.node].buffer_dims)
        )
        steps = {
            var: max(-coefficient, 2) if coefficient < 0 else coefficient
            for coefficient, var in terms
        }
        for axis in axes:
            found[axis.name] = max(found.get(axis.name, 0), steps.get(axis.var, 0))
    return found


def loads_of_cells(nest: Nest) -> tuple[ir.Load, ...]:
    """Return the loads of a nest without a reduction, each once, which a schedule may pack."""
    return tuple(dict.fromkeys(load for store in nest.epilogue for load in _loads(store.value)))


def turned_loads(nest: Nest, row: indexing.LoopVar, lane: indexing.LoopVar) -> tuple[ir.Load, ...]:
    """Return the loads whose neighboring cells in memory are those along one axis, and that run
    across memory along another one.

    Args:
        nest: A nest without a reduction.
    """
    found: dict[ir.Load, None] = {}
    for store in nest.epilogue:
        for each in walk(store.value):
            if isinstance(each, ir.Load) and each.indices:
                *outer, last = each.indices
                terms, _ = indexing.as_affine(last)
                across = any(lane in indexing.variables(index) for index in outer)
                if (1, row) in terms and across and lane not in indexing.variables(last):
                    found[each] = None
    return tuple(found)


def epilogue_loads(nest: Nest) -> tuple[ir.Load, ...]:
    """Return the accesses of an epilogue whose addresses differ between the results of a nest."""
    roots = (nest.required_reduction.initial, *(store.value for store in nest.epilogue))
    loads = [each for root in roots for each in walk(root) if isinstance(each, ir.Load)]
    loads += [
        ir.Load(store.node, store.indices, store.value.dtype)
        for store in nest.epilogue
        if not store.is_streamed
    ]
    own = {axis.var for axis in nest.output_axes if axis.extent > 1}
    found: dict[tuple[TensorNode, tuple[indexing.AxisIndex, ...]], ir.Load] = {}
    for load in loads:
        is_affine = not any(
            isinstance(index, indexing.ConcatIndex | indexing.ComputedIndex)
            for index in load.indices
        )
        if load.indices and is_affine and own <= {*free_variables(load)}:
            found[load.node, load.indices] = load
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class Vectors:
    """The accesses of a nest that are vectors along an axis."""

    cells: tuple[Cell, ...]
    is_complete: bool
    """True if no other access depends on the axis."""

    def at(self, values: Mapping[indexing.IndexVar, indexing.AxisIndex]) -> tuple[Cell, ...]:
        """Return the cells at values of the variables of the nest."""
        return tuple(
            (node, tuple(indexing.substitute(index, values) for index in indices))
            for node, indices in self.cells
        )


def find_vectors(nest: Nest, axis: LoopAxis, lanes: int, nodes: NodeInfos) -> Vectors:
    """Return the accesses of a nest that so many iterations of an axis can do at once.

    Args:
        axis: The axis; blocks of its iterations begin at multiples of `lanes`.
    """
    used = (var for _, variables in nest.reached for var in variables)
    statics = static_ranges(var for var in used if isinstance(var, indexing.StaticIndex))
    ranges = statics | nest.ranges
    bound_inside = frozenset(
        each.var for root in nest.roots for each in walk(root) if isinstance(each, ir.For)
    )
    certain = _certain_loads(nest)
    found: dict[Cell, None] = {}
    others = False
    for root in nest.roots:
        for each in walk(root):
            match each:
                case ir.Load(node, indices) | ir.Store(node, indices) if _depends(
                    indices, axis.var
                ):
                    cell = node, indices
                    is_done = isinstance(each, ir.Store) or cell in certain
                    if (is_done or _is_inside(cell, nodes, ranges)) and is_vector(
                        indices, nodes[node], axis.var, lanes, axis.start, bound_inside
                    ):
                        found[cell] = None
                    else:
                        others = True
                case ir.Gather() | ir.LoadMerge() if _depends(each.indices, axis.var):
                    others = True
    clashing = _written_elsewhere(nest)
    cells = tuple(cell for cell in found if cell[0] not in clashing)
    return Vectors(cells, not others and len(cells) == len(found))


def _certain_loads(nest: Nest) -> frozenset[Cell]:
    """Return the cells that every iteration loads: they are in bounds, as the program is."""
    values = [root.value if isinstance(root, ir.Store) else root for root in nest.roots]
    return frozenset(
        (each.node, each.indices)
        for value in values
        for each in unconditional_subexpressions(value)
        if isinstance(each, ir.Load)
    )


def _written_elsewhere(nest: Nest) -> frozenset[TensorNode]:
    """Return the nodes that are written, and accessed at other cells as well."""
    found: dict[TensorNode, set[object]] = {}
    for access in nest.accesses:
        found.setdefault(access.node, set()).add((access.indices, access.merge))
    written = {access.node for access in nest.accesses if access.writes}
    return frozenset(node for node in written if len(found[node]) > 1)


def _depends(indices: tuple[indexing.AxisIndex, ...], var: indexing.LoopVar) -> bool:
    return any(var in indexing.variables(index) for index in indices)


def _is_inside(cell: Cell, nodes: NodeInfos, ranges: Ranges) -> bool:
    node, indices = cell
    return is_in_bounds(indices, nodes[node].buffer_dims, ranges)


def is_vector(
    indices: tuple[indexing.AxisIndex, ...],
    info: NodeInfo,
    var: indexing.LoopVar,
    lanes: int,
    first: int = 0,
    bound_inside: frozenset[indexing.LoopVar] = frozenset(),
) -> bool:
    """Return True if a variable runs over neighboring cells, from a multiple of `lanes` on.

    Args:
        first: The least value of the variable, less a multiple of `lanes`.
        bound_inside: Variables of loops inside of the access.
    """
    terms, offset = indexing.as_affine(indexing.row_major(indices, info.buffer_dims))
    steps = {each: step for step, each in terms}
    own = steps.pop(var, 0)
    return (
        own == 1
        and not info.dtype.is_packed
        and (offset + first) % lanes == 0
        and all(step % lanes == 0 and var not in bound_inside for var, step in steps.items())
    )


def _loads(expr: ir.Expr) -> list[ir.Load]:
    return [each for each in walk(expr) if isinstance(each, ir.Load)]
