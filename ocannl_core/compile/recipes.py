"""Definitions of tensors that an earlier routine left virtual, in front of code that reads them.

A routine may leave a tensor virtual: assignments of its own that read it compute its cells
themselves. Code compiled later in the same context may read the tensor too. The definition is
inserted in front of it, so that it reads the value that a stored tensor would have, or raises an
error:

- The definition reads only stored nodes, and none of them is written after the
  definition in the routine that has it. That is checked when the code is compiled.
- That routine has run, and nothing that the definition reads has been written since, by the host or
  by another routine. That is checked at every call (`runtime.recompute_nodes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

from ocannl_core.base.errors import LinkError
from ocannl_core.compile.context_state import ContextState, Recipe
from ocannl_core.ir.indexing import StaticExtent, StaticIndex
from ocannl_core.ir.loops.nodes import Stmt
from ocannl_core.ir.loops.traverse import clone_stmt, static_indices
from ocannl_core.ir.node import Reason, TensorNode


def recipes_for(
    nodes: AbstractSet[TensorNode], context: ContextState, routine: str
) -> tuple[Recipe, ...]:
    """Return recipes for the nodes that an earlier routine left virtual, oldest first.

    Raises:
        LinkError: if a recipe would not give the value that the node had.
    """
    found: list[Recipe] = []
    for node in sorted(nodes, key=lambda each: each.id):
        unstored = context.unstored.get(node)
        if node in context.stored or unstored is None or unstored.recipe is None:
            continue
        _check(unstored.recipe, context, routine)
        found.append(unstored.recipe)
    return tuple(found)


def _check(recipe: Recipe, context: ContextState, routine: str) -> None:
    definition, name = recipe.definition, recipe.routine
    if definition.overwritten:
        written = ", ".join(sorted(node.name for node in definition.overwritten))
        problem = f"{Reason.OPERAND_OVERWRITTEN.text}: {name} writes {written} afterwards"
    elif missing := sorted(n.name for n in definition.operands if n not in context.stored):
        problem = f"it is computed from {', '.join(missing)}, which {name} does not keep"
    elif indices := [i for i in indices_of(recipe) if not isinstance(i, StaticExtent)]:
        problem = f"it depends on the static index {indices[0].name} with which {name} was called"
    elif definition.has_merge:
        problem = "it is computed from a merge buffer, which the next transfer fills anew"
    else:
        return
    raise not_recomputable(
        recipe,
        f"compiling {routine}",
        f"it is virtual in {name}, and {problem}",
        f"compile {name} with keep=[{recipe.node.name}, ...], which replaces its results, "
        "and run it",
    )


def indices_of(recipe: Recipe) -> tuple[StaticIndex, ...]:
    """Return the static indices of a definition, extents at run time among them."""
    found = (index for stmt in recipe.definition.body for index in static_indices(stmt))
    return tuple(dict.fromkeys(found))


def definitions_of(recipes: Sequence[Recipe]) -> Iterator[Stmt]:
    """Yield the statements of definitions, with variables of their own."""
    for recipe in recipes:
        for stmt in recipe.definition.body:
            yield from clone_stmt(stmt).stmts


def not_recomputable(recipe: Recipe, where: str, found: str, fix: str) -> LinkError:
    """Return the error for a node that is not recomputed, with what is found where, and a fix."""
    return LinkError(
        "A tensor that a routine computes without storing it can be read later while its operands "
        "are unchanged.",
        found=f"{recipe.node.name}: {found}",
        where=where,
        fix=fix,
    )
