"""Values and gradients of a program of known shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .gradients import TIED, pulled_back
from .grid import TooLarge
from .notation import Rows
from .programs import Program
from .reference import Array, Value, evaluate

Values = dict[str, Value]
Gradients = dict[str, Array]


def values_of(
    program: Program, shapes: dict[str, Rows], leaves: dict[str, Array], sizes: dict[str, int]
) -> Values:
    """Return the values of all tensors, those inside chains included.

    Raises:
        TooLarge: if some may be inexact.
        Undetermined: if the shapes do not determine the values.
    """
    values = {name: Value(cells, shapes[name]) for name, cells in leaves.items()}
    for step in program.expanded:
        operands = [values[name] for name in step.operands]
        whole, _, _ = step.name.partition(".")
        values[step.name] = evaluate(step.sized(sizes), operands, shapes[whole])
    return values


def gradients_of(
    program: Program,
    values: Values,
    losses: Sequence[str],
    sizes: dict[str, int],
    each: frozenset[str] = frozenset(),
) -> Gradients:
    """Return the gradients of the sum of all cells of some results in the parameters; nothing where
    they may be inexact.

    Args:
        values: The values of all tensors.
        losses: The results; one that is there twice counts twice.
        sizes: The sizes of captured dimensions.
        each: Maxima of which each of equal cells gets the whole gradient.
    """
    if not losses or not all(np.isfinite(value.cells).all() for value in values.values()):
        return {}
    found = {name: np.zeros(value.cells.shape) for name, value in values.items()}
    for loss in losses:
        found[loss] += 1.0
    reached = set(losses)
    try:
        for step in reversed(program.expanded):
            if step.name in reached:
                reached.update(step.operands)
                operands = [values[name] for name in step.operands]
                call, result = step.sized(sizes), values[step.name]
                parts = pulled_back(call, operands, result, found[step.name], each)
                for name, part in zip(step.operands, parts, strict=True):
                    found[name] += part
    except TooLarge:
        return {}
    params = {leaf.name for leaf in program.leaves if leaf.kind == "param"}
    return {name: found[name] for name in sorted(params & reached)}


def ties_of(
    program: Program,
    values: Values,
    losses: Sequence[str],
    sizes: dict[str, int],
    gradients: Gradients,
) -> frozenset[str]:
    """Return the maxima whose rule for equal cells decides about some gradient."""
    maxima = {name for step in program.steps for name in step.operations} & TIED
    return frozenset(
        name
        for name in sorted(maxima)
        if gradients
        and _differ(gradients, gradients_of(program, values, losses, sizes, frozenset({name})))
    )


def _differ(one: Gradients, other: Gradients) -> bool:
    return any(not np.array_equal(one[name], other[name]) for name in one.keys() & other.keys())
