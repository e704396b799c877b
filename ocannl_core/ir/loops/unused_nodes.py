"""The removal of nodes that a program does not access."""

from __future__ import annotations

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.loops.nodes import Allocate, LoopProgram, Stmt
from ocannl_core.ir.loops.traverse import Replacement, accesses_at, map_stmts, walk


def remove_unused_nodes(program: LoopProgram) -> LoopProgram:
    """Remove unused parameters, nodes and allocations from a program."""
    used = frozenset(a.node for node in walk(program.body) for a in accesses_at(node))
    if used == program.nodes.keys():
        return program

    def without_unused(stmt: Stmt) -> Replacement:
        return () if isinstance(stmt, Allocate) and stmt.node not in used else stmt

    return replace(
        program,
        params=tuple(node for node in program.params if node in used),
        nodes={node: info for node, info in program.nodes.items() if node in used},
        body=map_stmts(program.body, without_unused),
    )
