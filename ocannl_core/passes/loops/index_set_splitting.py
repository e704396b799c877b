"""Index-set splitting: split loops where a condition on their variable changes.

for i in range(10):                             for i in range(4):
    c[i] = where(i < 4, a[i], b[i - 4])   -->       c[i] = a[i]
                                                for i in range(4, 10):
                                                    c[i] = b[i - 4]

Such conditions come from definitions that write a tensor in parts: concatenations, margins, and
masks. The parts keep the order of the iterations, so splitting is always legal. Reductions are left
alone: their schedules need a single loop nest, and move the conditions into packed operands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import is_

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.trampoline import Steps, run_trampoline
from ocannl_core.ir.indexing import IndexVar, as_affine, variables
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.ranges import Range, ranges_of
from ocannl_core.ir.loops.traverse import clone_stmt, contains, rewrite, size, statements, walk
from ocannl_core.ir.numbers.primitives import COMPARISONS, BinaryOp, TernaryOp
from ocannl_core.passes.loops.algebraic_rules import apply_rules
from ocannl_core.passes.loops.simplify import simplify
from ocannl_core.passes.loops.value_analysis import constant, difference

_LEAST_EXTENT = 8
"""Shorter innermost loops are unrolled instead."""

_MOST_PARTS = 5
_MOST_SIZE = 1024
"""Size limit, in nodes of the loop language, on all parts of one top-level nest."""


def split_index_sets(program: ir.LoopProgram) -> ir.LoopProgram:
    """Split loops where conditions on their variables change; results are bit-identical."""
    if not any(isinstance(each, ir.Ternary) and _is_guard(each) for each in walk(program.body)):
        return program
    stmts = tuple(_split(program.body.stmts))
    if len(stmts) == len(program.body.stmts) and all(map(is_, stmts, program.body.stmts)):
        return program
    return simplify(replace(program, body=ir.Block(stmts)))


def _is_guard(expr: ir.Ternary) -> bool:
    """Return True if an expression selects by the position of a loop."""
    return expr.op is TernaryOp.WHERE and contains(expr.first, ir.IndexValue)


def _split(stmts: Sequence[ir.Stmt]) -> Iterator[ir.Stmt]:
    """Split top-level statements; repeat the remark of a statement in front of each part."""
    before: ir.Stmt | None = None
    for stmt in stmts:
        parts = _split_statement(stmt)
        for position, part in enumerate(parts):
            if position and isinstance(before, ir.Remark) and before.origin is not None:
                yield before
            yield part
        before = stmt


def _split_statement(stmt: ir.Stmt) -> tuple[ir.Stmt, ...]:
    if not isinstance(stmt, ir.For) or _is_reduction(stmt):
        return (stmt,)
    cutter = _IndexSetSplitter(_MOST_SIZE - size(stmt))
    parts: tuple[ir.Stmt, ...] = run_trampoline(cutter.split_statement(stmt))
    return parts


def _is_reduction(nest: ir.For) -> bool:
    """Return True unless every iteration computes one cell of its own."""
    loops: list[IndexVar] = []
    written: list[set[IndexVar]] = []
    for each in statements(nest):
        match each:
            case ir.For(var, kind=kind):
                if kind is not ir.AxisKind.SERIAL:
                    return True
                loops.append(var)
            case ir.Store(_, indices):
                written.append({var for index in indices for var in variables(index)})
            case ir.StoreVector() | ir.Scatter() | ir.Fill():
                return True
    if any(isinstance(each, ir.Scoped) and contains(each.body, ir.For) for each in walk(nest)):
        return True
    return any(not used.issuperset(loops) for used in written)


@dataclass(slots=True)
class _IndexSetSplitter:
    """Splits the loops of one nest, outermost first."""

    budget: int
    """The number of nodes by which the nest may still grow."""

    def split_statement(self, stmt: ir.Stmt) -> Steps[tuple[ir.Stmt, ...]]:
        if not isinstance(stmt, ir.For):
            return (stmt,)
        parts = tuple(self.split_loop(stmt))
        cut: list[ir.Stmt] = []
        for part in parts:
            inner: list[ir.Stmt] = []
            for each in part.body.stmts:
                inner += yield self.split_statement(each)
            same = len(inner) == len(part.body.stmts) and all(map(is_, inner, part.body.stmts))
            cut.append(part if same else replace(part, body=ir.Block(tuple(inner))))
        return tuple(cut)

    def split_loop(self, loop: ir.For) -> Iterator[ir.For]:
        """Yield the parts of a loop, with the conditions that are constant in each folded."""
        ends = [*sorted(_split_points(loop)), loop.stop]
        growth = size(loop) * (len(ends) - 1)
        if not 1 < len(ends) <= _MOST_PARTS or growth > self.budget:
            yield loop
            return
        self.budget -= growth
        start = loop.start
        for end in ends:
            (part,) = clone_stmt(replace(loop, start=start, stop=end)).stmts
            if isinstance(part, ir.For):
                yield _fold_comparisons(part)
            start = end


def _split_points(loop: ir.For) -> set[int]:
    """Return the split points of a loop, strictly inside its range."""
    if loop.stop - loop.start < _LEAST_EXTENT and not contains(loop.body, ir.For):
        return set()
    found: set[int] = set()
    ranges = ranges_of((loop,))
    for choice in walk(loop.body):
        if isinstance(choice, ir.Ternary) and choice.op is TernaryOp.WHERE:
            for test in walk(choice.first):
                if isinstance(test, ir.Binary) and test.op in COMPARISONS:
                    found.update(_change_points(test, ranges))
    return {cut for cut in found if loop.start < cut < loop.stop}


def _change_points(test: ir.Binary, ranges: dict[IndexVar, Range]) -> tuple[int, ...]:
    """Return the values of the variable at which a comparison may change."""
    apart = difference(test.left, test.right, ranges)
    if apart is None:
        return ()
    match as_affine(apart.index):
        case ((factor, _),), offset:
            pass
        case _:
            return ()
    if test.op in (BinaryOp.EQ, BinaryOp.NE):  # factor * var + offset == 0
        return () if offset % factor else (-offset // factor, -offset // factor + 1)
    if test.op is BinaryOp.LE:  # x <= 0 is x - 1 < 0
        offset -= 1
    return (-(offset // factor) if factor > 0 else offset // -factor + 1,)


def _fold_comparisons(loop: ir.For) -> ir.For:
    """Fold the comparisons that are constant over the range of a loop."""
    ranges = ranges_of((loop,))

    def fold_comparison(expr: ir.Expr) -> ir.Expr:
        if isinstance(expr, ir.Binary) and expr.op in COMPARISONS:
            apart = difference(expr.left, expr.right, ranges)
            verdict = None if apart is None else apart.compare(expr.op)
            if verdict is not None:
                return constant(int(verdict), expr.dtype) or expr
        return apply_rules(expr)

    return replace(loop, body=rewrite(loop.body, on_expr=fold_comparison))
