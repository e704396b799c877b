"""Fused multiply-adds and powers as products: results and their errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

import ocannl_core.base.settings
from ocannl_core.ir.indexing import fresh_var
from ocannl_core.ir.loops.nodes import (
    Binary,
    Const,
    DeclareLocal,
    Expr,
    Local,
    LocalRead,
    SetLocal,
    Ternary,
    Unary,
)
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.ir.loops.verify import verify
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType, bfloat16, float16, float32, float64, int32
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.passes.loops.decisions import Decisions
from ocannl_core.passes.loops.fma_contraction import contract_to_fma
from ocannl_core.passes.loops.pipeline import core_passes
from ocannl_core.testing.compare import Tolerance, assert_same
from ocannl_core.testing.drafts import Draft, loop

Run = Callable[..., dict[TensorNode, np.ndarray[Any, Any]]]
I = fresh_var("i")  # noqa: E741


def contracted(value: Callable[[Expr, Expr, Expr], Expr], dtype: DType = float32) -> str:
    draft = Draft("p")
    nodes = [draft.node(name, dtype, 4) for name in "abcr"]
    a, b, c = (draft.load(node, I) for node in nodes[:3])
    program = draft.program(loop(I, 4, draft.store(nodes[3], I, value=value(a, b, c))))
    found = contract_to_fma(program)
    verify(found)
    assert contract_to_fma(found) is found
    return "; ".join(line.strip() for line in to_text(found).splitlines()[2:])


def of(op: BinaryOp, left: Expr, right: Expr | float) -> Expr:
    other = Const(right, left.dtype) if isinstance(right, float | int) else right
    return Binary(op, left, other, left.dtype)


def test_sums_of_products_are_fused() -> None:
    add, sub, mul = BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL
    assert [
        contracted(lambda a, b, c: of(add, of(mul, a, b), c)),
        contracted(lambda a, b, c: of(add, c, of(mul, a, b))),
        contracted(lambda a, b, c: of(add, of(mul, a, 2.0), 1.0)),
        contracted(lambda a, b, c: of(sub, of(mul, a, b), c)),
        contracted(lambda a, b, c: of(sub, of(mul, a, b), 1.0)),
        contracted(lambda a, b, c: of(sub, c, of(mul, a, b))),
        contracted(lambda a, b, c: of(sub, c, of(mul, a, 0.1))),
        contracted(lambda a, b, c: of(add, of(mul, a, b), of(mul, b, c))),
        contracted(lambda a, b, c: of(add, of(mul, a, b), c), int32),
    ] == snapshot(
        [
            "r[i] = fma(a[i], b[i], c[i])",
            "r[i] = fma(a[i], b[i], c[i])",
            "r[i] = fma(a[i], 2.0, 1.0)",
            "r[i] = fma(a[i], b[i], -c[i])",
            "r[i] = fma(a[i], b[i], -1.0)",
            "r[i] = fma(-a[i], b[i], c[i])",
            "r[i] = fma(a[i], -0.1, c[i])",
            "r[i] = fma(b[i], c[i], a[i] * b[i])",
            "r[i] = a[i] * b[i] + c[i]",
        ]
    )


def test_powers_become_products() -> None:
    assert {
        n: contracted(lambda a, b, c, n=n: of(BinaryOp.POW, a, float(n)))  # type: ignore[misc]
        for n in (3, 4, 6, 8, 9, -2, 0.5)
    } == snapshot(
        {
            3: "r[i] = a[i] * a[i] * a[i]",
            4: "r[i] = v; where v: float32; v = a[i] * a[i]; v *= v",
            6: "r[i] = v; where v: float32; v = a[i] * a[i] * a[i]; v *= v",
            8: "r[i] = v; where v: float32; v = a[i] * a[i]; v *= v; v *= v",
            9: "r[i] = a[i] ** 9.0",
            -2: "r[i] = recip(a[i] * a[i])",
            0.5: "r[i] = a[i] ** 0.5",
        }
    )


@pytest.mark.parametrize("dtype", [float32, float64, float16, bfloat16], ids=str)
@pytest.mark.parametrize("exponent", [3, 4, 5, 7, 8, -2, -3, -8])
def test_a_power_is_within_its_exponent_in_units_in_the_last_place(
    interpret: Run, dtype: DType, exponent: int
) -> None:
    draft = Draft("p")
    a, r = draft.node("a", dtype, 400), draft.node("r", dtype, 400)
    power = of(BinaryOp.POW, draft.load(a, I), float(exponent))
    program = draft.program(loop(I, 400, draft.store(r, I, value=power)))
    magnitudes = 2.0 ** np.random.default_rng(8 + exponent).uniform(-1.5, 1.5, 400)
    signs = np.where(np.arange(400) % 2, 1.0, -1.0)
    arrays = {a: (magnitudes * signs).astype(dtype.numpy)}
    assert_same(
        interpret(contract_to_fma(program), arrays)[r],
        interpret(program, arrays)[r],
        dtype,
        Tolerance(abs(exponent)),
    )


@st.composite
def polynomials(draw: st.DrawFn, leaves: tuple[Expr, ...], depth: int = 4) -> Expr:
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from(leaves))
    op = draw(st.sampled_from([BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL]))
    left = draw(polynomials(leaves, depth - 1))
    right = draw(polynomials(leaves, depth - 1))
    return of(op, left, right)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_where_products_are_exact_fusing_them_changes_no_bit(
    interpret: Run, data: st.DataObject
) -> None:
    draft = Draft("p")
    a, b, r = (draft.node(name, float64, 8) for name in "abr")
    x, y = draft.load(a, I), draft.load(b, I)
    leaves = (x, y, Const(3.0, float64), Unary(UnaryOp.NEG, x, float64))
    value = data.draw(polynomials(leaves))
    program = draft.program(loop(I, 8, draft.store(r, I, value=value)))
    arrays = {a: [0, 1, -2, 3, 4, -4, math.nan, math.inf], b: [2, -1, 3, 0, -4, 1, 2, 1]}
    found = contract_to_fma(program)
    verify(found)
    for node, cells in interpret(program, arrays).items():
        np.testing.assert_array_equal(interpret(found, arrays)[node], cells)


def test_sums_of_an_innermost_loop_are_not_fused() -> None:
    draft, j = Draft("p"), fresh_var("j")
    a, b, c = (draft.node(name, float32, 4) for name in "abc")
    product = of(BinaryOp.MUL, draft.load(a, j), draft.load(b, j))
    inner = loop(j, 4, draft.accumulate(c, I, op=BinaryOp.ADD, value=product))
    innermost = draft.program(loop(I, 4, inner))
    assert contract_to_fma(innermost) is innermost
    outer = draft.program(
        loop(j, 4, loop(I, 4, draft.accumulate(c, I, op=BinaryOp.ADD, value=product)))
    )
    assert "fma" in to_text(contract_to_fma(outer))
    total = Local(0, float32)
    step = SetLocal(total, of(BinaryOp.ADD, LocalRead(total), product))
    scalar = draft.program(
        DeclareLocal(total), SetLocal(total, Const(0.0, float32)), loop(j, 4, step)
    )
    assert contract_to_fma(scalar) is scalar


def test_expressions_of_any_depth_are_contracted() -> None:
    draft = Draft("p")
    a, r = draft.node("a", float32, 4), draft.node("r", float32, 4)
    value: Expr = draft.load(a, I)
    for _ in range(2000):
        value = of(BinaryOp.ADD, of(BinaryOp.MUL, value, 2.0), 1.0)
    program = contract_to_fma(draft.program(loop(I, 4, draft.store(r, I, value=value))))
    assert sum(isinstance(node, Ternary) for node in walk(program.body)) == 2000


def test_a_fused_multiply_add_rounds_once(interpret: Run) -> None:
    draft = Draft("p")
    a, r = draft.node("a", float32), draft.node("r", float32)
    value = of(BinaryOp.SUB, of(BinaryOp.MUL, draft.load(a), draft.load(a)), 1.0)
    program = draft.program(draft.store(r, value=value))
    arrays = {a: np.float32(1 + 2**-12)}
    assert interpret(program, arrays)[r] == 2**-11
    assert interpret(contract_to_fma(program), arrays)[r] == 2**-11 + 2**-24


def test_a_target_without_fused_multiply_adds_keeps_products_and_sums() -> None:
    draft = Draft("p")
    a, r = draft.node("a", float32), draft.node("r", float32)
    square = of(BinaryOp.POW, draft.load(a), 2.0)
    program = draft.program(
        draft.store(r, value=of(BinaryOp.SUB, of(BinaryOp.MUL, draft.load(a), draft.load(a)), 1.0))
    )
    assert contract_to_fma(program, has_fma=False) is program
    powers = draft.program(draft.store(r, value=square))
    assert contract_to_fma(powers, has_fma=False) == contract_to_fma(powers)


def test_a_setting_switches_contraction_off() -> None:
    with ocannl_core.base.settings.overrides(contract=False):
        assert "contract" not in [each.name for each in core_passes(Decisions({}))]
    assert "contract" in [each.name for each in core_passes(Decisions({}))]
