"""Find the constant operands of products in repetitions, whose copies can be made once.

    repeat t in range(64):              repeat t in range(64):
        nest y = w @ h + x[t]    -->        nest y = w @ h + x[t], repeated 64 times with w
        nest h = tanh(y)                    nest h = tanh(y)

Rules for schedules pack such operands more readily, and scheduling moves the copies ahead of the
repetition (`schedule_kernels.py`).
"""

from __future__ import annotations

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.kernels.nest import Nest, NestRepetition
from ocannl_core.ir.kernels.nest_plan import NestKernel, NestLeaf, NestPlan, NestStep, written
from ocannl_core.ir.kernels.nodes import RepeatedSteps
from ocannl_core.ir.loops.traverse import nodes_of, static_indices
from ocannl_core.ir.node import TensorNode


def find_constants(plan: NestPlan) -> NestPlan:
    """Return a plan in which nests right inside of repetitions have their constant operands."""
    if not any(isinstance(step, RepeatedSteps) for step in plan.steps):
        return plan
    steps = [_in_repetition(s) if isinstance(s, RepeatedSteps) else s for s in plan.steps]
    return replace(plan, steps=tuple(steps))


def _in_repetition(repeated: RepeatedSteps[NestLeaf]) -> RepeatedSteps[NestLeaf]:
    changed = frozenset[TensorNode](repeated.scratch).union(*map(written, repeated.steps))

    def found(step: NestStep) -> NestStep:
        if not isinstance(step, NestKernel):
            return step
        constants = _constants(step.nest, changed, repeated.index)
        if not constants:
            return step
        repetition = NestRepetition(repeated.count, constants)
        return replace(step, nest=replace(step.nest, repetition=repetition))

    return replace(repeated, steps=tuple(map(found, repeated.steps)))


def _constants(
    nest: Nest, changed: frozenset[TensorNode], index: StaticIndex
) -> tuple[TensorNode, ...]:
    """Return the nodes that factors of a sum load, each from the same cells in all iterations.

    Args:
        changed: The nodes that iterations write.
        index: The number of the iteration.
    """
    if nest.reduction is None or any(axis.bound is not None for axis in nest.axes):
        return ()
    constant: dict[TensorNode, None] = {}
    others: set[TensorNode] = set()
    for factor in nest.reduction.factors:
        nodes = nodes_of(factor)
        if changed.isdisjoint(nodes) and index not in static_indices(factor):
            constant.update(dict.fromkeys(nodes))
        else:
            others.update(nodes)
    return tuple(node for node in constant if node not in others)
