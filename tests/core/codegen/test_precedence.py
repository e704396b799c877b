"""Parentheses appear where C needs them, and nowhere else."""

from __future__ import annotations

import ast

from hypothesis import given
from hypothesis import strategies as st

from ocannl_core.codegen.text.precedence import (
    CExpr,
    Precedence,
    call,
    cast,
    conditional,
    infix,
    negate,
)

A, B, C = CExpr("a"), CExpr("b"), CExpr("c")


def test_operators_that_bind_tighter_need_no_parentheses():
    assert infix(infix(A, "*", B), "+", C).code == "a * b + c"
    assert infix(A, "+", infix(B, "/", C)).code == "a + b / c"


def test_operators_that_bind_looser_need_parentheses():
    assert infix(infix(A, "+", B), "*", C).code == "(a + b) * c"
    assert infix(A, "/", infix(B, "-", C)).code == "a / (b - c)"


def test_operators_associate_to_the_left():
    assert infix(infix(A, "-", B), "-", C).code == "a - b - c"
    assert infix(A, "-", infix(B, "-", C)).code == "a - (b - c)"
    assert infix(A, "+", infix(B, "+", C)).code == "a + (b + c)"


def test_comparisons_never_chain():
    assert infix(infix(A, "<", B), "==", C).code == "a < b == c"
    assert infix(infix(A, "<", B), "<", C).code == "(a < b) < c"


def test_conjunctions_inside_disjunctions_are_shown():
    assert infix(infix(A, "&&", B), "||", C).code == "(a && b) || c"


def test_two_minus_signs_never_touch():
    assert negate(negate(A)).code == "-(-a)"
    assert negate(CExpr("-1.0f", Precedence.UNARY)).code == "-(-1.0f)"
    assert infix(A, "-", negate(B)).code == "a - -b"


def test_a_cast_takes_only_the_operand_beside_it():
    assert cast("float", infix(A, "+", B)).code == "(float)(a + b)"
    assert infix(cast("float", A), "+", B).code == "(float)a + b"
    assert cast("float", call("f", A)).code == "(float)f(a)"


def test_a_conditional_is_enclosed_inside_an_operation():
    chosen = conditional(infix(A, "<", B), A, B)
    assert chosen.code == "a < b ? a : b"
    assert infix(chosen, "*", C).code == "(a < b ? a : b) * c"
    assert conditional(C, A, chosen).code == "c ? a : a < b ? a : b"
    assert conditional(C, chosen, A).code == "c ? (a < b ? a : b) : a"


@st.composite
def trees(draw: st.DrawFn, depth: int = 4) -> tuple[CExpr, str]:
    """Return an expression, and the same with every operation in parentheses."""
    if depth == 0 or draw(st.booleans()):
        name = draw(st.sampled_from("abc"))
        return CExpr(name), name
    if draw(st.integers(0, 4)) == 0:
        inner, explicit = draw(trees(depth - 1))
        return negate(inner), f"(-{explicit})"
    symbol = draw(st.sampled_from(["+", "-", "*", "/", "%"]))
    (left, explicit_left), (right, explicit_right) = draw(trees(depth - 1)), draw(trees(depth - 1))
    return infix(left, symbol, right), f"({explicit_left} {symbol} {explicit_right})"


@given(trees())
def test_leaving_out_parentheses_never_changes_an_expression(tree: tuple[CExpr, str]):
    text, explicit = tree
    # these operators bind in Python as they do in C
    assert ast.dump(ast.parse(text.code)) == ast.dump(ast.parse(explicit))
