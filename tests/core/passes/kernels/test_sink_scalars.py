"""Scalars in front of loops are computed inside of them, unless that changes their values."""

from __future__ import annotations

import pytest

from ocannl_core.ir.kernels.nodes import Kernel, Plan
from ocannl_core.ir.kernels.printer import to_text
from ocannl_core.ir.loops.nodes import DeclareLocal, SetLocal
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.passes.kernels.sink_scalars import sink_scalars
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.testing.parser.loops import parse


def test_a_scalar_and_those_that_it_depends_on_are_computed_in_each_iteration() -> None:
    program = parse(
        """routine test(s: float32[], x: float32[8], y: float32[8]):
    v: float32
    v = s + 1.0
    w: float32
    w = v * v
    for i in range(8):
        y[i] = x[i] * w + v"""
    )
    (kernel,) = sink_scalars(split_kernels(program)).steps
    assert isinstance(kernel, Kernel)
    assert not any(isinstance(each, DeclareLocal | SetLocal) for each in walk(kernel.body))
    text = to_text(sink_scalars(split_kernels(program)))
    assert "(s + 1.0) * (s + 1.0)" in text, text


def test_a_common_subexpression_sinks_where_the_loops_are_a_nest_without_it() -> None:
    plan = of_loops("y[i] = v * v + x[i]")
    text = to_text(sink_scalars(plan, only_nests=True))
    assert "y[i] = exp(x[i]) * exp(x[i]) + x[i]" in text, text


def test_a_common_subexpression_with_assignments_of_its_own_sinks() -> None:
    plan = split_kernels(
        parse(
            """routine test(x: float32[8], y: float32[8]):
    for i in range(8):
        v: float32
        v = 2.0 * w
            where w: float32
                u: float32
                u = sin(x[i])
                w = u * u
        y[i] = v / (v + 1.0)"""
        )
    )
    text = to_text(sink_scalars(plan, only_nests=True))
    cube = "2.0 * (sin(x[i]) * sin(x[i]))"
    assert f"y[i] = {cube} / ({cube} + 1.0)" in text, text


@pytest.mark.parametrize(
    "body",
    ["y[i] = v + y[0]", "for k in range(8):\n            y[i] = y[i] + v * x[k]"],
    ids=["no nest", "read in every term"],
)
def test_a_common_subexpression_of_other_loops_stays(body: str) -> None:
    plan = of_loops(body)
    assert to_text(sink_scalars(plan, only_nests=True)) == to_text(plan)


def of_loops(body: str) -> Plan:
    head = "routine test(s: float32[], x: float32[8], y: float32[8]):"
    return split_kernels(
        parse(
            f"""{head}
    for i in range(8):
        v: float32
        v = exp(x[i])
        {body}"""
        )
    )


@pytest.mark.parametrize(
    "body",
    [
        """
    v = s + 1.0
    for i in range(8):
        s = x[i]
        y[i] = v""",
        """
    v = 1.0
    for i in range(8):
        v = v + x[i]
        y[i] = v""",
        """
    for i in range(8):
        v = x[i]
        y[i] = v""",
        """
    w: float32
    w = s + 1.0
    for i in range(8):
        v = x[i]
        y[i] = v + w""",
        """
    v = x[0]
    y[0] = v
    v = x[1]
    y[1] = v""",
    ],
    ids=[
        "read from what changes",
        "changed in a loop",
        "set in a loop",
        "set in a loop beside another",
        "set twice",
    ],
)
def test_a_scalar_that_changes_stays(body: str) -> None:
    program = parse(
        f"routine test(s: float32[], x: float32[8], y: float32[8]):\n    v: float32{body}"
    )
    plan = split_kernels(program)
    assert to_text(sink_scalars(plan)) == to_text(plan)
