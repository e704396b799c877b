"""Loads and stores at computed positions on the axes of nodes with margins, and their checks,
with the errors of those that fail.

table[ids[i], j]  -->  check ids in range(20000) for axis 0 of table
                       gather(table[ids[i], j], nan)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import nan
from typing import Any, NoReturn

import numpy as np

from ocannl_core.base.errors import LinkError, UsageError
from ocannl_core.ir.indexing import AxisIndex, FixedIndex, IndexMap, StaticExtent
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.conversions import constant
from ocannl_core.ir.loops.traverse import writes
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import DType, extremes, int64
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp


def value_beyond(dtype: DType) -> float:
    """Return a read beyond an axis: NaN, or the integer of the greatest magnitude."""
    if dtype.is_float:
        return nan
    least, greatest = extremes(dtype)
    beyond: int = least or greatest
    return beyond


def gather_cell(
    node: TensorNode, info: NodeInfo, indices: IndexMap, axis: int, position: ir.Expr
) -> ir.Expr:
    """Return the load of a cell at a computed position of a node's own cells.

    Args:
        info: Its extents, format and margins.
        indices: The indices in the buffer, with position 0 in the place of the computed one.
        axis: That place.
        position: The position, not counting margins.
    """
    beyond = value_beyond(info.dtype)
    indices = with_index(indices, axis)
    if not info.padding:
        return ir.Gather(node, indices, axis, position, info.dtype, beyond)
    shifted = _in_buffer(position, info.padding[axis].left)
    load = ir.Gather(node, indices, axis, shifted, info.dtype, beyond)
    is_inside = _is_inside(position, info.dims[axis])
    return ir.Ternary(TernaryOp.WHERE, is_inside, load, constant(beyond, info.dtype), info.dtype)


def scatter_cell(
    node: TensorNode, info: NodeInfo, indices: IndexMap, axis: int, position: ir.Expr
) -> ir.Scatter:
    """Return a store of the cell's own value at a computed position; arguments as `gather_cell`."""
    indices = with_index(indices, axis)
    if info.padding:
        shifted = _in_buffer(position, info.padding[axis].left)
        nowhere = ir.Const(-1, int64)
        is_inside = _is_inside(position, info.dims[axis])
        position = ir.Ternary(TernaryOp.WHERE, is_inside, shifted, nowhere, int64)
    own = ir.Gather(node, indices, axis, position, info.dtype)
    return ir.Scatter(node, indices, axis, position, own)


_FREE_PLACE = FixedIndex(0)


def with_index(indices: IndexMap, axis: int, index: AxisIndex = _FREE_PLACE) -> IndexMap:
    """Return an index map with another index along an axis; position 0 for a computed one."""
    return (*indices[:axis], index, *indices[axis + 1 :])


def _in_buffer(position: ir.Expr, left: int) -> ir.Expr:
    wide = position if position.dtype is int64 else ir.Unary(UnaryOp.IDENTITY, position, int64)
    return ir.Binary(BinaryOp.ADD, wide, ir.Const(left, int64), int64)


def _is_inside(position: ir.Expr, extent: int) -> ir.Expr:
    """Return the test that a position is one of an axis."""
    dtype = position.dtype
    lowest = ir.Binary(BinaryOp.LE, ir.Const(0, dtype), position, dtype)
    if extent > extremes(dtype)[1]:
        return lowest
    highest = ir.Binary(BinaryOp.LT, position, ir.Const(extent, dtype), dtype)
    return ir.Binary(BinaryOp.AND, lowest, highest, dtype)


def place_checks(stmts: Sequence[ir.Stmt]) -> tuple[ir.Stmt, ...]:
    """Return statements with their checks moved to the front, up to where the positions are
    computed, and without repeated checks.

    A routine with wrong positions that it does not compute itself then writes nothing.
    """
    if not any(isinstance(stmt, ir.CheckPositions) for stmt in stmts):
        return tuple(stmts)
    written: set[TensorNode] = set()
    done: set[tuple[TensorNode, int, StaticExtent | None]] = set()
    first: list[ir.Stmt] = []
    rest: list[ir.Stmt] = []
    for stmt in stmts:
        match stmt:
            case ir.CheckPositions(node, extent, at_run_time=at_run_time):
                if (node, extent, at_run_time) in done:
                    continue
                done.add((node, extent, at_run_time))
                (rest if node in written else first).append(stmt)
            case ir.Remark():
                rest.append(stmt)
            case _:
                changed = set(writes(stmt))
                written |= changed
                done = {each for each in done if each[0] not in changed}
                rest.append(stmt)
    return (*first, *rest)


def raise_failed_check(
    checks: Iterable[ir.CheckPositions],
    cells_of: Callable[[TensorNode], np.ndarray[Any, Any]],
    value_of: Callable[[StaticExtent], int],
    routine: str,
) -> NoReturn:
    """Raise the error of a check that a device found to fail.

    Args:
        checks: The checks of which one has failed.
        cells_of: Returns the cells of a node, without margins.
        value_of: Returns the value of an extent in the call.
        routine: The name of the routine.

    Raises:
        UsageError: with the first position that is out of bounds.
        LinkError: if there is none any more.
    """
    for check in checks:
        check_positions(check, cells_of(check.node), value_of)
    raise LinkError(
        "Positions stay the same while a routine runs.",
        found="a check that failed, and positions that are in bounds now",
        where=f"running {routine}",
        fix="let nothing else write them meanwhile",
    )


def _end_of(check: ir.CheckPositions, value_of: Callable[[StaticExtent], int]) -> int:
    """Return the end of the axis that positions index."""
    if check.at_run_time is None:
        return check.extent
    try:
        return value_of(check.at_run_time)
    except KeyError:  # of a backend for version 1.0, which knows those along the positions alone
        return check.extent


def check_positions(
    check: ir.CheckPositions, cells: np.ndarray[Any, Any], value_of: Callable[[StaticExtent], int]
) -> None:
    """Raise UsageError if a position is out of bounds; name the first one in row-major order.

    Args:
        cells: The positions, without margins.
        value_of: Returns the value of an extent in the call.
    """
    if check.extents:
        ends = (None if extent is None else value_of(extent) for extent in check.extents)
        cells = cells[tuple(map(slice, ends))]
    end = _end_of(check, value_of)
    is_outside = (cells < 0) | (cells >= end)
    if not is_outside.any():
        return
    at = np.unravel_index(int(is_outside.argmax()), cells.shape)
    number = int(cells[at])
    place = f"[{', '.join(map(str, map(int, at)))}]" if at else ""
    count = int(is_outside.sum())
    more = f", the first of {count} such positions" if count > 1 else ""
    when = "" if check.at_run_time is None else " in this call"
    advice = (
        "positions count from 0: to count from the end, add the extent to negative ones"
        if number < 0
        else "clip the positions, or make the axis longer"
    )
    raise UsageError(
        f"A position lies on its axis: {check.axis} has the positions range({end}){when}.",
        found=f"{check.node.name}{place} = {number}{more}",
        where=str(check.origin or ""),
        fix=f"{advice}; the setting check_positions = off drops such reads and writes unchecked",
    )
