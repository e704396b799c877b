"""Numbers in the documentation equal those of the code."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from ocannl_core.hooks.plugins import HOOK_NAMES
from ocannl_core.loopir.nodes import Expr, Stmt

ROOT = Path(__file__).resolve().parents[2]
NUMERALS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@pytest.mark.parametrize(
    ("page", "claim"),
    [
        ("README.md", f"with up to {NUMERALS[len(HOOK_NAMES)]} functions"),
        (
            "docs/howto/write_a_backend.md",
            f"the statements and expressions, {len(get_args(Stmt))} of one and "
            f"{len(get_args(Expr))} of the other",
        ),
    ],
)
def test_a_count_on_a_page_equals_that_of_the_code(page: str, claim: str) -> None:
    assert claim in " ".join((ROOT / page).read_text(encoding="utf-8").split())
