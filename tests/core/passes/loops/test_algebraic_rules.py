"""The algebra of simplification: both sides of every law have the same bits."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from ocannl_core.ir.indexing import FixedIndex, VarIndex, fresh_var
from ocannl_core.ir.loops.nodes import (
    Binary,
    Block,
    Const,
    ConstBits,
    DeclareLocal,
    Expr,
    IndexValue,
    Local,
    LocalRead,
    LoopProgram,
    Scoped,
    SetLocal,
    Store,
    Ternary,
    Unary,
)
from ocannl_core.ir.loops.printer import TextPrinter
from ocannl_core.ir.loops.traverse import children, fold, walk
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import (
    ALL,
    DType,
    Number,
    bfloat16,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    holds,
    int32,
    int64,
    round_to,
    uint4x32,
    uint8,
)
from ocannl_core.ir.numbers.primitives import (
    COMPARISONS,
    HASHES,
    BinaryOp,
    Signature,
    TernaryOp,
    UnaryOp,
)
from ocannl_core.passes.loops.algebraic_rules import RULES, orders_of
from ocannl_core.passes.loops.simplify import simplify_expr
from tests.support.example_count import example_count

NUMBERS = tuple(dtype for dtype in ALL if dtype is not uint4x32)
SPECIAL = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -4.0, math.inf, -math.inf, math.nan)
U, B, T = UnaryOp, BinaryOp, TernaryOp
I = fresh_var("i")  # noqa: E741


def evaluate(expr: Expr, env: Mapping[int, Number]) -> Number:
    """The value of an expression by the meanings of its primitives; variable `k` starts as `env[k]`."""
    match expr:
        case LocalRead(local):
            return round_to(env[local.id], local.dtype)
        case Const(value, dtype):
            return round_to(value, dtype)
        case ConstBits(bits, dtype):
            return (
                (bits & 0xFFFFFFFF, bits >> 32, 0, 0)
                if dtype is uint4x32
                else round_to(bits, dtype)
            )
        case Unary(op, arg, dtype):
            return round_to(op.value.meaning(evaluate(arg, env)), dtype)
        case Binary(op, left, right, dtype):
            return round_to(op.value.meaning(evaluate(left, env), evaluate(right, env)), dtype)
        case Ternary(op, first, second, third, dtype):
            args = [evaluate(each, env) for each in (first, second, third)]
            return round_to(op.value.meaning(*args), dtype)
        case Scoped(local, body):
            inner = dict(env)
            for stmt in body.stmts:
                if isinstance(stmt, DeclareLocal):
                    continue
                assert isinstance(stmt, SetLocal)
                inner[stmt.local.id] = evaluate(stmt.value, inner)
            return inner[local.id]
        case _:
            raise AssertionError(expr)


def same(left: Number, right: Number) -> bool:
    if isinstance(left, tuple) or isinstance(right, tuple):
        return bool(left == right)
    if left != left or right != right:
        return left != left and right != right
    return float(left).hex() == float(right).hex() and left == right


_UNARY = [op for op in U if op is not U.IDENTITY and op.value.signature is Signature.NUMBERS]
_BINARY = [op for op in B if op not in (*HASHES, B.POW, *COMPARISONS)]


@st.composite
def expressions(draw: st.DrawFn, dtype: DType, depth: int = 3) -> Expr:
    def smaller(of: DType) -> Expr:
        return draw(expressions(of, depth - 1))

    kind = draw(
        st.sampled_from(["local", "constant"] if depth == 0 else [*"ucbbbbtpk", "constant"])
    )
    match kind:
        case "local":
            return LocalRead(Local(draw(st.integers(0, 2)) + 3 * NUMBERS.index(dtype), dtype))
        case "constant":
            return Const(round_to(draw(st.sampled_from(SPECIAL)), dtype), dtype)
        case "u":
            return Unary(draw(st.sampled_from(_UNARY)), smaller(dtype), dtype)
        case "c":
            return Unary(U.IDENTITY, smaller(draw(st.sampled_from(NUMBERS))), dtype)
        case "k":
            between = draw(st.sampled_from(NUMBERS))
            op = draw(st.sampled_from(sorted(COMPARISONS, key=lambda each: each.value.name)))
            return Binary(op, smaller(between), smaller(between), dtype)
        case "p":
            whole = range(3, 20) if dtype.is_integer else ()
            exponent = draw(st.sampled_from((-1.0, 0.0, 1.0, 2.0, 0.5, *whole)))
            return Binary(B.POW, smaller(dtype), Const(round_to(exponent, dtype), dtype), dtype)
        case "t":
            op = draw(st.sampled_from([T.WHERE, T.FMA]))
            return Ternary(op, smaller(dtype), smaller(dtype), smaller(dtype), dtype)
        case _:
            return Binary(draw(st.sampled_from(_BINARY)), smaller(dtype), smaller(dtype), dtype)


VALUES = st.one_of(
    st.sampled_from(SPECIAL), st.floats(allow_nan=True), st.floats(-4, 4), st.integers(-300, 300)
)
ENVS = st.lists(VALUES, min_size=3 * len(NUMBERS), max_size=3 * len(NUMBERS)).map(
    lambda values: dict(enumerate(values))
)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@settings(max_examples=example_count(12), deadline=None)
@given(data=st.data())
def test_simplified_expressions_have_the_same_bits(dtype: DType, data: st.DataObject) -> None:
    expr = data.draw(expressions(dtype))
    simpler = simplify_expr(expr)
    assert simpler.dtype is dtype
    env = data.draw(ENVS)
    assert same(evaluate(simpler, env), evaluate(expr, env))


X, Y = (LocalRead(Local(number, float32)) for number in (0, 1))
N = LocalRead(Local(2, int32))
H = LocalRead(Local(3, float16))


def const(value: float, dtype: DType = float32) -> Const:
    return Const(value, dtype)


def neg(x: Expr) -> Unary:
    return Unary(U.NEG, x, x.dtype)


def binary(op: BinaryOp, left: Expr | float, right: Expr | float) -> Binary:
    dtype = left.dtype if not isinstance(left, float) else right.dtype  # type: ignore[union-attr]
    first = const(left, dtype) if isinstance(left, float) else left
    second = const(right, dtype) if isinstance(right, float) else right
    return Binary(op, first, second, dtype)


def convert(x: Expr, dtype: DType) -> Unary:
    return Unary(U.IDENTITY, x, dtype)


IS_LESS = binary(B.LT, X, Y)
EXAMPLES: tuple[Expr, ...] = (
    binary(B.ADD, X, -0.0),
    binary(B.ADD, X, 0.0),
    binary(B.ADD, 0.0, Unary(U.EXP, X, float32)),
    binary(B.ADD, N, 0.0),
    binary(B.SUB, X, 0.0),
    binary(B.SUB, X, -0.0),
    binary(B.SUB, 0.0, X),
    binary(B.SUB, -0.0, X),
    binary(B.SUB, 0.0, N),
    binary(B.ADD, X, neg(Y)),
    binary(B.ADD, neg(X), Y),
    binary(B.SUB, X, neg(Y)),
    binary(B.MUL, X, 1.0),
    binary(B.MUL, 1.0, X),
    binary(B.MUL, X, -1.0),
    binary(B.MUL, neg(X), neg(Y)),
    binary(B.DIV, neg(X), neg(Y)),
    binary(B.MUL, X, 0.0),
    binary(B.MUL, IS_LESS, 0.0),
    binary(B.MUL, N, 0.0),
    binary(B.DIV, 0.0, N),
    binary(B.DIV, 0.0, X),
    binary(B.DIV, X, 1.0),
    binary(B.DIV, X, -1.0),
    binary(B.DIV, X, 4.0),
    binary(B.DIV, X, 3.0),
    binary(B.DIV, X, 2.0**-149),
    binary(B.POW, X, 0.0),
    binary(B.POW, X, 1.0),
    binary(B.POW, X, -1.0),
    binary(B.POW, X, 2.0),
    binary(B.POW, X, 3.0),
    binary(B.POW, X, 4.0),
    binary(B.POW, Unary(U.EXP, X, float32), 2.0),
    binary(B.POW, X, 0.5),
    binary(B.POW, N, 3.0),
    binary(B.POW, N, 13.0),
    binary(B.POW, neg(N), 3.0),
    binary(B.ADD, binary(B.ADD, 5.0, N), 7.0),
    binary(B.SUB, binary(B.SUB, N, 5.0), 7.0),
    binary(B.ADD, binary(B.SUB, 5.0, N), 7.0),
    binary(B.SUB, 5.0, binary(B.ADD, 7.0, N)),
    binary(B.SUB, 5.0, binary(B.SUB, N, 7.0)),
    binary(B.SUB, 5.0, binary(B.SUB, 7.0, N)),
    binary(B.ADD, binary(B.ADD, X, 5.0), 7.0),
    binary(B.SUB, 5.0, binary(B.ADD, 7.0, X)),
    binary(B.SUB, N, N),
    binary(B.SUB, X, X),
    binary(B.MUL, binary(B.MUL, N, 2.0**16), 2.0**16),
    binary(B.MUL, binary(B.MUL, X, 2.0), -4.0),
    binary(B.MUL, binary(B.MUL, X, 0.5), 0.5),
    binary(B.MUL, binary(B.MUL, X, 3.0), 5.0),
    binary(B.DIV, binary(B.DIV, X, 3.0), 5.0),
    binary(B.MAX, N, -(2.0**31)),
    binary(B.MIN, X, X),
    binary(B.AND, X, 0.0),
    binary(B.OR, 2.0, X),
    binary(B.LT, X, X),
    binary(B.EQ, X, X),
    binary(B.EQ, N, N),
    binary(B.NE, IS_LESS, 0.0),
    binary(B.EQ, IS_LESS, 0.0),
    Ternary(T.WHERE, IS_LESS, const(1.0), const(0.0), float32),
    Unary(U.NOT, Unary(U.NOT, IS_LESS, float32), float32),
    Ternary(T.FMA, X, const(-1.0), Y, float32),
    binary(B.MAX, X, -math.inf),
    binary(B.MIN, math.inf, X),
    binary(B.MAX, X, 0.0),
    binary(B.OR, IS_LESS, 0.0),
    binary(B.AND, 1.0, IS_LESS),
    binary(B.OR, X, 0.0),
    binary(B.FIRST, X, Y),
    binary(B.SECOND, X, Y),
    binary(B.RELU_GATE, 2.0, X),
    binary(B.SAT01_GATE, 2.0, X),
    Ternary(T.WHERE, const(1.0), X, Y, float32),
    Ternary(T.WHERE, const(0.0, uint8), X, Y, float32),
    Ternary(T.WHERE, Unary(U.NOT, X, float32), X, Y, float32),
    Ternary(T.WHERE, X, Y, Y, float32),
    Ternary(T.FMA, X, const(1.0), Y, float32),
    Ternary(T.FMA, const(1.0), X, Y, float32),
    Ternary(T.FMA, X, Y, const(-0.0), float32),
    Ternary(T.FMA, X, Y, const(0.0), float32),
    neg(neg(X)),
    Unary(U.RELU, Unary(U.RELU, X, float32), float32),
    Unary(U.SAT01, Unary(U.SAT01, X, float32), float32),
    Unary(U.TRUNC, Unary(U.TRUNC, X, float32), float32),
    Unary(U.TRUNC, N, int32),
    Unary(U.NOT, binary(B.EQ, X, Y), float32),
    Unary(U.NOT, binary(B.NE, X, Y), float32),
    Unary(U.NOT, IS_LESS, float32),
    convert(X, float32),
    convert(convert(H, float32), float16),
    convert(convert(H, float32), float64),
    convert(convert(X, float16), float32),
    convert(convert(N, float32), int64),
    convert(convert(N, float64), float32),
    binary(B.ADD, const(2.0), 3.0),
    binary(B.ADD, const(0.1, float16), 0.2),
    binary(B.MUL, const(200, uint8), const(2, uint8)),
    Unary(U.SQRT, const(-1.0), float32),
    Unary(U.UNIFORM, ConstBits(0x80000000, uint4x32), float32),
    Unary(U.WORD, const(7, int64), uint4x32),
    IndexValue(FixedIndex(3), float32),
    Binary(B.EQ, IndexValue(VarIndex(I), int32), IndexValue(VarIndex(I), int32), float32),
    Binary(B.LT, IndexValue(VarIndex(I), int32), IndexValue(VarIndex(I), int32), float32),
)

_OUT = TensorNode(0, ("out",))


def text(expr: Expr) -> str:
    info = {_OUT: NodeInfo(expr.dtype, ())}
    program = LoopProgram("p", (_OUT,), (), info, Block(()))
    return " ".join(
        "\n".join(TextPrinter(program).lines(Store(_OUT, (), expr))).split()
    ).removeprefix("out = ")


def test_examples_of_all_laws() -> None:
    assert {text(expr): text(simplify_expr(expr)) for expr in EXAMPLES} == snapshot(
        {
            "v + -0.0": "v",
            "v + 0.0": "v + 0.0",
            "0.0 + exp(v)": "exp(v)",
            "v + 0": "v",
            "v - 0.0": "v",
            "v - -0.0": "v - -0.0",
            "0.0 - v": "0.0 - v",
            "-0.0 - v": "-v",
            "0 - v": "-v",
            "v + -v1": "v - v1",
            "-v + v1": "v - v1",
            "v - -v1": "v + v1",
            "v * 1.0": "v",
            "1.0 * v": "v",
            "v * -1.0": "-v",
            "-v * -v1": "v * v1",
            "-v / -v1": "v / v1",
            "v * 0.0": "v * 0.0",
            "(v < v1) * 0.0": "0.0",
            "v * 0": "0",
            "0 / v": "0",
            "0.0 / v": "0.0 / v",
            "v / 1.0": "v",
            "v / -1.0": "-v",
            "v / 4.0": "v * 0.25",
            "v / 3.0": "v / 3.0",
            "v / 1e-45": "v / 1e-45",
            "v ** 0.0": "1.0",
            "v ** 1.0": "v",
            "v ** (-1.0)": "recip(v)",
            "v ** 2.0": "v * v",
            "v ** 3.0": "v ** 3.0",
            "v ** 4.0": "v ** 4.0",
            "exp(v) ** 2.0": "v where v: float32 v = exp(v1) v *= v",
            "v ** 0.5": "v ** 0.5",
            "v ** 3": "v * v * v",
            "v ** 13": "v where v: int32 v = v1 * v1 * v1 v *= v v = v * v * v1",
            "(-v) ** 3": "v where v: int32 v1: int32 v1 = -v2 v = v1 * v1 * v1",
            "5 + v + 7": "v + 12",
            "v - 5 - 7": "v + -12",
            "5 - v + 7": "12 - v",
            "5 - (7 + v)": "-2 - v",
            "5 - (v - 7)": "12 - v",
            "5 - (7 - v)": "v + -2",
            "v + 5.0 + 7.0": "v + 5.0 + 7.0",
            "5.0 - (7.0 + v)": "5.0 - (7.0 + v)",
            "v - v": "v - v",
            "v * 65536 * 65536": "0",
            "v * 2.0 * -4.0": "v * -8.0",
            "v * 0.5 * 0.5": "v * 0.5 * 0.5",
            "v * 3.0 * 5.0": "v * 3.0 * 5.0",
            "v / 3.0 / 5.0": "v / 3.0 / 5.0",
            "max(v, -2147483648)": "v",
            "min(v, v)": "v",
            "v && 0.0": "0.0",
            "2.0 || v": "1.0",
            "v < v": "0.0",
            "v == v": "1",
            "(v < v1) != 0.0": "v < v1",
            "(v < v1) == 0.0": "not(v < v1)",
            "where(v < v1, 1.0, 0.0)": "v < v1",
            "not(not(v < v1))": "v < v1",
            "fma(v, -1.0, v1)": "v - v1",
            "max(v, -inf)": "v",
            "min(inf, v)": "v",
            "max(v, 0.0)": "max(v, 0.0)",
            "v < v1 || 0.0": "v < v1",
            "1.0 && v < v1": "v < v1",
            "v || 0.0": "v || 0.0",
            "first(v, v1)": "v",
            "second(v, v1)": "v",
            "relu_gate(2.0, v)": "v",
            "sat01_gate(2.0, v)": "0.0",
            "where(1.0:float32, v, v1)": "v",
            "where(0:uint8, v, v1)": "v",
            "where(not(v), v, v1)": "where(v, v1, v)",
            "where(v, v1, v1)": "v",
            "fma(v, 1.0, v1)": "v + v1",
            "fma(1.0, v, v1)": "v + v1",
            "fma(v, v1, -0.0)": "v * v1",
            "fma(v, v1, 0.0)": "fma(v, v1, 0.0)",
            "-(-v)": "v",
            "relu(relu(v))": "relu(v)",
            "sat01(sat01(v))": "sat01(v)",
            "trunc(trunc(v))": "trunc(v)",
            "trunc(v)": "v",
            "not(v == v1)": "v != v1",
            "not(v != v1)": "v == v1",
            "not(v < v1)": "not(v < v1)",
            "float32(v)": "v",
            "float16(float32(v))": "v",
            "float64(float32(v))": "float64(v)",
            "float32(float16(v))": "float32(float16(v))",
            "int64(float32(v))": "int64(float32(v))",
            "float32(float64(v))": "float32(v)",
            "2.0 + 3.0": "5.0",
            "0.1 + 0.2": "0.2998046875",
            "200 * 2": "144",
            "word(7:int64)": "0x7",
            "sqrt(-1.0)": "nan",
            "uniform(0x80000000)": "0.5",
            "float32(3)": "3.0",
            "int32(i) == int32(i)": "1.0",
            "int32(i) < int32(i)": "0.0",
        }
    )


def test_every_law_has_an_example() -> None:
    applied = {
        law.text
        for expr in EXAMPLES
        if isinstance(expr, Unary | Binary | Ternary)
        for law in RULES.get(expr.op, ())
        if any(law.replacement(each) is not None for each in orders_of(expr))
    }
    assert applied == {law.text for laws in RULES.values() for law in laws}


@pytest.mark.parametrize("expr", [e for e in EXAMPLES if not isinstance(e, IndexValue)], ids=text)
@settings(max_examples=example_count(12), deadline=None)
@given(values=st.lists(VALUES, min_size=4, max_size=4))
def test_both_sides_of_every_example_have_the_same_bits(expr: Expr, values: list[Number]) -> None:
    if any(isinstance(child, IndexValue) for child in children(expr)):
        return
    env = dict(enumerate(values))
    before, after = evaluate(expr, env), evaluate(simplify_expr(expr), env)
    assert same(before, after)


@pytest.mark.parametrize("outer", NUMBERS, ids=str)
@pytest.mark.parametrize("inner", NUMBERS, ids=str)
def test_a_format_holds_another_if_conversion_there_and_back_keeps_every_number(
    inner: DType, outer: DType
) -> None:
    samples = {round_to(value, inner) for value in (*range(-300, 300), *SPECIAL[:-1])}
    for bits in (8, 11, 16, 24, 31, 32, 53, 63, 64):
        samples |= {round_to(sign * 2**bits + step, inner) for sign in (1, -1) for step in (-1, 1)}
    if inner.is_float:
        samples |= {round_to(2.0**e * 1.9999999, inner) for e in range(-1070, 1024, 3)}
        samples |= {round_to(2.0**e, inner) for e in range(-1074, 1024, 3)}
    kept = all(same(round_to(round_to(each, outer), inner), each) for each in samples)
    if holds(outer, inner):
        assert kept
    elif outer.is_float or not inner.is_float:
        lost = [e for e in samples if round_to(e, outer) != e]
        assert lost


def test_an_expression_of_any_depth_is_simplified() -> None:
    value: Expr = X
    for _ in range(2000):
        value = binary(B.MUL, neg(value), -1.0)
    assert simplify_expr(value) is X


def test_a_power_of_a_large_expression_is_computed_once() -> None:
    for exponent in (2, 3, 5, 16):
        power = simplify_expr(binary(B.POW, binary(B.MUL, N, neg(N)), const(exponent, int32)))
        negations = fold(
            power, lambda node, inner: sum(inner) + (isinstance(node, Unary) and node.op is U.NEG)
        )
        assert negations == 1
        assert not any(isinstance(node, Binary) and node.op is B.POW for node in walk(power))


def test_narrow_floats_and_quotients_by_powers_of_two() -> None:
    for dtype in (float8_e4m3fn, float8_e5m2, float16, bfloat16, float64):
        x = LocalRead(Local(0, dtype))
        quotient = simplify_expr(Binary(B.DIV, x, const(8.0, dtype), dtype))
        assert quotient == Binary(B.MUL, x, const(0.125, dtype), dtype)
