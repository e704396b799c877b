"""Small models of the tests, made with `onnx.helper`."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int | str] | None],
    outputs: dict[str, list[int | str] | None],
    weights: dict[str, Array] | None = None,
    opset: int = 18,
    **types: int,
) -> onnx.ModelProto:
    """Return a model of nodes; `types` state the element types that are not float32."""

    def ports(named: dict[str, list[int | str] | None]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), shape)
            for name, shape in named.items()
        ]

    initializers = [numpy_helper.from_array(each, name) for name, each in (weights or {}).items()]
    graph = helper.make_graph(nodes, "sample", ports(inputs), ports(outputs), initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def perceptron(rng: np.random.Generator) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Return a perceptron whose first axis is named `batch`, and its weights."""
    weights = {
        "layers.0.weight": rng.standard_normal((3, 5)).astype(np.float32),
        "layers.0.bias": rng.standard_normal(5).astype(np.float32),
        "layers.1.weight": rng.standard_normal((5, 2)).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "layers.0.weight"], ["product"], name="/layers.0/MatMul"),
        helper.make_node("Add", ["product", "layers.0.bias"], ["sum"], name="/layers.0/Add"),
        helper.make_node("Relu", ["sum"], ["hidden"], name="/Relu"),
        helper.make_node("MatMul", ["hidden", "layers.1.weight"], ["y"], name="/layers.1/MatMul"),
    ]
    return model(nodes, {"x": ["batch", 3]}, {"y": ["batch", 2]}, weights), weights


def expected_of(weights: dict[str, Array], x: Array) -> Array:
    hidden = np.maximum(x @ weights["layers.0.weight"] + weights["layers.0.bias"], 0)
    return hidden @ weights["layers.1.weight"]
