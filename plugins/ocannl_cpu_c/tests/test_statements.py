"""Programs written by hand: the memory after their statements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ocannl_core.ir.indexing import FixedIndex, StaticIndex, VarIndex, affine, fresh_var
from ocannl_core.ir.kernels.nodes import Kernel, Plan
from ocannl_core.ir.loops.nodes import (
    Allocate,
    Binary,
    Block,
    Const,
    ConstBits,
    Fill,
    For,
    Gather,
    IndexValue,
    Load,
    Local,
    LocalRead,
    Scope,
    Scoped,
    SetLocal,
    Store,
    StoreVector,
    Ternary,
    Unary,
)
from ocannl_core.ir.loops.traverse import allocated_nodes, nodes_of
from ocannl_core.ir.node import Margin, NodeInfo, TensorNode
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.dtypes import DType, float32, int32, int64, uint4x32, uint32
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp, threefry4x32

ZERO = FixedIndex(0)
ROW, COLUMN, INNER = (fresh_var() for _ in range(3))


def node(label: str) -> TensorNode:
    return TensorNode(0, (label,))


def plan(nodes: dict[TensorNode, NodeInfo], *stmts, indices=()) -> Plan:
    """Return the plan of one kernel."""
    body = Block(stmts)
    own = allocated_nodes(body)
    arguments = tuple(each for each in nodes_of(body) if each not in own)
    params = tuple(each for each in nodes if each not in own)
    return Plan("routine", (Kernel(body, arguments, indices),), params, (), indices, nodes)


def loop(var, stop, *stmts, start=0) -> For:
    return For(var, start, stop, Block(stmts))


def test_a_matrix_product_adds_in_the_order_of_the_loop(run):
    random = np.random.default_rng(1)
    left, right, out = node("left"), node("right"), node("out")
    nodes = {
        left: NodeInfo(float32, (5, 9)),
        right: NodeInfo(float32, (9, 7)),
        out: NodeInfo(float32, (5, 7)),
    }
    a = random.normal(size=(5, 9)).astype(np.float32)
    b = random.normal(size=(9, 7)).astype(np.float32)
    i, j, k = VarIndex(ROW), VarIndex(COLUMN), VarIndex(INNER)
    product = Binary(
        BinaryOp.MUL, Load(left, (i, k), float32), Load(right, (k, j), float32), float32
    )
    total = Binary(BinaryOp.ADD, Load(out, (i, j), float32), product, float32)
    body = loop(ROW, 5, loop(COLUMN, 7, loop(INNER, 9, Store(out, (i, j), total))))
    results = run(plan(nodes, Fill(out, 0.0), body), {left: a, right: b})
    expected = np.zeros((5, 7), np.float32)
    for k_value in range(9):
        expected += a[:, k_value, None] * b[k_value]
    np.testing.assert_array_equal(results[out], expected)


def test_filling_covers_margins_and_stores_do_not(run):
    out = node("out")
    nodes = {out: NodeInfo(float32, (3,), (Margin(2, 1),))}
    store = Store(out, (affine([(1, ROW)], 2),), IndexValue(VarIndex(ROW), float32))
    results = run(plan(nodes, Fill(out, 7.0), loop(ROW, 3, store)), {})
    assert results[out].tolist() == [7.0, 7.0, 0.0, 1.0, 2.0, 7.0]


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if d is not uint4x32], ids=str)
@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, 2.7, -3.0])
def test_filling_writes_the_rounded_number(run, dtype, value):
    out = node("out")
    results = run(plan({out: NodeInfo(dtype, (3,))}, Fill(out, value)), {})
    expected = np.array([dtypes.round_to(value, dtype)] * 3, dtype.numpy)
    assert results[out].tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("key", "counter", "word"),
    [
        ((0,) * 4, (0,) * 4, (0x9C6CA96A, 0xE17EAE66, 0xFC10ECD4, 0x5256A7D8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 4, (0x2A881696, 0x57012287, 0xF6C7446E, 0xA16A6732)),
        (
            (0xA4093822, 0x299F31D0, 0x082EFA98, 0xEC4E6C89),
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0x59CD1DBB, 0xB8879579, 0x86B5D00C, 0xAC8B6D84),
        ),
    ],
)
def test_threefry_gives_the_published_words(run, key, counter, word):
    keys, counters, out = node("keys"), node("counters"), node("out")
    info = NodeInfo(uint4x32, (1,))
    value = Binary(
        BinaryOp.THREEFRY4X32,
        Load(keys, (ZERO,), uint4x32),
        Load(counters, (ZERO,), uint4x32),
        uint4x32,
    )
    inputs = {keys: np.array([key], uint4x32.numpy), counters: np.array([counter], uint4x32.numpy)}
    nodes = {keys: info, counters: info, out: info}
    results = run(plan(nodes, Store(out, (ZERO,), value)), inputs)
    assert results[out][0].item() == word == threefry4x32(key, counter)


def numbers_of(word: tuple[int, ...], dtype: DType) -> list[Any]:
    """Return the cells that a vector store writes, computed from the bytes of the word."""
    raw = np.array(word, np.uint32).tobytes()
    if dtype is dtypes.bool_:
        return [byte & 1 for byte in raw]
    if not dtype.is_float or dtype.nbytes == 1:
        return list(np.frombuffer(raw, dtype.numpy))
    whole = np.frombuffer(raw, f"<u{dtype.nbytes}")
    if dtype is float32:
        return [float(part >> 8) * 2.0**-24 for part in whole]
    bits = 8 * dtype.nbytes
    return [dtypes.round_to(float(int(part)) * 2.0**-bits, dtype) for part in whole]


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_a_word_becomes_numbers_lowest_bits_first(run, dtype):
    out, words = node("out"), node("words")
    length = 16 // dtype.nbytes
    nodes = {out: NodeInfo(dtype, (2, length)), words: NodeInfo(uint4x32, (2,))}
    word = (0x89ABCDEF, 0x01234567, 0xFFFFFFFF, 0xFFFFF0F1)
    store = StoreVector(out, (VarIndex(ROW), ZERO), length, Load(words, (VarIndex(ROW),), uint4x32))
    inputs = {words: np.array([(0, 1, 2, 3), word], uint4x32.numpy)}
    results = run(plan(nodes, loop(ROW, 2, store)), inputs)
    expected = np.array(numbers_of(word, dtype), dtype.numpy)
    assert results[out][1].tobytes() == expected.tobytes()


def test_integers_become_words_and_words_become_numbers(run):
    x, words, out = node("x"), node("words"), node("out")
    nodes = {
        x: NodeInfo(int64, (3,)),
        words: NodeInfo(uint4x32, (3,)),
        out: NodeInfo(float32, (3,)),
    }
    here = (VarIndex(ROW),)
    word = Unary(UnaryOp.WORD, Load(x, here, int64), uint4x32)
    uniform = Unary(UnaryOp.UNIFORM, Load(words, here, uint4x32), float32)
    stmts = loop(ROW, 3, Store(words, here, word), Store(out, here, uniform))
    numbers = [5, -1, 2**40 + 2**31]
    results = run(plan(nodes, stmts), {x: np.array(numbers)})
    expected = [UnaryOp.WORD.value.meaning(number) for number in numbers]
    assert [cell.item() for cell in results[words]] == expected
    assert results[out].tolist() == [UnaryOp.UNIFORM.value.meaning(each) for each in expected]


def test_a_bit_pattern_and_an_index_are_words_too(run):
    out = node("out")
    nodes = {out: NodeInfo(uint4x32, (3,))}
    stmts = (
        loop(ROW, 3, Store(out, (VarIndex(ROW),), IndexValue(affine([(1, ROW)], -1), uint4x32))),
        Store(out, (FixedIndex(2),), ConstBits(2**63 + 7, uint4x32)),
    )
    results = run(plan(nodes, *stmts), {})
    ones = 0xFFFFFFFF
    assert [cell.item() for cell in results[out]] == [
        (ones, ones, 0, 0),
        (0,) * 4,
        (7, 2**31, 0, 0),
    ]


@pytest.mark.parametrize("dtype", [float32, dtypes.float16, int32, dtypes.uint8], ids=str)
def test_a_gather_reads_zero_where_there_is_no_position(run, dtype):
    table, positions, out = node("table"), node("positions"), node("out")
    wanted = [0, 2, 3, 4, 200]
    if dtype is not dtypes.uint8:
        wanted += [-1, -3]
    if dtype.is_float:
        wanted += [0.5, -0.0, np.inf, -np.inf, np.nan, 1e30 if dtype is float32 else 6e4]
    size = len(wanted)
    nodes = {
        table: NodeInfo(float32, (2, 4)),
        positions: NodeInfo(dtype, (size,)),
        out: NodeInfo(float32, (size,)),
    }
    position = Load(positions, (VarIndex(ROW),), dtype)
    gather = Gather(table, (FixedIndex(1), ZERO), 1, position, float32)
    cells = np.arange(8, dtype=np.float32).reshape(2, 4) + 10
    inputs = {table: cells, positions: np.array(wanted, dtype.numpy)}
    results = run(plan(nodes, loop(ROW, size, Store(out, (VarIndex(ROW),), gather))), inputs)
    expected = [cells[1, int(p)] if p in (0, 1, 2, 3) else 0.0 for p in wanted]
    assert results[out].tolist() == expected


def test_static_indices_are_given_at_each_call(run):
    x, out = node("x"), node("out")
    row, column = StaticIndex("row", 3), StaticIndex("column", 4)
    nodes = {x: NodeInfo(float32, (3, 4)), out: NodeInfo(float32, (1,))}
    store = Store(out, (ZERO,), Load(x, (VarIndex(row), VarIndex(column)), float32))
    cells = np.arange(12, dtype=np.float32).reshape(3, 4)
    program = plan(nodes, store, indices=(row, column))
    for values in ((0, 0), (2, 1), (1, 3)):
        assert run(program, {x: cells}, values)[out].tolist() == [cells[values]]


def test_an_unchosen_branch_is_not_evaluated(run):
    """A read far outside of memory would end the process."""
    x, out, v = node("x"), node("out"), Local(0, float32)
    nodes = {x: NodeInfo(float32, (3,)), out: NodeInfo(float32, (4,))}
    far = affine([(10**11, ROW)])
    inside = Binary(BinaryOp.LT, IndexValue(VarIndex(ROW), int64), Const(1, int64), int64)
    inlined = Scoped(v, Block((SetLocal(v, Load(x, (far,), float32)),)))
    both = Binary(BinaryOp.ADD, inlined, Load(x, (far,), float32), float32)
    chosen = Ternary(TernaryOp.WHERE, inside, both, Const(-1.0, float32), float32)
    store = loop(ROW, 4, Store(out, (VarIndex(ROW),), chosen))
    results = run(plan(nodes, store), {x: np.array([2, 3, 4], np.float32)})
    assert results[out].tolist() == [4.0, -1.0, -1.0, -1.0]


def test_memory_of_a_kernel_and_inlined_reductions(run):
    x, tile, out, v = node("x"), node("tile"), node("out"), Local(0, float32)
    nodes = {
        x: NodeInfo(float32, (4, 3)),
        tile: NodeInfo(float32, (3,)),
        out: NodeInfo(float32, (4,)),
    }
    copy = loop(
        COLUMN,
        3,
        Store(tile, (VarIndex(COLUMN),), Load(x, (VarIndex(ROW), VarIndex(COLUMN)), float32)),
    )
    total = Binary(BinaryOp.ADD, LocalRead(v), Load(tile, (VarIndex(INNER),), float32), float32)
    summed = Scoped(
        v, Block((SetLocal(v, Const(0.0, float32)), loop(INNER, 3, SetLocal(v, total))))
    )
    stmts = loop(ROW, 4, Allocate(tile, Scope.THREAD), copy, Store(out, (VarIndex(ROW),), summed))
    cells = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert run(plan(nodes, stmts), {x: cells})[out].tolist() == cells.sum(axis=1).tolist()


def test_conditions_combine_as_numbers_do(run):
    x, out = node("x"), node("out")
    numbers = np.array([0, 1, 2, 3, 4], np.uint32)
    nodes = {x: NodeInfo(uint32, (5,)), out: NodeInfo(float32, (5,))}
    cell = Load(x, (VarIndex(ROW),), uint32)
    small = Binary(BinaryOp.LT, cell, Const(2, uint32), uint32)
    three = Binary(BinaryOp.EQ, cell, Const(3, uint32), uint32)
    either = Unary(UnaryOp.NOT, Binary(BinaryOp.OR, small, three, uint32), uint32)
    value = Ternary(TernaryOp.WHERE, either, Const(1.0, float32), Const(-1.0, float32), float32)
    results = run(plan(nodes, loop(ROW, 5, Store(out, (VarIndex(ROW),), value))), {x: numbers})
    assert results[out].tolist() == [-1.0, -1.0, 1.0, -1.0, 1.0]
