"""Fresh variables."""

from __future__ import annotations

from itertools import count

from ocannl_core.shape.terms import DimVar, RowVar


class FreshVariables:
    """A supply of fresh variables; names are for messages only."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids = count()

    def dim(self, name: str = "") -> DimVar:
        """Return a fresh size variable."""
        return DimVar(next(self._ids), name)

    def row(self, name: str = "") -> RowVar:
        """Return a fresh row variable."""
        return RowVar(next(self._ids), name)

    def dims(self, number: int) -> tuple[DimVar, ...]:
        """Return fresh size variables without names."""
        return tuple(self.dim() for _ in range(number))
