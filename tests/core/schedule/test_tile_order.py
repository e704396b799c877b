"""The order of tiles: every tile has one block, and supertiles load less into the last cache."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ocannl_core.ir.indexing import IndexVar, value_of
from ocannl_core.ir.kernels.nest_plan import NestKernel
from ocannl_core.ir.loops.nodes import AxisKind, Block, For, Stmt
from ocannl_core.ir.target import Target, ThreadBlocks
from ocannl_core.passes.kernels.pipeline import nest_plan
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.schedule.apply.apply_schedule import apply_schedule
from ocannl_core.schedule.rules.block_rules import block_schedule
from ocannl_core.schedule.rules.tile_order import (
    TileGrid,
    block_count,
    loaded_bytes,
    supertile_rows,
    tile_of_block,
)
from ocannl_core.testing.parser.loops import parse

COUNTS = st.integers(1, 40)


@given(rows=COUNTS, columns=COUNTS, supertile=st.integers(1, 17))
def test_every_tile_has_one_block(rows: int, columns: int, supertile: int) -> None:
    grid = TileGrid(rows, columns, 1, 1)
    count = block_count(grid, supertile)
    found = [tile_of_block(grid, supertile, block) for block in range(count)]
    assert len(set(found)) == count
    computed = [tile for tile in found if tile[0] < rows]
    assert sorted(computed) == [(row, column) for row in range(rows) for column in range(columns)]
    assert count - len(computed) < supertile * columns


@given(rows=COUNTS, columns=COUNTS, wave=st.integers(1, 300), unit=st.integers(1, 1000))
def test_the_chosen_order_loads_the_least_and_leaves_few_blocks_idle(
    rows: int, columns: int, wave: int, unit: int
) -> None:
    grid, cache = TileGrid(rows, columns, unit, 500), 4000
    chosen = supertile_rows(grid, wave, cache)
    assert loaded_bytes(grid, chosen, wave, cache) <= loaded_bytes(grid, 1, wave, cache)
    assert 8 * (block_count(grid, chosen) - rows * columns) <= rows * columns


def test_waves_that_fit_into_the_cache_run_row_by_row() -> None:
    grid = TileGrid(64, 64, 4 << 20, 4 << 20)
    assert supertile_rows(grid, 264, 1 << 40) == supertile_rows(grid, 264, 0) == 1
    chosen = supertile_rows(grid, 264, 50 << 20)
    assert chosen > 8
    traffic = [loaded_bytes(grid, each, 264, 50 << 20) for each in (1, chosen)]
    assert traffic[1] < 0.55 * traffic[0]


def grid_of(body: Stmt) -> list[For]:
    """Return the loops of the grid, outermost first."""
    found: list[For] = []
    while isinstance(body, Block) or (isinstance(body, For) and body.kind is AxisKind.GRID):
        if isinstance(body, Block):
            body = body.stmts[-1]
            continue
        found.append(body)
        body = body.body
    return found


def test_the_grid_of_a_kernel_is_in_the_order_of_tiles() -> None:
    """Blocks are numbered in the order of the loops, and idle ones have a bound that says so."""
    rows, columns, wave = 15, 8, 8
    blocks = ThreadBlocks(256, 16, 48 << 10, 128, 4, wave // 2, vector_bytes=16)
    target = Target("device", thread_blocks=blocks, has_fma=True, cache_bytes=(1 << 10,))
    program = parse(f"""\
routine product(a: float32[{32 * rows - 9}, 16], b: float32[16, {32 * columns}], c: float32[{32 * rows - 9}, {32 * columns}]):
    for i in range({32 * rows - 9}):
        for j in range({32 * columns}):
            for k in range(16):
                c[i, j] += a[i, k] * b[k, j]""")
    plan = nest_plan(split_kernels(program), target)
    (nest,) = [step.nest for step in plan.steps if isinstance(step, NestKernel)]
    schedule = block_schedule(nest, plan.nodes, target)
    assert schedule is not None
    loops = grid_of(apply_schedule(nest, schedule, plan.nodes).body)
    extents = [loop.stop for loop in loops]
    assert len(extents) == 3
    grid, supertile = TileGrid(rows, columns, 1, 1), extents[-1]
    bound = loops[-1].bound
    assert bound is not None
    for block in range(block_count(grid, supertile)):
        rest, env = block, dict[IndexVar, int]()
        for loop in reversed(loops):
            rest, env[loop.var] = divmod(rest, loop.stop)
        row, column = tile_of_block(grid, supertile, block)
        assert env[loops[1].var] == column
        assert value_of(bound.index, env) == 32 * row
        assert (value_of(bound.index, env) < bound.maximum) == (row < rows)
