"""Sums over windows of results gather their terms at each cell; the sums stay the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_plan import NestKernel, NestPlan
from ocannl_core.ir.kernels.nodes import Plan
from ocannl_core.ir.target import Target, ThreadBlocks
from ocannl_core.passes.kernels.gather_windows import gather_windows
from ocannl_core.passes.kernels.pipeline import finish_for, nest_plan, schedule_for
from ocannl_core.passes.kernels.recognize_nests import recognize_nests
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.testing.parser.loops import parse
from ocannl_core.testing.subject import subject_named
from tests.support.verify_plans import verify

BLOCKS = ThreadBlocks(max_threads=64, threads=32, local_bytes=1 << 14, processors=2)


def scheduled(plan: Plan, target: Target) -> Plan:
    device = replace(target, thread_blocks=BLOCKS, has_fma=True)
    found = schedule_for(plan, device, finish_for(device)).plan()
    verify(found)
    return found


def recognized(text: str) -> NestPlan:
    plan = recognize_nests(split_kernels(parse(f"routine test({text}")), keeps_order=False)
    verify(plan)
    return plan


def gathered(text: str) -> Nest:
    """Return the last nest after the pass."""
    plan = gather_windows(recognized(text))
    verify(plan)
    step = plan.steps[-1]
    assert isinstance(step, NestKernel)
    return step.nest


WINDOWS = """a: float32[9], b: float32[3], c: float32[11]):
    for k in range(3):
        for i in range(9):
            c[i + k] = c[i + k] + a[i] * b[k]"""


def test_each_cell_is_an_iteration_that_reduces_the_window() -> None:
    nest = gathered(WINDOWS)
    found = [(axis.extent, axis.is_reduced, axis.is_shifting) for axis in nest.axes]
    assert found == [(11, False, False), (3, True, False)]


def test_a_filled_result_starts_from_the_number() -> None:
    text = """a: float32[9], b: float32[3], c: float32[14]):
    c[:] = 0.0
    for k in range(3):
        for i in range(9):
            c[i + k + 2] = c[i + k + 2] + a[i] * b[k]"""
    device = Target("device", has_fma=True, thread_blocks=BLOCKS)
    plan = nest_plan(split_kernels(parse(f"routine test({text}")), device)
    (step,) = plan.steps
    assert isinstance(step, NestKernel)
    assert [axis.extent for axis in step.nest.axes] == [14, 3]


def test_a_result_filled_with_another_number_keeps_its_cells() -> None:
    text = """a: float32[9], b: float32[3], c: float32[14]):
    c[:] = 1.0
    for k in range(3):
        for i in range(9):
            c[i + k] = c[i + k] + a[i] * b[k]"""
    assert gathered(text).axes[0].extent == 11


@pytest.mark.parametrize("cell", ["c[2*i + k]", "c[i - k + 2]"])
def test_other_windows_are_left_alone(cell: str) -> None:
    text = f"""a: float32[9], b: float32[3], c: float32[20]):
    for k in range(3):
        for i in range(9):
            {cell} = {cell} + a[i] * b[k]"""
    assert any(axis.is_shifting for axis in gathered(text).axes)


def test_a_long_sum_with_tiles_along_its_windows_alone_is_left_alone() -> None:
    text = """a: float32[4000, 256], b: float32[3, 256, 256], c: float32[4002, 256]):
    for k in range(3):
        for i in range(4000):
            for n in range(256):
                for m in range(256):
                    c[i + k, n] = c[i + k, n] + a[i, m] * b[k, m, n]"""
    assert any(axis.is_shifting for axis in gathered(text).axes)


def test_infinite_factors_stay_inside_of_their_windows() -> None:
    program = parse(f"routine test({WINDOWS}")
    a, b, c = program.params
    arrays = {a: np.ones(9), b: np.array([1.0, np.inf, 2.0]), c: np.zeros(11)}
    found = subject_named("interp").run(program, arrays, (), scheduled)
    np.testing.assert_array_equal(found[c], [1, *[np.inf] * 9, 2])


@st.composite
def convolutions(draw: st.DrawFn) -> str:
    """Return the text of a sum over windows of results, after a fill or not."""
    sizes = {
        name: draw(st.integers(1, most)) for name, most in zip("bixk", (3, 6, 6, 4), strict=True)
    }
    step, offset = draw(st.integers(1, 3)), draw(st.integers(0, 2))
    beyond = draw(st.integers(0, 2))
    taps, channels = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    rows = sizes["i"] + step * (sizes["k"] - 1) + offset + beyond
    columns = sizes["x"] + taps - 1 + beyond
    fill = "    c[:] = 0.0\n" if draw(st.booleans()) else ""
    op = draw(st.sampled_from(["+ {}", "max {}"])) if not fill else "+ {}"
    product = "a[b, i, x, m] * w[m, k, u]"
    cell = f"c[b, i + {step}*k + {offset}, x + u]"
    value = f"{cell} + {product}" if op.startswith("+") else f"max({cell}, {product})"
    return f"""routine test(a: float32[{sizes["b"]}, {sizes["i"]}, {sizes["x"]}, {channels}], \
w: float32[{channels}, {sizes["k"]}, {taps}], c: float32[{sizes["b"]}, {rows}, {columns}]):
{fill}    for b in range({sizes["b"]}):
        for i in range({sizes["i"]}):
            for k in range({sizes["k"]}):
                for x in range({sizes["x"]}):
                    for u in range({taps}):
                        for m in range({channels}):
                            {cell} = {value}"""


@settings(deadline=None, max_examples=25)
@given(convolutions(), st.integers(0, 9))
def test_sums_over_windows_are_right(text: str, seed: int) -> None:
    program = parse(text)
    random = np.random.default_rng(seed)
    arrays = {
        node: random.integers(-3, 4, program.nodes[node].dims).astype(np.float32)
        for node in program.params
    }
    subject = subject_named("interp")
    expected = subject.run(program, arrays)
    found = subject.run(program, arrays, (), scheduled)
    for node in program.params:
        np.testing.assert_array_equal(found[node], expected[node])
