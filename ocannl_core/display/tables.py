"""Tensors as tables.

The last axis goes across, the one before it down; there is a block for each position of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ocannl_core.base import settings
from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.display import html
from ocannl_core.display.cells import CellReader, check_tensor
from ocannl_core.display.numerals import numeral, numerals
from ocannl_core.ir.host_arrays import Array
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.shape.language.shape_terms import RowKind, Size
from ocannl_core.tensor.graph.tensor import Tensor

if TYPE_CHECKING:
    from ocannl_core.runtime.context import Context

GAP = "…"
"""The mark of omitted positions."""


@dataclass(frozen=True, slots=True)
class TableAxis:
    """An axis of a table."""

    kind: RowKind
    """The row that it belongs to."""
    title: str
    """Its kind, its ordinal if there are several of the kind, and its basis."""
    positions: tuple[int | None, ...]
    """The positions shown; None marks omitted ones."""

    @property
    def kept(self) -> list[int]:
        """The positions shown, without gaps."""
        return [position for position in self.positions if position is not None]

    @property
    def heads(self) -> tuple[str, ...]:
        return tuple(GAP if position is None else str(position) for position in self.positions)


@dataclass(frozen=True, slots=True)
class TableBlock:
    """A part of a tensor: a grid of cells."""

    caption: str
    """The position of the part; empty for the whole tensor."""
    cells: tuple[tuple[str, ...], ...]
    """The cells as texts, row by row."""


@dataclass(frozen=True, slots=True)
class TensorTable:
    """A tensor's cells for printing; `str` gives text, notebooks show HTML."""

    title: str
    """The tensor's name, shape and number format; the value of a tensor without axes."""
    down: TableAxis | None
    """The axis whose positions are rows, if there is one."""
    across: TableAxis | None
    """The axis whose positions are columns, if there is one."""
    blocks: tuple[TableBlock, ...]

    def __str__(self) -> str:
        lines = [self.title]
        for block in self.blocks:
            if block.caption:
                lines += ["", block.caption]
            lines += _grid(self.down, self.across, block.cells)
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        across, down = self.across, self.down
        return html.tables(
            self.title,
            (across.title, across.heads) if across else None,
            (down.title, down.heads) if down else None,
            [(block.caption, block.cells) for block in self.blocks],
        )


def table(
    tensor: Tensor,
    ctx: Context | None = None,
    *,
    decimals: int | None = None,
    edge: int | None = None,
    recompute: bool = False,
    indices: Mapping[StaticIndex, int] | None = None,
) -> TensorTable:
    """Return a tensor's cells as a table; `print` shows it, and notebooks do.

    The last axis goes across and the one before it down, in the order batch, output, input; so that
    a weight has its outputs down and its inputs across. There is a block for each position of the
    other axes. Long axes are shown at both ends.

    Args:
        ctx: The context that stores it; literals need none.
        decimals: The largest number of decimals; by default the setting `print_decimals`.
        edge: The positions shown at each end of a long axis; by default `print_edge`.
        recompute: True to recompute the tensor in a new context from the parameters and the
            placeholders of `ctx`. This makes shapes and margins final.
        indices: The values of static indices that recomputation needs.

    Raises:
        LinkError: if the context does not store the tensor; the message gives the repair.
        UsageError: if a context is needed, or a static index has no value.
    """
    tensor = check_tensor(tensor)
    chosen = settings.current()
    decimals = chosen.print_decimals if decimals is None else decimals
    edge = chosen.print_edge if edge is None else edge
    for keyword, number in (("decimals", decimals), ("edge", edge)):
        if number < 1:
            raise UsageError.at_caller(f"{keyword}= is a positive number.", found=str(number))
    cells = CellReader(ctx, tensor, recompute=recompute, indices=indices or {}).of(tensor)
    name = "_".join(tensor.label)
    title = f"{name}: {tensor.shape}, {tensor.dtype}"
    if not cells.ndim:
        return TensorTable(f"{title} = {numeral(cells, decimals)}", None, None, ())
    if cells.size == 0:
        return TensorTable(f"{title}, no cells", None, None, ())
    axes = _axes(tensor, cells.shape, edge)
    outer = _outer_axes(axes[:-2], cells.shape, edge)
    inner = axes[-2:]
    texts = numerals(cells[np.ix_(*(axis.kept for axis in (*outer, *inner)))], decimals)
    down = inner[0] if len(inner) == 2 else None
    return TensorTable(title, down, inner[-1], tuple(_blocks(texts, outer, down, inner[-1])))


def _axes(tensor: Tensor, dims: tuple[int, ...], edge: int) -> list[TableAxis]:
    """Return the axes in buffer order, of cells with these extents."""
    axes: list[TableAxis] = []
    for kind, row in tensor.shape.rows():
        count = len(row.trailing)
        for number, size in enumerate(row.trailing, start=1):
            text = kind.value if count == 1 else f"{kind.value} ({number} of {count})"
            basis = size.basis if isinstance(size, Size) else None
            positions = _positions(dims[len(axes)], edge)
            axes.append(TableAxis(kind, f"{text} {basis}" if basis else text, positions))
    return axes


def _positions(n: int, edge: int) -> tuple[int | None, ...]:
    """Return the positions of an axis to show, and None where some are omitted."""
    if n <= 2 * edge + 1:
        return tuple(range(n))
    return (*range(edge), None, *range(n - edge, n))


def _outer_axes(axes: Sequence[TableAxis], dims: tuple[int, ...], edge: int) -> list[TableAxis]:
    """Return the axes that blocks iterate over: of many blocks the outermost axes only."""
    if prod(dims[: len(axes)]) <= 2 * edge:
        return list(axes)
    return [replace(axis, positions=_positions(n, 1)) for axis, n in zip(axes, dims, strict=False)]


def _blocks(
    texts: Array, outer: Sequence[TableAxis], down: TableAxis | None, across: TableAxis
) -> Iterator[TableBlock]:
    """Yield the parts of a tensor; a block without cells marks omitted parts."""
    was_gap = False
    for place in product(*(axis.positions for axis in outer)):
        is_gap = None in place
        if not is_gap:
            shown = zip(outer, place, strict=True)
            index = tuple(axis.kept.index(at) for axis, at in shown if at is not None)
            yield TableBlock(_caption(outer, place), _rows(texts[index], down, across))
        elif not was_gap:
            yield TableBlock(GAP, ())
        was_gap = is_gap


def _caption(outer: Sequence[TableAxis], place: Sequence[int | None]) -> str:
    """Return the position of a block: `batch 0, 3, output 1`."""
    texts = []
    for number, (axis, position) in enumerate(zip(outer, place, strict=True)):
        is_next = number > 0 and outer[number - 1].kind is axis.kind
        texts.append(str(position) if is_next else f"{axis.kind.value} {position}")
    return ", ".join(texts)


def _rows(part: Array, down: TableAxis | None, across: TableAxis) -> tuple[tuple[str, ...], ...]:
    if down is None:
        return (_with_gaps(part.tolist(), across),)
    lines = iter(part.tolist())
    gaps = (GAP,) * len(across.positions)
    return tuple(gaps if row is None else _with_gaps(next(lines), across) for row in down.positions)


def _with_gaps(line: list[str], across: TableAxis) -> tuple[str, ...]:
    texts = iter(line)
    return tuple(GAP if column is None else next(texts) for column in across.positions)


def _grid(
    down: TableAxis | None, across: TableAxis | None, cells: tuple[tuple[str, ...], ...]
) -> Iterator[str]:
    """Yield the lines of one block.

           │ input
    output │   0    1
    ───────┼──────────
         0 │ 1.0  2.0
    """
    if across is None or not cells:
        return
    columns = list(zip(across.heads, *cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    heads, *rows = [
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True))
        for line in zip(*columns, strict=True)
    ]
    line = "─" * (max(len(heads), len(across.title)) + 2)
    if down is None:
        yield f" {across.title}"
        yield f" {heads}"
        yield line
        yield from (f" {row}" for row in rows)
        return
    side = max(map(len, (down.title, *down.heads)))
    yield f" {' ' * side} │ {across.title}"
    yield f" {down.title.ljust(side)} │ {heads}"
    yield f"{'─' * (side + 2)}┼{line}"
    for head, row in zip(down.heads, rows, strict=True):
        yield f" {head.rjust(side)} │ {row}"
