"""Hoist scalars out of all loops of a kernel: the values that none of its loops changes.

    for i in range(1000):           v = f(s)
      x[i] = g(f(s), i)     -->     for i in range(1000):
                                      x[i] = g(v, i)

This is the inverse of `sink_scalars`, for kernels whose schedule is chosen: each thread that takes
a part of the loops computes the scalars once for it.
"""

from __future__ import annotations

from dataclasses import field

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.identity import IdentityMap
from ocannl_core.base.trampoline import Steps, run_trampoline
from ocannl_core.ir.indexing import FixedIndex, LoopVar, variables
from ocannl_core.ir.kernels.nest import flat_statements
from ocannl_core.ir.kernels.nodes import Kernel, NodeInfos
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops import traverse
from ocannl_core.ir.loops.equivalence import Key, alpha_key
from ocannl_core.ir.node import TensorNode
from ocannl_core.passes.loops.local_variables import Fresh, fresh_locals
from ocannl_core.schedule.expression_cost import own_cost
from ocannl_core.schedule.machine_model import MIN_HOISTED_COST


def hoist_scalars(kernel: Kernel, nodes: NodeInfos) -> Kernel:
    """Return a kernel that computes costly values which no loop changes in front of its loops.

    Cheap ones stay: C compilers hoist them.
    """
    stmts = flat_statements(kernel.body)
    if any(isinstance(each, ir.Barrier | ir.Staged) for each in traverse.walk(kernel.body)):
        return kernel
    hoister = _Hoister(frozenset(traverse.writes(kernel.body)), nodes, fresh_locals(kernel.body))
    rest = [hoister.without_scalars(each) if isinstance(each, ir.For) else each for each in stmts]
    if not hoister.front:
        return kernel
    return replace(kernel, body=ir.Block((*hoister.front, *rest)))


@dataclass(slots=True)
class _Hoister:
    """The scalars hoisted out of one kernel.

    Attributes:
        known: The scalars that these set, by alpha-equivalence of their values.
    """

    written: frozenset[TensorNode]
    nodes: NodeInfos
    fresh: Fresh
    front: list[ir.Stmt] = field(default_factory=list)
    known: dict[Key, ir.Local] = field(default_factory=dict)

    def without_scalars(self, loop: ir.For) -> ir.Stmt:
        """Return a loop that reads the hoisted scalars."""
        body = traverse.map_stmts(loop, self.rewritten)
        return body.stmts[0] if len(body.stmts) == 1 else body

    def rewritten(self, stmt: ir.Stmt) -> ir.Stmt:
        match stmt:
            case ir.Store(value=value) | ir.SetLocal(value=value):
                moved = self.moved(value)
                return stmt if moved is value else replace(stmt, value=moved)
            case ir.StoreVector(arg=arg):
                moved = self.moved(arg)
                return stmt if moved is arg else replace(stmt, arg=moved)
            case ir.Scatter(position=position, value=value):
                place, moved = self.moved(position), self.moved(value)
                is_same = place is position and moved is value
                return stmt if is_same else replace(stmt, position=place, value=moved)
            case _:
                return stmt

    def moved(self, value: ir.Expr) -> ir.Expr:
        """Return a value with its costly invariant parts as scalars."""
        facts: IdentityMap[traverse.Node, tuple[bool, int]] = IdentityMap()

        def combine(node: traverse.Node, inside: tuple[tuple[bool, int], ...]) -> tuple[bool, int]:
            varies = any(each for each, _ in inside) or self.varies_at(node)
            facts[node] = varies, own_cost(node, [weight for _, weight in inside])
            return facts[node]

        traverse.fold(value, combine, traverse.operands_of)
        return run_trampoline(self.moved_parts(value, facts))

    def moved_parts(
        self, expr: ir.Expr, facts: IdentityMap[traverse.Node, tuple[bool, int]]
    ) -> Steps[ir.Expr]:
        varies, weight = facts[expr]
        if not varies:
            return ir.LocalRead(self.scalar(expr)) if weight >= MIN_HOISTED_COST else expr
        operands = traverse.operands_of(expr)
        parts: list[ir.Expr] = []
        for operand in operands:
            assert isinstance(operand, ir.Expr)
            parts.append((yield self.moved_parts(operand, facts)))
        return traverse.with_children(expr, parts) if parts else expr

    def varies_at(self, node: traverse.Node) -> bool:
        """Return True unless a node has one value in the whole kernel, under any condition."""
        match node:
            case ir.Const() | ir.ConstBits() | ir.Unary() | ir.Binary() | ir.Ternary():
                return False
            case ir.IndexValue(index):
                return any(isinstance(var, LoopVar) for var in variables(index))
            case ir.Load(array, indices):
                is_fixed = all(isinstance(index, FixedIndex) for index in indices)
                return not is_fixed or array in self.written or not self.nodes[array].size
            case _:
                return True

    def scalar(self, expr: ir.Expr) -> ir.Local:
        key = alpha_key(expr)
        if key not in self.known:
            local = self.known[key] = self.fresh(expr)
            self.front += (ir.DeclareLocal(local), ir.SetLocal(local, expr))
        return self.known[key]
