"""Values that no loop of a scheduled kernel changes are computed once, in front of its loops."""

from __future__ import annotations

import pytest

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.kernels.nodes import Kernel, Plan
from ocannl_core.ir.kernels.printer import to_text
from ocannl_core.ir.loops.nodes import DeclareLocal, For, SetLocal
from ocannl_core.passes.kernels.hoist_scalars import hoist_scalars
from ocannl_core.passes.kernels.sink_scalars import sink_scalars
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.testing.parser.loops import parse


def plan_of(*lines: str) -> Plan:
    """Return the kernels of a routine with these statements."""
    head = "routine test(s: float32[], x: float32[8], y: float32[8], z: float32[8]):"
    return split_kernels(parse("\n    ".join((head, *lines))))


def hoisted(plan: Plan) -> Kernel:
    (kernel,) = plan.steps
    assert isinstance(kernel, Kernel)
    return hoist_scalars(kernel, plan.nodes)


def test_equal_values_of_several_loops_are_one_scalar() -> None:
    plan = plan_of(
        "for i in range(8):", "    y[i] = x[i] * exp(s + 1.0)", "    z[i] = x[i] - exp(s + 1.0)"
    )
    declared, assigned, loop = hoisted(plan).body.stmts
    assert isinstance(declared, DeclareLocal)
    assert isinstance(assigned, SetLocal)
    assert isinstance(loop, For)
    assert to_text(plan).count("exp") == 2
    assert to_text(replace(plan, steps=(hoisted(plan),))).count("exp") == 1


@pytest.mark.parametrize(
    "body",
    ["y[i] = x[i] * exp(y[0] + 1.0)", "y[i] = x[i] * exp(x[i] + 1.0)", "y[i] = x[i] * (s + 1.0)"],
    ids=["of what the kernel writes", "of a cell of the loop", "cheap"],
)
def test_other_values_stay_in_the_loop(body: str) -> None:
    plan = plan_of("for i in range(8):", f"    {body}")
    (kernel,) = plan.steps
    assert hoisted(plan) is kernel


def test_scalars_that_sank_for_a_schedule_come_back() -> None:
    plan = plan_of("v: float32", "v = exp(s) + 1.0", "for i in range(8):", "    y[i] = x[i] * v")
    sunk = sink_scalars(plan, only_nests=True)
    assert to_text(sunk) != to_text(plan)
    kernel = hoisted(sunk)
    assert [type(stmt) for stmt in kernel.body.stmts] == [DeclareLocal, SetLocal, For]


def test_scalars_stay_in_front_of_loops_that_are_no_nest_either_way() -> None:
    plan = plan_of(
        "v: float32",
        "v = exp(s) + 1.0",
        "for i in range(8):",
        "    y[i] = x[i] * v",
        "    z[i] = v - y[0]",
    )
    assert to_text(sink_scalars(plan, only_nests=True)) == to_text(plan)
    assert to_text(sink_scalars(plan)) != to_text(plan)
