"""Fuse chains of online reductions: each becomes one kernel, whose scores no memory holds."""

from __future__ import annotations

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.kernels.nest import KernelNest
from ocannl_core.ir.kernels.nest_plan import (
    NestKernel,
    NestPlan,
    NestStep,
    joint_title,
    mentioned,
    written,
)
from ocannl_core.ir.kernels.nodes import kernel_of
from ocannl_core.ir.loops.nodes import Store
from ocannl_core.ir.loops.traverse import nodes_of
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.target import MatrixInstruction, Target
from ocannl_core.passes.kernels.online_reductions.chain import Chain
from ocannl_core.passes.kernels.online_reductions.emit import emit_chain
from ocannl_core.passes.kernels.online_reductions.families import Family, find_family
from ocannl_core.passes.kernels.online_reductions.nests import nest_of
from ocannl_core.passes.kernels.online_reductions.producers import inline_producers
from ocannl_core.passes.kernels.online_reductions.tile_sizes import choose_tile
from ocannl_core.passes.kernels.online_reductions.trace import ChainTrace, NoChainError
from ocannl_core.schedule.machine_model import PRODUCTS_PER_BYTE, TILE_PRODUCTS_PER_BYTE
from ocannl_core.schedule.rules.warp_matrix_tiles import matrix_instruction

_MOST_STEPS = 24
"""The steps from the first nest of a chain to its last one, at most."""


def fuse_online_reductions(plan: NestPlan, target: Target) -> NestPlan:
    """Fuse each chain of a plan into one kernel for the thread blocks of a target.

    Chains whose matrices other steps recompute come first: others may share nests with them, and
    save fewer matrices.
    """
    for has_family in (True, False):
        at = 0
        while at < len(plan.steps):
            found = _find(plan, at)
            if found is not None and (found.family is not None) != has_family:
                found = None
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
        row_stores: The stores of the inner nodes that have one value for each row.
        family: The steps that recompute its matrices; None if nothing else reads what it computes.
    """

    chain: Chain
    members: tuple[int, ...]
    nests: tuple[KernelNest, ...]
    inner: frozenset[TensorNode]
    row_stores: tuple[Store, ...]
    family: Family | None = None


def _find(plan: NestPlan, start: int) -> _Found | None:
    """Return the chain that begins with a step."""
    first = nest_of(plan.steps[start])
    if first is None:
        return None
    for trace in ChainTrace.of(first):
        try:
            found = _follow(plan, start, first, trace)
        except NoChainError:
            continue
        found = None if found is None else _running_last(plan, found)
        if found is not None:
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
            inner = frozenset(trace.defined)
            return _Found(chain, tuple(members), tuple(nests), inner, trace.row_stores)
    return None


def _running_last(plan: NestPlan, found: _Found) -> _Found | None:
    """Return a chain with what other steps need of it, if all of its nests may run where the last
    one does; None if they may not, or if other steps need its matrices.
    """
    inner = found.inner
    first, last = found.members[0], found.members[-1]
    if not inner <= set(plan.scratch) or any(plan.nodes[node].padding for node in inner):
        return None
    reads: set[TensorNode] = set()
    needed: set[TensorNode] = set()
    for at, step in enumerate(plan.steps):
        if at in found.members:
            reads |= mentioned(step)
            continue
        own = inner & mentioned(step)
        if own and (at < last or not own.isdisjoint(written(step))):
            return None
        if first < at < last and not reads.isdisjoint(written(step)):
            return None
        needed |= own
    outputs = {store.node for store in found.chain.epilogue}
    if not all(outputs.isdisjoint(_read(nest)) for nest in found.nests[:-1]):
        return None
    return _with_family(plan, found) if needed else found


def _with_family(plan: NestPlan, found: _Found) -> _Found | None:
    """Return a chain that stores the statistics which other steps need, and those of them that
    recompute its matrices.
    """
    chain = found.chain
    if min(chain.rows.extent, chain.columns.extent) <= chain.products[0].terms.extent:
        return None  # a matrix no larger than its factors
    row_stores = {store.node: store for store in found.row_stores}
    family = find_family(plan, found.members, chain, found.inner - row_stores.keys())
    if family is None or min((*family.products, *family.sums), default=0) < found.members[-1]:
        return None  # statistics are stored by the last nest
    members = family.members
    needed = set(family.loads())
    for at, step in enumerate(plan.steps):
        if at not in members:
            needed |= mentioned(step)
    stores = tuple(store for node, store in row_stores.items() if node in needed)
    return replace(found, chain=replace(chain, row_stores=stores), family=family)


def _read(nest: KernelNest) -> frozenset[TensorNode]:
    roots = [each.value if isinstance(each, Store) else each for each in nest.roots]
    return frozenset(node for root in roots for node in nodes_of(root))


def _fused(plan: NestPlan, found: _Found, target: Target) -> NestPlan | None:
    """Return a plan with a chain as one kernel, and with those that recompute its matrices; None if
    tiles do not fit, or if storing the matrices takes less time.
    """
    family = found.family
    if family is not None and not _pays(family, target):
        return None
    needed = frozenset[TensorNode]() if family is None else family.loads()
    chain, removed = inline_producers(plan, found.chain, found.members, needed)
    chains: dict[int, tuple[Chain, tuple[KernelNest, ...]]] = {
        found.members[-1]: (chain, (found.nests[0], found.nests[-1]))
    }
    titles = {found.members[-1]: sorted((*removed, *found.members))}
    steps: dict[int, NestStep] = {}
    gone = {*removed, *found.members}
    if family is not None:
        gone |= family.removed
        for at, product in family.products.items():
            chains[at] = product.chain, (*product.nests, product.nest)
            titles[at] = sorted((*product.recomputation.members, at))
        steps |= {at: each.step for at, each in family.sums.items()}
    nodes = dict(plan.nodes)
    for at, (each, nests) in chains.items():
        tile = choose_tile(each, nests, plan.nodes, target)
        if tile is None:
            return None
        emitted = emit_chain(each, tile, plan.nodes)
        nodes |= emitted.nodes
        title = joint_title(plan.steps[position].title for position in titles[at])
        kernel = replace(kernel_of(emitted.body, title), products=tile.products(nests))
        steps[at] = replace(kernel, schedule=tile.schedule(each))
    kept = [
        steps.get(at, step) for at, step in enumerate(plan.steps) if at in steps or at not in gone
    ]
    return replace(plan.with_steps(kept), nodes=nodes)


def _pays(family: Family, target: Target) -> bool:
    """Return True if a family recomputes matrices in less time than memory takes to store them.

    Matrices that the last cache holds are stored.
    """
    if family.matrix_bytes() <= target.last_cache_bytes:
        return False
    blocks = target.thread_blocks
    assert blocks is not None
    nests = [nest for each in family.products.values() for nest in (*each.nests, each.nest)]
    on_tiles = all(
        nest.reduction is not None
        and isinstance(matrix_instruction(nest, nest.reduction, blocks), MatrixInstruction)
        for nest in nests
    )
    rate = TILE_PRODUCTS_PER_BYTE if on_tiles else PRODUCTS_PER_BYTE
    return family.recomputed() <= rate * family.traffic()
