"""Lines of a user's program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ContextDecorator
from pathlib import Path
from typing import Any

import pytest

from ocannl_core.base import origin
from ocannl_core.base.errors import OcannlError
from ocannl_core.base.origin import caller_location, returns_of, skip_lines_of


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


class Around(ContextDecorator):
    """A context manager, which calls functions that it decorates."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def test_lines_of_a_library_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin, "_skipped", origin._skipped)
    text = "@Around()\ndef called(): return caller_location()"
    names: dict[str, Any] = {"caller_location": caller_location, "Around": Around}
    (folder := tmp_path / "library").mkdir()
    for place in (folder / "inner" / "module.py", tmp_path / "library_of_another.py"):
        exec(compile(text, str(place), "exec"), names)
        assert Path(getattr(names["called"](), "file", "")) == place
        skip_lines_of(str(folder / "__init__.py"))
        found = Path(getattr(names["called"](), "file", ""))
        assert found == (Path(__file__) if place.is_relative_to(folder) else place)


def test_an_error_shows_the_first_lines_of_a_long_part() -> None:
    names = [f"w{number}" for number in range(45)]
    error = OcannlError("Every node has a value.", found="\n".join(names), where="here")
    assert error.found.splitlines() == names
    shown = str(error).splitlines()
    assert shown[1] == "  found  w0"
    assert shown[-3:] == [
        "         w39",
        "         ... and 5 more lines: the attribute `found`",
        "  where  here",
    ]
    assert "more" not in str(OcannlError("A rule.", found="\n".join(names[:41])))
