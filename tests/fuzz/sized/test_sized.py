"""Random programs with long axes give results within their bounds under any schedule."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ocannl_core.ir.numbers import dtypes
from tests.support.slow import long

from ..programs import Program
from ..reference import MAXIMA, Call
from . import bounds
from .author import case_of
from .bounds import FORMATS, Array, Bounded, NumberFormat, exact
from .operations import BoundedCells, Greatest, Slope, evaluate, pull_back
from .programs import CaseOperation, Given, SizedCase, UpdateRule, cells_of, shapes_of
from .run import Setup, difference, expected_of, outcome_of, report, run_sanitized, setups_of

CASES = 12
PARTS = 3
PLAIN = Setup((("tune", "off"),))


@pytest.mark.parametrize("part", [0, *long(range(1, PARTS))])
def test_random_programs_with_long_axes_are_within_their_bounds(part: int) -> None:
    shares = []
    for number in range(part, CASES, PARTS):
        case, setups = case_of(0, number), setups_of(0, number)
        outcome = outcome_of(case, setups)
        assert not outcome.is_failure, report(0, number, case, setups, outcome)
        shares.append(outcome.tight)
    assert sum(shares) > 0.5 * len(shares)  # or the bounds are too wide to detect errors


@pytest.mark.slow
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
    failures = run_sanitized(0, 8, 2, 1)
    assert failures == 0, capfd.readouterr().out
    assert "'agrees': 2" in capfd.readouterr().out


class WrongCase(CaseOperation):
    """An operation that the program gets wrong."""

    def expression(self) -> str:
        return super().expression().replace("oc.less(", "oc.less_equal(").replace(".add(", ".sub(")


LEAVES = tuple(
    Given(f"x{k}", "param", ((), (33,), (17,)), k, format="float32", data=data)
    for k, data in enumerate(["small", "small", "normal", "normal"])
)


@pytest.mark.parametrize("kind", [CaseOperation, WrongCase])
def test_a_wrong_comparison_of_whole_numbers_is_reported(kind: type[CaseOperation]) -> None:
    mask = kind("x4", "less", ("x0", "x1"))
    chosen = CaseOperation("x5", "where", ("x4", "x2", "x3"))
    outcome = outcome_of(SizedCase(Program((*LEAVES, mask, chosen))), [PLAIN])
    assert outcome.kind == ("agrees" if kind is CaseOperation else "value"), outcome


NARROW = [form for form in FORMATS.values() if form.is_narrow]


def test_all_narrow_formats_have_bounds() -> None:
    found = [(each.name, each.digits, each.least, each.greatest) for each in NARROW]
    for name, digits, least, greatest in found:
        form = dtypes.dtype_of(name)
        assert (digits, least) == (form.significand, form.least)
        assert greatest <= form.greatest
    assert {name for name, *_ in found} == {form.name for form in dtypes.NARROW}


@pytest.mark.parametrize("stated", ["", "float32"])
@pytest.mark.parametrize("form", NARROW, ids=lambda form: form.name)
def test_gradients_in_narrow_formats_are_within_tight_bounds(
    form: NumberFormat, stated: str
) -> None:
    weights = Given("x0", "param", ((), (7,), (16,)), 1, format=form.name, data="normal")
    x = Given("x1", "tensor", ((5,), (16,), ()), 2, format=form.name, data="normal")
    steps = (
        CaseOperation("x2", "matmul", ("x0", "x1"), format=stated),
        CaseOperation("x3", "tanh", ("x2",)),
        CaseOperation("x4", "einmax", ("x3",), "...|->... => ...|->0"),
    )
    case = SizedCase(Program((weights, x, *steps)), UpdateRule(("x4", "x3"), "sgd"), calls=2)
    outcome = outcome_of(case, [PLAIN, PLAIN.with_override("accumulation", "exact")])
    assert not outcome.is_failure, outcome
    assert "x0" in expected_of(case).gradients
    right = expected_of(case).gradients["x0"]
    assert np.isfinite(right.error).mean() > 0.5


@pytest.mark.parametrize("rule", ["none", "sgd", "adam"])
def test_several_losses_train_shared_parameters(rule: str) -> None:
    pooled = CaseOperation("x4", "einmax", ("x0",), "...->... => 0")
    product = CaseOperation("x5", "mul", ("x0", "x1"))
    shifted = CaseOperation("x6", "add", ("x5", "x0"))
    program = Program((*LEAVES[:2], pooled, product, shifted))
    case = SizedCase(program, UpdateRule(("x6", "x5", "x4"), rule), calls=2)
    assert outcome_of(case, [PLAIN]).kind == "agrees"
    right = expected_of(case).gradients["x0"]
    alone = expected_of(SizedCase(program, UpdateRule(("x6",), rule), calls=2)).gradients["x0"]
    assert not np.array_equal(right.value, alone.value)


@pytest.mark.parametrize("rule", ["sgd", "adam"])
@pytest.mark.parametrize(
    ("operation", "operands"),
    [("relu_gate", ("x0", "x1")), ("where", ("x4", "x1", "x1")), ("add", ("x5", "x1"))],
)
def test_parameters_without_a_gradient_keep_their_values(
    operation: str, operands: tuple[str, ...], rule: str
) -> None:
    steps = (
        CaseOperation("x4", "less", ("x0", "x1")),
        CaseOperation("x5", "stop_gradient", ("x0",)),
        CaseOperation("x6", operation, operands),
    )
    case = SizedCase(Program((*LEAVES[:2], *steps)), UpdateRule(("x6",), rule), calls=2)
    assert (case.updated, case.compared) == (["x1"], ["x0", "x1"])
    outcome = outcome_of(case, [PLAIN])
    assert outcome.kind == "agrees", outcome


def each_equal_cell(
    self: Greatest, terms: Sequence[Bounded], target: Array, arriving: Bounded
) -> Bounded:
    """Return gradients of which each of equal cells gets the whole."""
    is_greatest = sum(term.value for term in terms) == self.result.value.ravel()[target]
    value, error = (np.where(is_greatest, cells, 0.0) for cells in (arriving.value, arriving.error))
    return Bounded(value, error, arriving.step, arriving.format)


def ties_decide(case: SizedCase) -> bool:
    """Return whether the rule for equal cells decides about a gradient."""
    right = expected_of(case).gradients
    with mock.patch.object(Greatest, "reached", each_equal_cell):
        other = expected_of(case).gradients
    return any(
        bool((np.abs(right[name].value - other[name].value) > right[name].error).any())
        for name in right
    )


def test_ties_in_maxima_decide_about_gradients_of_some_programs() -> None:
    cases = [case_of(0, number) for number in range(100)]
    maxima = [
        case
        for case in cases
        if case.training is not None
        and {step.operation for step in case.program.steps} & set(MAXIMA)
        and max(map(cells_of, shapes_of(case.program).values())) <= 1 << 14
    ]
    assert sum(map(ties_decide, maxima)) >= 4


@pytest.mark.parametrize("error", [0.0, 0.5])
def test_the_first_of_equal_cells_gets_the_gradient_as_far_as_that_is_sure(error: float) -> None:
    form = FORMATS["float32"]
    cells = replace(exact(np.array([1.0, 2.0, 2.0, 0.0]), form), error=np.full(4, error))
    call, operand = Call("einmax", "a => 0"), BoundedCells(cells, ((), (4,), ()))
    result = evaluate(call, [operand], ((), (1,), ()))
    slope = Slope((4,))
    pull_back(call, [operand], result, exact(np.array([5.0]), form), [slope])
    found = slope.total(form)
    assert found.value.tolist() == [0.0, 5.0, 0.0, 0.0]
    right = [[0.0] * 4, [5.0, 5.0, 5.0, 0.0]][error > 0]
    assert found.error == pytest.approx(right, abs=1e-5)


@pytest.mark.parametrize("kind", [CaseOperation, WrongCase])
def test_a_wrong_sum_is_reported(kind: type[CaseOperation]) -> None:
    total = kind("x4", "add", ("x2", "x3"))
    outcome = outcome_of(SizedCase(Program((*LEAVES[2:], total))), [PLAIN])
    assert outcome.kind == ("agrees" if kind is CaseOperation else "value"), outcome


def test_one_wrong_cell_of_whole_numbers_is_reported() -> None:
    right = exact(np.arange(100.0), FORMATS["float32"])
    cells = np.arange(100, dtype=np.float32)
    assert not difference("x", cells, right)
    cells[71] = np.nextafter(cells[71], np.float32(0))
    assert "1 of 100 cells are wrong, the first at (71,)" in difference("x", cells, right)
    cells[71] = np.nan
    assert "1 of 100 cells are wrong" in difference("x", cells, right)


NUMBERS = st.integers(0, 2**32 - 1)


@settings(max_examples=40)
@given(seed=NUMBERS, name=st.sampled_from(["float32", *(form.name for form in NARROW)]))
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
    unit = len(terms) * 2.0 ** -FORMATS[name].digits
    scale = float(np.abs(terms.astype(np.float64)).sum())
    assert (
        unit >= 0.5
        or right.error[0] <= 2.0 * len(terms) * scale * 2.0 ** -FORMATS[name].digits + 1e-5
    )


@settings(max_examples=40)
@given(seed=NUMBERS, form=st.sampled_from(NARROW))
def test_sums_in_float32_that_are_rounded_once_are_within_the_bound(
    seed: int, form: NumberFormat
) -> None:
    random = np.random.default_rng(seed)
    terms = random.standard_normal(int(random.integers(1, 60))).astype(form.name)
    slope = Slope((1,), form)
    slope.add(np.zeros(len(terms), int), exact(terms.astype(np.float64), form))
    right = slope.total(form)
    total = np.zeros(1, dtype=np.float32)
    for term in random.permutation(terms):
        total += term.astype(np.float32)
    assert not difference("total", total.astype(form.name), right)
    unit = 1.2 * 2.0**-form.digits
    assert right.error[0] <= unit * (abs(right.value[0]) + 1e-3) + 1e-3 + form.least


@settings(max_examples=40)
@given(seed=NUMBERS)
def test_clamps_and_gates_of_bounded_numbers_are_within_the_bound(seed: int) -> None:
    random = np.random.default_rng(seed)
    form = FORMATS["float64"]
    a, b = (random.uniform(-2.0, 2.0, 50) for _ in range(2))
    errors = [random.choice([0.0, 0.1, 1.0], 50) for _ in range(2)]
    one, other = (replace(exact(v, form), error=e) for v, e in zip((a, b), errors, strict=True))
    x, y = (v + random.uniform(-1, 1, 50) * e for v, e in zip((a, b), errors, strict=True))
    for computed, right in [
        (np.maximum(x, y), bounds.maximum(one, other)),
        (np.minimum(x, y), bounds.minimum(one, other)),
        (np.maximum(x, 0.0), bounds.relu(one)),
        (np.clip(x, 0.0, 1.0), bounds.sat01(one)),
    ]:
        assert (np.abs(computed - right.value) <= right.error + 1e-12).all()
        assert (right.error <= np.maximum(*errors)).all()


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
    one = BoundedCells(replace(exact(np.array([3.0]), form), error=np.array([0.5])), ((), (1,), ()))
    found = bounds.mul(one.cells, one.cells)
    assert found.error[0] >= 3.25  # 3.5 * 3.5 - 9
