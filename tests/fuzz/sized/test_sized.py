"""Random programs with long axes give results within their bounds under any schedule."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ..programs import Program
from . import bounds
from .author import case_of
from .bounds import FORMATS, exact
from .operations import Cells, Slope
from .programs import Case, Given, Operation
from .run import Setup, difference, outcome_of, report, run_sanitized, setups_of

CASES = 18
PARTS = 6
PLAIN = Setup((("tune", "off"),))


@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs_with_long_axes_are_within_their_bounds(part: int) -> None:
    shares = []
    for number in range(part, CASES, PARTS):
        case, setups = case_of(0, number), setups_of(0, number)
        outcome = outcome_of(case, setups)
        assert not outcome.is_failure, report(0, number, case, setups, outcome)
        shares.append(outcome.tight)
    assert sum(shares) > 0.5 * len(shares)  # or the bounds are too wide to detect errors


def test_random_programs_with_long_axes_stay_inside_their_memory(
    capfd: pytest.CaptureFixture[str],
) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc")
    found = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True
    ).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip("gcc has no address sanitizer")
    failures = run_sanitized(0, 6, 2, 1)
    assert failures == 0, capfd.readouterr().out
    assert "'agrees': 2" in capfd.readouterr().out


# ----- a wrong result is told ---------------------------------------------------------------------


class Wrong(Operation):
    """An operation that the program gets wrong."""

    def source(self) -> str:
        return super().source().replace("oc.less(", "oc.less_equal(").replace(".add(", ".sub(")


LEAVES = tuple(
    Given(f"x{k}", "param", ((), (33,), (17,)), k, format="float32", data=data)
    for k, data in enumerate(["small", "small", "normal", "normal"])
)


@pytest.mark.parametrize("kind", [Operation, Wrong])
def test_a_wrong_comparison_of_whole_numbers_is_told(kind: type[Operation]) -> None:
    mask = kind("x4", "less", ("x0", "x1"))
    chosen = Operation("x5", "where", ("x4", "x2", "x3"))
    outcome = outcome_of(Case(Program((*LEAVES, mask, chosen))), [PLAIN])
    assert outcome.kind == ("agrees" if kind is Operation else "value"), outcome


@pytest.mark.parametrize("kind", [Operation, Wrong])
def test_a_wrong_sum_is_told(kind: type[Operation]) -> None:
    total = kind("x4", "add", ("x2", "x3"))
    outcome = outcome_of(Case(Program((*LEAVES[2:], total))), [PLAIN])
    assert outcome.kind == ("agrees" if kind is Operation else "value"), outcome


def test_one_wrong_cell_of_whole_numbers_is_told() -> None:
    right = exact(np.arange(100.0), FORMATS["float32"])
    cells = np.arange(100, dtype=np.float32)
    assert not difference("x", cells, right)
    cells[71] = np.nextafter(cells[71], np.float32(0))
    assert "1 of 100 cells are wrong, the first at (71,)" in difference("x", cells, right)
    cells[71] = np.nan
    assert "1 of 100 cells are wrong" in difference("x", cells, right)


# ----- bounds -------------------------------------------------------------------------------------

NUMBERS = st.integers(0, 2**32 - 1)


@settings(max_examples=40)
@given(seed=NUMBERS, name=st.sampled_from(["float32", "float16", "bfloat16"]))
def test_sums_in_every_order_are_within_the_bound(seed: int, name: str) -> None:
    random = np.random.default_rng(seed)
    terms = random.standard_normal(int(random.integers(1, 60))).astype(name)
    slope = Slope((1,))
    slope.add(np.zeros(len(terms), int), exact(terms.astype(np.float64), FORMATS[name]))
    right = slope.total(FORMATS[name])
    total = np.zeros(1, dtype=name)
    for term in random.permutation(terms):
        total += term
    assert not difference("total", total, right)
    scale = float(np.abs(terms.astype(np.float64)).sum())
    assert right.error[0] <= 2.0 * len(terms) * scale * 2.0 ** -FORMATS[name].digits + 1e-5


@settings(max_examples=40)
@given(seed=NUMBERS)
def test_a_comparison_that_may_come_out_either_way_is_within_the_bound(seed: int) -> None:
    random = np.random.default_rng(seed)
    form = FORMATS["float32"]
    a, b = (random.standard_normal(50).astype(np.float32).astype(np.float64) for _ in range(2))
    b = np.where(random.random(50) < 0.5, a + 1e-4, b)
    error = np.full(50, 1e-3)
    moved = replace(exact(a, form), error=error)
    chosen = bounds.where(bounds.less(moved, exact(b, form)), exact(a, form), exact(b * 2, form))
    computed = np.where(a + random.uniform(-1e-3, 1e-3, 50) < b, a, b * 2)
    assert (np.abs(computed - chosen.value) <= chosen.error).all()
    is_sure = np.abs(a - b) > 1e-3
    assert not chosen.error[is_sure].any()


def test_whole_numbers_are_exact_until_the_format_is_full() -> None:
    form = FORMATS["bfloat16"]
    slope = Slope((1,))
    slope.add(np.zeros(256, int), exact(np.ones(256), form))
    assert slope.total(form).error[0] == 0
    slope.add(np.zeros(1, int), exact(np.ones(1), form))
    assert slope.total(form).error[0] > 0


def test_products_with_unknown_factors_carry_their_errors() -> None:
    form = FORMATS["float64"]
    one = Cells(replace(exact(np.array([3.0]), form), error=np.array([0.5])), ((), (1,), ()))
    found = bounds.mul(one.cells, one.cells)
    assert found.error[0] >= 3.25  # 3.5 * 3.5 - 9
