"""Names, shapes and operations of tensors as short texts."""

from __future__ import annotations

from typing import assert_never

from ocannl_core.shape.language.shape_terms import Dim, Row, RowKind, Shape, Size
from ocannl_core.tensor.graph import definitions
from ocannl_core.tensor.graph.tensor import Tensor


def tensor_name(tensor: Tensor) -> str:
    """Return the name of a tensor; its number if it has none."""
    return "_".join(tensor.label) or f"tensor {tensor.id}"


def shape_text(shape: Shape) -> str:
    """Return a shape with `...` for unknown axes and `?` for unknown sizes."""
    rows = {kind: _brief_row(row) for kind, row in shape.rows()}
    text = rows[RowKind.OUTPUT]
    if rows[RowKind.INPUT]:
        text = f"{rows[RowKind.INPUT]}->{text}"
    if rows[RowKind.BATCH]:
        text = f"{rows[RowKind.BATCH]}|{text}"
    return text


def _brief_row(row: Row) -> str:
    leading, trailing = ([_brief_size(dim) for dim in dims] for dims in (row.leading, row.trailing))
    return ",".join([*leading, *(["..."] if row.tail is not None else []), *trailing])


def _brief_size(dim: Dim) -> str:
    return str(dim) if isinstance(dim, Size) else "?"


def operation_text(tensor: Tensor) -> str:
    """Return the operation of a tensor after a colon; nothing if its name states it."""
    match tensor.definition:
        case definitions.Applied(operation, _, logic):
            spec = getattr(logic, "spec", None)
            text = f' "{spec.text or spec}"' if spec is not None else ""
            return text if operation.name == tensor_name(tensor) else f": {operation.name}{text}"
        case definitions.CarriedValue():
            return ": carry"
        case definitions.ResultOfLoop(loop):
            return f": {loop.name}"
        case definitions.ResultOf(application):
            return "" if application.op.name == tensor_name(tensor) else f": {application.op.name}"
        case definitions.Parameter():
            return ": parameter"
        case definitions.Placeholder():
            return ": placeholder"
        case definitions.Declared():
            return ": declared"
        case definitions.GradientOf():
            return ": gradient"
        case definitions.Literal():
            return "" if tensor.label == (definitions.LITERAL,) else ": literal"
        case definitions.Filled():
            return ""
        case _:
            assert_never(tensor.definition)
