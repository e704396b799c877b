"""Flash-attention fusion: each attention becomes one kernel, whose scores no memory holds."""

from __future__ import annotations

from collections.abc import Collection

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.indexing import VarIndex
from ocannl_core.ir.kernels import nest_plan
from ocannl_core.ir.kernels.nodes import joint_title, kernel_of
from ocannl_core.ir.loops.nodes import Expr, Load
from ocannl_core.ir.loops.traverse import locals_of, map_expr, nodes_of, substitute_in_expr
from ocannl_core.ir.matrix_units import MatrixInstruction
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.attention.attention_kernel import emit_attention
from ocannl_core.passes.kernels.attention.attention_tiles import choose_tile
from ocannl_core.passes.kernels.attention.backward import BackwardSteps, find_backward
from ocannl_core.passes.kernels.attention.recognize_attention import TracedAttention, attentions_at
from ocannl_core.passes.kernels.defining_stores import DefiningStore, DefiningStores
from ocannl_core.schedule.cost_model import is_cheap, is_faster_to_recompute
from ocannl_core.schedule.machine_model import PRODUCTS_PER_BYTE, TILE_PRODUCTS_PER_BYTE
from ocannl_core.schedule.rules.unit_choice import find_unit

_Found = tuple[TracedAttention, BackwardSteps | None]
"""An attention, and the steps that recompute its matrices if other steps read these."""


def fuse_flash_attention(plan: nest_plan.NestPlan, target: Target) -> nest_plan.NestPlan:
    """Fuse each attention of a plan into one kernel for the thread blocks of a target.

    Attentions whose matrices other steps recompute come first: others may share nests with them,
    and save fewer matrices.
    """
    for has_backward in (True, False):
        defined, at = DefiningStores(plan, may_end=True), 0
        while at < len(plan.steps):
            fused = None
            for traced in attentions_at(defined, at, is_online=True):
                found = _running_last(traced)
                if found is not None:
                    is_next = (found[1] is not None) == has_backward
                    fused = _fused(*found, target) if is_next else None
                    break
            if fused is None:
                at += 1
            else:
                at = max(0, at - len(plan.steps) + len(fused.steps))
                plan, defined = fused, DefiningStores(fused, may_end=True)
    return plan


def _running_last(found: TracedAttention) -> _Found | None:
    """Return an attention with what other steps need of it, if all of its nests may run where the
    last one does; None if they may not, or if other steps need its matrices.
    """
    inner = found.trace.cells.keys()
    if not inner.isdisjoint(found.attention.loaded):
        return None
    is_needed = False
    for at, step in enumerate(found.plan.steps):
        if at not in found.members and not inner.isdisjoint(nest_plan.mentioned(step)):
            if at < found.position:
                return None
            is_needed = True
    return _with_backward(found) if is_needed else (found, None)


def _with_backward(found: TracedAttention) -> _Found | None:
    """Return an attention that stores statistics for the steps that recompute its matrices."""
    attention, plan = found.attention, found.plan
    if min(attention.rows.extent, attention.columns.extent) <= attention.products[0].terms.extent:
        return None  # a matrix no larger than its factors
    row_stores = {store.node: store for store in found.trace.row_stores()}
    backward = find_backward(found, found.trace.cells.keys() - row_stores.keys())
    if backward is None or min((*backward.products, *backward.sums), default=0) < found.position:
        return None  # statistics are stored by the last nest
    needed = set(backward.loads())
    for at, step in enumerate(plan.steps):
        if at not in backward.members:
            needed |= nest_plan.mentioned(step)
    stores = tuple(store for node, store in row_stores.items() if node in needed)
    return replace(found, attention=replace(attention, row_stores=stores)), backward


def _fused(
    found: TracedAttention, backward: BackwardSteps | None, target: Target
) -> nest_plan.NestPlan | None:
    """Return a plan with an attention and each of its backward products as one kernel; None if
    tiles do not fit, or if storing the matrices takes less time.
    """
    if backward is not None and not _pays(backward, target):
        return None
    plan = found.plan
    needed = frozenset[TensorNode]() if backward is None else backward.loads()
    found, removed = _with_producers(found, needed)
    attentions = {found.position: found}
    steps: dict[int, nest_plan.NestStep] = {}
    gone = {*removed, *found.members}
    if backward is not None:
        gone |= backward.removed
        attentions |= backward.products
        steps |= {at: each.step for at, each in backward.sums.items()}
    nodes = dict(plan.nodes)
    for at, each in attentions.items():
        tile = choose_tile(each.attention, each.nests, plan.nodes, target)
        if tile is None:
            return None
        body, arrays = emit_attention(each.attention, tile, plan.nodes)
        nodes |= arrays
        members = sorted((*each.members, *(removed if each is found else ())))
        title = joint_title(plan.steps[position].title for position in members)
        kernel = replace(kernel_of(body, title), products=tile.products(each.nests))
        steps[at] = replace(kernel, schedule=tile.schedule(each.attention))
    kept = [
        steps.get(at, step) for at, step in enumerate(plan.steps) if at in steps or at not in gone
    ]
    return replace(nest_plan.with_steps(plan, kept), nodes=nodes)


def _pays(backward: BackwardSteps, target: Target) -> bool:
    """Return True if recomputing matrices beyond the last cache is faster than storing them."""
    if backward.matrix_bytes() <= target.last_cache_bytes:
        return False
    on_tiles = all(
        nest.reduction is not None
        and isinstance(find_unit(MatrixInstruction, nest.reduction, target), MatrixInstruction)
        for each in backward.products.values()
        for nest in each.nests
    )
    rate = TILE_PRODUCTS_PER_BYTE if on_tiles else PRODUCTS_PER_BYTE
    return is_faster_to_recompute(backward.recomputed(), backward.traffic(), rate)


def _with_producers(
    found: TracedAttention, needed: Collection[TensorNode]
) -> tuple[TracedAttention, tuple[int, ...]]:
    """Return an attention that computes factors where it copies them, and the steps that did.

    A tile of rows is copied once, so any producer of it may be computed there. Columns are copied
    once for each tile of rows, so their producers are computed there if that is cheap.

    Args:
        needed: Nodes that other kernels will load.
    """
    removed: list[int] = []
    (product,) = found.attention.products
    factors = [product.left, product.right, found.attention.operand]
    for at, factor in enumerate(factors):
        for node in nodes_of(factor):
            producer = None if node in needed else _producer(found, node)
            if producer is None or (at > 0 and not is_cheap(producer.store.value)):
                continue
            if any(node in nodes_of(other) for other in factors if other is not factor):
                continue
            factors[at] = _inlined(factors[at], producer)
            removed.append(producer.position)
    left, right, operand = factors
    product = replace(product, left=left, right=right)
    attention = replace(found.attention, products=(product,), operand=operand)
    return replace(found, attention=attention), tuple(removed)


def _producer(found: TracedAttention, node: TensorNode) -> DefiningStore | None:
    """Return the store that alone computes a node for an attention, cell by cell."""
    producer = found.trace.defined.of(node)
    uses = [at for at, each in enumerate(found.plan.steps) if node in nest_plan.mentioned(each)]
    if producer is None or len(uses) != 2 or uses[1] not in found.members:
        return None
    nest, store = producer.nest, producer.store
    if nest.reduction is not None or len(nest.epilogue) != 1 or locals_of(store.value):
        return None
    used = {index.var for index in store.indices if isinstance(index, VarIndex)}
    if used != {axis.var for axis in nest.axes} or any(axis.bound for axis in nest.axes):
        return None
    read = nodes_of(store.value)
    is_changed = found.trace.defined.is_changed(read, producer.position, found.position + 1)
    return None if is_changed or node in read else producer


def _inlined(expr: Expr, producer: DefiningStore) -> Expr:
    def compute(expr: Expr) -> Expr:
        match expr:
            case Load(node, indices) if node is producer.store.node:
                return substitute_in_expr(producer.store.value, producer.iteration(indices))
            case _:
                return expr

    return map_expr(expr, compute)
