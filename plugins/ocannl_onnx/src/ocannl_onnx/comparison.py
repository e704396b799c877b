"""A model beside onnxruntime, node by node at the first difference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from ocannl_onnx.backend import PreparedModel
from ocannl_onnx.errors import OnnxError
from ocannl_onnx.model import Model
from ocannl_onnx.values import Array


@dataclass(frozen=True)
class Difference:
    """The greatest difference of an array.

    Attributes:
        name: The value in the graph.
        excess: The greatest difference beyond the tolerance, as a multiple of it; 0 within.
        absolute: The greatest absolute difference.
        text: The reason if the arrays have other shapes or formats.
    """

    name: str
    excess: float
    absolute: float
    text: str = ""

    def __str__(self) -> str:
        if self.text:
            return f"{self.name}: {self.text}"
        tolerances = f"{self.excess:.3g} times the tolerance"
        return f"{self.name}: greatest difference {self.absolute:.3g}, {tolerances}"


@dataclass(frozen=True)
class Report:
    """The result of a comparison.

    Attributes:
        outputs: The difference of each output.
        first: The first node whose result differs, if one does.
        node: A description of it.
    """

    outputs: tuple[Difference, ...]
    first: Difference | None = None
    node: str = ""

    @property
    def agrees(self) -> bool:
        return all(each.excess <= 1 and not each.text for each in self.outputs)

    def __str__(self) -> str:
        lines = [str(each) for each in self.outputs]
        lines.append("agrees with onnxruntime" if self.agrees else "differs from onnxruntime")
        if self.first is not None:
            lines.append(f"first at {self.node}\n  {self.first}")
        return "\n".join(lines)


def random_inputs(model: Model, seed: int) -> dict[str, Array]:
    """Return random arrays for the inputs: floats around 0, integers 0 and 1."""
    generator = np.random.default_rng(seed)
    result: dict[str, Array] = {}
    for port in model.inputs:
        axes = model.sizes_of(port, model.extents)
        if port.format is None or not port.format.carrier or axes is None:
            if port.is_optional:
                continue
            raise OnnxError(
                "Random inputs are tensors of numbers.", found=str(port), fix="--inputs FILE.npz"
            )
        sizes = [each for each in axes if isinstance(each, int)]
        if len(sizes) != len(axes):
            raise OnnxError("Random inputs have constant sizes.", found=f"{axes} of {port}")
        cells = generator.standard_normal(sizes)
        result[port.name] = (cells if port.format.is_float else cells > 0).astype(port.format.numpy)
    return result


def check(
    model: Model,
    inputs: Mapping[str, Array],
    backend: str | None = None,
    rtol: float = 1e-4,
    atol: float = 1e-5,
) -> Report:
    """Compare the outputs with onnxruntime's for the same inputs; where they differ, find the first
    node that does.

    Raises:
        OnnxError: if onnxruntime is not installed, or refuses the model.
    """
    names = [each.name for each in model.outputs]
    outputs = _compared(model, names, inputs, backend, rtol, atol)
    report = Report(tuple(outputs))
    if report.agrees:
        return report
    makers = {name: node for node in model.proto.graph.node for name in node.output if name}
    for difference in _compared(
        _with_outputs(model, list(makers)), list(makers), inputs, backend, rtol, atol
    ):
        if difference.excess > 1 or difference.text:
            node = makers[difference.name]
            position = list(model.proto.graph.node).index(node)
            return Report(
                tuple(outputs), difference, f"node {node.name or position}: {node.op_type}"
            )
    return report


def _with_outputs(model: Model, names: list[str]) -> Model:
    """Return the model with every result of a node as an output."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    del proto.graph.output[:]
    for name in names:
        proto.graph.output.add(name=name)
    return model.of_graph(proto)


def _compared(
    model: Model,
    names: list[str],
    inputs: Mapping[str, Array],
    backend: str | None,
    rtol: float,
    atol: float,
) -> list[Difference]:
    expected = _runtime(model, inputs)
    found = PreparedModel(model, backend).run(dict(inputs))
    return [
        _difference(name, one, other, rtol, atol)
        for name, one, other in zip(names, expected, found, strict=True)
    ]


def _runtime(model: Model, inputs: Mapping[str, Array]) -> list[Any]:
    try:
        import onnxruntime
    except ImportError as error:
        raise OnnxError(
            "A comparison needs onnxruntime.", found=str(error), fix="pip install onnxruntime"
        ) from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(
            model.serialized(), options, providers=["CPUExecutionProvider"]
        )
        results: list[Any] = session.run(None, dict(inputs))
    except Exception as error:
        raise OnnxError("onnxruntime runs the model.", found=str(error)) from error
    return results


def _difference(name: str, expected: Any, found: Any, rtol: float, atol: float) -> Difference:
    if isinstance(expected, list) or expected is None:
        same = isinstance(found, list) == isinstance(expected, list)
        return Difference(name, 0.0, 0.0, "" if same else "a sequence beside none")
    one, other = np.asarray(expected), np.asarray(found)
    if one.shape != other.shape:
        return Difference(
            name, 0.0, 0.0, f"shape {list(other.shape)}, of onnxruntime {list(one.shape)}"
        )
    if one.dtype.kind in "OUS":
        same = bool(np.array_equal(one, other))
        return Difference(name, 0.0, 0.0, "" if same else "other strings")
    a, b = one.astype(np.float64), other.astype(np.float64)
    with np.errstate(invalid="ignore"):
        distance = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
        distance = np.where(np.isnan(distance), np.inf, distance)
        ratio = distance / (atol + rtol * np.where(np.isfinite(a), np.abs(a), 0.0))
    return Difference(name, float(ratio.max(initial=0.0)), float(distance.max(initial=0.0)))
