"""Nests of loops to be built around statements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir import indexing
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.numbers.dtypes import int32, int64
from ocannl_core.ir.numbers.primitives import BinaryOp


@dataclass(frozen=True, slots=True)
class LoopNest:
    """A nest to be built: its loops, and index maps over their variables, without margins; the
    extents at run time of some loops.
    """

    loops: tuple[tuple[indexing.LoopVar, int], ...]
    lhs: indexing.IndexMap
    rhs: tuple[indexing.IndexMap, ...]
    sizes: Mapping[indexing.LoopVar, indexing.StaticExtent]

    def around(self, innermost: ir.Stmt) -> ir.Stmt:
        return loops_around(self.loops, innermost, self.sizes)


def loops_around(
    loops: Sequence[tuple[indexing.LoopVar, int]],
    innermost: ir.Stmt,
    sizes: Mapping[indexing.LoopVar, indexing.StaticExtent] | None = None,
    kind: ir.AxisKind = ir.AxisKind.SERIAL,
) -> ir.Stmt:
    for var, extent in reversed(loops):
        size = (sizes or {}).get(var)
        bound = None if size is None else ir.LoopBound(indexing.VarIndex(var), size)
        innermost = ir.For(var, 0, extent, ir.Block((innermost,)), kind, bound=bound)
    return innermost


def guarded(bound: ir.LoopBound | None, stmts: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
    """Return statements that run unless their position is beyond an end at run time."""
    if bound is None or not stmts:
        return stmts
    once = indexing.fresh_var("once")
    terms, offset = indexing.as_affine(bound.index)
    guard = replace(bound, index=indexing.affine([*terms, (1, once)], offset))
    return (ir.For(once, 0, 1, ir.Block(stmts), bound=guard),)


def guarded_by(bounds: Iterable[ir.LoopBound], stmts: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
    """Return statements that run unless one of some positions is beyond its end."""
    for bound in bounds:
        stmts = guarded(bound, stmts)
    return stmts


def condition(bound: ir.LoopBound) -> ir.Expr:
    """Return the condition that a position is before its end."""
    counter = int32 if bound.maximum < 2**30 else int64
    index, end = (ir.IndexValue(each, counter) for each in (bound.index, bound.end))
    return ir.Binary(BinaryOp.LT, index, end, counter)


def conjunction(conditions: Iterable[ir.Expr | None]) -> ir.Expr | None:
    """Return the condition that all conditions hold; None stands for one that always holds."""
    known = [each for each in conditions if each is not None]
    return reduce(lambda a, b: ir.Binary(BinaryOp.AND, a, b, a.dtype), known) if known else None


def with_fresh_variables(
    domain: tuple[tuple[indexing.LoopVar, int], ...], maps: tuple[indexing.IndexMap, ...]
) -> LoopNest:
    """Return a nest with fresh loop variables, because assignments may share domains."""
    fresh = {var: indexing.fresh_var(var.hint) for var, _ in domain}
    values: dict[indexing.IndexVar, indexing.AxisIndex] = {
        old: indexing.VarIndex(new) for old, new in fresh.items()
    }
    lhs, *rhs = [
        tuple([indexing.substitute(index, values) for index in index_map]) for index_map in maps
    ]
    loops = tuple([(fresh[var], extent) for var, extent in domain])
    sizes = {fresh[var]: var.size for var, _ in domain if var.size is not None}
    return LoopNest(loops, lhs, tuple(rhs), sizes)


def inner_statements(stmt: ir.Stmt) -> Sequence[ir.Stmt]:
    """Return the statements right inside of a block, a loop or verbatim code."""
    match stmt:
        case ir.Block(stmts):
            return stmts
        case ir.For(body=body) | ir.Verbatim(body=body):
            return (body,)
        case _:
            return ()


def most_iterations(stmt: ir.Stmt, kind: ir.AxisKind) -> int:
    """Return the most iterations of nested loops of a kind; 0 if there are none."""
    own = stmt.stop - stmt.start if isinstance(stmt, ir.For) and stmt.kind is kind else 0
    inside = max((most_iterations(each, kind) for each in inner_statements(stmt)), default=0)
    return own * max(inside, 1) if own else inside
