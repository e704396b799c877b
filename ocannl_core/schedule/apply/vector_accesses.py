"""Vector loads and stores of a thread: several neighboring cells are one access of memory.

    for l in range(4):                          for l in range(4):  # vector
      b[4 * t + l] = a[4 * t + l] * s    -->      loaded[l] = a[4 * t + l]
                                                for l in range(4):  # unrolled
                                                  stored[l] = loaded[l] * s
                                                for l in range(4):  # vector
                                                  b[4 * t + l] = stored[l]

The arrays of a thread are registers. `ir.kernels.nest_accesses` proves that accesses are vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod

from ocannl_core.ir import indexing
from ocannl_core.ir.kernels.nest_accesses import Cell
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.traverse import rewrite, walk
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType

Guard = Callable[[tuple[ir.Stmt, ...]], tuple[ir.Stmt, ...]]
NewArray = Callable[[str, DType, int], TensorNode]
"""Makes an array of a thread from a name, a format and the number of cells."""


def vector_iterations(
    cells: Iterable[Cell],
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
    known = frozenset(cells)
    loaded: dict[Cell, None] = {}
    stored: dict[Cell, None] = {}
    for stmt in stmts:
        for each in walk(stmt):
            if isinstance(each, ir.Load | ir.Store) and (each.node, each.indices) in known:
                (loaded if isinstance(each, ir.Load) else stored)[each.node, each.indices] = None
    arrays = {
        cell: new_array("vector", nodes[cell[0]].dtype, lanes)
        for cell in dict.fromkeys((*loaded, *stored))
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

    def copy(cell: Cell, *, is_load: bool) -> ir.For:
        var = indexing.fresh_var(lane.hint)
        values = {**firsts, lane: indexing.VarIndex(var)}
        there = tuple(indexing.substitute(index, values) for index in cell[1])
        array, here, dtype = arrays[cell], (indexing.VarIndex(var),), nodes[cell[0]].dtype
        stmt = (
            ir.Store(array, here, ir.Load(cell[0], there, dtype))
            if is_load
            else ir.Store(cell[0], there, ir.Load(array, here, dtype))
        )
        return ir.For(var, 0, lanes, ir.Block((stmt,)), ir.AxisKind.VECTOR)

    def clear(cell: Cell) -> ir.For:
        var, dtype = indexing.fresh_var(lane.hint), nodes[cell[0]].dtype
        stmt = ir.Store(arrays[cell], (indexing.VarIndex(var),), ir.Const(0.0, dtype))
        return ir.For(var, 0, lanes, ir.Block((stmt,)), ir.AxisKind.UNROLLED)

    loads: tuple[ir.Stmt, ...] = tuple(copy(cell, is_load=True) for cell in loaded)
    if guard is not None:
        loads = (*(clear(cell) for cell in loaded), *guard(loads))
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
        *(copy(cell, is_load=False) for cell in stored),
    )
