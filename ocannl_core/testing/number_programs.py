"""Loop programs about numbers: primitives, rounding, random bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ocannl_core.ir.indexing import SubAxis, affine, fresh_var
from ocannl_core.ir.loops.nodes import Binary, Const, Expr, LoopProgram, StoreVector, Ternary, Unary
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import (
    DType,
    bfloat16,
    bool_,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int32,
    uint4x32,
)
from ocannl_core.ir.numbers.primitives import BinaryOp, Op, TernaryOp, UnaryOp
from ocannl_core.testing.compare import Array
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.primitive_tables import special_values
from ocannl_core.testing.programs import Example


def every_primitive(
    dtype: DType, ops: Sequence[Op], values: Sequence[Any] | None = None
) -> tuple[LoopProgram, dict[TensorNode, Array], dict[Op, TensorNode]]:
    """Return a program that applies each primitive to each pair of values, by default of the
    special values of the format.

    The first two operands take every pair; the third is a value chosen at random. The second result
    holds the operands' cells, the third the result node of each primitive.
    """
    values = special_values(dtype) if values is None else values
    count = len(values) ** 2
    draft, i = Draft(f"primitives_{dtype}"), fresh_var("i")
    operands = [draft.node(name, dtype, count) for name in "abc"]
    a, b, c = (draft.load(node, i) for node in operands)
    results = {op: draft.node(f"{op.value.name}_result", dtype, count) for op in ops}
    stores = [
        draft.store(node, i, value=_apply(op, a, b, c, dtype)) for op, node in results.items()
    ]
    picks = np.random.default_rng(0).integers(0, len(values), count).tolist()
    cells = [
        [first for first in values for _ in values],
        [second for _ in values for second in values],
        [values[k] for k in picks],
    ]
    arrays = {n: np.array(v, dtype.numpy) for n, v in zip(operands, cells, strict=True)}
    return draft.program(loop(i, count, *stores)), arrays, results


def _apply(op: Op, a: Expr, b: Expr, c: Expr, dtype: DType) -> Expr:
    match op:
        case UnaryOp():
            return Unary(op, a, dtype)
        case BinaryOp():
            return Binary(op, a, b, dtype)
        case TernaryOp.WHERE if dtype is uint4x32:
            return Ternary(op, Const(1, int32), b, c, dtype)
        case TernaryOp():
            return Ternary(op, a, b, c, dtype)


def rounds_each_operation() -> Example:
    """Products and sums that come out differently if an intermediate result is kept wider."""
    draft = Draft("rounding")
    arrays: dict[TensorNode, Array] = {}
    expected = {}
    stores = []
    for dtype in (float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2):
        a = draft.node(f"a_{dtype}", dtype, 1)
        result = draft.node(f"r_{dtype}", dtype, 1)
        epsilon = {float64: 2.0**-52, float32: 2.0**-23, float16: 2.0**-10, bfloat16: 2.0**-7}
        arrays[a] = np.array([1 + epsilon.get(dtype, 0.25)], dtype.numpy)
        square = Binary(BinaryOp.MUL, draft.load(a, 0), draft.load(a, 0), dtype)
        twice = Binary(BinaryOp.ADD, draft.load(a, 0), draft.load(a, 0), dtype)
        less_one = Binary(BinaryOp.SUB, twice, Const(1.0, dtype), dtype)
        stores.append(draft.store(result, 0, value=Binary(BinaryOp.SUB, square, less_one, dtype)))
        # the square's last term, epsilon squared, is lost in each format but the coarsest
        expected[result] = np.array([0.0])
    return Example(draft.program(*stores), arrays, (), expected)


def fused_multiply_add() -> Example:
    """A sum so close to the middle between two numbers that rounding twice gives the wrong one."""
    draft = Draft("fma")
    arrays: dict[TensorNode, Array] = {}
    expected, stores = {}, []
    cases = {
        # the product ends in half an ulp, and the addend lifts it above the middle
        float64: (1 + 2.0**-27, 1 + 2.0**-26, 2.0**-300, 1 + 2.0**-26 + 2.0**-27 + 2.0**-52),
        float32: (1 + 2.0**-12, 1 + 2.0**-12, 2.0**-60, 1 + 2.0**-11 + 2.0**-23),
        # narrower formats compute in float32, whose own tie drops the addend
        float16: (1 + 2.0**-5, 1 + 2.0**-6, 2.0**-24, 1.046875),
        bfloat16: (1 + 2.0**-4, 1 + 2.0**-4, 2.0**-60, 1.125),
    }
    for dtype, (*operands, result) in cases.items():
        nodes = [draft.node(f"{name}_{dtype}", dtype, 1) for name in "abc"]
        out = draft.node(f"r_{dtype}", dtype, 1)
        arrays |= {n: np.array([v], dtype.numpy) for n, v in zip(nodes, operands, strict=True)}
        a, b, c = (draft.load(node, 0) for node in nodes)
        stores.append(draft.store(out, 0, value=Ternary(TernaryOp.FMA, a, b, c, dtype)))
        expected[out] = np.array([result])
    return Example(draft.program(*stores), arrays, (), expected)


def random_words(count: int) -> Array:
    """Return 128-bit words; the first have all bits clear and all bits set."""
    lanes = np.random.default_rng(0).integers(0, 2**32, (count, 4), np.uint32)
    lanes[0], lanes[1] = 0, 0xFFFFFFFF
    return lanes.view(uint4x32.numpy).reshape(count)


def threefry() -> Example:
    """The known-answer vectors of Random123 for Threefry-4x32 with 20 rounds."""
    vectors = [
        ([0] * 4, [0] * 4, [0x9C6CA96A, 0xE17EAE66, 0xFC10ECD4, 0x5256A7D8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 4, [0x2A881696, 0x57012287, 0xF6C7446E, 0xA16A6732]),
        (
            [0xA4093822, 0x299F31D0, 0x082EFA98, 0xEC4E6C89],
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0x59CD1DBB, 0xB8879579, 0x86B5D00C, 0xAC8B6D84],
        ),
    ]
    draft, i = Draft("threefry"), fresh_var("i")
    key, counter, word = (draft.node(n, uint4x32, 3) for n in ("key", "counter", "word"))
    hashed = Binary(BinaryOp.THREEFRY4X32, draft.load(key, i), draft.load(counter, i), uint4x32)
    cells = [
        np.array(column, np.uint32).view(uint4x32.numpy).reshape(3)
        for column in zip(*vectors, strict=True)
    ]
    return Example(
        draft.program(loop(i, 3, draft.store(word, i, value=hashed))),
        {key: cells[0], counter: cells[1]},
        (),
        {word: cells[2]},
    )


def vector_uniform(dtype: DType) -> Example:
    """Words spread over consecutive cells of a node, across the ends of its rows."""
    length = 16 // dtype.nbytes
    draft, i = Draft(f"vector_{dtype}"), fresh_var("i")
    words = draft.node("words", uint4x32, 6)
    result = draft.node("result", dtype, 3, 2 * length)
    flat = (SubAxis(), affine([(length, i)]))
    store = StoreVector(result, flat, length, draft.load(words, i))
    cells = random_words(6)
    lanes = cells.view(np.uint32).reshape(6, 4)
    numbers = _uniform_numbers(lanes, dtype).reshape(3, 2 * length)
    return Example(draft.program(loop(i, 6, store)), {words: cells}, (), {result: numbers})


def _uniform_numbers(lanes: Array, dtype: DType) -> Array:
    if dtype is float32:
        return (lanes >> 8).astype(np.float32) * np.float32(2.0**-24)
    if dtype is float64:
        return np.ascontiguousarray(lanes).view("<u8").astype(np.float64) * 2.0**-64
    if dtype in (float16, bfloat16):
        halves = np.ascontiguousarray(lanes).view("<u2").astype(np.float32)
        return (halves * np.float32(2.0**-16)).astype(dtype.numpy)
    if dtype is bool_:
        return (np.ascontiguousarray(lanes).view(np.uint8) & 1).astype(np.bool_)
    return np.ascontiguousarray(lanes).view(dtype.numpy)
