"""Choose tiles of products for the thread blocks of a device.

A sum of products qualifies if each factor has an axis of cells that the other one lacks, and both
have a reduced axis. A thread block computes a block of rows and columns, and each of its threads a
register tile:

    c[i, j] += a[i, k] * b[k, j]

        -->  split i 128; split j 128; ...; split k 8;        i0, j0: grid
             pack 0 inside k0 as k1 i1; pack 1 inside k0 as k1 j1; pipeline k0 in 4; ...

Blocks of terms of both factors lie in shared memory. Where a device has asynchronous copies, those
of some steps are on their way while one is multiplied; elsewhere the threads copy a step, meet, and
multiply it. One instruction copies several neighboring cells where memory is aligned.

The threads of a subgroup have about as many rows as columns, so that they load the least from
shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd, prod

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.rounding import ceil_div
from ocannl_core.ir.indexing import as_affine, row_major
from ocannl_core.ir.kernels import transforms
from ocannl_core.ir.kernels.nest import LoopAxis, Nest, Reduction, iterations
from ocannl_core.ir.kernels.nest_accesses import strides
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.kernels.product_status import Obstacle
from ocannl_core.ir.loops.axis_kinds import AxisKind
from ocannl_core.ir.loops.nodes import Binary, Expr, Gather, Load, Scoped
from ocannl_core.ir.loops.traverse import contains
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.ir.target import Target, ThreadBlocks
from ocannl_core.schedule import machine_model as machine
from ocannl_core.schedule.rules.tile_order import TileGrid, supertile_rows


@dataclass(frozen=True, slots=True)
class ProductAxes:
    """The axes along which a product of two factors is cut into tiles."""

    row: LoopAxis
    """The longest axis of cells on which the second of the operands does not depend."""
    column: LoopAxis
    """The longest one on which the first of them does not depend."""
    term: LoopAxis
    row_operand: int
    """The position of the operand with the rows among the factors."""
    batch: int
    """The iterations of all other axes of cells."""

    @property
    def names(self) -> tuple[str, str, str]:
        """The names of the axes of rows, columns and terms."""
        return self.row.name, self.column.name, self.term.name

    def others(self, nest: Nest) -> tuple[list[str], list[str]]:
        """Return the names of the other axes of cells, and of the other reduced axes."""
        return (
            [axis.name for axis in nest.output_axes if axis.name not in self.names],
            [axis.name for axis in nest.reduced if axis.name not in self.names],
        )

    def fills(self, cells: tuple[int, int], processors: int) -> bool:
        """Return True if tiles keep all processors busy and none is much too large."""
        height, width = cells
        rows, columns = self.row.extent, self.column.extent
        count = ceil_div(rows, height) * ceil_div(columns, width) * self.batch
        return height <= 2 * rows and width <= 2 * columns and count >= processors

    def supertile(
        self, cells: tuple[int, int], nbytes: int, per_processor: int, target: Target
    ) -> int:
        """Return the rows of tiles in a supertile, by which the least is loaded into the last
        cache.

        Args:
            cells: The rows and columns of a tile.
            nbytes: The size of a number of the factors.
            per_processor: The blocks that a processor runs at the same time.
        """
        assert target.thread_blocks is not None
        extents = self.row.extent, self.column.extent
        grid = TileGrid.of(extents, cells, self.term.extent * nbytes)
        wave = per_processor * target.thread_blocks.processors
        return supertile_rows(grid, wave, target.last_cache_bytes)


def product_axes(nest: Nest, nodes: NodeInfos | None = None) -> ProductAxes | None:
    """Return the axes of a product; None if both factors depend on all cells, or share no terms.

    Args:
        nest: A nest with a reduction of two factors.
        nodes: Extents, so that columns are contiguous in the results, as far as one of the axes
            is; None where rows and columns are alike.
    """
    first, second = nest.factor_variables
    rows = [axis for axis in nest.output_axes if axis.var in first and axis.var not in second]
    columns = [axis for axis in nest.output_axes if axis.var in second and axis.var not in first]
    terms = [axis for axis in nest.reduced if axis.var in first and axis.var in second]
    if not rows or not columns or not terms:
        return None
    row, column, term = (
        max(axes, key=lambda axis: (axis.extent, axis.name)) for axes in (rows, columns, terms)
    )
    batch = iterations(axis for axis in nest.output_axes if axis not in (row, column))
    steps: Mapping[str, int] = {}
    if nodes is not None:
        steps = strides(nest.axes, nest.epilogue, nodes)
    if steps.get(row.name) == 1 and steps.get(column.name) != 1:
        # neighboring threads store neighboring cells
        return ProductAxes(column, row, term, 1, batch)
    return ProductAxes(row, column, term, 0, batch)


@dataclass(frozen=True, slots=True)
class BlockTile:
    """The tile of a product that a thread block computes."""

    axes: ProductAxes
    threads: tuple[int, int]
    """The threads along rows and columns."""
    cells: tuple[int, int]
    """The cells of a thread along rows and columns."""
    depth: int
    """The terms that are in shared memory at a time."""
    forms: tuple[transforms.StageForm, ...] = ()
    """The forms of operands that are copied ahead; () if none are."""
    stages: int = 1
    """The number of steps whose operands are in shared memory."""
    supertile: int = 1
    """The rows of tiles of which blocks that run together compute a column."""

    @property
    def extents(self) -> tuple[int, int]:
        """The rows and columns of the tile."""
        return self.threads[0] * self.cells[0], self.threads[1] * self.cells[1]


def fused(nest: Nest, target: Target) -> bool:
    """Return True if sums may add unrounded products; short sums keep the bits of plain loops."""
    reduction = nest.reduction
    return (
        target.has_fma
        and iterations(nest.axes) >= machine.MIN_FUSED_STEPS
        and reduction is not None
        and reduction.op is BinaryOp.ADD
        and reduction.dtype.is_float
        and isinstance(reduction.term, Binary)
        and reduction.term.op is BinaryOp.MUL
    )


def find_block_schedule(
    nest: Nest, nodes: NodeInfos, target: Target, side: int, depth: int
) -> transforms.Schedule | Obstacle:
    """Return a schedule with register tiles of threads, or the reason why there is none.

    Args:
        side: The rows and columns of the register tile of a thread; 0 to choose them.
        depth: The terms in shared memory at a time; 0 to choose them.
    """
    tile = _find_tile(nest, nodes, target, side, depth)
    return tile if isinstance(tile, Obstacle) else _schedule_tile(nest, tile, target)


def _find_tile(
    nest: Nest, nodes: NodeInfos, target: Target, side: int, depth: int
) -> BlockTile | Obstacle:
    """Return the tile of a product, or why no operand would be used often enough."""
    reduction, blocks = nest.required_reduction, target.thread_blocks
    assert blocks is not None
    if len(reduction.factors) != 2 or reduction.op is not BinaryOp.ADD:
        return Obstacle.AXES
    if nest.rounds_often:
        return Obstacle.ORDER
    if contains(reduction.term, (Gather, Scoped)):
        return Obstacle.TERM
    axes = product_axes(nest, nodes)
    if axes is None:
        return Obstacle.AXES
    row, column, term = axes.row, axes.column, axes.term
    if min(row.extent, column.extent) < machine.MIN_BLOCK_TILE or term.extent < machine.BLOCK_TERMS:
        return Obstacle.SIZE
    threads = _thread_shape(blocks.threads)
    nbytes = reduction.dtype.nbytes
    found = _side(
        row, column, axes.batch, threads, depth or machine.BLOCK_TERMS, nbytes, blocks, side
    )
    if not found:
        return Obstacle.RESOURCES
    tile = BlockTile(axes, threads, (found, found), depth or machine.BLOCK_TERMS)
    forms = _forms(nest, reduction, nodes, blocks, tile)
    own_depth, stages = tile.depth, 1
    if forms:
        own_depth = depth or _stage_depth(tile, term.extent, nbytes)
        stage_bytes = own_depth * sum(each.pitch for each in forms) * nbytes
        fitting = blocks.local_bytes // stage_bytes
        most = min(fitting, max(2, fitting // machine.RESIDENT_BLOCKS), machine.MAX_STAGES)
        stages = min(most, ceil_div(term.extent, own_depth))
        if stages < 2:
            own_depth, stages, forms = tile.depth, 1, ()
    supertile = axes.supertile(tile.extents, nbytes, machine.RESIDENT_BLOCKS, target)
    return BlockTile(axes, threads, tile.cells, own_depth, forms, stages, supertile)


def _side(
    row: LoopAxis,
    column: LoopAxis,
    others: int,
    threads: tuple[int, int],
    depth: int,
    cell_bytes: int,
    blocks: ThreadBlocks,
    wanted: int,
) -> int:
    """Return the rows and columns of the register tile of a thread; 0 if none fits.

    Args:
        wanted: The only number to consider; 0 to choose one.
    """
    found: dict[int, float] = {}
    for side, rate in machine.TILE_RATES.items():
        height, width = threads[0] * side, threads[1] * side
        nbytes = (height + width + 2) * depth * cell_bytes
        if 2 * side * side > blocks.registers or nbytes > blocks.local_bytes:
            continue
        tiles = ceil_div(row.extent, height) * ceil_div(column.extent, width) * others
        fits = height <= 2 * row.extent and width <= 2 * column.extent
        if fits or side == min(machine.TILE_RATES):
            # so many processors work, each at the rate of its tile
            found[side] = rate * min(1.0, tiles / blocks.processors)
        if side == wanted:
            return side
    return 0 if not found or wanted else max(found, key=lambda side: found[side])


def _thread_shape(threads: int) -> tuple[int, int]:
    """Return the threads of a block along rows and columns."""
    exponent = max(0, threads.bit_length() - 1)
    return 1 << (exponent // 2), 1 << (exponent - exponent // 2)


def _forms(
    nest: Nest, reduction: Reduction, nodes: NodeInfos, blocks: ThreadBlocks, tile: BlockTile
) -> tuple[transforms.StageForm, ...]:
    """Return the forms of both operands if instructions copy them to shared memory; else ().

    Rows of shared memory are those of a term. An operand whose terms are neighbors in memory is
    transposed on its way, cell by cell.
    """
    found: list[transforms.StageForm] = []
    rows, columns, terms = tile.axes.names
    for at, factor in enumerate(reduction.factors):
        is_row = at == tile.axes.row_operand
        axis = rows if is_row else columns
        if not isinstance(factor, Load) or factor.dtype is not reduction.dtype:
            return ()
        width = copy_width(factor, nest.axes, axis, nodes, blocks.asynchronous_copies)
        if not width:
            return ()
        steps = strides(nest.axes, (factor,), nodes)
        is_across = steps[terms] == 1 and steps[axis] != 1
        cells = tile.extents[0 if is_row else 1]
        found.append(
            transforms.StageForm(at, width, cells + (machine.PADDING_CELLS if is_across else 0))
        )
    return tuple(found)


def _stage_depth(tile: BlockTile, terms: int, cell_bytes: int) -> int:
    """Return the terms of a stage: so many that each thread copies a vector of the columns, fewer
    where the last stage would be mostly empty.
    """
    depth = max(
        1, prod(tile.threads) * machine.STAGE_VECTOR_BYTES // (tile.extents[1] * cell_bytes)
    )
    least = machine.BLOCK_TERMS // 2
    while depth > least and 8 * (-terms % depth) > terms:
        depth //= 2
    return max(depth, least)


def _schedule_tile(nest: Nest, tile: BlockTile, target: Target) -> transforms.Schedule:
    """Return the schedule of a product in tiles.

    The columns of a thread are vectors, a block's width apart, if there are enough.
    """
    i, j, k = tile.axes.names
    (rows, columns), (row_cells, column_cells) = tile.threads, tile.cells
    blocks = target.thread_blocks
    assert blocks is not None
    nbytes = nest.required_reduction.dtype.nbytes
    lanes = gcd(max(1, blocks.vector_bytes // nbytes), column_cells)
    splits = transforms.Splits()
    outer, tiles, tile_rows = split_tiles(splits, i, tile.extents[0], tile.supertile)
    tile_of_columns, tile_columns = splits.cut(j, tile.extents[1])
    row_digits, own_rows = _split_threads(splits, tile_rows, rows, machine.ROW_DIGITS, row_cells)
    own_columns, vectors = splits.cut(tile_columns, columns * lanes)
    digits, inside = _split_threads(splits, vectors, columns, machine.COLUMN_DIGITS, lanes)
    cells = [own_columns, inside] if lanes > 1 else [own_columns]
    steps, term = splits.cut(k, tile.depth)
    others, reduced = tile.axes.others(nest)
    inner = (steps, term, own_rows, *cells)
    # the last digits of both axes are the threads of a subgroup
    high = int(rows > machine.ROW_DIGITS[0]), int(columns > machine.COLUMN_DIGITS[0])
    block = (*row_digits[: high[0]], *digits[: high[1]])
    block = (*block, *row_digits[high[0] :], *digits[high[1] :])
    grid = (*others, *outer, tile_of_columns, *tiles)
    at = tile.axes.row_operand
    operands = {at: tile_rows, 1 - at: tile_columns}
    return (
        *splits,
        transforms.SetKind(AxisKind.GRID, grid),
        transforms.SetKind(AxisKind.BLOCK, block),
        transforms.Order((*grid, *block, *reduced, *inner)),
        *transforms.set_kinds(AxisKind.UNROLLED, (term, own_rows, own_columns)),
        *transforms.set_kinds(AxisKind.VECTOR, cells[-1:] if lanes > 1 else ()),
        *(transforms.Pack(at, steps, (term, operands[at])) for at in sorted(operands)),
        *([transforms.Pipeline(steps, tile.stages)] if tile.forms else []),
        *tile.forms,
        transforms.AccumulateAt((*reduced, steps)[0], fused(nest, target)),
    )


def split_tiles(
    splits: transforms.Splits, rows: str, extent: int, supertile: int
) -> tuple[list[str], list[str], str]:
    """Split an axis of rows into tiles, and these into supertiles.

    Returns:
        The leaves of the grid around the columns and inside of them, and the rows of a tile.
    """
    sizes = (extent,) if supertile == 1 else (supertile * extent, extent)
    outer, *tiles, tile = splits.cut(rows, *sizes)
    return [outer], tiles, tile


def _split_threads(
    splits: transforms.Splits, name: str, threads: int, sizes: Sequence[int], cells: int
) -> tuple[list[str], str]:
    """Split an axis into the digits of a thread's number, and the cells of a thread; return the
    leaves of both.

    Args:
        sizes: The threads inside of each digit, outermost first.
        cells: The neighboring cells of a thread.
    """
    digits: list[str] = []
    for size in (*(size for size in sizes if threads > size and threads % size == 0), 1):
        if size * cells == 1:
            return [*digits, name], name
        digit, name = splits.cut(name, size * cells)
        digits.append(digit)
    return digits, name


def copy_width(
    expr: Expr, axes: Sequence[LoopAxis], inner: str, nodes: NodeInfos, sizes: Sequence[int]
) -> int:
    """Return the neighboring cells that one instruction copies from memory to shared memory; 0 if
    none copies them.

    They are aligned in memory if every step along another axis is a multiple of their number.

    Args:
        inner: The axis along which cells are neighbors in shared memory.
        sizes: The bytes that one instruction copies.
    """
    if not isinstance(expr, Load):
        return 0
    terms, offset = as_affine(row_major(expr.indices, nodes[expr.node].buffer_dims))
    found = {var: coefficient for coefficient, var in terms}
    offset += sum(found.get(axis.var, 0) * axis.start for axis in axes)
    (var,) = (axis.var for axis in axes if axis.name == inner)
    step = found.pop(var, 0)
    for nbytes in sorted(sizes, reverse=True):
        width, rest = divmod(nbytes, expr.dtype.nbytes)
        if rest or not width:
            continue
        if width == 1 or (
            step == 1 and offset % width == 0 and all(each % width == 0 for each in found.values())
        ):
            return width
    return 0
