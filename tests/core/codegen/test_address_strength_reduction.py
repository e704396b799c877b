"""Innermost loops of vectors find their cells from pointers that are set before them."""

from __future__ import annotations

from inline_snapshot import snapshot

from ocannl_core.codegen.c_family import render_kernel
from ocannl_core.codegen.dialect import Dialect
from ocannl_core.ir.indexing import FixedIndex, VarIndex, affine
from ocannl_core.ir.kernels.nodes import Kernel
from ocannl_core.ir.loops.nodes import (
    Allocate,
    AxisKind,
    Binary,
    Block,
    For,
    LoadMerge,
    Prefetch,
    Scope,
    Stmt,
    Store,
    Unary,
)
from ocannl_core.ir.numbers.dtypes import bfloat16, float32
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp


def serial(var, extent: int, *body: Stmt) -> For:
    return For(var, 0, extent, Block(body))


def vector(var, *body: Stmt) -> For:
    return For(var, 0, 8, Block(body), AxisKind.VECTOR)


def test_invariant_parts_of_addresses_are_computed_before_the_loop(build):
    out, x = build.node("out", 5, 40), build.node("x", 5, 99)
    i, j, lane = build.vars(3)
    here = affine([(8, j), (1, lane)])
    there = affine([(12, j), (1, lane)], 3)
    copy = Store(out, (VarIndex(i), here), build.load(x, VarIndex(i), there))
    assert build.body(serial(i, 5, serial(j, 4, vector(lane, copy)))) == snapshot("""\
for (int64_t i = 0; i < 5; ++i) {
  __auto_type c0 = &a0[99 * i];
  __auto_type c1 = &a1[40 * i];
  for (int64_t j = 0, j_12 = 0, j_8 = 0; j < 4; ++j, j_12 += 12, j_8 += 8) {
    const float32x8 v0 = *(const float32x8_cells *)&c0[j_12 + 3];
    *(float32x8_cells *)&c1[j_8] = v0;
  }
}\
""")


def test_descending_addresses_are_decremented(build):
    out, x = build.node("out", 40), build.node("x", 99)
    i, j, lane = build.vars(3)
    there = affine([(-16, j), (-1, i), (1, lane)], 80)
    copy = Store(out, (affine([(8, j), (1, lane)]),), build.load(x, there))
    assert build.body(serial(i, 5, serial(j, 4, vector(lane, copy)))) == snapshot("""\
for (int64_t i = 0; i < 5; ++i) {
  __auto_type c0 = &a0[-i + 80];
  for (int64_t j = 0, j_16 = 0, j_8 = 0; j < 4; ++j, j_16 += 16, j_8 += 8) {
    const float32x8 v0 = *(const float32x8_cells *)&c0[-j_16];
    *(float32x8_cells *)&a1[j_8] = v0;
  }
}\
""")


def test_unrolled_loops_belong_to_the_one_around_them(build):
    out, x = build.node("out", 3, 4, 16), build.node("x", 3, 4, 16)
    i, j, k, lane = build.vars(4)
    place = (VarIndex(i), VarIndex(j), affine([(8, k), (1, lane)]))
    pair = For(k, 0, 2, Block((vector(lane, Store(out, place, build.load(x, *place))),)))
    unrolled = For(pair.var, 0, 2, pair.body, AxisKind.UNROLLED)
    assert build.body(serial(i, 3, serial(j, 4, unrolled))) == snapshot("""\
for (int64_t i = 0; i < 3; ++i) {
  __auto_type c0 = &a0[64 * i];
  __auto_type c1 = &a1[64 * i];
  for (int64_t j = 0, j_16 = 0; j < 4; ++j, j_16 += 16) {
    #pragma GCC unroll 2
    for (int64_t k = 0; k < 2; ++k) {
      const float32x8 v0 = *(const float32x8_cells *)&c0[j_16 + 8 * k];
      *(float32x8_cells *)&c1[j_16 + 8 * k] = v0;
    }
  }
}\
""")


def test_arrays_of_an_iteration_are_not_known_before_it(build):
    out, x, mine = build.node("out", 3, 5, 8), build.node("x", 3, 8), build.node("mine", 3, 5, 8)
    i, j, lane = build.vars(3)
    place = (VarIndex(i), VarIndex(j), VarIndex(lane))
    body = (
        Allocate(mine, Scope.KERNEL),
        vector(lane, Store(mine, place, build.load(x, VarIndex(i), VarIndex(lane)))),
        vector(lane, Store(out, place, build.load(mine, *place))),
    )
    assert build.body(serial(i, 3, serial(j, 5, *body))) == snapshot("""\
  const float *restrict a0,
  float *restrict a1,
  float *restrict a2) {
for (int64_t i = 0; i < 3; ++i) {
  const float32x8 v0 = *(const float32x8_cells *)&a0[8 * i];
  __auto_type c0 = &a2[40 * i];
  for (int64_t j = 0, j_8 = 0; j < 5; ++j, j_8 += 8) {
    __attribute__((aligned(64))) float t0[120];
    *(float32x8_cells *)&t0[40 * i + 8 * j] = v0;
    *(float32x8_cells *)&c0[j_8] = v0;
  }
}\
""")


def test_plain_loops_are_written_as_they_are(build):
    out, x = build.node("out", 5, 40), build.node("x", 5, 40)
    i, j = build.vars(2)
    place = (VarIndex(i), VarIndex(j))
    copy = Store(out, place, build.load(x, *place))
    assert build.body(serial(i, 5, serial(j, 40, copy))) == snapshot("""\
for (int64_t i = 0; i < 5; ++i) {
  for (int64_t j = 0; j < 40; ++j) {
    a1[40 * i + j] = a0[40 * i + j];
  }
}\
""")


def test_numbers_that_stay_the_same_are_spread_before_the_loop(build):
    out, x, s = build.node("out", 3, 40), build.node("x", 3, 40), build.node("s", 3)
    i, j, lane = build.vars(3)
    place = (VarIndex(i), affine([(8, j), (1, lane)]))
    scaled = Binary(BinaryOp.MUL, build.load(x, *place), build.load(s, VarIndex(i)), float32)
    body = build.body(serial(i, 3, serial(j, 5, vector(lane, Store(out, place, scaled)))))
    assert body == snapshot("""\
  const float *restrict a0,
  const float *restrict a1,
  float *restrict a2) {
for (int64_t i = 0; i < 3; ++i) {
  __auto_type c0 = &a0[40 * i];
  const float32x8 v1 = float32x8_splat(a1[i]);
  __auto_type c1 = &a2[40 * i];
  for (int64_t j = 0, j_8 = 0; j < 5; ++j, j_8 += 8) {
    const float32x8 v0 = *(const float32x8_cells *)&c0[j_8];
    *(float32x8_cells *)&c1[j_8] = v0 * v1;
  }
}\
""")


def test_a_divisor_is_inverted_before_the_loop(build):
    out, x, s = build.node("out", 40), build.node("x", 40), build.node("s", 1)
    j, lane = build.vars(2)
    place = (affine([(8, j), (1, lane)]),)
    divided = Binary(BinaryOp.DIV, build.load(x, *place), build.load(s, FixedIndex(0)), float32)
    body = build.body(serial(j, 5, vector(lane, Store(out, place, divided))))
    assert body == snapshot("""\
  const float *restrict a0,
  const float *restrict a1,
  float *restrict a2) {
const float v0 = a1[0];
const float v1 = float32x8_factor(a1[0]);
for (int64_t i = 0, i_8 = 0; i < 5; ++i, i_8 += 8) {
  const float32x8 v2 = *(const float32x8_cells *)&a0[i_8];
  *(float32x8_cells *)&a2[i_8] = float32x8_over(v2, v0, v1);
}\
""")


def test_cells_that_the_loop_changes_are_read_in_every_iteration(build):
    out, x = build.node("out", 40), build.node("x", 40)
    j, lane = build.vars(2)
    place = (affine([(8, j), (1, lane)]),)
    scaled = Binary(BinaryOp.MUL, build.load(x, *place), build.load(out, FixedIndex(3)), float32)
    body = build.body(serial(j, 5, vector(lane, Store(out, place, scaled))))
    before, _, inside = body.partition("for (")
    assert "[3]" not in before
    assert "[3]" in inside


def test_arrays_of_the_kernel_are_not_fetched(build):
    out, mine = build.node("out", 40), build.node("mine", 40)
    i = build.vars(1)[0]
    body = (
        Allocate(mine, Scope.KERNEL),
        Prefetch(mine, (FixedIndex(39),)),
        Prefetch(out, (FixedIndex(39),)),
        serial(i, 9, Store(mine, (VarIndex(i),), build.load(out, VarIndex(i)))),
        serial(i, 9, Store(out, (VarIndex(i),), build.load(mine, VarIndex(i)))),
    )
    nest = Kernel(Block(body), (out,), ())
    text = render_kernel(nest, build.table, Dialect()).text
    assert text.count("__builtin_prefetch") == 1
    assert "__builtin_prefetch(&a0[39], 1);" in text


def test_merge_buffers_are_read_where_they_are_used(build):
    out, x, other = build.node("out", 40), build.node("x", 40), build.node("other", 40)
    j, lane = build.vars(2)
    place = (affine([(8, j), (1, lane)]),)
    merged = LoadMerge(other, (FixedIndex(1),), float32)
    scaled = Binary(BinaryOp.MUL, build.load(x, *place), merged, float32)
    loop = serial(j, 5, vector(lane, Store(out, place, scaled)))
    text = render_kernel(Kernel(Block((loop,)), (x, out), ()), build.table, Dialect()).text
    assert "float32x8_splat(m0[1])" in text


def test_narrow_numbers_are_widened_before_the_loop(build):
    out, x = build.node("out", 40), build.node("x", 40)
    s = build.node("s", 1, dtype=bfloat16)
    j, lane = build.vars(2)
    place = (affine([(8, j), (1, lane)]),)
    wide = Unary(UnaryOp.IDENTITY, build.load(s, FixedIndex(0)), float32)
    scaled = Binary(BinaryOp.MUL, build.load(x, *place), wide, float32)
    before, _, inside = build.body(serial(j, 5, vector(lane, Store(out, place, scaled)))).partition(
        "for ("
    )
    assert "splat_bfloat16(" in before
    assert "splat_bfloat16(" not in inside
