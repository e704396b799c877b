"""Loop-invariant code motion.

                                            v: float32
for i in range(64):                         v = exp(s)
    c[i] = a[i] / exp(s)               -->  for i in range(64):
                                                c[i] = a[i] / v
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import field
from operator import is_
from typing import ClassVar

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.identity import IdentityMap
from ocannl_core.base.trampoline import Steps, run_trampoline
from ocannl_core.ir.indexing import LoopVar, variables
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops import traverse
from ocannl_core.ir.loops.equivalence import Key, Storage, alpha_key
from ocannl_core.passes.loops.local_variables import (
    Fresh,
    Variables,
    assign_local,
    collect_variables,
)
from ocannl_core.passes.loops.side_effects import assigned_by_node, is_pure
from ocannl_core.schedule.cost_model import cost, own_cost
from ocannl_core.schedule.machine_model import MIN_HOISTED_COST


def hoist_invariants(
    program: ir.LoopProgram, *, least_cost: int = MIN_HOISTED_COST
) -> ir.LoopProgram:
    """Hoist costly invariant expressions out of their loops; results are bit-identical.

    An expression moves out of every loop that it does not depend on, if each iteration evaluates
    it: not out of the branches of a `where`.

    Args:
        least_cost: The least cost of a hoisted expression; C compilers hoist cheap ones.
    """
    known: list[Variables] = []

    def statement(stmt: ir.Stmt) -> traverse.Replacement:
        if not isinstance(stmt, ir.For) or stmt.stop <= stmt.start:
            return stmt
        if stmt.kind.resource is not ir.Resource.THREAD:
            return stmt
        if not any(_is_costly(s, least_cost) for s in stmt.body.stmts):
            return stmt
        if traverse.contains(stmt.body, ir.Barrier):
            return stmt
        if not known:
            known.append(collect_variables(program.body))
        return _LoopHoister(least_cost, known[0].fresh, stmt, known[0]).hoist()

    body = traverse.rewrite(program.body, on_stmt=statement)
    return program if body is program.body else replace(program, body=body)


_Facts = IdentityMap[traverse.Node, tuple[bool, int]]
"""The variance and the cost of each subexpression."""


@dataclass(slots=True)
class Hoister(ABC):
    """Code to hoist expressions from."""

    hoists_from_branches: ClassVar[bool] = False
    """True if also expressions are hoisted that the code may never evaluate."""

    least_cost: int
    """The least cost of a hoisted expression."""
    fresh: Fresh
    before: list[ir.Stmt] = field(default_factory=list, init=False)
    """The statements to put in front of the code."""
    hoisted: dict[Key, ir.Local] = field(default_factory=dict, init=False)
    """The scalars that these set, by alpha-equivalence of their values."""

    @abstractmethod
    def varies_at(self, node: traverse.Node) -> bool:
        """Return True if the value of a node differs inside of the code, apart from its operands.

        The body of an inlined computation counts as a part of it.
        """

    def hoist_from_assignment(self, stmt: traverse.Assignment) -> ir.Stmt:
        """Replace the invariant parts of the values of an assignment by scalars."""
        moved = [self.hoist_from_value(value) for value in traverse.values_of(stmt)]
        return traverse.with_children(stmt, moved)

    def hoist_from_value(self, value: ir.Expr) -> ir.Expr:
        """Replace the invariant parts of a value by scalars."""
        return run_trampoline(self.hoist_from_expression(value, self.dependences(value)))

    def dependences(self, value: ir.Expr) -> _Facts:
        """Return the variance and the cost of each subexpression."""
        found: _Facts = IdentityMap()

        def combine(node: traverse.Node, inside: tuple[tuple[bool, int], ...]) -> tuple[bool, int]:
            differs = any(each for each, _ in inside) or self.varies_at(node)
            is_scoped = isinstance(node, ir.Scoped)
            weight = cost(node) if is_scoped else own_cost(node, [each for _, each in inside])
            found[node] = differs, weight
            return differs, weight

        traverse.fold(value, combine, traverse.operands_of)
        return found

    def hoist_from_expression(self, expr: ir.Expr, facts: _Facts) -> Steps[ir.Expr]:
        differs, weight = facts[expr]
        if not differs:
            return ir.LocalRead(self.scalar(expr)) if weight >= self.least_cost else expr
        if isinstance(expr, ir.Scoped):
            return self.hoist_from_scoped(expr)
        operands = []
        for operand, is_certain in traverse.operands_with_certainty(expr):
            if is_certain or self.hoists_from_branches:
                operand = yield self.hoist_from_expression(operand, facts)
            operands.append(operand)
        return traverse.with_children(expr, operands)

    def hoist_from_scoped(self, scoped: ir.Scoped) -> ir.Expr:
        """Hoist from the body of an inlined computation that varies."""
        return scoped

    def scalar(self, expr: ir.Expr) -> ir.Local:
        """Return the scalar for a value in front of the code."""
        key = alpha_key(expr)
        if key not in self.hoisted:
            self.set_before(expr, self.fresh(expr))
        return self.hoisted[key]

    def set_before(self, value: ir.Expr, local: ir.Local) -> None:
        """Set a scalar in front of the code."""
        known = self.hoisted.setdefault(alpha_key(value), local)
        self.before.append(ir.DeclareLocal(local))
        self.before += assign_local(local, value if known is local else ir.LocalRead(known))


@dataclass(slots=True)
class _LoopHoister(Hoister):
    """A loop to hoist expressions from."""

    loop: ir.For
    known: Variables
    changed: frozenset[Storage] = frozenset()
    """The memory and scalars that an iteration assigns."""

    def hoist(self) -> traverse.Replacement:
        """Return the statements hoisted out of the loop, and the rest of the loop."""
        self.changed = frozenset().union(
            *(assigned_by_node(node) for node in traverse.walk(self.loop.body))
        )
        stmts = self.hoist_from_statements(self.loop.body.stmts)
        if not self.before:
            return self.loop
        return (*self.before, replace(self.loop, body=ir.Block(stmts)))

    def hoist_from_statements(self, stmts: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        own = {stmt.local for stmt in stmts if isinstance(stmt, ir.DeclareLocal)}
        gone: set[ir.Local] = set()
        kept: list[ir.Stmt] = []
        for stmt in stmts:
            match stmt:
                case ir.SetLocal(local, value) if (
                    local in own and self.known.sets[local] == 1 and self.is_hoistable(value)
                ):
                    self.set_before(value, local)
                    gone.add(local)
                case ir.Store() | ir.SetLocal() | ir.StoreVector() | ir.Scatter():
                    kept.append(self.hoist_from_assignment(stmt))
                case _:
                    kept.append(stmt)
        if len(kept) == len(stmts) and all(map(is_, kept, stmts)):
            return stmts
        return tuple(s for s in kept if not (isinstance(s, ir.DeclareLocal) and s.local in gone))

    def set_before(self, value: ir.Expr, local: ir.Local) -> None:
        # explicit arguments: classes with slots are created twice
        Hoister.set_before(self, value, local)
        self.known.sets[local] = 1
        self.changed -= {local}

    def hoist_from_value(self, value: ir.Expr) -> ir.Expr:
        return Hoister.hoist_from_value(self, value) if is_pure(value) else value

    def hoist_from_scoped(self, scoped: ir.Scoped) -> ir.Expr:
        body = self.hoist_from_statements(scoped.body.stmts)
        return scoped if body is scoped.body.stmts else replace(scoped, body=ir.Block(body))

    def varies_at(self, node: traverse.Node) -> bool:
        match node:
            case ir.LocalRead(local):
                return local in self.changed
            case ir.Load(array) | ir.Gather(array):
                return array in self.changed or self.mentions_variable(node)
            case ir.Scoped():
                return self.is_varying(node)
            case _:
                return self.mentions_variable(node)

    def mentions_variable(self, node: traverse.Node) -> bool:
        var: LoopVar = self.loop.var
        return any(var in variables(index) for index in traverse.indices_of(node))

    def is_varying(self, scoped: ir.Scoped) -> bool:
        return (
            self.loop.var in traverse.free_variables(scoped)
            or not self.changed.isdisjoint(traverse.reads(scoped))
            or not self.changed.isdisjoint(traverse.free_locals(scoped))
        )

    def is_hoistable(self, value: ir.Expr) -> bool:
        if not is_pure(value):
            return False
        differs, weight = self.dependences(value)[value]
        return not differs and weight >= self.least_cost


def _is_costly(stmt: ir.Stmt, least: int) -> bool:
    values = traverse.values_of(stmt) if isinstance(stmt, traverse.Assignment) else ()
    return any(cost(value) >= least for value in values)
