"""Vector loads and stores of a thread: several neighboring cells are one access of memory.

    for l in range(4):                          for l in range(4):  # vector
      b[4 * t + l] = a[4 * t + l] * s    -->      loaded[l] = a[4 * t + l]
                                                for l in range(4):  # unrolled
                                                  stored[l] = loaded[l] * s
                                                for l in range(4):  # vector
                                                  b[4 * t + l] = stored[l]

The arrays of a thread are registers. Such accesses are proven to begin at a multiple of their
length: the cell of the first iteration is at a multiple of the number of iterations, for all values
of the other variables, and memory begins at a multiple of every length. Loads that the program may
leave out, in a branch that is not chosen, are proven to be in bounds as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from types import MappingProxyType

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir import indexing
from ocannl_core.ir.kernels.nest import KernelNest, LoopAxis
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.ranges import Range, is_in_bounds
from ocannl_core.ir.loops.traverse import rewrite, unconditional_subexpressions, walk
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import DType

Place = tuple[TensorNode, tuple[indexing.AxisIndex, ...]]
"""A node and the indices of a cell."""
Guard = Callable[[tuple[ir.Stmt, ...]], tuple[ir.Stmt, ...]]
Ranges = Mapping[indexing.IndexVar, Range]
NewArray = Callable[[str, DType, int], TensorNode]
"""Makes an array of a thread from a name, a format and the number of cells."""


@dataclass(frozen=True, slots=True)
class Vectors:
    """The accesses of a nest that are vectors along an axis."""

    places: tuple[Place, ...]
    is_complete: bool
    """True if no other access depends on the axis."""

    def at(self, values: Mapping[indexing.IndexVar, indexing.AxisIndex]) -> tuple[Place, ...]:
        """Return the cells at values of the variables of the nest."""
        return tuple(
            (node, tuple(indexing.substitute(index, values) for index in indices))
            for node, indices in self.places
        )


def find_vectors(
    nest: KernelNest,
    axis: LoopAxis,
    lanes: int,
    nodes: NodeInfos,
    around: Ranges = MappingProxyType({}),
) -> Vectors:
    """Return the accesses of a nest that so many iterations of an axis can do at once.

    Args:
        axis: The axis; blocks of its iterations begin at multiples of `lanes`.
        around: The values of the variables of loops around the nest.
    """
    ranges = {**around, **_ranges(nest)}
    bound_inside = frozenset(
        each.var for root in nest.roots for each in walk(root) if isinstance(each, ir.For)
    )
    certain = _certain_loads(nest)
    found: dict[Place, None] = {}
    others = False
    for root in nest.roots:
        for each in walk(root):
            match each:
                case ir.Load(node, indices) | ir.Store(node, indices) if _depends(
                    indices, axis.var
                ):
                    place = node, indices
                    is_done = isinstance(each, ir.Store) or place in certain
                    if (is_done or _is_inside(place, nodes, ranges)) and is_vector(
                        indices, nodes[node], axis.var, lanes, axis.start, bound_inside
                    ):
                        found[place] = None
                    else:
                        others = True
                case ir.Gather() | ir.LoadMerge() if _depends(each.indices, axis.var):
                    others = True
    clashing = _written_elsewhere(nest)
    places = tuple(place for place in found if place[0] not in clashing)
    return Vectors(places, not others and len(places) == len(found))


def _ranges(nest: KernelNest) -> dict[indexing.IndexVar, Range]:
    """Return the values of the axes and static indices of a nest."""
    found: dict[indexing.IndexVar, Range] = {
        axis.var: Range(axis.start, axis.start + axis.extent - 1) for axis in nest.axes
    }
    for access in nest.accesses:
        for index in access.indices or ():
            for var in indexing.variables(index):
                if isinstance(var, indexing.StaticIndex):
                    # an unknown extent: no access that depends on it is certain to be in bounds
                    found.setdefault(var, Range(0, (var.extent or 1 << 62) - 1))
    return found


def _certain_loads(nest: KernelNest) -> frozenset[Place]:
    """Return the cells that every iteration loads: they are in bounds, as the program is."""
    values = [root.value if isinstance(root, ir.Store) else root for root in nest.roots]
    return frozenset(
        (each.node, each.indices)
        for value in values
        for each in unconditional_subexpressions(value)
        if isinstance(each, ir.Load)
    )


def _written_elsewhere(nest: KernelNest) -> frozenset[TensorNode]:
    """Return the nodes that are written, and accessed at other cells as well."""
    places: dict[TensorNode, set[object]] = {}
    for access in nest.accesses:
        places.setdefault(access.node, set()).add((access.indices, access.merge))
    written = {access.node for access in nest.accesses if access.writes}
    return frozenset(node for node in written if len(places[node]) > 1)


def _depends(indices: tuple[indexing.AxisIndex, ...], var: indexing.LoopVar) -> bool:
    return any(var in indexing.variables(index) for index in indices)


def _is_inside(place: Place, nodes: NodeInfos, ranges: Ranges) -> bool:
    node, indices = place
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


def vector_iterations(
    places: Iterable[Place],
    lane: indexing.LoopVar,
    lanes: int,
    stmts: tuple[ir.Stmt, ...],
    nodes: NodeInfos,
    new_array: NewArray,
    guard: Guard | None = None,
    groups: Sequence[tuple[indexing.LoopVar, int]] = (),
) -> tuple[ir.Stmt, ...]:
    """Return the iterations of a loop over a vector, with the accesses that are vectors around it.

    Args:
        lanes: The number of iterations, of all loops together.
        guard: Leaves out the loads where they are out of bounds; the vectors are zero there.
        groups: The variables and iterations of loops around, outermost first, if several loops run
            over the vector.
    """
    known = frozenset(places)
    loaded: dict[Place, None] = {}
    stored: dict[Place, None] = {}
    for stmt in stmts:
        for each in walk(stmt):
            if isinstance(each, ir.Load | ir.Store) and (each.node, each.indices) in known:
                (loaded if isinstance(each, ir.Load) else stored)[each.node, each.indices] = None
    arrays = {
        place: new_array("vector", nodes[place[0]].dtype, lanes)
        for place in dict.fromkeys((*loaded, *stored))
    }
    inner = lanes // prod(count for _, count in groups)
    steps = [prod(count for _, count in groups[at + 1 :]) * inner for at in range(len(groups))]
    around = [(step, var) for step, (var, _) in zip(steps, groups, strict=True)]
    own = (indexing.affine([*around, (1, lane)]),)
    firsts: dict[indexing.IndexVar, indexing.AxisIndex] = {
        var: indexing.FixedIndex(0) for var, _ in groups
    }

    def on_expr(expr: ir.Expr) -> ir.Expr:
        if isinstance(expr, ir.Load) and (expr.node, expr.indices) in arrays:
            return ir.Load(arrays[expr.node, expr.indices], own, expr.dtype)
        return expr

    def on_stmt(stmt: ir.Stmt) -> ir.Stmt:
        if isinstance(stmt, ir.Store) and (stmt.node, stmt.indices) in arrays:
            return ir.Store(arrays[stmt.node, stmt.indices], own, stmt.value)
        return stmt

    def copy(place: Place, *, is_load: bool) -> ir.For:
        var = indexing.fresh_var(lane.hint)
        values = {**firsts, lane: indexing.VarIndex(var)}
        there = tuple(indexing.substitute(index, values) for index in place[1])
        array, here, dtype = arrays[place], (indexing.VarIndex(var),), nodes[place[0]].dtype
        stmt = (
            ir.Store(array, here, ir.Load(place[0], there, dtype))
            if is_load
            else ir.Store(place[0], there, ir.Load(array, here, dtype))
        )
        return ir.For(var, 0, lanes, ir.Block((stmt,)), ir.AxisKind.VECTOR)

    def clear(place: Place) -> ir.For:
        var, dtype = indexing.fresh_var(lane.hint), nodes[place[0]].dtype
        stmt = ir.Store(arrays[place], (indexing.VarIndex(var),), ir.Const(0.0, dtype))
        return ir.For(var, 0, lanes, ir.Block((stmt,)), ir.AxisKind.UNROLLED)

    loads: tuple[ir.Stmt, ...] = tuple(copy(place, is_load=True) for place in loaded)
    if guard is not None:
        loads = (*(clear(place) for place in loaded), *guard(loads))
    inside = tuple(
        changed
        for stmt in stmts
        for changed in rewrite(stmt, on_stmt=on_stmt, on_expr=on_expr).stmts
    )
    for var, count in ((lane, inner), *reversed(groups)):
        inside = (ir.For(var, 0, count, ir.Block(inside), ir.AxisKind.UNROLLED),)
    return (
        *(ir.Allocate(array, ir.Scope.THREAD) for array in arrays.values()),
        *loads,
        *inside,
        *(copy(place, is_load=False) for place in stored),
    )
