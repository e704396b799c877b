"""The node tests of the package `onnx` as a corpus."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="the package onnx is not installed")

from ocannl_core.testing.allowances import Allowances, Outcome
from ocannl_core.testing.corpora import reference_cases
from ocannl_core.testing.subject import subject_named
from ocannl_onnx.corpus import cases
from plugins.ocannl_onnx.tests.node_cases import only

SAMPLE = {
    "add_bcast": Outcome.PASSED,
    "reduce_sum_negative_axes_keepdims_example": Outcome.PASSED,
    "attention_4d_causal_bf16": Outcome.PASSED,
    "optional_get_element_sequence": Outcome.PASSED,
    "sequence_map_add_2_sequences": Outcome.PASSED,
    "strnormalizer_export_monday_casesensintive_lower": Outcome.PASSED,
    "training_dropout_default": Outcome.SKIPPED,
    "resize_downsample_scales_linear_align_corners": Outcome.SKIPPED,
}


def test_cases_of_all_kinds_of_values_have_their_outcome() -> None:
    with only([f"test_{name}" for name in SAMPLE]):
        chosen = [each for each in cases() if each.name in SAMPLE]
    found = reference_cases.results("onnx", chosen, subject_named("interp"), Allowances())
    results = {each.name.removeprefix("onnx/"): each for each in found}
    assert {name: each.outcome for name, each in results.items()} == SAMPLE
    assert results["training_dropout_default"].text.startswith("Dropout")
    assert {each.name: each.formats for each in chosen}["add_bcast"] == {"float32"}


def test_every_case_has_a_name_of_its_own() -> None:
    every = [each.name for each in cases()]
    assert len(set(every)) == len(every) > 1800


def test_the_distribution_names_the_corpus() -> None:
    file = Path(__file__).parents[1] / "pyproject.toml"
    points = tomllib.loads(file.read_text("utf-8"))["project"]["entry-points"]
    module, _, function = points["ocannl.corpora"]["onnx"].partition(":")
    assert getattr(import_module(module), function) is cases
