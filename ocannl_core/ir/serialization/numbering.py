"""Numbers for objects that are compared by identity: tensor nodes, loop variables, static
indices.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Any

from ocannl_core.base.fast_dataclass import dataclass

Label = tuple[str, ...]


@dataclass(slots=True)
class Numbering:
    """Numbers of objects, shared by the values that mention them.

    Attributes:
        numbers: The objects in order.
        known: The number of objects that a reader has; it creates the others.
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
        """Mark all objects so far as known to a reader."""
        self.known = len(self.numbers)
