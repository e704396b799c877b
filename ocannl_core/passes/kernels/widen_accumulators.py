"""Accumulation of narrow floats in float32, rounded once.

    for i, j, k: c[i, j] += a[i, k] * b[k, j]            all in bfloat16
        -->
    c[i, j] = bfloat16(float32(c[i, j]) + the sum of float32(a[i, k]) * float32(b[k, j]))

Products of numbers of the narrow format are exact in float32, or round there, and so do sums; the
result is at least as accurate as a sum that is rounded after every term. Maxima and minima do not
round.

Where cells hold partial results in between, because a sum is long or its cells shift, they do so in
an array of float32: numbers go there before, and come back after the last term.
"""

from __future__ import annotations

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.indexing import AxisIndex, VarIndex, fresh_var
from ocannl_core.ir.kernels.nest import (
    LoopAxis,
    Nest,
    Reduction,
    iterations,
    with_letters,
    with_value,
)
from ocannl_core.ir.kernels.nest_plan import (
    NestKernel,
    NestPlan,
    NestReplacement,
    NestStep,
    map_nests,
    replace_nests,
    with_steps,
)
from ocannl_core.ir.kernels.nest_recognition import match_accumulation
from ocannl_core.ir.kernels.nodes import Kernel, NodeInfos
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.traverse import rewrite, walk, walk_in_loops
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import DType, bool_, float32, round_to
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.passes.kernels.split_reductions import split_nest

_LONG_SUM = 2048
"""Sums of more terms than these may run in pieces, between which cells hold partial results."""


def widen_accumulators(
    plan: NestPlan, *, is_fast: bool = False, in_pieces: bool = True
) -> NestPlan:
    """Accumulate sums of narrow floats in float32.

    Args:
        is_fast: True if all matrix units may compute products, as `Reduction.is_fast` says.
        in_pieces: False if registers hold a long sum from its first term to the last one.
    """

    def widened(nest: Nest) -> NestReplacement | None:
        if nest.reduction is None or not nest.reduction.dtype.is_narrow:
            return None
        wide = _in_registers(nest, nest.reduction)
        if not _needs_memory(nest, wide, in_pieces=in_pieces):
            return NestReplacement((wide,), {})
        (store,) = nest.epilogue
        node = TensorNode(store.node.id, (*store.node.label, "wide"))
        info = NodeInfo(float32, plan.nodes[store.node].buffer_dims)
        return NestReplacement(_in_memory(nest, wide, node, plan.nodes), {node: info})

    if is_fast:
        plan = with_steps(plan, list(map(_allow_fast, plan.steps)))
    return replace_nests(plan, widened)


def _allow_fast(step: NestStep) -> NestStep:
    """Return a step whose sum may use all matrix units; its statements stay the same."""
    reduction = step.nest.reduction if isinstance(step, NestKernel) else None
    if not isinstance(step, NestKernel) or reduction is None or reduction.op is not BinaryOp.ADD:
        return step
    return replace(step, nest=replace(step.nest, reduction=replace(reduction, is_fast=True)))


def _needs_memory(nest: Nest, wide: Nest, *, in_pieces: bool) -> bool:
    """Return True if cells hold partial results while the nest runs."""
    if any(axis.is_shifting for axis in nest.axes):
        return True
    if not in_pieces:
        return False
    terms = iterations(nest.reduced)
    return nest.holds_partial_results and terms > _LONG_SUM and split_nest(wide) is None


def _in_registers(nest: Nest, reduction: Reduction) -> Nest:
    """Return a nest whose registers hold wider numbers; its results are rounded at the end."""
    lanes = reduction.dtype.in_lanes
    result = ir.Local(reduction.result.id, lanes)
    rounded = ir.Unary(UnaryOp.IDENTITY, ir.LocalRead(result), reduction.dtype)
    is_or = reduction.dtype is bool_ and reduction.op is BinaryOp.ADD
    wide = replace(
        reduction,
        op=BinaryOp.MAX if is_or else reduction.op,
        term=widen_term(reduction.term),
        initial=widen_term(reduction.initial),
        result=result,
        is_widened=lanes is float32 and reduction.op is BinaryOp.ADD,
    )
    old = ir.LocalRead(reduction.result)
    epilogue = tuple(with_value(store, old, rounded) for store in nest.epilogue)
    return Nest(nest.axes, wide, epilogue)


def widen_term(expr: ir.Expr) -> ir.Expr:
    """Return a term in a wider format: operands keep their values, products are not rounded."""
    lanes = expr.dtype.in_lanes
    match expr:
        case ir.Const(value, dtype):
            return ir.Const(round_to(value, dtype), lanes)
        case ir.Binary(BinaryOp.MUL, left, right) if lanes is float32:
            return ir.Binary(BinaryOp.MUL, widen_term(left), widen_term(right), float32)
        case ir.Unary(UnaryOp.NEG, arg) if lanes is float32:
            return ir.Unary(UnaryOp.NEG, widen_term(arg), float32)
        case ir.Unary(UnaryOp.IDENTITY, ir.Binary(BinaryOp.MUL) as product) if (
            lanes is product.dtype
        ):
            return product
        case _:
            return ir.Unary(UnaryOp.IDENTITY, expr, lanes)


def widen_integers(plan: NestPlan) -> NestPlan:
    """Accumulate integers of less than 32 bits in int32, as vector registers hold them.

    The results are the same. Cells that shift stay as they are: they hold partial results, in
    their own format.
    """

    def widened(nest: Nest) -> Nest:
        reduction = nest.reduction
        if reduction is None or not reduction.dtype.is_short_integer:
            return nest
        is_shifting = any(axis.is_shifting for axis in nest.axes)
        return nest if is_shifting else _in_registers(nest, reduction)

    return map_nests(plan, widened)


def _in_memory(nest: Nest, wide: Nest, node: TensorNode, nodes: NodeInfos) -> tuple[Nest, ...]:
    (store,) = nest.epilogue
    reduction = wide.required_reduction
    if nest.is_resumable:
        reduction = replace(reduction, initial=ir.Load(node, store.indices, float32))
    total = ir.LocalRead(reduction.result)
    sums = replace(wide, reduction=reduction, epilogue=(ir.Store(node, store.indices, total),))
    # all cells of the array shift, or else the cells of the nest
    is_shifting = any(axis.is_shifting for axis in nest.axes)
    if is_shifting:
        dims = nodes[store.node].buffer_dims
        axes = with_letters(LoopAxis("", fresh_var("x"), 0, extent) for extent in dims)
        indices: tuple[AxisIndex, ...] = tuple(VarIndex(axis.var) for axis in axes)
    else:
        indices = store.indices
        axes = with_letters(nest.output_axes)
    dtype = nodes[store.node].dtype
    cell, wide_cell = ir.Load(store.node, indices, dtype), ir.Load(node, indices, float32)
    first = ir.Store(node, indices, ir.Unary(UnaryOp.IDENTITY, cell, float32))
    last = ir.Store(store.node, indices, ir.Unary(UnaryOp.IDENTITY, wide_cell, dtype))
    before = (Nest(axes, None, (first,)),) if nest.is_resumable else ()
    return (*before, sums, Nest(axes, None, (last,)))


_ROUNDING = frozenset({BinaryOp.ADD, BinaryOp.MUL})
"""Reductions that round. Maxima and minima do not."""


def widen_scoped_sums(plan: NestPlan) -> NestPlan:
    """Add up inlined sums of narrow floats in float32, in the kernels that are no nests.

    { total = 0.0; for k: total += a[k] * b[k] }            all in bfloat16
        -->
    bfloat16({ total = 0.0; for k: total += float32(a[k]) * float32(b[k]) })

    A kernel has such sums where they depend on a condition on positions, are terms of another sum,
    or were hoisted out of a loop. Their variables become float32, and each read of one is rounded.
    """
    return with_steps(
        plan,
        [
            replace(step, body=widen_sums(step.body)) if isinstance(step, Kernel) else step
            for step in plan.steps
        ],
    )


def widen_sums(body: ir.Block) -> ir.Block:
    """Return statements with the variables that loops add narrow floats to in float32."""
    accumulated = _accumulated_locals(body)
    if not accumulated:
        return body
    wide = {local: replace(local, dtype=float32) for local in accumulated}

    def on_stmt(stmt: ir.Stmt) -> ir.Stmt:
        match stmt:
            case ir.DeclareLocal(local) if local in wide:
                return ir.DeclareLocal(wide[local])
            case ir.SetLocal(local, value) if local in wide:
                running = on_expr(ir.LocalRead(local))  # reads inside the value are replaced by now
                match match_accumulation(value, running):
                    case (op, term) if op in accumulated[local]:
                        total = ir.LocalRead(wide[local])
                        return ir.SetLocal(
                            wide[local], ir.Binary(op, total, widen_term(term), float32)
                        )
                is_start = all(each != running for each in walk(value))
                start = widen_term(value) if is_start else _convert(value, float32)
                return ir.SetLocal(wide[local], start)
            case _:
                return stmt

    def on_expr(expr: ir.Expr) -> ir.Expr:
        match expr:
            case ir.LocalRead(local) | ir.Scoped(local) if local in wide:
                return _convert(replace(expr, local=wide[local]), local.dtype)
            case _:
                return expr

    return rewrite(body, on_stmt, on_expr)


def _convert(value: ir.Expr, dtype: DType) -> ir.Expr:
    return ir.Unary(UnaryOp.IDENTITY, value, dtype)


def _accumulated_locals(body: ir.Block) -> dict[ir.Local, frozenset[BinaryOp]]:
    """Return the variables of narrow formats that loops accumulate into, with the operations."""
    found: dict[ir.Local, frozenset[BinaryOp]] = {}
    declared: dict[ir.Local, int] = {}
    for node, around in walk_in_loops(body):
        loops = len(around)
        match node:
            case ir.Scoped(local) | ir.DeclareLocal(local):
                declared[local] = loops
            case ir.SetLocal(local, value) if local.dtype.is_narrow:
                step = match_accumulation(value, ir.LocalRead(local))
                is_repeated = loops > declared.get(local, loops)
                if step is not None and is_repeated and step[0] in _ROUNDING:
                    found[local] = found.get(local, frozenset()) | {step[0]}
    return found
