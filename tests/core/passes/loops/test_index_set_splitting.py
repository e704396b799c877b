"""Loops split where conditions on their variables change give the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from ocannl_core.base.origin import Location, Origin
from ocannl_core.ir.indexing import AxisIndex, LoopVar, VarIndex, affine, fresh_var
from ocannl_core.ir.loops.nodes import (
    AxisKind,
    Binary,
    Block,
    Const,
    Expr,
    Fill,
    For,
    IndexValue,
    LoopProgram,
    Remark,
    Stmt,
    Ternary,
    Unary,
)
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.ir.loops.verify import verify
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.dtypes import DType, float32, int64
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp
from ocannl_core.passes.loops.cse import eliminate_common_subexpressions
from ocannl_core.passes.loops.index_set_splitting import split_index_sets
from ocannl_core.passes.loops.simplify import simplify
from ocannl_core.testing.drafts import Draft, loop

Run = Callable[..., dict[TensorNode, np.ndarray[Any, Any]]]
I, J, K = (fresh_var(name) for name in "ijk")  # noqa: E741


def where(condition: Expr, first: Expr, second: Expr) -> Expr:
    return Ternary(TernaryOp.WHERE, condition, first, second, first.dtype)


def compare(op: BinaryOp, index: AxisIndex | LoopVar, number: float, dtype: DType = int64) -> Expr:
    position = VarIndex(index) if isinstance(index, LoopVar) else index
    return Binary(op, IndexValue(position, dtype), Const(number, dtype), int64)


def split_text(draft: Draft, *stmts: Stmt) -> str:
    program = draft.program(*stmts)
    verify(program)
    found = split_index_sets(program)
    verify(found)
    return "\n" + "\n".join(to_text(found).splitlines()[1:]) + "\n"


def concatenation(d: Draft, *, parallel: bool = False) -> For:
    a, b, c = d.node("a", float32, 4), d.node("b", float32, 6), d.node("c", float32, 10)
    inner = where(compare(BinaryOp.LE, I, 3), d.load(a, I), Const(0.0, float32))
    other = Binary(BinaryOp.LE, Const(0, int64), IndexValue(affine([(1, I)], -4), int64), int64)
    chosen = where(other, d.load(b, affine([(1, I)], -4)), inner)
    kind = AxisKind.PARALLEL if parallel else AxisKind.SERIAL
    return loop(I, 10, d.store(c, I, value=chosen), kind=kind)


def test_the_parts_of_a_concatenation_are_loops_of_their_own() -> None:
    d = Draft("p")
    origin = Origin("concat", Location("model.py", 3))
    assert split_text(d, Remark("c = a ++ b", origin), concatenation(d)) == snapshot("""\

    # c = a ++ b
    for i in range(4):
        c[i] = a[i]
    # c = a ++ b
    for i in range(4, 10):
        c[i] = b[i - 4]
""")


def test_a_frame_is_cut_row_by_row_and_its_rows_where_they_need_it() -> None:
    d = Draft("p")
    x, c = d.node("x", float32, 8, 8), d.node("c", float32, 10, 10)
    inside: Expr = Const(1.0, int64)
    for var in (I, J):
        for test in (compare(BinaryOp.LT, var, 9), compare(BinaryOp.NE, var, 0)):
            inside = Binary(BinaryOp.AND, inside, test, int64)
    cell = d.load(x, affine([(1, I)], -1), affine([(1, J)], -1))
    store = d.store(c, I, J, value=where(inside, cell, Const(0.0, float32)))
    assert split_text(d, loop(I, 10, loop(J, 10, store))) == snapshot("""\

    for j in range(10):
        c[0, j] = 0.0
    for i in range(1, 9):
        c[i, 0] = 0.0
        for j in range(1, 9):
            c[i, j] = x[i - 1, j - 1]
        c[i, 9] = 0.0
    for j in range(10):
        c[9, j] = 0.0
""")


def test_a_short_loop_around_another_one_is_cut() -> None:
    d = Draft("p")
    x, c = d.node("x", float32, 3, 10), d.node("c", float32, 3, 10)
    rolled = where(compare(BinaryOp.LT, I, 1), d.load(x, affine([(1, I)], 2), J), d.load(x, I, J))
    store = d.store(c, I, J, value=rolled)
    assert split_text(d, loop(I, 3, loop(J, 10, store))) == snapshot("""\

    for j in range(10):
        c[0, j] = x[2, j]
    for i in range(1, 3):
        for j in range(10):
            c[i, j] = x[i, j]
""")


def test_one_position_is_cut_out_of_a_loop() -> None:
    d = Draft("p")
    x, c = d.node("x", float32, 10), d.node("c", float32, 10)
    is_sixth = Binary(BinaryOp.EQ, IndexValue(affine([(2, I)], -10), int64), Const(0, int64), int64)
    store = d.store(c, I, value=where(is_sixth, Const(1.0, float32), d.load(x, I)))
    assert split_text(d, loop(I, 10, store)) == snapshot("""\

    for i in range(5):
        c[i] = x[i]
    c[5] = 1.0
    for i in range(6, 10):
        c[i] = x[i]
""")


def unchanged(d: Draft, *stmts: Stmt) -> bool:
    program = d.program(*stmts)
    return split_index_sets(program) is program


def test_loops_that_are_not_split() -> None:
    d = Draft("p")
    x, c, total = d.node("x", float32, 10), d.node("c", float32, 10), d.node("t", float32)
    early = where(compare(BinaryOp.LT, I, 4), d.load(x, I), Const(0.0, float32))
    assert unchanged(d, loop(I, 10, d.accumulate(total, op=BinaryOp.ADD, value=early))), "a sum"
    assert unchanged(d, loop(I, 7, d.store(c, I, value=early))), "a short loop"
    below = Binary(
        BinaryOp.LE, IndexValue(VarIndex(J), int64), IndexValue(VarIndex(I), int64), int64
    )
    triangle = d.node("m", float32, 10, 10)
    masked = where(below, d.load(x, J), Const(0.0, float32))
    both = loop(I, 10, loop(J, 10, d.store(triangle, I, J, value=masked)))
    assert unchanged(d, both), "a condition on two loops"
    wrapped = where(compare(BinaryOp.LT, I, 4, dtypes.uint8), d.load(x, 0), d.load(x, 1))
    long = d.node("l", float32, 300)
    assert unchanged(d, loop(I, 300, d.store(long, I, value=wrapped))), "a counter that wraps"
    stripes: Expr = d.load(x, I)
    for place in (1, 3, 5, 7):
        stripes = where(compare(BinaryOp.EQ, I, place), Const(0.0, float32), stripes)
    assert unchanged(d, loop(I, 10, d.store(c, I, value=stripes))), "too many parts"
    other = Draft("p")
    assert unchanged(other, concatenation(other, parallel=True)), "iterations on other threads"


def test_an_expression_of_any_size_is_cut_only_while_the_code_stays_small() -> None:
    d = Draft("p")
    x, c = d.node("x", float32, 10), d.node("c", float32, 10)
    value: Expr = d.load(x, I)
    for _ in range(2000):
        value = Unary(UnaryOp.SIN, value, float32)
    store = d.store(c, I, value=where(compare(BinaryOp.LT, I, 4), value, d.load(x, I)))
    assert unchanged(d, loop(I, 10, store))


def test_variables_of_a_part_are_its_own(interpret: Run) -> None:
    d = Draft("p")
    x, c = d.node("x", float32, 10), d.node("c", float32, 10)
    sine = Unary(UnaryOp.SIN, d.load(x, I), float32)
    square = Binary(BinaryOp.MUL, sine, sine, float32)
    nest = loop(I, 10, d.store(c, I, value=where(compare(BinaryOp.LT, I, 4), square, d.load(x, I))))
    whole = d.program(nest)
    shared = eliminate_common_subexpressions(whole)
    found = split_index_sets(shared)
    verify(found)
    verify(eliminate_common_subexpressions(found))
    cells = np.linspace(-2, 2, 10)
    assert interpret(found, {x: cells})[c].tobytes() == interpret(whole, {x: cells})[c].tobytes()


FORMATS = (int64, float32, dtypes.uint8, dtypes.int32, dtypes.float16, dtypes.float8_e5m2)


@st.composite
def conditions(draw: st.DrawFn, depth: int = 2) -> Expr:
    """Conditions on the positions of two loops, composed of comparisons."""
    if depth and draw(st.booleans()):
        if draw(st.booleans()):
            return Unary(UnaryOp.NOT, draw(conditions(depth - 1)), int64)
        op = draw(st.sampled_from([BinaryOp.AND, BinaryOp.OR]))
        return Binary(op, draw(conditions(depth - 1)), draw(conditions(depth - 1)), int64)
    dtype = draw(st.sampled_from(FORMATS))
    terms = [(draw(st.integers(-3, 3)), var) for var in draw(st.sampled_from([(I,), (J,), (I, J)]))]
    position = IndexValue(affine(terms, draw(st.integers(-9, 9))), dtype)
    number = Const(float(draw(st.integers(-12, 12))) / draw(st.sampled_from([1, 1, 2])), dtype)
    pair = (position, number) if draw(st.booleans()) else (number, position)
    op = draw(st.sampled_from([BinaryOp.LT, BinaryOp.LE, BinaryOp.EQ, BinaryOp.NE]))
    return Binary(op, *pair, int64)


@st.composite
def guarded_nests(draw: st.DrawFn) -> tuple[LoopProgram, TensorNode, TensorNode]:
    """Nests of two loops that select by position; with the node they read and the one they
    write.
    """
    d = Draft("p")
    rows, columns = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    x, c = d.node("x", float32, 12, 12), d.node("c", float32, 12, 12)
    choices: list[Expr] = [
        d.load(x, I, J),
        Unary(UnaryOp.NEG, d.load(x, J, I), float32),
        IndexValue(affine([(12, I), (1, J)]), float32),
        d.load(c, I, J),
        Const(-0.0, float32),
    ]
    value = draw(st.sampled_from(choices))
    for _ in range(draw(st.integers(1, 3))):
        value = where(draw(conditions()), draw(st.sampled_from(choices)), value)
    first, second = draw(st.integers(0, rows - 1)), draw(st.integers(0, columns - 1))
    inner = For(J, second, columns, Block((d.store(c, I, J, value=value),)))
    return d.program(Fill(c, 5.0), For(I, first, rows, Block((inner,)))), x, c


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(guarded_nests())
def test_cut_loops_keep_every_bit_and_have_nothing_left_to_cut(
    interpret: Run, nest: tuple[LoopProgram, TensorNode, TensorNode]
) -> None:
    program, x, c = nest
    found = split_index_sets(program)
    verify(found)
    cells = np.linspace(-1, 1, 144).reshape(12, 12)
    before, after = (
        interpret(each, {x: cells} if x in each.params else {}) for each in (program, found)
    )
    assert before[c].tobytes() == after[c].tobytes()


@pytest.mark.parametrize("factor", [-3, -2, -1, 1, 2, 3])
@pytest.mark.parametrize("op", [BinaryOp.LT, BinaryOp.LE, BinaryOp.EQ, BinaryOp.NE])
def test_a_condition_on_one_loop_is_decided_in_every_part(
    interpret: Run, op: BinaryOp, factor: int
) -> None:
    d = Draft("p")
    c = d.node("c", float32, 16)
    for offset in range(-9, 10):
        test = compare(op, affine([(factor, I)], offset), 0)
        value = where(test, Const(1.0, float32), IndexValue(VarIndex(I), float32))
        program = d.program(loop(I, 16, d.store(c, I, value=value)))
        found = split_index_sets(simplify(program))
        assert not any(isinstance(each, Ternary) for each in walk(found.body))
        assert interpret(found)[c].tobytes() == interpret(program)[c].tobytes()
