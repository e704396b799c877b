"""The reference page of reasons for memory modes equals the output of its generator."""

from __future__ import annotations

import runpy
from pathlib import Path

from ocannl_core.ir.node import MemoryMode, Reason

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_table_of_reasons_is_up_to_date() -> None:
    generator = runpy.run_path(str(DOCS / "reasons_table.py"))
    text = generator["PAGE"].read_text(encoding="utf-8")
    assert generator["page"](text) == text, "run python docs/reasons_table.py"
    assert all(f"| {reason.value} | {reason.text} |" in text for reason in Reason)


def test_the_page_describes_every_mode() -> None:
    text = (DOCS / "reference" / "memory_modes.md").read_text(encoding="utf-8")
    decided = [mode for mode in MemoryMode if mode is not MemoryMode.UNDECIDED]
    assert all(f"| {mode.value} |" in text for mode in decided)
