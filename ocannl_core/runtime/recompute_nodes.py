"""Recomputation of tensors that an earlier routine left virtual.

A routine may leave a tensor virtual: those of its own assignments that read it compute its cells
themselves. Code compiled later in the same context may read the tensor too. The definition is
inserted in front of it, so that it reads the value that a stored tensor would have, or raises an
error:

- The definition reads only stored nodes, and none of them is written after the
  definition in the routine that has it. That is checked when the code is compiled.
- That routine has run, and nothing that the definition reads has been written since, by the host or
  by another routine. That is checked at every call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from ocannl_core.base.errors import LinkError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import StaticExtent, StaticIndex
from ocannl_core.ir.loops.nodes import Block, LoopProgram
from ocannl_core.ir.loops.traverse import clone_stmt, static_indices
from ocannl_core.ir.node import NodeInfo, Reason, TensorNode
from ocannl_core.passes.loops.inline.decide import Definition
from ocannl_core.runtime.store import BufferStore, NodeMemory, Recipe, RunRecord


@dataclass(frozen=True, slots=True, eq=False)
class Recomputed:
    """A recipe that a routine uses, with the memory that it reads."""

    recipe: Recipe
    operands: tuple[NodeMemory, ...]


def recipes_for(
    nodes: AbstractSet[TensorNode], store: BufferStore, routine: str
) -> tuple[Recipe, ...]:
    """Return recipes for the nodes that an earlier routine left virtual, oldest first.

    Raises:
        LinkError: if a recipe would not give the value that the node had.
    """
    found: list[Recipe] = []
    for node in sorted(nodes, key=lambda each: each.id):
        unstored = store.find_unstored(node)
        if store.find(node) is not None or unstored is None or unstored.recipe is None:
            continue
        _check(unstored.recipe, store, routine)
        found.append(unstored.recipe)
    return tuple(found)


def _check(recipe: Recipe, store: BufferStore, routine: str) -> None:
    definition, name = recipe.definition, recipe.routine
    if definition.overwritten:
        written = ", ".join(sorted(node.name for node in definition.overwritten))
        problem = f"{Reason.OPERAND_OVERWRITTEN.text}: {name} writes {written} afterwards"
    elif missing := sorted(n.name for n in definition.operands if store.find(n) is None):
        problem = f"it is computed from {', '.join(missing)}, which {name} does not keep"
    elif indices := [i for i in _indices(recipe) if not isinstance(i, StaticExtent)]:
        problem = f"it depends on the static index {indices[0].name} with which {name} was called"
    elif definition.has_merge:
        problem = "it is computed from a merge buffer, which the next transfer fills anew"
    else:
        return
    raise _not_recomputable(
        recipe,
        f"compiling {routine}",
        f"it is virtual in {name}, and {problem}",
        f"compile {name} with keep=[{recipe.node.name}, ...], which replaces its results, "
        "and run it",
    )


def _indices(recipe: Recipe) -> tuple[StaticIndex, ...]:
    """Return the static indices of a definition, extents at run time among them."""
    found = (index for stmt in recipe.definition.body for index in static_indices(stmt))
    return tuple(dict.fromkeys(found))


def insert_definitions(
    program: LoopProgram, recipes: Sequence[Recipe], store: BufferStore
) -> LoopProgram:
    """Return a program with the definitions of recipes in front."""
    if not recipes:
        return program
    nodes: dict[TensorNode, NodeInfo] = dict(program.nodes)
    for recipe in recipes:
        nodes[recipe.node] = recipe.info
        for operand in recipe.operands:
            stored = store.find(operand)
            if stored is not None:
                nodes.setdefault(operand, stored.info)
    definitions = (clone_stmt(stmt) for recipe in recipes for stmt in recipe.definition.body)
    stmts = tuple(stmt for block in definitions for stmt in block.stmts)
    indices = dict.fromkeys((*program.indices, *(i for each in recipes for i in _indices(each))))
    added = sorted(nodes.keys() - set(program.params), key=lambda node: node.id)
    return replace(
        program,
        params=(*program.params, *added),
        indices=tuple(indices),
        nodes=nodes,
        body=Block((*stmts, *program.body.stmts)),
    )


def locate(recipes: Sequence[Recipe], store: BufferStore) -> tuple[Recomputed, ...]:
    """Return recipes with the memory that they read."""
    return tuple(
        Recomputed(
            recipe,
            tuple(
                stored for operand in recipe.operands if (stored := store.find(operand)) is not None
            ),
        )
        for recipe in recipes
    )


def recipes_of(
    definitions: Mapping[TensorNode, Definition],
    nodes: Mapping[TensorNode, NodeInfo],
    routine: str,
    run: RunRecord,
) -> dict[TensorNode, Recipe]:
    """Return recipes for the nodes that a routine computes and does not store."""
    return {
        node: Recipe(node, nodes[node], definition, routine, run)
        for node, definition in definitions.items()
    }


def check_current(
    recomputed: Sequence[Recomputed], routine: str, sizes: Mapping[StaticExtent, int]
) -> None:
    """Raise LinkError if an operand of a recomputed node has changed since it was computed, or the
    extent of an axis was another one then.

    Args:
        recomputed: The recomputed nodes.
        routine: The name of the routine that is about to run.
        sizes: The values of its extents.
    """
    for each in recomputed:
        recipe = each.recipe
        if recipe.run.at == 0:
            raise _not_recomputable(
                recipe,
                f"running {routine}",
                f"it is virtual in {recipe.routine}, which has not run",
                f"run {recipe.routine} first",
            )
        for extent in _indices(recipe):
            if not isinstance(extent, StaticExtent):
                continue
            before, now = recipe.run.sizes.get(extent, extent.maximum), sizes[extent]
            if before != now:
                raise _not_recomputable(
                    recipe,
                    f"running {routine}",
                    f"it is virtual in {recipe.routine}, which ran with {extent.name} = {before}, "
                    f"and {extent.name} = {now} here",
                    f"run {recipe.routine} with {extent.name}={now} first",
                )
        changed = [s.node.name for s in each.operands if s.written_at() > recipe.run.at]
        if changed:
            raise _not_recomputable(
                recipe,
                f"running {routine}",
                f"it is virtual in {recipe.routine}, and {', '.join(changed)}, from which it is "
                f"computed, has been written since that ran",
                f"run {recipe.routine} again first, or compile it with "
                f"keep=[{recipe.node.name}, ...], which replaces its results",
            )


def _not_recomputable(recipe: Recipe, where: str, found: str, fix: str) -> LinkError:
    return LinkError(
        "A tensor that a routine computes without storing it can be read later while its operands "
        "are unchanged.",
        found=f"{recipe.node.name}: {found}",
        where=where,
        fix=fix,
    )
