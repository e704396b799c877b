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

from collections.abc import Callable, Iterator
from math import prod

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import AxisIndex, IndexVar, VarIndex, fresh_var
from ocannl_core.ir.kernels.nest import KernelNest, map_nest, nodes_read, substitute_in_store
from ocannl_core.ir.kernels.nest_plan import (
    NestKernel,
    NestPlan,
    RowGroup,
    mentioned,
    nest_of,
    with_steps,
    written,
)
from ocannl_core.ir.loops import traverse
from ocannl_core.ir.loops.nodes import Expr, Load
from ocannl_core.ir.node import TensorNode
from ocannl_core.passes.kernels.definitions import Definitions
from ocannl_core.schedule.machine_model import (
    RECOMPUTED_PRODUCTS_PER_BYTE,
    STATISTICS_PER_MATRIX,
    MachineModel,
)

GroupAt = Callable[[NestPlan, int], RowGroup | None]
"""A function that returns the row group from a position on, if there is one."""

_MOST_MOVES = 4
"""The steps that the first reader moves over, at most, to run next to recomputed matrices."""


def recompute_matrices(plan: NestPlan, machine: MachineModel, group_at: GroupAt) -> NestPlan:
    """Return a plan in which later readers of matrices that no cache holds recompute them."""
    large = {node for node in plan.scratch if plan.nodes[node].nbytes >= machine.streamed_bytes}
    at = 0
    while large and at < len(plan.steps):
        group = None if large.isdisjoint(written(plan.steps[at])) else group_at(plan, at)
        if group is None:
            at += 1
            continue
        end = at + len(group.titles)
        for each in _joint_definitions(plan, at, end, large.difference(group.fusion.folded)):
            found = _recomputation(plan, end, each)
            plan = (found and _best(found, group_at)) or plan
        at = end
    return plan


_Needed = dict[TensorNode, int]
"""Nodes to compute again, with the positions of the steps that compute them."""


def _joint_definitions(
    plan: NestPlan, start: int, end: int, large: set[TensorNode]
) -> list[_Needed]:
    """Return what it takes to compute each of the large nodes that a group stores for later steps;
    nodes that need the same ones are together.
    """
    later = frozenset[TensorNode]().union(*map(mentioned, plan.steps[end:]))
    inside = {node: at for at in range(start, end) for node in written(plan.steps[at])}
    defined = Definitions(plan)
    found: list[_Needed] = []
    for matrix in sorted(inside.keys() & large & later, key=inside.__getitem__):
        least = plan.nodes[matrix].nbytes // STATISTICS_PER_MATRIX
        needed: _Needed = {}
        pending = [matrix]
        while pending:
            node = pending.pop()
            definition = defined.of(node)
            if definition is None:
                break
            needed[node] = definition.position
            for operand in nodes_read(replace(definition.nest, epilogue=(definition.store,))):
                is_stored = operand in later and operand not in large
                if operand in inside and plan.nodes[operand].nbytes > least and not is_stored:
                    pending += [] if operand in needed else [operand]
        else:
            apart = [each for each in found if each.keys().isdisjoint(needed)]
            joint = [each for each in found if each not in apart]
            found = [*apart, {node: at for each in (*joint, needed) for node, at in each.items()}]
    return found


@dataclass(frozen=True, slots=True)
class _Recomputation:
    """Nests to run again.

    Attributes:
        reader: The position of the first step that reads a matrix.
        nests: The nests, with nodes of their own.
        copies: The nodes of those nests for the nodes of the plan.
    """

    plan: NestPlan
    reader: int
    nests: tuple[NestKernel, ...]
    copies: dict[TensorNode, TensorNode]

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
        return step.with_nest(_redirect(step.nest, self.copies))

    def positions(self) -> Iterator[int]:
        """Yield the positions to which the first reader can move, from its own one forwards."""
        reader = self.plan.steps[self.reader]
        reads, writes = mentioned(reader), written(reader)
        for position in range(self.reader, max(self.reader - _MOST_MOVES, 0) - 1, -1):
            yield position
            before = self.plan.steps[position - 1] if position else None
            if before is None or not (
                reads.isdisjoint(written(before)) and writes.isdisjoint(mentioned(before))
            ):
                return


def _redirect(nest: KernelNest, copies: dict[TensorNode, TensorNode]) -> KernelNest:
    def read(expr: Expr) -> Expr:
        match expr:
            case Load(node) if node in copies:
                return replace(expr, node=copies[node])
            case _:
                return expr

    return map_nest(nest, read, copies)


def _recomputation(plan: NestPlan, end: int, needed: _Needed) -> _Recomputation | None:
    """Return the recomputation of nodes that steps from `end` on read; None if one of those steps
    changes what they depend on, or if that would take longer.
    """
    readers = [
        at for at in range(end, len(plan.steps)) if not mentioned(plan.steps[at]).isdisjoint(needed)
    ]
    for at in readers:
        nest = nest_of(plan.steps[at])
        if nest is None or not (nest.gathered | nest.written).isdisjoint(needed):
            return None
    positions = sorted(set(needed.values()))
    nests = [_nest_of_stores(plan, at, needed) for at in positions]
    for at, nest in zip(positions, nests, strict=True):
        changed = frozenset[TensorNode]().union(*map(written, plan.steps[at + 1 : readers[-1]]))
        if not nodes_read(nest).difference(needed).isdisjoint(changed):
            return None
    products = sum(prod(axis.extent for axis in each.axes) for each in nests if each.reduction)
    traffic = sum(
        plan.nodes[node].nbytes
        for node in needed
        for step in plan.steps
        if any(node in mentioned(plan.steps[at]) for at in readers) and node in mentioned(step)
    )
    if products > RECOMPUTED_PRODUCTS_PER_BYTE * traffic:
        return None
    copies = {node: TensorNode(node.id, (*node.label, "again")) for node in needed}
    kernels = tuple(
        NestKernel(_redirect(nest, copies), f"again {plan.steps[at].title}")
        for at, nest in zip(positions, nests, strict=True)
    )
    return _Recomputation(plan, readers[0], kernels, copies)


def _nest_of_stores(plan: NestPlan, at: int, needed: _Needed) -> KernelNest:
    """Return the nest of a step with the stores of some nodes alone, and variables of its own."""
    nest = nest_of(plan.steps[at])
    assert nest is not None
    values: dict[IndexVar, AxisIndex] = {}
    axes = []
    for axis in nest.axes:
        own = fresh_var(axis.var.hint)
        values[axis.var] = VarIndex(own)
        axes.append(replace(axis, var=own))
    reduction = nest.reduction
    if reduction is not None:
        term = traverse.substitute_in_expr(reduction.term, values)
        initial = traverse.substitute_in_expr(reduction.initial, values)
        reduction = replace(reduction, term=term, initial=initial)
    stores = (store for store in nest.epilogue if store.node in needed)
    return KernelNest(
        tuple(axes), reduction, tuple(substitute_in_store(each, values) for each in stores)
    )


def _best(found: _Recomputation, group_at: GroupAt) -> NestPlan | None:
    """Return the plan whose group of recomputed matrices and their readers is the longest; None if
    no group folds all matrices.
    """
    plans: list[tuple[int, NestPlan]] = []
    for position in found.positions():
        plan = found.plan_at(position)
        group = group_at(plan, position)
        if group is not None and set(found.copies.values()) <= set(group.fusion.folded):
            plans.append((len(group.titles), plan))
    return max(plans, key=lambda each: each[0])[1] if plans else None
