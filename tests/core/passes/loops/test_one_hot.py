"""One-hot reductions: which are reads at a computed position, and that the numbers stay."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from inline_snapshot import snapshot

from ocannl_core.ir.indexing import VarIndex, fresh_var
from ocannl_core.ir.loops.nodes import (
    Binary,
    Block,
    Const,
    Expr,
    Fill,
    For,
    Gather,
    IndexValue,
    Local,
    LocalRead,
    LoopProgram,
    Scoped,
    SetLocal,
    Stmt,
    Ternary,
    Unary,
)
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.ir.loops.verify import verify
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType, float16, float32, int32, uint8
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp
from ocannl_core.passes.loops.one_hot import gather_one_hot
from ocannl_core.testing.drafts import Draft, loop

Run = Callable[..., dict[TensorNode, np.ndarray[Any, Any]]]
D = Draft("p")
TABLE, SMALL = D.node("table", float32, 5), D.node("small", int32, 5)
ID, C, N = D.node("id", float32, 8), D.node("c", float32, 8), D.node("n", int32, 8)
W = D.node("w", float32, 5, 3)
X = D.node("x", float32, 8)
ONE = Const(1.0, float32)
I, J, K = fresh_var("i"), fresh_var("j"), fresh_var("k")  # noqa: E741
IDS = [0.0, 4.0, -0.0, 2.5, -1.0, 5.0, math.nan, math.inf]


def equals(position: Expr, dtype: DType = float32) -> Expr:
    return Binary(BinaryOp.EQ, IndexValue(VarIndex(K), position.dtype), position, dtype)


def where(condition: Expr, value: Expr) -> Expr:
    return Ternary(TernaryOp.WHERE, condition, value, Const(0.0, value.dtype), value.dtype)


def times(left: Expr, right: Expr) -> Expr:
    return Binary(BinaryOp.MUL, left, right, left.dtype)


def summed(term: Expr, *inner: For, extent: int = 5) -> Stmt:
    """Return `c[i] += term` for all `i` and `k`."""
    update: Stmt = D.accumulate(C, I, op=BinaryOp.ADD, value=term)
    for each in inner:
        update = loop(each.var, each.stop, update)
    return loop(I, 8, loop(K, extent, update))


def lines(program: LoopProgram) -> list[str]:
    return [line.removeprefix("    ") for line in to_text(program).splitlines()[1:]]


def found(*body: Stmt, **options: bool) -> LoopProgram:
    program = D.program(*body)
    verify(program)
    rewritten = gather_one_hot(program, **options)
    verify(rewritten)
    assert gather_one_hot(rewritten, **options) is rewritten
    return rewritten


def stays(*body: Stmt) -> bool:
    program = D.program(*body)
    return gather_one_hot(program) is program


def test_a_selection_by_where_is_one_guarded_read(interpret: Run) -> None:
    body = (Fill(C, 0.0), summed(where(equals(D.load(ID, I)), D.load(TABLE, K))))
    rewritten = found(*body)
    assert lines(rewritten) == snapshot(
        ["c[:] = 0.0", "for i in range(8):", "    c[i] = c[i] + gather(table[id[i]]) + 0.0"]
    )
    arrays = {TABLE: [1.5, math.nan, math.inf, -2.0, -0.0], ID: IDS}
    after = interpret(rewritten, arrays)[C]
    np.testing.assert_array_equal(after, interpret(D.program(*body), arrays)[C])
    np.testing.assert_array_equal(after, [1.5, 0, 1.5, 0, 0, 0, 0, 0])
    assert not np.signbit(after).any()


def test_a_selection_in_a_variable_and_with_other_rows(interpret: Run) -> None:
    total = Local(0, float32)
    term = where(Unary(UnaryOp.NOT, equals(D.load(ID, I)), float32), Const(0.0, float32))
    swapped = Ternary(TernaryOp.WHERE, term.first, term.second, D.load(W, K, 2), float32)  # type: ignore[union-attr]
    not_equal = Binary(BinaryOp.NE, D.load(ID, I), IndexValue(VarIndex(K), float32), float32)
    chosen = Ternary(TernaryOp.WHERE, not_equal, Const(0.0, float32), swapped.third, float32)
    step = SetLocal(total, Binary(BinaryOp.ADD, LocalRead(total), chosen, float32))
    value = Scoped(total, Block((SetLocal(total, Const(0.0, float32)), loop(K, 5, step))))
    assert lines(found(loop(I, 8, D.store(C, I, value=value)))) == snapshot(
        ["for i in range(8):", "    c[i] = 0.0 + gather(w[id[i], 2])"]
    )


def test_a_product_of_integers_is_a_selection(interpret: Run) -> None:
    flag = equals(D.load(ID, I), int32)
    update = D.accumulate(N, I, op=BinaryOp.ADD, value=times(D.load(SMALL, K), flag))
    body = (loop(I, 8, loop(K, 5, update)),)
    rewritten = found(*body)
    assert lines(rewritten) == snapshot(["for i in range(8):", "    n[i] += gather(small[id[i]])"])
    arrays = {SMALL: [3, 1, 4, 1, 2**31 - 1], ID: IDS, N: list(range(8))}
    np.testing.assert_array_equal(
        interpret(rewritten, arrays)[N], interpret(D.program(*body), arrays)[N]
    )


def test_a_product_of_floats_is_a_selection_only_with_tables_are_finite(interpret: Run) -> None:
    product = summed(times(equals(D.load(ID, I)), D.load(TABLE, K)))
    assert stays(product)
    rewritten = found(product, tables_are_finite=True)
    assert any(isinstance(node, Gather) for node in walk(rewritten.body))
    finite = {TABLE: [1.5, 2.0, 3.0, -2.0, 7.0], ID: IDS}
    before = D.program(product)
    np.testing.assert_array_equal(interpret(rewritten, finite)[C], interpret(before, finite)[C])
    spoiled = {TABLE: [1.5, math.inf, 3.0, -2.0, 7.0], ID: IDS}
    assert np.isnan(interpret(before, spoiled)[C]).any()
    assert not np.isnan(interpret(rewritten, spoiled)[C]).any()


def test_a_value_computed_from_the_selected_entry_is_guarded(interpret: Run) -> None:
    value = Unary(UnaryOp.EXP, D.load(TABLE, K), float32)
    position = Binary(BinaryOp.ADD, D.load(ID, I), Const(1.0, float32), float32)
    body = (summed(where(equals(position), value)),)
    rewritten = found(*body)
    assert lines(rewritten) == snapshot(
        [
            "for i in range(8):",
            "    v: float32",
            "    v = id[i] + 1.0",
            "    c[i] = c[i] + where((0.0 <= v && v <= 4.0) && v == trunc(v), exp(gather(table[v])), 0.0) + 0.0",
        ]
    )
    arrays = {TABLE: [0.5, 1.0, -1.0, math.nan, math.inf], ID: IDS, C: [-0.0] * 8}
    before, after = (interpret(p, arrays)[C] for p in (D.program(*body), rewritten))
    np.testing.assert_array_equal(before.view(np.int32), after.view(np.int32))


def test_a_loop_over_part_of_a_table_reads_nothing_else(interpret: Run) -> None:
    body = (summed(where(equals(D.load(ID, I)), D.load(TABLE, K)), extent=3),)
    arrays = {TABLE: [1.0, 2.0, 3.0, 4.0, 5.0], ID: IDS}
    rewritten = found(*body)
    assert any(isinstance(node, Gather) for node in walk(rewritten.body))
    np.testing.assert_array_equal(
        interpret(rewritten, arrays)[C], interpret(D.program(*body), arrays)[C]
    )


def test_loops_inside_the_reduction_stay() -> None:
    inner = loop(J, 3)
    term = where(equals(D.load(ID, I)), D.load(W, K, J))
    assert lines(found(summed(term, inner))) == snapshot(
        [
            "for i in range(8):",
            "    for j in range(3):",
            "        c[i] = c[i] + gather(w[id[i], j]) + 0.0",
        ]
    )


@pytest.mark.parametrize("condition", [equals(D.load(ID, I)), D.load(ID, I)])
def test_an_update_of_one_cell_is_a_scatter(interpret: Run, condition: Expr) -> None:
    selects = isinstance(condition, Binary)
    body = loop(
        K,
        5,
        loop(I, 8, D.accumulate(TABLE, K, op=BinaryOp.ADD, value=where(condition, D.load(X, I)))),
    )
    program = D.program(body)
    rewritten = gather_one_hot(program, positive={TABLE})
    verify(rewritten)
    assert (rewritten is not program) is selects
    if not selects:
        return
    assert gather_one_hot(rewritten, positive={TABLE}) is rewritten
    assert lines(rewritten) == snapshot(["for i in range(8):", "    scatter(table[id[i]]) += x[i]"])
    arrays = {
        TABLE: [1.5, 0.0, math.nan, -2.0, math.inf],
        ID: IDS,
        X: [1.0, -2.5, 3.0, math.nan, math.inf, 1.0, 2.0, 4.0],
    }
    np.testing.assert_array_equal(
        interpret(rewritten, arrays)[TABLE], interpret(program, arrays)[TABLE]
    )


def test_an_update_that_may_turn_a_negative_zero_into_zero_stays() -> None:
    update = D.accumulate(TABLE, K, op=BinaryOp.ADD, value=where(equals(D.load(ID, I)), ONE))
    assert stays(loop(I, 8, loop(K, 5, update)))
    found(loop(I, 8, loop(K, 5, update)), tables_are_finite=True)


def test_updates_of_several_cells_stay() -> None:
    flag = equals(D.load(ID, I))
    partial = D.accumulate(TABLE, K, op=BinaryOp.ADD, value=where(flag, ONE))
    assert gather_one_hot(D.program(loop(I, 8, loop(K, 4, partial))), positive={TABLE}).body == (
        D.program(loop(I, 8, loop(K, 4, partial))).body
    )
    for value in (where(flag, D.load(W, K, 0)), where(flag, D.load(TABLE, 1))):
        update = D.accumulate(TABLE, K, op=BinaryOp.ADD, value=value)
        program = D.program(loop(I, 8, loop(K, 5, update)))
        assert gather_one_hot(program, positive={TABLE}) is program


def test_a_converted_integer_selects_without_rounding(interpret: Run) -> None:
    converted = Unary(UnaryOp.IDENTITY, D.load(N, I), float32)
    body = (Fill(C, 0.0), summed(where(equals(converted), D.load(TABLE, K))))
    rewritten = found(*body)
    assert lines(rewritten) == snapshot(
        ["c[:] = 0.0", "for i in range(8):", "    c[i] = c[i] + gather(table[n[i]]) + 0.0"]
    )
    arrays = {TABLE: [1.0, 2.0, 3.0, 4.0, 5.0], N: [0, 4, 5, -1, 2**24 + 1, 3, 2**31 - 1, 1]}
    np.testing.assert_array_equal(
        interpret(rewritten, arrays)[C], interpret(D.program(*body), arrays)[C]
    )


def test_reductions_that_are_no_selections_stay() -> None:
    entry = D.load(TABLE, K)
    assert stays(summed(where(equals(IndexValue(VarIndex(K), float32)), entry)))
    assert stays(summed(where(equals(D.load(C, I)), entry)))
    assert stays(summed(where(equals(D.load(ID, I)), D.load(C, K))))
    assert stays(summed(where(D.load(ID, I), entry)))
    less = Binary(BinaryOp.LT, IndexValue(VarIndex(K), float32), D.load(ID, I), float32)
    assert stays(summed(where(less, entry)))
    other = Ternary(TernaryOp.WHERE, equals(D.load(ID, I)), entry, Const(-1.0, float32), float32)
    assert stays(summed(other))
    scatter = D.accumulate(
        TABLE, K, op=BinaryOp.ADD, value=where(equals(D.load(ID, I)), D.load(C, I))
    )
    assert stays(loop(I, 8, loop(K, 5, scatter)))
    largest = D.accumulate(C, I, op=BinaryOp.MAX, value=where(equals(D.load(ID, I)), entry))
    assert stays(loop(I, 8, loop(K, 5, largest)))


@pytest.mark.parametrize(("dtype", "extent"), [(uint8, 300), (float16, 2050)])
def test_a_counter_that_wraps_or_rounds_selects_several_entries(dtype: DType, extent: int) -> None:
    draft = Draft("wide")
    table, c = draft.node("table", float32, extent), draft.node("c", float32)
    flag = Binary(BinaryOp.EQ, IndexValue(VarIndex(K), dtype), Const(1, dtype), float32)
    update = draft.accumulate(c, op=BinaryOp.ADD, value=where(flag, draft.load(table, K)))
    program = draft.program(loop(K, extent, update))
    assert gather_one_hot(program) is program
