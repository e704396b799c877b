"""The schedule of products of matrices on processors with tile registers.

An instruction multiplies 16 rows of 32 terms by 16 columns, so a sum of products qualifies if one
operand has an axis of cells that the other one has not, and the other way round, and both share a
reduced axis. Four registers of sums, two tiles of rows by two of columns, use each tile of operands
twice:

    c[i, j] += a[i, k] * b[k, j]  -->  split j 512; split j1 32; split j11 16; split i 32; ...;
                                       tile i11 j111 k10; pair k11

The columns of a block and their terms stay in the second cache, which all rows go past. Numbers of
float32 are tiles of three parts, of which six products are needed; that and the copies have to pay,
which a model of cycles decides. Its numbers follow from products of matrices of 64 to 2048 rows
that were written by hand and timed on a processor with tiles; schedules have not been timed on one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from ocannl_core.dtypes import DType, bfloat16, float32
from ocannl_core.fast_dataclass import dataclass
from ocannl_core.kernels.nest import KernelNest
from ocannl_core.kernels.nodes import NodeInfos
from ocannl_core.kernels.transforms import (
    AccumulateAt,
    Order,
    Pack,
    Pair,
    Schedule,
    Split,
    TileMatrix,
    Transform,
    Unroll,
)
from ocannl_core.loopir.nodes import Expr, Load, Unary
from ocannl_core.loopir.traverse import walk
from ocannl_core.machine_model import (
    MAX_TILE_TERMS,
    SCATTERED_STORE_CYCLES,
    TILE_ACCUMULATORS,
    TILE_BLOCK_ROWS,
    TILE_COLUMNS,
    TILE_COPY_CYCLES,
    TILE_PRODUCT_CYCLES,
    TILE_ROWS,
    TILE_SETUP_CYCLES,
    TILE_STORE_CYCLES,
    TILE_TERMS,
    TILE_TRANSPOSE_CYCLES,
)
from ocannl_core.ops import UnaryOp
from ocannl_core.schedule.apply.matrix_tiles import PART_PRODUCTS
from ocannl_core.schedule.heuristics.contraction import model_reduction, vector_axis_candidates
from ocannl_core.schedule.heuristics.cost_model import ReductionModel, ReductionOperand, strides
from ocannl_core.target import Target

_PARTS = {bfloat16: 1, float32: 3}
"""Of how many numbers of bfloat16 those of a format are the sum."""
_REPLICATED = 2
"""Operands of which cells are in a copy more often than this are copied piece by piece."""


@dataclass(frozen=True, slots=True)
class _TileAxes:
    """What a tile runs along.

    Attributes:
        rows: The operand with the rows.
        lanes: The operand with the columns.
        row: The axis of the rows.
        lane: The axis of the columns.
        term: The axis of the terms.
    """

    row_operand: ReductionOperand
    column_operand: ReductionOperand
    row: str
    column: str
    term: str


def tile_schedule(nest: KernelNest, nodes: NodeInfos, target: Target) -> Schedule | None:
    """Returns a schedule with tiles, or None where there are none or they do not pay.

    Args:
        nest: The nest.
        nodes: Extents and formats of its nodes.
        target: The processor.
    """
    model = _model_tiles(nest, nodes, target)
    axes = None if model is None else model.cheapest()
    if model is None or axes is None or not model.is_profitable(axes):
        return None
    return model.schedule(axes)


def tile_schedules(nest: KernelNest, nodes: NodeInfos, target: Target) -> Iterator[Schedule]:
    """Yields the schedules with tiles along whichever axes, whether they pay or not."""
    model = _model_tiles(nest, nodes, target)
    if model is not None:
        yield from map(model.schedule, model.candidates())


def _model_tiles(nest: KernelNest, nodes: NodeInfos, target: Target) -> _TileModel | None:
    """Returns tiles for a nest, if a processor has tiles that compute it."""
    reduction = nest.reduction
    if reduction is None or not reduction.may_pair or bfloat16 not in target.tile_products:
        return None
    model = model_reduction(nest, nodes, target)
    parts = None if model is None else _parts(nest)
    if model is None or parts is None or not model.is_fused or model.shifting_axes:
        return None
    return _TileModel(model, nodes, parts)


def _parts(nest: KernelNest) -> int | None:
    """Returns into how many parts the factors are cut; None if tiles do not multiply them."""
    assert nest.reduction is not None
    if nest.reduction.dtype is not float32 or len(nest.reduction.factors) != 2:
        return None
    formats = {_format(factor) for factor in nest.reduction.factors}
    return _PARTS.get(formats.pop()) if len(formats) == 1 else None


def _format(factor: Expr) -> DType:
    """Returns the format of a factor before it is widened."""
    match factor:
        case Unary(UnaryOp.IDENTITY, arg) if arg.dtype.is_narrow:
            return arg.dtype
        case _:
            return factor.dtype


class _TileModel:
    """Tiles for one nest.

    Args:
        model: The nest as a processor sees it.
        nodes: Extents and formats of its nodes.
        parts: Into how many parts factors are cut.
    """

    def __init__(self, model: ReductionModel, nodes: NodeInfos, parts: int) -> None:
        self._model = model
        self._nodes = nodes
        self._parts = parts
        nest = model.nest
        self._stores = [strides(nest.axes, (store,), nodes) for store in nest.finish]

    def candidates(self) -> Iterator[_TileAxes]:
        """Yields the axes that tiles may run along."""
        model = self._model
        used = [name for name in model.extents if model.extents[name] > 1]
        cells = [name for name in used if name in model.output_axes]
        first, second = model.operands
        if any(name not in first.axes | second.axes for name in cells):
            return  # cells that are equal
        terms = [name for name in used if name in model.reduced_axes]
        terms = [name for name in terms if name in first.axes & second.axes]
        for rows, lanes in ((first, second), (second, first)):
            row_axes = [name for name in cells if name in rows.axes - lanes.axes]
            column_axes = [name for name in cells if name in lanes.axes - rows.axes]
            for row, column, term in product(row_axes, column_axes, terms):
                yield _TileAxes(rows, lanes, row, column, term)

    def cheapest(self) -> _TileAxes | None:
        """Returns the axes for which tiles take the fewest cycles, if there are any."""
        return min(self.candidates(), key=self.cycles, default=None)

    def is_profitable(self, axes: _TileAxes) -> bool:
        """True if vectors take longer than tiles."""
        return self.cycles(axes) < self._model.cycles(vector_axis_candidates(self._model)[0])

    def cycles(self, axes: _TileAxes) -> float:
        """Returns about how long the nest takes with tiles."""
        model = self._model
        sizes = {axes.row: TILE_ROWS, axes.column: TILE_COLUMNS, axes.term: TILE_TERMS}
        tiles = prod(-(-extent // sizes.get(name, 1)) for name, extent in model.extents.items())
        total = TILE_SETUP_CYCLES + TILE_PRODUCT_CYCLES * len(PART_PRODUCTS[self._parts]) * tiles
        for operand, along in ((axes.row_operand, axes.term), (axes.column_operand, axes.column)):
            each = TILE_COPY_CYCLES[self._parts] + (
                0.0 if operand.is_contiguous(along) else TILE_TRANSPOSE_CYCLES
            )
            total += each * model.iterations(operand.axes)
        scattered_stores = sum(strides.get(axes.column, 0) != 1 for strides in self._stores)
        cells = model.iterations(model.output_axes)
        return total + cells * (
            TILE_STORE_CYCLES * self._count_blocks(axes) + SCATTERED_STORE_CYCLES * scattered_stores
        )

    def _other_reduced_axes(self, axes: _TileAxes) -> list[str]:
        """Returns the reduced axes beside that of the terms."""
        return [name for name in self._model.reduced_axes if name != axes.term]

    def _count_blocks(self, axes: _TileAxes) -> int:
        """Returns into how many pieces the terms are cut."""
        model = self._model
        if (
            not model.nest.holds_partial_results
            or model.iterations(self._other_reduced_axes(axes)) > 1
        ):
            return 1
        extent, most = model.extents[axes.term], MAX_TILE_TERMS[self._parts]
        return 1 if extent <= most * 3 // 2 else -(-extent // most)

    # ----- the schedule ---------------------------------------------------------------------

    def schedule(self, axes: _TileAxes) -> Schedule:
        """Returns the transforms."""
        model, extents, splitter = self._model, self._model.extents, _Splitter([])
        first, second = axes.row_operand, axes.column_operand
        rows, columns = (_round_up(extents[name], TILE_ROWS) for name in (axes.row, axes.column))
        # a block with fewer tiles than two along one axis has more of them along the other one
        high, wide = min(2, rows // TILE_ROWS), min(2, columns // TILE_COLUMNS)
        high, wide = (
            min(TILE_ACCUMULATORS // wide, rows // TILE_ROWS),
            min(TILE_ACCUMULATORS // high, columns // TILE_COLUMNS),
        )
        size = _round_up(-(-extents[axes.term] // self._count_blocks(axes)), TILE_TERMS)
        terms = _round_up(extents[axes.term], TILE_TERMS)
        term_block, term = splitter.split(axes.term, terms, size)
        steps, term = splitter.split(term, size, TILE_TERMS)
        splits = [Split(term, 2)]
        panel_columns = self._panel_columns(axes, size, wide * TILE_COLUMNS)
        panel, column = splitter.split(axes.column, columns, panel_columns)
        column_block, column = splitter.split(column, splitter.size, wide * TILE_COLUMNS)
        inner_column, column = splitter.split(column, splitter.size, TILE_COLUMNS)
        partial_rows = TILE_BLOCK_ROWS if term_block else rows
        partial, row = splitter.split(axes.row, rows, partial_rows)
        row_block, row = splitter.split(row, splitter.size, high * TILE_ROWS)
        inner_row, row = splitter.split(row, splitter.size, TILE_ROWS)

        used = [name for name in model.output_axes if extents[name] > 1]
        unit_axes = [name for name in model.output_axes if extents[name] == 1]
        batch_axes = [name for name in used if name in first.axes & second.axes]
        row_axes = [name for name in used if name in first.axes - {*batch_axes, axes.row}]
        column_axes = [name for name in used if name in second.axes - {*batch_axes, axes.column}]
        reductions = [*self._other_reduced_axes(axes), *steps, *inner_row, *inner_column, row]
        row_blocks = [*row_axes, *partial, *term_block, *row_block]
        tile = (column, f"{term}0", f"{term}1")
        outer = (*unit_axes, *batch_axes, *column_axes, *panel)
        order = (*outer, *row_blocks, *column_block, *reductions, *tile)
        is_repeated = bool(column_axes or panel) and not self._is_copy_larger(first)
        around = [*batch_axes, *([] if is_repeated else row_blocks)]
        packs = (
            _pack(first, order, around, (row, term)),
            _pack(second, order, [*batch_axes, *column_axes, *panel], (tile[1], column, tile[2])),
        )
        return (
            *splitter.splits,
            *splits,
            Order(order),
            *(Unroll(name) for name in (*inner_row, *inner_column)),
            TileMatrix(row, column, tile[1], self._parts),
            Pair(tile[2]),
            *sorted(packs, key=lambda pack: pack.operand),
            AccumulateAt(reductions[0], fused=True),
        )

    def _panel_columns(self, axes: _TileAxes, terms: int, least: int) -> int:
        """Returns how many columns of so many terms stay in the second cache."""
        model = self._model
        nbytes = (
            bfloat16.nbytes * self._parts * terms * model.iterations(self._other_reduced_axes(axes))
        )
        return max(1, model.machine.l2_working_set // (nbytes * least)) * least

    def _is_copy_larger(self, operand: ReductionOperand) -> bool:
        """True if a copy of an operand would be much larger than what is copied, as that of all
        windows of an image is.
        """
        assert self._model.nest.reduction is not None
        factor = self._model.nest.reduction.factors[operand.position]
        loads = [each for each in walk(factor) if isinstance(each, Load)]
        cells = sum(self._nodes[each.node].size for each in loads)
        return self._model.iterations(operand.axes) > _REPLICATED * cells


class _Splitter:
    """Splits of axes into blocks of whole tiles, as far as there are several of them.

    Attributes:
        splits: The transforms.
        size: The iterations of the part that was cut last, of whole tiles.
    """

    def __init__(self, splits: list[Transform]) -> None:
        self.splits = splits
        self.size = 0

    def split(self, name: str, extent: int, size: int) -> tuple[list[str], str]:
        """Returns the loop over blocks of a part, if any, and what is inside of them."""
        self.size = min(extent, size)
        if size >= extent:
            return [], name
        self.splits.append(Split(name, size))
        return [f"{name}0"], f"{name}1"


def _pack(
    operand: ReductionOperand, order: Sequence[str], around: Sequence[str], tile: tuple[str, ...]
) -> Pack:
    """Returns the copy of an operand for each iteration of the last of some loops, in the order in
    which the others inside need it.
    """
    inside = around[-1] if around else None
    loops = order if inside is None else order[order.index(inside) + 1 :]
    leaves = [leaf for leaf in loops[:-4] if leaf[0] in operand.axes]
    return Pack(operand.position, inside, (*leaves, *tile))


def _round_up(extent: int, size: int) -> int:
    """Returns an extent filled up to whole tiles."""
    return -(-extent // size) * size
