"""Kernels that share cells become one: fills join the sums that follow, and neighbours over one
domain run together.

    c[:] = 0.0                                      for i, j: c[i, j] = 0.0 + sum of k
    for i, j, k: c[i, j] += a[i, k] * b[k, j]  -->            r[i, j] = relu(c[i, j])
    for i, j: r[i, j] = relu(c[i, j])

Every operation stays what it was and each cell sees its operations in the same order, so all bits
stay the same; what is saved are passes over memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ocannl_core.fast_dataclass import replace
from ocannl_core.indexing import AxisIndex, IndexVar, Projections, VarIndex, is_surjective
from ocannl_core.kernel_passes.analysed_kernel import AnalysedKernel, fuse_analyses
from ocannl_core.kernel_passes.code_motion import fuse_distant_kernels
from ocannl_core.kernels.nest import KernelNest, is_independent, kernel_nest
from ocannl_core.kernels.nodes import Kernel, NodeInfos, Step
from ocannl_core.loopir.nodes import Const, Expr, Fill, Load, Remark, Store
from ocannl_core.loopir.traverse import accesses, map_expr, substitute_in_stmt
from ocannl_core.machine_model import MEMORY_STREAMS


def fuse_kernels(
    steps: Iterable[Step], nodes: NodeInfos, *, rounds_often: bool = False
) -> tuple[AnalysedKernel, ...]:
    """Returns the steps of a plan with fills, and what can be neighbours, joined.

    Args:
        steps: The steps.
        nodes: What is known of nodes.
        rounds_often: True if sums of narrow floats stay in the order of their loops, rounded after
            every term.
    """
    parts: list[AnalysedKernel] = []
    for step in steps:
        nest = kernel_nest(step.body) if isinstance(step, Kernel) else None
        is_fixed = rounds_often and nest is not None and nest.rounds_often
        parts.append(AnalysedKernel(step, None if is_fixed else nest))
    return _neighbours_joined(fuse_distant_kernels(_fills_joined(parts, nodes), fuse_pair))


# ----- fills --------------------------------------------------------------------------------------


def _fills_joined(parts: Sequence[AnalysedKernel], nodes: NodeInfos) -> list[AnalysedKernel]:
    """Returns the steps without fills that only give sums their first value.

    c[:] = 0.0; ...; c[i, j] += x  -->  ...; c[i, j] = 0.0 + x
    """
    result = list(parts)
    for position, part in enumerate(parts):
        fill = _fill(part.step)
        if fill is None:
            continue
        for later in range(position + 1, len(result)):
            if fill.node in result[later].mentioned:
                started = _started(result[later], fill, nodes)
                if started is not None:
                    result[later] = started
                    result[position] = AnalysedKernel(part.step, None, is_changed=True)
                break
    return [part for part in result if part.cells is not None or not part.is_changed]


def _fill(step: Step) -> Fill | None:
    if not isinstance(step, Kernel):
        return None
    match [stmt for stmt in step.body.stmts if not isinstance(stmt, Remark)]:
        case [Fill() as fill]:
            return fill
        case _:
            return None


def _started(part: AnalysedKernel, fill: Fill, nodes: NodeInfos) -> AnalysedKernel | None:
    """Returns a nest that starts from the number of a fill; None if it needs the filled cells."""
    nest = part.cells
    if nest is None:
        return None
    stores = [store for store in nest.finish if store.node is fill.node]
    if len(stores) != 1 or any(axis.is_shifting for axis in nest.axes):
        return None
    (store,) = stores
    before = nest.finish[: nest.finish.index(store)]
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
    finish = tuple(new if each is store else each for each in nest.finish)
    return AnalysedKernel(part.step, KernelNest(nest.axes, reduction, finish), is_changed=True)


# ----- neighbours ---------------------------------------------------------------------------------


def _neighbours_joined(parts: Iterable[AnalysedKernel]) -> tuple[AnalysedKernel, ...]:
    """Returns the steps with each one joined to the one before where both run over one domain."""
    result: list[AnalysedKernel] = []
    for part in parts:
        both = fuse_pair(result[-1], part) if result else None
        if both is None:
            result.append(part)
        else:
            result[-1] = both
    return tuple(result)


def fuse_pair(first: AnalysedKernel, second: AnalysedKernel) -> AnalysedKernel | None:
    """Returns two steps as one, in every cell one after the other; None if the second must wait."""
    if first.cells is None or second.cells is None:
        return None
    nest = fuse_over_one_domain(first.cells, second.cells)
    return None if nest is None else replace(fuse_analyses((first, second)), cells=nest)


def fuse_over_one_domain(first: KernelNest, second: KernelNest) -> KernelNest | None:
    """Returns two nests as one, in every cell one after the other; None if the second must wait."""
    if second.reduction is not None or any(axis.is_shifting for axis in first.axes):
        return None
    if len(first.finish) + len(second.finish) > MEMORY_STREAMS:
        return None
    domains = [[(axis.start, axis.extent) for axis in nest.cells] for nest in (first, second)]
    if domains[0] != domains[1]:
        return None
    names: dict[IndexVar, AxisIndex] = {
        theirs.var: VarIndex(ours.var)
        for ours, theirs in zip(first.cells, second.cells, strict=True)
    }
    finish = [*first.finish]
    for store in second.finish:
        finish += [s for s in substitute_in_stmt(store, names).stmts if isinstance(s, Store)]
    nest = KernelNest(first.axes, first.reduction, tuple(finish))
    return nest if is_independent(nest) else None
