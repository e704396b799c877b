"""Matrix units of processors for tests of schedules, whose costs decide as those of AMX do."""

from __future__ import annotations

from ocannl_core.ir.matrix_units import DotProduct, TileCosts, TileProduct
from ocannl_core.ir.numbers.dtypes import bfloat16, float16, float32

PAIRS = DotProduct(bfloat16, terms=2, least_terms=8)
TILES = (
    TileProduct("tiles", bfloat16, 16, 16, 32, 4, TileCosts(400, 21, 0.5, 0.3, 1, 1024, 256)),
    TileProduct("tiles", float32, 16, 16, 32, 4, TileCosts(400, 21, 1, 0.3, 1, 512, 256), 3),
)
OTHER_TILES = TileProduct("others", float16, 4, 8, 12, 4, TILES[0].costs)
"""Tiles of a shape and a format that no processor has."""
