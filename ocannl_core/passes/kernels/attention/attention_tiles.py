"""The tile sizes of flash attention: cells in shared memory and in registers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.rounding import ceil_div, power_below, round_up
from ocannl_core.ir.indexing import VarIndex
from ocannl_core.ir.kernels.nest import Nest, iterations
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.kernels.product_status import Obstacle, ProductStatus, ProductUnit
from ocannl_core.ir.kernels.transforms import FuseRows, KernelSchedule, WalkTiles
from ocannl_core.ir.loops.conversions import unwidened
from ocannl_core.ir.loops.nodes import Expr, Load
from ocannl_core.ir.loops.traverse import substitute_in_expr, walk
from ocannl_core.ir.matrix_units import Digit, MatrixInstruction
from ocannl_core.ir.target import Target, ThreadBlocks
from ocannl_core.passes.kernels.attention.fused_attention import FusedAttention
from ocannl_core.schedule import machine_model as machine
from ocannl_core.schedule.rules.block_tiles import fused
from ocannl_core.schedule.rules.tensor_core_schedules import TensorCoreTile, find_tensor_core_tile
from ocannl_core.schedule.rules.unit_choice import find_unit


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """The tile of scores that a thread block has at a time.

    The threads with the same rows are neighbors; neighboring threads have neighboring columns.
    """

    threads: tuple[int, int]
    """The threads along rows and columns, powers of two."""
    rows: int
    row_step: int
    """The rows from one row of a thread to the next."""
    columns: int
    column_lanes: int
    """The neighboring columns of a thread."""
    cells: int
    """Its cells of each row of the second product."""
    lanes: int
    vector_bytes: int
    """The bytes that a thread loads at once, at most."""
    is_fused: bool
    """True if products are added without rounding them first."""
    instruction: MatrixInstruction | None = None
    """The instruction that multiplies; None if each thread multiplies numbers."""
    obstacle: Obstacle | None = None
    """The reason why no instruction multiplies; None if one does."""

    @property
    def block_rows(self) -> int:
        return self.threads[0] * self.rows

    @property
    def block_columns(self) -> int:
        return self.threads[1] * self.columns

    @property
    def block_cells(self) -> int:
        return self.threads[1] * self.cells

    def products(self, nests: Iterable[Nest]) -> tuple[ProductStatus, ...]:
        """Return the status of the products of an attention."""
        unit = ProductUnit.MATRIX_INSTRUCTIONS
        refusals = () if self.obstacle is None else ((unit, self.obstacle),)
        used = unit if self.instruction is not None else ProductUnit.REGISTER_TILES
        return tuple(ProductStatus(nest.epilogue[0].node, used, refusals) for nest in nests)

    @property
    def tile_rows(self) -> int:
        """The rows of a thread in a tile of the instruction."""
        assert self.instruction is not None
        return prod(each.count for each in self.instruction.sums.places if each.rows)

    def staged(self, factor: Expr) -> Expr:
        """Return the expression of a factor that is in shared memory."""
        return factor if self.instruction is None else unwidened(factor)

    def schedule(self, attention: FusedAttention) -> KernelSchedule:
        """Return the schedule that the kernel of an attention states: its first nest's."""
        axes = tuple(axis.name for axis in (*attention.batch, attention.rows))
        rows = FuseRows(axes, self.block_rows, threads=prod(self.threads))
        on_tiles = self.instruction is not None
        return rows, WalkTiles(attention.columns.name, self.block_columns, on_tiles)


@dataclass(frozen=True, slots=True)
class SharedArrays:
    """The arrays that the threads of a block share.

    Attributes:
        terms: The terms of each product, with those that fill up vectors or instructions.
        factors: The name, the expression and the extents of each array: the products' factors of
            rows, their factors of columns, the last product's factor of columns, and the weights.
        reused: The product whose factor of columns is also the last product's, which has no array
            then; None if there is none.
    """

    terms: tuple[int, ...]
    factors: tuple[tuple[str, Expr, tuple[int, int]], ...]
    reused: int | None


def shared_arrays(attention: FusedAttention, tile: AttentionTile) -> SharedArrays:
    """Return the arrays that the threads of a block share."""
    rows, columns, cells = tile.block_rows, tile.block_columns, tile.block_cells
    if tile.instruction is None:
        depth = step = machine.WALK_TERMS
        pitches = cells, columns + tile.threads[1]
    else:
        depth, step = (
            tile.instruction.terms,
            machine.SHARED_ACCESS_BYTES // tile.instruction.dtype.nbytes,
        )
        pitches = _apart(cells, step), _apart(columns, step)
    terms = tuple(round_up(each.terms.extent, depth) for each in attention.products)
    reused = _reused_factor(attention)
    products = list(zip(attention.products, terms, strict=True))
    factors = [("rows", each.left, (rows, _apart(own, step))) for each, own in products]
    for at, (each, own) in enumerate(products):
        width = max(own, cells) if at == reused else own
        factors.append(("columns", each.right, (columns, _apart(width, step))))
    if reused is None:
        factors.append(("operand", attention.operand, (columns, pitches[0])))
    factors.append(("weights", attention.output.term, (rows, pitches[1])))
    return SharedArrays(terms, tuple(factors), reused)


def _reused_factor(attention: FusedAttention) -> int | None:
    """Return the product that shares its factor of columns with the last product."""
    cells = VarIndex(attention.head_axis.var)
    for at, product in enumerate(attention.products):
        renamed = substitute_in_expr(product.right, {product.terms.var: cells})
        if product.terms.domain == attention.head_axis.domain and renamed == attention.operand:
            return at
    return None


def _apart(cells: int, vector: int) -> int:
    """Return the least odd number of vectors with so many cells, in cells: neighboring rows then
    begin in different banks of shared memory.
    """
    count = ceil_div(cells, vector)
    return vector * (count + 1 - count % 2)


def shared_bytes(attention: FusedAttention, tile: AttentionTile) -> int:
    """Return the shared memory of a thread block."""
    values = sum(each.value.dtype.nbytes for each in attention.column_invariants)
    factors = sum(
        prod(dims) * tile.staged(each).dtype.nbytes
        for _, each, dims in shared_arrays(attention, tile).factors
    )
    return factors + tile.block_columns * values


def choose_tile(
    attention: FusedAttention, products: Sequence[Nest], nodes: NodeInfos, target: Target
) -> AttentionTile | None:
    """Return the tile of an attention; None if none fits, or none is as fast as products apart."""
    blocks = target.thread_blocks
    assert blocks is not None
    first = products[0].reduction
    assert first is not None
    instruction = _common_instruction(attention, products, target)
    alone = find_tensor_core_tile(products[0], first, nodes, target)
    on_tiles = isinstance(alone, TensorCoreTile)
    if on_tiles and instruction is None:
        return None  # instructions multiply them apart, and no kernel keeps up without
    tiles = (
        _instruction_tiles(attention, instruction, blocks)
        if on_tiles and instruction is not None
        else _number_tiles(attention, products[0], nodes, target)
    )
    batch = iterations(attention.batch)
    found: dict[AttentionTile, float] = {}
    for tile in tiles:
        if shared_bytes(attention, tile) <= blocks.local_bytes // machine.RESIDENT_BLOCKS:
            count = ceil_div(attention.rows.extent, tile.block_rows) * batch
            found[tile] = min(1.0, count / blocks.processors) / _operations(attention, tile)
    if not found:
        return None
    tile = max(found, key=lambda each: found[each])
    count = ceil_div(attention.rows.extent, tile.block_rows) * batch
    is_idle = machine.MAX_IDLE_WALK * count < blocks.processors
    if is_idle and attention.columns.extent > machine.MAX_IDLE_WALK * tile.block_columns:
        return None
    return replace(tile, obstacle=alone if isinstance(alone, Obstacle) else None)


def _operations(attention: FusedAttention, tile: AttentionTile) -> float:
    """Return the instructions of a thread for each of its scores, loads of operands included."""
    terms, cells = sum(each.terms.extent for each in attention.products), attention.head_axis.extent
    statistics = machine.SCORE_OPERATIONS + (tile.cells + machine.ROW_OPERATIONS) / tile.columns
    if tile.instruction is not None:
        products = (terms + cells) / (tile.instruction.terms * machine.WALK_TERMS)
        return statistics + products * (1 + 1 / tile.rows) * tile.instruction.parts**2
    loads = 1 / tile.rows + 1 / tile.columns, 1 / tile.rows + 1 / tile.cells
    return statistics + terms * (1 + loads[0]) + cells * (1 + loads[1])


def _number_tiles(
    attention: FusedAttention, product: Nest, nodes: NodeInfos, target: Target
) -> Iterator[AttentionTile]:
    """Yield the tiles whose threads multiply numbers, as far as their registers suffice."""
    blocks = target.thread_blocks
    assert blocks is not None
    most, few = machine.ATTENTION_COLUMN_THREADS
    across = min(most if blocks.subgroup >= most else few, power_below(blocks.max_threads))
    if blocks.has_shuffles:
        across = min(across, power_below(blocks.subgroup))
    if across < 2:
        return
    down = max(1, power_below(min(blocks.threads, machine.ATTENTION_THREADS)) // across)
    while down > 1 and down >= 2 * attention.rows.extent:
        down //= 2
    cells = ceil_div(attention.head_axis.extent, across)
    lanes = _lanes(attention, nodes, blocks, cells)
    cells = round_up(cells, lanes)
    size = max(1, attention.products[0].result.dtype.nbytes // machine.REGISTER_BYTES)
    common = cells, lanes, blocks.vector_bytes, fused(product, target)
    least = machine.ATTENTION_ROWS[-1], machine.ATTENTION_COLUMNS[-1]
    for rows in machine.ATTENTION_ROWS:
        for columns in machine.ATTENTION_COLUMNS:
            tile = AttentionTile((down, across), rows, down, columns, 1, *common)
            operands = machine.WALK_TERMS * (
                rows + max(columns, min(cells, machine.ATTENTION_COLUMNS[0]))
            )
            registers = _held_registers(attention, rows, columns, cells) + operands
            if registers * size <= blocks.registers and _is_filled(attention, tile, *least):
                yield tile


def _is_filled(attention: FusedAttention, tile: AttentionTile, rows: int, columns: int) -> bool:
    """Return True if no smaller tile has as few blocks.

    Args:
        rows: The fewest rows of a thread.
        columns: Its fewest columns.
    """
    is_narrow = tile.rows == rows or tile.block_rows < 2 * attention.rows.extent
    is_short = tile.columns == columns or tile.block_columns < 2 * attention.columns.extent
    return is_narrow and is_short


def _held_registers(attention: FusedAttention, rows: int, columns: int, cells: int) -> int:
    scores = len(attention.products) * columns
    if attention.maximum is not None or attention.row_sums:
        return (
            rows * (scores + cells + machine.ATTENTION_ROW_REGISTERS) + machine.ATTENTION_REGISTERS
        )
    own = rows * (scores + cells + len(attention.row_invariants))
    return own + columns * len(attention.column_invariants) + machine.ATTENTION_ADDRESS_REGISTERS


def _lanes(attention: FusedAttention, nodes: NodeInfos, blocks: ThreadBlocks, cells: int) -> int:
    """Return the neighboring cells of a row that a thread stores at once."""
    sizes = [nodes[store.node].dtype.nbytes for store in attention.epilogue]
    sizes += [
        nodes[each.node].dtype.nbytes
        for store in attention.epilogue
        for each in walk(store.value)
        if isinstance(each, Load)
    ]
    lanes = max(1, blocks.vector_bytes // max(sizes))
    if attention.head_axis.bound is not None or attention.head_axis.extent % lanes:
        return 1
    return lanes if cells >= lanes else 1


def _common_instruction(
    attention: FusedAttention, products: Sequence[Nest], target: Target
) -> MatrixInstruction | None:
    found = {find_unit(MatrixInstruction, nest.required_reduction, target) for nest in products}
    instruction, *others = found
    if others or isinstance(instruction, Obstacle) or not _has_neighbors_in_rows(instruction):
        return None
    factors = [attention.operand, attention.output.term]
    factors += [factor for each in attention.products for factor in (each.left, each.right)]
    are_staged = all(unwidened(each).dtype is instruction.dtype for each in factors)
    return instruction if are_staged else None


def _has_neighbors_in_rows(instruction: MatrixInstruction) -> bool:
    """Return True if the threads of a subgroup have the rows and columns of an attention's tile:
    neighboring threads have neighboring columns of a row.
    """
    match instruction.sums.threads, instruction.sums.places:
        case (Digit(high, rows=1), Digit(columns=wide)), (
            Digit(rows=step),
            Digit(lanes, columns=1),
        ):
            return (step, wide) == (high, lanes)
        case _:
            return False


def _instruction_tiles(
    attention: FusedAttention, instruction: MatrixInstruction, blocks: ThreadBlocks
) -> Iterator[AttentionTile]:
    """Yield the tiles of an instruction, as far as the registers of a thread suffice."""
    high = prod(each.count for each in instruction.sums.places if each.rows)
    step, across = (each.count for each in instruction.sums.threads)
    lanes = instruction.sums.places[1].count
    cells = ceil_div(attention.head_axis.extent, across * lanes) * lanes
    for tiles in machine.ATTENTION_TILES:
        for columns in machine.ATTENTION_TILE_COLUMNS:
            warps = max(1, min(blocks.threads, machine.ATTENTION_THREADS) // (step * across))
            while warps > 1 and warps * step * high * tiles >= 2 * attention.rows.extent:
                warps //= 2
            rows = high * tiles
            own = lanes * columns
            if own * across % instruction.terms:
                continue
            tile = AttentionTile(
                (warps * step, across),
                rows,
                step,
                own,
                lanes,
                cells,
                lanes,
                blocks.vector_bytes,
                True,
                instruction,
            )
            registers = _held_registers(attention, rows, own, cells)
            registers += instruction.parts * machine.ATTENTION_FRAGMENT_REGISTERS
            # few threads share the registers that others leave
            room = min(
                blocks.registers * blocks.threads // prod(tile.threads),
                machine.MAX_NUMBER_REGISTERS,
            )
            is_filled = _is_filled(
                attention, tile, high, lanes * machine.ATTENTION_TILE_COLUMNS[-1]
            )
            if registers <= room and is_filled:
                yield tile
