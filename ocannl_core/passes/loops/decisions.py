"""Decisions of the passes about the nodes of a routine: inlining, placement, local memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field

from ocannl_core.base import settings
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.loops.nodes import Allocate, Block, Definition, LoopProgram, Scope
from ocannl_core.ir.node import MemoryMode, NodeInfo, Placement, Reason, TensorNode
from ocannl_core.passes.loops.inline.decide import InliningResult, Policy, inline
from ocannl_core.passes.loops.one_hot import gather_one_hot
from ocannl_core.passes.loops.simplify import simplify

ChooseMode = Callable[[TensorNode, NodeInfo, tuple[MemoryMode, ...]], Placement | None]
"""Return the choice of a backend among the memory modes of a node, the core's own choice first;
None if it makes none.
"""

_UNPROFITABLE = frozenset(
    {
        Reason.VISITED_TOO_OFTEN,
        Reason.REDUCTION_FOR_OTHER_CELLS,
        Reason.STRIDED_REDUCTION,
        Reason.PARTS_IN_REDUCTION,
        Reason.INLINING_DISABLED,
    }
)
"""Reasons against inlining that a backend may overrule."""


@dataclass(slots=True)
class Decisions:
    """The decisions about the nodes of one routine, filled in as the passes run."""

    stored: Mapping[TensorNode, Placement]
    """Nodes that the context keeps from one routine to the next, with its reasons."""
    choose_mode: ChooseMode | None = None
    """The backend's choice of memory modes; None if it makes none."""
    requested: frozenset[TensorNode] = frozenset()
    """Nodes to inline, profitable or not."""
    tuned: Mapping[TensorNode, Placement] = field(default_factory=dict)
    """Virtual and local placements that a search by measurement has chosen. They apply where the
    core and the backend leave both modes open.
    """
    virtual: Mapping[TensorNode, Placement] = field(default_factory=dict)
    """Nodes that need no memory, and why."""
    refused: Mapping[TensorNode, Reason] = field(default_factory=dict)
    """Why inlining left each of the others in memory."""
    definitions: Mapping[TensorNode, Definition] = field(default_factory=dict)
    """The definitions of virtual nodes, for use in other routines."""
    definitely_assigned: frozenset[TensorNode] = frozenset()
    """Nodes whose cells are all written before they are read."""
    positive: frozenset[TensorNode] = frozenset()
    """Nodes that never hold `-0.0` when they are read."""
    kept: dict[TensorNode, Placement] = field(default_factory=dict)
    """Nodes that could be local and are not."""
    chosen: dict[TensorNode, Placement] = field(default_factory=dict)
    """The choices of the backend and of a search."""
    outlives: bool = True
    """False if no node may outlive the program, which is an iteration of a loop."""

    def inline(self, program: LoopProgram) -> LoopProgram:
        """Inline by the policy of the settings.

        Raises:
            LinkError: if a requested node cannot be inlined; the message gives the reason.
        """
        chosen = settings.current()
        policy = Policy(
            chosen.max_visits,
            chosen.max_tracing_dim,
            chosen.inline_scalar_constexprs,
            chosen.inline_simple_computations,
            chosen.inline_complex_computations,
        )
        found = inline(program, self.stored, policy, self.requested)
        if self.choose_mode is not None:
            found = self._consult(self.choose_mode, program, policy, found)
        if self.tuned:
            found = self._apply_tuned(program, policy, found)
        wish = Placement(MemoryMode.VIRTUAL, Reason.INLINING_REQUESTED)
        for node in found.refused:
            if node in self.requested:
                decided = Placement(MemoryMode.NEVER_VIRTUAL, found.refused[node])
                self.stored.get(node, decided).refine(wish, node)
        self.virtual, self.refused = found.virtual, found.refused
        self.definitions, self.definitely_assigned = found.definitions, found.definitely_assigned
        self.positive = found.positive
        return found.program

    def _consult(
        self, choose: ChooseMode, program: LoopProgram, policy: Policy, found: InliningResult
    ) -> InliningResult:
        """Return the result of inlining after the backend's choices for all nodes left open."""
        for node in program.nodes:
            modes = self._open_modes(node, found)
            choice = choose(node, program.nodes[node], modes) if len(modes) > 1 else None
            if choice is not None:
                self.chosen[node] = choice
        chosen = {mode: set[TensorNode]() for mode in MemoryMode}
        for node, choice in self.chosen.items():
            chosen[choice.mode].add(node)
        self.kept |= {node: self.chosen[node] for node in chosen[MemoryMode.ON_DEVICE]}
        in_memory = self.kept.keys() | chosen[MemoryMode.LOCAL]
        extra = chosen[MemoryMode.VIRTUAL] & found.refused.keys()
        if not (extra or in_memory & found.virtual.keys()):
            return found
        stored, requested = {**self.stored, **self.kept}, self.requested | extra
        return inline(program, stored, policy, requested, chosen[MemoryMode.LOCAL])

    def _apply_tuned(
        self, program: LoopProgram, policy: Policy, found: InliningResult
    ) -> InliningResult:
        """Return the result of inlining after the choices of a search.

        The definitions for other routines stay the default's, so that a search changes
        neither what later code may read nor the operands that this takes.
        """
        flipped = {
            node: placement
            for node, placement in self.tuned.items()
            if node in program.nodes
            and node not in self.chosen
            and placement.mode in (modes := self._open_modes(node, found))
            and placement.mode is not modes[0]
        }
        if not flipped:
            return found
        choices = {**self.chosen, **flipped}
        local = {node for node, each in choices.items() if each.mode is MemoryMode.LOCAL}
        virtual = {node for node, each in choices.items() if each.mode is MemoryMode.VIRTUAL}
        stored, requested = {**self.stored, **self.kept}, self.requested | virtual
        self.chosen |= flipped
        again = inline(program, stored, policy, requested, local)
        return replace(again, definitions=found.definitions)

    def _open_modes(self, node: TensorNode, found: InliningResult) -> tuple[MemoryMode, ...]:
        """Return the modes that a node may have, the core's own choice first."""
        if node in self.stored or node in self.requested:
            return ()
        may_be_local = node in found.definitely_assigned and settings.current().enable_device_only
        local = (MemoryMode.LOCAL,) if may_be_local else ()
        device = (MemoryMode.ON_DEVICE,) if self.outlives else ()
        virtual = found.virtual.get(node)
        if virtual is not None:
            is_unused = virtual.reason is Reason.NEVER_READ
            return (MemoryMode.VIRTUAL, *(() if is_unused else local), *device)
        if found.refused.get(node) in _UNPROFITABLE:
            return (*local, *device, MemoryMode.VIRTUAL)
        return (*local, *device) if node in found.definitely_assigned else ()

    def is_positive(self, node: TensorNode) -> bool:
        """Return True if a node never holds `-0.0` when it is read."""
        return node in self.positive

    def simplify(self, program: LoopProgram) -> LoopProgram:
        """Simplify, given the nodes that never hold `-0.0`."""
        return simplify(program, positive=self.positive)

    def read_one_hot(self, program: LoopProgram) -> LoopProgram:
        """Read and write single entries of tables, given the same nodes."""
        finite = settings.current().tables_are_finite
        return gather_one_hot(program, tables_are_finite=finite, positive=self.positive)

    def allocate(self, program: LoopProgram) -> LoopProgram:
        """Allocate memory in the routine for the nodes that are local to it."""
        enabled = settings.current().enable_device_only
        for node in program.params:
            if node not in self.definitely_assigned or node in self.stored or node in self.kept:
                continue
            if not enabled:
                reason = Reason.LOCAL_MEMORY_DISABLED
                self.kept[node] = Placement(MemoryMode.ON_DEVICE, reason)
        return allocate_scratch(program, {**self.stored, **self.kept}, self.definitely_assigned)

    def placements(
        self, nodes: Iterable[TensorNode], program: LoopProgram
    ) -> dict[TensorNode, Placement]:
        """Return the placement of each node, with its reason."""
        found: dict[TensorNode, Placement] = {}
        for node in nodes:
            known = self.stored.get(node) or self.kept.get(node) or self.virtual.get(node)
            if known is None and node not in program.nodes:
                known = Placement(MemoryMode.VIRTUAL, Reason.NEVER_READ)
            known = known or decide_placement(node, self.refused, self.definitely_assigned)
            found[node] = self._in_own_words(node, known)
        return found

    def _in_own_words(self, node: TensorNode, decided: Placement) -> Placement:
        """Return a decision with the reason of the backend, if that made it."""
        choice = self.chosen.get(node)
        return decided if choice is None or choice.mode is not decided.mode else choice


def allocate_scratch(
    program: LoopProgram,
    stored: Collection[TensorNode],
    definitely_assigned: Collection[TensorNode],
) -> LoopProgram:
    """Allocate the local nodes of a program at the start of its body.

    Args:
        stored: Nodes that the context keeps; they stay parameters.
        definitely_assigned: Nodes written before they are read: they need no memory outside.
    """
    scratch = dict.fromkeys(
        n for n in program.params if n in definitely_assigned and n not in stored
    )
    if not scratch:
        return program
    allocations = tuple(Allocate(node, Scope.ROUTINE) for node in scratch)
    return replace(
        program,
        params=tuple(node for node in program.params if node not in scratch),
        body=Block((*allocations, *program.body.stmts)),
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
