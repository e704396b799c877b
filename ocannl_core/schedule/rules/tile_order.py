"""The order in which thread blocks compute the tiles of a product.

Blocks that run at the same time, a wave, share rows and columns of operands in the last cache. Row
by row, a wave of a wide product has all of the columns and a few rows. In *supertiles* of several
rows of tiles, column by column, it has about as many rows as columns, and loads less:

    0 1 2 3 4 5 6 7         0 2 4 6 8 ...
    8 9 ...           -->   1 3 5 7 9 ...       two rows of tiles in a supertile

The last supertile may have more rows than the product; their blocks have nothing to do.
"""

from __future__ import annotations

from collections.abc import Iterator

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.rounding import ceil_div, round_up

MAX_SUPERTILE_ROWS = 16
"""The rows of tiles in a supertile, at most."""
_MOST_WAVES = 64
"""The waves of which the traffic is counted; for more, it is extrapolated."""


@dataclass(frozen=True, slots=True)
class TileGrid:
    """The tiles of a product."""

    rows: int
    columns: int
    row_bytes: int
    """The memory of an operand that the tiles of a row share."""
    column_bytes: int
    """The memory of the other operand that the tiles of a column share."""

    @classmethod
    def of(cls, extents: tuple[int, int], tile: tuple[int, int], line_bytes: int) -> TileGrid:
        """Return the tiles of a product.

        Args:
            line_bytes: The memory of the terms of a row or a column.
        """
        counts = (ceil_div(extent, size) for extent, size in zip(extents, tile, strict=True))
        return cls(*counts, *(size * line_bytes for size in tile))


def tile_of_block(grid: TileGrid, supertile: int, block: int) -> tuple[int, int]:
    """Return the row and the column of a tile; rows from `grid.rows` on are not computed."""
    number, inside = divmod(block, supertile * grid.columns)
    column, row = divmod(inside, supertile)
    return supertile * number + row, column


def block_count(grid: TileGrid, supertile: int) -> int:
    """Return the number of thread blocks, those without a tile included."""
    return round_up(grid.rows, supertile) * grid.columns


def waves(grid: TileGrid, supertile: int, wave: int) -> Iterator[tuple[set[int], set[int]]]:
    """Yield the rows and the columns of the tiles of each wave of blocks."""
    count = block_count(grid, supertile)
    for first in range(0, count, wave):
        tiles = [
            tile_of_block(grid, supertile, block)
            for block in range(first, min(count, first + wave))
        ]
        known = [(row, column) for row, column in tiles if row < grid.rows]
        yield {row for row, _ in known}, {column for _, column in known}


def loaded_bytes(grid: TileGrid, supertile: int, wave: int, cache_bytes: int) -> float:
    """Return an estimate of the bytes of operands that all blocks load into the last cache.

    Each wave loads its rows and columns, except for rows and columns of the wave before if both fit
    into the cache.
    """
    before: tuple[set[int], set[int]] = set(), set()
    total, counted = 0, 0
    for rows, columns in waves(grid, supertile, wave):
        if counted == _MOST_WAVES:
            break
        reach = _nbytes(grid, rows | before[0], columns | before[1])
        kept = before if reach <= cache_bytes else (set[int](), set[int]())
        total += _nbytes(grid, rows - kept[0], columns - kept[1])
        before = rows, columns
        counted += 1
    return total * ceil_div(block_count(grid, supertile), wave) / max(counted, 1)


def supertile_rows(grid: TileGrid, wave: int, cache_bytes: int) -> int:
    """Return the rows of tiles in a supertile: 1, which is row by row, if the operands of a wave
    stay in the last cache; else the number with the least traffic.

    Args:
        cache_bytes: The last cache; 0 if unknown.
    """
    first = next(waves(grid, 1, wave), (set(), set()))
    if not cache_bytes or _nbytes(grid, *first) <= cache_bytes:
        return 1
    return min(
        (
            rows
            for rows in range(1, min(MAX_SUPERTILE_ROWS, grid.rows) + 1)
            if 8 * (-grid.rows % rows) <= grid.rows  # few blocks have nothing to do
        ),
        key=lambda rows: (loaded_bytes(grid, rows, wave, cache_bytes), rows),
    )


def _nbytes(grid: TileGrid, rows: set[int], columns: set[int]) -> int:
    return len(rows) * grid.row_bytes + len(columns) * grid.column_bytes
