"""Products that a library of the backend computes, in the place of kernels.

c = relu(sum over k of a[i, k] * b[k, j])   -->   call gemm(a, b) -> sums
                                                  c[i, j] = relu(sums[i, j])

Offered are sums of products of two loads, with constant extents, on no axis in a given order. The
call replaces the nest if the library computes its epilogue as well; otherwise a kernel follows that
reads the sums from memory of the routine.
"""

from __future__ import annotations

from collections.abc import Iterable

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.indexing import AffineIndex, AxisIndex, FixedIndex, LoopVar, VarIndex, as_affine
from ocannl_core.ir.kernels.library_product import (
    LibraryProduct,
    OfferProduct,
    ProductAxis,
    ProductOperand,
    ProductPosition,
)
from ocannl_core.ir.kernels.nest import Nest, Reduction, with_value
from ocannl_core.ir.kernels.nest_plan import NestKernel, NestPlan, NestStep, with_steps
from ocannl_core.ir.kernels.nodes import HostCall, NodeInfos
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.traverse import reads
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.primitives import BinaryOp


def offer_products(plan: NestPlan, offer: OfferProduct) -> NestPlan:
    """Return a plan with calls in the place of the products that a library takes."""
    steps: list[NestStep] = []
    made: dict[TensorNode, NodeInfo] = {}
    for step in plan.steps:
        product = _product_of(step, plan.nodes) if isinstance(step, NestKernel) else None
        found = None if product is None else offer(product)
        if not isinstance(step, NestKernel) or product is None or found is None:
            steps.append(step)
            continue
        factors = product.left.node, product.right.node
        title = f"{found.op.name} for {step.title}"
        if not product.epilogue or found.has_epilogue:
            inputs = dict.fromkeys((*factors, *product.operands))
            outputs = product.outputs or (product.result.node,)
            call = ir.CallExternal(found.op, tuple(inputs), outputs)
            steps.append(HostCall(call, title))
            continue
        sums = product.result.node
        made[sums] = product.result.info
        steps.append(HostCall(ir.CallExternal(found.op, factors, (sums,)), title))
        steps.append(NestKernel(_epilogue(step.nest, sums), step.title))
    return with_steps(plan, steps, made)


def _product_of(step: NestKernel, nodes: NodeInfos) -> LibraryProduct | None:
    """Return the product that a nest is, as a library sees it; None for other nests."""
    nest = step.nest
    reduction = nest.reduction
    if reduction is None or reduction.op is not BinaryOp.ADD or nest.around or not nest.epilogue:
        return None
    if any(axis.bound is not None or axis.is_shifting for axis in nest.axes):
        return None
    match reduction.factors:
        case (ir.Load() as left, ir.Load() as right) if left.dtype is right.dtype:
            pass
        case _:
            return None
    letters = dict(zip((axis.var for axis in nest.axes), _LETTERS, strict=False))
    if len(letters) < len(nest.axes):
        return None
    axes = tuple(ProductAxis(letters[axis.var], axis.extent, axis.is_reduced) for axis in nest.axes)
    starts = {axis.var: axis.start for axis in nest.axes}
    factors = [_operand(each, nodes, letters, starts) for each in (left, right)]
    if factors[0] is None or factors[1] is None:
        return None
    shared = axes, factors[0], factors[1]
    plain = _plain_result(nest, reduction, nodes, letters, starts)
    if plain is not None:
        return LibraryProduct(*shared, plain, reduction.dtype, title=step.title)
    dims = tuple(axis.extent for axis in nest.output_axes)
    at = tuple(ProductPosition(((letters[axis.var], 1),), 0) for axis in nest.output_axes)
    sums = TensorNode(nest.epilogue[0].node.id, (*nest.epilogue[0].node.label, "sums"))
    result = ProductOperand(sums, NodeInfo(reduction.dtype, dims), at)
    epilogue = _with_start(nest.epilogue, reduction)
    operands = tuple(dict.fromkeys(node for store in epilogue for node in reads(store)))
    outputs = tuple(dict.fromkeys(store.node for store in epilogue))
    return LibraryProduct(*shared, result, reduction.dtype, epilogue, operands, outputs, step.title)


_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _plain_result(
    nest: Nest,
    reduction: Reduction,
    nodes: NodeInfos,
    letters: dict[LoopVar, str],
    starts: dict[LoopVar, int],
) -> ProductOperand | None:
    """Return the result of a nest that stores its sums, from 0 on, in all cells of a node."""
    if len(nest.epilogue) != 1 or not reduction.starts_neutral:
        return None
    store = nest.epilogue[0]
    if store.value != ir.LocalRead(reduction.result):
        return None
    cell = ir.Load(store.node, store.indices, reduction.dtype)
    found = _operand(cell, nodes, letters, starts)
    if found is None or not found.axes or len(set(found.axes)) != len(nest.output_axes):
        return None
    extents = {letters[axis.var]: axis.extent for axis in nest.output_axes}
    covers = all(
        extents[name] == extent for name, extent in zip(found.axes, found.info.dims, strict=True)
    )
    return found if covers else None


def _operand(
    load: ir.Load, nodes: NodeInfos, letters: dict[LoopVar, str], starts: dict[LoopVar, int]
) -> ProductOperand | None:
    """Return the node of a load with its positions; None if they depend on more than the axes."""
    info = nodes[load.node]
    if info.extents and any(each is not None for each in info.extents):
        return None
    if info.dtype is not load.dtype:
        return None
    margins = [margin.left for margin in info.padding] or [0] * len(info.dims)
    positions = [
        _position(index, margin, letters, starts)
        for index, margin in zip(load.indices, margins, strict=True)
    ]
    known = tuple(each for each in positions if each is not None)
    return ProductOperand(load.node, info, known) if len(known) == len(positions) else None


def _position(
    index: AxisIndex, margin: int, letters: dict[LoopVar, str], starts: dict[LoopVar, int]
) -> ProductPosition | None:
    if not isinstance(index, FixedIndex | VarIndex | AffineIndex):
        return None
    terms, offset = as_affine(index)
    found: dict[str, int] = {}
    for factor, var in terms:
        if not isinstance(var, LoopVar) or var not in letters:
            return None
        found[letters[var]] = found.get(letters[var], 0) + factor
        offset += factor * starts[var]
    return ProductPosition(tuple(found.items()), offset - margin)


def _with_start(epilogue: Iterable[ir.Store], reduction: Reduction) -> tuple[ir.Store, ...]:
    """Return an epilogue that adds the first value of its sums."""
    if reduction.starts_neutral:
        return tuple(epilogue)
    read = ir.LocalRead(reduction.result)
    total = ir.Binary(BinaryOp.ADD, reduction.initial, read, reduction.dtype)
    return tuple(with_value(store, read, total) for store in epilogue)


def _epilogue(nest: Nest, sums: TensorNode) -> Nest:
    """Return the nest of an epilogue that reads sums from memory."""
    reduction = nest.required_reduction
    at = tuple(VarIndex(axis.var) for axis in nest.output_axes)
    read = ir.LocalRead(reduction.result)
    load = ir.Load(sums, at, reduction.dtype)
    stores = tuple(with_value(store, read, load) for store in _with_start(nest.epilogue, reduction))
    return replace(nest, axes=nest.output_axes, reduction=None, epilogue=stores)
