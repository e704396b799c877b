"""Substitution: the value of a cell as an expression, from the definitions that write it in order.

t[:] = 0.0                                  read at t[a, b]
for i in range(3): t[i, i] = 4.0     -->    {v: v = 0.0; v = where(a == b, 4.0, v)}
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import (
    AxisIndex,
    IndexMap,
    IndexVar,
    LoopVar,
    VarIndex,
    fresh_var,
    substitute,
)
from ocannl_core.ir.loops.nodes import (
    AxisKind,
    Binary,
    Block,
    Const,
    ConstBits,
    Expr,
    Fill,
    For,
    Gather,
    IndexValue,
    Load,
    LoadMerge,
    Local,
    LocalRead,
    Remark,
    Scoped,
    SetLocal,
    Stmt,
    Store,
    SubgroupReduce,
    Ternary,
)
from ocannl_core.ir.loops.traverse import Replacement, map_expr, rewrite, walk, with_bound_at
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType, int64, round_to, uint4x32
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
    new_local: Callable[[DType, TensorNode | None], Local],
    positive: Collection[TensorNode] = (),
) -> Expr:
    """Build the value of a cell after definitions, run one after the other.

    Args:
        dtype: Its number format.
        cell: The cell, in terms of the reader's variables.
        definitions: The definitions that may write it, in order.
        new_local: Makes an unused scalar.
        positive: Nodes that never hold `-0.0`.
    """
    local = new_local(dtype, node)
    stmts: list[Stmt] = []
    for definition, solution in definitions:
        writer = _CopyWriter(local, definition, solution, new_local)
        stmts += writer.write()
    stmts = remove_additions_to_zero(stmts, local, positive)
    match stmts:
        case [SetLocal(_, value)] if not _mentions(value, local):
            return value
        case [SetLocal(_, value), *_] if not _mentions(value, local):
            pass
        case _:
            stmts.insert(0, SetLocal(local, _zero(dtype)))
    return Scoped(local, Block(tuple(stmts)), cell)


def copy_value(value: Expr, new_local: Callable[[DType, TensorNode | None], Local]) -> Expr:
    """Copy a value, with fresh loop variables and scalars."""
    renaming = _Renaming(value, {}, new_local)
    return map_expr(value, renaming.rewrite_expression, renaming.rewrite_statement)


class _Renaming:
    """Substitution of indices for index variables, with fresh names for all bound variables."""

    def __init__(
        self,
        root: Expr | Stmt,
        values: Mapping[IndexVar, AxisIndex],
        new_local: Callable[[DType, TensorNode | None], Local],
    ) -> None:
        self.loops: dict[LoopVar, LoopVar] = {}
        self.locals: dict[Local, Local] = {}
        for each in walk(root):
            match each:
                case For(var) if var not in values and var not in self.loops:
                    self.loops[var] = fresh_var(var.hint)
                case Scoped(local) if local not in self.locals:
                    self.locals[local] = new_local(local.dtype, local.node)
                case _:
                    pass
        self.values: dict[IndexVar, AxisIndex] = dict(values)
        self.values.update((old, VarIndex(new)) for old, new in self.loops.items())

    def substitute_indices(self, indices: tuple[AxisIndex, ...]) -> tuple[AxisIndex, ...]:
        return tuple(substitute(index, self.values) for index in indices)

    def rewrite_expression(self, expr: Expr) -> Expr:
        match expr:
            case Load() | LoadMerge() | Gather():
                return replace(expr, indices=self.substitute_indices(expr.indices))
            case IndexValue(index):
                return replace(expr, index=substitute(index, self.values))
            case LocalRead(local) if local in self.locals:
                return LocalRead(self.locals[local])
            case Scoped(local):
                indices = self.substitute_indices(expr.indices)
                return replace(expr, local=self.locals[local], indices=indices)
            case _:
                return expr

    def rewrite_statement(self, stmt: Stmt) -> Replacement:
        match stmt:
            case For(var) if var in self.loops:
                return with_bound_at(replace(stmt, var=self.loops[var]), self.values)
            case SetLocal(local) | SubgroupReduce(local) if local in self.locals:
                return replace(stmt, local=self.locals[local])
            case _:
                return stmt


@dataclass(slots=True)
class _CopyWriter:
    """Writes one definition of a cell into a scalar."""

    local: Local
    definition: InlinableDefinition
    solution: Solution
    new_local: Callable[[DType, TensorNode | None], Local]

    def write(self) -> tuple[Stmt, ...]:
        solution = self.solution
        renaming = _Renaming(self.definition.body, solution.values, self.new_local)
        own = self.definition.node

        def expression(expr: Expr) -> Expr:
            if isinstance(expr, Load) and expr.node is own:
                return LocalRead(self.local)
            return renaming.rewrite_expression(expr)

        def statement(stmt: Stmt) -> Replacement:
            match stmt:
                case For(var) if var in solution.kept:
                    kept = replace(stmt, var=solution.kept[var], kind=AxisKind.SERIAL)
                    return with_bound_at(kept, renaming.values)
                case For(var, body=body) if var in solution.values:
                    return body.stmts
                case For():
                    loop = replace(stmt, var=renaming.loops[stmt.var], kind=AxisKind.SERIAL)
                    return with_bound_at(loop, renaming.values)
                case Store(node, _, value) if node is own:
                    return SetLocal(self.local, self.guard(value))
                case Fill(node, value) if node is own:
                    return SetLocal(self.local, _build_constant(value, self.local.dtype))
                case Remark():
                    return ()
                case _:
                    return renaming.rewrite_statement(stmt)

        return rewrite(self.definition.body, statement, expression).stmts

    def guard(self, value: Expr) -> Expr:
        """Select the value where the conditions hold, and the scalar's previous value elsewhere."""
        conditions = [part for each in self.solution.conditions for part in _build_tests(each)]
        if not conditions:
            return value
        holds = conditions[0]
        for condition in conditions[1:]:
            holds = Binary(BinaryOp.AND, holds, condition, int64)
        return Ternary(TernaryOp.WHERE, holds, value, LocalRead(self.local), value.dtype)


def _build_tests(condition: Condition) -> list[Expr]:
    index = IndexValue(condition.index, int64)
    low, high = condition.low, condition.high
    if low is not None and low == high:
        return [Binary(BinaryOp.EQ, index, Const(low, int64), int64)]
    tests: list[Expr] = []
    if low is not None:
        tests.append(Binary(BinaryOp.LE, Const(low, int64), index, int64))
    if high is not None:
        tests.append(Binary(BinaryOp.LE, index, Const(high, int64), int64))
    return tests


def _mentions(value: Expr, local: Local) -> bool:
    return any(isinstance(each, LocalRead) and each.local == local for each in walk(value))


def _zero(dtype: DType) -> Expr:
    return ConstBits(0, dtype) if dtype is uint4x32 else Const(0.0, dtype)


def _build_constant(value: float, dtype: DType) -> Expr:
    number = round_to(value, dtype)
    if dtype.is_integer and abs(number) > 2**53:
        return ConstBits(number & (2**64 - 1), dtype)
    return Const(number, dtype)
