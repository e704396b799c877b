"""Statements and expressions of the loop language in C."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
from inline_snapshot import snapshot

from ocannl_core.base.errors import CodegenError
from ocannl_core.codegen.c_family import render_kernel
from ocannl_core.codegen.dialect import Dialect
from ocannl_core.ir.indexing import FixedIndex, StaticIndex, VarIndex, affine
from ocannl_core.ir.kernels.nodes import Kernel
from ocannl_core.ir.loops.nodes import (
    Allocate,
    AxisKind,
    Barrier,
    Binary,
    Block,
    CallExternal,
    Const,
    ConstBits,
    DeclareLocal,
    Fill,
    For,
    Gather,
    IndexValue,
    Load,
    LoadMerge,
    Local,
    LocalRead,
    LoopBound,
    Remark,
    Scope,
    Scoped,
    SetLocal,
    Store,
    StoreVector,
    Ternary,
    Unary,
    Verbatim,
)
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.dtypes import (
    bfloat16,
    float32,
    float64,
    int32,
    int64,
    uint4x32,
    uint8,
    uint16,
)
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp

ZERO = FixedIndex(0)


def matmul(build):
    out, left, right = build.node("out", 8, 4), build.node("l", 8, 16), build.node("r", 16, 4)
    i, j, k = build.vars(3)
    product = Binary(
        BinaryOp.MUL,
        build.load(left, VarIndex(i), VarIndex(k)),
        build.load(right, VarIndex(k), VarIndex(j)),
        float32,
    )
    here = (VarIndex(i), VarIndex(j))
    store = Store(out, here, Binary(BinaryOp.ADD, build.load(out, *here), product, float32))
    return build.loop([(i, 8), (j, 4), (k, 16)], store)


def test_nests_that_are_equal_up_to_names_are_one_kernel(builder):
    one, other = builder("first_"), builder("second_")
    other.node("something that shifts the ids", 3)
    assert one.kernel(matmul(one)) == other.kernel(matmul(other))


def test_a_remark_does_not_enter_a_kernel(builder):
    plain, commented = builder(), builder()
    assert plain.kernel(matmul(plain)) == commented.kernel(Remark("why"), matmul(commented))


def test_nests_that_differ_in_an_extent_are_different_kernels(build):
    a, b = build.node("a", 8), build.node("b", 9)
    assert build.kernel(Fill(a, 1.0)).symbol != build.kernel(Fill(b, 1.0)).symbol


def test_labels_do_not_enter_a_kernel(builder):
    build = builder("secret_")
    text = build.kernel(matmul(build)).text
    assert "secret" not in text


def test_memory_that_is_only_read_is_constant_and_static_indices_come_last(build):
    out, x = build.node("out", 4), build.node("x", 9, 4, dtype=float64)
    step, (i,) = StaticIndex("step"), build.vars(1)
    value = Unary(UnaryOp.IDENTITY, build.load(x, VarIndex(step), VarIndex(i)), float32)
    kernel = build.kernel(build.loop([(i, 4)], Store(out, (VarIndex(i),), value)), indices=(step,))
    head, *_ = kernel.text.splitlines()
    assert head.replace(kernel.symbol, "k") == snapshot(
        "static void k_body(const double *restrict a0, float *restrict a1, int64_t s0) {"
    )


def test_a_merge_buffer_is_an_argument_after_the_nodes(build):
    out = build.node("out", 1)
    total = Binary(BinaryOp.ADD, build.load(out, ZERO), LoadMerge(out, (ZERO,), float32), float32)
    kernel = build.kernel(Store(out, (ZERO,), total))
    assert kernel.text.replace(kernel.symbol, "k") == snapshot(
        """\
static void k_body(float *restrict a0, const float *restrict m0) {
  a0[0] += m0[0];
}

void k(void *const *args) {
  k_body(args[0], args[1]);
}
"""
    )


def test_positions_are_folded_to_one_sum(build):
    out, (i, j) = build.node("out", 5, 7, 3), build.vars(2)
    indices = (affine([(1, i)], -1), affine([(2, j), (-1, i)], 4), FixedIndex(2))
    loop = build.loop([(i, 5), (j, 2)], Store(out, indices, Const(1.0, float32)))
    assert build.body(loop) == snapshot("""\
for (int64_t i = 0; i < 5; ++i) {
  for (int64_t j = 0; j < 2; ++j) {
    a0[18 * i + 6 * j - 7] = 1.0f;
  }
}\
""")


def test_a_loop_with_one_iteration_is_its_body(build):
    out, (i, j) = build.node("out", 5), build.vars(2)
    store = Store(out, (affine([(1, i), (1, j)]),), IndexValue(VarIndex(j), float32))
    assert build.body(For(j, 3, 4, Block((build.loop([(i, 2)], store),)))) == snapshot("""\
for (int64_t i = 0; i < 2; ++i) {
  a0[i + 3] = 3.0f;
}\
""")


def test_a_loop_without_iterations_is_nothing(build):
    out, (i,) = build.node("out", 5), build.vars(1)
    assert build.body(build.loop([(i, 0)], Fill(out, 1.0))) == ""


def test_a_gather_outside_its_axis_is_zero(build):
    table, index = build.node("table", 300, 4), build.node("index", 2, dtype=uint8)
    gather = Gather(table, (ZERO, FixedIndex(3)), 0, build.load(index, ZERO), float32)
    out = build.node("out", 1)
    assert build.body(Store(out, (ZERO,), gather)) == snapshot("""\
  const uint8_t *restrict a0,
  const float *restrict a1,
  float *restrict a2) {
const uint8_t v0 = a0[0];
const int v1 = v0 < 300;
const int64_t v2 = v1 ? (int64_t)v0 : 0;
a2[0] = where_float32(v1, a1[4 * v2 + 3], 0.0f);\
""")


def test_a_fractional_position_addresses_nothing(build):
    table = build.node("table", 2**24 + 1)
    position = Const(0.5, float32)
    assert build.written(Gather(table, (ZERO,), 0, position, float32)) == snapshot(
        "where_float32(v0, a0[v1], 0.0f)"
    )


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (0.1, float32, "0.1f"),
        (0.1, float64, "0.1"),
        (1 / 3, float32, "0.33333334f"),
        (1e20, float32, "1e+20f"),
        (-0.0, float32, "-0.0f"),
        (math.inf, float32, "INFINITY"),
        (-math.inf, float64, "-INFINITY"),
        (math.nan, float32, "NAN"),
        (0.1, bfloat16, "bfloat16_bits(0.100097656f)"),
        (2.7, int32, "2"),
        (-(2**31), int32, "-2147483647 - 1"),
        (-1, uint8, "255"),
        (-1, dtypes.uint32, "4294967295u"),
        (2**63, dtypes.uint64, "9223372036854775808ULL"),
        (7, int64, "7"),
        (2**40, int64, "1099511627776LL"),
    ],
)
def test_a_constant_is_printed_exactly(build, value, dtype, text):
    assert build.written(Const(value, dtype)) == text


def test_a_bit_pattern_is_the_number_it_encodes(build):
    assert build.written(ConstBits(0x3FC00000, float32)) == "1.5f"
    assert build.written(ConstBits(2**64 - 1, int64)) == "-1"
    assert build.written(ConstBits(42, uint4x32)) == "word_of(42)"


def test_integers_wrap_without_undefined_behavior(build):
    a, b = (build.node(name, 1, dtype=int32) for name in "ab")
    narrow = build.node("n", 1, dtype=uint16)

    def product(x, dtype):
        return Binary(BinaryOp.MUL, build.load(x, ZERO), build.load(x, ZERO), dtype)

    total = Binary(BinaryOp.ADD, product(a, int32), build.load(b, ZERO), int32)
    assert build.written(total) == snapshot(
        "(int32_t)((uint32_t)(int32_t)((uint32_t)a0[0] * a0[0]) + a1[0])"
    )
    assert build.written(product(narrow, uint16)) == snapshot("(uint16_t)((uint32_t)a0[0] * a0[0])")


def test_narrow_floats_are_rounded_once_per_operation(build):
    x = build.node("x", 1, dtype=bfloat16)
    square = Binary(BinaryOp.MUL, build.load(x, ZERO), build.load(x, ZERO), bfloat16)
    total = Binary(BinaryOp.ADD, square, Const(1.0, bfloat16), bfloat16)
    assert build.written(total) == snapshot(
        "bfloat16_bits(bfloat16_round(bfloat16_value(a0[0]) * bfloat16_value(a0[0])) + 1.0f)"
    )


def test_comparisons_are_conditions_inside_where_and_numbers_elsewhere(build):
    x = build.node("x", 1)
    positive = Binary(BinaryOp.LT, Const(0.0, float32), build.load(x, ZERO), float32)
    either = Binary(BinaryOp.OR, positive, Unary(UnaryOp.NOT, positive, float32), float32)
    chosen = Ternary(TernaryOp.WHERE, either, build.load(x, ZERO), positive, float32)
    assert build.written(chosen) == snapshot(
        "where_float32((0.0f < a0[0]) | !(0.0f < a0[0]), a0[0], (float)(0.0f < a0[0]))"
    )


def test_a_variable_set_at_once_is_declared_with_its_value(build):
    out, x, v = build.node("out", 1), build.node("x", 1), Local(0, float32)
    stmts = (
        DeclareLocal(v),
        SetLocal(v, build.load(x, ZERO)),
        SetLocal(v, Binary(BinaryOp.MUL, LocalRead(v), LocalRead(v), float32)),
        Store(out, (ZERO,), LocalRead(v)),
    )
    assert build.body(*stmts) == snapshot("""\
float v0 = a0[0];
v0 *= v0;
a1[0] = v0;\
""")


def test_a_variable_is_declared_only_once(build):
    out, v = build.node("out", 1, dtype=int32), Local(0, int32)
    more = Binary(BinaryOp.ADD, LocalRead(v), Const(1, int32), int32)
    stmts = DeclareLocal(v), SetLocal(v, Const(0, int32)), SetLocal(v, more)
    assert build.body(*stmts, Store(out, (ZERO,), LocalRead(v))) == snapshot("""\
int32_t v0 = 0;
v0 = (int32_t)((uint32_t)v0 + 1);
a0[0] = v0;\
""")


def test_one_inlined_variable_read_twice_is_two_variables(build):
    x, v = build.node("x", 1), Local(0, float32)
    scoped = Scoped(v, Block((SetLocal(v, Unary(UnaryOp.EXP, build.load(x, ZERO), float32)),)))
    out = build.node("out", 1)
    both = Binary(BinaryOp.ADD, scoped, scoped, float32)
    assert build.body(Store(out, (ZERO,), both)) == snapshot("""\
const float v0 = exp_float32(a0[0]);
const float v1 = exp_float32(a0[0]);
a1[0] = v0 + v1;\
""")


def test_statements_of_a_branch_run_only_if_it_is_chosen(build):
    out, x, (i,) = build.node("out", 4), build.node("x", 3), build.vars(1)
    v = Local(0, float32)
    inside = Binary(BinaryOp.LT, IndexValue(VarIndex(i), int64), Const(3, int64), int64)
    guarded = Scoped(v, Block((SetLocal(v, build.load(x, VarIndex(i))),)))
    chosen = Ternary(TernaryOp.WHERE, inside, guarded, Const(0.0, float32), float32)
    assert build.body(build.loop([(i, 4)], Store(out, (VarIndex(i),), chosen))) == snapshot("""\
for (int64_t i = 0; i < 4; ++i) {
  float v0;
  if (i < 3) {
    __asm__ volatile ("");
    const float v1 = a0[i];
    v0 = v1;
  } else {
    v0 = 0.0f;
  }
  a1[i] = v0;
}\
""")


def test_an_accumulating_store_is_compound_only_where_that_means_the_same(build):
    def accumulated(dtype, op=BinaryOp.ADD, swapped=False):
        x = build.node("x", 2, dtype=dtype)
        here, there = build.load(x, ZERO), build.load(x, FixedIndex(1))
        operands = (there, here) if swapped else (here, there)
        return build.body(Store(x, (ZERO,), Binary(op, *operands, dtype)))

    assert accumulated(float32) == "a0[0] += a0[1];"
    assert accumulated(float64, BinaryOp.DIV) == "a0[0] /= a0[1];"
    assert accumulated(dtypes.uint32, BinaryOp.MUL) == "a0[0] *= a0[1];"
    assert accumulated(float32, swapped=True) == "a0[0] = a0[1] + a0[0];"
    assert accumulated(int32) == "a0[0] = (int32_t)((uint32_t)a0[0] + a0[1]);"
    assert accumulated(dtypes.uint32, BinaryOp.DIV) == "a0[0] = div_uint32(a0[0], a0[1]);"
    assert accumulated(uint8) == "a0[0] = (uint8_t)(a0[0] + a0[1]);"


def test_filling_with_zero_bits_clears_memory(build):
    a, b, c = build.node("a", 6), build.node("b", 6), build.node("c", 6, dtype=int32)
    one = build.node("one", 1)
    stmts = Fill(a, 0.0), Fill(b, -0.0), Fill(c, 0.5), Fill(one, 0.0)
    assert build.body(*stmts) == snapshot("""\
  float *restrict a0,
  float *restrict a1,
  int32_t *restrict a2,
  float *restrict a3) {
memset(a0, 0, 6 * sizeof *a0);
for (int64_t x = 0; x < 6; ++x) {
  a1[x] = -0.0f;
}
memset(a2, 0, 6 * sizeof *a2);
a3[0] = 0.0f;\
""")


def test_an_allocation_is_an_array_of_the_kernel(build):
    out, tile = build.node("out", 1), build.node("tile", 4, 4)
    stmts = (
        Allocate(tile, Scope.KERNEL),
        Fill(tile, 1.0),
        Store(out, (ZERO,), build.load(tile, FixedIndex(1), FixedIndex(2))),
    )
    text = render_kernel(Kernel(Block(stmts), (out,), ()), build.table, Dialect()).text
    assert text.partition("{\n")[2].partition("\n}\n")[0] == snapshot("""\
  __attribute__((aligned(64))) float t0[16];
  for (int64_t x = 0; x < 16; ++x) {
    t0[x] = 1.0f;
  }
  a0[0] = t0[6];\
""")


def test_a_word_is_stored_as_as_many_numbers_as_fit(build):
    def stored(dtype, length):
        out = build.node("out", length, dtype=dtype)
        return build.body(StoreVector(out, (ZERO,), length, ConstBits(1, uint4x32)))

    assert stored(float64, 2) == snapshot("""\
const uint4x32 v0 = word_of(1);
a0[0] = (double)((uint64_t)v0.b << 32 | v0.a) * 0x1p-64;
a0[1] = (double)((uint64_t)v0.d << 32 | v0.c) * 0x1p-64;\
""")
    assert stored(dtypes.float16, 2) == snapshot("""\
const uint4x32 v0 = word_of(1);
a0[0] = float16_bits((float)(v0.a & 0xffff) * 0x1p-16f);
a0[1] = float16_bits((float)(v0.a >> 16 & 0xffff) * 0x1p-16f);\
""")
    assert stored(uint8, 3) == snapshot("""\
const uint4x32 v0 = word_of(1);
a0[0] = (uint8_t)(v0.a & 0xff);
a0[1] = (uint8_t)(v0.a >> 8 & 0xff);
a0[2] = (uint8_t)(v0.a >> 16 & 0xff);\
""")


def test_staged_code_names_the_nodes_of_its_meaning(build):
    out, x = build.node("out", 4), build.node("x", 4)
    meaning = Block((Store(out, (ZERO,), build.load(x, ZERO)),))
    assert build.body(Verbatim("c", "\n    memcpy($1, $0, 4);\n", meaning)) == snapshot("""\
{
  memcpy(a1, a0, 4);
}\
""")
    assert build.body(Verbatim("cuda", "copy($1, $0)", meaning)) == "a1[0] = a0[0];"


def test_loops_have_pragmas_for_the_compiler(build):
    out, (i, j) = build.node("out", 8, 4), build.vars(2)
    store = Store(out, (VarIndex(i), VarIndex(j)), Const(1.0, float32))
    inner = For(j, 0, 4, Block((store,)), AxisKind.UNROLLED)
    assert build.body(For(i, 0, 8, Block((inner,)), AxisKind.VECTOR)) == snapshot("""\
#pragma GCC ivdep
for (int64_t i = 0; i < 8; ++i) {
  #pragma GCC unroll 4
  for (int64_t j = 0; j < 4; ++j) {
    a0[4 * i + j] = 1.0f;
  }
}\
""")


class Threads(Dialect):
    """A dialect whose device runs two kinds of axes by itself."""

    language: ClassVar[str] = "threads"

    def device_index(self, kind: AxisKind) -> str:
        return f"{kind.value}()"

    def barrier(self, inside_block_axis: bool) -> list[str]:
        return ["meet();"]


def test_a_dialect_can_have_the_device_run_axes(build):
    out, (g, t, u) = build.node("out", 8, 4), build.vars(3)

    def member(var, extent):
        store = Store(out, (VarIndex(g), VarIndex(var)), Const(1.0, float32))
        return For(var, 0, extent, Block((store,)), AxisKind.BLOCK)

    group = For(g, 0, 8, Block((member(t, 4), Barrier(), member(u, 2))), AxisKind.GRID)
    kernel = build.kernel(group, dialect=Threads())
    assert (kernel.grid, kernel.block) == ((8,), (4,))
    assert kernel.text.partition("{\n")[2].partition("\n}\n")[0] == snapshot("""\
  {
    const int64_t i = grid();
    {
      const int64_t j = block();
      a0[4 * i + j] = 1.0f;
    }
    meet();
    if (block() < 2) {
      const int64_t j = block();
      a0[4 * i + j] = 1.0f;
    }
  }\
""")


def test_all_axes_of_a_kind_are_one_number_of_the_device(build):
    out, (g, h, t, u) = build.node("out", 3, 2, 10, 4), build.vars(4)
    indices = (VarIndex(g), VarIndex(h), affine([(4, t), (1, u)]), ZERO)
    store = Store(out, indices, Const(1.0, float32))
    inner = For(u, 0, 4, Block((store,)), AxisKind.BLOCK, bound=LoopBound(indices[2], 10))
    block = For(t, 0, 3, Block((inner,)), AxisKind.BLOCK)
    grid = For(g, 0, 3, Block((For(h, 0, 2, Block((block,)), AxisKind.GRID),)), AxisKind.GRID)
    kernel = build.kernel(grid, dialect=Threads())
    assert (kernel.grid, kernel.block) == ((6,), (12,))
    assert kernel.text.partition("{\n")[2].partition("\n}\n")[0] == snapshot("""\
  {
    const int64_t i = grid() / 2;
    {
      const int64_t j = grid() % 2;
      {
        const int64_t k = block() / 4;
        {
          const int64_t m = block() % 4;
          if (4 * k + m < 10) {
            a0[80 * i + 40 * j + 16 * k + 4 * m] = 1.0f;
          }
        }
      }
    }
  }\
""")


def test_memory_that_threads_share_is_declared_at_the_top_of_a_kernel(build):
    out, row, (g, t) = build.node("out", 2, 4), build.node("row", 4), build.vars(2)
    first = Store(row, (VarIndex(t),), Const(1.0, float32))
    last = Store(out, (VarIndex(g), VarIndex(t)), build.load(row, VarIndex(t)))
    block = For(t, 0, 4, Block((first, Barrier(), last)), AxisKind.BLOCK)
    grid = For(g, 0, 2, Block((Allocate(row, Scope.GROUP), block)), AxisKind.GRID)
    kernel = build.kernel(grid, dialect=Threads())
    assert (
        kernel.text.partition("{\n")[2].splitlines()[0]
        == "  __attribute__((aligned(64))) float t0[4];"
    )
    assert kernel.group_bytes == 16


@pytest.mark.parametrize("kind", [AxisKind.GRID, AxisKind.BLOCK])
def test_a_store_outside_of_an_axis_of_the_device_is_refused(build, kind):
    out, (t, u) = build.node("out", 4), build.vars(2)
    store = Store(out, (ZERO,), Const(1.0, float32))
    both = For(t, 0, 2, Block((store,)), kind), For(u, 0, 2, Block((store,)), AxisKind.BLOCK)
    with pytest.raises(CodegenError, match="A store is inside all axes"):
        build.kernel(For(u, 0, 2, Block((*both, store)), AxisKind.GRID), store, dialect=Threads())


def test_threads_that_miss_a_barrier_are_refused(build):
    out, (t,) = build.node("out", 4), build.vars(1)
    body = Block((Store(out, (VarIndex(t),), Const(1.0, float32)), Barrier()))
    end = LoopBound(VarIndex(t), 3)
    with pytest.raises(CodegenError, match="All iterations of a BLOCK axis meet"):
        build.kernel(For(t, 0, 4, body, AxisKind.BLOCK, bound=end), dialect=Threads())


def message(build, *stmts) -> str:
    with pytest.raises(CodegenError) as error:
        build.kernel(*stmts)
    return str(error.value)


class Sort:
    name = "sort"

    def perform(self, inputs, outputs):
        outputs[0][...] = sorted(inputs[0])


def test_statements_that_c_cannot_express_are_errors(build):
    out, big = build.node("out", 4), build.node("big", 512, 1024)
    word, (i, _) = build.node("word", 1, dtype=uint4x32), build.vars(2)
    block = For(i, 0, 4, Block((Barrier(),)), AxisKind.BLOCK)
    assert message(build, block) == snapshot("""\
Iterations that run one after the other cannot meet at a barrier.
  found  a barrier inside a BLOCK axis
  try    split the axis into one loop before and one loop after the barrier\
""")
    assert message(build, Allocate(big, Scope.KERNEL)) == snapshot("""\
A kernel keeps at most 1048576 bytes of arrays of its own.
  found  2097152 bytes with big of 2097152 bytes
  try    allocate the larger ones in the routine's memory\
""")
    assert message(build, Allocate(out, Scope.ROUTINE)) == snapshot("""\
Memory of a routine is allocated before its kernels run.
  found  out allocated inside a kernel\
""")
    assert message(build, CallExternal(Sort(), (out,), (out,))) == snapshot("""\
External calls run between kernels, never inside one.
  found  sort\
""")
    words = Load(word, (ZERO,), uint4x32)
    total = Binary(BinaryOp.ADD, words, words, uint4x32)
    assert message(build, Store(word, (ZERO,), total)) == snapshot("""\
Numbers and 128-bit words meet only in WORD, UNIFORM and THREEFRY4X32.
  found  add of uint4x32\
""")
    assert message(build, Store(out, (VarIndex(i),), Const(1.0, float32))) == snapshot("""\
A kernel mentions only variables of enclosing loops and its static indices.
  found  x\
""")
    assert message(build, SetLocal(Local(3, float32), Const(1.0, float32))) == snapshot("""\
A scalar variable is declared before it is used, in an enclosing block.
  found  variable 3\
""")
    assert message(build, Fill(TensorNode(99, ("stranger",)), 0.0)) == snapshot("""\
Every node of a kernel has extents and a format.
  found  stranger\
""")


def test_a_barrier_outside_block_axes_is_removed(build):
    out = build.node("out", 1)
    assert build.body(Barrier(), Fill(out, 1.0)) == "a0[0] = 1.0f;"


def test_an_expression_too_deep_to_follow_is_an_error(build):
    out = build.node("out", 1)
    value = build.load(out, ZERO)
    for _ in range(2000):
        value = Unary(UnaryOp.EXP, value, float32)
    assert message(build, Store(out, (ZERO,), value)) == snapshot("""\
Expressions must not be nested too deeply for the renderer to follow.
  found  a tree of some hundreds of levels
  try    split the computation so that some intermediate results are stored\
""")


def test_an_expression_of_two_hundred_levels_is_rendered(build):
    out = build.node("out", 1)
    value = build.load(out, ZERO)
    for _ in range(200):
        value = Unary(UnaryOp.EXP, value, float32)
    assert build.body(Store(out, (ZERO,), value)).count("exp_float32") == 200
