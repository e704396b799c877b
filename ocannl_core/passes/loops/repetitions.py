"""Passes over the bodies of repetitions: each iteration is optimized as a program of its own.

    repeat t in range(96):          routine iteration(x, h, y, static t < 96):
        a[i] = x[t, i] * h[i]           h[i] = x[t, i] * h[i]
        h[i] = a[i]             -->     y[t, i] = x[t, i] * h[i]
        y[t, i] = a[i]

To an iteration, nodes that other iterations or other code access are stored, as nodes of a context
are to a routine; its private nodes are inlined, removed or allocated as in a routine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.loops.nodes import Allocate, Block, LoopProgram, Repeat, Stmt
from ocannl_core.ir.loops.traverse import nodes_of, reads, remove_unused_nodes, writes
from ocannl_core.ir.node import MemoryMode, Placement, Reason, TensorNode
from ocannl_core.passes.loops.decisions import ChooseMode, Decisions

Optimize = Callable[[LoopProgram, Decisions], LoopProgram]
"""The passes over a program, with what they store their decisions in."""


@dataclass(frozen=True, slots=True)
class OptimizedRepetitions:
    """A program with optimized iterations."""

    program: LoopProgram
    placements: Mapping[TensorNode, Placement]
    """The placements of nodes that are private to an iteration."""


def optimize_repetitions(
    program: LoopProgram,
    stored: AbstractSet[TensorNode],
    optimize: Optimize,
    choose_mode: ChooseMode | None = None,
    tuned: Mapping[TensorNode, Placement] = MappingProxyType({}),
) -> OptimizedRepetitions:
    """Optimize the bodies of the repetitions at the top level of a program, innermost first.

    Writes to nodes that neither the context stores nor any other code reads are removed, and so are
    repetitions without any other.

    Args:
        tuned: The placements that a search by measurement has chosen.
    """
    if not any(isinstance(stmt, Repeat) for stmt in program.body.stmts):
        return OptimizedRepetitions(program, {})
    placements: dict[TensorNode, Placement] = {}
    stmts: list[Stmt] = []
    needed = set(stored)
    for stmt in reversed(program.body.stmts):
        if isinstance(stmt, Repeat):
            outputs = [node for node in stmt.outputs if node in needed]
            if not outputs or stmt.count == 0:
                continue
            visible = frozenset((*stmt.inputs, *outputs))
            found = _optimize_iteration(stmt, program, visible, optimize, choose_mode, tuned)
            stmt = _with_accesses(stmt, found.program, visible)
            placements |= found.placements
            needed.update(node for node in stmt.inputs)
        needed.update(reads(stmt))
        stmts.append(stmt)
    body = Block(tuple(reversed(stmts)))
    return OptimizedRepetitions(remove_unused_nodes(replace(program, body=body)), placements)


def _optimize_iteration(
    repeat: Repeat,
    program: LoopProgram,
    visible: AbstractSet[TensorNode],
    optimize: Optimize,
    choose_mode: ChooseMode | None,
    tuned: Mapping[TensorNode, Placement],
) -> OptimizedRepetitions:
    nodes = {**program.nodes, **dict(repeat.private)}
    used = nodes_of(repeat.body)
    indices = (*program.indices, repeat.index)
    infos = {node: nodes[node] for node in used}
    iteration = LoopProgram(program.name, used, indices, infos, repeat.body)
    inner = optimize_repetitions(iteration, visible, optimize, choose_mode, tuned)
    outside = Placement(MemoryMode.ON_DEVICE, Reason.USED_ELSEWHERE)
    kept = dict.fromkeys(visible, outside)
    decisions = Decisions(kept, choose_mode, tuned=tuned, outlives=False)
    found = optimize(inner.program, decisions)
    decided = decisions.placements(inner.program.nodes, found)
    private = {node: place for node, place in decided.items() if node not in visible}
    return OptimizedRepetitions(found, {**inner.placements, **private})


def _with_accesses(
    repeat: Repeat, iteration: LoopProgram, visible: AbstractSet[TensorNode]
) -> Repeat:
    """Return a repetition of an optimized iteration, without nodes that it accesses no more."""
    private = {node: info for node, info in iteration.nodes.items() if node not in visible}
    body = Block(tuple(_without_allocations(iteration.body, private.keys())))
    seen, written = set(reads(body)), set(writes(body))
    return replace(
        repeat,
        body=body,
        inputs=tuple(node for node in repeat.inputs if node in seen),
        outputs=tuple(node for node in repeat.outputs if node in written and node in visible),
        complete=tuple(node for node in repeat.complete if node in written and node in visible),
        private=tuple(private.items()),
    )


def _without_allocations(body: Block, private: AbstractSet[TensorNode]) -> Iterator[Stmt]:
    """Yield the statements of an iteration, whose private nodes have memory without allocations."""
    for stmt in body.stmts:
        if not (isinstance(stmt, Allocate) and stmt.node in private):
            yield stmt
