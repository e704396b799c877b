"""The lists of slow and of long tests name tests that exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("name", ["slow.txt", "long.txt"])
def test_every_listed_test_is_there(name: str) -> None:
    listed = (ROOT / "tests" / name).read_text(encoding="utf-8").splitlines()
    modules = {each.partition("::")[0] for each in listed}
    known = {f"{module}::{each}" for module in modules for each in names(ROOT / module)}
    inherited = {each for each in listed if each.count("::") == 2}  # methods of a suite's class
    assert set(listed) - known - inherited == set()
    assert sorted(set(listed)) == listed
