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

from math import prod

from ocannl_core.dtypes import float32, round_to
from ocannl_core.fast_dataclass import replace
from ocannl_core.indexing import AxisIndex, VarIndex, fresh_var
from ocannl_core.kernel_passes.split_reductions import split_nest
from ocannl_core.kernels.nest import KernelNest, LoopAxis, Reduction
from ocannl_core.kernels.nest_plan import NestKernel, NestPlan, NestStep
from ocannl_core.kernels.nodes import NodeInfos
from ocannl_core.kernels.transforms import AXIS_LETTERS
from ocannl_core.loopir.nodes import Binary, Const, Expr, Load, Local, LocalRead, Store, Unary
from ocannl_core.loopir.traverse import map_expr
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.ops import BinaryOp, UnaryOp

_LONG_SUM = 2048
"""Sums of more terms than these may run in pieces, between which cells hold partial results."""


def widen_accumulators(plan: NestPlan, *, may_pair: bool = False) -> NestPlan:
    """Accumulate sums of narrow floats in float32.

    Args:
        plan: The plan.
        may_pair: True if products may come from instructions for pairs.
    """
    result: list[NestStep] = []
    made: dict[TensorNode, NodeInfo] = {}
    for step in plan.steps:
        if not isinstance(step, NestKernel):
            result.append(step)
            continue
        kernel = _allow_pairs(step) if may_pair else step
        nest = kernel.nest
        if nest.reduction is None or not nest.reduction.dtype.is_narrow:
            result.append(kernel)
            continue
        wide = _in_registers(nest, nest.reduction)
        if not _needs_memory(nest, wide):
            result.append(kernel.with_nest(wide))
            continue
        (store,) = nest.epilogue
        node = TensorNode(store.node.id, (*store.node.label, "wide"))
        made[node] = NodeInfo(float32, plan.nodes[store.node].buffer_dims)
        result += map(kernel.with_nest, _in_memory(nest, wide, node, plan.nodes))
    return plan.with_steps(result, made)


def _allow_pairs(kernel: NestKernel) -> NestKernel:
    """Return a kernel whose reduction, if it is a sum, may use instructions for pairs of products.

    The statements that the nest was read from still compute the same.
    """
    reduction = kernel.nest.reduction
    if reduction is None or reduction.op is not BinaryOp.ADD:
        return kernel
    return replace(kernel, nest=replace(kernel.nest, reduction=replace(reduction, may_pair=True)))


def _needs_memory(nest: KernelNest, wide: KernelNest) -> bool:
    """Return True if cells hold partial results while the nest runs."""
    if any(axis.is_shifting for axis in nest.axes):
        return True
    terms = prod(axis.extent for axis in nest.reduced)
    return nest.holds_partial_results and terms > _LONG_SUM and split_nest(wide) is None


def _in_registers(nest: KernelNest, reduction: Reduction) -> KernelNest:
    """Return a nest whose registers hold float32, and whose results are rounded at the end."""
    result = Local(reduction.result.id, float32)
    rounded = Unary(UnaryOp.IDENTITY, LocalRead(result), reduction.dtype)
    wide = replace(
        reduction,
        term=widen_term(reduction.term),
        initial=widen_term(reduction.initial),
        result=result,
    )
    old = LocalRead(reduction.result)
    epilogue = tuple(
        replace(store, value=map_expr(store.value, lambda e: rounded if e == old else e))
        for store in nest.epilogue
    )
    return KernelNest(nest.axes, wide, epilogue)


def widen_term(expr: Expr) -> Expr:
    """Return a term of a narrow format in float32: operands keep their values, products are not
    rounded to the narrow format.
    """
    match expr:
        case Binary(BinaryOp.MUL, left, right):
            return Binary(BinaryOp.MUL, widen_term(left), widen_term(right), float32)
        case Unary(UnaryOp.NEG, arg):
            return Unary(UnaryOp.NEG, widen_term(arg), float32)
        case Const(value, dtype):
            return Const(round_to(value, dtype), float32)
        case _:
            return Unary(UnaryOp.IDENTITY, expr, float32)


# ----- cells that hold partial results ------------------------------------------------------------


def _in_memory(
    nest: KernelNest, wide: KernelNest, node: TensorNode, nodes: NodeInfos
) -> tuple[KernelNest, ...]:
    """Return nests that widen cells, add to wide ones, and round those."""
    (store,) = nest.epilogue
    reduction = wide.reduction
    assert reduction is not None
    if nest.is_resumable:
        reduction = replace(reduction, initial=Load(node, store.indices, float32))
    total = LocalRead(reduction.result)
    sums = replace(wide, reduction=reduction, epilogue=(Store(node, store.indices, total),))
    # cells that shift are all those of the array, others are those of the nest
    is_shifting = any(axis.is_shifting for axis in nest.axes)
    if is_shifting:
        dims = nodes[store.node].buffer_dims
        axes = tuple(
            LoopAxis(name, fresh_var("x"), 0, extent)
            for name, extent in zip(AXIS_LETTERS, dims, strict=False)
        )
        indices: tuple[AxisIndex, ...] = tuple(VarIndex(axis.var) for axis in axes)
    else:
        indices = store.indices
        axes = tuple(
            replace(axis, name=name) for name, axis in zip(AXIS_LETTERS, nest.cells, strict=False)
        )
    dtype = nodes[store.node].dtype
    cell, wide_cell = Load(store.node, indices, dtype), Load(node, indices, float32)
    first = Store(node, indices, Unary(UnaryOp.IDENTITY, cell, float32))
    last = Store(store.node, indices, Unary(UnaryOp.IDENTITY, wide_cell, dtype))
    before = (KernelNest(axes, None, (first,)),) if nest.is_resumable else ()
    return (*before, sums, KernelNest(axes, None, (last,)))
