"""Passes over loops that end at run time."""

from __future__ import annotations

import pytest

from ocannl_core.ir.loops.nodes import LoopProgram
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.passes.loops.dead_stores import forward_fills, remove_dead_stores
from ocannl_core.passes.loops.index_set_splitting import split_index_sets
from ocannl_core.passes.loops.simplify import simplify
from ocannl_core.testing.parser.loops import parse


def program(*lines: str) -> LoopProgram:
    head = "routine f(a: float32[16], b: float32[16], c: float32[16], static n <= 16):"
    return parse("\n".join([head, *(f"    {line}" for line in lines)]))


def body(program: LoopProgram) -> list[str]:
    return [line.removeprefix("    ") for line in to_text(program).splitlines()[1:]]


@pytest.mark.parametrize(
    ("guard", "folded"),
    [
        ("int64(i) < int64(n)", "a[i]"),
        ("int64(i + 1) <= int64(n)", "a[i]"),
        ("int64(n) <= int64(i)", "b[i]"),
        ("int64(i) == int64(n)", "b[i]"),
        ("int64(i + 1) < int64(n)", None),
        ("int64(i + 2) <= int64(n)", None),
    ],
)
def test_a_guard_that_the_end_of_its_loop_implies_is_folded(guard: str, folded: str | None) -> None:
    head = "for i in range(16) while i < n:"
    found = body(simplify(program(head, f"    c[i] = where({guard}, a[i], b[i])")))
    assert found[0] == head
    assert (found[1].strip() == f"c[i] = {folded}") is (folded is not None)


def test_a_guard_outside_of_the_end_of_a_loop_stays() -> None:
    found = body(
        simplify(
            program("for i in range(16):", "    c[i] = where(int64(i) < int64(n), a[i], b[i])")
        )
    )
    assert "where" in found[1]


def test_a_loop_of_one_iteration_stays_if_it_may_have_none() -> None:
    lines = ["for i in range(3, 4) while i < n:", "    c[i] = a[i]"]
    assert body(simplify(program(*lines))) == lines


def test_a_fill_stays_before_a_reduction_that_may_have_no_terms() -> None:
    lines = ["c[:] = 0.0", "for j in range(16):", "    for i in range(16) while i < n:"]
    lines.append("        c[j] = a[i]")
    whole = program(*lines)
    assert body(remove_dead_stores(whole)) == lines
    assert body(remove_dead_stores(forward_fills(whole))) == lines


def test_a_fill_is_dead_before_stores_along_the_axis_that_ends() -> None:
    lines = ["for i in range(16) while i < n:", "    c[i] = a[i]"]
    assert body(remove_dead_stores(program("c[:] = 0.0", *lines))) == lines


def test_parts_of_a_loop_end_where_it_ends() -> None:
    whole = program("for i in range(16) while i < n:", "    c[i] = where(int64(i) < 5, a[i], b[i])")
    assert body(split_index_sets(whole)) == [
        "for i in range(5) while i < n:",
        "    c[i] = a[i]",
        "for i in range(5, 16) while i < n:",
        "    c[i] = b[i]",
    ]
