"""Corpora of cases for backends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.loops.nodes import LoopProgram
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.dtypes import float16, float32, uint8
from ocannl_core.testing.allowances import Allowances, read_allowances
from ocannl_core.testing.compare import Array
from ocannl_core.testing.corpora import primitive_edges, published_vectors
from ocannl_core.testing.corpora.published_vectors import Vector
from ocannl_core.testing.outcomes import CaseResult, Outcome
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


def outcome(vector: Vector, *formats: dtypes.DType) -> CaseResult:
    (found,) = published_vectors.results(iter([vector]), interpreter(*formats), Allowances())
    return found


def array(*values: float, dtype: str = "float32") -> Array:
    return np.array(values, dtype)


@pytest.mark.parametrize(
    ("function", "operands", "expected", "word"),
    [
        ("add", (array(1, 2), array(3, 4)), array(4, 6), Outcome.PASSED),
        ("add", (array(1, 2), array(3, 4)), array(4, 7), Outcome.FAILED),
        ("less", (array(1, 4), array(3, 4)), array(1, 0, dtype="bool"), Outcome.PASSED),
        ("sqrt", (array(-1, 4),), array(math.nan, 2), Outcome.PASSED),
        ("sqrt", (array(4),), array(2, dtype="float64"), Outcome.SKIPPED),
        ("add", (array(1),), array(1), Outcome.SKIPPED),
        ("add", (array(1, dtype="int8"), array(1, dtype="int8")), array(2), Outcome.SKIPPED),
    ],
)
def test_vectors_pass_fail_or_are_skipped(
    function: str, operands: Sequence[Array], expected: Array, word: Outcome
) -> None:
    found = outcome(Vector("v", function, tuple(operands), expected), float32, dtypes.bool_)
    assert found.outcome is word
    assert found.text or word is Outcome.PASSED


def test_a_vector_without_a_function_is_skipped_with_its_reason() -> None:
    found = outcome(Vector("v", reason="attributes"), float32)
    assert (found.outcome, found.text) == (Outcome.SKIPPED, "attributes")


@pytest.mark.slow
def test_onnx_has_vectors_of_every_operator() -> None:
    pytest.importorskip("onnx")
    found = list(published_vectors.onnx_vectors())
    names = {each.name for each in found if not each.reason}
    assert {"onnx/abs", "onnx/add", "onnx/where_example", "onnx/tanh"} <= names
    assert len(names) > 60
