"""Captured names of specifications, and requirements on their sizes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from .contraction import Contraction
from .notation import Invalid, Rows, SpecContext, axes_of, names_of, parse

Captures = tuple[tuple[str, str], ...]
"""Names of a specification, each with the name of its dimension."""


@dataclass(frozen=True)
class Require:
    """A demand on a dimension: a number, or a multiple of another dimension."""

    dim: str
    size: int
    other: str = ""

    @property
    def name(self) -> str:
        """No tensor has this name."""
        return f"{self.dim} required"

    @property
    def operands(self) -> tuple[str, ...]:
        return (self.dim, self.other) if self.other else (self.dim,)

    def source(self) -> str:
        if self.other:
            times = "" if self.size == 1 else f", times={self.size}"
            return f"{self.dim}.require({self.other}{times})"
        return f"{self.dim}.require({self.size})"

    def holds(self, sizes: dict[str, int]) -> bool:
        """Return True if sizes of dimensions are as they are required to be."""
        return sizes[self.dim] == self.size * (sizes[self.other] if self.other else 1)


def capturable(spec: str, context: SpecContext) -> list[str]:
    """Return the labels of a specification and its row variables, `...` by the kind of its row."""
    patterns, result = parse(spec, context)
    everything = [*patterns, result]
    labels = [name for rows in everything for axis in axes_of(rows) for name in names_of(axis)]
    variables = [pattern.variable for rows in everything for pattern in rows if pattern.variable]
    return list(dict.fromkeys([*labels, *variables]))


def is_row(name: str, spec: str) -> bool:
    """Return True for the name of a row variable."""
    return name in ("batch", "input", "output") or re.search(rf"\.\.{name}\.\.", spec) is not None


def kept(capture: Captures, spec: str, context: SpecContext) -> Captures:
    """Return the captures of names that a specification has."""
    try:
        names = capturable(spec, context)
    except (Invalid, AssertionError):
        return ()
    return tuple(each for each in capture if each[0] in names)


def with_sizes(
    context: SpecContext, capture: Captures, spec: str, sizes: dict[str, int]
) -> SpecContext:
    """Return the context of a specification with the sizes of captured names."""
    values, rows = dict(context.values), dict(context.rows)
    for name, dim in capture:
        (rows if is_row(name, spec) else values)[name] = sizes[dim]
    return SpecContext(context.padded, tuple(sorted(values.items())), tuple(sorted(rows.items())))


def required_size(
    random: Random, spec: str, context: SpecContext, operands: Sequence[Rows | None], name: str
) -> int:
    """Return a number to require of a captured name, mostly one that fits."""
    known = [rows for rows in operands if rows is not None]
    found = 1
    if len(known) == len(operands):
        try:
            found = Contraction(spec, known, context).cells_of(name)
        except Invalid:
            found = 1
    if random.random() < 0.1:
        return random.choice([1, 2, 3, 4])
    if found == 1 or is_row(name, spec):
        found *= random.choice([1, 1, 1, 2, 3])
    return max(1, found)
