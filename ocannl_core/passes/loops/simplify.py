"""Simplification by algebraic rules, index ranges, loop bounds, and copy propagation of scalars.

for i in range(1): c[i] = a[i] * 1.0   -->   c[0] = a[0]
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import AxisIndex, FixedIndex, LoopVar, as_affine
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.computed_positions import with_index
from ocannl_core.ir.loops.ranges import Range
from ocannl_core.ir.loops.traverse import (
    Replacement,
    declares,
    locals_of,
    map_expr,
    remove_unused_nodes,
    rewrite,
    substitute_in_stmt,
    walk,
    writes,
)
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.ir.numbers.primitives import COMPARISONS, BinaryOp, UnaryOp
from ocannl_core.passes.loops import value_analysis
from ocannl_core.passes.loops.algebraic_rules import simplify_once
from ocannl_core.passes.loops.local_variables import (
    Fresh,
    Variables,
    assign_local,
    collect_variables,
)
from ocannl_core.passes.loops.side_effects import is_pure

_MOST_ROUNDS = 100
_LARGEST_POWER = 16
"""The largest exponent for which an integer power becomes a product."""


def simplify(program: ir.LoopProgram, *, positive: Collection[TensorNode] = ()) -> ir.LoopProgram:
    """Simplify a program; results are bit-identical.

    A program with nothing to simplify is returned itself.

    Args:
        positive: Nodes that never hold `-0.0` when they are read.
    """
    body = program.body
    for _ in range(_MOST_ROUNDS):
        rules = _Rules(collect_variables(body, program.indices), program.nodes, positive)
        simpler = rewrite(body, rules.rewrite_statement, rules.rewrite_expression)
        if simpler is body:
            break
        body = simpler
    return remove_unused_nodes(program if body is program.body else replace(program, body=body))


def simplify_expr(expr: ir.Expr) -> ir.Expr:
    """Simplify an expression without context."""
    rules = _Rules(collect_variables(expr), {})
    return map_expr(expr, rules.rewrite_expression, rules.rewrite_statement)


@dataclass(slots=True)
class _Rules:
    """The rewrite rules of one round, with the variables of the program."""

    known: Variables
    nodes: Mapping[TensorNode, NodeInfo]
    positive: Collection[TensorNode] = ()

    def rewrite_expression(self, expr: ir.Expr) -> ir.Expr:
        while True:
            simpler = simplify_once(expr) or self._simplify_in_context(expr)
            if simpler is None:
                return expr
            expr = simpler

    def _simplify_in_context(self, expr: ir.Expr) -> ir.Expr | None:
        match expr:
            case ir.Binary(BinaryOp.ADD, ir.Load(node) as cell, zero) | ir.Binary(
                BinaryOp.ADD, zero, ir.Load(node) as cell
            ) if node in self.positive and value_analysis.is_number(zero, 0.0):
                return cell  # c[i] + 0.0 --> c[i], where c[i] is not -0.0
            case ir.Binary(BinaryOp.POW, base, exponent):
                return self._expand_power(base, value_analysis.value_of(exponent))
            case ir.Binary(op, left, right, dtype) if op in COMPARISONS:
                return self._fold_comparison(op, left, right, dtype)
            case ir.Unary(UnaryOp.IDENTITY, ir.IndexValue(index) as arg, dtype):
                return (
                    None
                    if value_analysis.integer_range(arg, self.known.ranges) is None
                    else ir.IndexValue(index, dtype)
                )
            case ir.LocalRead(local):
                return self.known.copies.get(local)
            case ir.Scoped(local, body):
                return _match_single_value(local, body)
            case ir.Gather():
                return self._simplify_gather(expr)
            case _:
                return None

    def _expand_power(self, base: ir.Expr, exponent: float | None) -> ir.Expr | None:
        """x ** 2 --> x * x, by the definition of the power; x ** 5 --> a product, for integers."""
        largest = _LARGEST_POWER if base.dtype.is_integer else 2
        if exponent is None or not 2 <= exponent <= largest or exponent != int(exponent):
            return None
        return expand_power(base, int(exponent), self.known.fresh)

    def _simplify_gather(self, gather: ir.Gather) -> ir.Expr | None:
        """gather(a[3]) --> a[3]; gather(a[i]) --> a[i] in bounds; or the value beyond the axis."""
        if gather.node not in self.nodes:
            return None
        position = value_analysis.integer_range(gather.position, self.known.ranges)
        if position is None:
            value = value_analysis.value_of(gather.position)
            is_outside = value is not None and (
                not value_analysis.is_finite(value) or value != int(value)
            )
            return value_analysis.constant(gather.beyond, gather.dtype) if is_outside else None
        extent = self.nodes[gather.node].buffer_dims[gather.axis]
        if position.high < 0 or position.low >= extent:
            return value_analysis.constant(gather.beyond, gather.dtype)
        if not position.is_within(extent):
            return None
        return ir.Load(gather.node, _with_index(gather), gather.dtype)

    def _fold_comparison(
        self, op: BinaryOp, left: ir.Expr, right: ir.Expr, dtype: DType
    ) -> ir.Expr | None:
        """i < 3 --> 1, if i is a loop variable and always less than 3; likewise other comparisons.

        i + 1 <= i + 2 --> 1 and 2*i == 1 --> 0, for every i; i < n --> 1, in a loop while i < n.
        """
        apart = value_analysis.difference(left, right, self.known.ranges)
        verdict = None if apart is None else apart.compare(op)
        if apart is not None and verdict is None:
            verdict = _before_ends(apart, self.known).compare(op)
        return None if verdict is None else value_analysis.constant(int(verdict), dtype)

    def rewrite_statement(self, stmt: ir.Stmt) -> Replacement:
        match stmt:
            case ir.For():
                return self._simplify_loop(stmt)
            case ir.Block(stmts):
                return self._simplify_block(stmt, stmts)
            case ir.Store(node, indices, ir.Load(loaded, cell)) if (
                loaded is node and cell == indices
            ):
                return ()  # c[i] = c[i] -->
            case ir.Scatter():
                return self._simplify_scatter(stmt)
            case ir.SetLocal(local, ir.LocalRead(source)) if source == local:
                return ()  # v = v -->
            case ir.SetLocal(local, ir.Scoped(_, body)) if local not in locals_of(body):
                return assign_local(local, stmt.value)
            case ir.SetLocal(local, value) if self._is_unread(local) and not writes(value):
                return ()
            case ir.DeclareLocal(local) if self._is_unread(local) and local not in self.known.sets:
                return ()
            case _:
                return stmt

    def _simplify_scatter(self, scatter: ir.Scatter) -> Replacement:
        """scatter(a[3]) = x --> a[3] = x, if that is certainly in bounds."""
        position = value_analysis.integer_range(scatter.position, self.known.ranges)
        if position is None or scatter.node not in self.nodes:
            return scatter
        extent = self.nodes[scatter.node].buffer_dims[scatter.axis]
        if position.high < 0 or position.low >= extent:
            return () if is_pure(scatter.value) else scatter
        if not position.is_within(extent):
            return scatter
        return ir.Store(scatter.node, _with_index(scatter), scatter.value)

    def _is_unread(self, local: ir.Local) -> bool:
        """Return True if a declared scalar is never read, or only as a copy of another leaf."""
        known = self.known
        return local in known.declared and (not known.reads[local] or local in known.copies)

    def _simplify_loop(self, loop: ir.For) -> Replacement:
        """for i in range(0): ... --> nothing; for i in range(3, 4): s --> s with i = 3."""
        if loop.stop <= loop.start or all(isinstance(s, ir.Remark) for s in loop.body.stmts):
            return ()
        if loop.stop - loop.start > 1 or loop.kind.resource is ir.Resource.DEVICE:
            return loop
        if loop.bound is not None:
            return loop  # it may have no iteration
        body = substitute_in_stmt(loop.body, {loop.var: FixedIndex(loop.start)})
        return rewrite(body, self.rewrite_statement, self.rewrite_expression)

    def _simplify_block(self, block: ir.Block, stmts: tuple[ir.Stmt, ...]) -> ir.Block:
        flat = tuple(_flatten(stmts)) if any(map(_is_transparent, stmts)) else stmts
        if flat and isinstance(flat[-1], ir.Block) and not _redeclares(flat):
            flat = (*flat[:-1], *flat[-1].stmts)
        flat = self._propagate_assignments(flat)
        return block if flat is stmts else ir.Block(flat)

    def _propagate_assignments(self, stmts: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        """v = x; v = f(v) --> v = f(x), where f uses v at most once or x is a constant.

        v = x; c = f(v) --> c = f(x), where this is the only use of v.
        """
        if not any(isinstance(stmt, ir.SetLocal) for stmt in stmts):
            return stmts
        kept: list[ir.Stmt] = []
        for stmt in stmts:
            merged = self._merge_assignment(kept[-1], stmt) if kept else None
            if merged is None:
                kept.append(stmt)
            else:
                kept[-1] = merged
        return stmts if len(kept) == len(stmts) else tuple(kept)

    def _merge_assignment(self, before: ir.Stmt, stmt: ir.Stmt) -> ir.Stmt | None:
        if not isinstance(before, ir.SetLocal) or not isinstance(stmt, ir.SetLocal | ir.Store):
            return None
        local, known = before.local, self.known
        is_again = isinstance(stmt, ir.SetLocal) and stmt.local == local
        is_last = local in known.declared and known.reads[local] == known.sets[local] == 1
        if (not is_again and not is_last) or writes(before.value):
            return None
        reads = _count_reads(stmt.value, local)
        if (reads == 0 and not is_again) or (reads > 1 and not isinstance(before.value, ir.Const)):
            return None
        if any(_count_reads(n.body, local) for n in walk(stmt.value) if isinstance(n, ir.Scoped)):
            return None

        def substitute(expr: ir.Expr) -> ir.Expr:
            return before.value if expr == ir.LocalRead(local) else self.rewrite_expression(expr)

        return replace(stmt, value=map_expr(stmt.value, substitute, self.rewrite_statement))


def _before_ends(
    apart: value_analysis.PositionDifference, known: Variables
) -> value_analysis.PositionDifference:
    """Return a difference with the range that the ends of loops at run time leave to it."""
    terms, offset = as_affine(apart.index)
    low, high = apart.reach.low, apart.reach.high
    for _, var in terms:
        bound = known.ends.get(var) if isinstance(var, LoopVar) else None
        if bound is None or isinstance(bound.extent, int):
            continue
        position, start = as_affine(bound.index)
        to_end = {*position, (-1, bound.extent)}  # at most -1 - start
        if {*terms} == to_end:
            high = min(high, offset - start - 1)
        elif {(-coefficient, var) for coefficient, var in terms} == to_end:
            low = max(low, offset + start + 1)
    return replace(apart, reach=Range(low, high))


def _with_index(access: ir.Gather | ir.Scatter) -> tuple[AxisIndex, ...]:
    """Return the indices of an access whose computed position is an index."""
    return with_index(access.indices, access.axis, value_analysis.index_of(access.position))


def _match_single_value(local: ir.Local, body: ir.Block) -> ir.Expr | None:
    """{v: v = x} --> x."""
    match [stmt for stmt in body.stmts if not isinstance(stmt, ir.Remark)]:
        case [ir.SetLocal(assigned, value)] if assigned == local and not _count_reads(value, local):
            return value
        case _:
            return None


def _is_transparent(stmt: ir.Stmt) -> bool:
    """Return True if a block declares nothing, so that its statements can take its place."""
    return isinstance(stmt, ir.Block) and not declares(stmt.stmts)


def _redeclares(stmts: tuple[ir.Stmt, ...]) -> bool:
    """Return True if the last block of a block repeats a declaration of an earlier statement."""
    *before, last = stmts
    inside = last.stmts if isinstance(last, ir.Block) else ()
    return any(isinstance(s, ir.DeclareLocal | ir.Allocate) and s in before for s in inside)


def _flatten(stmts: tuple[ir.Stmt, ...]) -> Iterator[ir.Stmt]:
    """Yield statements, with inner blocks that declare nothing replaced by their statements."""
    for stmt in stmts:
        if isinstance(stmt, ir.Block) and _is_transparent(stmt):
            yield from stmt.stmts
        else:
            yield stmt


def _count_reads(root: ir.Expr | ir.Stmt, local: ir.Local) -> int:
    return sum(isinstance(node, ir.LocalRead) and node.local == local for node in walk(root))


def expand_power(base: ir.Expr, exponent: int, fresh: Fresh) -> ir.Expr:
    """Expand `base ** exponent` into squarings and multiplications.

    x ** 3  -->  x * x * x
    x ** 6  -->  {v: v = x * x * x; v = v * v}
    f(x) ** 2  -->  {v: v = f(x); v = v * v}
    f(x) ** 3  -->  {v: w = f(x); v = w * w * w}

    Args:
        base: The factor; computed once.
        exponent: The number of factors, at least 2.
        fresh: Makes new scalars.
    """
    if value_analysis.is_leaf(base):
        return _multiply_leaf(base, exponent, fresh)
    total = fresh(base)
    if exponent == 2:
        square = _multiply_leaf(ir.LocalRead(total), 2, fresh)
        return ir.Scoped(total, ir.Block((ir.SetLocal(total, base), ir.SetLocal(total, square))))
    copy = fresh(base)
    value = _multiply_leaf(ir.LocalRead(copy), exponent, fresh)
    body = (ir.DeclareLocal(copy), ir.SetLocal(copy, base), ir.SetLocal(total, value))
    return ir.Scoped(total, ir.Block(body))


def _multiply_leaf(base: ir.Expr, exponent: int, fresh: Fresh) -> ir.Expr:
    def times(left: ir.Expr, right: ir.Expr) -> ir.Expr:
        return ir.Binary(BinaryOp.MUL, left, right, base.dtype)

    if exponent == 2:
        return times(base, base)
    if exponent == 3:
        return times(times(base, base), base)
    total = fresh(base)
    leading = 3 if exponent >> exponent.bit_length() - 2 == 3 else 2
    steps: list[ir.Stmt] = [ir.SetLocal(total, _multiply_leaf(base, leading, fresh))]
    for digit in bin(exponent)[4:]:
        square = times(ir.LocalRead(total), ir.LocalRead(total))
        steps.append(ir.SetLocal(total, times(square, base) if digit == "1" else square))
    return ir.Scoped(total, ir.Block(tuple(steps)))
