"""Every primitive in every number format agrees with the table of primitives, bit for bit.

Transcendental functions come from the C library and may differ in the last two places.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest

from ocannl_core.ir.indexing import VarIndex, fresh_var
from ocannl_core.ir.kernels.nodes import Kernel, Plan
from ocannl_core.ir.loops.nodes import Binary, Block, Expr, For, Load, Store, Ternary, Unary
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.dtypes import DType, round_to
from ocannl_core.ir.numbers.primitives import (
    PRIMITIVES,
    BinaryOp,
    Op,
    Signature,
    TernaryOp,
    UnaryOp,
    arity,
)

FLOATS = (
    dtypes.float64,
    dtypes.float32,
    dtypes.bfloat16,
    dtypes.float16,
    dtypes.float8_e4m3fn,
    dtypes.float8_e5m2,
)
INTEGERS = (dtypes.uint8, dtypes.uint16, dtypes.int32, dtypes.uint32, dtypes.int64, dtypes.uint64)
OPS: list[Op] = [op for op in PRIMITIVES if op.value.signature is Signature.NUMBERS]
PLACES = 2


@cache
def samples(dtype: DType) -> tuple[Any, ...]:
    """Return numbers of a format, its special ones included."""
    if dtype.is_float:
        info = np.finfo(np.float32) if dtype is dtypes.float32 else np.finfo(np.float64)
        numbers = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 3.0, -2.5, 0.1, -7.75, 100.0, 88.0, -104.0]
        numbers += [
            1e-3,
            1e-5,
            3e4,
            -5e4,
            1e-40,
            -1e-45,
            1e30,
            -1e38,
            1e300,
            5e-324,
            float(info.max),
        ]
        numbers += [
            math.inf,
            -math.inf,
            math.nan,
            1.0 + 2.0**-8,
            1.0 - 2.0**-11,
            0.3333333333333333,
        ]
    else:
        top = 2 ** (8 * dtype.nbytes)
        numbers = [
            0,
            1,
            2,
            3,
            5,
            7,
            10,
            100,
            -1,
            -2,
            -3,
            -7,
            top // 2,
            top // 2 - 1,
            top - 1,
            46341,
        ]
        numbers += [top // 3, -top // 5, 255, 256]
    return tuple(dict.fromkeys((round_to(n, dtype), repr(round_to(n, dtype))) for n in numbers))


def values(dtype: DType) -> list[Any]:
    return [number for number, _ in samples(dtype)]


def columns(dtype: DType, count: int) -> list[tuple[Any, ...]]:
    """Return the operands: every combination of two samples; a third one from the samples in turn."""
    numbers = values(dtype)
    if count == 1:
        return [(number,) for number in numbers]
    pairs = [(a, b) for a in numbers for b in numbers]
    if count == 2:
        return pairs
    return [(a, b, numbers[(7 * k) % len(numbers)]) for k, (a, b) in enumerate(pairs)]


def applied(op: Op, operands: list[Expr], dtype: DType) -> Expr:
    match op:
        case UnaryOp():
            return Unary(op, *operands, dtype)
        case BinaryOp():
            return Binary(op, *operands, dtype)
        case TernaryOp():
            return Ternary(op, *operands, dtype)


@pytest.fixture(scope="module")
def computed(run):
    """Return a function from a format to the results of every primitive in it: one compilation each."""
    known: dict[DType, dict[Op, list[Any]]] = {}

    def results(dtype: DType) -> dict[Op, list[Any]]:
        if dtype not in known:
            known[dtype] = compute(run, dtype)
        return known[dtype]

    return results


def compute(run, dtype: DType) -> dict[Op, list[Any]]:
    nodes: dict[TensorNode, NodeInfo] = {}
    inputs: dict[TensorNode, Any] = {}
    operands: dict[int, list[TensorNode]] = {}
    for count in (1, 2, 3):
        cells = columns(dtype, count)
        operands[count] = []
        for position in range(count):
            node = TensorNode(len(nodes), ("x",))
            nodes[node] = NodeInfo(dtype, (len(cells),))
            inputs[node] = np.array([row[position] for row in cells], dtype.numpy)
            operands[count].append(node)
    steps, outputs = [], {}
    for op in OPS:
        count = arity(op)
        out = outputs[op] = TensorNode(len(nodes), ("out",))
        nodes[out] = nodes[operands[count][0]]
        var = fresh_var()
        loads: list[Expr] = [Load(node, (VarIndex(var),), dtype) for node in operands[count]]
        store = Store(out, (VarIndex(var),), applied(op, loads, dtype))
        loop = For(var, 0, nodes[out].size, Block((store,)))
        steps.append(Kernel(Block((loop,)), (out, *operands[count]), ()))
    results = run(Plan("all", tuple(steps), tuple(nodes), (), (), nodes), inputs)
    kind = float if dtype.is_float else int
    return {op: [kind(cell) for cell in results[out]] for op, out in outputs.items()}


def distance(a: float, b: float, dtype: DType) -> float:
    """Return how many numbers of a float format lie between two."""
    return abs(_ordinal(a, dtype) - _ordinal(b, dtype))


def _ordinal(value: float, dtype: DType) -> int:
    pattern = int.from_bytes(np.array(value, dtype.numpy).tobytes(), "little")
    top = 1 << (8 * dtype.nbytes - 1)
    return -(pattern - top) if pattern & top else pattern


def same(a: float, b: float) -> bool:
    """True of equal numbers; zeros differ by their sign, one NaN is as good as another."""
    if a != a or b != b:
        return a != a and b != b
    return a == b and math.copysign(1.0, a) == math.copysign(1.0, b)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.value.name)
def test_a_primitive_computes_its_meaning_in_every_format(computed, op, dtype):
    got = computed(dtype)[op]
    for operands, result in zip(columns(dtype, arity(op)), got, strict=True):
        expected = round_to(op.value.meaning(*operands), dtype)
        if op.value.ulps and dtype.is_float and math.isfinite(expected) and expected != 0:
            assert distance(result, expected, dtype) <= PLACES, (operands, result, expected)
        else:
            assert same(result, expected), (operands, result, expected)


@pytest.mark.parametrize("source", FLOATS + INTEGERS, ids=str)
def test_a_conversion_rounds_floats_and_wraps_integers(run, source):
    x = TensorNode(0, ("x",))
    numbers = values(source)
    if source.is_float:
        numbers += [
            round_to(n, source)
            for n in (
                2.0**31 + 2**8,
                -(2.0**40) - 2**20,
                2.0**63,
                3e19,
                65519.0,
                65520.0,
                65536.0,
                61439.0,
                61440.0,
                2.0**-15,
                3 * 2.0**-17,
                2.0**-25,
                2.0**-17,
            )
        ]
    nodes = {x: NodeInfo(source, (len(numbers),))}
    outputs = {}
    steps = []
    for target in FLOATS + INTEGERS:
        out = outputs[target] = TensorNode(len(nodes), ("out",))
        nodes[out] = NodeInfo(target, (len(numbers),))
        var = fresh_var()
        value = Unary(UnaryOp.IDENTITY, Load(x, (VarIndex(var),), source), target)
        loop = For(var, 0, len(numbers), Block((Store(out, (VarIndex(var),), value),)))
        steps.append(Kernel(Block((loop,)), (out, x), ()))
    plan = Plan("convert", tuple(steps), tuple(nodes), (), (), nodes)
    results = run(plan, {x: np.array(numbers, source.numpy)})
    for target, out in outputs.items():
        for number, cell in zip(numbers, results[out], strict=True):
            got = float(cell) if target.is_float else int(cell)
            assert same(got, round_to(number, target)), (number, target, got)
