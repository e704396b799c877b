"""Loop fusion: kernels over one domain become one kernel.

    for i, j: c[i, j] = 0.0 + sum of k         -->  for i, j: c[i, j] = 0.0 + sum of k
    for i, j: r[i, j] = relu(c[i, j])                         r[i, j] = relu(c[i, j])

Every operation stays the same and each cell gets its operations in the same order, so all bits stay
the same; passes over memory are saved.
"""

from __future__ import annotations

from collections.abc import Iterable

from ocannl_core.ir.indexing import AxisIndex, IndexVar, VarIndex, variables
from ocannl_core.ir.kernels.nest import Nest, is_independent, substitute_in_store
from ocannl_core.ir.kernels.nest_plan import (
    NestKernel,
    NestPlan,
    NestStep,
    mentioned,
    with_steps,
    written,
)
from ocannl_core.ir.kernels.nodes import joint_title
from ocannl_core.ir.loops.nodes import Store
from ocannl_core.passes.loops.node_positions import NodePositions
from ocannl_core.schedule.machine_model import MEMORY_STREAMS


def fuse_distant_kernels(plan: NestPlan) -> NestPlan:
    """Fuse each kernel with an earlier one whose results it reads, by code motion.

    g[o, i] += d[b, o] * x[b, i]          e[b, i] += d[b, o] * w[o, i]
    e[b, i] += d[b, o] * w[o, i]    -->   g[o, i] += d[b, o] * x[b, i]; w[o, i] -= g[o, i]
    w[o, i] -= g[o, i]

    A kernel moves over others that neither write a node that it mentions nor mention one that it
    writes, so that every cell still gets its operations in the same order.
    """
    before = _EarlierSteps()
    for step in plan.steps:
        if not before.fuse(step):
            before.append(step)
    return with_steps(plan, [step for step in before.steps if step is not None])


class _EarlierSteps:
    """The steps in front of the next one, with the positions at which they access nodes: a step
    that shares no node with others is found without a look at them.
    """

    def __init__(self) -> None:
        self.steps: list[NestStep | None] = []
        """The steps; None where one has moved away."""
        self._writes = NodePositions(())
        self._mentions = NodePositions(())

    def append(self, step: NestStep) -> None:
        """Add a step at the end."""
        self.steps.append(step)
        self._note(len(self.steps) - 1, step)

    def fuse(self, step: NestStep) -> bool:
        """Fuse the next step with the last one possible; return False if there is none."""
        if not isinstance(step, NestKernel) or step.nest.reduction is not None:
            return False
        writers = {at for node in mentioned(step) for at in self._writes.of(node)}
        for at in sorted(writers, reverse=True):
            first = self.steps[at]
            if not isinstance(first, NestKernel):
                continue
            moves_up = self._can_move_over(step, at)
            if not moves_up and not self._can_move_over(first, at):
                continue
            both = fuse_pair(first, step)
            if both is None:
                continue
            if moves_up:
                self.steps[at] = both
                self._note(at, step)
            else:
                self.steps[at] = None
                self._writes.remove(at, written(first))
                self._mentions.remove(at, mentioned(first))
                self.append(both)
            return True
        return False

    def _note(self, at: int, step: NestStep) -> None:
        self._writes.add(at, written(step))
        self._mentions.add(at, mentioned(step))

    def _can_move_over(self, step: NestStep, at: int) -> bool:
        """Return True if `can_move_over` holds for a step and those behind a position."""
        end = len(self.steps)
        return not any(
            positions.is_between(node, at, end)
            for positions, nodes in (
                (self._writes, mentioned(step)),
                (self._mentions, written(step)),
            )
            for node in nodes
        )


def can_move_over(step: NestStep, others: Iterable[NestStep]) -> bool:
    """Return True if a step and others have the same results in either order."""
    own, changed = mentioned(step), written(step)
    return all(
        own.isdisjoint(written(other)) and changed.isdisjoint(mentioned(other)) for other in others
    )


def fuse_neighbors(plan: NestPlan) -> NestPlan:
    """Fuse each kernel with the one before it where both run over one domain."""
    result: list[NestStep] = []
    for step in plan.steps:
        both = fuse_pair(result[-1], step) if result else None
        if both is None:
            result.append(step)
        else:
            result[-1] = both
    return with_steps(plan, result)


def fuse_pair(first: NestStep, second: NestStep) -> NestKernel | None:
    """Return two kernels as one that runs cell by cell; None if a dependence forbids it."""
    if not isinstance(first, NestKernel) or not isinstance(second, NestKernel):
        return None
    nest = fuse_over_one_domain(first.nest, second.nest)
    return None if nest is None else NestKernel(nest, joint_title((first.title, second.title)))


def fuse_over_one_domain(first: Nest, second: Nest) -> Nest | None:
    """Return two nests as one that runs cell by cell; None if a dependence forbids it."""
    if second.reduction is not None or any(axis.is_shifting for axis in first.axes):
        return None
    if len(first.epilogue) + len(second.epilogue) > MEMORY_STREAMS:
        return None
    domains = [[axis.domain for axis in nest.output_axes] for nest in (first, second)]
    if domains[0] != domains[1]:
        return None
    names: dict[IndexVar, AxisIndex] = {
        theirs.var: VarIndex(ours.var)
        for ours, theirs in zip(first.output_axes, second.output_axes, strict=True)
    }
    moved = tuple(substitute_in_store(store, names) for store in second.epilogue)
    if first.reduction is None and _cross(first.epilogue, moved):
        return None
    nest = Nest(first.axes, first.reduction, (*first.epilogue, *moved))
    return nest if is_independent(nest) else None


def _cross(first: Iterable[Store], second: Iterable[Store]) -> bool:
    """Return True if rows of some stores are columns of others: no vector serves both."""
    rows = [
        {var for store in stores for index in store.indices[-1:] for var in variables(index)}
        for stores in (first, second)
    ]
    return all(rows) and rows[0].isdisjoint(rows[1])
