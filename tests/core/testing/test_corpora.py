"""Corpora of cases for backends."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import arrays
from hypothesis.strategies import floats

import ocannl_core as oc
from ocannl_core.base.errors import UnsupportedError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.loops.nodes import LoopProgram
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.dtypes import float16, float32, uint8
from ocannl_core.testing.allowances import Allowances, CaseResult, Outcome, read_allowances
from ocannl_core.testing.compare import Array
from ocannl_core.testing.corpora import opinfo, primitive_edges, reference_cases
from ocannl_core.testing.corpora.reference_cases import CaseSkipped, ReferenceCase
from ocannl_core.testing.subject import Subject, subject_named


def interpreter(*formats: dtypes.DType) -> Subject:
    found = subject_named("interp")
    return Subject(found.backend, replace(found.target, formats=formats))


class Faulty(Subject):
    """The interpreter with other results of one primitive."""

    def run(self, program: LoopProgram, *arguments: Any, **options: Any) -> dict[TensorNode, Array]:
        found = Subject.run(self, program, *arguments, **options)
        return {
            node: two_ulps_above(cells) if node.name == "exp_result" else cells
            for node, cells in found.items()
        }


def two_ulps_above(cells: Array) -> Array:
    return np.nextafter(np.nextafter(cells, np.inf), np.inf).astype(cells.dtype)


def test_edges_have_every_kind_of_number() -> None:
    found = primitive_edges.edges(float32)
    signs = {math.copysign(1, each) for each in found if each == 0}
    assert signs == {1, -1}
    assert {math.inf, -math.inf, float32.greatest, float32.least} <= set(found)
    assert sum(each != each for each in found) == 1
    assert any(0 < abs(each) < 2.0**-126 for each in found)
    assert {0, 255, 254, 1} <= set(primitive_edges.edges(uint8))


def test_a_device_equal_to_the_oracle_passes_in_each_declared_format() -> None:
    subject = interpreter(uint8)
    found = list(primitive_edges.results(subject, subject_named("interp"), Allowances()))
    assert {each.part for each in found} == {"uint8"}
    assert all(each.outcome is Outcome.PASSED and each.error == 0 for each in found)
    assert "primitives/floor_div/uint8" in {each.name for each in found}


def of_exp(allowances: Allowances) -> CaseResult:
    subject = interpreter(float16)
    faulty = Faulty(subject.backend, subject.target)
    found = primitive_edges.results(faulty, subject_named("interp"), allowances, "primitives/exp")
    results = {each.name: each for each in found}
    assert set(results) == {f"primitives/{name}/float16" for name in ("exp", "exp2", "expm1")}
    failed = [name for name, each in results.items() if each.outcome is Outcome.FAILED]
    assert set(failed) <= {"primitives/exp/float16"}
    return results["primitives/exp/float16"]


def test_an_inexact_primitive_fails_with_operands_or_needs_its_tolerance() -> None:
    failed = of_exp(Allowances())
    assert failed.outcome is Outcome.FAILED
    assert "differ by more than 1 ulp; at a = " in failed.text
    entry = "[[tolerance]]\ncases = 'primitives/exp/*'\nulps = 2\nreason = 'r'\n"
    passed = of_exp(read_allowances(entry, "here"))
    assert (passed.outcome, passed.needs_tolerance) == (Outcome.PASSED, True)


def outcome(case: ReferenceCase, *formats: dtypes.DType, allowances: str = "") -> CaseResult:
    entries = read_allowances(allowances, "here")
    (found,) = reference_cases.results("theirs", [case], interpreter(*formats), entries)
    return found


def array(*values: float, dtype: str = "float32") -> Array:
    return np.array(values, dtype)


@pytest.mark.parametrize(
    ("function", "operands", "expected", "word"),
    [
        (oc.add, (array(1, 2), array(3, 4)), array(4, 6), Outcome.PASSED),
        (oc.add, (array(1, 2), array(3, 4)), array(4, 7), Outcome.FAILED),
        (oc.less, (array(1, 4), array(3, 4)), array(1, 0, dtype="bool"), Outcome.PASSED),
        (oc.less, (array(1, 4), array(3, 4)), array(0, 1, dtype="bool"), Outcome.FAILED),
        (oc.add, (array(1, 2), array(3, 4)), array(1, 0, dtype="bool"), Outcome.FAILED),
        (oc.sqrt, (array(-1, 4),), array(math.nan, 2), Outcome.PASSED),
        (oc.sqrt, (array(4),), array(2, dtype="float64"), Outcome.SKIPPED),
        (oc.add, (array(1),), array(1), Outcome.SKIPPED),
        (oc.add, (array(1, dtype="int8"), array(1, dtype="int8")), array(2), Outcome.SKIPPED),
    ],
)
def test_functions_pass_fail_or_are_skipped(
    function: Callable[..., Any], operands: Sequence[Array], expected: Array, word: Outcome
) -> None:
    case = opinfo.case_of("f", function, operands, expected)
    found = outcome(case, float32, dtypes.bool_)
    assert (found.name, found.outcome) == ("theirs/f", word)
    assert found.text or word is Outcome.PASSED


def of_results(found: Sequence[Any], expected: Sequence[Any], **options: Any) -> CaseResult:
    return outcome(ReferenceCase("f", lambda _: found, expected, **options), float32)


@pytest.mark.parametrize(
    ("found", "expected", "text"),
    [
        ([array(1, 3)], [array(1, 2)], "results[0]: 1 of 2 cells differ; at [1]: 3.0 instead of 2"),
        ([array(1)], [array(1, 1)], "results[0]: the shape (1,) instead of (2,)"),
        ([array(1)], [array(1, dtype="int32")], "results[0]: the format float32 instead of int32"),
        ([[array(1)]], [[array(1), array(2)]], "results[0]: 1 in place of 2 results"),
        ([array(1)], [], "results: 1 in place of 0 results"),
        ([array(1)], [[array(1)]], "results[0]: no sequence in place of 1 results"),
        ([array(1)], [None], "results[0]: array([1.], dtype=float32) instead of None"),
        ([np.array(["a"], object)], [np.array(["b"])], "1 of 1 cells differ; at [0]: a instead"),
        ([array(math.inf)], [array(3e38)], "inf instead of"),
        ([array(3e38)], [array(math.inf)], "instead of inf"),
        ([array(1)], [array(math.nan)], "instead of nan"),
    ],
)
def test_differences_have_their_place(
    found: Sequence[Any], expected: Sequence[Any], text: str
) -> None:
    result = of_results(found, expected, absolute=1e-3)
    assert result.outcome is Outcome.FAILED
    assert text in result.text


@given(expected=arrays(np.float32, (3,), elements=floats(width=32)))
def test_equal_results_pass_without_a_tolerance(expected: Array) -> None:
    nested = [expected, [expected, None], np.array(["text"], object)]
    assert not reference_cases.difference(nested, nested, 0.0, 0.0)


def test_results_within_tolerances_pass() -> None:
    found, expected = [array(1.001, 1e-8)], [array(1, 0)]
    assert of_results(found, expected, relative=1e-2, absolute=1e-7).outcome is Outcome.PASSED
    assert of_results(found, expected, relative=1e-2).outcome is Outcome.FAILED
    assert of_results(found, expected, absolute=1e-7).outcome is Outcome.FAILED
    case = ReferenceCase("f", lambda _: found, expected, absolute=1e-7)
    entry = "[[tolerance]]\ncases = 'theirs/*'\nrelative = 0.01\nreason = 'r'\n"
    allowed = outcome(case, float32, allowances=entry)
    assert (allowed.outcome, allowed.needs_tolerance) == (Outcome.PASSED, True)


def raising(error: Exception) -> Callable[[str], Sequence[Any]]:
    def compute(device: str) -> Sequence[Any]:
        assert device.startswith("interp")
        raise error

    return compute


@pytest.mark.parametrize(
    ("error", "word", "text"),
    [
        (CaseSkipped("another meaning"), Outcome.SKIPPED, "another meaning"),
        (UnsupportedError("no matrices"), Outcome.REFUSED, "no matrices"),
        (ZeroDivisionError("one\ntwo"), Outcome.FAILED, "ZeroDivisionError: one two"),
    ],
)
def test_errors_skip_refuse_or_fail(error: Exception, word: Outcome, text: str) -> None:
    found = outcome(ReferenceCase("f", raising(error), []), float32)
    assert (found.outcome, found.text) == (word, text)


def test_a_case_of_a_format_that_the_device_lacks_does_not_run() -> None:
    case = ReferenceCase("f", raising(AssertionError()), [], frozenset({"int8", "float32"}))
    found = outcome(case, float32)
    assert (found.outcome, found.text) == (Outcome.SKIPPED, "no format int8")
