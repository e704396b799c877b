"""Common subexpression elimination by value numbering.

                                          v: float32
c[i] = exp(a[i]) / (exp(a[i]) + 1)   -->  v = exp(a[i])
d[i] = 2 * exp(a[i])                      c[i] = v / (v + 1)
                                          d[i] = 2 * v

Alpha-equivalent expressions have one value number as long as the memory and scalars that they read
are unchanged. A value is available to all later expressions of its block and of the nested blocks.
Branches of a `where` use available values, and values that the rest of their expression computes
anyway, but make none available, since a branch may not run.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import field

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.identity import IdentityMap
from ocannl_core.base.trampoline import Steps, run_trampoline
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.equivalence import Storage, alpha_key
from ocannl_core.ir.loops.traverse import (
    Node,
    fold,
    operands_of,
    operands_with_certainty,
    unconditional_subexpressions,
    values_of,
    walk,
    with_children,
)
from ocannl_core.passes.loops.local_variables import Fresh, assign_local, fresh_locals
from ocannl_core.passes.loops.once_per_form import is_loop_free
from ocannl_core.passes.loops.side_effects import assigned_memory, is_pure
from ocannl_core.passes.loops.simplify import simplify
from ocannl_core.schedule.cost_model import cost, own_cost
from ocannl_core.schedule.machine_model import MIN_SHARED_COST


def eliminate_common_subexpressions(
    program: ir.LoopProgram, *, least_saved: int = MIN_SHARED_COST
) -> ir.LoopProgram:
    """Eliminate common subexpressions; results are bit-identical.

    Args:
        least_saved: The least saving for which a scalar is introduced, see `cost`. C compilers
            share cheap expressions, and schedules need the terms of a sum in one expression.
    """
    numbering = _ValueNumbering(assigned_memory(program.body), least_saved)
    run_trampoline(numbering.number_top_level(program.body))
    if not any(value.is_shared for value, _ in numbering.occurrences):
        return program
    rewriter = _Rewriter(iter(numbering.occurrences), fresh_locals(program.body))
    stmts: tuple[ir.Stmt, ...] = run_trampoline(rewriter.rewrite_statements(program.body.stmts))
    return simplify(replace(program, body=ir.Block(stmts)))


@dataclass(slots=True, eq=False)
class _RepeatedValue:
    """A value at its first computation, available to later ones."""

    cost: int
    least_saved: int
    can_be_shared: bool
    """False in a branch that may not run."""
    uses: int = 1
    holder: tuple[ir.Local, int] | None = None
    """The scalar that the program already assigns it to, and the version of that scalar."""
    local: ir.Local | None = None

    @property
    def is_shared(self) -> bool:
        if self.uses < 2 or not self.can_be_shared:
            return False
        return self.holder is not None or (self.uses - 1) * self.cost >= self.least_saved


Occurrence = tuple[_RepeatedValue, bool]
"""The value of an expression, and True at its first occurrence."""


@dataclass(slots=True)
class _ValueNumbering:
    """First walk, in execution order: number the values and count their occurrences."""

    changed: IdentityMap[Node, frozenset[Storage]]
    """The memory and scalars that each statement assigns."""
    least_saved: int
    occurrences: list[Occurrence] = field(default_factory=list)
    """One entry for each expression, parents first; none for the operands of an expression that is
    already available.
    """
    available: dict[int, _RepeatedValue] = field(default_factory=dict)
    undo_log: list[tuple[int, _RepeatedValue | None]] = field(default_factory=list)
    """Undo log of `available`: each added number with its previous value."""
    versions: dict[Storage, int] = field(default_factory=dict)
    clock: int = 0
    cleared: int = 0
    certain: frozenset[int] = frozenset()
    """The numbers that the current expression computes outside of branches."""
    numbers: dict[Hashable, int] = field(default_factory=dict)

    def version(self, storage: Storage) -> int:
        return max(self.versions.get(storage, 0), self.cleared)

    def assign(self, *storages: Storage) -> None:
        self.clock += 1
        for storage in storages:
            self.versions[storage] = self.clock

    def number_block(self, block: ir.Block) -> Steps[None]:
        known = len(self.undo_log)
        for stmt in block.stmts:
            yield self.number_statement(stmt)
        while len(self.undo_log) > known:
            number, before = self.undo_log.pop()
            if before is None:
                del self.available[number]
            else:
                self.available[number] = before

    def number_top_level(self, block: ir.Block) -> Steps[None]:
        """Number the values of top-level statements; only neighbors without loops share any."""
        for stmt in block.stmts:
            if not is_loop_free(stmt):
                self.available = {}
            yield (
                self.number_top_level(stmt)
                if isinstance(stmt, ir.Block)
                else self.number_statement(stmt)
            )
            if not is_loop_free(stmt) or isinstance(stmt, ir.Block):
                self.available = {}

    def number_statement(self, stmt: ir.Stmt) -> Steps[None]:
        match stmt:
            case ir.Store(node) | ir.StoreVector(node) | ir.Scatter(node):
                for value in values_of(stmt):
                    yield self.number_root(value)
                self.assign(node)
            case ir.SetLocal(local, value):
                first = len(self.occurrences)
                yield self.number_root(value)
                self.assign(local)
                if first < len(self.occurrences) and self.occurrences[first][1]:
                    self.occurrences[first][0].holder = (local, self.version(local))
            case ir.For():
                yield self.number_loop(stmt)
            case ir.Block():
                yield self.number_block(stmt)
            case ir.Barrier():
                self.clock += 1
                self.cleared = self.clock
            case _:
                self.assign(*self.changed[stmt])

    def number_loop(self, loop: ir.For) -> Steps[None]:
        outer = self.available
        if loop.kind.has_own_threads:
            self.available = {}
        self.assign(*self.changed[loop])
        yield self.number_block(loop.body)
        self.assign(*self.changed[loop])
        self.available = outer

    def number_root(self, value: ir.Expr) -> Steps[None]:
        if not is_pure(value):  # left unchanged, with its effects and their order
            self.assign(*(s for node in walk(value) for s in self.changed.find(node) or ()))
            return
        numbered: IdentityMap[Node, tuple[int, int]] = IdentityMap()

        def combine(node: Node, inside: tuple[tuple[int, int], ...]) -> tuple[int, int]:
            number = numbered[node] = self.number_value(node, inside)
            return number

        fold(value, combine, operands_of)
        around = self.certain
        self.certain = frozenset(numbered[each][0] for each in unconditional_subexpressions(value))
        yield self.number_expression(value, numbered, True)
        self.certain = around

    def number_value(self, node: Node, inside: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Return the number and the cost of a value, given its operands' numbers and costs."""
        operands = [number for number, _ in inside]
        weight = own_cost(node, [each for _, each in inside])
        key: Hashable
        match node:
            case ir.Load(array, indices) | ir.LoadMerge(array, indices):
                key = (type(node), array, indices, self.version(array))
            case ir.Gather(array, indices, axis, beyond=beyond):
                place = (indices, axis, float(beyond).hex())
                key = (type(node), array, place, self.version(array), *operands)
            case ir.LocalRead(local):
                key = (local, self.version(local))
            case ir.Binary(op, _, _, dtype) if op.value.is_commutative:
                key = (op, dtype, *sorted(operands))
            case (
                ir.Unary(op, _, dtype) | ir.Binary(op, _, _, dtype) | ir.Ternary(op, _, _, _, dtype)
            ):
                key = (op, dtype, *operands)
            case ir.Scoped(_, body):
                key = alpha_key(node, self.version)
                weight = cost(body)
            case _:
                key = node
        return self.numbers.setdefault(key, len(self.numbers)), weight

    def number_expression(
        self, expr: ir.Expr, numbered: IdentityMap[Node, tuple[int, int]], is_certain: bool
    ) -> Steps[None]:
        if _is_leaf(expr):
            return
        number, weight = numbered[expr]
        value = self.available.get(number)
        if value is not None and self.is_still_held(value):
            value.uses += 1
            self.occurrences.append((value, False))
            return
        is_certain = is_certain or number in self.certain
        value = _RepeatedValue(weight, self.least_saved, is_certain)
        self.occurrences.append((value, True))
        if isinstance(expr, ir.Scoped):
            yield self.number_block(expr.body)
        for operand, always in operands_with_certainty(expr):
            yield self.number_expression(operand, numbered, is_certain and always)
        if is_certain:
            self.undo_log.append((number, self.available.get(number)))
            self.available[number] = value

    def is_still_held(self, value: _RepeatedValue) -> bool:
        return value.holder is None or self.version(value.holder[0]) == value.holder[1]


@dataclass(slots=True)
class _Rewriter:
    """Second walk, over the same expressions in the same order: write the program."""

    occurrences: Iterator[Occurrence]
    fresh: Fresh

    def rewrite_statements(self, stmts: Sequence[ir.Stmt]) -> Steps[tuple[ir.Stmt, ...]]:
        written: list[ir.Stmt] = []
        for stmt in stmts:
            before: list[ir.Stmt] = []
            rewritten = yield self.rewrite_statement(stmt, before)
            written += [*before, rewritten]
        return tuple(written)

    def rewrite_statement(self, stmt: ir.Stmt, before: list[ir.Stmt]) -> Steps[ir.Stmt]:
        match stmt:
            case ir.Store() | ir.SetLocal() | ir.StoreVector() | ir.Scatter():
                values = list(values_of(stmt))
                for place, value in enumerate(values):
                    if is_pure(value):
                        values[place] = yield self.rewrite_expression(value, before)
                return with_children(stmt, values)
            case ir.For(body=body):
                return replace(stmt, body=ir.Block((yield self.rewrite_statements(body.stmts))))
            case ir.Block(stmts):
                return ir.Block((yield self.rewrite_statements(stmts)))
            case _:
                return stmt

    def rewrite_expression(self, expr: ir.Expr, before: list[ir.Stmt]) -> Steps[ir.Expr]:
        if _is_leaf(expr):
            return expr
        value, is_first = next(self.occurrences)
        if not is_first:
            return ir.LocalRead(self.scalar(value, expr)) if value.is_shared else expr
        rewritten: ir.Expr
        if isinstance(expr, ir.Scoped):
            rewritten = replace(
                expr, body=ir.Block((yield self.rewrite_statements(expr.body.stmts)))
            )
        else:
            operands = []
            for operand, _ in operands_with_certainty(expr):
                operands.append((yield self.rewrite_expression(operand, before)))
            rewritten = with_children(expr, operands)
        if not value.is_shared or value.holder is not None:
            return rewritten
        local = self.scalar(value, expr)
        before += [ir.DeclareLocal(local), *assign_local(local, rewritten)]
        return ir.LocalRead(local)

    def scalar(self, value: _RepeatedValue, expr: ir.Expr) -> ir.Local:
        if value.holder is not None:
            return value.holder[0]
        if value.local is None:
            value.local = self.fresh(expr)
        return value.local


def _is_leaf(expr: ir.Expr) -> bool:
    return isinstance(
        expr, ir.Load | ir.LoadMerge | ir.LocalRead | ir.Const | ir.ConstBits | ir.IndexValue
    )
