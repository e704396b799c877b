"""Producers of the factors of an attention, inlined into the copies of its tiles."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.indexing import VarIndex
from ocannl_core.ir.kernels.nest_plan import NestPlan, mentioned
from ocannl_core.ir.loops.nodes import Expr, Load
from ocannl_core.ir.loops.traverse import locals_of, map_expr, nodes_of, substitute_in_expr
from ocannl_core.ir.node import TensorNode
from ocannl_core.passes.kernels.defining_stores import DefiningStore, DefiningStores
from ocannl_core.passes.kernels.rows.attention import FusedAttention
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
    defined = DefiningStores(plan)
    (product,) = attention.products
    factors = [product.left, product.right, attention.operand]
    for at, factor in enumerate(factors):
        for node in nodes_of(factor):
            found = None if node in needed else _producer(defined, node, members)
            if found is None or (at > 0 and not is_cheap(found.store.value)):
                continue
            if any(node in nodes_of(other) for other in factors if other is not factor):
                continue
            factors[at] = _inlined(factors[at], found)
            removed.append(found.position)
    left, right, operand = factors
    attention = replace(
        attention, products=(replace(product, left=left, right=right),), operand=operand
    )
    return attention, tuple(removed)


def _producer(
    defined: DefiningStores, node: TensorNode, members: Sequence[int]
) -> DefiningStore | None:
    """Return the store that alone computes a node for an attention, cell by cell."""
    found = defined.of(node)
    uses = [at for at, step in enumerate(defined.plan.steps) if node in mentioned(step)]
    if found is None or len(uses) != 2 or uses[1] not in members or uses[0] in members:
        return None
    nest, store = found.nest, found.store
    used = {index.var for index in store.indices if isinstance(index, VarIndex)}
    if nest.reduction is not None or len(nest.epilogue) != 1 or locals_of(store.value):
        return None
    needed = nodes_of(store.value)
    if used != {axis.var for axis in nest.axes} or node in needed:
        return None
    return None if defined.is_changed(needed, found.position, members[-1] + 1) else found


def _inlined(expr: Expr, producer: DefiningStore) -> Expr:
    def compute(expr: Expr) -> Expr:
        match expr:
            case Load(node, indices) if node is producer.store.node:
                return substitute_in_expr(producer.store.value, producer.iteration(indices))
            case _:
                return expr

    return map_expr(expr, compute)
