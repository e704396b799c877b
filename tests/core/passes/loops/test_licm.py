"""Loop-invariant code motion: hoisted code, and code that must stay."""

from __future__ import annotations

from textwrap import indent

import pytest
from inline_snapshot import snapshot

from ocannl_core.ir.loops.nodes import AxisKind, LoopProgram
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.loops.verify import verify
from ocannl_core.passes.loops.licm import hoist_invariants
from ocannl_core.testing.parser.loops import parse

HEAD = "routine p(a: float32[4], c: float32[4], s: float32[], w: float32[4, 4]):"


def routine(body: str) -> LoopProgram:
    return parse(f"{HEAD}\n{indent(body, '    ')}")


def hoisted(body: str) -> list[str]:
    program = routine(body)
    verify(program)
    found = hoist_invariants(program)
    verify(found)
    assert hoist_invariants(found) is found
    return [line.removeprefix("    ") for line in to_text(found).splitlines()[1:]]


def stays(body: str) -> bool:
    program = routine(body)
    return hoist_invariants(program) is program


def test_an_invariant_leaves_every_loop_that_it_does_not_depend_on() -> None:
    nest = """
for i in range(4):
    for j in range(4):
        w[i, j] = w[i, j] * exp(a[i]) * exp(s)
"""
    assert hoisted(nest) == snapshot(
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
    nest = """
for i in range(4):
    for j in range(4):
        w[i, j] *= exp(a[i])
        c[j] = w[j, i] * exp(a[i])
"""
    assert hoisted(nest) == snapshot(
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
    nest = """
for i in range(4):
    for j in range(4):
        c[j] = w[i, j] / v
            where v: float32
                v = 0.0
                for k in range(4):
                    v += w[i, k]
"""
    assert hoisted(nest) == snapshot(
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


def test_invariants_of_an_inlined_reduction_are_hoisted_out_of_it() -> None:
    nest = """
for i in range(4):
    for j in range(4):
        c[j] = v
            where v: float32
                v = 0.0
                for k in range(4):
                    v += exp(a[i]) * w[j, k]
"""
    assert hoisted(nest) == snapshot(
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


def test_a_variable_with_equal_assignments_is_removed_with_its_declaration() -> None:
    nest = """
for i in range(4):
    for j in range(4):
        v: float32
        v = exp(a[i])
        w[i, j] *= v
"""
    assert hoisted(nest) == snapshot(
        [
            "for i in range(4):",
            "    v: float32",
            "    v = exp(a[i])",
            "    for j in range(4):",
            "        w[i, j] *= v",
        ]
    )


def test_a_variable_that_is_set_like_another_is_its_copy() -> None:
    nest = """
for i in range(4):
    for j in range(4):
        c[j] = w[j, i] * exp(a[i])
        v: float32
        v = exp(a[i])
        w[i, j] *= v
"""
    assert hoisted(nest)[1:5] == snapshot(
        ["    v: float32", "    v = exp(a[i])", "    v1: float32", "    v1 = v"]
    )


def test_cheap_computations_stay() -> None:
    assert stays("""
for i in range(4):
    for j in range(4):
        c[j] = a[i] * s
""")


def test_a_value_that_the_loop_changes_stays() -> None:
    assert stays("""
for i in range(4):
    s = exp(s)
""")
    assert stays("""
for i in range(4):
    c[i] = exp(s)
    s = a[i]
""")


def test_branches_stay_but_their_condition_leaves() -> None:
    nest = """
for i in range(4):
    c[i] = where(exp(s) < s, exp(a[0]), a[i])
"""
    assert hoisted(nest) == snapshot(
        [
            "v: float32",
            "v = exp(s) < s",
            "for i in range(4):",
            "    c[i] = where(v, exp(a[0]), a[i])",
        ]
    )
    assert stays("""
for i in range(4):
    c[i] = where(int32(i) < 2, exp(s), a[i])
""")


def test_an_inlined_computation_stays_where_the_loop_changes_its_operands() -> None:
    inlined = """
        where v: float32
            v = 0.0
            for k in range(4):
                v += exp(a[k])
"""
    assert stays(f"for i in range(4):\n    a[i] = v{inlined}")
    assert not stays(f"for i in range(4):\n    c[i] = v{inlined}")
    assert stays("""
t: float32
t = 0.0
for i in range(4):
    t = v
        where v: float32
            v = 0.0
            for k in range(4):
                v += exp(t * a[k])
    c[i] = t
""")


@pytest.mark.parametrize("kind", [AxisKind.PARALLEL, AxisKind.GRID, AxisKind.BLOCK])
def test_nothing_leaves_a_loop_over_threads(kind: AxisKind) -> None:
    assert stays(f"for i in {kind.value}(4):\n    c[i] = exp(s)")


def test_nothing_leaves_a_loop_with_barriers_or_without_iterations() -> None:
    assert stays("""
for j in block(4):
    for i in range(4):
        barrier()
        c[i] = exp(s)
""")
    assert stays("""
for i in range(2, 2):
    c[i] = exp(s)
""")
