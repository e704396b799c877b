"""Values of records as bytes in which nodes and indices are numbers, and copies under other names.

Nodes, loop variables and static indices are compared by identity. Here the first one that a value
mentions is number 0, the next one number 1, and so on, so that two values which differ in nothing
else are the same bytes; and what one value was made into, read with the things of another one in
the place of its own, is what that one would have been made into.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import field, fields
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any

from ocannl_core.indexing import LoopVar, StaticIndex, fresh_var
from ocannl_core.node import TensorNode
from ocannl_core.records import dataclass

Label = tuple[str, ...]

NOT_PLAIN = (TypeError, AttributeError, RecursionError, pickle.PicklingError)
"""What `dumped` raises for what is no plain data, or nested too deeply."""


@dataclass(slots=True)
class Numbering:
    """Numbers for the things of a value, and then for those of others that mention them.

    Attributes:
        numbers: The things in order.
        known: How many of them are there for who reads a value; the others are made anew.
    """

    numbers: dict[object, int] = field(default_factory=dict)
    known: int = 0

    @classmethod
    def of(cls, things: Iterable[object]) -> Numbering:
        """Returns the numbers of things that are known."""
        numbers = {thing: number for number, thing in enumerate(things)}
        return cls(numbers, len(numbers))

    @property
    def things(self) -> tuple[Any, ...]:
        return tuple(self.numbers)

    def number(self, thing: object) -> int:
        return self.numbers.setdefault(thing, len(self.numbers))

    def close(self) -> None:
        """Notes that all things so far are known to who reads what is written from now on."""
        self.known = len(self.numbers)


def dumped(value: object, numbering: Numbering, *, by_number: bool = False) -> bytes:
    """Returns a value as bytes; adds the things that it mentions.

    Args:
        value: Made of plain data and records.
        numbering: The numbers of things.
        by_number: True if nothing but numbers is written of things, so that the bytes do not depend
            on what they are called, and what a method `numbered` returns of values with ids of
            their own; such bytes are not read.

    Raises:
        NOT_PLAIN: if it is not, or nested too deeply.
    """
    file = io.BytesIO()
    _Pickler(file, numbering, by_number).dump(value)
    return file.getvalue()


def loaded(
    content: bytes, things: Sequence[object], labels: Callable[[Label], Label] | None = None
) -> Any:
    """Returns the value of some bytes.

    Args:
        content: The bytes.
        things: The known things, by number.
        labels: Returns the labels of new nodes, given those that were written.
    """
    token = _reading.set(_Reading(dict(enumerate(things)), labels))
    try:
        return pickle.loads(content)
    finally:
        _reading.reset(token)


# ----- writing ------------------------------------------------------------------------------------


class _Pickler(pickle.Pickler):
    """Writes things as numbers, members of enums by name, and of records nothing but fields."""

    def __init__(self, file: io.BytesIO, numbering: Numbering, by_number: bool) -> None:
        super().__init__(file, protocol=5)
        self._numbering = numbering
        self._by_number = by_number

    def reducer_override(self, value: Any) -> Any:
        if self._by_number and hasattr(value, "numbered"):
            return tuple, (value.numbered(self._numbering.number),)
        kind: Any = type(value)
        reduced = _reduced(kind)
        if reduced is None:
            return NotImplemented
        make, parts = reduced(value)
        if make not in _MAKERS:
            return make, parts
        number = self._numbering.number(value)
        if self._by_number or number < self._numbering.known:
            return _known, (number,)
        return make, (number, *parts)


_Reduced = Callable[[Any], tuple[Callable[..., object], tuple[Any, ...]]]


@cache
def _reduced(kind: Any) -> _Reduced | None:
    """Returns what says how values of a class are written; None for the usual way."""
    if kind is TensorNode:
        return lambda node: (_new_node, (node.id, node.label))
    if kind is LoopVar:
        return lambda var: (_new_variable, (var.hint,))
    if kind is StaticIndex:
        return lambda index: (_new_index, (index.name, index.extent))
    if issubclass(kind, Enum):
        return lambda member: (getattr, (kind, member.name))
    if hasattr(kind, "__dataclass_fields__") and "__dict__" in dir(kind):
        names = [each.name for each in fields(kind)]
        if names and all(each.init for each in fields(kind)):  # what is kept beside them is not
            values: Callable[[Any], Any] = attrgetter(*names, names[0])
            return lambda value: (kind, values(value)[:-1])
    return None


# ----- reading ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Reading:
    """What is known while a value is read: things by number, and how new nodes are called."""

    things: dict[int, Any]
    labels: Callable[[Label], Label] | None


_reading: ContextVar[_Reading] = ContextVar("things of the value that is being read")


def _known(number: int) -> object:
    return _reading.get().things[number]


def _new_node(number: int, ordinal: int, label: Label) -> object:
    reading = _reading.get()
    if reading.labels is not None:
        label = reading.labels(label)
    return reading.things.setdefault(number, TensorNode(ordinal, label))


def _new_variable(number: int, hint: str) -> object:
    things = _reading.get().things
    if number not in things:
        things[number] = fresh_var(hint)
    return things[number]


def _new_index(number: int, name: str, extent: int | None) -> object:
    return _reading.get().things.setdefault(number, StaticIndex(name, extent))


_MAKERS = frozenset({_new_node, _new_variable, _new_index})
