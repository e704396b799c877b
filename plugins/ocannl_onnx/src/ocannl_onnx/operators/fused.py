"""Operators of onnxruntime that join several of the standard: its optimizer writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ocannl_core as oc
from ocannl_core import Tensor
from ocannl_onnx.operators.activations import ACTIVATIONS, gelu
from ocannl_onnx.operators.contractions import conv, gemm, product
from ocannl_onnx.operators.movement import moved, permuted
from ocannl_onnx.operators.normalization import layer_normalization, root_mean_square
from ocannl_onnx.operators.positions import gather
from ocannl_onnx.registry import MICROSOFT, operator
from ocannl_onnx.values import Value

if TYPE_CHECKING:
    from ocannl_onnx.graphs import Node

SKIP_EPSILON = 1e-12
"""The default of norms that add first."""

operator("Gelu", domain=MICROSOFT, pointwise=True)(gelu)


@operator("BiasGelu", domain=MICROSOFT, pointwise=True)
def bias_gelu(node: Node, x: Value, bias: Value) -> Tensor:
    return oc.gelu(x.tensor + bias.tensor)


@operator("FastGelu", domain=MICROSOFT, pointwise=True)
def fast_gelu(node: Node, x: Value, bias: Value | None = None) -> Tensor:
    return oc.gelu(x.tensor if bias is None else x.tensor + bias.tensor, approximate="tanh")


@operator("QuickGelu", domain=MICROSOFT, pointwise=True)
def quick_gelu(node: Node, x: Value) -> Tensor:
    return x.tensor * oc.sigmoid(node.attr("alpha", 1.702) * x.tensor)


# norms


@operator("SimplifiedLayerNormalization")
@operator("SimplifiedLayerNormalization", domain=MICROSOFT)
def simplified_layer_normalization(node: Node, x: Value, scale: Value) -> Any:
    """Compute `RMSNormalization`, which the standard has since version 23."""
    return root_mean_square(node, x, scale)


def _sum_of(x: Value, *others: Value | None) -> Value:
    total = x.tensor
    for each in others:
        total = total if each is None else total + each.tensor
    return Value.of_tensor(oc.cast(total, x.format.carrier), x.format, shape=x.shape)


@operator("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(
    node: Node, x: Value, skip: Value, gain: Value,
    shift: Value | None = None, bias: Value | None = None,
) -> Any:  # fmt: skip
    total = _sum_of(x, skip, bias)
    return *layer_normalization(node, total, gain, shift, epsilon=SKIP_EPSILON), total


@operator("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_simplified_layer_normalization(
    node: Node, x: Value, skip: Value, gain: Value, bias: Value | None = None
) -> Any:
    total = _sum_of(x, skip, bias)
    result, inverse = root_mean_square(node, total, gain, epsilon=SKIP_EPSILON)
    return result, None, inverse, total


@operator("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(
    node: Node, ids: Value, segments: Value | None,
    words: Value, places: Value, kinds: Value | None, gain: Value, shift: Value,
    mask: Value | None = None, positions: Value | None = None,
) -> Any:  # fmt: skip
    if ids.extent(1) is not None and positions is None:
        node.refuse("its sequence has an extent at run time, and `position_ids` are not given")
    rows = gather(node, words, ids)
    own = gather(node, places, positions).tensor if positions else places.tensor[: ids.shape[1]]
    total = rows.tensor + own
    if segments is not None and kinds is not None:
        total = total + gather(node, kinds, segments).tensor
    embedded = moved(words, node.sized(total, rows.shape))
    result = layer_normalization(node, embedded, gain, shift, epsilon=SKIP_EPSILON)[0]
    if node.attr("mask_index_type", 1 if mask is not None else 0) and mask is not None:
        lengths: Any = oc.sum(mask.tensor, axis=1, dtype="int32")
    else:
        lengths = oc.zeros(output=[ids.shape[0]], dtype="int32")
    return result, lengths, embedded


# products


def _activated(node: Node, tensor: Tensor, alpha: float | None, beta: float | None) -> Tensor:
    name = node.attr("activation", "")
    if name == "Clip" and alpha is not None and beta is not None:
        return oc.clip(tensor, alpha, beta)
    if name and name not in ACTIVATIONS:
        node.refuse(f"its activation is {name}")
    result: Tensor = ACTIVATIONS[name](tensor, alpha, beta) if name else tensor
    return result


@operator("FusedMatMul", domain=MICROSOFT)
def fused_matmul(node: Node, a: Value, b: Value) -> Value:
    left, right = _turned(node, a, "A"), _turned(node, b, "B")
    result = product(node, left.tensor, left.shape, right.tensor, right.shape, a.format.carrier)
    alpha = node.attr("alpha", 1.0)
    return moved(a, result if alpha == 1.0 else oc.cast(result * alpha, a.format.carrier))


def _turned(node: Node, x: Value, side: str) -> Value:
    """Return a stack of matrices, whose stack may lie behind the rows, and which may be
    transposed.
    """
    order = list(range(x.rank))
    if x.rank > 2 and node.attr(f"transBatch{side}", 0):
        order = [*order[1:-1], order[0], order[-1]]
    if x.rank > 1 and node.attr(f"trans{side}", 0):
        order[-2:] = order[-1], order[-2]
    return x if order == sorted(order) else permuted(node, x, tuple(order))


@operator("FusedGemm", domain=MICROSOFT)
def fused_gemm(node: Node, a: Value, b: Value, c: Value | None = None) -> Value:
    total = gemm(node, a, b, c).tensor
    alpha, beta = node.attr("activation_alpha"), node.attr("activation_beta")
    return moved(a, _activated(node, total, alpha, beta))


@operator("FusedConv", domain=MICROSOFT)
def fused_conv(
    node: Node, x: Value, w: Value, bias: Value | None = None, addend: Value | None = None
) -> Value:
    result = conv(node, x, w, bias)
    total = result.tensor
    if addend is not None:
        total = node.sized(total + addend.tensor, result.shape)
    alpha, beta = (*node.attr("activation_params", ()), None, None)[:2]
    return moved(x, node.sized(_activated(node, total, alpha, beta), result.shape))
