"""Loop-invariant code motion: hoisted code, and code that must stay."""

from __future__ import annotations

import pytest
from inline_snapshot import snapshot

from ocannl_core.dtypes import float32, int32
from ocannl_core.indexing import VarIndex, fresh_var
from ocannl_core.loopir.nodes import (
    AxisKind,
    Barrier,
    Binary,
    Block,
    Const,
    DeclareLocal,
    Expr,
    For,
    IndexValue,
    Local,
    LocalRead,
    Scoped,
    SetLocal,
    Stmt,
    Ternary,
    Unary,
)
from ocannl_core.loopir.printer import to_text
from ocannl_core.loopir.verify import verify
from ocannl_core.ops import BinaryOp, TernaryOp, UnaryOp
from ocannl_core.passes.licm import hoist_invariants
from ocannl_core.testing.drafts import Draft, loop

D = Draft("p")
A, C, S = D.node("a", float32, 4), D.node("c", float32, 4), D.node("s", float32)
W = D.node("w", float32, 4, 4)
I, J, K = fresh_var("i"), fresh_var("j"), fresh_var("k")  # noqa: E741


def exp(x: Expr) -> Expr:
    return Unary(UnaryOp.EXP, x, float32)


def mul(x: Expr, y: Expr) -> Expr:
    return Binary(BinaryOp.MUL, x, y, float32)


def hoisted(*body: Stmt) -> list[str]:
    program = D.program(*body)
    verify(program)
    found = hoist_invariants(program)
    verify(found)
    assert hoist_invariants(found) is found
    return [line.removeprefix("    ") for line in to_text(found).splitlines()[1:]]


def stays(*body: Stmt) -> bool:
    program = D.program(*body)
    return hoist_invariants(program) is program


def test_an_invariant_leaves_every_loop_that_it_does_not_depend_on() -> None:
    value = mul(mul(D.load(W, I, J), exp(D.load(A, I))), exp(D.load(S)))
    assert hoisted(loop(I, 4, loop(J, 4, D.store(W, I, J, value=value)))) == snapshot(
        [
            "v: float32",
            "v = exp(s)",
            "for i in range(4):",
            "    v1: float32",
            "    v1 = exp(a[i])",
            "    for j in range(4):",
            "        w[i, j] = w[i, j] * v1 * v",
        ]
    )


def test_equal_invariants_of_a_loop_leave_together() -> None:
    first = D.store(W, I, J, value=mul(D.load(W, I, J), exp(D.load(A, I))))
    second = D.store(C, J, value=mul(D.load(W, J, I), exp(D.load(A, I))))
    assert hoisted(loop(I, 4, loop(J, 4, first, second))) == snapshot(
        [
            "for i in range(4):",
            "    v: float32",
            "    v = exp(a[i])",
            "    for j in range(4):",
            "        w[i, j] *= v",
            "        c[j] = w[j, i] * v",
        ]
    )


def test_an_inlined_reduction_leaves_as_statements() -> None:
    total = Local(0, float32)
    step = SetLocal(total, Binary(BinaryOp.ADD, LocalRead(total), D.load(W, I, K), float32))
    row = Scoped(total, Block((SetLocal(total, Const(0.0, float32)), loop(K, 4, step))))
    value = Binary(BinaryOp.DIV, D.load(W, I, J), row, float32)
    assert hoisted(loop(I, 4, loop(J, 4, D.store(C, J, value=value)))) == snapshot(
        [
            "for i in range(4):",
            "    v: float32",
            "    v = 0.0",
            "    for k in range(4):",
            "        v += w[i, k]",
            "    for j in range(4):",
            "        c[j] = w[i, j] / v",
        ]
    )


def test_what_an_inlined_reduction_computes_alike_leaves_it() -> None:
    total = Local(0, float32)
    term = mul(exp(D.load(A, I)), D.load(W, J, K))
    step = SetLocal(total, Binary(BinaryOp.ADD, LocalRead(total), term, float32))
    row = Scoped(total, Block((SetLocal(total, Const(0.0, float32)), loop(K, 4, step))))
    assert hoisted(loop(I, 4, loop(J, 4, D.store(C, J, value=row)))) == snapshot(
        [
            "for i in range(4):",
            "    v: float32",
            "    v = exp(a[i])",
            "    for j in range(4):",
            "        c[j] = v1",
            "            where v1: float32",
            "                v1 = 0.0",
            "                for k in range(4):",
            "                    v1 += v * w[j, k]",
        ]
    )


def test_a_variable_that_is_set_alike_leaves_with_its_declaration() -> None:
    v = Local(0, float32)
    body = (
        DeclareLocal(v),
        SetLocal(v, exp(D.load(A, I))),
        D.store(W, I, J, value=mul(D.load(W, I, J), LocalRead(v))),
    )
    assert hoisted(loop(I, 4, loop(J, 4, *body))) == snapshot(
        [
            "for i in range(4):",
            "    v: float32",
            "    v = exp(a[i])",
            "    for j in range(4):",
            "        w[i, j] *= v",
        ]
    )


def test_a_variable_that_is_set_like_another_is_its_copy() -> None:
    v = Local(0, float32)
    body = (
        D.store(C, J, value=mul(D.load(W, J, I), exp(D.load(A, I)))),
        DeclareLocal(v),
        SetLocal(v, exp(D.load(A, I))),
        D.store(W, I, J, value=mul(D.load(W, I, J), LocalRead(v))),
    )
    assert hoisted(loop(I, 4, loop(J, 4, *body)))[1:5] == snapshot(
        ["    v: float32", "    v = exp(a[i])", "    v1: float32", "    v1 = v"]
    )


def test_cheap_computations_stay() -> None:
    assert stays(loop(I, 4, loop(J, 4, D.store(C, J, value=mul(D.load(A, I), D.load(S))))))


def test_what_the_loop_changes_stays() -> None:
    assert stays(loop(I, 4, D.store(S, value=exp(D.load(S)))))
    assert stays(loop(I, 4, D.store(C, I, value=exp(D.load(S))), D.store(S, value=D.load(A, I))))


def test_branches_stay_but_their_condition_leaves() -> None:
    condition = Binary(BinaryOp.LT, exp(D.load(S)), D.load(S), float32)
    chosen = Ternary(TernaryOp.WHERE, condition, exp(D.load(A, 0)), D.load(A, I), float32)
    assert hoisted(loop(I, 4, D.store(C, I, value=chosen))) == snapshot(
        [
            "v: float32",
            "v = exp(s) < s",
            "for i in range(4):",
            "    c[i] = where(v, exp(a[0]), a[i])",
        ]
    )
    by_index = Binary(BinaryOp.LT, IndexValue(VarIndex(I), int32), Const(2, int32), float32)
    guarded = Ternary(TernaryOp.WHERE, by_index, exp(D.load(S)), D.load(A, I), float32)
    assert stays(loop(I, 4, D.store(C, I, value=guarded)))


def test_an_inlined_computation_of_what_the_loop_changes_stays() -> None:
    def row(number: int, term: Expr) -> Scoped:
        total = Local(number, float32)
        step = SetLocal(total, Binary(BinaryOp.ADD, LocalRead(total), exp(term), float32))
        return Scoped(total, Block((SetLocal(total, Const(0.0, float32)), loop(K, 4, step))))

    changing = loop(I, 4, D.store(A, I, value=row(0, D.load(A, K))))
    assert stays(changing)
    assert not stays(loop(I, 4, D.store(C, I, value=row(0, D.load(A, K)))))
    v = Local(1, float32)
    value = row(0, mul(LocalRead(v), D.load(A, K)))
    outer = (SetLocal(v, value), D.store(C, I, value=LocalRead(v)))
    assert stays(DeclareLocal(v), SetLocal(v, Const(0.0, float32)), loop(I, 4, *outer))


@pytest.mark.parametrize("kind", [AxisKind.PARALLEL, AxisKind.GRID, AxisKind.BLOCK])
def test_nothing_leaves_a_loop_over_threads(kind: AxisKind) -> None:
    assert stays(loop(I, 4, D.store(C, I, value=exp(D.load(S))), kind=kind))


def test_nothing_leaves_a_loop_with_barriers_or_without_iterations() -> None:
    store = D.store(C, I, value=exp(D.load(S)))
    assert stays(loop(J, 4, loop(I, 4, Barrier(), store), kind=AxisKind.BLOCK))
    assert stays(For(I, 2, 2, Block((store,))))
