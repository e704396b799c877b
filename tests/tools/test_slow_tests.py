"""The lists of slow, long and combined tests name tests that exist; combinations cover every value."""

from __future__ import annotations

import ast
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.support.combinations import covering, mark_interpreted

ROOT = Path(__file__).resolve().parents[2]


def names(path: Path) -> set[str]:
    """Return the tests of a module; the name of its class precedes a method."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}
    for each in tree.body:
        if isinstance(each, ast.ClassDef):
            own = (inner.name for inner in each.body if isinstance(inner, ast.FunctionDef))
            found |= {f"{each.name}::{name}" for name in own}
    return found


@pytest.mark.parametrize("name", ["slow.txt", "long.txt", "combined.txt"])
def test_every_listed_test_is_there(name: str) -> None:
    listed = (ROOT / "tests" / name).read_text(encoding="utf-8").splitlines()
    modules = {each.partition("::")[0] for each in listed}
    known = {f"{module}::{each}" for module in modules for each in names(ROOT / module)}
    inherited = {each for each in listed if each.count("::") == 2}  # methods of a suite's class
    assert set(listed) - known - inherited == set()
    assert sorted(set(listed)) == listed


def test_as_many_combinations_cover_all_values_as_the_longest_axis_has() -> None:
    tests = list(product("abcde", "xyz", "uv"))
    chosen = [tests[position] for position in sorted(covering(tests))]
    assert len(chosen) == 5
    assert {value for test in chosen for value in test} == {
        value for test in tests for value in test
    }


class Example:
    """The part of a test that marks depend on."""

    def __init__(self, path: str, name: str, target: str, *marks: str, fixtures: str = "") -> None:
        self.nodeid, self.path = f"{path}::{name}[{target}]", Path(path)
        self.callspec = SimpleNamespace(params={"target": target})
        self.marks, self.fixturenames = set(marks), fixtures.split()

    def get_closest_marker(self, name: str) -> bool | None:
        return name in self.marks or None

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.add(mark.name)


def test_others_find_the_same_as_tests_on_the_interpreter() -> None:
    first, second, in_c = (
        Example("test_a.py", "test_x", target, "slow") for target in ("interp:0", "interp:0", "c:0")
    )
    quick = Example("test_a.py", "test_y", "interp:0")
    listed = Example("test_a.py", "test_z", "interp:0", "slow")
    compared, alone = (
        Example("test_conformance.py", "test_x", "interp:0", fixtures=each)
        for each in ("oracle dtype", "dtype")
    )
    tests = [first, second, in_c, quick, listed, compared, alone]
    mark_interpreted(cast("list[pytest.Item]", tests), {"test_a.py::test_z"})
    assert [each for each in tests if "long" in each.marks] == [second, listed, compared]
    assert "slow" in compared.marks


def test_a_value_that_one_test_has_keeps_it() -> None:
    assert covering([("a", 1), ("b", 1), ("a", 2)]) == {0, 1, 2}
    assert covering([(), ()]) == {0}
