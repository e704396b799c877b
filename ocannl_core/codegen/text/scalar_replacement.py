"""Scalar replacement of arrays of scope THREAD: the registers of an array.

An array is replaced if every access to it has a constant position after unrolling, or covers
contiguous cells with the lanes of a vector loop.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.identity import IdentityMap
from ocannl_core.ir.indexing import AxisIndex, IndexVar, as_affine, row_major
from ocannl_core.ir.loops.nodes import AxisKind, Binary, Block, Expr, For, Load, Stmt, Store
from ocannl_core.ir.loops.traverse import nodes_of, walk
from ocannl_core.ir.node import TensorNode

MOST_REGISTERS = 256
"""An array that needs more variables stays an array."""
_MOST_POSITIONS = 16 * MOST_REGISTERS


@dataclass(frozen=True, slots=True)
class RegisterFile:
    """The variables of one array."""

    name: str
    """The common prefix of their names."""
    lanes: Mapping[int, int]
    """The number of cells of each variable, by the position of its first cell."""

    def variable(self, position: int) -> str:
        """Return the variable that begins at a position."""
        return f"{self.name}_{position}"

    def cell(self, position: int) -> str:
        """Return the cell at a position."""
        starts = sorted(self.lanes)
        start = starts[bisect_right(starts, position) - 1]
        name = self.variable(start)
        return name if self.lanes[start] == 1 else f"{name}[{position - start}]"


@dataclass(frozen=True, slots=True)
class _Lane:
    """The range of the variable of a vector loop."""

    start: int
    extent: int


Position = tuple[tuple[tuple[int, IndexVar], ...], int]
"""An affine position: products of coefficients and variables, and a constant."""


def stride_along(position: Position, var: IndexVar) -> int:
    """Return the cells between positions at neighboring values of a variable."""
    for coefficient, each in position[0]:
        if each is var:
            return coefficient
    return 0


_Loops = Mapping[IndexVar, range | _Lane]
"""Unrolled loops and vector loops by their variables."""


def assign_registers(
    stmts: Sequence[Stmt], node: TensorNode, dims: Sequence[int]
) -> dict[int, int] | None:
    """Return the number of cells of each variable by position; None if the array is not replaced.

    The statements are those in the scope of the array.
    """
    found: dict[int, int] = {}
    for indices, loops in _accesses(stmts, node):
        if len(indices) != len(dims):
            return None
        located = _locate_cells(as_affine(row_major(indices, dims)), loops)
        if located is None:
            return None
        positions, lanes = located
        for position in positions:
            found[position] = max(lanes, found.get(position, 0))
        if len(found) > _MOST_POSITIONS:
            return None
    merged: dict[int, int] = {}
    end, last = -1, -1
    for position in sorted(found):
        lanes = found[position]
        if position >= end:
            merged[position] = lanes
            end, last = position + lanes, position
        elif lanes > 1 or position + lanes > last + merged[last]:
            return None  # overlapping vectors
    return merged if 0 < len(merged) <= MOST_REGISTERS else None


def _accesses(
    stmts: Iterable[Stmt], node: TensorNode
) -> Iterator[tuple[tuple[AxisIndex, ...], _Loops]]:
    """Yield the indices of every access with the loops around it."""
    pending: list[tuple[Stmt, _Loops]] = [(stmt, {}) for stmt in reversed(tuple(stmts))]
    mentioning: IdentityMap[Stmt, None] = IdentityMap()
    for stmt, _ in pending:
        _collect_mentions(stmt, node, mentioning)
    while pending:
        stmt, loops = pending.pop()
        if stmt not in mentioning:
            continue
        match stmt:
            case For(var, start, stop, body, kind):
                if stop > start:
                    values = _loop_values(kind, start, stop)
                    pending.append((body, loops if values is None else {**loops, var: values}))
            case Block(inner_stmts):
                pending.extend((each, loops) for each in reversed(inner_stmts))
            case Store():
                if stmt.node is node:
                    yield stmt.indices, loops
                yield from ((indices, loops) for indices in _loads(stmt, node))
            case _:
                yield (), loops  # other code: the array is not replaced


def _collect_mentions(stmt: Stmt, node: TensorNode, found: IdentityMap[Stmt, None]) -> bool:
    """Collect the statements that mention a node; return True if this one does."""
    match stmt:
        case Block(inner):
            is_mentioned = False
            for each in inner:
                is_mentioned |= _collect_mentions(each, node, found)
        case For(body=body):
            is_mentioned = _collect_mentions(body, node, found)
        case _:
            is_mentioned = node in nodes_of(stmt)
    if is_mentioned:
        found[stmt] = None
    return is_mentioned


def _loads(stmt: Stmt, node: TensorNode) -> list[tuple[AxisIndex, ...]]:
    return [each.indices for each in walk(stmt) if isinstance(each, Load) and each.node is node]


def _loop_values(kind: AxisKind, start: int, stop: int) -> range | _Lane | None:
    """Return the values of an unrolled loop's variable, or its lanes; None if the loop remains."""
    if stop - start == 1 or kind is AxisKind.UNROLLED:
        return range(start, stop)
    return _Lane(start, stop - start) if kind is AxisKind.VECTOR else None


def _locate_cells(at: Position, loops: _Loops) -> tuple[list[int], int] | None:
    """Return the first cells of an access and the number of cells; None if either varies."""
    terms, offset = at
    positions, lanes = [offset], 1
    for coefficient, var in terms:
        match loops.get(var):
            case range() as values if len(positions) * len(values) <= _MOST_POSITIONS:
                positions = [each + coefficient * value for each in positions for value in values]
            case _Lane(start, extent) if coefficient == 1 and lanes == 1:
                positions = [each + start for each in positions]
                lanes = extent
            case _:
                return None
    return positions, lanes


def reduction_leaves(expr: Binary) -> tuple[Load, ...]:
    """Return the leaves of a balanced tree of one operation; () for any other expression."""
    level: list[Expr] = [expr]
    while all(isinstance(each, Binary) and each.op is expr.op for each in level):
        level = [
            part for each in level if isinstance(each, Binary) for part in (each.left, each.right)
        ]
    cells = tuple(each for each in level if isinstance(each, Load) and each.dtype is expr.dtype)
    return cells if len(cells) == len(level) else ()
