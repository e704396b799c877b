"""Fill of contiguous cells with zero become one memset; other fills stay loops."""

from __future__ import annotations

from ocannl_core.ir.indexing import FixedIndex, VarIndex, affine
from ocannl_core.ir.loops.nodes import AxisKind, Block, Const, Fill, For, Store
from ocannl_core.ir.numbers.dtypes import bfloat16, float32, int32


def cleared(build, node, *indices, var, extent, value=0.0, kind=AxisKind.SERIAL, start=0):
    dtype = build.table[node].dtype
    store = Store(node, indices, Const(value, dtype))
    return For(var, start, start + extent, Block((store,)), kind)


def test_rows_are_cleared_at_once(build):
    out = build.node("out", 4, 9)
    i, j = build.vars(2)
    row = cleared(build, out, VarIndex(i), affine([(1, j)], -2), var=j, extent=7, start=2)
    lines = build.body(For(i, 0, 4, Block((row,)))).splitlines()
    assert lines[1].strip() == "memset(&a0[9 * i], 0, 7 * sizeof *a0);"
    assert len(lines) == 3


def test_every_format_whose_zero_has_no_bits(build):
    for dtype in (int32, bfloat16, float32):
        out = build.node(f"out{dtype}", 9, dtype=dtype)
        (j,) = build.vars(1)
        assert "memset" in build.body(cleared(build, out, VarIndex(j), var=j, extent=9))


def test_anything_else_is_a_loop(build):
    out = build.node("out", 9, 9)
    (j,) = build.vars(1)
    here = (FixedIndex(2), VarIndex(j))
    loops = [
        cleared(build, out, *here, var=j, extent=9, value=1.0),
        cleared(build, out, *here, var=j, extent=9, value=-0.0),
        cleared(build, out, VarIndex(j), FixedIndex(3), var=j, extent=9),
        cleared(build, out, VarIndex(j), VarIndex(j), var=j, extent=9),
        cleared(build, out, FixedIndex(0), affine([(2, j)]), var=j, extent=4),
        cleared(build, out, FixedIndex(0), FixedIndex(0), var=j, extent=4),
    ]
    for loop in loops:
        assert "memset" not in build.body(loop)


def test_the_headers_are_those_of_the_written_code(build):
    out = build.node("out", 9)
    (j,) = build.vars(1)
    assert "<string.h>" in build.file(cleared(build, out, VarIndex(j), var=j, extent=9))
    assert "<string.h>" in build.file(Fill(out, 0.0))
    assert "<string.h>" not in build.file(Fill(out, 1.0))
    assert "<math.h>" not in build.file(Fill(out, 1.0))
    assert "<math.h>" in build.file(Fill(out, float("inf")))
