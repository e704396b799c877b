"""Nodes that a routine computes again, since an earlier routine left them virtual.

`compile.recipes` puts their definitions in front of its code. Here their operands are found, and
compared at every call with the time at which the earlier routine has run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.compile.context_state import Recipe
from ocannl_core.compile.recipes import indices_of, not_recomputable
from ocannl_core.ir.indexing import StaticExtent
from ocannl_core.ir.loops.nodes import Definition
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.runtime.store import BufferStore, NodeMemory, RunRecord


@dataclass(frozen=True, slots=True, eq=False)
class Recomputed:
    """A recipe that a routine uses."""

    recipe: Recipe
    run: RunRecord
    """When the routine that has the definition has run."""
    operands: tuple[NodeMemory, ...]


def locate(
    recipes: Sequence[Recipe], memory: Mapping[TensorNode, NodeMemory], store: BufferStore
) -> tuple[Recomputed, ...]:
    """Return recipes with the memory that they read.

    Args:
        store: The memory of the context, which the routine is not part of yet.
    """
    found = []
    for recipe in recipes:
        source = store.find_unstored(recipe.node)
        assert source is not None  # the recipe is from there
        _, run = source
        operands = (memory.get(each) or store.find(each) for each in recipe.operands)
        found.append(Recomputed(recipe, run, tuple(each for each in operands if each is not None)))
    return tuple(found)


def recipes_of(
    definitions: Mapping[TensorNode, Definition], nodes: Mapping[TensorNode, NodeInfo], routine: str
) -> dict[TensorNode, Recipe]:
    """Return recipes for the nodes that a routine computes and does not store."""
    return {
        node: Recipe(node, nodes[node], definition, routine)
        for node, definition in definitions.items()
    }


def check_current(
    recomputed: Sequence[Recomputed], routine: str, sizes: Mapping[StaticExtent, int]
) -> None:
    """Raise LinkError if an operand of a recomputed node has changed since it was computed, or the
    extent of an axis was another one then.
    """
    for each in recomputed:
        recipe = each.recipe
        if each.run.at == 0:
            raise not_recomputable(
                recipe,
                f"running {routine}",
                f"it is virtual in {recipe.routine}, which has not run",
                f"run {recipe.routine} first",
            )
        for extent in indices_of(recipe):
            if not isinstance(extent, StaticExtent):
                continue
            before, now = each.run.sizes.get(extent, extent.maximum), sizes[extent]
            if before != now:
                raise not_recomputable(
                    recipe,
                    f"running {routine}",
                    f"it is virtual in {recipe.routine}, which ran with {extent.name} = {before}, "
                    f"and {extent.name} = {now} here",
                    f"run {recipe.routine} with {extent.name}={now} first",
                )
        changed = [s.node.name for s in each.operands if s.written_at() > each.run.at]
        if changed:
            raise not_recomputable(
                recipe,
                f"running {routine}",
                f"it is virtual in {recipe.routine}, and {', '.join(changed)}, from which it is "
                f"computed, has been written since that ran",
                f"run {recipe.routine} again first, or compile it with "
                f"keep=[{recipe.node.name}, ...], which replaces its results",
            )
