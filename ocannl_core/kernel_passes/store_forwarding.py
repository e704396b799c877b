"""Store-to-load forwarding: a kernel passes values to its later stores in registers.

    g[i, j] = total                          m[i, j] = 0.9 * m[i, j] + total
    m[i, j] = 0.9 * m[i, j] + g[i, j]  -->   w[i, j] = w[i, j] - 0.1 * total
    w[i, j] = w[i, j] - 0.1 * g[i, j]

Only stores to nodes of the routine that no other kernel mentions are removed. A value is computed
in the format in which it would have been stored, so all bits stay the same.
"""

from __future__ import annotations

from collections import Counter

from ocannl_core.fast_dataclass import replace
from ocannl_core.kernels.nest import KernelNest
from ocannl_core.kernels.nest_plan import NestKernel, NestPlan, mentioned
from ocannl_core.loopir.nodes import Expr, Load, Store
from ocannl_core.loopir.traverse import map_expr, nodes_of, walk
from ocannl_core.machine_model import STORE_AND_LOAD_COST
from ocannl_core.node import TensorNode
from ocannl_core.passes.expression_cost import MOST_DEPTH, cost, depth


def forward_stores(plan: NestPlan) -> NestPlan:
    """Remove stores to nodes of the routine that one kernel alone mentions."""
    uses = Counter(node for step in plan.steps for node in mentioned(step))
    own = {node for node in plan.scratch if uses[node] == 1}

    def without_own_stores(kernel: NestKernel) -> NestKernel:
        nest = kernel.nest
        for store in kernel.nest.epilogue:
            if store.node in own:
                nest = _without(nest, store.node)
        return kernel.with_nest(nest)

    return plan.with_steps(
        [without_own_stores(s) if isinstance(s, NestKernel) else s for s in plan.steps]
    )


def _without(nest: KernelNest, node: TensorNode) -> KernelNest:
    """Return a nest that does not store a node; the same one if that is not possible."""
    stores = [store for store in nest.epilogue if store.node is node]
    if len(stores) != 1 or len(nest.epilogue) == 1 or any(axis.is_shifting for axis in nest.axes):
        return nest
    (store,) = stores
    at = nest.epilogue.index(store)
    earlier: list[Expr | Store] = [*nest.epilogue[:at]]
    if nest.reduction is not None:
        earlier += [nest.reduction.term, nest.reduction.initial]
    if any(node in nodes_of(each) for each in (*earlier, store.value)):
        return nest
    # the operands of the value must not change before they are read again
    read = set(nodes_of(store.value))
    later = nest.epilogue[at + 1 :]
    uses = [sum(_is_of(each, node) for each in walk(after)) for after in later]
    last = max((number for number, count in enumerate(uses) if count), default=-1)
    if any(after.node in read for after in later[:last]):
        return nest
    if sum(uses) > 1 and cost(store.value) > STORE_AND_LOAD_COST:
        return nest
    epilogue = tuple(
        replace(after, value=map_expr(after.value, lambda e: store.value if _is_of(e, node) else e))
        for after in later
    )
    if any(
        count and depth(after) > MOST_DEPTH for after, count in zip(epilogue, uses, strict=True)
    ):
        return nest
    return replace(nest, epilogue=(*nest.epilogue[:at], *epilogue))


def _is_of(expr: object, node: TensorNode) -> bool:
    return isinstance(expr, Load) and expr.node is node
