"""Choose schedules for tensor cores, the matrix instructions of a subgroup of threads, a warp.

A sum of products qualifies if each factor has an axis of cells that the other one lacks, and both
have a reduced axis. A thread block computes a block of rows and columns, each of its warps a part
of it, and each thread those cells of the sums that the instruction leaves in its registers:

    c[i, j] += a[i, k] * b[k, j]

        -->  split i 128; split i1 64; split i11 16; split i111 8;      i0: grid, i10: warps,
             split j 128; split j1 32; split j11 8; split j111 2; ...   i110: instructions,
             tile i1110 j1111 k11; pipeline k0 in 3; ...                i1111: threads of a warp

Blocks of terms of both factors lie in shared memory, those of some steps at a time: while a warp
multiplies one, others are on their way. The rows of a copy are in the order of memory, so that one
instruction copies several cells, and have a pitch by which the threads of a warp read from
different banks.

Sums of narrow floats use the instructions by default: their factors are multiplied exactly, and
sums round to the narrow format. Sums of float32, with factors in narrower parts, need the setting
`accumulation = "fast"`.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.rounding import ceil_div, round_up
from ocannl_core.ir.kernels import transforms
from ocannl_core.ir.kernels.nest import LoopAxis, Nest, Reduction
from ocannl_core.ir.kernels.nest_accesses import strides
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.kernels.product_status import Obstacle
from ocannl_core.ir.loops.axis_kinds import AxisKind
from ocannl_core.ir.loops.conversions import unwidened
from ocannl_core.ir.loops.nodes import Load
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.ir.matrix_units import Digit, Fragment, MatrixInstruction
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.ir.target import Target, ThreadBlocks
from ocannl_core.schedule.machine_model import (
    BANK_BYTES,
    BANKS,
    BLOCK_TERMS,
    MAX_STAGES,
    MIN_BLOCK_TILE,
    REGISTER_BYTES,
    RESIDENT_BLOCKS,
    SHARED_ACCESS_BYTES,
    SHARED_TURN_THREADS,
    STAGE_ROW_BYTES,
    WARP_BLOCKS,
    WARP_REGISTERS,
)
from ocannl_core.schedule.rules import block_tiles
from ocannl_core.schedule.rules.unit_choice import find_unit


@dataclass(frozen=True, slots=True)
class StagedOperand:
    """A factor in shared memory."""

    position: int
    fragment: Fragment
    axes: tuple[str, str]
    """The axes of the nest that are its rows and columns in shared memory."""
    width: int
    """The neighboring cells that one instruction copies; 0 if a thread computes them."""
    dtype: DType


@dataclass(frozen=True, slots=True)
class TensorCoreTile:
    """The tile of a product that a thread block computes by matrix instructions."""

    instruction: MatrixInstruction
    axes: block_tiles.ProductAxes
    operands: tuple[StagedOperand, StagedOperand]
    """The operand with the rows and the one with the columns."""
    warps: tuple[int, int]
    tiles: tuple[int, int]
    """The instructions of a warp along rows and columns."""
    depth: int
    stages: int
    supertile: int = 1
    """The rows of tiles of which blocks that run together compute a column."""
    joined: int = 1
    """The instructions along the columns whose cells are neighbors: a thread has those of all of
    them beside each other.
    """

    @property
    def cells(self) -> tuple[int, int]:
        """The rows and columns of a block."""
        sums = self.instruction.sums
        (down, across), (high, wide) = self.warps, self.tiles
        return down * high * sums.rows, across * wide * sums.columns

    def extent(self, axis: str) -> int:
        """Return the cells or terms of a block along an axis."""
        return dict(zip(self.axes.names, (*self.cells, self.depth), strict=True))[axis]

    def pitch(self, operand: StagedOperand) -> int:
        """Return the cells from one row of an operand in shared memory to the next one."""
        is_across = operand.axes[1] != self.axes.term.name
        return pitch(operand.fragment, operand.dtype, self.extent(operand.axes[1]), is_across)

    def form(self, operand: StagedOperand) -> transforms.StageForm:
        """Return the form of an operand in shared memory."""
        step = self.pitch(operand)
        if self.joined == 1 or operand is not self.operands[1]:
            return transforms.StageForm(operand.position, operand.width, step)
        rows = self.joined * _own_columns(self.instruction.sums)
        skip = skip_after(rows, step, self.joined, operand.dtype)
        return transforms.StageForm(operand.position, operand.width, step, skip, rows)

    @property
    def stage_bytes(self) -> int:
        forms = [(self.form(each), each) for each in self.operands]
        return sum(
            self.extent(each.axes[0])
            * (form.pitch + ceil_div(form.skip, max(form.rows, 1)))
            * each.dtype.nbytes
            for form, each in forms
        )

    @property
    def registers(self) -> int:
        """The registers of a thread that hold sums and operands."""
        (high, wide), parts = self.tiles, self.instruction.parts
        each = [
            prod(digit.count for digit in fragment.places) * nbytes // REGISTER_BYTES
            for fragment, nbytes in (
                (self.instruction.sums, self.instruction.sum_dtype.nbytes),
                (self.instruction.left, self.instruction.dtype.nbytes),
                (self.instruction.right, self.instruction.dtype.nbytes),
            )
        ]
        return high * wide * each[0] + parts * (high * each[1] + wide * each[2])

    @property
    def threads(self) -> int:
        return prod(self.warps) * prod(digit.count for digit in self.instruction.sums.threads)


def candidate_tiles(
    nest: Nest, reduction: Reduction, nodes: NodeInfos, target: Target
) -> Iterator[TensorCoreTile]:
    """Yield the tiles of a product that fit a device, the largest blocks first."""
    instruction, blocks = find_unit(MatrixInstruction, reduction, target), target.thread_blocks
    if blocks is None or isinstance(instruction, Obstacle):
        return
    axes = block_tiles.product_axes(nest, nodes)
    if axes is None:
        return
    row, column, term, at = axes.row, axes.column, axes.term, axes.row_operand
    operands = (
        _staged(nest, reduction, nodes, blocks, at, instruction.left, (row, term)),
        _staged(nest, reduction, nodes, blocks, 1 - at, instruction.right, (column, term)),
    )
    sums, nbytes = instruction.sums, instruction.dtype.nbytes
    depth = max(instruction.terms, STAGE_ROW_BYTES // nbytes)
    for warps, (high, wide) in WARP_BLOCKS:
        tiles = high // sums.rows, wide // sums.columns
        if not all(tiles):
            continue
        joined = _joined(nest, nodes, blocks, operands[1], sums, tiles[1], depth)
        one = TensorCoreTile(instruction, axes, operands, warps, tiles, depth, 1, joined=joined)
        most = min(MAX_STAGES, blocks.local_bytes // one.stage_bytes)
        is_small = one.registers + WARP_REGISTERS <= blocks.registers
        if most < 2 or not is_small or one.threads > blocks.max_threads:
            continue
        stages = max(2, min(most, ceil_div(term.extent, depth)))
        yield replace(one, stages=stages)


def _joined(
    nest: Nest,
    nodes: NodeInfos,
    blocks: ThreadBlocks,
    columns: StagedOperand,
    sums: Fragment,
    count: int,
    depth: int,
) -> int:
    """Return the instructions along the columns whose cells a thread stores in one vector.

    A column of the product can be any of an instruction if it is a row of shared memory. Where
    columns are neighbors there, they are loaded together, and are neighbors in an instruction.

    Args:
        count: The instructions of a warp along the columns.
    """
    nbytes = max(nodes[store.node].dtype.nbytes for store in nest.epilogue)
    own = _own_columns(sums)
    most = min(count, blocks.vector_bytes // (own * nbytes))
    # the threads that copy neighboring rows are those of one digit, and have a group of rows
    digit, copies = sums.threads[0].count, sums.threads[-1].count
    is_across = columns.axes[1] not in {axis.name for axis in nest.reduced}
    is_cyclic = columns.width * copies == depth and most * own >= digit
    if is_across or not is_cyclic or digit % own or count % (digit // own):
        return 1
    return digit // own


def _own_columns(sums: Fragment) -> int:
    """Return the neighboring columns of an instruction that one thread has."""
    return next((d.count for d in sums.places if d.columns == 1), 1)


def skip_after(rows: int, pitch: int, joined: int, dtype: DType) -> int:
    """Return the cells to skip after so many rows, by which the rows that threads load together are
    in different banks.

    Args:
        rows: The rows of a group, of which an instruction has those of one thread in each group.
    """
    unit, own = SHARED_ACCESS_BYTES // dtype.nbytes, rows // joined

    def turns(skip: int) -> int:
        units = [
            (at // own * (rows * pitch + skip) + at % own * pitch) // unit % SHARED_TURN_THREADS
            for at in range(SHARED_TURN_THREADS)
        ]
        return max(units.count(each) for each in units)

    return min(range(0, SHARED_TURN_THREADS * unit, unit), key=lambda skip: (turns(skip), skip))


def find_tensor_core_tile(
    nest: Nest, reduction: Reduction, nodes: NodeInfos, target: Target
) -> TensorCoreTile | Obstacle:
    """Return the tile of a product: the largest of which there are enough for all processors, and
    that is not much larger than the product; or the reason why there is none.
    """
    blocks = target.thread_blocks
    if blocks is None:
        return Obstacle.ABSENT
    instruction = find_unit(MatrixInstruction, reduction, target)
    if isinstance(instruction, Obstacle):
        return instruction
    axes = block_tiles.product_axes(nest, nodes)
    if axes is None:
        return Obstacle.AXES
    is_small = min(axes.row.extent, axes.column.extent) < MIN_BLOCK_TILE
    last: TensorCoreTile | None = None
    for last in candidate_tiles(nest, reduction, nodes, target):
        if is_small or axes.term.extent < BLOCK_TERMS:
            return Obstacle.SIZE
        if axes.fills(last.cells, blocks.processors):
            return last
    return last or Obstacle.RESOURCES


def find_tensor_core_schedule(
    nest: Nest, nodes: NodeInfos, target: Target
) -> transforms.Schedule | Obstacle:
    """Return a schedule with tiles of warps, or the reason why there is none."""
    tile = find_tensor_core_tile(nest, nest.required_reduction, nodes, target)
    if isinstance(tile, Obstacle):
        return tile
    nbytes = tile.instruction.dtype.nbytes
    supertile = tile.axes.supertile(tile.cells, nbytes, RESIDENT_BLOCKS, target)
    return schedule_tensor_core_tile(nest, replace(tile, supertile=supertile))


def _staged(
    nest: Nest,
    reduction: Reduction,
    nodes: NodeInfos,
    blocks: ThreadBlocks,
    position: int,
    fragment: Fragment,
    axes: tuple[LoopAxis, LoopAxis],
) -> StagedOperand:
    """Return the form of an operand in shared memory.

    Args:
        axes: Its axis of cells, and its axis of terms.
    """
    cells, terms = axes
    factor = reduction.factors[position]
    formats = {unwidened(each).dtype for each in reduction.factors}
    expr = unwidened(factor) if len(formats) == 1 else factor
    loads = [each for each in walk(expr) if isinstance(each, Load)]
    steps = strides(nest.axes, loads, nodes)
    is_across = steps.get(cells.name) == 1 and steps.get(terms.name) != 1
    outer, inner = (terms, cells) if is_across else (cells, terms)
    width = block_tiles.copy_width(expr, nest.axes, inner.name, nodes, blocks.asynchronous_copies)
    return StagedOperand(position, fragment, (outer.name, inner.name), width, expr.dtype)


def pitch(fragment: Fragment, dtype: DType, cells: int, is_across: bool) -> int:
    """Return the cells from one row of an operand in shared memory to the next one: the fewest by
    which the fewest threads wait for each other.

    Args:
        is_across: True if a row belongs to a term, False if it belongs to a cell.
    """
    unit = SHARED_ACCESS_BYTES // dtype.nbytes
    least = round_up(cells, unit)
    candidates = range(least, least + BANKS * BANK_BYTES // dtype.nbytes, unit)
    return min(candidates, key=lambda each: conflicts(fragment, dtype, each, is_across))


def conflicts(fragment: Fragment, dtype: DType, pitch: int, is_across: bool) -> int:
    """Return the turns that the banks of shared memory take to load one register of a fragment.

    Rows are loaded by the widest accesses if they run along the terms, or cells are so narrow that
    registers hold two of them; cell by cell otherwise.
    """
    nbytes = dtype.nbytes
    if nbytes < REGISTER_BYTES or not is_across:
        words = range(0, SHARED_ACCESS_BYTES, BANK_BYTES)
        rows = range(SHARED_TURN_THREADS)
        turns = [[row * pitch * nbytes + at for row in rows for at in words]]
    else:
        is_left = fragment.threads[0].rows > 0
        threads = prod(digit.count for digit in fragment.threads)
        cells = [fragment.cell(thread, 0) for thread in range(threads)]
        swapped = [(row, column) if is_left else (column, row) for row, column in cells]
        turns = [[(term * pitch + cell) * nbytes for cell, term in swapped]]
    return max(
        len({at // BANK_BYTES for at in turn if at // BANK_BYTES % BANKS == bank})
        for turn in turns
        for bank in range(BANKS)
    )


def schedule_tensor_core_tile(nest: Nest, tile: TensorCoreTile) -> transforms.Schedule:
    """Return the schedule of a product in tiles of warps."""
    sums = tile.instruction.sums
    i, j, k = tile.axes.names
    splits = transforms.Splits()
    leaves: dict[Digit, str] = {}
    vector, joined = "", list[str]()
    row_digits = [(digit.rows, digit) for digit in sums.digits if digit.rows]
    column_digits = [(digit.columns, digit) for digit in sums.digits if digit.columns]
    height, width = tile.cells
    outer, inner, tile_rows = block_tiles.split_tiles(splits, i, height, tile.supertile)
    tile_of_columns, tile_columns = splits.cut(j, width)
    warps: list[str] = []
    steps: list[str] = []
    for axis, block, size, together, count, digits in (
        (tile_rows, height, sums.rows, 1, tile.warps[0], row_digits),
        (tile_columns, width, sums.columns, tile.joined, tile.warps[1], column_digits),
    ):
        rest = size * together
        warp, step, name = splits.cut(axis, block // count, rest)
        warps.append(warp)
        steps.append(step)
        *before, (_, last) = sorted(digits, key=lambda each: -each[0])
        for _, digit in before:
            rest //= digit.count
            leaves[digit], name = splits.cut(name, rest)
        if together > 1:
            vector = name
            *joined, name = splits.cut(name, rest // together)
        leaves[last] = name
    stage, terms = splits.cut(k, tile.depth)
    products, term = splits.cut(terms, tile.instruction.terms)
    batches, reduced = tile.axes.others(nest)
    grid = (*batches, *outer, tile_of_columns, *inner)
    block_axes = (*warps, *(leaves[digit] for digit in sums.threads))
    rows, columns = (
        next(leaves[d] for d in sums.places if bool(d.rows) is is_row) for is_row in (True, False)
    )
    steps = [products, *steps, *joined]
    operands = sorted(tile.operands, key=lambda each: each.position)
    parts = {i: tile_rows, j: tile_columns, k: terms}
    return (
        *splits,
        transforms.SetKind(AxisKind.GRID, grid),
        transforms.SetKind(AxisKind.BLOCK, block_axes),
        transforms.Order((*grid, *block_axes, *reduced, stage, *steps, rows, columns, term)),
        *transforms.set_kinds(AxisKind.UNROLLED, (*steps, rows, columns)),
        # neighboring cells of a thread are stored together
        *transforms.set_kinds(
            AxisKind.VECTOR, [vector or columns] if transforms.has_neighbors(columns) else []
        ),
        transforms.TileMatrix(rows, columns, term),
        *(
            transforms.Pack(each.position, stage, (parts[each.axes[0]], parts[each.axes[1]]))
            for each in operands
        ),
        transforms.Pipeline(stage, tile.stages),
        *(tile.form(each) for each in operands),
        transforms.AccumulateAt((*reduced, stage)[0], fused=True),
    )
