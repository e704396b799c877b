"""FMA contraction, and expansion of powers into products: rewrites that change rounding.

c[i] = a[i] * 2.0 + 1.0   -->   c[i] = fma(a[i], 2.0, 1.0)
c[i] = a[i] ** 4.0        -->   c[i] = {v: v = a[i] * a[i]; v = v * v}

The product inside a sum is not rounded, so the result is at least as close to the exact one, unless
terms cancel that were rounded alike. An expanded power `x ** n` stays within `|n|` units in the
last place as long as neither it nor `x ** -n` leaves the normal range. Integers are left alone;
`simplify` applies the exact rules to them. Without this pass results are bit-identical.

Sums over the innermost loop are left alone too, `v += a[i] * b[i]`: C compilers vectorize such
products and add them in order, but do not vectorize a chain of fused multiply-adds.
"""

from __future__ import annotations

from collections.abc import Iterator

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import variables
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.traverse import rewrite, walk
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp
from ocannl_core.passes.loops.algebraic_rules import simplify_once
from ocannl_core.passes.loops.local_variables import Fresh, fresh_locals
from ocannl_core.passes.loops.simplify import expand_power
from ocannl_core.passes.loops.value_analysis import value_of

_LARGEST_POWER = 8
"""The largest exponent for which a power becomes a product."""


def contract_to_fma(program: ir.LoopProgram, *, has_fma: bool = True) -> ir.LoopProgram:
    """Contract products and sums to fused multiply-adds, and expand small powers.

    Args:
        has_fma: False if the target has no fused multiply-add; products and sums remain.
    """
    accumulators = frozenset(_find_accumulators(program.body))
    rules = _FmaRules(fresh_locals(program.body), accumulators, has_fma)
    body = rewrite(program.body, on_expr=rules.rewrite_expression)
    return program if body is program.body else replace(program, body=body)


@dataclass(slots=True)
class _FmaRules:
    """The rewrite rules of the pass."""

    fresh: Fresh
    accumulators: frozenset[ir.Expr]
    has_fma: bool

    def rewrite_expression(self, expr: ir.Expr) -> ir.Expr:
        if not isinstance(expr, ir.Binary) or not expr.dtype.is_float:
            return expr
        match expr.op:
            case BinaryOp.POW:
                return self._expand_power(expr)
            case BinaryOp.ADD | BinaryOp.SUB if self.has_fma:
                return expr if self._is_accumulation(expr) else _contract(expr)
            case _:
                return expr

    def _is_accumulation(self, expr: ir.Binary) -> bool:
        operands = (expr.left, expr.right)
        return any(
            isinstance(e, ir.Load | ir.LocalRead) and e in self.accumulators for e in operands
        )

    def _expand_power(self, power: ir.Binary) -> ir.Expr:
        exponent = value_of(power.right)
        if exponent is None or not 2 <= abs(exponent) <= _LARGEST_POWER:
            return power
        if exponent != int(exponent):
            return power
        product = expand_power(power.left, abs(int(exponent)), self.fresh)
        return product if exponent > 0 else ir.Unary(UnaryOp.RECIP, product, power.dtype)


def _find_accumulators(root: ir.Stmt) -> Iterator[ir.Expr]:
    """Yield the cells and scalars that carry a value from one iteration to the next."""
    for loop in walk(root):
        if not isinstance(loop, ir.For):
            continue
        for stmt in loop.body.stmts:
            match stmt:
                case ir.Store(array, indices, ir.Binary(dtype=dtype)):
                    if not any(loop.var in variables(index) for index in indices):
                        yield ir.Load(array, indices, dtype)
                case ir.SetLocal(local, ir.Binary(_, left, right)):
                    if ir.LocalRead(local) in (_leaf(left), _leaf(right)):
                        yield ir.LocalRead(local)


def _leaf(expr: ir.Expr) -> ir.Expr | None:
    return expr if isinstance(expr, ir.LocalRead) else None


def _contract(expr: ir.Binary) -> ir.Expr:
    """x * y + z, z + x * y --> fma(x, y, z); x * y - z --> fma(x, y, -z).

    z - x * y --> fma(-x, y, z)
    """
    match expr:
        case ir.Binary(BinaryOp.ADD, z, ir.Binary(BinaryOp.MUL, x, y), dtype):
            return ir.Ternary(TernaryOp.FMA, x, y, z, dtype)
        case ir.Binary(BinaryOp.ADD, ir.Binary(BinaryOp.MUL, x, y), z, dtype):
            return ir.Ternary(TernaryOp.FMA, x, y, z, dtype)
        case ir.Binary(BinaryOp.SUB, z, ir.Binary(BinaryOp.MUL, x, y), dtype):
            if value_of(y) is not None:
                return ir.Ternary(TernaryOp.FMA, x, _negate(y), z, dtype)
            return ir.Ternary(TernaryOp.FMA, _negate(x), y, z, dtype)
        case ir.Binary(BinaryOp.SUB, ir.Binary(BinaryOp.MUL, x, y), z, dtype):
            return ir.Ternary(TernaryOp.FMA, x, y, _negate(z), dtype)
        case _:
            return expr


def _negate(expr: ir.Expr) -> ir.Expr:
    negation = ir.Unary(UnaryOp.NEG, expr, expr.dtype)
    return simplify_once(negation) or negation
