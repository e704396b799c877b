"""Choice among the tests of a function with several parameters: every value, without every combination.

Most faults of a mechanism show for one value of a parameter. `tests/combined.txt` lists functions
whose other combinations run less often.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence, Set
from typing import Any

import pytest


def mark_combinations(items: Iterable[pytest.Item], functions: Set[str], long: Set[str]) -> None:
    """Mark the tests of some functions whose values all occur in others.

    They become slow, or long in functions that are to be long; those of slow tests become long.

    Args:
        items: Tests with their own marks.
        functions: The functions, named as their tests.
        long: Those whose combinations are long.
    """
    groups: dict[tuple[str, bool], list[pytest.Item]] = {}
    for item in items:
        name = item.nodeid.partition("[")[0]
        if name in functions:
            is_slow = item.get_closest_marker("slow") is not None
            groups.setdefault((name, is_slow), []).append(item)
    for (name, is_slow), group in groups.items():
        kept = covering([frozenset(_arguments(item)) for item in group])
        for position, item in enumerate(group):
            if position not in kept:
                item.add_marker(pytest.mark.slow)
                if is_slow or name in long:
                    item.add_marker(pytest.mark.long)


def mark_interpreted(items: Iterable[pytest.Item], functions: Set[str]) -> None:
    """Mark tests on the interpreter as long where others find the same.

    A test of conformance in a number format compares other devices with the interpreter, which it
    would compare with itself. Of slow tests, one of each function stays, as the function runs with
    all of its values in C; of slow functions none.

    Args:
        items: Tests with their own marks.
        functions: The slow functions, named as their tests.
    """
    seen = set(functions)
    for item in items:
        if not str(dict(_parameters(item)).get("target")).startswith("interp:"):
            continue
        name = item.nodeid.partition("[")[0]
        if "conformance" in item.path.name:
            if {"oracle", "dtype"} <= set(getattr(item, "fixturenames", ())):
                item.add_marker(pytest.mark.slow)
                item.add_marker(pytest.mark.long)
        elif item.get_closest_marker("slow") is not None:
            if name in seen:
                item.add_marker(pytest.mark.long)
            seen.add(name)


def covering(tests: Sequence[Iterable[Hashable]]) -> set[int]:
    """Return the positions of tests that have every value of all tests.

    Each is the first of those with the most values that no one before it has.
    """
    left = {position: set(values) for position, values in enumerate(tests)}
    found: set[int] = set()
    while left:
        best = max(left, key=lambda position: len(left[position]))
        values = left.pop(best)
        if not values and found:
            break
        found.add(best)
        for each in left.values():
            each -= values
    return found


def _arguments(item: pytest.Item) -> Iterable[Hashable]:
    """Return the parameters of a test with the identities of their values, which tests share."""
    return ((name, id(value)) for name, value in _parameters(item))


def _parameters(item: pytest.Item) -> Iterable[tuple[str, Any]]:
    callspec = getattr(item, "callspec", None)
    return () if callspec is None else callspec.params.items()
