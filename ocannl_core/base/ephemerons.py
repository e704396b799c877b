"""Tables with entries that live as long as their keys.

An entry whose value refers to keys, perhaps to its own, keeps them alive: dictionaries with weak
keys do not free it. Here tables are plain dictionaries, which are cleaned from time to time:
their entries are moved into the keys, Python's garbage collector frees what nothing else refers
to, and the rest is moved back.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ocannl_core.base.identity import IdentityMap

Table: TypeAlias = dict[Any, Any]
_Entry: TypeAlias = tuple[int, int, Any, Any]
"""The numbers of the table and of the entry in it, its key and value."""


class EphemeronKey:
    """An object that holds its entries in tables while `drop_unreachable` runs."""

    __slots__ = ("__weakref__", "_entries")

    _entries: list[_Entry]


_set_entries = vars(EphemeronKey)["_entries"].__set__  # classes of keys may be frozen
_delete_entries = vars(EphemeronKey)["_entries"].__delete__


def drop_unreachable(
    tables: Sequence[Table], keys_in: Callable[[Any], Sequence[EphemeronKey]]
) -> None:
    """Remove the entries that are reachable only through entries like them.

    The order of the others stays, and an interrupt loses none. Tables are incomplete while this
    runs, so the caller excludes other threads.

    Args:
        keys_in: Returns the parts of a key of a table. The entry stays if one of them is alive, or
            if there are none.
    """
    gc.collect()  # finalizers, which may read the tables, run before these are incomplete
    holders: list[weakref.ref[EphemeronKey]] = []
    kept: list[_Entry] = []
    try:
        _distribute(tables, keys_in, holders, kept)
        for table in tables:
            table.clear()
        gc.collect()
    finally:
        _gather(tables, holders, kept)


def _distribute(
    tables: Sequence[Table],
    keys_in: Callable[[Any], Sequence[EphemeronKey]],
    holders: list[weakref.ref[EphemeronKey]],
    kept: list[_Entry],
) -> None:
    """Add each entry to the keys in it, and a reference to each of these keys to `holders`."""
    found: IdentityMap[EphemeronKey, list[_Entry]] = IdentityMap()
    for number, table in enumerate(tables):
        for place, (key, value) in enumerate(table.items()):
            entry = number, place, key, value
            keys = keys_in(key)
            for each in keys:
                if (entries := found.find(each)) is None:
                    entries = found[each] = []
                entries.append(entry)
            if not keys:
                kept.append(entry)
    for each, entries in found.items():
        _set_entries(each, entries)  # in place of those that an interrupted run has left
        holders.append(weakref.ref(each))


def _gather(
    tables: Sequence[Table], holders: list[weakref.ref[EphemeronKey]], kept: list[_Entry]
) -> None:
    """Move the entries of keys that are alive back into the tables."""
    alive = [each for reference in holders if (each := reference()) is not None]
    found: list[dict[int, tuple[Any, Any]]] = [{} for _ in tables]
    for entries in (kept, *[each._entries for each in alive]):
        for number, place, key, value in entries:
            found[number][place] = key, value
    for table, places in zip(tables, found, strict=True):
        table.update([places[place] for place in sorted(places)])
    for each in alive:
        _delete_entries(each)
