"""Producers of the factors of an attention, inlined into the copies of its tiles."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.indexing import AxisIndex, IndexVar, VarIndex
from ocannl_core.ir.kernels.nest_plan import NestKernel, NestPlan, mentioned, written
from ocannl_core.ir.loops.nodes import Expr, Gather, Load, LoadMerge, Scoped, Store
from ocannl_core.ir.loops.traverse import locals_of, map_expr, nodes_of, substitute_in_expr, walk
from ocannl_core.ir.node import TensorNode
from ocannl_core.passes.kernels.flash_attention.fused_attention import FusedAttention
from ocannl_core.passes.kernels.flash_attention.trace_attention import complete_axes
from ocannl_core.schedule.cost_model import is_cheap


def inline_producers(
    plan: NestPlan,
    attention: FusedAttention,
    members: Sequence[int],
    needed: Collection[TensorNode] = (),
) -> tuple[FusedAttention, tuple[int, ...]]:
    """Return an attention with producers of its factors inlined, and the steps of those.

    A tile of rows is copied once, so any producer of it may be computed there. Columns are copied
    once for each tile of rows, so their producers are computed there if that is cheap.

    Args:
        members: The positions of its nests; it runs at the last one.
        needed: Nodes that other kernels will load.
    """
    removed: list[int] = []
    (product,) = attention.products
    factors = [product.left, product.right, attention.operand]
    for at, factor in enumerate(factors):
        for node in nodes_of(factor):
            found = None if node in needed else _producer(plan, node, members)
            if found is None:
                continue
            position, store = found
            if at > 0 and not is_cheap(store.value):
                continue
            if any(node in nodes_of(other) for other in factors if other is not factor):
                continue
            factors[at] = _inlined(factors[at], store)
            removed.append(position)
    left, right, operand = factors
    attention = replace(
        attention, products=(replace(product, left=left, right=right),), operand=operand
    )
    return attention, tuple(removed)


def _producer(plan: NestPlan, node: TensorNode, members: Sequence[int]) -> tuple[int, Store] | None:
    """Return the step that alone computes a node for an attention, cell by cell, and its store."""
    if node not in plan.scratch:
        return None
    uses = [at for at, step in enumerate(plan.steps) if node in mentioned(step)]
    if len(uses) != 2 or uses[1] not in members or uses[0] in members:
        return None
    step = plan.steps[uses[0]]
    if not isinstance(step, NestKernel) or step.nest.reduction is not None:
        return None
    if len(step.nest.epilogue) != 1 or any(a.start or a.bound is not None for a in step.nest.axes):
        return None
    (store,) = step.nest.epilogue
    own = frozenset(axis.var for axis in step.nest.axes)
    if complete_axes(step.nest, store, plan.nodes[node]) != own:
        return None
    known = (Gather, LoadMerge, Scoped)
    if any(isinstance(each, known) for each in walk(store.value)) or locals_of(store.value):
        return None
    needed = set(nodes_of(store.value))
    between = plan.steps[uses[0] + 1 : members[-1] + 1]
    if node in needed or any(not needed.isdisjoint(written(each)) for each in between):
        return None
    return uses[0], store


def _inlined(expr: Expr, producer: Store) -> Expr:
    def compute(expr: Expr) -> Expr:
        match expr:
            case Load(node, indices) if node is producer.node:
                values: dict[IndexVar, AxisIndex] = {
                    own.var: index
                    for own, index in zip(producer.indices, indices, strict=True)
                    if isinstance(own, VarIndex)
                }
                return substitute_in_expr(producer.value, values)
            case _:
                return expr

    return map_expr(expr, compute)
