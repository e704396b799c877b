"""The matrix units of processors, as data.

The cycles of AMX follow from products of matrices of 64 to 2048 rows, written by hand and timed on
such a processor; schedules have not been timed on one. It starts a product of tiles every 16
cycles; the rest of 21 waits for memory. Whole tiles of fixed size are transposed, in less time than
squares of vectors.
"""

from __future__ import annotations

from ocannl_core.backend_api import DotProduct, DType, TileCosts, TileProduct, bfloat16, float32

DOT_PRODUCTS = (DotProduct(bfloat16, terms=2, least_terms=8),)
"""VDPBF16PS."""
REGISTERS = 8
"""The number of tile registers."""


def _tile_product(dtype: DType, parts: int, copy: float, most_terms: int) -> TileProduct:
    costs = TileCosts(
        setup=400.0,
        product=21.0,
        copy=copy,
        transpose=0.3,
        store=1.0,
        most_terms=most_terms,
        block_rows=256,
    )
    return TileProduct(dtype, 16, 16, 32, REGISTERS // 2, costs, parts)


TILE_PRODUCTS = (_tile_product(bfloat16, 1, 0.5, 1024), _tile_product(float32, 3, 1.0, 512))
"""TDPBF16PS. A number of float32 is the sum of three of bfloat16."""
