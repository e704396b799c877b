"""The schedule of nests without a reduction: the axis that is vectorized.

C compilers vectorize plain loops, too, but take several times as long as for vector code; and they
neither compute elementary functions nor convert narrow floats, nor store past the caches in the way
that suits a whole register. Rows shorter than a register are left to them, unless they have such
operations. So are rows whose cells are not contiguous: for elementary functions alone, vectors are
put together from single cells, at a stride or at computed positions.

    for i, j: y[i, j] = exp(x[i, j])   -->   split j 16; vectorize j1

Where rows of operands become columns, squares of vectors are transposed in registers; tiles of
squares keep the pages and lines of both sides near.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ocannl_core.ir.kernels.nest import LoopAxis, Nest
from ocannl_core.ir.kernels.nest_accesses import strides, turned_loads
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.kernels.transforms import Order, Schedule, SetKind, Splits, set_kinds
from ocannl_core.ir.loops.axis_kinds import AxisKind
from ocannl_core.ir.loops.nodes import Binary, Gather, Load, Store, Unary
from ocannl_core.ir.loops.traverse import Node, children, free_variables, walk
from ocannl_core.ir.numbers.dtypes import float32, float64
from ocannl_core.ir.numbers.primitives import HASHES, UnaryOp
from ocannl_core.ir.target import Target
from ocannl_core.schedule.machine_model import TILE_SQUARES
from ocannl_core.schedule.rules.vectorizable import (
    is_simple_power,
    is_vectorizable,
    truncates_lanes,
    widest_lane_bytes,
)


def pointwise_schedule(nest: Nest, nodes: NodeInfos, target: Target) -> Schedule | None:
    """Return the schedule of a nest without a reduction, or None if plain loops are as fast."""
    if nest.reduction is not None or not is_vectorizable(nest, nodes):
        return None
    lanes = target.vector_bytes // widest_lane_bytes(nest, nodes)
    if lanes < 2:
        return None
    vector_axis = _find_vector_axis(nest, nodes)
    if vector_axis is None:
        transposition = _transposition(nest, nodes, lanes)
        if transposition is not None or not _calls_functions(nest):
            return transposition
        vector_axis = _find_stored_axis(nest, nodes)
        if vector_axis is None:
            return None
    if vector_axis.extent < lanes and not _needs_vector_code(nest, nodes):
        return None  # compilers put several short rows into one vector
    others = [axis.name for axis in nest.axes if axis.name != vector_axis.name]
    if vector_axis.extent <= lanes:
        return (Order((*others, vector_axis.name)), SetKind(AxisKind.VECTOR, (vector_axis.name,)))
    splits = Splits()
    blocks, vector = splits.cut(vector_axis.name, lanes)
    return (*splits, Order((*others, blocks, vector)), SetKind(AxisKind.VECTOR, (vector,)))


def _transposition(nest: Nest, nodes: NodeInfos, lanes: int) -> Schedule | None:
    """Return the schedule that transposes rows to columns in square tiles, or None."""
    wide = [axis for axis in nest.axes if axis.extent >= lanes and axis.bound is None]
    for column in reversed(wide):
        for row in wide:
            if _is_square(nest, nodes, row, column):
                return _tiles_of_squares(nest, (row, column), lanes)
    return None


def _is_square(nest: Nest, nodes: NodeInfos, row: LoopAxis, column: LoopAxis) -> bool:
    """Return True if stores run along columns, and loads along columns or, some, along rows."""
    turned = turned_loads(nest, row.var, column.var)
    if not turned or any(load.dtype.in_lanes is not load.dtype for load in turned):
        return False
    read = [each for store in nest.epilogue for each in walk(store) if isinstance(each, Load)]
    rest = [each for each in read if each not in turned]
    steps = [strides(nest.axes, (each,), nodes)[column.name] for each in rest]
    stored = {strides(nest.axes, (each,), nodes)[column.name] for each in nest.epilogue}
    return stored == {1} and set(steps) <= {0, 1}


def _tiles_of_squares(nest: Nest, square: Sequence[LoopAxis], lanes: int) -> Schedule:
    splits = Splits()
    loops: list[list[str]] = [[], [], []]
    for axis in square:
        name = axis.name
        for level, size in enumerate((TILE_SQUARES * lanes, lanes)):
            if axis.extent > size:
                blocks, name = splits.cut(name, size)
                loops[level].append(blocks)
        loops[2].append(name)
    others = [axis.name for axis in nest.axes if axis not in square]
    inside = loops[2]
    order = Order((*others, *loops[0], *loops[1], *inside))
    return (*splits, order, *set_kinds(AxisKind.VECTOR, inside))


def _needs_vector_code(nest: Nest, nodes: NodeInfos) -> bool:
    """Return True if a nest has operations that C compilers do not vectorize."""
    return (
        any(nodes[node].dtype.is_narrow for node in nest.mentioned)
        or any(store.is_streamed for store in nest.epilogue)
        or _calls_functions(nest)
    )


def _calls_functions(nest: Nest) -> bool:
    """Return True if a nest has operations of which C compilers find no vector code."""
    return any(_is_beyond_compilers(each) for store in nest.epilogue for each in walk(store))


def _is_beyond_compilers(node: Node) -> bool:
    """Return True for an operation of which C compilers find no vector code."""
    match node:
        case Binary(op) if op in HASHES:
            return True  # too many operations to find the lanes of
        case Unary(UnaryOp.IDENTITY, arg, dtype):
            return truncates_lanes(arg.dtype, dtype)
        case Unary(op, dtype=dtype) | Binary(op, dtype=dtype):
            is_wide = dtype in (float32, float64)
            return op.value.has_vector_code and is_wide and not is_simple_power(node)
        case _:
            return False


def _find_vector_axis(nest: Nest, nodes: NodeInfos) -> LoopAxis | None:
    """Return the axis with contiguous stores, and contiguous or broadcast loads."""
    loads = [each for store in nest.epilogue for each in _reads(store)]
    for axis in reversed(_wide_axes(nest)):
        if any(isinstance(e, Gather) and axis.var in free_variables(e.position) for e in loads):
            continue
        stored, read = _steps(axis, nest.epilogue, nodes), _steps(axis, loads, nodes)
        if set(stored) == {1} and set(read) <= {0, 1}:
            return axis
    return None


def _find_stored_axis(nest: Nest, nodes: NodeInfos) -> LoopAxis | None:
    """Return the axis with the nearest stores: vectors are put together from single cells."""

    def distance(axis: LoopAxis) -> int:
        return max(_steps(axis, nest.epilogue, nodes))

    axes = [axis for axis in _wide_axes(nest) if 0 not in _steps(axis, nest.epilogue, nodes)]
    return min(reversed(axes), key=distance, default=None)


def _wide_axes(nest: Nest) -> Sequence[LoopAxis]:
    return [axis for axis in nest.axes if axis.extent > 1] or nest.axes


def _steps(
    axis: LoopAxis, accesses: Iterable[Load | Gather | Store], nodes: NodeInfos
) -> list[int]:
    return [strides([axis], (each,), nodes)[axis.name] for each in accesses]


def _reads(store: Store) -> Iterator[Load | Gather]:
    """Yield the reads of lanes, without those of computed positions."""
    pending: list[Node] = [store.value]
    while pending:
        match pending.pop():
            case Load() as load:
                yield load
            case Gather() as gather:
                yield gather
            case other:
                pending += children(other)
