"""Conversion of one-hot reductions to gathers, and of one-hot updates to scatters.

for k in range(10): c[i] += where(k == id[i], table[k], 0)   -->   c[i] += gather(table[id[i]])
for k in range(10): c[k] += where(k == id[i], x[i], 0)       -->   scatter(c[id[i]]) += x[i]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import LoopVar, VarIndex, variables
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops import traverse
from ocannl_core.ir.loops.computed_positions import with_index
from ocannl_core.ir.loops.loop_nests import conjunction
from ocannl_core.ir.loops.ranges import Range
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp
from ocannl_core.passes.loops.local_variables import Fresh, fresh_locals
from ocannl_core.passes.loops.simplify import simplify
from ocannl_core.passes.loops.value_analysis import fits, is_leaf, is_number


def gather_one_hot(
    program: ir.LoopProgram,
    *,
    tables_are_finite: bool = False,
    positive: Collection[TensorNode] = (),
) -> ir.LoopProgram:
    """Replace reductions that select one entry of a table by guarded gathers, and updates of one
    entry by scatters.

    The reduction must run over a variable `k` that is compared with a number independent of `k`. A
    number that is not a position of the table, or has a fraction, selects nothing.

    `where(k == id, x, 0)` selects exactly: results are bit-identical. A product `(k == id) * x`
    gives the same numbers only if no other entry is infinite or NaN, since zero times those is NaN.
    For floats it is therefore rewritten only on request, and the sign of zeros may change then.

    An update of every cell `k` along an axis, by a term that is zero unless `k` equals a number, is
    an update of one cell, in the same order. Adding zero changes a cell only if it is -0.0.

    Args:
        tables_are_finite: True if all entries that are multiplied by zero are finite.
        positive: Nodes that never hold -0.0.
    """
    if not traverse.contains(program.body, ir.IndexValue):
        return program  # no loop variable is compared
    fresh = fresh_locals(program.body)
    rules = _OneHotRules(program.nodes, fresh, tables_are_finite, frozenset(positive))
    body = traverse.rewrite(program.body, on_stmt=rules.rewrite_statement)
    return program if body is program.body else simplify(replace(program, body=body))


@dataclass(frozen=True, slots=True)
class _Selection:
    """A term that is `value` where a loop variable equals `position`, and zero elsewhere."""

    position: ir.Expr
    value: ir.Expr


@dataclass(slots=True)
class _OneHotRules:
    nodes: Mapping[TensorNode, NodeInfo]
    fresh: Fresh
    tables_are_finite: bool
    positive: frozenset[TensorNode]

    def rewrite_statement(self, stmt: ir.Stmt) -> traverse.Replacement:
        if not isinstance(stmt, ir.For) or stmt.kind not in (
            ir.AxisKind.SERIAL,
            ir.AxisKind.REDUCTION,
        ):
            return stmt
        loops, update = _match_nest(stmt.body)
        if update is None or stmt.stop - stmt.start < 2 or stmt.bound is not None:
            return stmt
        found = _match_accumulation(update)
        selection = None if found is None else self.match_selection(found[1], stmt)
        if found is None or selection is None:
            return stmt
        if isinstance(update, ir.Store) and self.updates_one_cell(selection, update, stmt):
            return self.build_scatter(selection, update, stmt, loops)
        if not _is_independent(selection, update, stmt.var):
            return stmt
        gathered = self.build_gather(selection, stmt)
        if gathered is None:
            return stmt
        setup, value = gathered
        total: ir.Expr = ir.Binary(BinaryOp.ADD, found[0], value, value.dtype)
        if value.dtype.is_float:  # the other terms turned a total of -0.0 into 0.0
            total = ir.Binary(BinaryOp.ADD, total, ir.Const(0.0, value.dtype), value.dtype)
        return traverse.with_loops(loops, ir.Block((*setup, replace(update, value=total))))

    def match_selection(self, term: ir.Expr, loop: ir.For) -> _Selection | None:
        """Match a term that selects by the loop variable."""
        match term:
            case ir.Ternary(TernaryOp.WHERE, condition, value, zero) if is_number(zero, 0.0):
                return self.match_comparison(condition, value, loop, BinaryOp.EQ)
            case ir.Ternary(TernaryOp.WHERE, condition, zero, value) if is_number(zero, 0.0):
                return self.match_comparison(condition, value, loop, BinaryOp.NE)
            case ir.Binary(BinaryOp.MUL, left, right, dtype):
                if dtype.is_float and not self.tables_are_finite:
                    return None
                return self.match_product(left, right, loop) or self.match_product(
                    right, left, loop
                )
            case _:
                return None

    def match_comparison(
        self, condition: ir.Expr, value: ir.Expr, loop: ir.For, op: BinaryOp
    ) -> _Selection | None:
        """Match a selection by a comparison of the loop variable with an expression."""
        match condition:
            case ir.Unary(UnaryOp.IDENTITY, ir.Binary() as inner):
                return self.match_comparison(inner, value, loop, op)
            case ir.Binary(found, ir.IndexValue(VarIndex(var)) as counter, position) if found is op:
                pass
            case ir.Binary(found, position, ir.IndexValue(VarIndex(var)) as counter) if found is op:
                pass
            case _:
                return None
        steps = Range(loop.start, loop.stop - 1)
        is_counter = var == loop.var and fits(steps, counter.dtype)
        return _Selection(_as_integer(position, loop), value) if is_counter else None

    def match_product(self, flag: ir.Expr, value: ir.Expr, loop: ir.For) -> _Selection | None:
        """Match a product with a factor that is 1 or 0, or that is itself a selection."""
        direct = self.match_comparison(flag, value, loop, BinaryOp.EQ)
        if direct is not None:
            return direct
        inner = self.match_selection(flag, loop)
        if inner is None:
            return None
        product = ir.Binary(BinaryOp.MUL, inner.value, value, value.dtype)
        return _Selection(inner.position, product)

    def build_gather(
        self, selection: _Selection, loop: ir.For
    ) -> tuple[tuple[ir.Stmt, ...], ir.Expr] | None:
        """Return the statements to run before, and the selected value without the loop."""
        position, value = selection.position, selection.value
        if isinstance(value, ir.Load) and self.covers(value, loop):
            return (), _replace_load(value, loop.var, position)
        position, setup = self.named(position)
        at = traverse.map_expr(value, partial(_replace_load, var=loop.var, position=position))
        if loop.var in traverse.free_variables(at):
            return None
        zero = ir.Const(0.0, value.dtype)
        guard = _build_bounds_check(position, loop)
        return setup, ir.Ternary(TernaryOp.WHERE, guard, at, zero, value.dtype)

    def covers(self, access: ir.Load | ir.Store, loop: ir.For) -> bool:
        """Return True if the loop runs over the whole axis of a table that it indexes."""
        if not _is_column(access, loop.var):
            return False
        axis = access.indices.index(VarIndex(loop.var))
        return loop.start == 0 and loop.stop == self.nodes[access.node].buffer_dims[axis]

    def updates_one_cell(self, selection: _Selection, update: ir.Store, loop: ir.For) -> bool:
        """Return True if an update changes only the cell at the selected position of an axis."""
        dtype = update.value.dtype
        keeps_others = not dtype.is_float or self.tables_are_finite or update.node in self.positive
        return (
            keeps_others
            and self.covers(update, loop)
            and not any(
                loop.var in traverse.free_variables(part) or update.node in traverse.reads(part)
                for part in (selection.position, selection.value)
            )
        )

    def build_scatter(
        self, selection: _Selection, update: ir.Store, loop: ir.For, loops: list[ir.For]
    ) -> ir.Block:
        """Return the update of one cell, in the loops inside of the removed one."""
        axis = update.indices.index(VarIndex(loop.var))
        free = with_index(update.indices, axis)
        position, setup = self.named(selection.position)
        dtype = update.value.dtype
        own = ir.Gather(update.node, free, axis, position, dtype)
        total = ir.Binary(BinaryOp.ADD, own, selection.value, dtype)
        return traverse.with_loops(
            loops, ir.Block((*setup, ir.Scatter(update.node, free, axis, position, total)))
        )

    def named(self, position: ir.Expr) -> tuple[ir.Expr, tuple[ir.Stmt, ...]]:
        """Return a position that may be repeated, and the statements that compute it."""
        if is_leaf(position):
            return position, ()
        local = self.fresh(position)
        return ir.LocalRead(local), (ir.DeclareLocal(local), ir.SetLocal(local, position))


def _match_nest(body: ir.Block) -> tuple[list[ir.For], ir.Store | ir.SetLocal | None]:
    """Return the only statement of a nest and the loops around it, outermost first."""
    loops: list[ir.For] = []
    while True:
        match [stmt for stmt in body.stmts if not isinstance(stmt, ir.Remark)]:
            case [ir.For(body=body, kind=ir.AxisKind.SERIAL | ir.AxisKind.REDUCTION) as loop]:
                loops.append(loop)
            case [ir.Store() | ir.SetLocal() as update]:
                return loops, update
            case _:
                return loops, None


def _match_accumulation(update: ir.Store | ir.SetLocal) -> tuple[ir.Expr, ir.Expr] | None:
    """Return an accumulator and the term that a statement adds to it."""
    own: ir.Expr
    match update:
        case ir.Store(node, indices, value):
            own = ir.Load(node, indices, value.dtype)
        case ir.SetLocal(local):
            own = ir.LocalRead(local)
    match update.value:
        case ir.Binary(BinaryOp.ADD, left, right) if own in (left, right):
            return own, right if left == own else left
        case _:
            return None


def _is_independent(selection: _Selection, update: ir.Store | ir.SetLocal, var: LoopVar) -> bool:
    """Return True if only the comparison and the table depend on the iteration."""
    if var in traverse.free_variables(selection.position):
        return False
    for part in (selection.position, selection.value):
        match update:
            case ir.Store(node, indices):
                if node in traverse.reads(part) or any(
                    var in variables(index) for index in indices
                ):
                    return False
            case ir.SetLocal(local):
                if local in traverse.locals_of(part):
                    return False
    return not traverse.contains(selection.value, ir.Scoped)


def _as_integer(position: ir.Expr, loop: ir.For) -> ir.Expr:
    """Return an integer without the conversion to a float that holds all values of the loop
    exactly: larger integers are not rounded to one of them.
    """
    match position:
        case ir.Unary(UnaryOp.IDENTITY, arg, dtype) if arg.dtype.is_integer and dtype.is_float:
            is_exact = loop.start >= 0 and loop.stop <= 2**dtype.significand
            return arg if is_exact and not dtype.is_narrow else position
        case _:
            return position


def _is_column(expr: ir.Expr | ir.Store, var: LoopVar) -> bool:
    """Return True if the variable indexes an access by itself, along one axis."""
    if not isinstance(expr, ir.Load | ir.Store):
        return False
    mentions = [index for index in traverse.indices_of(expr) if var in variables(index)]
    return mentions == [VarIndex(var)]


def _replace_load(expr: ir.Expr, var: LoopVar, position: ir.Expr) -> ir.Expr:
    """a[k, j] --> gather(a[position, j])."""
    if not isinstance(expr, ir.Load) or not _is_column(expr, var):
        return expr
    axis = expr.indices.index(VarIndex(var))
    return ir.Gather(expr.node, with_index(expr.indices, axis), axis, position, expr.dtype)


def _build_bounds_check(position: ir.Expr, loop: ir.For) -> ir.Expr:
    """Build the test that a number is one of the values of a loop variable."""
    dtype = position.dtype
    lowest, highest = ir.Const(loop.start, dtype), ir.Const(loop.stop - 1, dtype)
    tests = [
        ir.Binary(BinaryOp.LE, lowest, position, dtype),
        ir.Binary(BinaryOp.LE, position, highest, dtype),
    ]
    if dtype.is_float:
        whole = ir.Unary(UnaryOp.TRUNC, position, dtype)
        tests.append(ir.Binary(BinaryOp.EQ, position, whole, dtype))
    found = conjunction(tests)
    assert found is not None
    return found
