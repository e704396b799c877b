"""Maps keyed by object identity, and keys that tell apart all that computes differently.

The number that `id` returns is reused once its object is freed, so a map from such numbers is right
only while every key is alive. The maps of this module hold their keys. No other module of the core
calls `id`.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, MutableMapping
from itertools import count
from numbers import Complex, Rational
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


def exact_key(value: Any) -> Hashable:
    """Return a key that is equal for values of one class with equal bits: 0.0 is not -0.0, 1 is
    neither 1.0 nor True, and a NaN equals itself. Tuples are compared part by part.
    """
    match value:
        case Complex() if not isinstance(value, Rational):
            return type(value), repr(value)
        case tuple():
            return type(value), *map(exact_key, value)
        case _:
            return type(value), value


class IdentityMap(MutableMapping[K, V], Generic[K, V]):
    """A map that compares keys with `is` and keeps them alive."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[int, tuple[K, V]] = {}

    def __getitem__(self, key: K) -> V:
        return self._entries[id(key)][1]

    def __setitem__(self, key: K, value: V) -> None:
        self._entries[id(key)] = key, value

    def __delitem__(self, key: K) -> None:
        del self._entries[id(key)]

    def __contains__(self, key: object) -> bool:
        return id(key) in self._entries

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: K) -> V | None:
        """Return the value of a key, or None."""
        entry = self._entries.get(id(key))
        return None if entry is None else entry[1]


class IdentityNumbers(Generic[K]):
    """Numbers of objects, compared with `is` and kept alive, in the order of their first use."""

    __slots__ = ("_numbers", "_objects")

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._objects: list[K] = []

    def number(self, objects: Collection[K]) -> tuple[list[int], list[K]]:
        """Return the numbers of objects, and the objects among them that are new."""
        numbers = self._numbers
        before = len(numbers)
        addresses = list(map(id, objects))
        pairs = zip(addresses, objects, strict=True)
        new = {address: each for address, each in pairs if address not in numbers}
        numbers.update(zip(new, count(before)))
        self._objects += new.values()
        return list(map(numbers.__getitem__, addresses)), self._objects[before:]


class ById:
    """A hashable key that compares an object by identity."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ById) and other.value is self.value

    def __repr__(self) -> str:
        return f"ById({self.value!r})"
