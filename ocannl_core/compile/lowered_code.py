"""Lowered code that need not be lowered: a later process finds the facts about it on disk.

Checks and links read facts about the loops of a program, and code generation reads the loops. A
start from disk reads facts alone, by the assignments from which they follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ocannl_core.base import settings
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.compile.context_state import ContextState, Recipe
from ocannl_core.compile.recipes import definitions_of, indices_of
from ocannl_core.ir.assignments.nodes import AssignProgram
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.loops.nodes import Block, LoopProgram
from ocannl_core.ir.loops.usage import Usage, usage_of
from ocannl_core.ir.node import NodeInfo, TensorNode


@dataclass(frozen=True, slots=True)
class LoweredFacts:
    """Facts about lowered code, which follow from its assignments."""

    nodes: tuple[TensorNode, ...]
    """The nodes that it accesses, in order of first use."""
    indices: tuple[StaticIndex, ...]
    """Its static indices, in the order in which a call takes their values."""
    usage: Usage
    partly_written: frozenset[TensorNode]
    """The nodes, among given ones, with cells that keep the values from outside while the code
    writes others.
    """


@dataclass(slots=True, eq=False)
class LoweredCode:
    """The loops of a program, perhaps with definitions of nodes of earlier routines in front."""

    facts: LoweredFacts
    """The facts about the loops of the program alone."""
    _lower: Callable[[], LoopProgram]
    nodes: Mapping[TensorNode, NodeInfo]
    """The infos of the accessed nodes, of the definitions too."""
    indices: tuple[StaticIndex, ...]
    """The static indices, of the definitions too."""
    recipes: tuple[Recipe, ...] = ()
    """The definitions in front."""
    _program: LoopProgram | None = None

    @classmethod
    def of(
        cls, program: AssignProgram, facts: LoweredFacts, loops: LoopProgram | None = None
    ) -> LoweredCode:
        """Return the lowered code of assignments under the settings in force now.

        Args:
            loops: Their loops; None to lower them when they are first read.
        """
        nodes = {node: program.nodes[node] for node in facts.nodes}
        in_force = settings.as_of_now()

        def lower() -> LoopProgram:
            with settings.held(in_force):
                return lowered(program)

        code = cls(facts, lower, nodes, facts.indices)
        code._program = loops
        return code

    @property
    def program(self) -> LoopProgram:
        """The loops."""
        if self._program is None:
            self._program = self._lower()
        return self._program

    def with_recipes(self, recipes: tuple[Recipe, ...], context: ContextState) -> LoweredCode:
        """Return the code with the definitions of recipes in front."""
        if not recipes:
            return self
        nodes = dict(self.nodes)
        for recipe in recipes:
            nodes[recipe.node] = recipe.info
            for operand in recipe.operands:
                if operand in context.stored:
                    nodes.setdefault(operand, context.stored[operand])
        found = dict.fromkeys((*self.indices, *(i for each in recipes for i in indices_of(each))))
        indices = tuple(found)

        def insert() -> LoopProgram:
            program = self.program
            added = sorted(nodes.keys() - set(program.params), key=lambda node: node.id)
            body = Block((*definitions_of(recipes), *program.body.stmts))
            params = (*program.params, *added)
            return LoopProgram(program.name, params, indices, nodes, body)

        return LoweredCode(self.facts, insert, nodes, indices, recipes)


def lowered(program: AssignProgram) -> LoopProgram:
    """Return the loops of assignments; a start from disk does not import the pass."""
    from ocannl_core.passes.lower import lower

    return lower(program)


def lower_code(program: AssignProgram, candidates: Iterable[TensorNode]) -> LoweredCode:
    """Return assignments after lowering.

    Args:
        candidates: Nodes that may be written in part.
    """
    from ocannl_core.passes.loops.definite_assignment import partly_assigned

    loops, candidates = lowered(program), list(candidates)
    partly = frozenset(partly_assigned(loops, candidates) if candidates else ())
    facts = LoweredFacts(loops.params, loops.indices, usage_of(loops), partly)
    return LoweredCode.of(program, facts, loops)
