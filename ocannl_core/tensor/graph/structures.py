"""Nested structures of tensors: tuples, lists and dictionaries with tensors as leaves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ocannl_core.base.fast_dataclass import dataclass

Path = tuple[str | int, ...]
"""The keys and positions that lead to a leaf."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf of a structure."""

    path: Path
    value: Any

    @property
    def name(self) -> str:
        """The last key of the path if it is a name, else empty."""
        last = next((key for key in reversed(self.path) if isinstance(key, str)), "")
        return last if last.isidentifier() else ""


def leaves_of(structure: Any, path: Path = ()) -> list[Leaf]:
    """Return the leaves of a structure, in order; None has no leaves."""
    if not _is_inner(structure):
        return [Leaf(path, structure)]
    return [leaf for key, each in _entries(structure) for leaf in leaves_of(each, (*path, key))]


def _is_inner(structure: Any) -> bool:
    return structure is None or isinstance(structure, tuple | list | Mapping)


def _entries(structure: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(structure, Mapping):
        yield from structure.items()
    elif isinstance(structure, tuple) and hasattr(structure, "_fields"):
        yield from zip(structure._fields, structure, strict=True)
    elif isinstance(structure, tuple | list):
        yield from enumerate(structure)


def with_leaves(structure: Any, leaves: Iterable[Any]) -> Any:
    """Return a structure with other leaves."""
    remaining = iter(leaves)
    if not _is_inner(structure):
        return next(remaining)
    if structure is None:
        return None
    inner = [(key, with_leaves(value, remaining)) for key, value in _entries(structure)]
    if isinstance(structure, Mapping):
        return dict(inner)
    values = [value for _, value in inner]
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*values)
    return tuple(values) if isinstance(structure, tuple) else values


def difference(expected: Any, found: Any, path: Path = ()) -> str:
    """Return the first difference between two structures; empty if they are equal but for leaves.

    Keys of dictionaries may come in any order.
    """
    where = "".join(f"[{key!r}]" for key in path) or "it"
    kinds = [_kind(each) for each in (expected, found)]
    if kinds[0] != kinds[1]:
        return f"{where} is {kinds[1]} instead of {kinds[0]}"
    if not _is_inner(expected) or expected is None:
        return ""
    mine, other = dict(_entries(expected)), dict(_entries(found))
    if mine.keys() != other.keys():
        names = [", ".join(map(str, each)) or "no entries" for each in (mine, other)]
        return f"{where} has {names[1]} instead of {names[0]}"
    problems = (difference(mine[key], other[key], (*path, key)) for key in mine)
    return next(filter(None, problems), "")


def _kind(structure: Any) -> str:
    match structure:
        case None:
            return "None"
        case list():
            return "a list"
        case tuple():
            return "a tuple"
        case Mapping():
            return "a dictionary"
        case _:
            return "a tensor"


def aligned(expected: Any, found: Any) -> list[Any]:
    """Return the leaves of the structure `found` in the order of the equal structure `expected`."""
    if not _is_inner(expected):
        return [found]
    others = dict(_entries(found))
    return [leaf for key, value in _entries(expected) for leaf in aligned(value, others[key])]
