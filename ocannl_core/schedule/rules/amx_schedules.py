"""The schedule of matrix products on AMX, the tile registers of a processor.

One instruction multiplies 16 rows of 32 terms by 16 columns, so a sum of products qualifies if each
operand has an output axis that the other one has not, and both share a reduced axis. Four registers
of results, two tiles of rows by two of columns, use each tile of operands twice:

    c[i, j] += a[i, k] * b[k, j]  -->  split j 512; split j1 32; split j11 16; split i 32; ...;
                                       tile i11 j111 k10; dot k11

The columns of a panel and their terms stay in the second cache while all rows are multiplied. A
float32 is split into three numbers of bfloat16, which takes six products; tiles are used if they
take fewer cycles than vectors, with all copies, by the machine model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.rounding import ceil_div, round_up
from ocannl_core.ir.kernels import transforms
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_accesses import strides
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.kernels.product_status import Obstacle
from ocannl_core.ir.loops.axis_kinds import AxisKind
from ocannl_core.ir.loops.nodes import Load
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.ir.matrix_units import PART_PRODUCTS, TileProduct
from ocannl_core.ir.target import Target
from ocannl_core.schedule.machine_model import SCATTERED_STORE_CYCLES
from ocannl_core.schedule.rules.reduction_model import ReductionModel, ReductionOperand
from ocannl_core.schedule.rules.unit_choice import find_unit
from ocannl_core.schedule.rules.vector_reductions import find_model, vector_axis_candidates

_MAX_REPLICATION = 2
"""An operand whose copy would be larger by this factor is packed block by block."""


@dataclass(frozen=True, slots=True)
class _TileAxes:
    """The axes of a tile."""

    row_operand: ReductionOperand
    column_operand: ReductionOperand
    row: str
    column: str
    term: str


def find_amx_schedule(
    nest: Nest, nodes: NodeInfos, target: Target
) -> transforms.Schedule | Obstacle:
    """Return a schedule with tiles, or the reason why there is none."""
    model = _model_tiles(nest, nodes, target)
    if isinstance(model, Obstacle):
        return model
    axes = model.cheapest()
    if axes is None:
        return Obstacle.AXES
    return model.schedule(axes) if model.is_profitable(axes) else Obstacle.COST


def amx_schedules(nest: Nest, nodes: NodeInfos, target: Target) -> Iterator[transforms.Schedule]:
    """Yield the schedules with tiles along every choice of axes, fast or not."""
    model = _model_tiles(nest, nodes, target)
    if not isinstance(model, Obstacle):
        yield from map(model.schedule, model.candidates())


def _model_tiles(nest: Nest, nodes: NodeInfos, target: Target) -> _TileModel | Obstacle:
    """Return the model of a nest with tiles, or the reason why there are none for it."""
    reduction = nest.reduction
    if reduction is None:
        return Obstacle.AXES
    unit = find_unit(TileProduct, reduction, target)
    if isinstance(unit, Obstacle):
        return unit
    if any(axis.bound is not None for axis in nest.axes):
        return Obstacle.EXTENT
    model = find_model(nest, nodes, target)
    if isinstance(model, Obstacle):
        return model
    if not model.is_fused:
        return Obstacle.FORMAT
    if not model.has_vector_epilogue:
        return Obstacle.EXPRESSION
    return Obstacle.SHIFTING if model.shifting_axes else _TileModel(model, nodes, unit)


class _TileModel:
    """A nest with tiles, and its cost."""

    def __init__(self, model: ReductionModel, nodes: NodeInfos, unit: TileProduct) -> None:
        self._model = model
        self._nodes = nodes
        self._unit = unit
        nest = model.nest
        self._stores = [strides(nest.axes, (store,), nodes) for store in nest.epilogue]

    def candidates(self) -> Iterator[_TileAxes]:
        """Yield the axes that tiles may run along."""
        model = self._model
        used = [name for name in model.extents if model.extents[name] > 1]
        cells = [name for name in used if name in model.output_axes]
        first, second = model.operands
        if any(name not in first.axes | second.axes for name in cells):
            return  # results that are equal
        terms = [name for name in used if name in model.reduced_axes]
        terms = [name for name in terms if name in first.axes & second.axes]
        for rows, columns in ((first, second), (second, first)):
            row_axes = [name for name in cells if name in rows.axes - columns.axes]
            column_axes = [name for name in cells if name in columns.axes - rows.axes]
            for row, column, term in product(row_axes, column_axes, terms):
                yield _TileAxes(rows, columns, row, column, term)

    def cheapest(self) -> _TileAxes | None:
        """Return the axes for which tiles take the fewest cycles, if there are any."""
        return min(self.candidates(), key=self.cycles, default=None)

    def is_profitable(self, axes: _TileAxes) -> bool:
        """Return True if tiles take fewer cycles than vectors."""
        return self.cycles(axes) < self._model.cycles(vector_axis_candidates(self._model)[0])

    def cycles(self, axes: _TileAxes) -> float:
        """Return an estimate of the nest's cycles with tiles."""
        model, unit, costs = self._model, self._unit, self._unit.costs
        sizes = dict(zip((axes.row, axes.column, axes.term), unit.shape, strict=True))
        tiles = prod(ceil_div(extent, sizes.get(name, 1)) for name, extent in model.extents.items())
        total = costs.setup + costs.product * len(PART_PRODUCTS[unit.parts]) * tiles
        for operand, along in ((axes.row_operand, axes.term), (axes.column_operand, axes.column)):
            each = costs.copy + (0.0 if operand.is_contiguous(along) else costs.transpose)
            total += each * model.iterations(operand.axes)
        scattered_stores = sum(strides.get(axes.column, 0) != 1 for strides in self._stores)
        cells = model.iterations(model.output_axes)
        return total + cells * (
            costs.store * self._count_blocks(axes) + SCATTERED_STORE_CYCLES * scattered_stores
        )

    def _other_reduced_axes(self, axes: _TileAxes) -> list[str]:
        """Return the reduced axes beside the axis of terms."""
        return [name for name in self._model.reduced_axes if name != axes.term]

    def _count_blocks(self, axes: _TileAxes) -> int:
        """Return the number of blocks that the axis of the terms is split into."""
        model = self._model
        if (
            not model.nest.holds_partial_results
            or model.iterations(self._other_reduced_axes(axes)) > 1
        ):
            return 1
        extent, most = model.extents[axes.term], self._unit.costs.most_terms
        return 1 if extent <= most * 3 // 2 else ceil_div(extent, most)

    def schedule(self, axes: _TileAxes) -> transforms.Schedule:
        model, extents, splitter = self._model, self._model.extents, _Splitter()
        first, second, unit = axes.row_operand, axes.column_operand, self._unit
        rows, columns, terms = (
            round_up(extents[name], size)
            for name, size in zip((axes.row, axes.column, axes.term), unit.shape, strict=True)
        )
        # a block with fewer tiles than two along one axis has more of them along the other one
        high, wide = min(2, rows // unit.rows), min(2, columns // unit.columns)
        high, wide = (
            min(unit.accumulators // wide, rows // unit.rows),
            min(unit.accumulators // high, columns // unit.columns),
        )
        size = round_up(ceil_div(extents[axes.term], self._count_blocks(axes)), unit.terms)
        term_block, term = splitter.split(axes.term, terms, size)
        steps, term = splitter.split(term, size, unit.terms)
        pairs = transforms.Splits()
        pair, terms_of_pair = pairs.cut(term, 2)
        panel_columns = self._panel_columns(axes, size, wide * unit.columns)
        panel, column = splitter.split(axes.column, columns, panel_columns)
        column_block, column = splitter.split(column, splitter.size, wide * unit.columns)
        inner_column, column = splitter.split(column, splitter.size, unit.columns)
        partial_rows = unit.costs.block_rows if term_block else rows
        partial, row = splitter.split(axes.row, rows, partial_rows)
        row_block, row = splitter.split(row, splitter.size, high * unit.rows)
        inner_row, row = splitter.split(row, splitter.size, unit.rows)

        used = [name for name in model.output_axes if extents[name] > 1]
        unit_axes = [name for name in model.output_axes if extents[name] == 1]
        batch_axes = [name for name in used if name in first.axes & second.axes]
        row_axes = [name for name in used if name in first.axes - {*batch_axes, axes.row}]
        column_axes = [name for name in used if name in second.axes - {*batch_axes, axes.column}]
        reductions = [*self._other_reduced_axes(axes), *steps, *inner_row, *inner_column, row]
        row_blocks = [*row_axes, *partial, *term_block, *row_block]
        tile = (column, pair, terms_of_pair)
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
            *pairs,
            transforms.Order(order),
            *transforms.set_kinds(AxisKind.UNROLLED, (*inner_row, *inner_column)),
            transforms.TileMatrix(row, column, tile[1], unit.parts, unit.shape),
            transforms.SetKind(AxisKind.DOT, (tile[2],)),
            *sorted(packs, key=lambda pack: pack.operand),
            transforms.AccumulateAt(reductions[0], fused=True),
        )

    def _panel_columns(self, axes: _TileAxes, terms: int, least: int) -> int:
        """Return the number of columns that the second cache holds with so many terms each."""
        model = self._model
        nbytes = model.iterations(self._other_reduced_axes(axes)) * terms * self._unit.cell_bytes
        return max(1, model.machine.l2_working_set // (nbytes * least)) * least

    def _is_copy_larger(self, operand: ReductionOperand) -> bool:
        """Return True if a packed copy would be much larger, as of all windows of an image."""
        factor = self._model.nest.required_reduction.factors[operand.position]
        loads = [each for each in walk(factor) if isinstance(each, Load)]
        cells = sum(self._nodes[each.node].size for each in loads)
        return self._model.iterations(operand.axes) > _MAX_REPLICATION * cells


class _Splitter:
    """Splits of axes into blocks of whole tiles, where there are several blocks."""

    def __init__(self) -> None:
        self.splits = transforms.Splits()
        self.size = 0
        """The iterations inside the last block that was split off, of whole tiles."""

    def split(self, name: str, extent: int, size: int) -> tuple[list[str], str]:
        """Return the loop over an axis' blocks, if there are several, and the axis inside."""
        self.size = min(extent, size)
        if size >= extent:
            return [], name
        blocks, inside = self.splits.cut(name, size)
        return [blocks], inside


def _pack(
    operand: ReductionOperand, order: Sequence[str], around: Sequence[str], tile: tuple[str, ...]
) -> transforms.Pack:
    """Return the packing of an operand inside the last of some loops, in the order inside."""
    inside = around[-1] if around else None
    loops = order if inside is None else order[order.index(inside) + 1 :]
    leaves = [leaf for leaf in loops[:-4] if transforms.root_of(leaf) in operand.axes]
    return transforms.Pack(operand.position, inside, (*leaves, *tile))
