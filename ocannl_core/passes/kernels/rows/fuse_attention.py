"""Flash-attention fusion: each attention becomes one kernel, whose scores no memory holds."""

from __future__ import annotations

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.kernels import nest_plan
from ocannl_core.ir.kernels.nest import KernelNest
from ocannl_core.ir.kernels.nodes import kernel_of
from ocannl_core.ir.loops import traverse
from ocannl_core.ir.loops.conversions import unwidened
from ocannl_core.ir.loops.nodes import Expr, Local, LocalRead
from ocannl_core.ir.matrix_units import MatrixInstruction
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.defining_stores import DefiningStores, is_plain
from ocannl_core.passes.kernels.rows.attention import FusedAttention, replaced_score
from ocannl_core.passes.kernels.rows.attention_kernel import emit_attention
from ocannl_core.passes.kernels.rows.attention_tiles import choose_tile
from ocannl_core.passes.kernels.rows.backward import BackwardSteps, find_backward
from ocannl_core.passes.kernels.rows.inline_producers import inline_producers
from ocannl_core.passes.kernels.rows.trace import (
    NoAttentionError,
    Sides,
    Trace,
    is_sum,
    last_stores,
    sides_of,
)
from ocannl_core.schedule.cost_model import is_faster_to_recompute
from ocannl_core.schedule.machine_model import PRODUCTS_PER_BYTE, TILE_PRODUCTS_PER_BYTE
from ocannl_core.schedule.rules.unit_choice import find_unit


def fuse_flash_attention(plan: nest_plan.NestPlan, target: Target) -> nest_plan.NestPlan:
    """Fuse each attention of a plan into one kernel for the thread blocks of a target.

    Attentions whose matrices other steps recompute come first: others may share nests with them,
    and save fewer matrices.
    """
    for has_backward in (True, False):
        defined, at = DefiningStores(plan, may_end=True), 0
        while at < len(plan.steps):
            found = _find(defined, at)
            if found is not None and (found.backward is not None) != has_backward:
                found = None
            fused = None if found is None else _fused(plan, found, target)
            if fused is None:
                at += 1
            else:
                at = max(0, at - len(plan.steps) + len(fused.steps))
                plan, defined = fused, DefiningStores(fused, may_end=True)
    return plan


@dataclass(frozen=True, slots=True)
class _Found:
    """An attention in a plan.

    Attributes:
        trace: The values that its last nest reads.
        position: The position of that nest.
        nests: The nests of its products.
        backward: The steps that recompute its matrices; None if no other step reads them.
    """

    attention: FusedAttention
    trace: Trace
    position: int
    nests: tuple[KernelNest, KernelNest]
    backward: BackwardSteps | None = None

    @property
    def members(self) -> tuple[int, ...]:
        """The positions of its nests."""
        return (*sorted(self.trace.members), self.position)


def _find(defined: DefiningStores, at: int) -> _Found | None:
    """Return the attention that ends with a nest."""
    nest = nest_plan.nest_of(defined.plan.steps[at])
    if nest is None or not is_sum(nest) or not is_plain(nest):
        return None
    for sides in sides_of(nest):
        try:
            found = _traced(defined, at, nest, sides)
        except NoAttentionError:
            continue
        found = None if found is None else _running_last(found)
        if found is not None:
            return found
    return None


def _traced(defined: DefiningStores, at: int, nest: KernelNest, sides: Sides) -> _Found | None:
    assert nest.reduction is not None
    trace = Trace(defined, nest.axes, sides.rows.var, sides.columns.var, runs=True)
    result = Local(at, nest.reduction.dtype)
    term = trace.value(sides.weights, at)
    if not trace.products:
        return None
    output = trace.online_sum(result, term)
    if output is None or not trace.varies(output.term):
        return None
    results: dict[Expr, Expr] = {LocalRead(nest.reduction.result): LocalRead(result)}
    epilogue = tuple(
        replace(store, value=trace.value(store.value, at))
        for store in last_stores(nest.epilogue, results)
    )
    trace.check(at)
    ((position, product),) = trace.products.items()
    maximum = trace.maximum
    attention = FusedAttention(
        sides.batch,
        sides.rows,
        sides.columns,
        (product,),
        LocalRead(product.result) if maximum is None else maximum.term,
        maximum,
        tuple(each for _, each in sorted(trace.row_sums.items())),
        output,
        sides.operand,
        sides.cells,
        epilogue,
    )
    first = nest_plan.nest_of(defined.plan.steps[position])
    assert first is not None
    return _Found(attention, trace, at, (first, nest)) if _is_complete(attention) else None


def _is_complete(attention: FusedAttention) -> bool:
    """Return True if no term needs a score that is not kept."""
    sums = (*attention.row_sums, attention.output)
    shifts = {each.shift for each in sums if each.shift is not None}
    exponentials = {unwidened(each.exponential) for each in sums if each.exponential is not None}
    if len(shifts) > 1 or len(exponentials) > 1:
        return False
    kept = [store.value for store in attention.epilogue]
    for each in sums:
        term = replaced_score(each.term, attention.score, _KEPT)
        kept.append(term)
        if each.shift is not None and attention.maximum is not None:
            term = traverse.map_expr(term, lambda e, old=each.shift: _KEPT if e == old else e)  # type: ignore[misc]
            if attention.maximum.result in traverse.locals_of(term):
                return False
    (product,) = attention.products
    return not any(product.result in traverse.locals_of(each) for each in kept)


_KEPT = LocalRead(Local(-1, float32))
"""Stands for a value that the attention keeps."""


def _running_last(found: _Found) -> _Found | None:
    """Return an attention with what other steps need of it, if all of its nests may run where the
    last one does; None if they may not, or if other steps need its matrices.
    """
    inner = found.trace.cells.keys()
    if not inner.isdisjoint(found.attention.loaded):
        return None
    is_needed = False
    for at, step in enumerate(found.trace.defined.plan.steps):
        if at not in found.members and not inner.isdisjoint(nest_plan.mentioned(step)):
            if at < found.position:
                return None
            is_needed = True
    return _with_backward(found) if is_needed else found


def _with_backward(found: _Found) -> _Found | None:
    """Return an attention that stores statistics for the steps that recompute its matrices."""
    attention, trace, plan = found.attention, found.trace, found.trace.defined.plan
    if min(attention.rows.extent, attention.columns.extent) <= attention.products[0].terms.extent:
        return None  # a matrix no larger than its factors
    row_stores = {store.node: store for store in trace.row_stores()}
    matrices = trace.cells.keys() - row_stores.keys()
    backward = find_backward(plan, found.members, attention, matrices)
    if backward is None or min((*backward.products, *backward.sums), default=0) < found.position:
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
        found.position: (attention, found.nests)
    }
    titles = {found.position: sorted((*removed, *found.members))}
    steps: dict[int, nest_plan.NestStep] = {}
    gone = {*removed, *found.members}
    if backward is not None:
        gone |= backward.removed
        for at, product in backward.products.items():
            attentions[at] = product.attention, (*product.nests, product.nest)
            titles[at] = sorted((*product.trace.members, at))
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
