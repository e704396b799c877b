"""Generated C files, compared with tests/golden; `--inline-snapshot=fix` renews them."""

from __future__ import annotations

from inline_snapshot import external_file

from ocannl_core.ir.indexing import FixedIndex, LoopVar, StaticIndex, VarIndex, affine
from ocannl_core.ir.loops.nodes import (
    AxisKind,
    Binary,
    Block,
    Const,
    ConstBits,
    Expr,
    Fill,
    For,
    Gather,
    IndexValue,
    Local,
    LocalRead,
    Scoped,
    SetLocal,
    Stmt,
    Store,
    StoreVector,
    Ternary,
    Unary,
)
from ocannl_core.ir.numbers.dtypes import float32, int64, uint4x32
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp

GOLDEN = "../../golden"


def binary(op: BinaryOp, left: Expr, right: Expr) -> Binary:
    return Binary(op, left, right, left.dtype)


def test_a_matrix_product_accumulates_in_place(build):
    out, left, right = build.node("out", 8, 4), build.node("l", 8, 16), build.node("r", 16, 4)
    i, j, k = build.vars(3)
    row, column, inner = VarIndex(i), VarIndex(j), VarIndex(k)
    product = binary(BinaryOp.MUL, build.load(left, row, inner), build.load(right, inner, column))
    total = binary(BinaryOp.ADD, build.load(out, row, column), product)
    stmts = (
        Fill(out, 0.0),
        build.loop([(i, 8), (j, 4), (k, 16)], Store(out, (row, column), total)),
    )
    assert build.file(*stmts) == external_file(f"{GOLDEN}/matmul.c", format=".txt")


def test_a_bias_and_an_activation_are_one_expression(build):
    out, x, bias = build.node("out", 32, 64), build.node("x", 32, 64), build.node("b", 64)
    i, j = build.vars(2)
    row, column = VarIndex(i), VarIndex(j)
    summed = binary(BinaryOp.ADD, build.load(x, row, column), build.load(bias, column))
    store = Store(out, (row, column), Unary(UnaryOp.RELU, summed, float32))
    loop = For(i, 0, 32, Block((For(j, 0, 64, Block((store,)), AxisKind.VECTOR),)))
    assert build.file(loop) == external_file(f"{GOLDEN}/bias_relu.c", format=".txt")


def test_softmax_computes_its_inlined_sum_before_the_store(build):
    out, x, peak = build.node("out", 32, 10), build.node("x", 32, 10), build.node("peak", 32)
    i, j, k = build.vars(3)
    row, column = VarIndex(i), VarIndex(j)

    def exponential(position: LoopVar) -> Expr:
        cell = build.load(x, row, VarIndex(position))
        return Unary(UnaryOp.EXP, binary(BinaryOp.SUB, cell, build.load(peak, row)), float32)

    highest = binary(BinaryOp.MAX, build.load(peak, row), build.load(x, row, column))
    total = Local(0, float32)
    term = SetLocal(total, binary(BinaryOp.ADD, LocalRead(total), exponential(k)))
    start = SetLocal(total, Const(0.0, float32))
    summed = Scoped(total, Block((start, build.loop([(k, 10)], term))))
    stmts: list[Stmt] = [
        Store(peak, (row,), Const(float("-inf"), float32)),
        build.loop([(j, 10)], Store(peak, (row,), highest)),
        build.loop(
            [(j, 10)], Store(out, (row, column), binary(BinaryOp.DIV, exponential(j), summed))
        ),
    ]
    rows = build.loop([(i, 32)], *stmts)
    assert build.file(rows) == external_file(f"{GOLDEN}/softmax.c", format=".txt")


def test_random_numbers_are_hashed_counters(build):
    out, key = build.node("out", 3, 16), build.node("key", 1, dtype=uint4x32)
    i, j = build.vars(2)
    seed = Binary(BinaryOp.THREEFRY4X32, ConstBits(7, uint4x32), ConstBits(42, uint4x32), uint4x32)
    counter = IndexValue(affine([(4, i), (1, j)]), uint4x32)
    word = Binary(BinaryOp.THREEFRY4X32, build.load(key, FixedIndex(0)), counter, uint4x32)
    cells = StoreVector(out, (VarIndex(i), affine([(4, j)])), 4, word)
    stmts = (Store(key, (FixedIndex(0),), seed), build.loop([(i, 3), (j, 4)], cells))
    assert build.file(*stmts) == external_file(f"{GOLDEN}/threefry.c", format=".txt")


def test_a_guard_keeps_a_strided_window_inside_its_operand(build):
    out, x, kernel = build.node("out", 7), build.node("x", 12), build.node("kernel", 3)
    o, k = build.vars(2)
    position = affine([(2, o), (1, k)], -1)
    at = IndexValue(position, int64)
    inside = binary(
        BinaryOp.AND,
        binary(BinaryOp.LE, Const(0, int64), at),
        binary(BinaryOp.LT, at, Const(12, int64)),
    )
    zero = Const(0.0, float32)
    guarded = Ternary(TernaryOp.WHERE, inside, build.load(x, position), zero, float32)
    product = binary(BinaryOp.MUL, build.load(kernel, VarIndex(k)), guarded)
    total = binary(BinaryOp.ADD, build.load(out, VarIndex(o)), product)
    stmts = (Fill(out, 0.0), build.loop([(o, 7), (k, 3)], Store(out, (VarIndex(o),), total)))
    assert build.file(*stmts) == external_file(f"{GOLDEN}/convolution.c", format=".txt")


def test_rows_are_gathered_for_one_example_of_a_batch(build):
    out, table, tokens = (
        build.node("out", 6, 8),
        build.node("table", 50, 8),
        build.node("tokens", 9, 6),
    )
    example = StaticIndex("example", 9)
    i, j = build.vars(2)
    token = build.load(tokens, VarIndex(example), VarIndex(i))
    row = Gather(table, (FixedIndex(0), VarIndex(j)), 0, token, float32)
    rows = build.loop([(i, 6), (j, 8)], Store(out, (VarIndex(i), VarIndex(j)), row))
    file = build.file(rows, indices=(example,))
    assert file == external_file(f"{GOLDEN}/embedding.c", format=".txt")
