"""Legalization: primitives that a target lacks, in terms of those that it has.

y[i] = relu(x[i])     -->   y[i] = where(x[i] < 0.0, 0.0, x[i])
z[i] = fma(a, b, c)   -->   z[i] = a * b + c

The bits stay the same, but for `fma`, whose product is rounded. Narrow floats are computed in
float32 and rounded once, and functions with real results of integers in float64, as the primitive
would be; where a target lacks that format too, the primitive stays, and is refused.

The pass comes last, since schedules fuse products and sums, and recognize accumulations by their
primitives. Loops that an instruction executes as a whole stay: it replaces their primitives.
"""

from __future__ import annotations

from functools import partial
from typing import assert_never, cast

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.identity import IdentityMap
from ocannl_core.ir.kernels.nodes import Kernel, LeafStep, NodeInfos, StepReplacement, StepRewrite
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.traverse import Node, children, rewrite, walk
from ocannl_core.ir.numbers.dtypes import DType, Kind, float32, float64
from ocannl_core.ir.numbers.expansions import decomposable, expand
from ocannl_core.ir.numbers.primitives import EVERY_PRIMITIVE, BinaryOp, Op, TernaryOp, UnaryOp
from ocannl_core.ir.target import Target
from ocannl_core.passes.loops.local_variables import Fresh, fresh_locals
from ocannl_core.passes.loops.value_analysis import is_leaf


def with_decomposition(finish: StepRewrite, target: Target) -> StepRewrite:
    """Return a rewrite of steps that decomposes primitives which the target lacks."""
    if target.primitives is None:
        return finish
    missing = frozenset(EVERY_PRIMITIVE) - frozenset(target.primitives)
    expanded = decomposable(missing)
    if not expanded:
        return finish
    return partial(_finish, finish=finish, expanded=expanded, formats=target.formats)


def _finish(
    step: LeafStep,
    nodes: NodeInfos,
    finish: StepRewrite,
    expanded: frozenset[Op],
    formats: tuple[DType, ...] | None,
) -> StepReplacement:
    found = finish(step, nodes)
    steps = tuple(decompose(each, expanded, formats) for each in found.steps)
    return replace(found, steps=steps)


def decompose(
    step: LeafStep, expanded: frozenset[Op], formats: tuple[DType, ...] | None
) -> LeafStep:
    """Return a step with some primitives decomposed.

    Args:
        formats: The number formats of the target; None for all.
    """
    if not isinstance(step, Kernel):
        return step
    kept: IdentityMap[Node, None] = IdentityMap()
    for loop in walk(step.body):
        if isinstance(loop, ir.For) and loop.kind in (ir.AxisKind.TILE, ir.AxisKind.DOT):
            for each in walk(loop):  # one instruction
                kept[each] = None
    rewrites = _Rewrites(expanded, formats, fresh_locals(step.body), kept)
    body = rewrite(step.body, on_expr=rewrites.decomposed)
    return step if body is step.body else replace(step, body=body)


@dataclass(slots=True)
class _Rewrites:
    """The rewrite of expressions of one kernel."""

    _expanded: frozenset[Op]
    _formats: tuple[DType, ...] | None
    _fresh: Fresh
    _kept: IdentityMap[Node, None]

    def decomposed(self, expr: ir.Expr) -> ir.Expr:
        if not isinstance(expr, ir.Unary | ir.Binary | ir.Ternary) or expr.op not in self._expanded:
            return expr
        if expr in self._kept:
            return expr
        if expr.op is BinaryOp.SUB and expr.dtype.kind is Kind.BOOL:
            return expr  # a negated bool is the same bool
        dtype, operands = expr.dtype, list(cast(tuple[ir.Expr, ...], children(expr)))
        working = _working_format(expr.op, dtype)
        if working is dtype:
            return self._expand(expr.op, operands, dtype)
        if self._formats is not None and working not in self._formats:
            return expr
        widened: list[ir.Expr] = [ir.Unary(UnaryOp.IDENTITY, each, working) for each in operands]
        found = self._expand(expr.op, widened, working)
        return ir.Unary(UnaryOp.IDENTITY, found, dtype)

    def _expand(self, op: Op, operands: list[ir.Expr], dtype: DType) -> ir.Expr:
        named: list[ir.Stmt] = []

        def name(value: ir.Expr) -> ir.Expr:
            if is_leaf(value):
                return value
            local = self._fresh(value)
            named.extend((ir.DeclareLocal(local), ir.SetLocal(local, value)))
            return ir.LocalRead(local)

        def apply(inner: Op, terms: list[ir.Expr]) -> ir.Expr:
            return self.decomposed(_applied(inner, terms, dtype))

        def select(comparison: Op, terms: list[ir.Expr]) -> ir.Expr:
            left, right, first, second = terms
            condition = apply(comparison, [left, right])
            return ir.Ternary(TernaryOp.WHERE, condition, first, second, dtype)

        def number(value: float) -> ir.Expr:
            return ir.Const(value + 0.0 if dtype.holds_integers else value, dtype)  # no -0.0

        found = expand(op, operands, number, apply, select, name)
        if not named:
            return found
        total = self._fresh(found)
        return ir.Scoped(total, ir.Block((*named, ir.SetLocal(total, found))))


def _applied(op: Op, terms: list[ir.Expr], dtype: DType) -> ir.Expr:
    match op:
        case UnaryOp():
            (first,) = terms
            return ir.Unary(op, first, dtype)
        case BinaryOp():
            first, second = terms
            return ir.Binary(op, first, second, dtype)
        case TernaryOp():
            first, second, third = terms
            return ir.Ternary(op, first, second, third, dtype)
        case _:
            assert_never(op)


def _working_format(op: Op, dtype: DType) -> DType:
    """Return the format in which the terms of a decomposition are computed."""
    if dtype.is_narrow and not op.value.needs_no_rounding:
        return float32
    return float64 if dtype.holds_integers and op.value.is_real else dtype
