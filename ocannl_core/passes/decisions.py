"""Decisions of the passes about the nodes of a routine: inlining, placement, local memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field

from ocannl_core import settings
from ocannl_core.fast_dataclass import dataclass
from ocannl_core.loopir.nodes import LoopProgram
from ocannl_core.node import MemoryMode, NodeInfo, Placement, Reason, TensorNode
from ocannl_core.passes.inline.decide import Definition, Policy, inline
from ocannl_core.passes.one_hot import gather_one_hot
from ocannl_core.passes.placement import allocate_scratch, decide_placement
from ocannl_core.passes.simplify import simplify

PrefersDevice = Callable[[TensorNode, NodeInfo], bool]
"""Return True if a backend prefers device memory for a node that could be local to the routine."""


@dataclass(slots=True)
class Decisions:
    """The decisions about the nodes of one routine, filled in as the passes run.

    Attributes:
        stored: Nodes that the context keeps from one routine to the next, with its reasons.
        prefers_device: Called with each node that may be local; None prefers no device memory.
        requested: Nodes to inline, profitable or not.
        virtual: Nodes that need no memory, and why.
        refused: Why inlining left each of the others in memory.
        definitions: The definitions of virtual nodes, for use in other routines.
        independent: Nodes whose cells are all written before they are read.
        positive: Nodes that never hold `-0.0` when they are read.
        kept: Nodes that could be local and are not.
    """

    stored: Mapping[TensorNode, Placement]
    prefers_device: PrefersDevice | None = None
    requested: frozenset[TensorNode] = frozenset()
    virtual: Mapping[TensorNode, Placement] = field(default_factory=dict)
    refused: Mapping[TensorNode, Reason] = field(default_factory=dict)
    definitions: Mapping[TensorNode, Definition] = field(default_factory=dict)
    independent: frozenset[TensorNode] = frozenset()
    positive: frozenset[TensorNode] = frozenset()
    kept: dict[TensorNode, Placement] = field(default_factory=dict)

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
        wish = Placement(MemoryMode.VIRTUAL, Reason.INLINING_REQUESTED)
        for node in found.refused:
            if node in self.requested:
                decided = Placement(MemoryMode.NEVER_VIRTUAL, found.refused[node])
                self.stored.get(node, decided).refine(wish, node)
        self.virtual, self.refused = found.virtual, found.refused
        self.definitions, self.independent = found.definitions, found.independent
        self.positive = found.positive
        return found.program

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
            if node not in self.independent or node in self.stored:
                continue
            if not enabled:
                reason = Reason.LOCAL_MEMORY_DISABLED
                self.kept[node] = Placement(MemoryMode.ON_DEVICE, reason)
            elif self.prefers_device is not None and self.prefers_device(node, program.nodes[node]):
                self.kept[node] = Placement(MemoryMode.ON_DEVICE, Reason.BACKEND_CHOICE)
        return allocate_scratch(program, {**self.stored, **self.kept}, self.independent)

    def placements(
        self, nodes: Iterable[TensorNode], program: LoopProgram
    ) -> dict[TensorNode, Placement]:
        """Return the placement of each node, with its reason.

        Args:
            nodes: The nodes of the routine before any pass.
            program: The routine after all passes.
        """
        found: dict[TensorNode, Placement] = {}
        for node in nodes:
            known = self.stored.get(node) or self.kept.get(node) or self.virtual.get(node)
            if known is None and node not in program.nodes:
                known = Placement(MemoryMode.VIRTUAL, Reason.NEVER_READ)
            found[node] = known or decide_placement(node, self.refused, self.independent)
        return found
