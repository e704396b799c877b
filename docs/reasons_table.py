"""Write the table of reasons into its reference page: `python docs/reasons_table.py`."""

from __future__ import annotations

from pathlib import Path

from ocannl_core.ir.node import Reason

PAGE = Path(__file__).parent / "reference" / "memory_modes.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"


def table() -> str:
    """Return the table, by number."""
    rows = [f"| {each.value} | {each.text} | {each.advice} |" for each in sorted(Reason)]
    return "\n".join(
        ["| | a tensor is where it is because ... | to change that |", "|---|---|---|", *rows]
    )


def page(text: str) -> str:
    """Return the text of the page with the table as it is now."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
