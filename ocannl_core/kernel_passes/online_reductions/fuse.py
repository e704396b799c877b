"""Fuse chains of online reductions: each becomes one kernel, whose scores no memory holds."""

from __future__ import annotations

from ocannl_core import settings
from ocannl_core.dtypes import float32
from ocannl_core.fast_dataclass import dataclass, replace
from ocannl_core.indexing import IndexVar
from ocannl_core.kernel_passes.online_reductions.chain import Chain
from ocannl_core.kernel_passes.online_reductions.emit import emit_chain
from ocannl_core.kernel_passes.online_reductions.producers import inline_producers
from ocannl_core.kernel_passes.online_reductions.tile_sizes import choose_tile
from ocannl_core.kernel_passes.online_reductions.trace import ChainTrace, NoChainError
from ocannl_core.kernels.nest import KernelNest, kernel_nest
from ocannl_core.kernels.nest_plan import (
    NestKernel,
    NestPlan,
    NestStep,
    joint_title,
    mentioned,
    written,
)
from ocannl_core.kernels.nodes import Kernel, NodeInfos, kernel_of
from ocannl_core.loopir.nodes import Load, LocalRead, Store, Unary
from ocannl_core.loopir.ranges import Range, index_range
from ocannl_core.loopir.traverse import nodes_of, walk
from ocannl_core.node import TensorNode
from ocannl_core.ops import BinaryOp
from ocannl_core.target import Target

_MOST_STEPS = 24
"""The steps from the first nest of a chain to its last one, at most."""


def fuse_online_reductions(plan: NestPlan, target: Target) -> NestPlan:
    """Fuse each chain of a plan into one kernel for the thread blocks of a target."""
    at = 0
    while at < len(plan.steps):
        found = _find(plan, at)
        fused = None if found is None else _fused(plan, found, target)
        plan, at = (plan, at + 1) if fused is None else (fused, at)
    return plan


@dataclass(frozen=True, slots=True)
class _Found:
    """A chain in a plan.

    Attributes:
        chain: The chain.
        members: The positions of its nests.
        nests: The nests.
        inner: The nodes that it computes for itself.
    """

    chain: Chain
    members: tuple[int, ...]
    nests: tuple[KernelNest, ...]
    inner: frozenset[TensorNode]


def _find(plan: NestPlan, start: int) -> _Found | None:
    """Return the chain that begins with a step."""
    first = _nest(plan.steps[start], plan.nodes)
    if first is None:
        return None
    for trace in ChainTrace.of(first):
        try:
            found = _follow(plan, start, first, trace)
        except NoChainError:
            continue
        if found is not None and _may_run_last(plan, found):
            return found
    return None


def _follow(plan: NestPlan, start: int, first: KernelNest, trace: ChainTrace) -> _Found | None:
    members, nests = [start], [first]
    for at in range(start + 1, min(start + _MOST_STEPS, len(plan.steps))):
        step = plan.steps[at]
        if mentioned(step).isdisjoint(trace.defined):
            continue
        if not isinstance(step, NestKernel):
            return None
        chain = trace.add(step.nest)
        members.append(at)
        nests.append(step.nest)
        if chain is not None:
            return _Found(chain, tuple(members), tuple(nests), frozenset(trace.defined))
    return None


def _nest(step: NestStep, nodes: NodeInfos) -> KernelNest | None:
    """Return the nest of a step; also that of a product behind a condition on positions, if it may
    be computed where that does not hold.
    """
    match step:
        case NestKernel(nest):
            return nest
        case Kernel(body, schedule=()):
            found = kernel_nest(body, is_speculative=True)
            return _with_flags(found) if found is not None and _is_inside(found, nodes) else None
        case _:
            return None


def _with_flags(nest: KernelNest) -> KernelNest:
    """Return a nest whose sum may use the instructions that other sums may use.

    Sums in kernels that are no nests have been widened as well, as the rounding of their results
    shows.
    """
    reduction = nest.reduction
    if reduction is None or reduction.op is not BinaryOp.ADD:
        return nest
    total = LocalRead(reduction.result)
    parts = [part for store in nest.epilogue for part in walk(store)]
    rounded = [
        part
        for part in parts
        if isinstance(part, Unary) and part.arg == total and part.dtype.is_narrow
    ]
    is_widened = bool(rounded) and parts.count(total) == len(rounded)
    may_pair = settings.current().accumulation == "fast"
    changed = replace(
        reduction, is_widened=reduction.dtype is float32 and is_widened, may_pair=may_pair
    )
    return replace(nest, reduction=changed)


def _is_inside(nest: KernelNest, nodes: NodeInfos) -> bool:
    """Return True if no iteration of a nest loads a cell beyond a node."""
    ranges: dict[IndexVar, Range] = {
        axis.var: Range(axis.start, axis.start + axis.extent - 1) for axis in nest.axes
    }
    for root in nest.roots:
        for each in walk(root):
            if isinstance(each, Load):
                for index, extent in zip(each.indices, nodes[each.node].buffer_dims, strict=True):
                    reach = index_range(index, ranges)
                    if reach is None or reach.low < 0 or reach.high >= extent:
                        return False
    return True


def _may_run_last(plan: NestPlan, found: _Found) -> bool:
    """Return True if nothing but the chain needs what it computes for itself, and all of its nests
    may run where the last one does.
    """
    inner = found.inner
    first, last = found.members[0], found.members[-1]
    if not inner <= set(plan.scratch) or any(plan.nodes[node].padding for node in inner):
        return False
    reads: set[TensorNode] = set()
    for at, step in enumerate(plan.steps):
        if at in found.members:
            reads |= mentioned(step)
        elif not inner.isdisjoint(mentioned(step)) or (
            first < at < last and not reads.isdisjoint(written(step))
        ):
            return False
    outputs = {store.node for store in found.chain.epilogue}
    return all(outputs.isdisjoint(_read(nest)) for nest in found.nests[:-1])


def _read(nest: KernelNest) -> frozenset[TensorNode]:
    roots = [each.value if isinstance(each, Store) else each for each in nest.roots]
    return frozenset(node for root in roots for node in nodes_of(root))


def _fused(plan: NestPlan, found: _Found, target: Target) -> NestPlan | None:
    """Return a plan with a chain as one kernel; None if its tiles do not fit."""
    chain, removed = inline_producers(plan, found.chain, found.members)
    tile = choose_tile(chain, (found.nests[0], found.nests[-1]), plan.nodes, target)
    if tile is None:
        return None
    emitted = emit_chain(chain, tile, plan.nodes)
    titles = joint_title(plan.steps[at].title for at in sorted((*removed, *found.members)))
    products = tile.products((found.nests[0], found.nests[-1]))
    kernel = replace(
        kernel_of(emitted.body, titles), schedule=tile.schedule(chain), products=products
    )
    gone = {*removed, *found.members}
    steps: list[NestStep] = []
    for at, step in enumerate(plan.steps):
        if at == found.members[-1]:
            steps.append(kernel)
        elif at not in gone:
            steps.append(step)
    return replace(plan.with_steps(steps), nodes={**plan.nodes, **emitted.nodes})
