"""Undo log of dictionaries."""

from __future__ import annotations

from typing import Any, Final, TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_ABSENT: Final = object()


class UndoLog:
    """A log of changes to dictionaries, so that a failed operation can be rolled back."""

    __slots__ = ("_log",)

    def __init__(self) -> None:
        self._log: list[tuple[dict[Any, Any], Any, object]] = []

    def put(self, mapping: dict[_Key, _Value], key: _Key, value: _Value) -> None:
        """Set one entry."""
        self._log.append((mapping, key, mapping.get(key, _ABSENT)))
        mapping[key] = value

    def remove(self, mapping: dict[_Key, Any], key: _Key) -> None:
        """Remove one entry, if it is there."""
        old = mapping.pop(key, _ABSENT)
        if old is not _ABSENT:
            self._log.append((mapping, key, old))

    def commit(self) -> None:
        """Make the present state the one that `rollback` restores."""
        self._log.clear()

    def rollback(self) -> None:
        """Undo every change since the last commit."""
        while self._log:
            mapping, key, old = self._log.pop()
            if old is _ABSENT:
                del mapping[key]
            else:
                mapping[key] = old
