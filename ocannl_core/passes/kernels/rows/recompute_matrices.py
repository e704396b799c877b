"""Recompute the matrices that a row group stores in front of the steps that read them later.

    s, m, e, l, w, o       attention: o = w @ v, where w = exp(s - m) / l
    ...                                                       s, m, e, l, o
    p = g @ v.T                                        -->    ...
    dv += w.T @ g                                             s, e, w; dv += w.T @ g
    u = (p - d) * w; dq = u @ k; ...                          p = g @ v.T
                                                              u = (p - d) * w; dq = u @ k; ...

A training step of attention would store a matrix of all rows and columns, only for gradients. The
nests that compute it run again, first of the group of gradients, in which it is folded to a block
of rows as it is in the forward group. What is as small as the rows alone, such as maxima and sums,
is stored and loaded. All operations stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import AxisIndex, IndexVar, VarIndex, fresh_var
from ocannl_core.ir.kernels.nest import Nest, iterations, nodes_read, substitute_in_nest, with_nodes
from ocannl_core.ir.kernels.nest_plan import (
    NestKernel,
    NestPlan,
    NestStep,
    mentioned,
    nest_of,
    with_steps,
    written,
)
from ocannl_core.ir.kernels.nodes import Kernel
from ocannl_core.ir.kernels.row_fusion import RowFusion
from ocannl_core.ir.loops import traverse
from ocannl_core.ir.loops.nodes import CheckPositions
from ocannl_core.ir.node import TensorNode
from ocannl_core.passes.kernels.defining_stores import DefiningStores
from ocannl_core.passes.kernels.fusion import can_move_over
from ocannl_core.schedule.cost_model import is_faster_to_recompute
from ocannl_core.schedule.machine_model import (
    SMALL_STEP_BYTES,
    STATISTICS_PER_MATRIX,
    VECTOR_PRODUCTS_PER_BYTE,
    MachineModel,
)

GroupAt = Callable[[NestPlan, int], RowFusion | None]
"""A function that returns the row group from a position on, if there is one."""

_MOST_MOVES = 4
"""The steps that the first reader moves over, at most, to run next to recomputed matrices."""


def recompute_matrices(plan: NestPlan, machine: MachineModel, group_at: GroupAt) -> NestPlan:
    """Return a plan in which later readers of matrices that no cache holds recompute them."""
    large = {node for node in plan.scratch if plan.nodes[node].nbytes >= machine.streamed_bytes}
    if not large:
        return plan
    plan = with_steps(plan, _small_steps_first(plan))
    pending = _stored_matrices(plan, large, group_at)
    copied: set[TensorNode] = set()
    while pending:
        found = _recomputation(plan, pending.pop())  # from the last ones: others keep their places
        best = None if found is None else _best(found, group_at)
        if found is not None and best is not None:
            position, plan = best
            copied |= found.copies.keys()
            more = len(found.nests)
            pending = [each.shifted(more) if each.end > position else each for each in pending]
    return _without_unread(plan, copied)


def _small_steps_first(plan: NestPlan) -> list[NestStep]:
    """Return the steps with kernels of a few cells, such as keys of random numbers, in front of all
    others, if they depend on none of these: then they part no group.
    """
    first: list[NestStep] = []
    others: list[NestStep] = []
    for step in plan.steps:
        nbytes = sum(plan.nodes[node].nbytes for node in mentioned(step))
        is_small = nbytes <= SMALL_STEP_BYTES and written(step) <= set(plan.scratch)
        (first if is_small and _can_move_over(step, others) else others).append(step)
    return [*first, *others]


def _can_move_over(step: NestStep, others: Sequence[NestStep]) -> bool:
    """Return True if a step and others have the same results in either order, and none of these
    checks positions or calls the host: what follows a failed check has not run.
    """
    return all(map(_is_plain, (step, *others))) and can_move_over(step, others)


def _is_plain(step: NestStep) -> bool:
    if isinstance(step, Kernel):
        return not traverse.contains(step.body, CheckPositions)
    return isinstance(step, NestKernel)


@dataclass(frozen=True, slots=True)
class _StoredMatrices:
    """Nodes that later steps compute again together."""

    nodes: frozenset[TensorNode]
    end: int
    """The position behind the steps that compute them, and behind the row groups of those: steps up
    to there read what their own group has folded.
    """

    def shifted(self, count: int) -> _StoredMatrices:
        """Return the nodes in a plan with more steps in front."""
        return replace(self, end=self.end + count)

    def readers(self, plan: NestPlan) -> list[int]:
        """Return the positions of later steps that read the nodes."""
        later = range(self.end, len(plan.steps))
        return [at for at in later if not mentioned(plan.steps[at]).isdisjoint(self.nodes)]


def _stored_matrices(
    plan: NestPlan, large: set[TensorNode], group_at: GroupAt
) -> list[_StoredMatrices]:
    """Return the large nodes that no row group folds, each with what it is computed from; those
    that share a node are together. The first readers of the last ones come last.
    """
    ends: list[int] = []  # of the group of each step
    folded: set[TensorNode] = set()
    while len(ends) < len(plan.steps):
        at = len(ends)
        group = None if large.isdisjoint(written(plan.steps[at])) else group_at(plan, at)
        count = 1 if group is None else len(group.members)
        ends += [at + count] * count
        folded |= set() if group is None else set(group.folded)
    defined = DefiningStores(plan)
    found: list[_StoredMatrices] = []
    for matrix in (node for node in plan.scratch if node in large - folded):
        own = defined.of(matrix)
        after = len(ends) if own is None else ends[own.position]
        if not _StoredMatrices(frozenset({matrix}), after).readers(plan):
            continue
        nodes = _expanded(plan, defined, matrix, large, after)
        end = max(ends[each.position] for node in nodes if (each := defined.of(node)) is not None)
        joint = [each for each in found if not each.nodes.isdisjoint(nodes)]
        found = [each for each in found if each not in joint]
        nodes = nodes.union(*(each.nodes for each in joint))
        found.append(_StoredMatrices(nodes, max([end, *(each.end for each in joint)])))
    read = [each for each in found if each.readers(plan)]
    return sorted(read, key=lambda each: each.readers(plan)[0])


def _expanded(
    plan: NestPlan, defined: DefiningStores, matrix: TensorNode, large: set[TensorNode], end: int
) -> frozenset[TensorNode]:
    """Return a matrix and the nodes that have to be computed again for it.

    Statistics of rows are loaded, and so is what later steps load anyway.
    """
    least = plan.nodes[matrix].nbytes // STATISTICS_PER_MATRIX
    later = frozenset[TensorNode]().union(*map(mentioned, plan.steps[end:])) - large
    found: set[TensorNode] = set()
    pending = [matrix]
    while pending:
        node = pending.pop()
        definition = defined.of(node)
        if definition is None or node in found:
            continue
        found.add(node)
        operands = nodes_read(replace(definition.nest, epilogue=(definition.store,)))
        pending += [each for each in operands - later if plan.nodes[each].nbytes > least]
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class _Recomputation:
    """Nests to run again."""

    plan: NestPlan
    end: int
    """The first position at which they can."""
    reader: int
    """The position of the first step that reads a matrix."""
    nests: tuple[NestKernel, ...]
    """The nests, with nodes of their own."""
    copies: dict[TensorNode, TensorNode]
    """The nodes of those nests for the nodes of the plan."""

    def plan_at(self, position: int) -> NestPlan:
        """Return the plan that recomputes at a position, and reads the matrices next."""
        steps = [*self.plan.steps[:position], *self.nests]
        later = self.plan.steps[position:]
        first = later[self.reader - position]
        for step in (first, *(step for step in later if step is not first)):
            assert isinstance(step, NestKernel) or self.copies.keys().isdisjoint(mentioned(step))
            steps.append(self._redirected(step) if isinstance(step, NestKernel) else step)
        nodes = self.plan.nodes
        return with_steps(self.plan, steps, {self.copies[n]: nodes[n] for n in self.copies})

    def _redirected(self, step: NestKernel) -> NestKernel:
        if self.copies.keys().isdisjoint(mentioned(step)):
            return step
        return step.with_nest(with_nodes(step.nest, self.copies))

    def positions(self) -> Iterator[int]:
        """Yield the positions to which the first reader can move, from its own one to the start."""
        reader = self.plan.steps[self.reader]
        for position in range(self.reader, max(self.reader - _MOST_MOVES, self.end) - 1, -1):
            yield position
            if not _can_move_over(reader, self.plan.steps[max(position - 1, 0) : position]):
                return


def _recomputation(plan: NestPlan, matrices: _StoredMatrices) -> _Recomputation | None:
    """Return the recomputation of nodes in front of their later readers; None if one of those steps
    changes what they depend on, or if that would take longer.
    """
    defined = DefiningStores(plan)
    needed = matrices.nodes
    readers = matrices.readers(plan)
    for at in readers:
        nest = nest_of(plan.steps[at])
        if nest is None or not (nest.gathered | nest.written).isdisjoint(needed):
            return None
    stored = {node: each.position for node in needed if (each := defined.of(node)) is not None}
    positions = sorted(set(stored.values()))
    if len(stored) < len(needed) or not readers or positions[-1] >= matrices.end:
        return None
    nests = [_nest_of_stores(plan, at, needed) for at in positions]
    for at, nest in zip(positions, nests, strict=True):
        loaded = nodes_read(nest) - needed
        if defined.is_changed(loaded, at, readers[-1]) or loaded & written(plan.steps[at]):
            return None
    others = (step for at, step in enumerate(plan.steps) if at not in (*readers, *positions))
    is_moved = all(needed.isdisjoint(mentioned(step)) for step in others)
    if not is_moved and not _pays(plan, nests, needed, readers):
        return None
    copies = {
        node: TensorNode(node.id, (*node.label, "again")) for node in plan.scratch if node in needed
    }
    kernels = tuple(
        NestKernel(with_nodes(nest, copies), f"again {plan.steps[at].title}")
        for at, nest in zip(positions, nests, strict=True)
    )
    return _Recomputation(plan, matrices.end, readers[0], kernels, copies)


def _pays(
    plan: NestPlan, nests: Sequence[Nest], nodes: frozenset[TensorNode], readers: list[int]
) -> bool:
    """Return True if nests take no longer than loads and stores of the nodes that readers load."""
    products = sum(iterations(each.axes) for each in nests if each.reduction)
    loaded = [node for at in readers for node in nodes & mentioned(plan.steps[at])]
    traffic = sum(plan.nodes[node].nbytes for node in (*loaded, *set(loaded)))
    return is_faster_to_recompute(products, traffic, VECTOR_PRODUCTS_PER_BYTE)


def _nest_of_stores(plan: NestPlan, at: int, needed: frozenset[TensorNode]) -> Nest:
    """Return the nest of a step with the stores of some nodes alone, and variables of its own."""
    nest = nest_of(plan.steps[at])
    assert nest is not None
    values: dict[IndexVar, AxisIndex] = {}
    axes = []
    for axis in nest.axes:
        own = fresh_var(axis.var.hint)
        values[axis.var] = VarIndex(own)
        axes.append(replace(axis, var=own))
    stores = tuple(store for store in nest.epilogue if store.node in needed)
    return substitute_in_nest(replace(nest, axes=tuple(axes), epilogue=stores), values)


def _best(found: _Recomputation, group_at: GroupAt) -> tuple[int, NestPlan] | None:
    """Return the position of the longest group of recomputed matrices and their readers, and the
    plan with it; None if no group folds all matrices.
    """
    plans: list[tuple[int, int, NestPlan]] = []
    for position in found.positions():
        plan = found.plan_at(position)
        group = group_at(plan, position)
        if group is not None and set(found.copies.values()) <= set(group.folded):
            plans.append((len(group.members), position, plan))
    return max(plans, key=lambda each: each[0])[1:] if plans else None


def _without_unread(plan: NestPlan, nodes: set[TensorNode]) -> NestPlan:
    """Return a plan without stores to nodes that no step reads any more."""
    while True:
        read = {
            node
            for step in plan.steps
            for node in (nodes_read(step.nest) if isinstance(step, NestKernel) else mentioned(step))
        }
        unread = nodes - read
        if not any(not written(step).isdisjoint(unread) for step in plan.steps):
            return plan
        steps = [
            _without_stores(step, unread) if isinstance(step, NestKernel) else step
            for step in plan.steps
        ]
        plan = with_steps(plan, [step for step in steps if step is not None])


def _without_stores(step: NestKernel, nodes: set[TensorNode]) -> NestKernel | None:
    """Return a nest without stores to some nodes; None if it has no others."""
    kept = tuple(store for store in step.nest.epilogue if store.node not in nodes)
    if len(kept) == len(step.nest.epilogue):
        return step
    return step.with_nest(replace(step.nest, epilogue=kept)) if kept else None
