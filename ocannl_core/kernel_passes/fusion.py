"""Loop fusion: kernels over one domain become one kernel.

    c[:] = 0.0                                      for i, j: c[i, j] = 0.0 + sum of k
    for i, j, k: c[i, j] += a[i, k] * b[k, j]  -->            r[i, j] = relu(c[i, j])
    for i, j: r[i, j] = relu(c[i, j])

Every operation stays the same and each cell gets its operations in the same order, so all bits stay
the same; passes over memory are saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ocannl_core.fast_dataclass import replace
from ocannl_core.indexing import AxisIndex, IndexVar, Projections, VarIndex, is_surjective
from ocannl_core.kernels.nest import KernelNest, is_independent
from ocannl_core.kernels.nest_plan import (
    NestKernel,
    NestPlan,
    NestStep,
    joint_title,
    mentioned,
    written,
)
from ocannl_core.kernels.nodes import Kernel, NodeInfos
from ocannl_core.loopir.nodes import Const, Expr, Fill, Load, Remark, Store
from ocannl_core.loopir.traverse import accesses, map_expr, substitute_in_stmt
from ocannl_core.machine_model import MEMORY_STREAMS

# ----- fills --------------------------------------------------------------------------------------


def fuse_fills(plan: NestPlan) -> NestPlan:
    """Fuse fills with the reductions that they initialise.

    c[:] = 0.0; ...; c[i, j] += x  -->  ...; c[i, j] = 0.0 + x
    """
    steps: list[NestStep | None] = list(plan.steps)
    for position, step in enumerate(plan.steps):
        fill = _fill(step)
        if fill is None:
            continue
        for later in range(position + 1, len(steps)):
            reader = steps[later]
            if reader is not None and fill.node in mentioned(reader):
                started = _initialised(reader, fill, plan.nodes)
                if started is not None:
                    steps[later], steps[position] = started, None
                break
    return plan.with_steps([step for step in steps if step is not None])


def _fill(step: NestStep) -> Fill | None:
    if not isinstance(step, Kernel):
        return None
    match [stmt for stmt in step.body.stmts if not isinstance(stmt, Remark)]:
        case [Fill() as fill]:
            return fill
        case _:
            return None


def _initialised(kernel: NestStep, fill: Fill, nodes: NodeInfos) -> NestKernel | None:
    """Return a nest that starts from the number of a fill; None if it needs the filled cells."""
    if not isinstance(kernel, NestKernel):
        return None
    nest = kernel.nest
    stores = [store for store in nest.epilogue if store.node is fill.node]
    if len(stores) != 1 or any(axis.is_shifting for axis in nest.axes):
        return None
    (store,) = stores
    before = nest.epilogue[: nest.epilogue.index(store)]
    if any(access.node is fill.node for each in before for access in accesses(each)):
        return None
    info = nodes[fill.node]
    domain = tuple((axis.var, axis.extent) for axis in nest.cells)
    places = Projections(domain, store.indices, (), info.buffer_dims, ())
    if any(axis.start for axis in nest.cells) or not is_surjective(places):
        return None
    cell = Load(fill.node, store.indices, info.dtype)
    number = Const(fill.value, info.dtype)

    def started(expr: Expr) -> Expr:
        return number if expr == cell else expr

    reduction = nest.reduction
    if reduction is not None:
        reduction = replace(reduction, initial=map_expr(reduction.initial, started))
    new = replace(store, value=map_expr(store.value, started))
    epilogue = tuple(new if each is store else each for each in nest.epilogue)
    return kernel.with_nest(KernelNest(nest.axes, reduction, epilogue))


# ----- kernels that read the results of earlier ones ----------------------------------------------


def fuse_distant_kernels(plan: NestPlan) -> NestPlan:
    """Fuse each kernel with an earlier one whose results it reads, by code motion.

    g[o, i] += d[b, o] * x[b, i]          e[b, i] += d[b, o] * w[o, i]
    e[b, i] += d[b, o] * w[o, i]    -->   g[o, i] += d[b, o] * x[b, i]; w[o, i] -= g[o, i]
    w[o, i] -= g[o, i]

    A kernel moves over others that neither write a node that it mentions nor mention one that it
    writes, so that every cell still gets its operations in the same order.
    """
    result: list[NestStep] = []
    for step in plan.steps:
        found = _partner(result, step)
        if found is None:
            result.append(step)
            continue
        at, both, to_the_end = found
        if to_the_end:
            del result[at]
            result.append(both)
        else:
            result[at] = both
    return plan.with_steps(result)


def _partner(before: Sequence[NestStep], step: NestStep) -> tuple[int, NestKernel, bool] | None:
    """Return the position of an earlier kernel, the fused one, and whether the earlier moves."""
    if not isinstance(step, NestKernel) or step.nest.reduction is not None:
        return None
    own = mentioned(step)
    for at in range(len(before) - 1, -1, -1):
        first = before[at]
        if not isinstance(first, NestKernel) or written(first).isdisjoint(own):
            continue
        between = before[at + 1 :]
        moves_up = _can_move_over(step, between)
        if not moves_up and not _can_move_over(first, between):
            continue
        both = fuse_pair(first, step)
        if both is not None:
            return at, both, not moves_up
    return None


def _can_move_over(step: NestStep, others: Iterable[NestStep]) -> bool:
    own, changed = mentioned(step), written(step)
    return all(
        own.isdisjoint(written(other)) and changed.isdisjoint(mentioned(other)) for other in others
    )


# ----- neighbours ---------------------------------------------------------------------------------


def fuse_neighbours(plan: NestPlan) -> NestPlan:
    """Fuse each kernel with the one before it where both run over one domain."""
    result: list[NestStep] = []
    for step in plan.steps:
        both = fuse_pair(result[-1], step) if result else None
        if both is None:
            result.append(step)
        else:
            result[-1] = both
    return plan.with_steps(result)


def fuse_pair(first: NestStep, second: NestStep) -> NestKernel | None:
    """Return two kernels as one that runs cell by cell; None if a dependence forbids it."""
    if not isinstance(first, NestKernel) or not isinstance(second, NestKernel):
        return None
    nest = fuse_over_one_domain(first.nest, second.nest)
    return None if nest is None else NestKernel(nest, joint_title((first.title, second.title)))


def fuse_over_one_domain(first: KernelNest, second: KernelNest) -> KernelNest | None:
    """Return two nests as one that runs cell by cell; None if a dependence forbids it."""
    if second.reduction is not None or any(axis.is_shifting for axis in first.axes):
        return None
    if len(first.epilogue) + len(second.epilogue) > MEMORY_STREAMS:
        return None
    domains = [[(axis.start, axis.extent) for axis in nest.cells] for nest in (first, second)]
    if domains[0] != domains[1]:
        return None
    names: dict[IndexVar, AxisIndex] = {
        theirs.var: VarIndex(ours.var)
        for ours, theirs in zip(first.cells, second.cells, strict=True)
    }
    epilogue = [*first.epilogue]
    for store in second.epilogue:
        epilogue += [s for s in substitute_in_stmt(store, names).stmts if isinstance(s, Store)]
    nest = KernelNest(first.axes, first.reduction, tuple(epilogue))
    return nest if is_independent(nest) else None
