"""The node tests of the package `onnx`, as a corpus of `ocannl check-backend --corpus onnx`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx

import ocannl_core as oc
from ocannl_onnx.backend import PreparedModel
from ocannl_onnx.errors import UnsupportedOperatorError
from ocannl_onnx.formats import format_numbered
from ocannl_onnx.model import load

_ROUNDING = {"dft_inverse": 1e-6, "dft_inverse_opset19": 1e-6}
"""Tolerances of tests whose expected results have rounding errors of 2e-7 in the place of 0."""

_FRACTIONAL_LENGTHS = {
    "resize_downsample_scales_cubic_align_corners",
    "resize_downsample_scales_linear_align_corners",
}
"""Tests whose results follow from `scale * length`, where the text of the standard, PyTorch and
onnxruntime mean the length of the resized axis.
"""


def cases() -> Iterator[oc.testing.ReferenceCase]:
    """Yield a case for each set of data of each node test."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    for test in found:
        name = test.name.removeprefix("test_")
        compute = _contradicted if name in _FRACTIONAL_LENGTHS else _computed
        sets = list(test.data_sets)
        for number, (inputs, outputs) in enumerate(sets):
            expected = [plain(each) for each in outputs]
            is_bfloat16 = any(getattr(each, "dtype", None) == "bfloat16" for each in expected)
            yield oc.testing.ReferenceCase(
                name if len(sets) == 1 else f"{name}/{number}",
                partial(compute, test.model, [plain(each) for each in inputs]),
                expected,
                _formats(test.model.graph),
                # two units in the last place, as the runner of the package accepts
                relative=max(test.rtol, 2.0**-6) if is_bfloat16 else test.rtol,
                absolute=_ROUNDING.get(name, test.atol),
            )


def plain(item: Any) -> Any:
    """Return a value of a test as an array, a list or None."""
    return onnx.numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else item


def _computed(model: onnx.ModelProto, inputs: Sequence[Any], device: str) -> Sequence[Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return PreparedModel(load(model), device).run(inputs)
    except UnsupportedOperatorError as error:
        raise oc.testing.CaseSkipped(str(error).splitlines()[0]) from error


def _contradicted(model: onnx.ModelProto, inputs: Sequence[Any], device: str) -> Sequence[Any]:
    raise oc.testing.CaseSkipped(
        "the corners of a resized axis of a fractional length: the text of the standard has none"
    )


def _formats(graph: onnx.GraphProto) -> frozenset[str]:
    """Return the formats in which the core takes the inputs and outputs."""
    numbers = (
        each.type.tensor_type.elem_type
        for each in (*graph.input, *graph.output)
        if each.type.HasField("tensor_type")
    )
    found = (format_numbered(each) for each in numbers)
    return frozenset(each.carrier for each in found if each is not None and each.carrier)
