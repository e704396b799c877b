"""The parts of concatenated axes that are visited together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from .notation import Axis, PartsAxis, SpecContext, axes_of, names_of, parse

Choice = dict[PartsAxis, int]
"""For every concatenated axis, the place of one of its parts."""


def choices(axes: Iterable[Axis], parted: set[str]) -> Iterator[Choice]:
    """Yield the parts of concatenated axes that some cells lie at together.

    Axes that share a part are all at it, or none is; a label that stands alone is at its part. So
    `a^b => b^a` has two choices, and `a^b => a` one.

    Args:
        axes: Axes of operands and of the result.
        parted: All labels that are parts in the spec.
    """
    axes = list(axes)
    concatenated = list(dict.fromkeys(axis for axis in axes if isinstance(axis, PartsAxis)))
    alone = {name for axis in axes if not isinstance(axis, PartsAxis) for name in names_of(axis)}
    places = [
        [place for place, part in enumerate(axis.parts) if isinstance(part, str)]
        for axis in concatenated
    ]
    for chosen in product(*places):
        choice = dict(zip(concatenated, chosen, strict=True))
        visited = {axis.parts[place] for axis, place in choice.items()}
        is_consistent = all(len(visited.intersection(axis.parts)) == 1 for axis in concatenated)
        if is_consistent and alone.intersection(parted) <= visited:
            yield choice


def is_reachable(spec: str, context: SpecContext) -> bool:
    """Return True if there is a choice of parts for which all axes of a spec have cells."""
    patterns, result = parse(spec, context)
    axes = [axis for rows in (*patterns, result) for axis in axes_of(rows)]
    return next(choices(axes, parted(axes)), None) is not None


def parted(axes: Iterable[Axis]) -> set[str]:
    return {label for axis in axes if isinstance(axis, PartsAxis) for label in axis.labels}
