"""Variables of a program, found in one walk: loop bounds, and the uses of scalars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import field

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import IndexVar, LoopVar, StaticIndex
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.ranges import Range, include_loop, static_ranges
from ocannl_core.ir.loops.traverse import Node, declares, locals_of, rename_local, walk


@dataclass(slots=True)
class Variables:
    """The variables of one program."""

    ranges: dict[IndexVar, Range] = field(default_factory=dict)
    """The values of every index variable; over all its loops, if several bind it."""
    sets: Counter[ir.Local] = field(default_factory=Counter)
    """The number of statements that assign a scalar."""
    reads: Counter[ir.Local] = field(default_factory=Counter)
    """The number of expressions that read a scalar."""
    declared: set[ir.Local] = field(default_factory=set)
    """Scalars introduced by statements, not as values of inlined computations."""
    copies: dict[ir.Local, ir.Expr] = field(default_factory=dict)
    """Scalars that are copies of a constant, an index or a scalar where they are read."""
    next_local: int = 0
    """A number above all scalars' numbers."""
    ends: dict[LoopVar, ir.LoopBound | None] = field(default_factory=dict)
    """The ends at run time of loops, by their variables; None if several loops that bind a variable
    end differently.
    """

    def fresh(self, like: ir.Expr) -> ir.Local:
        """Make a new scalar for a value, as `fresh_locals` does."""
        self.next_local += 1
        return _local_for(like, self.next_local - 1)


Fresh = Callable[[ir.Expr], ir.Local]
"""Source of new scalars for values, each named after the node that the value inlines, if any."""


def fresh_locals(root: Node) -> Fresh:
    """Return a source of scalars that do not occur in a program; walk the program on first use."""
    numbers: list[int] = []

    def fresh(like: ir.Expr) -> ir.Local:
        if not numbers:
            numbers.append(1 + max((local.id for local in locals_of(root)), default=-1))
        numbers[0] += 1
        return _local_for(like, numbers[0] - 1)

    return fresh


def _local_for(like: ir.Expr, number: int) -> ir.Local:
    return ir.Local(number, like.dtype, like.local.node if isinstance(like, ir.Scoped) else None)


def collect_variables(root: Node, statics: Iterable[StaticIndex] = ()) -> Variables:
    """Collect the variables of a statement or expression."""
    known = Variables(static_ranges(statics))
    inlined: set[ir.Local] = set()
    leaves: list[ir.SetLocal] = []
    for node in walk(root):
        match node:
            case ir.For(var, bound=bound):
                known.ends[var] = bound if known.ends.setdefault(var, bound) == bound else None
                include_loop(known.ranges, node)
            case ir.LocalRead(local):
                known.reads[local] += 1
            case ir.SetLocal(local) | ir.SubgroupReduce(local):
                known.sets[local] += 1
            case ir.Scoped(local):
                inlined.add(local)
            case ir.DeclareLocal(local):
                known.declared.add(local)
            case ir.Block(stmts):
                leaves += _leaf_assignments(stmts)
            case _:
                continue
    mentioned = (*known.sets, *known.reads, *inlined, *known.declared)
    known.next_local = 1 + max((local.id for local in mentioned), default=-1)
    known.declared -= inlined
    known.copies = {
        stmt.local: stmt.value
        for stmt in leaves
        if stmt.local in known.declared
        and known.sets[stmt.local] == 1
        and _is_constant(stmt, known)
    }
    return known


def _leaf_assignments(stmts: tuple[ir.Stmt, ...]) -> list[ir.SetLocal]:
    """Return the assignments of leaves to scalars that the same block declares."""
    if not any(isinstance(stmt, ir.DeclareLocal) for stmt in stmts):
        return []
    own = {stmt.local for stmt in stmts if isinstance(stmt, ir.DeclareLocal)}
    return [
        stmt
        for stmt in stmts
        if isinstance(stmt, ir.SetLocal)
        and stmt.local in own
        and isinstance(stmt.value, ir.Const | ir.ConstBits | ir.IndexValue | ir.LocalRead)
    ]


def _is_constant(stmt: ir.SetLocal, known: Variables) -> bool:
    """Return True if the leaf that a scalar is set to is constant in the scope of the scalar."""
    match stmt.value:
        case ir.LocalRead(source):
            return source != stmt.local and known.sets[source] == 1
        case _:
            return True


def assign_local(local: ir.Local, value: ir.Expr) -> tuple[ir.Stmt, ...]:
    """Assign a value to a scalar; splice in the statements of an inlined computation."""
    if not isinstance(value, ir.Scoped) or local in locals_of(value):
        return (ir.SetLocal(local, value),)
    body = rename_local(value.body, value.local, local)
    return (body,) if declares(body.stmts) else body.stmts
