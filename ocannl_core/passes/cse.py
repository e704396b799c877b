"""Common subexpressions: what is computed twice with the same result is computed once.

                                          v: float32
c[i] = exp(a[i]) / (exp(a[i]) + 1)   -->  v = exp(a[i])
d[i] = 2 * exp(a[i])                      c[i] = v / (v + 1)
                                          d[i] = 2 * v

Values are numbered: equal expressions over memory and scalars that have not been assigned in
between have one number, also where they bind different variables. An expression can be shared by
all that follows it in its block and in the blocks inside. Branches of a `where` use what is known,
and what the rest of their expression computes anyway, but provide nothing, since they need not run.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import field

from ocannl_core.fast_dataclass import dataclass, replace
from ocannl_core.identity import IdentityMap
from ocannl_core.loopir.equivalence import Storage, canonical_key
from ocannl_core.loopir.nodes import (
    AxisKind,
    Barrier,
    Binary,
    Block,
    Const,
    ConstBits,
    DeclareLocal,
    Expr,
    For,
    Gather,
    IndexValue,
    Load,
    LoadMerge,
    Local,
    LocalRead,
    LoopProgram,
    Remark,
    Scoped,
    SetLocal,
    Stmt,
    Store,
    StoreVector,
    Ternary,
    Unary,
)
from ocannl_core.loopir.traverse import (
    Node,
    fold,
    operands_of,
    operands_with_certainty,
    unconditional_subexpressions,
    walk,
    with_children,
)
from ocannl_core.ops import BinaryOp
from ocannl_core.passes.expression_cost import own_cost
from ocannl_core.passes.local_variables import Fresh, assign_local, fresh_locals
from ocannl_core.passes.side_effects import assigned_memory, is_pure
from ocannl_core.passes.simplify import simplify
from ocannl_core.passes.trampoline import Steps, run_trampoline

_COMMUTATIVE = frozenset(
    {BinaryOp.ADD, BinaryOp.MUL, BinaryOp.EQ, BinaryOp.NE, BinaryOp.AND, BinaryOp.OR}
)
_TOGETHER = (Store, StoreVector, SetLocal, DeclareLocal, Remark)
"""Statements that share a kernel at the top level of a routine, if they contain no loops."""

_APART = (AxisKind.PARALLEL, AxisKind.GRID, AxisKind.BLOCK)


def share_subexpressions(program: LoopProgram, *, least_saved: int = 8) -> LoopProgram:
    """Returns the program with repeated computations shared; cells keep their bits.

    Args:
        program: The program.
        least_saved: How much must be saved before a scalar is introduced, see `cost`; compilers
            share cheap things, and schedules want the terms of a sum in one expression.
    """
    survey = _Survey(assigned_memory(program.body), least_saved)
    run_trampoline(survey.top(program.body))
    if not any(value.is_shared for value, _ in survey.found):
        return program
    author = _Author(iter(survey.found), fresh_locals(program.body))
    stmts: tuple[Stmt, ...] = run_trampoline(author.stmts(program.body.stmts))
    return simplify(replace(program, body=Block(stmts)))


@dataclass(slots=True, eq=False)
class _RepeatedValue:
    """A value computed at one place, the first that later ones can rely on.

    Attributes:
        cost: What computing it costs.
        least_saved: How much must be saved before a scalar is introduced for it.
        uses: How many places need it.
        holder: The scalar that the place assigns it to anyway, with its version then.
        can_be_shared: False in a branch that need not run.
        local: The scalar that is introduced for it.
    """

    cost: int
    least_saved: int
    can_be_shared: bool
    uses: int = 1
    holder: tuple[Local, int] | None = None
    local: Local | None = None

    @property
    def is_shared(self) -> bool:
        if self.uses < 2 or not self.can_be_shared:
            return False
        return self.holder is not None or (self.uses - 1) * self.cost >= self.least_saved


Found = tuple[_RepeatedValue, bool]
"""What an expression computes, and whether it is the first to do so."""


@dataclass(slots=True)
class _Survey:
    """The first walk, in the order of execution: which values are computed repeatedly.

    Attributes:
        changed: What each statement assigns.
        least_saved: How much must be saved before a scalar is introduced.
        found: One entry for each expression, parents first; nothing for what is inside a repeated
            one.
        available: Values that the current place may rely on, by number.
        provided: The numbers that became available, with what they stood for before.
        sure: The numbers of what the current expression computes outside of branches.
    """

    changed: IdentityMap[Node, frozenset[Storage]]
    least_saved: int
    found: list[Found] = field(default_factory=list)
    available: dict[int, _RepeatedValue] = field(default_factory=dict)
    provided: list[tuple[int, _RepeatedValue | None]] = field(default_factory=list)
    versions: dict[Storage, int] = field(default_factory=dict)
    clock: int = 0
    cleared: int = 0
    sure: frozenset[int] = frozenset()
    numbers: dict[Hashable, int] = field(default_factory=dict)

    # ----- time -----

    def version(self, storage: Storage) -> int:
        return max(self.versions.get(storage, 0), self.cleared)

    def change(self, *storages: Storage) -> None:
        self.clock += 1
        for storage in storages:
            self.versions[storage] = self.clock

    # ----- statements -----

    def block(self, block: Block) -> Steps[None]:
        known = len(self.provided)
        for stmt in block.stmts:
            yield self.statement(stmt)
        while len(self.provided) > known:
            number, before = self.provided.pop()
            if before is None:
                del self.available[number]
            else:
                self.available[number] = before

    def top(self, block: Block) -> Steps[None]:
        """Surveys statements of which only neighbours without loops can share anything."""
        for stmt in block.stmts:
            if not _joins_others(stmt):
                self.available = {}
            yield self.top(stmt) if isinstance(stmt, Block) else self.statement(stmt)
            if not _joins_others(stmt) or isinstance(stmt, Block):
                self.available = {}

    def statement(self, stmt: Stmt) -> Steps[None]:
        match stmt:
            case Store(node, _, value) | StoreVector(node, _, _, value):
                yield self.root(value)
                self.change(node)
            case SetLocal(local, value):
                first = len(self.found)
                yield self.root(value)
                self.change(local)
                if first < len(self.found) and self.found[first][1]:
                    self.found[first][0].holder = (local, self.version(local))
            case For():
                yield self.loop(stmt)
            case Block():
                yield self.block(stmt)
            case Barrier():
                self.clock += 1
                self.cleared = self.clock
            case _:
                self.change(*self.changed[stmt])

    def loop(self, loop: For) -> Steps[None]:
        outer = self.available
        if loop.kind in _APART:
            self.available = {}
        self.change(*self.changed[loop])
        yield self.block(loop.body)
        self.change(*self.changed[loop])
        self.available = outer

    # ----- expressions -----

    def root(self, value: Expr) -> Steps[None]:
        if not is_pure(value):  # what it changes, and when, is left alone
            self.change(*(s for node in walk(value) for s in self.changed.find(node) or ()))
            return
        numbered: IdentityMap[Node, tuple[int, int]] = IdentityMap()

        def combine(node: Node, inside: tuple[tuple[int, int], ...]) -> tuple[int, int]:
            number = numbered[node] = self.number(node, inside)
            return number

        fold(value, combine, operands_of)
        around = self.sure
        self.sure = frozenset(numbered[each][0] for each in unconditional_subexpressions(value))
        yield self.expression(value, numbered, True)
        self.sure = around

    def number(self, node: Node, inside: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Returns the number of a value and its cost, given those of its operands."""
        operands = [number for number, _ in inside]
        weight = own_cost(node, [each for _, each in inside])
        key: Hashable
        match node:
            case Load(array, indices) | LoadMerge(array, indices):
                key = (type(node), array, indices, self.version(array))
            case Gather(array, indices, axis):
                key = (type(node), array, indices, axis, self.version(array), *operands)
            case LocalRead(local):
                key = (local, self.version(local))
            case Binary(op, _, _, dtype) if op in _COMMUTATIVE:
                key = (op, dtype, *sorted(operands))
            case Unary(op, _, dtype) | Binary(op, _, _, dtype) | Ternary(op, _, _, _, dtype):
                key = (op, dtype, *operands)
            case Scoped(_, body):
                key = canonical_key(node, self.version)
                weight = fold(body, own_cost)
            case _:
                key = node
        return self.numbers.setdefault(key, len(self.numbers)), weight

    def expression(
        self, expr: Expr, numbered: IdentityMap[Node, tuple[int, int]], is_certain: bool
    ) -> Steps[None]:
        if _is_leaf(expr):
            return
        number, weight = numbered[expr]
        value = self.available.get(number)
        if value is not None and self.is_still_held(value):
            value.uses += 1
            self.found.append((value, False))
            return
        is_certain = is_certain or number in self.sure
        value = _RepeatedValue(weight, self.least_saved, is_certain)
        self.found.append((value, True))
        if isinstance(expr, Scoped):
            yield self.block(expr.body)
        for operand, always in operands_with_certainty(expr):
            yield self.expression(operand, numbered, is_certain and always)
        if is_certain:
            self.provided.append((number, self.available.get(number)))
            self.available[number] = value

    def is_still_held(self, value: _RepeatedValue) -> bool:
        return value.holder is None or self.version(value.holder[0]) == value.holder[1]


@dataclass(slots=True)
class _Author:
    """The second walk, over the same expressions in the same order: writes the program."""

    found: Iterator[Found]
    fresh: Fresh

    def stmts(self, stmts: Sequence[Stmt]) -> Steps[tuple[Stmt, ...]]:
        written: list[Stmt] = []
        for stmt in stmts:
            before: list[Stmt] = []
            rewritten = yield self.statement(stmt, before)
            written += [*before, rewritten]
        return tuple(written)

    def statement(self, stmt: Stmt, before: list[Stmt]) -> Steps[Stmt]:
        match stmt:
            case Store(value=value) | SetLocal(value=value) if is_pure(value):
                return replace(stmt, value=(yield self.expression(value, before)))
            case StoreVector(arg=arg) if is_pure(arg):
                return replace(stmt, arg=(yield self.expression(arg, before)))
            case For(body=body):
                return replace(stmt, body=Block((yield self.stmts(body.stmts))))
            case Block(stmts):
                return Block((yield self.stmts(stmts)))
            case _:
                return stmt

    def expression(self, expr: Expr, before: list[Stmt]) -> Steps[Expr]:
        if _is_leaf(expr):
            return expr
        value, is_first = next(self.found)
        if not is_first:
            return LocalRead(self.scalar(value, expr)) if value.is_shared else expr
        rewritten: Expr
        if isinstance(expr, Scoped):
            rewritten = replace(expr, body=Block((yield self.stmts(expr.body.stmts))))
        else:
            operands = []
            for operand, _ in operands_with_certainty(expr):
                operands.append((yield self.expression(operand, before)))
            rewritten = with_children(expr, operands)
        if not value.is_shared or value.holder is not None:
            return rewritten
        local = self.scalar(value, expr)
        before += [DeclareLocal(local), *assign_local(local, rewritten)]
        return LocalRead(local)

    def scalar(self, value: _RepeatedValue, expr: Expr) -> Local:
        if value.holder is not None:
            return value.holder[0]
        if value.local is None:
            value.local = self.fresh(expr)
        return value.local


def _is_leaf(expr: Expr) -> bool:
    return isinstance(expr, Load | LoadMerge | LocalRead | Const | ConstBits | IndexValue)


def _joins_others(stmt: Stmt) -> bool:
    """True of a statement without loops, which shares a kernel with its neighbours."""
    if isinstance(stmt, Block):
        return all(map(_joins_others, stmt.stmts))
    return isinstance(stmt, _TOGETHER) and not any(isinstance(n, For) for n in walk(stmt))
