"""Vector loops and arrays in registers as C."""

from __future__ import annotations

from inline_snapshot import snapshot

from ocannl_core.codegen.prelude.prelude import prelude
from ocannl_core.codegen.text.kernel_text import CompilerVectorization
from ocannl_core.ir.indexing import AxisIndex, FixedIndex, LoopVar, VarIndex, affine
from ocannl_core.ir.loops.nodes import (
    Allocate,
    AxisKind,
    Binary,
    Block,
    Const,
    Expr,
    For,
    Load,
    Scope,
    Stmt,
    Store,
    Ternary,
    Unary,
)
from ocannl_core.ir.numbers.dtypes import bfloat16, float16, float32, int32, uint4x32, uint8, uint32
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp


def vector(var, extent: int, *body: Stmt) -> For:
    return For(var, 0, extent, Block(body), AxisKind.VECTOR)


def unrolled(var, extent: int, *body: Stmt) -> For:
    return For(var, 0, extent, Block(body), AxisKind.UNROLLED)


def test_neighbors_are_loaded_and_stored_together(build):
    out, x = build.node("out", 4, 16), build.node("x", 16)
    i, j = build.vars(2)
    doubled = Binary(BinaryOp.ADD, build.load(x, VarIndex(j)), Const(1.0, float32), float32)
    store = Store(out, (VarIndex(i), VarIndex(j)), doubled)
    assert build.body(For(i, 0, 4, Block((vector(j, 16, store),)))) == snapshot("""\
const float32x16 v0 = *(const float32x16_cells *)&a0[0];
for (int64_t i = 0, i_16 = 0; i < 4; ++i, i_16 += 16) {
  *(float32x16_cells *)&a1[i_16] = v0 + float32x16_splat(1.0f);
}\
""")


def test_every_second_cell_is_two_loads_and_a_shuffle(build):
    out, x = build.node("out", 13), build.node("x", 25)
    (j,) = build.vars(1)
    store = Store(out, (VarIndex(j),), build.load(x, affine([(2, j)])))
    assert build.body(vector(j, 13, store)) == snapshot("""\
const float32x16 v0 = float32x16_every_second(*(const float32x16_cells *)&a0[0], float32x16_load(&a0[15], 10));
float32x16_store(&a1[0], v0, 13);\
""")


def test_a_part_of_a_vector_is_loaded_and_stored_alone(build):
    out, x = build.node("out", 5), build.node("x", 5)
    (j,) = build.vars(1)
    store = Store(out, (VarIndex(j),), build.load(x, VarIndex(j)))
    assert build.body(vector(j, 5, store)) == snapshot("""\
const float32x8 v0 = float32x8_load(&a0[0], 5);
float32x8_store(&a1[0], v0, 5);\
""")


def test_cells_apart_are_gathered_and_scattered(build):
    out, x = build.node("out", 4, 2), build.node("x", 8)
    (j,) = build.vars(1)
    cell = build.load(x, affine([(2, j)], 1))
    assert build.body(vector(j, 4, Store(out, (VarIndex(j), affine([], 1)), cell))) == snapshot("""\
const float32x4 v0 = float32x4_every_second(*(const float32x4_cells *)&a0[1], *(const float32x4_cells *)&a0[4]);
a1[1] = v0[0];
a1[3] = v0[1];
a1[5] = v0[2];
a1[7] = v0[3];\
""")


def test_accumulators_are_variables(build):
    out, a, b = build.node("out", 2, 8), build.node("a", 2, 3), build.node("b", 3, 8)
    sums = build.node("sums", 2, 8)
    i, j, k = build.vars(3)
    place: tuple[AxisIndex, ...] = (VarIndex(i), VarIndex(j))
    factors = build.load(a, VarIndex(i), VarIndex(k)), build.load(b, VarIndex(k), VarIndex(j))
    added = Ternary(TernaryOp.FMA, *factors, Load(sums, place, float32), float32)

    def block(node, value: Expr) -> For:
        return unrolled(i, 2, vector(j, 8, Store(node, place, value)))

    stmts = (
        Allocate(sums, Scope.THREAD),
        block(sums, Const(0.0, float32)),
        For(k, 0, 3, Block((block(sums, added),))),
        block(out, Load(sums, place, float32)),
    )
    assert build.body(Block(stmts)) == snapshot("""\
  const float *restrict a0,
  const float *restrict a1,
  const float *restrict a2,
  float *restrict a3) {
float32x8 t0_0;
float32x8 t0_8;
t0_0 = float32x8_splat(0.0f);
t0_8 = float32x8_splat(0.0f);
for (int64_t i = 0, i_8 = 0; i < 3; ++i, i_8 += 8) {
  const float32x8 v0 = float32x8_splat(a1[i]);
  const float32x8 v1 = *(const float32x8_cells *)&a2[i_8];
  t0_0 = float32x8_fma(v0, v1, t0_0);
  const float32x8 v2 = float32x8_splat(a1[i + 3]);
  t0_8 = float32x8_fma(v2, v1, t0_8);
}
*(float32x8_cells *)&a3[0] = t0_0;
*(float32x8_cells *)&a3[8] = t0_8;\
""")


def test_choices_are_made_lane_by_lane(build):
    out, x = build.node("out", 8), build.node("x", 8)
    (j,) = build.vars(1)
    cell = build.load(x, VarIndex(j))
    clipped = Binary(BinaryOp.MAX, Unary(UnaryOp.RELU, cell, float32), cell, float32)
    assert build.body(vector(j, 8, Store(out, (VarIndex(j),), clipped))) == snapshot("""\
const float32x8 v0 = *(const float32x8_cells *)&a0[0];
*(float32x8_cells *)&a1[0] = float32x8_max(float32x8_above(v0, float32x8_splat(0.0f)), v0);\
""")


def test_bytes_choose_lane_by_lane(build):
    out, x, flags = build.node("out", 16), build.node("x", 16), build.node("flags", 16, dtype=uint8)
    (j,) = build.vars(1)
    shown = build.load(flags, VarIndex(j))
    chosen = Ternary(
        TernaryOp.WHERE, shown, build.load(x, VarIndex(j)), Const(-9.0, float32), float32
    )
    assert build.body(vector(j, 16, Store(out, (VarIndex(j),), chosen))) == snapshot("""\
  const uint8_t *restrict a0,
  const float *restrict a1,
  float *restrict a2) {
const float32x16 v0 = *(const float32x16_cells *)&a1[0];
const int32x16 v1 = int32x16_load_uint8(&a0[0], 16);
*(float32x16_cells *)&a2[0] = float32x16_select(v1 != int32x16_splat(0), v0, float32x16_splat(-9.0f));\
""")
    assert build.body(vector(j, 5, Store(out, (VarIndex(j),), chosen))) == snapshot("""\
  const uint8_t *restrict a0,
  const float *restrict a1,
  float *restrict a2) {
const float32x8 v0 = float32x8_load(&a1[0], 5);
const int32x8 v1 = int32x8_load_uint8(&a0[0], 5);
float32x8_store(&a2[0], float32x8_select(v1 != int32x8_splat(0), v0, float32x8_splat(-9.0f)), 5);\
""")


def test_words_are_hashed_before_functions_of_their_numbers(build):
    out, key, at = (
        build.node("out", 8),
        build.node("key", 1, dtype=uint4x32),
        build.node("at", 8, dtype=uint32),
    )
    (j,) = build.vars(1)
    numbers = []
    for op in (UnaryOp.SQRT, UnaryOp.COS):
        words = Unary(UnaryOp.WORD, build.load(at, VarIndex(j)), uint4x32)
        hashed = Binary(BinaryOp.THREEFRY4X32, build.load(key, FixedIndex(0)), words, uint4x32)
        numbers.append(Unary(op, Unary(UnaryOp.UNIFORM, hashed, float32), float32))
    store = Store(out, (VarIndex(j),), Binary(BinaryOp.MUL, *numbers, float32))
    assert build.body(vector(j, 8, store)) == snapshot("""\
  const uint4x32 *restrict a0,
  const uint32_t *restrict a1,
  float *restrict a2) {
const uint4x32x8 v0 = uint4x32x8_splat(a0[0]);
const uint32x8 v1 = *(const uint32x8_cells *)&a1[0];
const float32x8 v2 = uint4x32x8_uniform(uint4x32x8_threefry4x32(v0, uint4x32x8_spread((uint32x8)v1)));
const float32x8 v3 = uint4x32x8_uniform(uint4x32x8_threefry4x32(v0, uint4x32x8_spread((uint32x8)v1)));
*(float32x8_cells *)&a2[0] = float32x8_sqrt(v2) * float32x8_cos(v3);\
""")


def test_a_square_is_turned_in_registers(build):
    out, x = build.node("out", 4, 4), build.node("x", 4, 9)
    i, j = build.vars(2)
    copy = Store(out, (VarIndex(i), VarIndex(j)), build.load(x, VarIndex(j), affine([(1, i)], 2)))
    text = build.body(vector(i, 4, vector(j, 4, copy)))
    assert text == "float32x4_transpose(&a0[2], 9, &a1[0], 4);"


def test_operations_without_vector_code_are_a_plain_loop(build):
    out, x = build.node("out", 8, dtype=int32), build.node("x", 8, dtype=int32)
    (j,) = build.vars(1)
    rest = Binary(BinaryOp.MOD, build.load(x, VarIndex(j)), Const(3, int32), int32)
    text = build.body(vector(j, 8, Store(out, (VarIndex(j),), rest)))
    assert text.startswith("#pragma GCC ivdep\nfor (")


def test_narrow_floats_are_float32_in_vectors_and_rounded_after_every_operation(build):
    out, x = build.node("out", 8, dtype=bfloat16), build.node("x", 8, dtype=bfloat16)
    (j,) = build.vars(1)
    cell = build.load(x, VarIndex(j))
    square = Binary(BinaryOp.MUL, cell, cell, bfloat16)
    total = Binary(BinaryOp.ADD, square, Const(1.0, bfloat16), bfloat16)
    assert build.body(vector(j, 8, Store(out, (VarIndex(j),), total))) == snapshot("""\
const float32x8 v0 = float32x8_load_bfloat16(&a0[0], 8);
float32x8_put_bfloat16(&a1[0], float32x8_nearest_bfloat16(float32x8_nearest_bfloat16(v0 * v0) + float32x8_splat(1.0f)), 8);\
""")
    copied = build.body(vector(j, 5, Store(out, (VarIndex(j),), cell)))
    assert copied == snapshot("""\
const float32x8 v0 = float32x8_load_bfloat16(&a0[0], 5);
float32x8_put_bfloat16(&a1[0], v0, 5);\
""")


def test_cells_of_narrow_floats_are_widened_for_all_lanes_and_in_squares(build):
    out, x = build.node("out", 4, 4), build.node("x", 4, 9, dtype=bfloat16)
    i, j = build.vars(2)
    cell = build.load(x, VarIndex(j), affine([(1, i)], 2))
    wide = Unary(UnaryOp.IDENTITY, cell, float32)
    copy = Store(out, (VarIndex(i), VarIndex(j)), wide)
    assert build.body(vector(i, 4, vector(j, 4, copy))) == snapshot(
        "float32x4_transpose_bfloat16(&a0[2], 9, &a1[0], 4);"
    )
    one = Unary(UnaryOp.IDENTITY, build.load(x, FixedIndex(1), FixedIndex(2)), float32)
    store = Store(out, (FixedIndex(0), VarIndex(j)), one)
    assert build.body(vector(j, 4, store)) == snapshot("""\
const float32x4 v0 = float32x4_splat_bfloat16(a0[11]);
*(float32x4_cells *)&a1[0] = v0;\
""")


def pair(var: LoopVar, body: Stmt) -> For:
    return For(var, 0, 2, Block((body,)), AxisKind.DOT)


def test_pairs_of_cells_are_stored_together(build):
    packed = build.node("packed", 3, 4, 2, dtype=bfloat16)
    rows, columns = build.node("r", 7, 4, dtype=bfloat16), build.node("c", 4, 9, dtype=bfloat16)
    k, j, p = build.vars(3)
    place = (FixedIndex(1), VarIndex(j), VarIndex(p))
    along = Store(packed, place, build.load(rows, affine([(1, p)], 2), VarIndex(j)))
    assert build.body(vector(j, 4, pair(p, along))) == snapshot("""\
const float32x4 v0 = float32x4_load_bfloat16(&a0[8], 4);
const float32x4 v1 = float32x4_load_bfloat16(&a0[12], 4);
float32x4_interleave_bfloat16(&a1[8], v0, v1, 4);\
""")
    turned = Store(
        build.node("square", 4, 4, 2, dtype=bfloat16),
        (VarIndex(k), VarIndex(j), VarIndex(p)),
        build.load(columns, VarIndex(j), affine([(2, k), (1, p)])),
    )
    assert build.body(vector(k, 4, vector(j, 4, pair(p, turned)))) == snapshot(
        "uint32x4_transpose_pairs(&a0[0], 9, &a1[0], 8);"
    )


def test_every_16_bit_format_has_dot_products(build):
    sums = build.node("sums", 4)
    a, b = build.node("a", 8, dtype=float16), build.node("b", 4, 4, 2, dtype=float16)
    k, j, p = build.vars(3)
    cell = Load(sums, (VarIndex(j),), float32)
    factors = (
        build.load(a, affine([(2, k), (1, p)])),
        build.load(b, VarIndex(k), VarIndex(j), VarIndex(p)),
    )
    wide = [Unary(UnaryOp.IDENTITY, each, float32) for each in factors]
    total = Ternary(TernaryOp.FMA, wide[0], wide[1], cell, float32)
    terms = vector(j, 4, pair(p, Store(sums, (VarIndex(j),), total)))
    out, i = build.node("out", 4), build.vars(1)[0]
    found = build.body(
        Allocate(sums, Scope.THREAD),
        vector(j, 4, Store(sums, (VarIndex(j),), Const(0.0, float32))),
        For(k, 0, 4, Block((terms,))),
        vector(i, 4, Store(out, (VarIndex(i),), Load(sums, (VarIndex(i),), float32))),
    )
    assert "float32x4_dot_float16(" in found
    assert "float32x4_pair_float16(&" in found
    assert "float32x4_pairs_float16(&" in found


def test_short_functions_of_vectors_are_inlined_at_every_level():
    always = "static inline __attribute__((always_inline))"
    text = prelude(["float32x2_fma", "float32x16_fma", "float32x16_transpose", "relu_float32"])
    assert f"{always} float32x2 float32x2_fma(" in text
    assert f"{always} float32x16 float32x16_fma(" in text
    assert f"{always} void float32x16_transpose(" not in text
    assert "static inline float relu_float32(" in text
    assert "for (" not in text


def test_how_much_is_left_to_a_compiler(build):
    def loops_of(
        lanes: int, extent: int, *, adds: bool = False, doubles: bool = False
    ) -> CompilerVectorization:
        out, x = build.node("out", 64, 16), build.node("x", 64, 16)
        i, lane = build.vars(2)
        place = (VarIndex(i), VarIndex(lane))
        value = build.load(x, *place)
        if adds:
            value = Binary(BinaryOp.ADD, build.load(out, *place), value, float32)
        if doubles:
            value = Binary(BinaryOp.MUL, value, Const(2.0, float32), float32)
        kind = AxisKind.VECTOR if lanes > 1 else AxisKind.SERIAL
        body = Block((Store(out, place, value),))
        inner = For(lane, 0, lanes if lanes > 1 else 8, body, kind)
        return build.kernel(For(i, 0, extent, Block((inner,)))).vectorization

    assert loops_of(16, 64) is CompilerVectorization.VECTORS
    assert loops_of(16, 64, doubles=True) is CompilerVectorization.FUNCTIONS  # a constant
    assert loops_of(16, 64, adds=True, doubles=True) is CompilerVectorization.VECTORS
    assert loops_of(1, 64) is CompilerVectorization.INDEPENDENT
    assert loops_of(1, 64, adds=True) is CompilerVectorization.PLAIN
    assert loops_of(2, 64, adds=True) is CompilerVectorization.PLAIN  # no register is so small


def test_a_stored_register_is_loaded_again_after_it_changes(build):
    out, copy, x, y, sums = (build.node(name, 8) for name in ("out", "copy", "x", "y", "sums"))
    (j,) = build.vars(1)

    def move(target, source):
        return vector(j, 8, Store(target, (VarIndex(j),), build.load(source, VarIndex(j))))

    moves = ((sums, x), (out, sums), (sums, y), (copy, out))
    text = build.body(Allocate(sums, Scope.THREAD), *(move(*each) for each in moves))
    assert text == snapshot("""\
  const float *restrict a0,
  const float *restrict a1,
  float *restrict a2,
  const float *restrict a3,
  float *restrict a4) {
float32x8 t0_0;
const float32x8 v0 = *(const float32x8_cells *)&a0[0];
t0_0 = v0;
*(float32x8_cells *)&a2[0] = t0_0;
const float32x8 v1 = *(const float32x8_cells *)&a3[0];
t0_0 = v1;
const float32x8 v2 = *(const float32x8_cells *)&a2[0];
*(float32x8_cells *)&a4[0] = v2;\
""")
