"""Rows of which each thread of a block accesses some cells alone: arrays of the threads.

    for t in block(256):                         for t in block(256):
      for k in unrolled(4):                        thread x1[4]
        total += x[i, 4*t + k]                     for k in vector(4): x1[k] = x[i, 4*t + k]
      ...                                   -->    for k in unrolled(4): total += x1[k]
      for k in vector(4):                          ...
        v[k] = x[i, 4*t + k]                       for k in unrolled(4): v[k] = x1[k]

A row that several nests load is loaded once. A row between nests that was in shared memory is not
shared, and needs no barrier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir import indexing
from ocannl_core.ir.kernels.nest_accesses import Ranges
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.ranges import Range, index_range, static_ranges
from ocannl_core.ir.loops.traverse import Node, accesses, accesses_at, rewrite, walk, walk_in_loops
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.schedule.machine_model import MOST_PRIVATE_BYTES

_Around = Mapping[indexing.LoopVar, ir.For]
"""The loops of a thread around an access, by their variables."""


@dataclass(frozen=True, slots=True)
class _Digit:
    """A loop over some cells of a thread."""

    axis: int
    step: int
    extent: int


@dataclass(frozen=True, slots=True)
class _Form:
    """The cells of a node that each thread accesses."""

    starts: tuple[indexing.AxisIndex, ...]
    """The position of the first along each axis, without loops of the thread."""
    digits: tuple[_Digit, ...]
    """The loops, that with the largest steps first."""

    @property
    def dims(self) -> tuple[int, ...]:
        return tuple(each.extent for each in self.digits) or (1,)

    def is_inside(self, dims: Sequence[int], around: Ranges) -> bool:
        """Return True if an array of some extents has all cells."""
        for axis, (start, dim) in enumerate(zip(self.starts, dims, strict=True)):
            used = indexing.variables(start)
            static = static_ranges(v for v in used if isinstance(v, indexing.StaticIndex))
            first = index_range(start, {**around, **static})
            own = (each.step * (each.extent - 1) for each in self.digits if each.axis == axis)
            if first is None or first.low < 0 or first.high + sum(own) >= dim:
                return False
        return True


@dataclass(frozen=True, slots=True)
class PrivateRow:
    """A node some cells of which each thread has for itself."""

    form: _Form
    copy: TensorNode
    is_filled: bool
    """True if the array is loaded first; False if nests store to it before they load."""
    is_vector: bool
    """True if the loads may be vectors."""


def find_private_rows(
    nests: Sequence[tuple[ir.Stmt, ...]],
    thread: indexing.LoopVar,
    threads: int,
    shared: frozenset[TensorNode],
    nodes: NodeInfos,
    rows_around: Ranges,
) -> dict[TensorNode, PrivateRow]:
    """Return the rows that each thread can keep for itself.

    A row is loaded whole, also where nests load its cells behind a condition: no cell may be beyond
    the node.

    Args:
        nests: The statements of a thread for each nest.
        shared: The rows between nests, in shared memory.
    """
    ranges = {**rows_around, thread: Range(0, threads - 1)}
    found: dict[TensorNode, list[tuple[int, bool, _Form | None, _Around]]] = {}
    for number, stmts in enumerate(nests):
        for access, loops in walk_in_loops(ir.Block(stmts)):
            around = {loop.var: loop for loop in loops}
            for each in accesses_at(access):
                form = _form(access, around, thread, threads)
                entry = number, each.writes, form, around
                found.setdefault(each.node, []).append(entry)
    rows: dict[TensorNode, PrivateRow] = {}
    room = MOST_PRIVATE_BYTES
    for node, uses in found.items():
        forms = {form for _, _, form, _ in uses}
        form = next(iter(forms))
        if len(forms) != 1 or form is None:
            continue
        is_written = any(writes for _, writes, _, _ in uses)
        if node in shared:
            is_candidate = uses[0][1]  # stored first
        else:
            numbers = {number for number, _, _, _ in uses}
            is_plain = all(each.bound is None for *_, around in uses for each in around.values())
            is_inside = form.is_inside(nodes[node].buffer_dims, ranges)
            is_candidate = not is_written and len(numbers) > 1 and is_plain and is_inside
        nbytes = prod(form.dims) * nodes[node].dtype.nbytes
        if not is_candidate or nbytes > room:
            continue
        room -= nbytes
        is_vector = any(
            each.kind is ir.AxisKind.VECTOR for *_, around in uses for each in around.values()
        )
        rows[node] = PrivateRow(form, TensorNode(0, node.label), node not in shared, is_vector)
    return rows


def _form(access: Node, around: _Around, thread: indexing.LoopVar, threads: int) -> _Form | None:
    """Return the cells of an access, if no two threads share one; otherwise None."""
    if not isinstance(access, ir.Load | ir.Store):
        return None
    starts: list[indexing.AxisIndex] = []
    digits: list[_Digit] = []
    own: list[_Digit] = []
    for axis, index in enumerate(access.indices):
        terms, offset = indexing.as_affine(index)
        outer: list[tuple[int, indexing.IndexVar]] = []
        for step, var in terms:
            loop = around.get(var) if isinstance(var, indexing.LoopVar) else None
            if loop is None:
                outer.append((step, var))
                own += [_Digit(axis, step, threads)] if var is thread else []
            elif loop.start:
                return None
            else:
                digits.append(_Digit(axis, step, loop.stop))
        starts.append(indexing.affine(outer, offset))
    if len(own) != 1 or not _are_distinct([*digits, *own]):
        return None
    return _Form(tuple(starts), tuple(sorted(digits, key=lambda each: (each.axis, -each.step))))


def _are_distinct(digits: Sequence[_Digit]) -> bool:
    """Return True if all values of digits give different cells."""
    reached: dict[int, int] = {}
    for each in sorted(digits, key=lambda each: each.step):
        if each.step <= reached.get(each.axis, 0):
            return False
        reached[each.axis] = reached.get(each.axis, 0) + each.step * (each.extent - 1)
    return True


def allocated(rows: Mapping[TensorNode, PrivateRow], nodes: NodeInfos) -> tuple[ir.Stmt, ...]:
    """Return the statements that allocate arrays of a thread, and load them."""
    stmts: list[ir.Stmt] = []
    for node, row in rows.items():
        stmts.append(ir.Allocate(row.copy, ir.Scope.THREAD))
        if row.is_filled:
            stmts.append(_fill(node, row, nodes))
    return tuple(stmts)


def arrays_of(rows: Mapping[TensorNode, PrivateRow], nodes: NodeInfos) -> NodeInfos:
    """Return the arrays of a thread."""
    return {row.copy: NodeInfo(nodes[node].dtype, row.form.dims) for node, row in rows.items()}


def _fill(node: TensorNode, row: PrivateRow, nodes: NodeInfos) -> ir.Stmt:
    dtype, digits = nodes[node].dtype, row.form.digits
    loops = [indexing.fresh_var("k") for _ in digits]
    indices = []
    for axis, start in enumerate(row.form.starts):
        terms, offset = indexing.as_affine(start)
        inner = [(d.step, var) for d, var in zip(digits, loops, strict=True) if d.axis == axis]
        indices.append(indexing.affine([*terms, *inner], offset))
    own = tuple(map(indexing.VarIndex, loops)) or (indexing.FixedIndex(0),)
    stmt: ir.Stmt = ir.Store(row.copy, own, ir.Load(node, tuple(indices), dtype))
    for at, (digit, var) in reversed(list(enumerate(zip(digits, loops, strict=True)))):
        is_vector = row.is_vector and at == len(digits) - 1
        kind = ir.AxisKind.VECTOR if is_vector else ir.AxisKind.UNROLLED
        stmt = ir.For(var, 0, digit.extent, ir.Block((stmt,)), kind)
    return stmt


def with_private_rows(
    stmts: tuple[ir.Stmt, ...], rows: Mapping[TensorNode, PrivateRow]
) -> tuple[ir.Stmt, ...]:
    """Return statements of a thread that access its own arrays in place of rows."""
    if not rows:
        return stmts
    loops = {each.var for each in walk(ir.Block(stmts)) if isinstance(each, ir.For)}
    copies = {row.copy for row in rows.values()}
    used: set[indexing.LoopVar] = set()

    def own_indices(indices: tuple[indexing.AxisIndex, ...]) -> tuple[indexing.AxisIndex, ...]:
        own = [
            (axis, -step, var)
            for axis, index in enumerate(indices)
            for step, var in indexing.as_affine(index)[0]
            if isinstance(var, indexing.LoopVar) and var in loops
        ]
        own.sort(key=lambda each: each[:2])
        used.update(var for *_, var in own)
        return tuple(indexing.VarIndex(var) for *_, var in own) or (indexing.FixedIndex(0),)

    def on_expr(expr: ir.Expr) -> ir.Expr:
        if isinstance(expr, ir.Load) and expr.node in rows:
            return ir.Load(rows[expr.node].copy, own_indices(expr.indices), expr.dtype)
        return expr

    def on_stmt(stmt: ir.Stmt) -> ir.Stmt:
        match stmt:
            case ir.Store(node, indices) if node in rows:
                return replace(stmt, node=rows[node].copy, indices=own_indices(indices))
            case ir.For(var, kind=ir.AxisKind.VECTOR) if not any(
                access.node in copies for access in accesses(stmt.body)
            ):
                return stmt
            case ir.For(var, kind=ir.AxisKind.SERIAL | ir.AxisKind.VECTOR) if var in used:
                return replace(stmt, kind=ir.AxisKind.UNROLLED)
            case _:
                return stmt

    return rewrite(ir.Block(stmts), on_stmt, on_expr).stmts
