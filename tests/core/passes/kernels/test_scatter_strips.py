"""Threads share the columns of a scatter, inside of the loops over its rows."""

from __future__ import annotations

from functools import partial

import pytest

from ocannl_core.ir.kernels.nodes import Kernel, Plan, parallel_loop
from ocannl_core.ir.kernels.stream import map_steps
from ocannl_core.ir.kernels.verify import verify
from ocannl_core.ir.loops.nodes import AxisKind, For
from ocannl_core.ir.loops.parse import parse
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.passes.kernels.parallelise import (
    parallel_axes,
    parallel_iterations,
    parallelise_step,
)
from ocannl_core.passes.kernels.split_kernels import split_kernels

PARALLEL = AxisKind.PARALLEL

HEAD = "routine test(c: float32[50, 256], x: float32[300, 256], ids: int32[300]):"
ROWS = """
    for t in range(300):
        for o in range(256):
            scatter(c[ids[t], o]) += x[t, o]"""


def cut(body: str, least_work: int = 0) -> tuple[Plan, Kernel]:
    """Return the plan of a routine of one phase, and its kernel."""
    plan = split_kernels(parse(HEAD + body))
    plan = map_steps(plan, partial(parallelise_step, least_work=least_work))
    (kernel,) = plan.steps
    assert isinstance(kernel, Kernel)
    verify(plan)
    return plan, kernel


def test_columns_are_dealt_out_in_strips_inside_of_the_rows() -> None:
    plan, kernel = cut(ROWS)
    (rows,) = kernel.body.stmts
    assert isinstance(rows, For)
    assert (rows.kind, rows.stop) == (AxisKind.SERIAL, 300)
    strips = parallel_loop(rows)
    assert strips is not None
    assert strips.stop == 4
    assert parallel_axes(kernel) == (("o", 4),)
    found = parallel_iterations(kernel, plan.nodes)
    assert found is not None
    assert [run.count for run in found.outer] == [4]
    assert found.inner == ()


@pytest.mark.parametrize(
    "body",
    [
        ROWS.replace("range(256)", "range(250)"),
        ROWS.replace("range(256)", "range(48)"),
        ROWS.replace("c[ids[t], o]", "c[ids[t], 0]"),
        ROWS.replace("x[t, o]", "c[0, 0]"),
    ],
    ids=["uneven strips", "few columns", "one column", "reads of what others write"],
)
def test_other_scatters_stay_on_one_thread(body: str) -> None:
    assert not cut(body)[1].is_parallel


def test_a_small_scatter_stays_on_one_thread() -> None:
    assert not cut(ROWS, least_work=10**9)[1].is_parallel


def test_a_scatter_inside_of_a_shared_loop_has_no_strips() -> None:
    head = "routine test(c: float32[3, 50, 256], x: float32[300, 256], ids: int32[300]):"
    body = """
    for n in range(3):
        for t in range(300):
            for o in range(256):
                scatter(c[n, ids[t], o]) += x[t, o]"""
    plan = split_kernels(parse(head + body))
    (kernel,) = map_steps(plan, partial(parallelise_step, least_work=0)).steps
    assert isinstance(kernel, Kernel)
    (outer,) = kernel.body.stmts
    assert isinstance(outer, For)
    marked = [each for each in walk(outer) if isinstance(each, For) and each.kind is PARALLEL]
    assert marked == [outer]
