"""The value of a cell as an expression: the computations that write it, one after the other.

t[:] = 0.0                                  read at t[a, b]
for i in range(3): t[i, i] = 4.0     -->    {v: v = 0.0; v = where(a == b, 4.0, v)}
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from ocannl_core.dtypes import DType, int64, round_to, uint4x32
from ocannl_core.fast_dataclass import dataclass, replace
from ocannl_core.indexing import (
    AxisIndex,
    IndexMap,
    IndexVar,
    LoopVar,
    VarIndex,
    fresh_var,
    substitute,
)
from ocannl_core.loopir.nodes import (
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
    Ternary,
)
from ocannl_core.loopir.traverse import Replacement, map_expr, rewrite, walk
from ocannl_core.node import TensorNode
from ocannl_core.ops import BinaryOp, TernaryOp
from ocannl_core.passes.inline.definition import InlinableDefinition
from ocannl_core.passes.inline.invert_indices import Condition, Solution
from ocannl_core.passes.inline.zeros import without_additions_to_zero

Located = tuple[InlinableDefinition, Solution]
"""A computation, and which of its iterations write the cell that is asked for."""


def value_of_cell(
    node: TensorNode,
    dtype: DType,
    cell: IndexMap,
    computations: Sequence[Located],
    new_local: Callable[[DType, TensorNode | None], Local],
    positive: Collection[TensorNode] = (),
) -> Expr:
    """Returns the value that computations, run one after the other, leave in a cell.

    Args:
        node: The node.
        dtype: Its number format.
        cell: The cell, in terms of the reader's variables.
        computations: What may write it, in order.
        new_local: Makes a variable that the program does not have yet.
        positive: Nodes that never hold `-0.0`.
    """
    local = new_local(dtype, node)
    stmts: list[Stmt] = []
    for computation, solution in computations:
        writer = _CopyWriter(local, computation, solution, new_local)
        stmts += writer.statements()
    stmts = without_additions_to_zero(stmts, local, positive)
    match stmts:
        case [SetLocal(_, value)] if not _mentions(value, local):
            return value
        case [SetLocal(_, value), *_] if not _mentions(value, local):
            pass
        case _:
            stmts.insert(0, SetLocal(local, _zero(dtype)))
    return Scoped(local, Block(tuple(stmts)), cell)


def copy_of(value: Expr, new_local: Callable[[DType, TensorNode | None], Local]) -> Expr:
    """Returns a second copy of a value, with loop variables and scalar variables of its own."""
    renaming = _Renaming(value, {}, new_local)
    return map_expr(value, renaming.expression, renaming.statement)


class _Renaming:
    """Index variables replaced by indices; everything bound inside gets a name of its own."""

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

    def indices(self, indices: tuple[AxisIndex, ...]) -> tuple[AxisIndex, ...]:
        return tuple(substitute(index, self.values) for index in indices)

    def expression(self, expr: Expr) -> Expr:
        match expr:
            case Load() | LoadMerge() | Gather():
                return replace(expr, indices=self.indices(expr.indices))
            case IndexValue(index):
                return replace(expr, index=substitute(index, self.values))
            case LocalRead(local) if local in self.locals:
                return LocalRead(self.locals[local])
            case Scoped(local):
                indices = self.indices(expr.indices)
                return replace(expr, local=self.locals[local], indices=indices)
            case _:
                return expr

    def statement(self, stmt: Stmt) -> Replacement:
        match stmt:
            case For(var) if var in self.loops:
                return replace(stmt, var=self.loops[var])
            case SetLocal(local) if local in self.locals:
                return replace(stmt, local=self.locals[local])
            case _:
                return stmt


@dataclass(slots=True)
class _CopyWriter:
    """Writes one computation of a cell into a variable."""

    local: Local
    computation: InlinableDefinition
    solution: Solution
    new_local: Callable[[DType, TensorNode | None], Local]

    def statements(self) -> tuple[Stmt, ...]:
        solution = self.solution
        renaming = _Renaming(self.computation.body, solution.values, self.new_local)
        own = self.computation.node

        def expression(expr: Expr) -> Expr:
            if isinstance(expr, Load) and expr.node is own:
                return LocalRead(self.local)
            return renaming.expression(expr)

        def statement(stmt: Stmt) -> Replacement:
            match stmt:
                case For(var) if var in solution.kept:
                    return replace(stmt, var=solution.kept[var], kind=AxisKind.SERIAL)
                case For(var, body=body) if var in solution.values:
                    return body.stmts
                case For():
                    return replace(stmt, var=renaming.loops[stmt.var], kind=AxisKind.SERIAL)
                case Store(node, _, value) if node is own:
                    return SetLocal(self.local, self.guarded(value))
                case Fill(node, value) if node is own:
                    return SetLocal(self.local, _number(value, self.local.dtype))
                case Remark():
                    return ()
                case _:
                    return renaming.statement(stmt)

        return rewrite(self.computation.body, statement, expression).stmts

    def guarded(self, value: Expr) -> Expr:
        """Returns the value where the conditions hold, and what the variable holds elsewhere."""
        conditions = [part for each in self.solution.conditions for part in _tests(each)]
        if not conditions:
            return value
        holds = conditions[0]
        for condition in conditions[1:]:
            holds = Binary(BinaryOp.AND, holds, condition, int64)
        return Ternary(TernaryOp.WHERE, holds, value, LocalRead(self.local), value.dtype)


def _tests(condition: Condition) -> list[Expr]:
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


def _number(value: float, dtype: DType) -> Expr:
    number = round_to(value, dtype)
    if dtype.is_integer and abs(number) > 2**53:
        return ConstBits(number & (2**64 - 1), dtype)
    return Const(number, dtype)
