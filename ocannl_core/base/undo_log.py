"""A log of changes to data structures, for transactions that may be nested."""

from __future__ import annotations

from itertools import count
from typing import Any, Final, TypeVar, cast

from ocannl_core.base.forks import process_lock

_Key = TypeVar("_Key")
_Inner = TypeVar("_Inner")
_Value = TypeVar("_Value")
_ABSENT: Final = object()
_ALL: Final = object()


class Ordinals:
    """A supply of increasing numbers; no two threads take the same one."""

    __slots__ = ("_next", "_numbers")

    def __init__(self, start: int = 0) -> None:
        self.next = start

    @property
    def next(self) -> int:
        """The number that `take` returns next."""
        return self._next

    @next.setter
    def next(self, number: int) -> None:
        self._next = number
        self._numbers = count(number)

    def take(self) -> int:
        """Return the next number."""
        number = next(self._numbers)
        self._next = number + 1
        return number


class UndoLog:
    """Changes to dictionaries, sets, lists and attributes, with the old values.

    Transactions nest: `begin` returns the position to which `rollback` undoes changes. When the
    outermost one ends, the log is forgotten. Outside of transactions, changes have their effect and
    stay.
    """

    __slots__ = ("_forgotten", "_log", "_supplies", "depth", "lock")

    def __init__(self) -> None:
        self._log: list[Any] = []
        """Target, key and old value of each change, one after the other: tuples of three would be
        objects that the garbage collector visits while an application runs.
        """
        self._forgotten = 0
        """The position of the first entry of the log: positions are used once."""
        self._supplies: list[Ordinals] = []
        self.depth = 0
        """The number of open transactions."""
        self.lock = process_lock()
        """Held for changes that other threads must not see in part, or make at the same time."""

    def supply(self, start: int = 0) -> Ordinals:
        """Return a supply of numbers that a rollback restores."""
        made = Ordinals(start)
        self._supplies.append(made)
        return made

    def put(self, mapping: dict[_Key, _Value], key: _Key, value: _Value) -> None:
        """Set one entry of a dictionary."""
        if self.depth:
            self._log += (mapping, key, mapping.get(key, _ABSENT))
        mapping[key] = value

    def put_inner(
        self, outer: dict[_Key, dict[_Inner, _Value]], key: _Key, inner: _Inner, value: _Value
    ) -> None:
        """Set `outer[key][inner]`."""
        mapping = outer.get(key)
        if mapping is None:
            mapping = outer[key] = {}
        if self.depth:
            self._log += (mapping, inner, mapping.get(inner, _ABSENT))
        mapping[inner] = value

    def add_inner(self, outer: dict[_Key, dict[_Inner, None]], key: _Key, inner: _Inner) -> None:
        """Add to the ordered set `outer[key]`; an element is hashed once."""
        elements = outer.get(key)
        if elements is None:
            elements = outer[key] = {}
        number = len(elements)
        elements[inner] = None
        if self.depth and len(elements) > number:
            self._log += (elements, inner, _ABSENT)

    def remove(self, mapping: dict[_Key, Any], key: _Key) -> None:
        """Remove one entry of a dictionary, if it is there; a rollback restores the order, too."""
        if key in mapping:
            if self.depth:
                self._log += (mapping, _ALL, mapping.copy())
            del mapping[key]

    def remove_unordered(self, mapping: dict[_Key, Any], key: _Key) -> None:
        """Remove one entry of a dictionary whose order is irrelevant, if it is there."""
        old = mapping.pop(key, _ABSENT)
        if self.depth and old is not _ABSENT:
            self._log += (mapping, key, old)

    def add(self, elements: set[_Key], element: _Key) -> None:
        """Add an element to a set."""
        if element not in elements:
            if self.depth:
                self._log += (elements, element, _ABSENT)
            elements.add(element)

    def append(self, items: list[_Value], *added: _Value) -> None:
        """Append to a list."""
        if self.depth:
            self._log += (items, len(items), _ABSENT)
        items += added

    def set(self, target: object, attribute: str, value: object) -> None:
        """Set an attribute."""
        if self.depth:
            self._log += (target, attribute, getattr(target, attribute))
        setattr(target, attribute, value)

    def on_rollback(self, target: object, attribute: str, value: object) -> None:
        """Let a rollback of the open transactions set an attribute."""
        if self.depth:
            self._log += (target, attribute, value)

    def begin(self) -> int:
        """Open a transaction; return its position."""
        log = self._log
        if not self.depth and log:
            self.commit()
        self.depth += 1
        position = self._forgotten + len(log)
        for each in self._supplies:
            log += (each, "next", each._next)
        return position

    def end(self, depth: int) -> None:
        """Close the transaction with `depth` others around it, and any left open inside of it."""
        if depth < self.depth:
            self.depth = depth
            if not depth:
                self.commit()

    def commit(self) -> None:
        """Make the changes so far final, also in open transactions."""
        self._forgotten += len(self._log)
        self._log.clear()

    def rollback(self, position: int) -> None:
        """Undo the changes that follow a position and are not final, also if an interrupt comes."""
        try:
            self._undo(position)
        except BaseException:
            self._undo(position)
            raise

    def _undo(self, position: int) -> None:
        """Undo changes; an entry stays in the log until its change is undone."""
        log = self._log
        position = max(position - self._forgotten, 0)
        while len(log) > position:
            target, key, old = log[-3:]
            if isinstance(target, dict):
                if key is _ALL:
                    target.clear()
                    target.update(cast(dict[Any, Any], old))
                elif old is _ABSENT:
                    target.pop(key, None)  # notes about tensors disappear with them
                else:
                    target[key] = old
            elif isinstance(target, list):
                del target[key:]
            elif isinstance(target, set):
                target.discard(key)
            else:
                setattr(target, key, old)
            del log[-3:]
