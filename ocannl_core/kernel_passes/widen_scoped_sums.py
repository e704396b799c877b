"""Inlined sums of narrow floats in float32, in kernels that are no nests of independent cells.

    { total = 0.0; for k: total += a[k] * b[k] }            all in bfloat16
        -->
    bfloat16({ total = 0.0; for k: total += float32(a[k]) * float32(b[k]) })

A kernel has such sums where they depend on a condition on positions, are terms of another sum, or
were hoisted out of a loop. Their variables become float32, and each read of one is rounded. The
arithmetic is that of `widen_accumulators`: the place of a sum does not decide its accuracy.
"""

from __future__ import annotations

from ocannl_core.dtypes import DType, float32
from ocannl_core.fast_dataclass import replace
from ocannl_core.kernel_passes.widen_accumulators import widen_term
from ocannl_core.kernels.nest import match_accumulation
from ocannl_core.kernels.nest_plan import NestPlan
from ocannl_core.kernels.nodes import Kernel
from ocannl_core.loopir.nodes import (
    Binary,
    Block,
    DeclareLocal,
    Expr,
    For,
    Local,
    LocalRead,
    Scoped,
    SetLocal,
    Stmt,
    Unary,
)
from ocannl_core.loopir.traverse import Node, children, rewrite, walk
from ocannl_core.ops import BinaryOp, UnaryOp

_ROUNDING = frozenset({BinaryOp.ADD, BinaryOp.MUL})
"""Reductions that round. Maxima and minima do not."""


def widen_scoped_sums(plan: NestPlan) -> NestPlan:
    """Add up inlined sums of narrow floats in float32, in the kernels that are no nests."""
    return plan.with_steps(
        [
            replace(step, body=widen_sums(step.body)) if isinstance(step, Kernel) else step
            for step in plan.steps
        ]
    )


def widen_sums(body: Block) -> Block:
    """Return statements with the variables that loops add narrow floats to in float32."""
    accumulated = _accumulated_locals(body)
    if not accumulated:
        return body
    wide = {local: replace(local, dtype=float32) for local in accumulated}

    def on_stmt(stmt: Stmt) -> Stmt:
        match stmt:
            case DeclareLocal(local) if local in wide:
                return DeclareLocal(wide[local])
            case SetLocal(local, value) if local in wide:
                running = on_expr(LocalRead(local))  # reads inside the value are replaced by now
                match match_accumulation(value, running):
                    case (op, term) if op in accumulated[local]:
                        total = LocalRead(wide[local])
                        return SetLocal(wide[local], Binary(op, total, widen_term(term), float32))
                is_start = all(each != running for each in walk(value))
                start = widen_term(value) if is_start else _convert(value, float32)
                return SetLocal(wide[local], start)
            case _:
                return stmt

    def on_expr(expr: Expr) -> Expr:
        match expr:
            case LocalRead(local) | Scoped(local) if local in wide:
                return _convert(replace(expr, local=wide[local]), local.dtype)
            case _:
                return expr

    return rewrite(body, on_stmt, on_expr)


def _convert(value: Expr, dtype: DType) -> Expr:
    return Unary(UnaryOp.IDENTITY, value, dtype)


def _accumulated_locals(body: Block) -> dict[Local, frozenset[BinaryOp]]:
    """Return the variables of narrow formats that loops inside of their scopes accumulate into,
    with the operations.
    """
    found: dict[Local, frozenset[BinaryOp]] = {}
    declared: dict[Local, int] = {}
    pending: list[tuple[Node, int]] = [(body, 0)]
    while pending:
        node, loops = pending.pop()
        match node:
            case Scoped(local) | DeclareLocal(local):
                declared[local] = loops
            case SetLocal(local, value) if local.dtype.is_narrow:
                step = match_accumulation(value, LocalRead(local))
                is_repeated = loops > declared.get(local, loops)
                if step is not None and is_repeated and step[0] in _ROUNDING:
                    found[local] = found.get(local, frozenset()) | {step[0]}
            case _:
                pass
        inside = loops + isinstance(node, For)
        pending += [(child, inside) for child in reversed(children(node))]
    return found
