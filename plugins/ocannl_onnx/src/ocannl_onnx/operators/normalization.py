"""Normalization operators."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import ocannl_core as oc
from ocannl_core import Tensor
from ocannl_onnx.formats import format_named, format_numbered
from ocannl_onnx.operators.movement import axis_of, moved, reshaped
from ocannl_onnx.registry import operator
from ocannl_onnx.values import Value

if TYPE_CHECKING:
    from ocannl_onnx.graphs import Node


def _channels(x: Value, tensor: Tensor) -> Tensor:
    """Return a vector as an axis of channels."""
    return reshaped(tensor, [*tensor.shape.dims, *[1] * (x.rank - 2)])


@operator("BatchNormalization")
def batch_normalization(
    node: Node, x: Value, scale: Value, bias: Value, mean: Value, variance: Value
) -> Any:
    epsilon = node.attr("epsilon", 1e-5)
    if node.version >= 14:
        training = bool(node.attr("training_mode", 0))
    else:
        training = node.outputs_wanted() > 1 or (node.version < 7 and not node.attr("is_test", 0))
    if not node.attr("spatial", 1):
        node.refuse("each cell of an example has statistics of its own (`spatial=0`)")
    own_mean, own_variance = mean.tensor, variance.tensor
    if training:
        axes = (0, *range(2, x.rank))
        own_mean = oc.mean(x.tensor, axis=axes)
        own_variance = oc.var(x.tensor, axis=axes)
    root = oc.sqrt(_channels(x, own_variance) + epsilon)
    if x.rank == 1:
        node.refuse("its input has no axis of channels")
    result = (x.tensor - _channels(x, own_mean)) * _channels(x, scale.tensor) / root + _channels(
        x, bias.tensor
    )
    result = node.sized(oc.cast(result, x.format.carrier), x.shape)
    if not training:
        return moved(x, result)
    keep = node.attr("momentum", 0.9)
    return (
        moved(x, result),
        mean.tensor * keep + own_mean * (1.0 - keep),
        variance.tensor * keep + own_variance * (1.0 - keep),
    )


@operator("InstanceNormalization")
def instance_normalization(node: Node, x: Value, scale: Value, bias: Value) -> Value:
    axes = tuple(range(2, x.rank))
    centered = node.sized(x.tensor - oc.mean(x.tensor, axis=axes, keepdims=True), x.shape)
    squares = node.sized(centered * centered, x.shape)
    root = oc.sqrt(oc.mean(squares, axis=axes, keepdims=True) + node.attr("epsilon", 1e-5))
    result = _channels(x, scale.tensor) * centered / root + _channels(x, bias.tensor)
    return moved(x, node.sized(result, x.shape))


@operator("GroupNormalization", since=18)
def group_normalization(node: Node, x: Value, scale: Value, bias: Value) -> Value:
    groups, channels = node.attr("num_groups", 1), x.shape[1]
    if groups < 1 or channels % groups:
        node.invalid("Groups divide the channels.", f"{groups} groups of {channels}")
    cells = oc.cast(
        reshaped(x.tensor, [x.shape[0], groups, math.prod(x.shape[1:]) // groups]), "float32"
    )
    centered = cells - oc.mean(cells, axis=-1, keepdims=True)
    variance = oc.mean(centered * centered, axis=-1, keepdims=True)
    normal = reshaped(centered / oc.sqrt(variance + node.attr("epsilon", 1e-5)), x.shape)
    if node.version < 21:  # one number for each group
        per = channels // groups
        gain = oc.repeat(scale.tensor, per, 0)
        shift = oc.repeat(bias.tensor, per, 0)
    else:
        gain, shift = scale.tensor, bias.tensor
    result = oc.cast(normal, x.format.carrier) * _channels(x, gain) + _channels(x, shift)
    return moved(x, result)


@operator("LayerNormalization", since=17)
def layer_normalization(
    node: Node, x: Value, scale: Value, bias: Value | None = None, *, epsilon: float = 1e-5
) -> Any:
    cells, axes, kept = _rows(node, x)
    mean = node.sized(oc.mean(cells, axis=axes, keepdims=True), kept)
    centered = node.sized(cells - mean, x.shape)
    squares = node.sized(centered * centered, x.shape)
    variance = oc.mean(squares, axis=axes, keepdims=True)
    inverse = node.sized(oc.reciprocal(oc.sqrt(variance + node.attr("epsilon", epsilon))), kept)
    result = oc.cast(centered * inverse, x.format.carrier) * scale.tensor
    if bias is not None:
        result = result + bias.tensor
    return moved(x, node.sized(result, x.shape)), mean, inverse


@operator("RMSNormalization", since=23)
def rms_normalization(node: Node, x: Value, scale: Value) -> Value:
    return root_mean_square(node, x, scale)[0]


def root_mean_square(
    node: Node, x: Value, scale: Value, *, epsilon: float = 1e-5
) -> tuple[Value, Tensor]:
    """Return rows divided by the roots of their mean squares, and the inverses of the roots."""
    cells, axes, kept = _rows(node, x)
    squares = node.sized(cells * cells, x.shape)
    mean = node.sized(oc.mean(squares, axis=axes, keepdims=True), kept)
    root = oc.sqrt(mean + node.attr("epsilon", epsilon))
    result = oc.cast(cells / root, x.format.carrier) * scale.tensor
    return moved(x, node.sized(result, x.shape)), oc.reciprocal(root)


def _rows(node: Node, x: Value) -> tuple[Tensor, tuple[int, ...], list[int]]:
    """Return cells in the format of the statistics, the axes of a row, and the sizes of the
    statistics.
    """
    first = axis_of(node, node.attr("axis", -1), x.rank)
    axes = tuple(range(first, x.rank))
    stash = format_numbered(node.attr("stash_type", 1)) or format_named("float32")
    kept = [*x.shape[:first], *[1] * len(axes)]
    return node.sized(oc.cast(x.tensor, stash.carrier), x.shape), axes, kept


@operator("LRN")
def lrn(node: Node, x: Value) -> Value:
    size = node.attr("size", 1)
    before, after = (size - 1) // 2, -(-(size - 1) // 2)
    squares = oc.pad(x.tensor * x.tensor, [(0, 0), (before, after), *[(0, 0)] * (x.rank - 2)])
    total = oc.einsum("n, 1*c<+1*k, ..r.. => n, c, ..r..", squares, values={"k": size})
    scale = node.attr("bias", 1.0) + total * (node.attr("alpha", 1e-4) / size)
    return moved(x, x.tensor / scale ** node.attr("beta", 0.75))


@operator("LpNormalization")
def lp_normalization(node: Node, x: Value) -> Value:
    axis, p = axis_of(node, node.attr("axis", -1), x.rank), node.attr("p", 2)
    if p == 1:
        length = oc.sum(oc.abs(x.tensor), axis=axis, keepdims=True)
    else:
        length = oc.sqrt(oc.sum(x.tensor * x.tensor, axis=axis, keepdims=True))
    is_zero = oc.equal(length, 0.0, dtype="bool")
    return moved(x, oc.where(is_zero, 0.0, x.tensor / oc.where(is_zero, 1.0, length)))


@operator("MeanVarianceNormalization", since=9)
def mean_variance_normalization(node: Node, x: Value) -> Value:
    axes = tuple(node.attr("axes", (0, 2, 3)))
    centered = x.tensor - oc.mean(x.tensor, axis=axes, keepdims=True)
    return moved(
        x, centered / (oc.sqrt(oc.mean(centered * centered, axis=axes, keepdims=True)) + 1e-9)
    )
