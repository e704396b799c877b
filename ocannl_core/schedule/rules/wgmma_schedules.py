"""Choose WGMMA schedules, whose warpgroups multiply asynchronously, where a setting asks for them.

A sum of products qualifies if a matrix instruction computes it, if both factors are arrays of
16-bit floats in memory, and if TMA, the copy engine, can fetch boxes of them: one of the axes of a
factor is contiguous, and the distances along the others are multiples of 16 bytes. A thread block
multiplies rows by columns, each of its groups of threads a part of the rows:

    c[i, j] += a[i, k] * b[k, j]

        -->  split i 128; split i1 64; split i11 16; split i111 8;      i0: grid, i10: groups,
             split j 256; split j1 8; split j11 2;                      i110: warps of a group
             split k 256; split k1 64; ring k10; ...                    k10: stages

Boxes end with their array: cells beyond are zeros. So the sizes of a product are arbitrary, as long
as its rows in memory are multiples of 16 bytes.
"""

from __future__ import annotations

from ocannl_core.base import settings
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.rounding import ceil_div
from ocannl_core.ir.indexing import IndexVar, as_affine, row_major
from ocannl_core.ir.kernels import transforms
from ocannl_core.ir.kernels.nest import LoopAxis, Nest
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.kernels.product_status import Obstacle
from ocannl_core.ir.loops.axis_kinds import AxisKind
from ocannl_core.ir.loops.conversions import unwidened
from ocannl_core.ir.loops.nodes import Expr, Load
from ocannl_core.ir.matrix_units import AsynchronousProduct
from ocannl_core.ir.target import Target
from ocannl_core.schedule.machine_model import (
    COPY_BOX_BYTES,
    GROUP_BLOCKS,
    MAX_COPY_BOX_AXES,
    MAX_STAGES,
    MIN_BLOCK_TILE,
    MIN_RING_STEPS,
    RING_BYTES,
)
from ocannl_core.schedule.rules.block_tiles import ProductAxes, product_axes, split_tiles
from ocannl_core.schedule.rules.unit_choice import find_unit


@dataclass(frozen=True, slots=True)
class WgmmaTile:
    """The tile of a product that a thread block computes by WGMMA."""

    product: AsynchronousProduct
    axes: ProductAxes
    operands: tuple[tuple[int, str], tuple[int, str]]
    """The position of the operand with the rows and of the other one in the term, and the axis of
    each along which it is contiguous.
    """
    groups: int
    """The groups of threads, one beneath the other."""
    width: int
    stages: int
    supertile: int = 1
    """The rows of tiles of which blocks that run together compute a column."""

    @property
    def height(self) -> int:
        """The rows of a block."""
        return self.groups * self.product.sums.rows


def find_wgmma_schedule(
    nest: Nest, nodes: NodeInfos, target: Target
) -> transforms.Schedule | Obstacle:
    """Return a schedule with a ring of stages, or the reason why there is none."""
    tile = _find_tile(nest, nodes, target)
    return tile if isinstance(tile, Obstacle) else _schedule_tile(nest, tile)


def _find_tile(nest: Nest, nodes: NodeInfos, target: Target) -> WgmmaTile | Obstacle:
    """Return the tile of a product: the largest of which there are enough for all processors, and
    that is not much larger than the product; or the reason why there is none.
    """
    blocks, reduction = target.thread_blocks, nest.reduction
    if blocks is None or reduction is None:
        return Obstacle.ABSENT
    product = find_unit(AsynchronousProduct, reduction, target)
    if isinstance(product, Obstacle):
        return product
    if not settings.current().asynchronous_products:
        return Obstacle.SETTING
    axes = product_axes(nest, nodes)
    if axes is None:
        return Obstacle.AXES
    if any(each.bound for each in nest.axes):
        return Obstacle.EXTENT
    row, column, term, at = axes.row, axes.column, axes.term, axes.row_operand
    found = [
        _contiguous_axis(nest, reduction.factors[position], nodes, own, term)
        for position, own in ((at, row), (1 - at, column))
    ]
    steps = ceil_div(term.extent, product.depth)
    first, second = found
    is_small = min(row.extent, column.extent) < MIN_BLOCK_TILE or steps < MIN_RING_STEPS
    if is_small:
        return Obstacle.SIZE
    if first is None or second is None:
        return Obstacle.ALIGNMENT
    operands = (at, first), (1 - at, second)
    last: WgmmaTile | None = None
    for groups, width in GROUP_BLOCKS:
        height = groups * product.sums.rows
        stage = (height + width) * product.row_bytes
        stages = min(MAX_STAGES, (blocks.local_bytes - RING_BYTES) // stage, steps)
        threads = (groups + 1) * product.threads
        if width not in product.columns or stages < 2 or threads > blocks.max_threads:
            continue
        last = WgmmaTile(product, axes, operands, groups, width, stages)
        if axes.fills((height, width), blocks.processors):
            break
    if last is None:
        return Obstacle.RESOURCES
    # blocks are persistent: a processor has one
    cells = last.height, last.width
    return replace(last, supertile=axes.supertile(cells, product.dtype.nbytes, 1, target))


def _contiguous_axis(
    nest: Nest, factor: Expr, nodes: NodeInfos, cells: LoopAxis, terms: LoopAxis
) -> str | None:
    """Return the axis along which a factor is contiguous; None if no box can be copied."""
    load = unwidened(factor)
    if not isinstance(load, Load):
        return None
    distances, offset = as_affine(row_major(load.indices, nodes[load.node].buffer_dims))
    found = {var: distance for distance, var in distances}
    axes: dict[IndexVar, LoopAxis] = {axis.var: axis for axis in nest.axes}
    if not found.keys() <= axes.keys() or len(found) > MAX_COPY_BOX_AXES:
        return None
    offset += sum(distance * axes[var].start for var, distance in found.items())
    for inner, outer in ((terms, cells), (cells, terms)):
        if found.get(inner.var) != 1 or found.get(outer.var, 0) < inner.extent:
            continue
        unit = COPY_BOX_BYTES // load.dtype.nbytes
        others = [distance for var, distance in found.items() if var is not inner.var]
        if offset % unit == 0 and all(each > 0 and each % unit == 0 for each in others):
            return inner.name
    return None


def _schedule_tile(nest: Nest, tile: WgmmaTile) -> transforms.Schedule:
    """Return the schedule of a product with a ring of stages."""
    sums, (i, j, k) = tile.product.sums, tile.axes.names
    batches, reduced = tile.axes.others(nest)
    splits = transforms.Splits()
    outer, tiles, rows = split_tiles(splits, i, tile.height, tile.supertile)
    steps = sums.rows, sums.threads[0].rows, sums.places[0].rows
    group, warp, own_row, row = splits.cut(rows, *steps)
    tile_of_columns, columns = splits.cut(j, tile.width)
    products, column, own_column = splits.cut(columns, sums.columns, sums.places[1].count)
    rounds, stage, term = splits.cut(k, tile.stages * tile.product.depth, tile.product.depth)
    grid = (*batches, *outer, tile_of_columns, *tiles)
    block = (group, warp, row, column)
    cells = (products, own_row, own_column)
    packs = [
        transforms.Pack(position, stage, (own, term) if contiguous == k else (term, own))
        for (position, contiguous), own in sorted(zip(tile.operands, (rows, columns), strict=True))
    ]
    return (
        *splits,
        transforms.SetKind(AxisKind.GRID, grid),
        transforms.SetKind(AxisKind.BLOCK, block),
        transforms.Order((*grid, *block, *reduced, rounds, stage, *cells, term)),
        *transforms.set_kinds(AxisKind.UNROLLED, cells),
        # neighboring cells of a thread are stored together
        transforms.SetKind(AxisKind.VECTOR, (cells[2],)),
        transforms.TileMatrix(cells[1], cells[2], term),
        *packs,
        transforms.Ring(stage),
        transforms.AccumulateAt((*reduced, rounds)[0], fused=True),
    )
