"""Write the table of primitives into its reference page: `python -m docs.primitives_table`.

Everything in the table is read from `ocannl_core.ir.numbers.primitives`, and the gradients from
the functions that define them.
"""

from __future__ import annotations

import inspect
from pathlib import Path

from ocannl_core.ir.numbers.primitives import (
    PRIMITIVES,
    BinaryOp,
    Op,
    Primitive,
    TernaryOp,
    UnaryOp,
)
from ocannl_core.tensor.primitives.operation import Operation
from tests.support.primitive_operations import primitive_operations

PAGE = Path(__file__).parent / "reference" / "primitives.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"
TITLES = {UnaryOp: "Of one number", BinaryOp: "Of two numbers", TernaryOp: "Of three numbers"}


def table() -> str:
    """Return the tables, one for each number of operands."""
    parts = []
    for kind, title in TITLES.items():
        rows = [_row(op) for op in PRIMITIVES if isinstance(op, kind)]
        heading = "| primitive | on tensors | computes | starts from | same bits | gradient |"
        parts.append("\n".join([f"## {title}", "", heading, "|---|---|---|---|---|---|", *rows]))
    return "\n\n".join(parts)


def _row(op: Op) -> str:
    primitive: Primitive = op.value
    others = ("transpose", "slice", "stop_gradient", "word", "uniform")  # of no name in the API
    lifted = [e for e in primitive_operations() if e.primitive is op and e.name not in others]
    symbol = f" `{primitive.symbol}`" if primitive.symbol else ""
    gradients = [_gradient(each) if each.gradient else "none" for each in lifted]
    cells = (
        f"`{primitive.name}`{symbol}",
        ", ".join(f"`{each.name}`" for each in lifted),
        primitive.text,
        "" if primitive.neutral is None else f"`{primitive.neutral:g}`",
        "yes" if primitive.ulps == 0 else f"within {primitive.ulps}",
        gradients[0] if gradients else "",
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _gradient(operation: Operation) -> str:
    """Return the source of the statements of a gradient function."""
    assert operation.gradient is not None
    _, _, body = inspect.getsource(operation.gradient).partition(" -> None:\n")
    names = {"v1": "a", "v2": "b", "v3": "c", "_LN2": "ln(2)", "power_primitive": "power"}
    statements = []
    for line in filter(None, map(str.strip, body.splitlines())):
        for slot, name in names.items():
            line = line.replace(slot, name)
        statements.append(f"`{line}`")
    return "<br>".join(statements)


def page(text: str) -> str:
    """Return the text of the page with the table as it is now."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
