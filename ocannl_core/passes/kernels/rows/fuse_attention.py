"""Flash-attention fusion: each attention becomes one kernel, whose scores no memory holds."""

from __future__ import annotations

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.kernels import nest_plan
from ocannl_core.ir.kernels.nest import KernelNest, nodes_read
from ocannl_core.ir.kernels.nodes import kernel_of
from ocannl_core.ir.loops.nodes import Store
from ocannl_core.ir.matrix_units import MatrixInstruction
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.rows.attention_kernel import emit_attention
from ocannl_core.passes.kernels.rows.attention_tiles import choose_tile
from ocannl_core.passes.kernels.rows.backward import BackwardSteps, find_backward
from ocannl_core.passes.kernels.rows.fused_attention import FusedAttention
from ocannl_core.passes.kernels.rows.inline_producers import inline_producers
from ocannl_core.passes.kernels.rows.trace_attention import AttentionTrace, NoAttentionError
from ocannl_core.schedule.cost_model import is_faster_to_recompute
from ocannl_core.schedule.machine_model import PRODUCTS_PER_BYTE, TILE_PRODUCTS_PER_BYTE
from ocannl_core.schedule.rules.unit_choice import find_unit

_MOST_STEPS = 24
"""The steps from the first nest of an attention to its last one, at most."""


def fuse_flash_attention(plan: nest_plan.NestPlan, target: Target) -> nest_plan.NestPlan:
    """Fuse each attention of a plan into one kernel for the thread blocks of a target.

    Attentions whose matrices other steps recompute come first: others may share nests with them,
    and save fewer matrices.
    """
    for has_backward in (True, False):
        at = 0
        while at < len(plan.steps):
            found = _find(plan, at)
            if found is not None and (found.backward is not None) != has_backward:
                found = None
            fused = None if found is None else _fused(plan, found, target)
            plan, at = (plan, at + 1) if fused is None else (fused, at)
    return plan


@dataclass(frozen=True, slots=True)
class _Found:
    """An attention in a plan.

    Attributes:
        row_stores: The stores of the inner nodes that have one value for each row.
        backward: The steps that recompute its matrices; None if no other step reads them.
    """

    attention: FusedAttention
    members: tuple[int, ...]
    nests: tuple[KernelNest, ...]
    inner: frozenset[TensorNode]
    row_stores: tuple[Store, ...]
    backward: BackwardSteps | None = None


def _find(plan: nest_plan.NestPlan, start: int) -> _Found | None:
    first = nest_plan.nest_of(plan.steps[start])
    if first is None:
        return None
    for trace in AttentionTrace.of(first):
        try:
            found = _follow(plan, start, first, trace)
        except NoAttentionError:
            continue
        found = None if found is None else _running_last(plan, found)
        if found is not None:
            return found
    return None


def _follow(
    plan: nest_plan.NestPlan, start: int, first: KernelNest, trace: AttentionTrace
) -> _Found | None:
    members, nests = [start], [first]
    for at in range(start + 1, min(start + _MOST_STEPS, len(plan.steps))):
        step = plan.steps[at]
        if nest_plan.mentioned(step).isdisjoint(trace.defined):
            continue
        if not isinstance(step, nest_plan.NestKernel):
            return None
        attention = trace.add(step.nest)
        members.append(at)
        nests.append(step.nest)
        if attention is not None:
            inner = frozenset(trace.defined)
            return _Found(attention, tuple(members), tuple(nests), inner, trace.row_stores)
    return None


def _running_last(plan: nest_plan.NestPlan, found: _Found) -> _Found | None:
    """Return an attention with what other steps need of it, if all of its nests may run where the
    last one does; None if they may not, or if other steps need its matrices.
    """
    inner = found.inner
    first, last = found.members[0], found.members[-1]
    if not inner <= set(plan.scratch) or any(plan.nodes[node].padding for node in inner):
        return None
    reads: set[TensorNode] = set()
    needed: set[TensorNode] = set()
    for at, step in enumerate(plan.steps):
        if at in found.members:
            reads |= nest_plan.mentioned(step)
            continue
        own = inner & nest_plan.mentioned(step)
        if own and (at < last or not own.isdisjoint(nest_plan.written(step))):
            return None
        if first < at < last and not reads.isdisjoint(nest_plan.written(step)):
            return None
        needed |= own
    outputs = {store.node for store in found.attention.epilogue}
    if not all(outputs.isdisjoint(nodes_read(nest)) for nest in found.nests[:-1]):
        return None
    return _with_backward(plan, found) if needed else found


def _with_backward(plan: nest_plan.NestPlan, found: _Found) -> _Found | None:
    """Return an attention that stores statistics for the steps that recompute its matrices."""
    attention = found.attention
    if min(attention.rows.extent, attention.columns.extent) <= attention.products[0].terms.extent:
        return None  # a matrix no larger than its factors
    row_stores = {store.node: store for store in found.row_stores}
    backward = find_backward(plan, found.members, attention, found.inner - row_stores.keys())
    if backward is None or min((*backward.products, *backward.sums), default=0) < found.members[-1]:
        return None  # statistics are stored by the last nest
    members = backward.members
    needed = set(backward.loads())
    for at, step in enumerate(plan.steps):
        if at not in members:
            needed |= nest_plan.mentioned(step)
    stores = tuple(store for node, store in row_stores.items() if node in needed)
    return replace(found, attention=replace(attention, row_stores=stores), backward=backward)


def _fused(plan: nest_plan.NestPlan, found: _Found, target: Target) -> nest_plan.NestPlan | None:
    """Return a plan with an attention and each of its backward products as one kernel; None if
    tiles do not fit, or if storing the matrices takes less time.
    """
    backward = found.backward
    if backward is not None and not _pays(backward, target):
        return None
    needed = frozenset[TensorNode]() if backward is None else backward.loads()
    attention, removed = inline_producers(plan, found.attention, found.members, needed)
    attentions: dict[int, tuple[FusedAttention, tuple[KernelNest, ...]]] = {
        found.members[-1]: (attention, (found.nests[0], found.nests[-1]))
    }
    titles = {found.members[-1]: sorted((*removed, *found.members))}
    steps: dict[int, nest_plan.NestStep] = {}
    gone = {*removed, *found.members}
    if backward is not None:
        gone |= backward.removed
        for at, product in backward.products.items():
            attentions[at] = product.attention, (*product.nests, product.nest)
            titles[at] = sorted((*product.recomputation.members, at))
        steps |= {at: each.step for at, each in backward.sums.items()}
    nodes = dict(plan.nodes)
    for at, (each, nests) in attentions.items():
        tile = choose_tile(each, nests, plan.nodes, target)
        if tile is None:
            return None
        body, arrays = emit_attention(each, tile, plan.nodes)
        nodes |= arrays
        title = nest_plan.joint_title(plan.steps[position].title for position in titles[at])
        kernel = replace(kernel_of(body, title), products=tile.products(nests))
        steps[at] = replace(kernel, schedule=tile.schedule(each))
    kept = [
        steps.get(at, step) for at, step in enumerate(plan.steps) if at in steps or at not in gone
    ]
    return replace(nest_plan.with_steps(plan, kept), nodes=nodes)


def _pays(backward: BackwardSteps, target: Target) -> bool:
    """Return True if recomputing matrices beyond the last cache is faster than storing them."""
    if backward.matrix_bytes() <= target.last_cache_bytes:
        return False
    nests = [nest for each in backward.products.values() for nest in (*each.nests, each.nest)]
    on_tiles = all(
        nest.reduction is not None
        and isinstance(find_unit(MatrixInstruction, nest.reduction, target), MatrixInstruction)
        for nest in nests
    )
    rate = TILE_PRODUCTS_PER_BYTE if on_tiles else PRODUCTS_PER_BYTE
    return is_faster_to_recompute(backward.recomputed(), backward.traffic(), rate)
