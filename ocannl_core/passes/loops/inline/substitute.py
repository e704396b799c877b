"""Substitution: the value of a cell as an expression, from the definitions that write it in order.

t[:] = 0.0                                  read at t[a, b]
for i in range(3): t[i, i] = 4.0     -->    {v: v = 0.0; v = where(a == b, 4.0, v)}
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import IndexMap
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops import traverse
from ocannl_core.ir.loops.conversions import constant
from ocannl_core.ir.loops.loop_nests import conjunction
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType, int64, uint4x32
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp
from ocannl_core.passes.loops.inline.definition import InlinableDefinition
from ocannl_core.passes.loops.inline.invert_indices import Condition, Solution
from ocannl_core.passes.loops.inline.zeros import remove_additions_to_zero

LocatedDefinition = tuple[InlinableDefinition, Solution]
"""A definition, and its iterations that write the cell of the read."""


def build_cell_value(
    node: TensorNode,
    dtype: DType,
    cell: IndexMap,
    definitions: Sequence[LocatedDefinition],
    new_local: traverse.NewLocal,
    positive: Collection[TensorNode],
) -> ir.Expr:
    """Build the value of a cell after definitions, run one after the other.

    Args:
        cell: The cell, in terms of the reader's variables.
        definitions: The definitions that may write it, in order.
        positive: Nodes that never hold `-0.0`.
    """
    local = new_local(dtype, node)
    stmts: list[ir.Stmt] = []
    for definition, solution in definitions:
        writer = _CopyWriter(local, definition, solution, new_local)
        stmts += writer.write()
    stmts = remove_additions_to_zero(stmts, local, positive)
    match stmts:
        case [ir.SetLocal(_, value)] if not _mentions(value, local):
            return value
        case [ir.SetLocal(_, value), *_] if not _mentions(value, local):
            pass
        case _:
            zero = ir.ConstBits(0, dtype) if dtype is uint4x32 else ir.Const(0.0, dtype)
            stmts.insert(0, ir.SetLocal(local, zero))
    return ir.Scoped(local, ir.Block(tuple(stmts)), cell)


@dataclass(slots=True)
class _CopyWriter:
    """Writes one definition of a cell into a scalar."""

    local: ir.Local
    definition: InlinableDefinition
    solution: Solution
    new_local: traverse.NewLocal

    def write(self) -> tuple[ir.Stmt, ...]:
        solution = self.solution
        renaming = traverse.fresh_names(self.definition.body, self.new_local, solution.values)
        own = self.definition.node

        def expression(expr: ir.Expr) -> ir.Expr:
            if isinstance(expr, ir.Load) and expr.node is own:
                return ir.LocalRead(self.local)
            return renaming.on_expr(expr)

        def statement(stmt: ir.Stmt) -> traverse.Replacement:
            match stmt:
                case ir.Block():
                    return stmt
                case ir.For(var) if var in solution.kept:
                    kept = replace(stmt, var=solution.kept[var], kind=ir.AxisKind.SERIAL)
                    return traverse.with_bound_at(kept, renaming.values)
                case ir.For(var, body=body) if var in solution.values:
                    return body.stmts
                case ir.For():
                    loop = replace(stmt, var=renaming.loops[stmt.var], kind=ir.AxisKind.SERIAL)
                    return traverse.with_bound_at(loop, renaming.values)
                case ir.Store(node, _, value) if node is own:
                    return ir.SetLocal(self.local, self.guard(value))
                case ir.Fill(node, value) if node is own:
                    return ir.SetLocal(self.local, constant(value, self.local.dtype))
                case ir.Remark():
                    return ()
                case _:
                    return renaming.on_stmt(stmt)

        return traverse.rewrite(self.definition.body, statement, expression).stmts

    def guard(self, value: ir.Expr) -> ir.Expr:
        """Select the value where the conditions hold, and the scalar's previous value elsewhere."""
        holds = conjunction(
            part for each in self.solution.conditions for part in _build_tests(each)
        )
        if holds is None:
            return value
        return ir.Ternary(TernaryOp.WHERE, holds, value, ir.LocalRead(self.local), value.dtype)


def _build_tests(condition: Condition) -> list[ir.Expr]:
    index = ir.IndexValue(condition.index, int64)
    low, high = condition.low, condition.high
    if low is not None and low == high:
        return [ir.Binary(BinaryOp.EQ, index, ir.Const(low, int64), int64)]
    tests: list[ir.Expr] = []
    if low is not None:
        tests.append(ir.Binary(BinaryOp.LE, ir.Const(low, int64), index, int64))
    if high is not None:
        tests.append(ir.Binary(BinaryOp.LE, index, ir.Const(high, int64), int64))
    return tests


def _mentions(value: ir.Expr, local: ir.Local) -> bool:
    return any(
        isinstance(each, ir.LocalRead) and each.local == local for each in traverse.walk(value)
    )
