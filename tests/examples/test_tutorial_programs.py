"""The programs of the tutorial: micrograd's example, two moons, and names."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import ocannl_core as oc

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    with oc.Session(seed=1), oc.base.settings.overrides(backend="cpu_c"):
        yield


@pytest.fixture
def names() -> ModuleType:
    return importlib.import_module("names")


def test_micrograd_prints_the_numbers_of_its_readme(capsys: pytest.CaptureFixture[str]) -> None:
    importlib.import_module("micrograd").main()
    assert capsys.readouterr().out == "g = 24.7041\ndg/da = 138.8338\ndg/db = 645.5773\n"


def test_micrograd_gives_the_same_numbers_on_the_interpreter(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with oc.base.settings.overrides(backend="interp"):
        importlib.import_module("micrograd").main()
    assert capsys.readouterr().out == "g = 24.7041\ndg/da = 138.8338\ndg/db = 645.5773\n"


def test_the_moons_are_separated() -> None:
    accuracy, picture = importlib.import_module("moons").train()
    assert accuracy >= 0.99
    rows = picture.splitlines()
    assert len(rows) == 21
    assert rows[0][30] == "#"  # above both
    assert rows[-1][30] == "."


def test_moons_are_balanced_and_reproducible() -> None:
    moons = importlib.import_module("moons").moons
    points, classes = moons(100)
    assert points.shape == (100, 2)
    assert classes.sum() == 0
    np.testing.assert_array_equal(points, moons(100)[0])


def test_names_are_spelled_better_than_by_pairs_of_letters(names: ModuleType) -> None:
    words = names.names()
    known, new = words[:-100], words[-100:]
    model = names.Speller(known, epochs=12)
    assert model.loss(new) < names.loss_of_pairs(names.examples(known), names.examples(new)) - 0.1
    rng = np.random.default_rng(0)
    invented = [model.name(rng) for _ in range(10)]
    assert all(set(name) <= set(names.LETTERS[1:]) for name in invented)
    assert 2 < np.mean([len(name) for name in invented]) < 12


def test_the_list_of_names_has_each_name_once(names: ModuleType) -> None:
    words = names.names()
    assert len(words) == len(set(words)) > 700
    assert all(set(word) <= set(names.LETTERS[1:]) for word in words)


def test_letters_are_paired_with_those_before_them(names: ModuleType) -> None:
    before, letters = names.examples(["ab"])
    assert before.tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2]]
    assert letters.tolist() == [1, 2, 0]


def lines_of_code(text: str) -> int:
    """Return the number of lines with code: no blank ones, comments or docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    described = {
        line
        for each in ast.walk(ast.parse(text))
        if isinstance(each, documented) and ast.get_docstring(each) is not None
        for line in range(each.body[0].lineno, (each.body[0].end_lineno or 0) + 1)
    }
    numbered = enumerate(text.splitlines(), start=1)
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in described
        for number, line in numbered
    )


@pytest.mark.parametrize("program", ["micrograd", "moons", "names"])
def test_the_line_counts_of_the_tutorial_are_those_of_the_programs(program: str) -> None:
    page = (EXAMPLES.parent / "docs/tutorial/three_programs.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| `examples/{program}\.py` \| (\d+) \| (\d+)", page, re.MULTILINE)
    assert row is not None
    here, there = int(row[1]), int(row[2])
    assert lines_of_code((EXAMPLES / f"{program}.py").read_text(encoding="utf-8")) == here
    assert here <= there
