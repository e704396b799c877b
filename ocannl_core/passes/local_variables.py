"""What one walk learns of the variables of a program: loop bounds, and how scalars are used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import field

from ocannl_core.fast_dataclass import dataclass
from ocannl_core.indexing import IndexVar, StaticIndex
from ocannl_core.loopir.nodes import (
    Allocate,
    Block,
    Const,
    ConstBits,
    DeclareLocal,
    Expr,
    For,
    IndexValue,
    Local,
    LocalRead,
    Scoped,
    SetLocal,
    Stmt,
)
from ocannl_core.loopir.ranges import Range
from ocannl_core.loopir.traverse import Node, locals_of, rename_local, walk


@dataclass(slots=True)
class Variables:
    """Facts about the variables of one program.

    Attributes:
        ranges: The values of every index variable; over all its loops, when several bind it.
        sets: How many statements assign a scalar.
        reads: How many expressions read a scalar.
        declared: Scalars introduced by statements, not as values of inlined computations.
        copies: Scalars that are another name of a constant, an index or another scalar, wherever
            they can be read.
        next_local: A number that no scalar has, and none greater.
    """

    ranges: dict[IndexVar, Range] = field(default_factory=dict)
    sets: Counter[Local] = field(default_factory=Counter)
    reads: Counter[Local] = field(default_factory=Counter)
    declared: set[Local] = field(default_factory=set)
    copies: dict[Local, Expr] = field(default_factory=dict)
    next_local: int = 0

    def fresh(self, like: Expr) -> Local:
        """Returns a new scalar for a value, as `fresh_locals` does."""
        self.next_local += 1
        return _local_for(like, self.next_local - 1)


Fresh = Callable[[Expr], Local]
"""Gives a new scalar for a value, named after the node that it inlines, if it does."""


def fresh_locals(root: Node) -> Fresh:
    """Returns a source of scalars that do not occur in a program; looks only when needed."""
    numbers: list[int] = []

    def fresh(like: Expr) -> Local:
        if not numbers:
            numbers.append(1 + max((local.id for local in locals_of(root)), default=-1))
        numbers[0] += 1
        return _local_for(like, numbers[0] - 1)

    return fresh


def _local_for(like: Expr, number: int) -> Local:
    return Local(number, like.dtype, like.local.node if isinstance(like, Scoped) else None)


def variables_of(root: Node, statics: Iterable[StaticIndex] = ()) -> Variables:
    """Returns what is known of the variables of a statement or expression."""
    known = Variables()
    for index in statics:
        if index.extent is not None:
            known.ranges[index] = Range(0, index.extent - 1)
    inlined: set[Local] = set()
    leaves: list[SetLocal] = []
    for node in walk(root):
        match node:
            case For(var, start, stop):
                before = known.ranges.get(var, Range(start, stop - 1))
                known.ranges[var] = Range(min(before.low, start), max(before.high, stop - 1))
            case LocalRead(local):
                known.reads[local] += 1
            case SetLocal(local):
                known.sets[local] += 1
            case Scoped(local):
                inlined.add(local)
            case DeclareLocal(local):
                known.declared.add(local)
            case Block(stmts):
                leaves += _leaf_settings(stmts)
            case _:
                continue
    mentioned = (*known.sets, *known.reads, *inlined, *known.declared)
    known.next_local = 1 + max((local.id for local in mentioned), default=-1)
    known.declared -= inlined
    known.copies = {
        stmt.local: stmt.value
        for stmt in leaves
        if stmt.local in known.declared and known.sets[stmt.local] == 1 and _stays(stmt, known)
    }
    return known


def _leaf_settings(stmts: tuple[Stmt, ...]) -> list[SetLocal]:
    """Returns the assignments of leaves to scalars that the same block declares."""
    if not any(isinstance(stmt, DeclareLocal) for stmt in stmts):
        return []
    own = {stmt.local for stmt in stmts if isinstance(stmt, DeclareLocal)}
    return [
        stmt
        for stmt in stmts
        if isinstance(stmt, SetLocal)
        and stmt.local in own
        and isinstance(stmt.value, Const | ConstBits | IndexValue | LocalRead)
    ]


def _stays(stmt: SetLocal, known: Variables) -> bool:
    """True if the leaf that a scalar is set to cannot change while the scalar is in scope."""
    match stmt.value:
        case LocalRead(source):
            return source != stmt.local and known.sets[source] == 1
        case _:
            return True


def assign_local(local: Local, value: Expr) -> tuple[Stmt, ...]:
    """Returns statements that give a scalar a value; an inlined computation runs in their place."""
    if not isinstance(value, Scoped) or local in locals_of(value):
        return (SetLocal(local, value),)
    body = rename_local(value.body, value.local, local)
    introduces = any(isinstance(stmt, DeclareLocal | Allocate) for stmt in body.stmts)
    return (body,) if introduces else body.stmts
