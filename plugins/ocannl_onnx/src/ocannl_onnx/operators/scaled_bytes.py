"""Operators of onnxruntime on bytes with a scale and a zero point: its quantizer writes them.

They compute with real numbers, and round the result. onnxruntime multiplies by quotients of scales
first, so that a result in the middle of two integers may be the other one there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ocannl_core as oc
from ocannl_core import Tensor
from ocannl_onnx.formats import Format
from ocannl_onnx.operators.activations import axes_of_distribution
from ocannl_onnx.operators.attention import attended_rows
from ocannl_onnx.operators.movement import axis_of, moved, permuted, reshaped
from ocannl_onnx.operators.pooling import average_pool
from ocannl_onnx.operators.quantization import (
    dequantize_linear,
    dynamic_quantize_linear,
    integer_product,
    quantize_linear,
    quantized,
    scale_along,
)
from ocannl_onnx.registry import MICROSOFT, operator
from ocannl_onnx.values import Value

if TYPE_CHECKING:
    from ocannl_onnx.graphs import Node

operator("QuantizeLinear", domain=MICROSOFT)(quantize_linear)
operator("DequantizeLinear", domain=MICROSOFT)(dequantize_linear)


def _one(value: Value) -> Tensor:
    """Return the number of a value that has one."""
    return reshaped(value.tensor, [])


def _real(x: Value, scale: Value, zero: Value | None) -> Tensor:
    cells = oc.cast(x.tensor, "int32")
    if zero is not None:
        cells = cells - oc.cast(_one(zero), "int32")
    return oc.cast(cells, "float32") * _one(scale)


def _bytes(real: Tensor, scale: Value, zero: Value | None, like: Value, shape: Any = None) -> Value:
    """Return real numbers in the format of the zero point, or of an operand without one."""
    target: Format = like.format if zero is None else zero.format
    shift = None if zero is None else _one(zero)
    return Value.of_tensor(quantized(real / _one(scale), shift, target), target, shape=shape)


def _unary(name: str, function: Callable[[Node, Value], Any]) -> None:
    """Register a function of real numbers, of the same sizes."""

    def apply(
        node: Node, x: Value, scale: Value, zero: Value | None, y_scale: Value,
        y_zero: Value | None = None,
    ) -> Value:  # fmt: skip
        real = Value.of_tensor(_real(x, scale, zero), shape=x.shape)
        return _bytes(function(node, real), y_scale, y_zero, x, x.shape)

    operator(name, domain=MICROSOFT)(apply)


_unary("QLinearSigmoid", lambda node, x: oc.sigmoid(x.tensor))
_unary("QLinearLeakyRelu", lambda node, x: oc.leaky_relu(x.tensor, node.attr("alpha", 0.01)))


def _binary(name: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Register a function of two real numbers, which broadcast."""

    def apply(
        node: Node,
        a: Value, a_scale: Value, a_zero: Value | None,
        b: Value, b_scale: Value, b_zero: Value | None,
        c_scale: Value, c_zero: Value | None = None,
    ) -> Value:  # fmt: skip
        real = function(_real(a, a_scale, a_zero), _real(b, b_scale, b_zero))
        return _bytes(real, c_scale, c_zero, a)

    operator(name, domain=MICROSOFT)(apply)


_binary("QLinearAdd", lambda a, b: a + b)
_binary("QLinearMul", lambda a, b: a * b)


@operator("QLinearSoftmax", domain=MICROSOFT)
def qlinear_softmax(
    node: Node, x: Value, scale: Value, zero: Value | None, y_scale: Value, y_zero: Value
) -> Value:
    axes = axes_of_distribution(node, x, node.attr("opset"))
    real = oc.softmax(_real(x, scale, zero), axis=axes)
    return _bytes(real, y_scale, y_zero, x, x.shape)


@operator("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(node: Node, y_scale: Value, y_zero: Value, *parts: Value) -> Value:
    axis = axis_of(node, node.attr("axis", 0), parts[0].rank)
    triples = [parts[at : at + 3] for at in range(0, len(parts), 3)]
    cells = [_bytes(_real(*each), y_scale, y_zero, each[0]).tensor for each in triples]
    return moved(parts[0], oc.concat(cells, axis=axis))


# pooling


def _with_channels_first(node: Node, x: Value) -> tuple[Value, Callable[[Value], Value]]:
    """Return an image with the channels in front of the places, and the way back."""
    if not node.attr("channels_last", 0):
        return x, lambda each: each
    last = x.rank - 1
    front, back = (0, last, *range(1, last)), (0, *range(2, last + 1), 1)
    return permuted(node, x, front), lambda each: permuted(node, each, back)


@operator("QLinearGlobalAveragePool", domain=MICROSOFT)
def qlinear_global_average_pool(
    node: Node, x: Value, scale: Value, zero: Value, y_scale: Value, y_zero: Value
) -> Value:
    image, back = _with_channels_first(node, x)
    places = tuple(range(2, x.rank))
    total = oc.sum(oc.cast(image.tensor, "int32"), axis=places, keepdims=True)
    count = math.prod(image.shape[2:])
    centered = oc.cast(total - oc.cast(_one(zero), "int32") * count, "float32")
    shape = (*image.shape[:2], *[1] * len(places))
    return back(_bytes(centered * (_one(scale) / float(count)), y_scale, y_zero, x, shape))


@operator("QLinearAveragePool", domain=MICROSOFT)
def qlinear_average_pool(
    node: Node, x: Value, scale: Value, zero: Value | None, y_scale: Value,
    y_zero: Value | None = None,
) -> Value:  # fmt: skip
    image, back = _with_channels_first(node, x)
    real = Value.of_tensor(_real(image, scale, zero), shape=image.shape)
    mean = average_pool(node, real)
    return back(_bytes(mean.tensor, y_scale, y_zero, x, mean.shape))


# products


@operator("QGemm", domain=MICROSOFT)
def qgemm(
    node: Node,
    a: Value, a_scale: Value, a_zero: Value,
    b: Value, b_scale: Value, b_zero: Value,
    c: Value | None = None, y_scale: Value | None = None, y_zero: Value | None = None,
) -> Any:  # fmt: skip
    left = permuted(node, a, (1, 0)) if node.attr("transA", 0) else a
    right = permuted(node, b, (1, 0)) if node.attr("transB", 0) else b
    total = integer_product(node, left, a_zero, right, b_zero)
    if c is not None:
        total = total + c.tensor
    factor = node.attr("alpha", 1.0) * scale_along(a_scale, 2, 0) * scale_along(b_scale, 2, 1)
    real = oc.cast(total, "float32") * factor
    return real if y_scale is None else _bytes(real, y_scale, y_zero, a)


@operator("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_of_bytes(
    node: Node, a: Value, b: Value, a_scale: Value, b_scale: Value,
    a_zero: Value | None = None, b_zero: Value | None = None, bias: Value | None = None,
) -> Value:  # fmt: skip
    total = integer_product(node, a, a_zero, b, b_zero)
    rank = len(tuple(total.shape.dims))
    factor = scale_along(a_scale, rank, rank - 2) * scale_along(b_scale, rank, rank - 1)
    result = oc.cast(total, "float32") * factor
    if bias is not None:
        result = result + bias.tensor
    return moved(a_scale, oc.cast(result, a_scale.format.carrier))


@operator("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_matmul(
    node: Node, a: Value, b: Value, b_scale: Value, b_zero: Value | None = None,
    bias: Value | None = None,
) -> Value:  # fmt: skip
    cells, scale, zero = dynamic_quantize_linear(node, a)
    whole = Value.of_tensor(cells, shape=a.shape)
    factor, shift = Value.of_tensor(scale, shape=()), Value.of_tensor(zero, shape=())
    return matmul_of_bytes(node, whole, b, factor, b_scale, shift, b_zero, bias)


@operator("QAttention", domain=MICROSOFT)
def attention_of_bytes(
    node: Node,
    x: Value, weights: Value, bias: Value, x_scale: Value, w_scale: Value,
    mask: Value | None = None, x_zero: Value | None = None, w_zero: Value | None = None,
    past: Value | None = None,
) -> Any:  # fmt: skip
    rows = matmul_of_bytes(node, x, weights, x_scale, w_scale, x_zero, w_zero, bias)
    like = Value.of_tensor(rows.tensor, rows.format, shape=rows.shape)
    return attended_rows(node, like, rows, mask, past)
