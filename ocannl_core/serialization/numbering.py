"""Numbers for what is compared by identity: tensor nodes, loop variables and static indices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Any

from ocannl_core.fast_dataclass import dataclass

Label = tuple[str, ...]


@dataclass(slots=True)
class Numbering:
    """Numbers for the objects of a value, and then for those of others that mention them.

    Attributes:
        numbers: The objects in order.
        known: The count of those that a reader has; the others are made anew.
    """

    numbers: dict[object, int] = field(default_factory=dict)
    known: int = 0

    @classmethod
    def of(cls, things: Iterable[object]) -> Numbering:
        """Return the numbers of objects that a reader has."""
        numbers = {thing: number for number, thing in enumerate(things)}
        return cls(numbers, len(numbers))

    @property
    def things(self) -> tuple[Any, ...]:
        """The objects in order."""
        return tuple(self.numbers)

    def number(self, thing: object) -> int:
        """Return the number of an object, the next one if it is new."""
        return self.numbers.setdefault(thing, len(self.numbers))

    def close(self) -> None:
        """Count all objects so far as those that a reader has."""
        self.known = len(self.numbers)
