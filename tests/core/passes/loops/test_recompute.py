"""Recomputation within a budget: programs before and after."""

from __future__ import annotations

from textwrap import dedent, indent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ocannl_core.ir.loops.nodes import LoopProgram
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.loops.verify import verify
from ocannl_core.passes.loops.recompute_in_budget import needed_bytes, recompute_within_budget
from ocannl_core.testing.parser.loops import parse

HEAD = "routine p(x: float32[16], y: float32[16]):"


def routine(body: str) -> LoopProgram:
    program = parse(f"{HEAD}\n{indent(dedent(body).strip(), '    ')}")
    verify(program)
    return program


def within(body: str, budget: int) -> list[str]:
    found = recompute_within_budget(routine(body), budget)
    verify(found)
    return [line.strip() for line in to_text(found).splitlines()[1:]]


CHAIN = """
    routine a: float32[16]
    routine b: float32[16]
    routine c: float32[16]
    for i in range(16):
        a[i] = exp(x[i])
    for i in range(16):
        b[i] = exp(a[i])
    for i in range(16):
        c[i] = exp(b[i])
    for i in range(16):
        y[i] = c[i] * a[i]
"""


def test_the_value_that_frees_most_for_its_cost_is_computed_again() -> None:
    assert needed_bytes(routine(CHAIN)) == 192
    found = recompute_within_budget(routine(CHAIN), 128)
    verify(found)
    assert needed_bytes(found) == 128
    text = [line.strip() for line in to_text(found).splitlines()]
    again = text.index("a_again[i] = exp(x[i])")
    assert text[again + 1 :] == ["for i in range(16):", "y[i] = c[i] * a_again[i]"]


def test_a_program_within_the_budget_stays_as_it_is() -> None:
    program = routine(CHAIN)
    assert recompute_within_budget(program, 192) is program


def test_a_value_whose_operand_has_changed_is_kept() -> None:
    program = routine(
        """
        routine a: float32[16]
        routine b: float32[16]
        for i in range(16):
            a[i] = exp(x[i])
        for i in range(16):
            b[i] = exp(a[i])
        for i in range(16):
            x[i] = b[i]
        for i in range(16):
            y[i] = a[i] * 2.0
        """
    )
    assert recompute_within_budget(program, 0) is program


def test_a_value_that_others_update_in_place_is_computed_from_all_its_statements() -> None:
    text = within(
        """
        routine a: float32[16]
        routine b: float32[16]
        routine c: float32[16]
        a[:] = 1.0
        for i in range(16):
            a[i] = a[i] + exp(x[i])
        for i in range(16):
            b[i] = exp(a[i])
        for i in range(16):
            c[i] = exp(b[i])
        for i in range(16):
            y[i] = c[i] * a[i]
        """,
        128,
    )
    at = text.index("a_again[:] = 1.0")
    assert text[at + 2] == "a_again[i] += exp(x[i])"


def chain(length: int) -> str:
    """Return values each computed from the one before, and then read in reverse."""
    lines = [f"routine v{k}: float32[16]" for k in range(length)]
    for k in range(length):
        source = f"v{k - 1}" if k else "x"
        lines += ["for i in range(16):", f"    v{k}[i] = exp({source}[i])"]
    for k in reversed(range(length)):
        lines += ["for i in range(16):", f"    y[i] = y[i] + v{k}[i]"]
    return "\n".join(lines)


@given(length=st.integers(3, 12), share=st.integers(0, 100))
def test_a_chain_fits_every_budget_of_five_values_or_more(length: int, share: int) -> None:
    program = routine(chain(length))
    whole = needed_bytes(program)
    budget = max(320, whole * share // 100)
    found = recompute_within_budget(program, budget)
    verify(found)
    assert needed_bytes(found) <= budget


@pytest.mark.parametrize("length", [9, 16])
def test_a_square_root_of_the_values_costs_less_than_a_second_run(length: int) -> None:
    program = routine(chain(length))
    found = recompute_within_budget(program, 64 * (2 * round(length**0.5) + 1))
    again = len(found.body.stmts) - len(program.body.stmts)
    assert again <= 2 * 1.5 * length  # a copy has an allocation and a statement


def test_operands_are_computed_again_in_the_same_order_every_time() -> None:
    lines = ["a[i] = exp(x[i])", "b[i] = sin(x[i])", "c[i] = a[i] * b[i]", "d[i] = exp(c[i])"]
    lines += ["d[i] = exp(d[i])"] * 16 + ["y[i] = c[i] * d[i]"]
    nodes = "\n".join(f"routine {name}: float32[16]" for name in "abcd")
    loops = "".join(f"\nfor i in range(16):\n    {line}" for line in lines)
    (text,) = {"\n".join(within(nodes + loops, 0)) for _ in range(16)}
    assert "b_again[i] = sin(x[i])" in text.split("a_again[i] = exp(x[i])")[0]
