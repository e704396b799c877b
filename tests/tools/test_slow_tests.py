"""The list of slow tests names tests that exist."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LISTED = (ROOT / "tests" / "slow.txt").read_text(encoding="utf-8").splitlines()


def names(path: Path) -> set[str]:
    """Return the tests of a module; the name of its class precedes a method."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}
    for each in tree.body:
        if isinstance(each, ast.ClassDef):
            own = (inner.name for inner in each.body if isinstance(inner, ast.FunctionDef))
            found |= {f"{each.name}::{name}" for name in own}
    return found


def test_every_slow_test_is_there() -> None:
    modules = {each.partition("::")[0] for each in LISTED}
    known = {f"{module}::{name}" for module in modules for name in names(ROOT / module)}
    inherited = {each for each in LISTED if each.count("::") == 2}  # methods of a suite's class
    assert set(LISTED) - known - inherited == set()
    assert sorted(set(LISTED)) == LISTED
