"""Loops that are cut where a condition on their variable changes, so that no iteration tests it.

for i in range(10):                             for i in range(4):
    c[i] = where(i < 4, a[i], b[i - 4])   -->       c[i] = a[i]
                                                for i in range(4, 10):
                                                    c[i] = b[i - 4]

Such conditions come from definitions that write a tensor in parts: concatenations, margins, and
masks. The parts keep the order of the iterations, so any loop may be cut. Nests that reduce are
left alone: their schedules want one nest, and put conditions into the copies of their operands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import is_

from ocannl_core.fast_dataclass import dataclass, replace
from ocannl_core.indexing import IndexVar, as_affine, variables
from ocannl_core.loopir.nodes import (
    AxisKind,
    Binary,
    Block,
    Expr,
    Fill,
    For,
    IndexValue,
    LoopProgram,
    Remark,
    Scoped,
    Stmt,
    Store,
    StoreVector,
    Ternary,
)
from ocannl_core.loopir.ranges import Range
from ocannl_core.loopir.traverse import clone_stmt, rewrite, statements, walk
from ocannl_core.ops import COMPARISONS, BinaryOp, TernaryOp
from ocannl_core.passes.algebraic_rules import apply_rules
from ocannl_core.passes.simplify import simplify
from ocannl_core.passes.trampoline import Steps, run_trampoline
from ocannl_core.passes.value_analysis import constant, difference

_LEAST_EXTENT = 8
"""Shorter loops are unrolled, and stay."""

_MOST_PARTS = 5
_MOST_SIZE = 1024
"""How large, in nodes of the loop language, the parts of one top-level nest may get together."""


def split_index_sets(program: LoopProgram) -> LoopProgram:
    """Returns the program with loops cut where conditions on their variables change.

    Cells keep their bits.
    """
    if not any(isinstance(each, Ternary) and _guards(each) for each in walk(program.body)):
        return program
    stmts = tuple(_split(program.body.stmts))
    if len(stmts) == len(program.body.stmts) and all(map(is_, stmts, program.body.stmts)):
        return program
    return simplify(replace(program, body=Block(stmts)))


def _guards(expr: Ternary) -> bool:
    """True of a choice by the position of a loop."""
    return expr.op is TernaryOp.WHERE and any(
        isinstance(each, IndexValue) for each in walk(expr.first)
    )


def _split(stmts: Sequence[Stmt]) -> Iterator[Stmt]:
    """Yields top-level statements; each part of one has the remark in front of the whole."""
    before: Stmt | None = None
    for stmt in stmts:
        parts = _parts_of(stmt)
        for position, part in enumerate(parts):
            if position and isinstance(before, Remark) and before.origin is not None:
                yield before
            yield part
        before = stmt


def _parts_of(stmt: Stmt) -> tuple[Stmt, ...]:
    if not isinstance(stmt, For) or _reduces(stmt):
        return (stmt,)
    cutter = _IndexSetSplitter(_MOST_SIZE - _size(stmt))
    parts: tuple[Stmt, ...] = run_trampoline(cutter.statement(stmt))
    return parts


def _reduces(nest: For) -> bool:
    """True if a nest does anything but compute every cell that it writes in one iteration."""
    loops: list[IndexVar] = []
    written: list[set[IndexVar]] = []
    for each in statements(nest):
        match each:
            case For(var, kind=kind):
                if kind is not AxisKind.SERIAL:
                    return True
                loops.append(var)
            case Store(_, indices):
                written.append({var for index in indices for var in variables(index)})
            case StoreVector() | Fill():
                return True
            case _:
                pass
    if any(isinstance(each, Scoped) and _has_loops(each) for each in walk(nest)):
        return True
    return any(not used.issuperset(loops) for used in written)


def _has_loops(scoped: Scoped) -> bool:
    return any(isinstance(each, For) for each in statements(scoped.body))


def _size(stmt: Stmt) -> int:
    return sum(1 for _ in walk(stmt))


@dataclass(slots=True)
class _IndexSetSplitter:
    """Cuts the loops of one nest, outermost first.

    Attributes:
        budget: How much larger the nest may get.
    """

    budget: int

    def statement(self, stmt: Stmt) -> Steps[tuple[Stmt, ...]]:
        if not isinstance(stmt, For):
            return (stmt,)
        parts = tuple(self.parts(stmt))
        cut: list[Stmt] = []
        for part in parts:
            inner: list[Stmt] = []
            for each in part.body.stmts:
                inner += yield self.statement(each)
            same = len(inner) == len(part.body.stmts) and all(map(is_, inner, part.body.stmts))
            cut.append(part if same else replace(part, body=Block(tuple(inner))))
        return tuple(cut)

    def parts(self, loop: For) -> Iterator[For]:
        """Yields the parts of a loop, with what is certain in each."""
        ends = [*sorted(_cuts(loop)), loop.stop]
        growth = _size(loop) * (len(ends) - 1)
        if not 1 < len(ends) <= _MOST_PARTS or growth > self.budget:
            yield loop
            return
        self.budget -= growth
        start = loop.start
        for end in ends:
            (part,) = clone_stmt(replace(loop, start=start, stop=end)).stmts
            if isinstance(part, For):
                yield _decided(part)
            start = end


def _cuts(loop: For) -> set[int]:
    """Returns where, strictly inside the range of a loop, a condition on its variable changes."""
    if loop.stop - loop.start < _LEAST_EXTENT:
        return set()
    found: set[int] = set()
    ranges: dict[IndexVar, Range] = {loop.var: Range(loop.start, loop.stop - 1)}
    for choice in walk(loop.body):
        if isinstance(choice, Ternary) and choice.op is TernaryOp.WHERE:
            for test in walk(choice.first):
                if isinstance(test, Binary) and test.op in COMPARISONS:
                    found.update(_changes(test, ranges))
    return {cut for cut in found if loop.start < cut < loop.stop}


def _changes(test: Binary, ranges: dict[IndexVar, Range]) -> tuple[int, ...]:
    """Returns the values of a variable for which a comparison may differ from the one before."""
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


def _decided(loop: For) -> For:
    """Returns a loop with the comparisons worked out that its range decides."""
    ranges: dict[IndexVar, Range] = {loop.var: Range(loop.start, loop.stop - 1)}

    def decided(expr: Expr) -> Expr:
        if isinstance(expr, Binary) and expr.op in COMPARISONS:
            apart = difference(expr.left, expr.right, ranges)
            verdict = None if apart is None else apart.verdict(expr.op)
            if verdict is not None:
                return constant(int(verdict), expr.dtype) or expr
        return apply_rules(expr)

    return replace(loop, body=rewrite(loop.body, on_expr=decided))
