"""Expressions as trees: tensors and their operands, with values and gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ocannl_core.base import settings
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.display import html
from ocannl_core.display.cells import CellReader, check_tensor
from ocannl_core.display.descriptions import operation_text, shape_text, tensor_name
from ocannl_core.display.numerals import summary
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.tensor.graph.definitions import Filled, ancestors
from ocannl_core.tensor.graph.tensor import Tensor

if TYPE_CHECKING:
    from ocannl_core.runtime.context import Context

GREATEST_DEPTH = 20
"""The default depth of a printed tree."""


@dataclass(frozen=True, slots=True)
class Line:
    """One tensor of a tree."""

    depth: int
    """The number of operations between it and the root."""
    is_last: bool
    """True for the last operand of its operation."""
    name: str
    """Its name, or its kind if it has none."""
    details: str


@dataclass(frozen=True, slots=True)
class ExpressionTree:
    """A tensor and its operands, recursively; `str` gives text, notebooks show HTML."""

    lines: tuple[Line, ...]
    """The tensor first, then operand by operand."""

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
        name = tensor_name(tensor)
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


def _details(tensor: Tensor, cells: CellReader, decimals: int) -> str:
    """Return the details of a line: operation, shape, value, gradient."""
    shape = shape_text(tensor.shape)
    text = operation_text(tensor) + (f" ({shape})" if shape else "")
    value = cells.known(tensor)
    if value is not None:
        text += f" = {summary(value, decimals)}"
    gradient = cells.known(tensor.grad)
    if gradient is not None:
        text += f", gradient {summary(gradient, decimals)}"
    return text


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
