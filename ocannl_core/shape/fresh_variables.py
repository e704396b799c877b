"""Fresh variables."""

from __future__ import annotations

from itertools import count

from ocannl_core.shape.terms import DimVar, RowVar


class FreshVariables:
    """Hands out variables that differ from each other; names are for messages only."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids = count()

    def dim(self, name: str = "") -> DimVar:
        """Return an unknown axis size."""
        return DimVar(next(self._ids), name)

    def row(self, name: str = "") -> RowVar:
        """Return an unknown sequence of axes."""
        return RowVar(next(self._ids), name)

    def dims(self, number: int) -> tuple[DimVar, ...]:
        """Return unknown axis sizes without names."""
        return tuple(self.dim() for _ in range(number))
