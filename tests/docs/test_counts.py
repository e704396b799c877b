"""Numbers in the documentation equal those of the code."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from ocannl_core.hooks.plugins import HOOK_NAMES
from ocannl_core.hooks.specs import ALL_SPECS
from ocannl_core.loopir.nodes import AxisKind, Expr, Stmt
from ocannl_core.target import Target
from ocannl_core.testing.conformance import BackendConformance

ROOT = Path(__file__).resolve().parents[2]
NUMERALS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@pytest.mark.parametrize(
    ("page", "claim"),
    [
        ("README.md", f"with up to {NUMERALS[len(HOOK_NAMES)]} functions"),
        (
            "docs/howto/write_a_backend.md",
            f"has the {len(get_args(Stmt))} classes of statements and the {len(get_args(Expr))} "
            "of expressions",
        ),
        ("docs/howto/write_a_printer.md", f"closed union of {len(get_args(Stmt))} classes"),
        ("docs/howto/write_a_printer.md", f"closed union of {len(get_args(Expr))} classes"),
    ],
)
def test_a_count_on_a_page_equals_that_of_the_code(page: str, claim: str) -> None:
    assert claim in " ".join((ROOT / page).read_text(encoding="utf-8").split())


PRINTER = (ROOT / "docs/howto/write_a_printer.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("node", [*get_args(Stmt), *get_args(Expr)], ids=lambda node: node.__name__)
def test_the_page_for_printers_has_the_fields_of_every_node(node: type) -> None:
    names = ", ".join(field.name for field in fields(node))
    assert f"| `{node.__name__}({names})` |" in PRINTER


def test_the_page_for_printers_has_every_kind_of_loop() -> None:
    rows = PRINTER.split("## Kinds of loops")[1].split("\n\n")[2]
    assert re.findall(r"`([A-Z]+)`", rows) == [kind.name for kind in AxisKind]


def test_the_page_for_printers_names_fields_of_targets() -> None:
    rows = PRINTER.split("## Fields of Target")[1].split("## Errors")[0]
    named = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", rows, re.MULTILINE)))
    known = {field.name for field in fields(Target)}
    assert set(named) <= known


@pytest.mark.parametrize("hook", HOOK_NAMES)
def test_the_reference_of_hooks_has_their_parameters(hook: str) -> None:
    (specification,) = [vars(each)[hook] for each in ALL_SPECS if hook in vars(each)]
    parameters = [name for name in inspect.signature(specification).parameters if name != "self"]
    page = (ROOT / "docs/reference/hooks.md").read_text(encoding="utf-8")
    assert f"### {hook}({', '.join(parameters)})\n" in page


@pytest.mark.parametrize("page", ["asynchronous_backends", "write_a_backend"])
def test_tests_of_the_suite_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / f"docs/howto/{page}.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", text))
    assert all(hasattr(BackendConformance, name) for name in named)
