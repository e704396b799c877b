"""The matrix units of processors, as data.

The cycles of AMX follow from products of matrices of 64 to 2048 rows, written by hand and timed on
such a processor; schedules have not been timed on one. It starts a product of tiles every 16
cycles; the rest of 21 waits for memory. Whole tiles of fixed size are transposed, in less time than
squares of vectors.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from pathlib import Path

from ocannl_core.backend_api import (
    DotProduct,
    DType,
    MatrixUnit,
    TileCosts,
    TileProduct,
    bfloat16,
    float32,
    int8,
    int32,
    uint8,
)

DOT_PRODUCTS = (DotProduct(bfloat16, terms=2, least_terms=8),)
"""VDPBF16PS."""
DOT_PRODUCTS_OF_BYTES = (
    DotProduct(uint8, terms=4, least_terms=8, other=int8, sum_dtype=int32),
    DotProduct(int8, terms=4, least_terms=8, sum_dtype=int32),
    DotProduct(uint8, terms=4, least_terms=8, sum_dtype=int32),
)
"""VPDPBUSD, or two VPMADDWD in its place; two of them for factors of one format."""
TILE_HELPERS = str(Path(__file__).with_name("tiles.h"))
"""The functions for instructions on tile registers, each with its emulation."""
REGISTERS = 8
"""The number of tile registers."""


def _tdpbf16ps(dtype: DType, parts: int, copy: float, most_terms: int) -> TileProduct:
    costs = TileCosts(
        setup=400.0,
        product=21.0,
        copy=copy,
        transpose=0.3,
        store=1.0,
        most_terms=most_terms,
        block_rows=256,
    )
    return TileProduct("tile_multiply_add", dtype, 16, 16, 32, REGISTERS // 2, costs, parts)


TILE_PRODUCTS = (_tdpbf16ps(bfloat16, 1, 0.5, 1024), _tdpbf16ps(float32, 3, 1.0, 512))
"""A number of float32 is the sum of three of bfloat16."""
MACROS: tuple[tuple[frozenset[str], tuple[MatrixUnit, ...]], ...] = (
    (frozenset({"__AVX2__"}), DOT_PRODUCTS_OF_BYTES),
    (frozenset({"__AVX512BF16__", "__AVX512VL__"}), DOT_PRODUCTS),
    (frozenset({"__AMX_TILE__", "__AMX_BF16__"}), TILE_PRODUCTS),
)
"""The macros of compilers for processors with some units."""


def units_of(macros: AbstractSet[str]) -> tuple[MatrixUnit, ...]:
    """Return the units of the processor for which a compiler predefines macros."""
    return tuple(unit for needed, units in MACROS if needed <= macros for unit in units)
