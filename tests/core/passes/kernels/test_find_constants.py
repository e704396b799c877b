"""Constant operands of products in repetitions."""

from __future__ import annotations

from inline_snapshot import snapshot

from ocannl_core.ir.kernels.printer import to_text
from ocannl_core.passes.kernels.find_constants import find_constants
from ocannl_core.testing.parser.plans import parse

CELL = """
plan cell(w: float32[8, 8], u: float32[4, 8, 8], v: float32[8, 8], h: float32[8]):
    scratch y: float32[8]
    repeat t in range(4):
        nest:
            axes i in range(8), reduce k in range(8)
            result: float32 = 0.0
            result += {term}
            y[i] = result
        nest:
            axes i in range(8)
            h[i] = y[i]
        nest:
            axes i in range(8), j in range(8)
            v[i, j] = v[i, j] + h[i]
"""


def constants(term: str) -> list[str]:
    """Return the lines about constants of a sum of a term."""
    plan = find_constants(parse(CELL.format(term=term)))
    lines = [line.strip() for line in to_text(plan).splitlines()]
    return [line for line in lines if line.startswith("repeated")]


def test_a_matrix_that_no_iteration_writes_is_constant() -> None:
    assert constants("w[i, k] * h[k]") == ["repeated 4 times with w"]
    assert constants("w[i, k] * u[0, i, k]") == ["repeated 4 times with w, u"]


def test_a_matrix_that_iterations_write_is_not() -> None:
    assert constants("v[i, k] * h[k]") == []


def test_an_entry_of_the_iteration_is_not() -> None:
    assert constants("u[t, i, k] * h[k]") == []
    assert constants("u[t, i, k] * u[0, i, k]") == []


def test_sums_with_ends_are_left_alone() -> None:
    text = CELL.replace("reduce k in range(8)", "reduce k in range(8) while k < n")
    plan = parse(
        text.replace("h: float32[8])", "h: float32[8], static n <= 8)").format(
            term="w[i, k] * h[k]"
        )
    )
    assert find_constants(plan) == plan


def test_steps_of_a_nested_repetition_are_a_plan_of_their_own() -> None:
    head, body = CELL.format(term="w[i, k] * h[k]").split("    repeat t in range(4):\n")
    inner = "".join(f"    {line}\n" for line in body.splitlines())
    plan = find_constants(
        parse(f"{head}    repeat s in range(3):\n        repeat t in range(4):\n{inner}")
    )
    assert "repeated" not in to_text(plan)


def test_plans_with_constants_are_read_back() -> None:
    text = to_text(find_constants(parse(CELL.format(term="w[i, k] * h[k]"))))
    assert text == snapshot("""\
plan cell(w: float32[8, 8], u: float32[4, 8, 8], v: float32[8, 8], h: float32[8]):
    scratch y: float32[8]
    repeat t in range(4):
        nest:
            axes i in range(8), reduce k in range(8)
            repeated 4 times with w
            result: float32 = 0.0
            result += w[i, k] * h[k]
            y[i] = result
        nest:
            axes i in range(8)
            h[i] = y[i]
        nest:
            axes i in range(8), j in range(8)
            v[i, j] += h[i]\
""")
    assert to_text(parse(text)) == text
