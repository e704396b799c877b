"""Loop programs whose iterations share memory and meet at barriers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ocannl_core.testing.parser.loops import parse
from ocannl_core.testing.programs import Example, example


def rows_reversed_through_group_memory() -> Example:
    """Each thread stores one cell, and after the barrier reads the one of its mirror image."""
    text = """
routine mirror(source: float32[3, 4], result: float32[3, 4]):
    for g in grid(3):
        group row: float32[4]
        for t in block(4):
            row[t] = source[g, t]
            barrier()
            result[g, t] = row[-t + 3]
"""
    cells = np.arange(12, dtype=np.float32).reshape(3, 4)
    return example(text, {"source": cells}, {"result": cells[:, ::-1]})


def neighbors_summed_in_steps() -> Example:
    """Barriers inside a serial loop; after n steps, cells are sums weighted by row n of Pascal.

    Beyond the end each thread has a cell of its own.
    """
    text = """
routine pascal(source: int32[2, 5], result: int32[2, 5]):
    for g in grid(2):
        group row: int32[10]
        for t in block(5):
            row[t] = source[g, t]
            row[t + 5] = 0
            barrier()
            for s in range(3):
                v: int32
                v = row[t] + row[t + 1]
                barrier()
                row[t] = v
                barrier()
            result[g, t] = row[t]
"""
    cells = np.array([[1, 2, 3, 4, 5], [0, 0, 0, 0, 1]], np.int32)
    # row 3 of Pascal's triangle: a + 3b + 3c + d, beyond the end nothing
    known = [[1 + 6 + 9 + 4, 2 + 9 + 12 + 5, 3 + 12 + 15, 4 + 15, 5], [0, 1, 3, 3, 1]]
    return example(text, {"source": cells}, {"result": known})


def tile_transposed_by_a_square_of_threads() -> Example:
    """Two nested BLOCK loops: all pairs of iterations meet at the barrier."""
    text = """
routine transpose(source: float32[3, 3], result: float32[3, 3]):
    for g in grid(1):
        group tile: float32[3, 3]
        for y in block(3):
            for x in block(3):
                tile[y, x] = source[y, x]
                barrier()
                result[y, x] = tile[x, y]
"""
    cells = np.arange(9, dtype=np.float32).reshape(3, 3)
    return example(text, {"source": cells}, {"result": cells.T})


def threads_keep_their_own_memory_across_barriers() -> Example:
    """Variables and THREAD memory are private: a barrier does not mix them up."""
    text = """
routine private(source: int32[4], result: int32[4]):
    for g in grid(1):
        group shared: int32[4]
        for t in block(4):
            v: int32
            thread own: int32[2]
            v = source[t] * 10
            own[1] = int32(100*t)
            shared[t] = source[t]
            barrier()
            result[t] = v + own[1] + shared[-t + 3]
"""
    arrays = {"source": np.array([1, 2, 3, 4], np.int32)}
    return example(text, arrays, {"result": [14, 123, 232, 341]})


def sums_of_neighbors() -> Example:
    """Two nested BLOCK loops reduce across iterations, in each step of a loop, and at its end."""
    text = """
routine neighbors(source: float32[2, 8], result: float32[2, 8]):
    for g in grid(1):
        for y in block(2):
            for x in block(8):
                v: float32
                v1: float32
                v = source[y, x]
                for s in range(2):
                    v1 = subgroup 2 max(v)
                    v = subgroup 4 add(v1)
                result[y, x] = v
"""
    cells = np.arange(16, dtype=np.float32).reshape(2, 8)
    # pairs have the greater number; four have twice the sum of two, then four times that
    pairs = 2 * (cells[:, 1::4] + cells[:, 3::4])
    return example(text, {"source": cells}, {"result": np.repeat(4 * pairs, 4, 1)})


BLOCKS_COPIED_AHEAD = """
routine products(a: bfloat16[16, 24], b: bfloat16[24, 8], c: float32[16, 8]):
    for g in grid(1):
        group left: bfloat16[2, 16, 24]
        group right: bfloat16[2, 16, 8]
        for i in block(8):
            for j in block(4):
                thread sums: float32[2, 2]
                for h in unrolled(2):
                    for w in unrolled(2):
                        sums[h, w] = 0.0
                for x in unrolled(2):
                    for y in copy(4):
                        left[0, i + 8*x, 4*j + y] = a[i + 8*x, 4*j + y]
                    for y in copy(2):
                        right[0, i + 8*x, 2*j + y] = b[i + 8*x, 2*j + y]
                barrier(1)
                for x in unrolled(2):
                    for y in copy(4):
                        left[1, i + 8*x, 4*j + y] = where(int32(4*j + y + 16) < int32(24), a[i + 8*x, 4*j + y + 16], 0.0)
                    for y in copy(2):
                        right[1, i + 8*x, 2*j + y] = where(int32(i + 8*x + 16) < int32(24), b[i + 8*x + 16, 2*j + y], 0.0)
                barrier(1)
                for h in tile(2):
                    for w in tile(2):
                        for k in tile(16):
                            sums[h, w] = fma(float32(left[0, 8*h + i, k]), float32(right[0, k, 2*j + w]), sums[h, w])
                barrier()
                for h in tile(2):
                    for w in tile(2):
                        for k in tile(16):
                            sums[h, w] = fma(float32(left[1, 8*h + i, k]), float32(right[1, k, 2*j + w]), sums[h, w])
                for h in unrolled(2):
                    for w in unrolled(2):
                        c[8*h + i, 2*j + w] = sums[h, w]
"""  # noqa: E501


def blocks_copied_ahead() -> Example:
    """Copies run while a product of earlier ones is added up, in the cells of a matrix instruction
    of 32 threads; the second block is padded with zeros.
    """
    return _product(BLOCKS_COPIED_AHEAD)


TILES_OF_FOUR_THREADS = """
routine products(a: float32[4, 3], b: float32[3, 4], c: float32[4, 4]):
    for g in grid(1):
        group left: float32[4, 3]
        for i in block(2):
            for j in block(2):
                thread sums: float32[2, 2]
                for y in copy(3):
                    left[2*i + j, y] = where(int32(j) < int32(2), a[2*i + j, y], 0.0)
                barrier()
                for u in unrolled(1):
                    for h in tile(2):
                        for w in tile(2):
                            sums[h, w] = 0.0
                    for h in tile(2):
                        for w in tile(2):
                            for k in tile(3):
                                sums[h, w] = fma(left[2*h + i, k], b[k, 2*j + w], sums[h, w])
                for h in unrolled(2):
                    for w in unrolled(2):
                        c[2*h + i, 2*j + w] = sums[h, w]
"""


def tiles_of_four_threads() -> Example:
    """Tiles and copies that no instruction executes are plain loops."""
    return _product(TILES_OF_FOUR_THREADS)


def _product(text: str) -> Example:
    """Return the product of two matrices of small integers, which any order adds up exactly."""
    program = parse(text)
    a, b, c = program.params
    numbers = np.random.default_rng(5)
    left, right = (numbers.integers(-4, 5, program.nodes[each].dims) for each in (a, b))
    arrays = {
        node: cells.astype(program.nodes[node].dtype.numpy)
        for node, cells in ((a, left), (b, right))
    }
    return Example(program, arrays, (), {c: (left @ right).astype(np.float32)})


WITH_BARRIERS: tuple[Callable[[], Example], ...] = (
    rows_reversed_through_group_memory,
    neighbors_summed_in_steps,
    tile_transposed_by_a_square_of_threads,
    threads_keep_their_own_memory_across_barriers,
    sums_of_neighbors,
    blocks_copied_ahead,
    tiles_of_four_threads,
)
