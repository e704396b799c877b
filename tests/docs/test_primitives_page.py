"""The reference page of primitives equals the output of its generator."""

from __future__ import annotations

import runpy
from pathlib import Path

from ocannl_core.ir.numbers.primitives import PRIMITIVES

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_table_of_primitives_is_up_to_date() -> None:
    generator = runpy.run_path(str(DOCS / "primitives_table.py"))
    text = generator["PAGE"].read_text(encoding="utf-8")
    assert generator["page"](text) == text, "run python -m docs.primitives_table"
    assert all(f"| `{op.value.name}`" in text for op in PRIMITIVES)
