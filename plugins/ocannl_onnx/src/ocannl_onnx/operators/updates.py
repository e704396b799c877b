"""Steps of optimizers, as the standard's preview of training defines them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ocannl_core as oc
from ocannl_onnx.operators.movement import reshaped
from ocannl_onnx.registry import operator
from ocannl_onnx.values import Value

if TYPE_CHECKING:
    from ocannl_onnx.graphs import Node

_DOMAIN = "ai.onnx.preview.training"


def _groups(values: tuple[Value, ...], parts: int) -> list[tuple[Any, ...]]:
    """Return the tensors of each parameter: its cells, its gradient and its state."""
    count = len(values) // parts
    return [tuple(values[part * count + k].tensor for part in range(parts)) for k in range(count)]


def _columns(rows: list[tuple[Any, ...]]) -> list[Any]:
    return [each for column in zip(*rows, strict=True) for each in column]


def _number(value: Value) -> Any:
    return reshaped(oc.cast(value.tensor, "float32"), [])


@operator("Adagrad", domain=_DOMAIN)
def adagrad(node: Node, rate: Value, step: Value, *values: Value) -> list[Any]:
    decay, epsilon = node.attr("decay_factor", 0.0), node.attr("epsilon", 0.0)
    own = _number(rate) / (1.0 + _number(step) * decay)
    rows = []
    for x, gradient, squares in _groups(values, 3):
        slope = gradient + node.attr("norm_coefficient", 0.0) * x
        total = squares + slope * slope
        rows.append((x - own * slope / (oc.sqrt(total) + epsilon), total))
    return _columns(rows)


@operator("Momentum", domain=_DOMAIN)
def momentum(node: Node, rate: Value, step: Value, *values: Value) -> list[Any]:
    alpha, beta = node.attr("alpha", 0.0), node.attr("beta", 0.0)
    own = _number(rate)
    gain = oc.where(oc.less(0.0, _number(step), dtype="bool"), beta, 1.0)
    rows = []
    for x, gradient, velocity in _groups(values, 3):
        slope = gradient + node.attr("norm_coefficient", 0.0) * x
        new = alpha * velocity + gain * slope
        move = slope + alpha * new if node.attr("mode", "standard") == "nesterov" else new
        rows.append((x - own * move, new))
    return _columns(rows)


@operator("Adam", domain=_DOMAIN)
def adam(node: Node, rate: Value, step: Value, *values: Value) -> list[Any]:
    alpha, beta = node.attr("alpha", 0.9), node.attr("beta", 0.999)
    at = _number(step)
    corrected = _number(rate) * oc.sqrt(1.0 - oc.pow(beta, at)) / (1.0 - oc.pow(alpha, at))
    own = oc.where(oc.less(0.0, at, dtype="bool"), corrected, _number(rate))
    rows = []
    for x, gradient, mean, squares in _groups(values, 4):
        slope = gradient + node.attr("norm_coefficient", 0.0) * x
        new_mean = alpha * mean + (1.0 - alpha) * slope
        new_squares = beta * squares + (1.0 - beta) * slope * slope
        new = x - own * (new_mean / (oc.sqrt(new_squares) + node.attr("epsilon", 1e-6)))
        rows.append(((1.0 - node.attr("norm_coefficient_post", 0.0)) * new, new_mean, new_squares))
    return _columns(rows)


@operator("Gradient", domain=_DOMAIN)
def gradient(node: Node, *values: Value) -> list[Any]:
    """Return the gradients of a value of the graph with respect to others."""
    names = node.attr("xs", ())
    result = node.scope.find(node.attr("y", ""))
    if not isinstance(result, Value) or len(values) < len(names):
        node.invalid("`y` is a value of the graph, and each of `xs` an input.", node.attr("y", ""))
    for name, value in zip(names, values, strict=False):
        if node.scope.find(name) is not value:
            node.refuse(
                f"the gradient is taken at values that the graph does not compute ({name!r})"
            )
    return list(oc.gradients(oc.sum(result.tensor), [each.tensor for each in values[: len(names)]]))
