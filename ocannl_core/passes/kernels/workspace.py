"""Large buffers of kernels: too large for a stack, they are memory of the routine."""

from __future__ import annotations

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.kernels.nodes import Kernel, LeafStep, NodeInfos, StepReplacement
from ocannl_core.ir.loops.nodes import Allocate, Scope, Stmt
from ocannl_core.ir.loops.traverse import Replacement, allocated_nodes, map_stmts
from ocannl_core.ir.node import TensorNode
from ocannl_core.schedule.machine_model import STACK_BYTES


def allocate_workspace(step: LeafStep, nodes: NodeInfos) -> StepReplacement:
    """Move the large buffers of a kernel to the memory of the routine.

    The buffers of parallel kernels stay: the backend allocates one for each thread.
    """
    if not isinstance(step, Kernel) or step.is_parallel:
        return StepReplacement((step,))
    large = [node for node in allocated_nodes(step.body) if nodes[node].nbytes > STACK_BYTES]
    return (
        StepReplacement((_without(step, large),), tuple(large))
        if large
        else StepReplacement((step,))
    )


def _without(nest: Kernel, large: list[TensorNode]) -> Kernel:
    """Return a kernel with some buffers as arguments."""

    def without(stmt: Stmt) -> Replacement:
        match stmt:
            case Allocate(node, Scope.KERNEL) if node in large:
                return ()
            case _:
                return stmt

    return replace(nest, body=map_stmts(nest.body, without), arguments=(*nest.arguments, *large))
