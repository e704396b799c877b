"""Activation functions, and the distributions made by softmax."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import ocannl_core as oc
from ocannl_core import Tensor
from ocannl_onnx.operators.movement import positions_along
from ocannl_onnx.registry import operator
from ocannl_onnx.values import Value

if TYPE_CHECKING:
    from ocannl_onnx.graphs import Node


@operator("Relu", pointwise=True)
def relu(node: Node, x: Value) -> Tensor:
    return oc.maximum(x.tensor, 0)


@operator("LeakyRelu", pointwise=True)
def leaky_relu(node: Node, x: Value) -> Tensor:
    return oc.leaky_relu(x.tensor, node.attr("alpha", 0.01))


@operator("PRelu", pointwise=True)
def prelu(node: Node, x: Value, slope: Value) -> Tensor:
    factor = slope.tensor
    if node.version < 7 and slope.rank == 1 and slope.shape[0] > 1:  # one for each channel
        factor = oc.reshape(factor, output=[slope.shape[0], *[1] * (x.rank - 2)])
    return oc.where(oc.less(x.tensor, 0, dtype="bool"), factor * x.tensor, x.tensor)


@operator("Elu", pointwise=True)
def elu(node: Node, x: Value) -> Tensor:
    return oc.elu(x.tensor, node.attr("alpha", 1.0))


@operator("Celu", since=12, pointwise=True)
def celu(node: Node, x: Value) -> Tensor:
    alpha = node.attr("alpha", 1.0)
    return oc.maximum(x.tensor, 0.0) + oc.minimum(alpha * oc.expm1(x.tensor / alpha), 0.0)


@operator("Selu", pointwise=True)
def selu(node: Node, x: Value) -> Tensor:
    alpha = node.attr("alpha", 1.6732631921768188)
    gamma = node.attr("gamma", 1.0507010221481323)
    return gamma * oc.elu(x.tensor, alpha)


@operator("Sigmoid", pointwise=True)
def sigmoid(node: Node, x: Value) -> Tensor:
    return oc.sigmoid(x.tensor)


@operator("HardSigmoid", pointwise=True)
def hard_sigmoid(node: Node, x: Value) -> Tensor:
    return oc.clip(x.tensor * node.attr("alpha", 0.2) + node.attr("beta", 0.5), 0.0, 1.0)


@operator("HardSwish", since=14, pointwise=True)
def hard_swish(node: Node, x: Value) -> Tensor:
    return x.tensor * oc.clip(x.tensor / 6.0 + 0.5, 0.0, 1.0)


@operator("Softplus", pointwise=True)
def softplus(node: Node, x: Value) -> Tensor:
    return oc.softplus(x.tensor)


@operator("Softsign", pointwise=True)
def softsign(node: Node, x: Value) -> Tensor:
    return oc.softsign(x.tensor)


@operator("ThresholdedRelu", pointwise=True)
def thresholded_relu(node: Node, x: Value) -> Tensor:
    return oc.where(oc.less(node.attr("alpha", 1.0), x.tensor, dtype="bool"), x.tensor, 0.0)


@operator("Shrink", since=9, pointwise=True)
def shrink(node: Node, x: Value) -> Tensor:
    lambd, bias = node.attr("lambd", 0.5), node.attr("bias", 0.0)
    wide = oc.cast(x.tensor, "float32") if x.format.is_integer else x.tensor
    below, above = oc.less(wide, -lambd, dtype="bool"), oc.less(lambd, wide, dtype="bool")
    return oc.cast(
        oc.where(below, wide + bias, oc.where(above, wide - bias, 0.0)), x.format.carrier
    )


@operator("Gelu", since=20, pointwise=True)
def gelu(node: Node, x: Value) -> Tensor:
    return oc.gelu(x.tensor, approximate=node.attr("approximate", "none"))


@operator("Mish", since=18, pointwise=True)
def mish(node: Node, x: Value) -> Tensor:
    return oc.mish(x.tensor)


@operator("Swish", since=24, pointwise=True)
def swish(node: Node, x: Value) -> Tensor:
    return x.tensor * oc.sigmoid(node.attr("alpha", 1.0) * x.tensor)


def _axes(node: Node, x: Value) -> tuple[int, ...]:
    return axes_of_distribution(node, x, node.version)


def axes_of_distribution(node: Node, x: Value, version: int) -> tuple[int, ...]:
    """Return the axes of a distribution: until version 12 all from an axis on."""
    if version < 13:
        axis = node.attr("axis", 1)
        return tuple(range(axis if axis >= 0 else axis + x.rank, x.rank))
    axis = node.attr("axis", -1)
    return (axis if axis >= 0 else axis + x.rank,)


@operator("Softmax", pointwise=True)
def softmax(node: Node, x: Value) -> Tensor:
    axes = _axes(node, x)
    if x.format.name in ("float16", "bfloat16"):
        # sums accumulate in float32
        powers = oc.exp(x.tensor - oc.max(x.tensor, axis=axes, keepdims=True))
        total = oc.sum(powers, axis=axes, keepdims=True, dtype="float32")
        return powers / oc.cast(total, x.format.carrier)
    return oc.softmax(x.tensor, axis=axes)


@operator("LogSoftmax", pointwise=True)
def log_softmax(node: Node, x: Value) -> Tensor:
    return oc.log_softmax(x.tensor, axis=_axes(node, x))


@operator("Hardmax")
def hardmax(node: Node, x: Value) -> Tensor:
    axes = _axes(node, x)
    if len(axes) == 1:
        best = oc.argmax(x.tensor, axis=axes[0], keepdims=True)
        places = positions_along(x, axes[0], str(best.dtype))
        return oc.cast(oc.equal(best, places, dtype="bool"), x.format.carrier)
    count = math.prod(x.shape[axes[0] :])
    flat = oc.reshape(x.tensor, output=[*x.shape[: axes[0]], count])
    hot = oc.one_hot(oc.argmax(flat, axis=-1), count, dtype=x.format.carrier)
    return oc.reshape(hot, output=list(x.shape))


ACTIVATIONS: dict[str, Any] = {
    "Relu": lambda x, a, b: oc.maximum(x, 0.0),
    "Tanh": lambda x, a, b: oc.tanh(x),
    "Sigmoid": lambda x, a, b: oc.sigmoid(x),
    "Affine": lambda x, a, b: (1.0 if a is None else a) * x + (0.0 if b is None else b),
    "LeakyRelu": lambda x, a, b: oc.leaky_relu(x, 0.01 if a is None else a),
    "ThresholdedRelu": lambda x, a, b: oc.where(
        oc.less(1.0 if a is None else a, x, dtype="bool"), x, 0.0
    ),
    "ScaledTanh": lambda x, a, b: (
        (1.0 if a is None else a) * oc.tanh((1.0 if b is None else b) * x)
    ),
    "HardSigmoid": lambda x, a, b: oc.clip(
        (0.2 if a is None else a) * x + (0.5 if b is None else b), 0.0, 1.0
    ),
    "Elu": lambda x, a, b: oc.elu(x, 1.0 if a is None else a),
    "Softsign": lambda x, a, b: oc.softsign(x),
    "Softplus": lambda x, a, b: oc.softplus(x),
}
"""The activations that recurrent operators name, of a tensor, `alpha` and `beta`."""
