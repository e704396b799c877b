"""Placement of nodes: in the context, or local to the routine.

A node that the context does not keep and that is definitely assigned before each of its reads needs
no memory outside the routine: the routine allocates it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.loops.nodes import Allocate, Block, LoopProgram, Scope
from ocannl_core.ir.node import MemoryMode, Placement, Reason, TensorNode
from ocannl_core.passes.loops.accesses import analyze_accesses


def allocate_scratch(
    program: LoopProgram,
    stored: Collection[TensorNode],
    definitely_assigned: Collection[TensorNode] | None = None,
) -> LoopProgram:
    """Allocate the local nodes of a program at the start of its body.

    Args:
        stored: Nodes that the context keeps; they stay parameters.
        definitely_assigned: Nodes written before they are read, if already computed.
    """
    known = (
        definitely_assigned_nodes(program) if definitely_assigned is None else definitely_assigned
    )
    scratch = dict.fromkeys(n for n in program.params if n in known and n not in stored)
    if not scratch:
        return program
    allocations = tuple(Allocate(node, Scope.ROUTINE) for node in scratch)
    return replace(
        program,
        params=tuple(node for node in program.params if node not in scratch),
        body=Block((*allocations, *program.body.stmts)),
    )


def definitely_assigned_nodes(program: LoopProgram) -> frozenset[TensorNode]:
    """Return the written nodes that are definitely assigned before each read."""
    return frozenset(
        node
        for node, facts in analyze_accesses(program).nodes.items()
        if facts.is_definitely_assigned
    )


def decide_placement(
    node: TensorNode,
    refused: Mapping[TensorNode, Reason],
    definitely_assigned: Collection[TensorNode],
) -> Placement:
    """Return the placement of a node that is neither virtual nor kept by the context.

    Args:
        refused: Why nodes are not virtual, this one among them.
    """
    reason = refused[node]
    if reason is Reason.NO_SETTER:
        reason = Reason.READ_ONLY
    needed = MemoryMode.DEVICE_ONLY if node in definitely_assigned else MemoryMode.MATERIALIZED
    decided = Placement(MemoryMode.NEVER_VIRTUAL, reason)
    return decided.refine(Placement(needed, reason), node).settled()
