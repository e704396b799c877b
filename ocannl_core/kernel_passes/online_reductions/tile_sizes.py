"""The tiles of a chain of online reductions: its rows and columns in shared memory and registers."""

from __future__ import annotations

from math import prod

from ocannl_core.fast_dataclass import dataclass
from ocannl_core.kernel_passes.online_reductions.chain import Chain
from ocannl_core.kernels.nest import KernelNest
from ocannl_core.kernels.nodes import NodeInfos
from ocannl_core.kernels.transforms import FuseRows, Schedule, WalkTiles
from ocannl_core.loopir.nodes import Load
from ocannl_core.loopir.traverse import walk
from ocannl_core.machine_model import (
    CHAIN_REGISTERS,
    CHAIN_ROW_REGISTERS,
    CHAIN_THREADS,
    MAX_IDLE_WALK,
    WALK_TERMS,
)
from ocannl_core.schedule.heuristics.thread_blocks import fused
from ocannl_core.schedule.heuristics.warp_matrix_tiles import find_warp_tile
from ocannl_core.target import Target, ThreadBlocks

_ROWS, _COLUMNS = (8, 4, 2, 1), (4, 2, 1)
"""The rows and columns of a thread, of which the rule chooses."""


@dataclass(frozen=True, slots=True)
class ChainTile:
    """The tile of scores that a thread block has at a time.

    Neighbouring threads have neighbouring columns. The threads with the same rows are neighbours.

    Attributes:
        threads: The threads along rows and columns, powers of two.
        rows: The rows of a thread.
        columns: Its columns.
        cells: Its cells of each row of the second product.
        lanes: The neighbouring ones of those.
        vector_bytes: The bytes that a thread loads at once, at most.
        is_fused: True if products are added without rounding them first.
    """

    threads: tuple[int, int]
    rows: int
    columns: int
    cells: int
    lanes: int
    vector_bytes: int
    is_fused: bool

    @property
    def block_rows(self) -> int:
        return self.threads[0] * self.rows

    @property
    def block_columns(self) -> int:
        return self.threads[1] * self.columns

    @property
    def block_cells(self) -> int:
        return self.threads[1] * self.cells

    def schedule(self, chain: Chain) -> Schedule:
        """Return the schedule that the kernel of a chain states: that of its first nest."""
        axes = tuple(axis.name for axis in (*chain.batch, chain.rows))
        rows = FuseRows(axes, self.block_rows, threads=prod(self.threads))
        return rows, WalkTiles(chain.columns.name, self.block_columns)


def choose_tile(
    chain: Chain, product: KernelNest, nodes: NodeInfos, target: Target
) -> ChainTile | None:
    """Return the tile of a chain; None if none fits, or if too few thread blocks would walk along
    too many columns.

    Args:
        chain: The chain.
        product: The nest of its first product.
        nodes: Extents and formats.
        target: The device.
    """
    blocks = target.thread_blocks
    assert blocks is not None
    across = min(16 if blocks.subgroup >= 16 else 8, _power_below(blocks.max_threads))
    if blocks.has_shuffles:
        across = min(across, _power_below(blocks.subgroup))
    down = max(1, _power_below(min(blocks.threads, CHAIN_THREADS)) // across)
    while down > 1 and down >= 2 * chain.rows.extent:
        down //= 2
    width = -(-chain.cells.extent // across)
    lanes = _lanes(chain, nodes, blocks, width)
    width = -(-width // lanes) * lanes
    batch = prod(axis.extent for axis in chain.batch)
    reduction = product.reduction
    assert reduction is not None
    if find_warp_tile(product, reduction, nodes, blocks) is not None:
        return None  # faster apart, on matrix instructions
    found: dict[ChainTile, float] = {}
    for rows in _ROWS:
        for columns in _COLUMNS:
            tile = ChainTile(
                (down, across),
                rows,
                columns,
                width,
                lanes,
                blocks.vector_bytes,
                fused(product, target),
            )
            is_narrow = rows == _ROWS[-1] or tile.block_rows < 2 * chain.rows.extent
            is_short = columns == _COLUMNS[-1] or tile.block_columns < 2 * chain.columns.extent
            registers = _registers(rows, columns, width)
            if registers * max(1, reduction.dtype.nbytes // 4) > blocks.registers or not (
                is_narrow and is_short
            ):
                continue
            if shared_bytes(chain, tile) > blocks.local_bytes // 2:
                continue
            count = -(-chain.rows.extent // tile.block_rows) * batch
            loads = (rows + columns) / (rows * columns) + (rows + width) / (rows * width)
            found[tile] = min(1.0, count / blocks.processors) / loads
    if not found:
        return None
    tile = max(found, key=lambda each: found[each])
    count = -(-chain.rows.extent // tile.block_rows) * batch
    is_idle = MAX_IDLE_WALK * count < blocks.processors
    if is_idle and chain.columns.extent > MAX_IDLE_WALK * tile.block_columns:
        return None
    return tile


def _registers(rows: int, columns: int, cells: int) -> int:
    """Return the registers of a thread: its scores, results, statistics and operands."""
    operands = WALK_TERMS * (rows + max(columns, min(cells, _COLUMNS[0])))
    return rows * (columns + cells + CHAIN_ROW_REGISTERS) + operands + CHAIN_REGISTERS


def _lanes(chain: Chain, nodes: NodeInfos, blocks: ThreadBlocks, width: int) -> int:
    """Return the neighbouring cells of a row that a thread stores at once."""
    sizes = [nodes[store.node].dtype.nbytes for store in chain.epilogue]
    sizes += [
        nodes[each.node].dtype.nbytes
        for store in chain.epilogue
        for each in walk(store.value)
        if isinstance(each, Load)
    ]
    lanes = max(1, blocks.vector_bytes // max(sizes))
    if chain.cells.bound is not None or chain.cells.extent % lanes:
        return 1
    return lanes if lanes > 1 and width >= lanes else 1


def shared_bytes(chain: Chain, tile: ChainTile) -> int:
    """Return the shared memory of a thread block."""
    depth = padded_terms(chain)
    product, size = chain.product, chain.weighted.result.dtype.nbytes
    rows, columns, cells = tile.block_rows, tile.block_columns, tile.block_cells
    return (
        rows * depth * product.left.dtype.nbytes
        + columns * depth * product.right.dtype.nbytes
        + columns * cells * chain.operand.dtype.nbytes
        + rows * (columns + tile.threads[1]) * size
    )


def padded_terms(chain: Chain) -> int:
    """Return the cells from one row of a factor to the next one in shared memory: an odd number of
    vectors, so that neighbouring rows begin in different banks.
    """
    terms = -(-chain.product.terms.extent // WALK_TERMS)
    return WALK_TERMS * (terms + 1 - terms % 2)


def _power_below(number: int) -> int:
    return 1 << max(0, number.bit_length() - 1)
