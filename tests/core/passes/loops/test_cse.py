"""Common subexpressions: shared values, their places, and barriers to sharing."""

from __future__ import annotations

import pytest
from inline_snapshot import snapshot

from ocannl_core.ir.indexing import LoopVar, fresh_var
from ocannl_core.ir.loops.equivalence import alpha_key
from ocannl_core.ir.loops.nodes import (
    AxisKind,
    Barrier,
    Binary,
    Block,
    CallExternal,
    Const,
    DeclareLocal,
    Expr,
    Fill,
    Load,
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
from ocannl_core.ir.loops.verify import verify
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp
from ocannl_core.passes.loops.cse import eliminate_common_subexpressions
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.programs import RunningSum

D = Draft("p")
A, B, C, E, M = (D.node(name, float32, 4) for name in "abcem")
W = D.node("w", float32, 4, 4)
I, J = fresh_var("i"), fresh_var("j")  # noqa: E741
ONE = Const(1.0, float32)


def exp(x: Expr) -> Expr:
    return Unary(UnaryOp.EXP, x, float32)


def add(x: Expr, y: Expr) -> Expr:
    return Binary(BinaryOp.ADD, x, y, float32)


def mul(x: Expr, y: Expr) -> Expr:
    return Binary(BinaryOp.MUL, x, y, float32)


def shared(*body: Stmt) -> list[str]:
    program = D.program(*body)
    verify(program)
    found = eliminate_common_subexpressions(program)
    verify(found)
    assert to_text(eliminate_common_subexpressions(found)) == to_text(found)
    return [line.removeprefix("    ") for line in to_text(found).splitlines()[1:]]


def unshared(*body: Stmt) -> bool:
    program: LoopProgram = D.program(*body)
    return eliminate_common_subexpressions(program) is program


def row_sum(number: int) -> Scoped:
    """Return the sum of a row of `w`, with variables of its own."""
    total, k = Local(number, float32), fresh_var("k")
    step = SetLocal(total, add(LocalRead(total), D.load(W, I, k)))
    return Scoped(total, Block((SetLocal(total, Const(0.0, float32)), loop(k, 4, step))))


def test_a_statement_computes_a_repeated_expression_once() -> None:
    value = Binary(BinaryOp.DIV, exp(D.load(A, I)), add(ONE, exp(D.load(A, I))), float32)
    assert shared(loop(I, 4, D.store(C, I, value=value))) == snapshot(
        ["for i in range(4):", "    v: float32", "    v = exp(a[i])", "    c[i] = v / (1.0 + v)"]
    )


def test_siblings_share_values_that_no_statement_in_between_changes() -> None:
    first = D.store(C, I, value=mul(exp(D.load(A, I)), ONE))
    second = D.store(E, I, value=add(exp(D.load(A, I)), D.load(C, I)))
    assert shared(loop(I, 4, first, second)) == snapshot(
        [
            "for i in range(4):",
            "    v: float32",
            "    v = exp(a[i])",
            "    c[i] = v",
            "    e[i] = v + c[i]",
        ]
    )
    changed = D.store(A, I, value=ONE)
    assert unshared(loop(I, 4, first, changed, second))


def test_inlined_computations_are_equal_up_to_their_variables() -> None:
    assert alpha_key(row_sum(0)) == alpha_key(row_sum(7))
    value = Binary(BinaryOp.DIV, D.load(W, I, J), add(row_sum(0), row_sum(7)), float32)
    assert shared(loop(I, 4, loop(J, 4, D.store(M, J, value=value)))) == snapshot(
        [
            "for i in range(4):",
            "    for j in range(4):",
            "        v: float32",
            "        v = 0.0",
            "        for k in range(4):",
            "            v += w[i, k]",
            "        m[j] = w[i, j] / (v + v)",
        ]
    )


def test_inner_loops_use_values_of_the_enclosing_block() -> None:
    first = D.store(C, I, value=exp(D.load(A, I)))
    inner = loop(J, 4, D.store(M, J, value=mul(exp(D.load(A, I)), D.load(B, J))))
    assert shared(loop(I, 4, first, inner)) == snapshot(
        [
            "for i in range(4):",
            "    v: float32",
            "    v = exp(a[i])",
            "    c[i] = v",
            "    for j in range(4):",
            "        m[j] = v * b[j]",
        ]
    )
    assert unshared(loop(I, 4, inner, first))


def test_a_loop_that_changes_an_operand_computes_for_itself() -> None:
    first = D.store(C, I, value=exp(D.load(A, I)))
    value = mul(exp(D.load(A, I)), D.load(B, J))
    inner = loop(J, 4, D.store(M, J, value=value), D.store(A, J, value=ONE))
    assert unshared(loop(I, 4, first, inner))


def test_a_branch_uses_available_values_but_provides_none() -> None:
    def chosen(x: Expr) -> Expr:
        return Ternary(TernaryOp.WHERE, D.load(B, I), x, ONE, float32)

    before = D.store(C, I, value=exp(D.load(A, I)))
    branch = D.store(E, I, value=chosen(exp(D.load(A, I))))
    assert shared(loop(I, 4, before, branch)) == snapshot(
        [
            "for i in range(4):",
            "    v: float32",
            "    v = exp(a[i])",
            "    c[i] = v",
            "    e[i] = where(b[i], v, 1.0)",
        ]
    )
    assert unshared(loop(I, 4, branch, before))


def test_a_branch_uses_values_of_the_rest_of_its_expression() -> None:
    choice = Ternary(TernaryOp.WHERE, D.load(B, I), exp(D.load(A, I)), ONE, float32)
    for value in (add(choice, exp(D.load(A, I))), add(exp(D.load(A, I)), choice)):
        found = shared(loop(I, 4, D.store(C, I, value=value)))
        assert found[2] == "    v = exp(a[i])"
        assert "exp" not in found[3]
    inner = Ternary(TernaryOp.WHERE, D.load(B, I), choice, exp(D.load(A, I)), float32)
    assert unshared(loop(I, 4, D.store(C, I, value=inner)))


def test_an_inlined_computation_in_a_branch_relies_on_its_own_expressions_only() -> None:
    total = Local(3, float32)
    step = SetLocal(total, add(exp(D.load(A, I)), exp(D.load(A, I))))
    summed = Scoped(total, Block((step,)))
    choice = Ternary(TernaryOp.WHERE, D.load(B, I), summed, exp(D.load(B, I)), float32)
    found = shared(loop(I, 4, D.store(C, I, value=add(choice, exp(D.load(B, I))))))
    assert found == snapshot(
        [
            "for i in range(4):",
            "    v: float32",
            "    v = exp(b[i])",
            "    c[i] = where(b[i], v1, v) + v",
            "        where v1: float32",
            "            v2: float32",
            "            v2 = exp(a[i])",
            "            v1 = v2 + v2",
        ]
    )


def test_a_variable_that_is_assigned_the_value_anyway_is_its_holder() -> None:
    v = Local(0, float32)
    body = (
        DeclareLocal(v),
        SetLocal(v, mul(D.load(A, I), D.load(B, I))),
        D.store(C, I, value=add(LocalRead(v), ONE)),
        D.store(E, I, value=add(mul(D.load(B, I), D.load(A, I)), LocalRead(v))),
    )
    assert shared(loop(I, 4, *body)) == snapshot(
        [
            "for i in range(4):",
            "    v: float32",
            "    v = a[i] * b[i]",
            "    c[i] = v + 1.0",
            "    e[i] = v + v",
        ]
    )
    again = SetLocal(v, ONE)
    kept = add(mul(D.load(A, I), D.load(B, I)), LocalRead(v))
    assert unshared(loop(I, 4, *body[:3], again, D.store(E, I, value=kept)))


def test_cheap_expressions_are_repeated() -> None:
    value = mul(add(D.load(A, I), ONE), add(D.load(A, I), ONE))
    assert unshared(loop(I, 4, D.store(C, I, value=value)))


def test_kernels_of_a_routine_share_nothing() -> None:
    def nest(target: str) -> Stmt:
        i: LoopVar = fresh_var("i")
        node = C if target == "c" else E
        return loop(i, 4, D.store(node, i, value=exp(D.load(A, 0))))

    assert unshared(nest("c"), nest("e"))
    scalar = D.store(C, 0, value=exp(D.load(A, 0)))
    other = D.store(E, 0, value=exp(D.load(A, 0)))
    assert unshared(scalar, nest("e"), other)
    assert unshared(scalar, CallExternal(RunningSum(), (B,), (M,)), other)
    assert shared(scalar, other) == snapshot(
        ["v: float32", "v = exp(a[0])", "c[0] = v", "e[0] = v"]
    )


@pytest.mark.parametrize("kind", [AxisKind.PARALLEL, AxisKind.BLOCK, AxisKind.GRID])
def test_iterations_on_other_threads_compute_for_themselves(kind: AxisKind) -> None:
    first = D.store(C, I, value=exp(D.load(A, I)))
    inner = loop(J, 4, D.store(M, J, value=mul(exp(D.load(A, I)), ONE)), kind=kind)
    assert unshared(loop(I, 4, first, inner))


def test_a_barrier_may_change_all_memory() -> None:
    def body(*between: Stmt) -> Stmt:
        first = D.store(C, I, value=exp(D.load(A, I)))
        second = D.store(E, I, value=mul(exp(D.load(A, I)), ONE))
        return loop(I, 4, first, *between, second, kind=AxisKind.BLOCK)

    assert unshared(loop(J, 1, body(Barrier()), kind=AxisKind.GRID))
    assert not unshared(loop(J, 1, body(), kind=AxisKind.GRID))


def test_a_fill_changes_a_node() -> None:
    first = D.store(C, I, value=exp(D.load(A, I)))
    second = D.store(E, I, value=mul(exp(D.load(A, I)), ONE))
    assert unshared(loop(I, 4, first, Fill(A, 1.0), second))


def test_expressions_of_any_depth_are_shared() -> None:
    value: Expr = Load(A, (), float32)
    value = D.load(A, I)
    for _ in range(3000):
        value = add(value, ONE)
    (head, _, first, *_) = shared(loop(I, 4, D.store(C, I, value=mul(value, value))))
    assert head == "for i in range(4):"
    assert first.startswith("    v = a[i] + 1.0 + 1.0")


def test_code_is_equivalent_only_if_variables_correspond_one_to_one() -> None:
    def sums(first: LoopVar, second: LoopVar) -> Stmt:
        return loop(I, 4, loop(J, 4, D.store(W, I, J, value=D.load(W, first, second))))

    x, y = fresh_var("x"), fresh_var("y")
    renamed = loop(x, 4, loop(y, 4, D.store(W, x, y, value=D.load(W, y, x))))
    assert alpha_key(sums(J, I)) == alpha_key(renamed)
    assert alpha_key(sums(I, J)) != alpha_key(renamed)
    assert alpha_key(sums(I, I)) != alpha_key(renamed)
    outer = fresh_var("outer")
    assert alpha_key(sums(outer, I)) != alpha_key(sums(J, I))
    assert alpha_key(sums(outer, I)) == alpha_key(sums(outer, I))
