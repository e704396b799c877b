"""Find the constant operands of products in repetitions, whose copies can be made once.

    repeat t in range(64):              repeat t in range(64):
        nest y = w @ h + x[t]    -->        nest y = w @ h + x[t], repeated 64 times with w
        nest h = tanh(y)                    nest h = tanh(y)

Rules for schedules pack such operands more readily, and scheduling moves the copies ahead of the
repetition (`schedule_kernels.py`). Row groups describe the operands that their blocks share in the
same way (`rows/apply.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.kernels.nest import Nest, NestRepetition
from ocannl_core.ir.kernels.nest_plan import NestKernel, NestLeaf, NestPlan, NestStep, written
from ocannl_core.ir.kernels.nodes import RepeatedSteps
from ocannl_core.ir.loops.nodes import Expr
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

    def is_constant(factor: Expr) -> bool:
        return changed.isdisjoint(nodes_of(factor)) and repeated.index not in static_indices(factor)

    def found(step: NestStep) -> NestStep:
        if not isinstance(step, NestKernel) or any(a.bound is not None for a in step.nest.axes):
            return step
        return replace(step, nest=with_constants(step.nest, repeated.count, is_constant))

    return replace(repeated, steps=tuple(map(found, repeated.steps)))


def with_constants(nest: Nest, count: int, is_constant: Callable[[Expr], bool]) -> Nest:
    """Return a nest that runs `count` times with the nodes that its constant factors load."""
    if nest.reduction is None:
        return nest
    constant: dict[TensorNode, None] = {}
    others: set[TensorNode] = set()
    for factor in nest.reduction.factors:
        if is_constant(factor):
            constant.update(dict.fromkeys(nodes_of(factor)))
        else:
            others.update(nodes_of(factor))
    found = tuple(node for node in constant if node not in others)
    return replace(nest, repetition=NestRepetition(count, found)) if found else nest
