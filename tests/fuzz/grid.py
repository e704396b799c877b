"""All combinations of the values of some labels, and the cells that they address."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from math import prod
from typing import Any

import numpy as np

from .notation import Invalid, Row

Array = np.ndarray[Any, Any]


class TooLarge(Exception):
    """The values may be inexact, or there is too much to enumerate."""


def addressed(grid: Grid, positions: list[Array], sizes: list[int]) -> tuple[Array, Array]:
    """Return the flat cell that each point of the grid touches, and whether there is one."""
    at = np.zeros(grid.shape, dtype=int)
    inside = np.ones(grid.shape, dtype=bool)
    for position, size in zip(positions, sizes, strict=True):
        inside = inside & (position >= 0) & (position < size)
        at = at * size + np.clip(position, 0, max(size - 1, 0))
    return at, inside


class Grid:
    """All combinations of the values of some variables."""

    def __init__(self) -> None:
        self._sizes: dict[Hashable, int] = {}

    def variable(self, key: Hashable, size: int) -> None:
        if self._sizes.setdefault(key, size) != size:
            raise Invalid(f"{key} is {self._sizes[key]} and {size}")

    def pick(self, key: Hashable, size: int) -> Callable[[dict[Hashable, Array]], Array]:
        self.variable(key, size)
        return lambda at: at[key]

    @property
    def shape(self) -> Row:
        return tuple(self._sizes.values())

    def indices(self, most: int) -> dict[Hashable, Array]:
        if prod(self.shape) > most or len(self.shape) > 30:
            raise TooLarge
        return dict(zip(self._sizes, np.indices(self.shape, sparse=True), strict=True))
