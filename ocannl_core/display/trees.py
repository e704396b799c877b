"""Expressions as trees: tensors and their operands, with values and gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, assert_never

from ocannl_core import settings
from ocannl_core.display import html
from ocannl_core.display.cells import CellReader, check_tensor
from ocannl_core.display.numerals import summary
from ocannl_core.fast_dataclass import dataclass
from ocannl_core.indexing import StaticIndex
from ocannl_core.shape.terms import Dim, Row, RowKind, Shape, Size
from ocannl_core.tensor.definitions import (
    LITERAL,
    Applied,
    CarriedValue,
    Declared,
    Filled,
    GradientOf,
    Literal,
    Parameter,
    Placeholder,
    ResultOf,
    ResultOfLoop,
    ancestors,
)
from ocannl_core.tensor.tensor import Tensor

if TYPE_CHECKING:
    from ocannl_core.runtime.context import Context

GREATEST_DEPTH = 20
"""The default depth of a printed tree."""


@dataclass(frozen=True, slots=True)
class Line:
    """One tensor of a tree.

    Attributes:
        depth: The number of operations between it and the root.
        is_last: True for the last operand of its operation.
        name: Its name, or its kind if it has none.
        details: Its operation, shape, value and gradient.
    """

    depth: int
    is_last: bool
    name: str
    details: str


@dataclass(frozen=True, slots=True)
class ExpressionTree:
    """A tensor and its operands, recursively; `str` gives text, notebooks show HTML.

    Attributes:
        lines: The tensor first, then operand by operand.
    """

    lines: tuple[Line, ...]

    def __str__(self) -> str:
        return "\n".join(_draw_branches(self.lines))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return html.outline([(line.depth, line.name, line.details) for line in self.lines])


def tree(
    tensor: Tensor,
    ctx: Context | None = None,
    *,
    depth: int | None = GREATEST_DEPTH,
    decimals: int | None = None,
    recompute: bool = False,
    indices: Mapping[StaticIndex, int] | None = None,
) -> ExpressionTree:
    """Return the expression of a tensor as a tree; `print` shows it, and notebooks do.

    Every tensor is shown with its inferred shape, and with the values and gradients that the
    context stores. A tensor that several operations use is shown once, with a number that the
    others refer to. Printing affects neither inference nor the context.

    Args:
        tensor: The root.
        ctx: The context whose values are shown; without one, the expression alone.
        depth: The largest depth in operations; None for the whole tree.
        decimals: The largest number of decimals; by default the setting `print_decimals`.
        recompute: True to recompute all values and gradients in a new context from the parameters
            and the placeholders of `ctx`. This makes shapes and margins final.
        indices: The values of static indices that recomputation needs.

    Raises:
        UsageError: if it is no tensor, or a static index has no value.
    """
    tensor = check_tensor(tensor)
    cells = CellReader(ctx, tensor, recompute=recompute, indices=indices or {})
    chosen = settings.current().print_decimals if decimals is None else decimals
    return ExpressionTree(tuple(_lines(tensor, cells, depth, chosen)))


def _lines(root: Tensor, cells: CellReader, limit: int | None, decimals: int) -> Iterator[Line]:
    """Yield tensors before their operands."""
    numbers = _number_shared(root)
    shown: set[Tensor] = set()
    pending = [(root, 0, True)]
    while pending:
        tensor, depth, is_last = pending.pop()
        name = _name(tensor)
        mark = f"#{numbers[tensor]} " if tensor in numbers else ""
        if tensor in shown and tensor in numbers:
            yield Line(depth, is_last, f"{mark}{name}", ", as above")
            continue
        shown.add(tensor)
        yield Line(depth, is_last, f"{mark}{name}", _details(tensor, cells, decimals))
        operands = tensor.operands
        if limit is not None and depth >= limit and operands:
            below = len(ancestors([tensor])) - 1
            yield Line(depth + 1, True, "…", f" {below} more")
            continue
        last = len(operands) - 1
        pending += [
            (operand, depth + 1, i == last) for i, operand in reversed(list(enumerate(operands)))
        ]


def _number_shared(root: Tensor) -> dict[Tensor, int]:
    """Return numbers for the tensors that several operations use, or one of them twice.

    Constants of one cell are as short as a reference to them.
    """
    uses: Counter[Tensor] = Counter()
    graph = ancestors([root])
    for tensor in graph:
        uses.update(tensor.operands)
    shared = [t for t in graph if uses[t] > 1 and not isinstance(t.definition, Filled)]
    return {tensor: number for number, tensor in enumerate(shared, start=1)}


def _name(tensor: Tensor) -> str:
    return "_".join(tensor.label) or f"tensor {tensor.id}"


def _details(tensor: Tensor, cells: CellReader, decimals: int) -> str:
    """Return the details of a line: operation, shape, value, gradient."""
    shape = _brief(tensor.shape)
    text = _kind(tensor) + (f" ({shape})" if shape else "")
    value = cells.known(tensor)
    if value is not None:
        text += f" = {summary(value, decimals)}"
    gradient = cells.known(tensor.grad)
    if gradient is not None:
        text += f", gradient {summary(gradient, decimals)}"
    return text


def _brief(shape: Shape) -> str:
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


def _kind(tensor: Tensor) -> str:
    """Return the operation of a tensor, unless its name states it."""
    match tensor.definition:
        case Applied(operation, _, logic):
            spec = getattr(logic, "spec", None)
            text = f' "{spec.text or spec}"' if spec is not None else ""
            return text if operation.name == _name(tensor) else f": {operation.name}{text}"
        case CarriedValue():
            return ": carry"
        case ResultOfLoop(loop):
            return f": {loop.name}"
        case ResultOf(application):
            return "" if application.op.name == _name(tensor) else f": {application.op.name}"
        case Parameter():
            return ": parameter"
        case Placeholder():
            return ": placeholder"
        case Declared():
            return ": declared"
        case GradientOf():
            return ": gradient"
        case Literal():
            return "" if tensor.label == (LITERAL,) else ": literal"
        case Filled():
            return ""
        case _:
            assert_never(tensor.definition)


def _draw_branches(lines: tuple[Line, ...]) -> Iterator[str]:
    """Yield lines with branches drawn in front.

    root
    ├─ first
    │  └─ of the first
    └─ last
    """
    stems: list[str] = []
    for line in lines:
        del stems[max(line.depth - 1, 0) :]
        branch = "" if line.depth == 0 else "└─ " if line.is_last else "├─ "
        yield f"{''.join(stems)}{branch}{line.name}{line.details}"
        if line.depth:
            stems.append("   " if line.is_last else "│  ")
