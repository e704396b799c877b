"""Lines of a user's program."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from ocannl_core.base.origin import returns_of


def several(x: int) -> object:
    if x == 1:
        return None
    if x == 2:
        return x  # first
    while x:
        return [  # second
            x
        ]
    return


def constant() -> int:
    return 3  # only


@functools.wraps(constant)
def wrapping() -> int:
    return constant()


def nothing(x: list[int]) -> None:
    x.append(1)


@pytest.mark.parametrize(
    ("function", "lines"),
    [
        (several, ["return x  # first", "return [  # second"]),
        (constant, ["return 3  # only"]),
        (wrapping, ["return 3  # only"]),
        (nothing, []),
        (int, []),
    ],
)
def test_the_lines_that_return_a_value_are_found(
    function: Callable[..., object], lines: list[str]
) -> None:
    assert [each.text for each in returns_of(function)] == lines
