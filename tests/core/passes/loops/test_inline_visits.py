"""Read that count as visits when inlining estimates repeated work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ocannl_core.ir.indexing import affine, fresh_var
from ocannl_core.ir.loops.nodes import Binary, CallExternal, Const, Expr, Fill, Stmt, Ternary, Unary
from ocannl_core.ir.node import Reason, TensorNode
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp
from ocannl_core.testing.drafts import Draft, loop
from tests.support.external_calls import CopyCall
from tests.support.inlining import inlined, plus, times

Run = Callable[..., dict[TensorNode, np.ndarray[Any, Any]]]
I, J, K, A, B = (fresh_var(name) for name in "ijkab")  # noqa: E741


def test_equal_reads_in_one_value_count_once(interpret: Run) -> None:
    d = Draft("p")
    x, t, c = (d.node(name, float32, 4) for name in "xtc")
    read, other = d.load(t, J), d.load(t, affine([(-1, J)], 3))

    def refusal(value: Expr, *more: Stmt) -> Reason | None:
        define = loop(I, 4, d.store(t, I, value=Unary(UnaryOp.SIN, d.load(x, I), float32)))
        stmts = (define, loop(J, 4, d.store(c, J, value=value)), *more)
        found = inlined(d, *stmts)
        cells = [1.0, -2.0, 3.0, -4.0]
        before, after = (interpret(p, {x: cells}) for p in (d.program(*stmts), found.program))
        assert before[c].tobytes() == after[c].tobytes()
        return found.refused.get(t)

    def where(first: Expr, second: Expr) -> Expr:
        return Ternary(TernaryOp.WHERE, d.load(x, J), first, second, float32)

    often = Reason.VISITED_TOO_OFTEN
    assert refusal(Binary(BinaryOp.MUL, read, read, float32)) is None
    assert refusal(plus(read, where(times(read), read))) is None
    assert refusal(plus(where(times(read), Const(0.0, float32)), read)) is None
    assert refusal(plus(read, other)) is often
    assert refusal(where(times(read), read)) is often, "no branch needs to run"
    e = d.node("c2", float32, 4)
    assert refusal(read, loop(K, 4, d.store(e, K, value=d.load(t, K)))) is often


def test_reads_before_and_after_an_assignment_do_not_add_up() -> None:
    d = Draft("p")
    x, t, c, e = (d.node(name, float32, 4) for name in ("x", "t", "c", "c2"))

    def stmts(second: Stmt) -> tuple[Stmt, ...]:
        return (
            loop(I, 4, d.store(t, I, value=Unary(UnaryOp.SIN, d.load(x, I), float32))),
            loop(I, 4, d.store(c, I, value=d.load(t, I))),
            second,
            loop(I, 4, d.store(e, I, value=d.load(t, I))),
        )

    anew = loop(I, 4, d.store(t, I, value=Unary(UnaryOp.EXP, d.load(x, I), float32)))
    called = CallExternal(CopyCall(), (x,), (t,))
    updated = loop(I, 4, d.accumulate(t, I, op=BinaryOp.ADD, value=d.load(x, I)))
    assert t in inlined(d, *stmts(anew)).virtual
    assert inlined(d, *stmts(called)).refused[t] is Reason.VISITED_TOO_OFTEN
    assert inlined(d, *stmts(updated)).refused[t] is Reason.VISITED_TOO_OFTEN


def test_equal_reads_of_a_reduction_count_one_by_one() -> None:
    d = Draft("p")
    w, t, c = d.node("x", float32, 4, 3), d.node("t", float32, 4), d.node("c", float32, 4)
    step = d.accumulate(t, I, op=BinaryOp.ADD, value=d.load(w, I, K))
    square = Binary(BinaryOp.MUL, d.load(t, J), d.load(t, J), float32)
    found = inlined(
        d, Fill(t, 0.0), loop(I, 4, loop(K, 3, step)), loop(J, 4, d.store(c, J, value=square))
    )
    assert found.refused[t] is Reason.VISITED_TOO_OFTEN
