"""Quantized operators: integers with a scale and a zero point."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import ocannl_core as oc
from ocannl_core import Tensor
from ocannl_onnx.formats import Format, format_named, format_numbered
from ocannl_onnx.operators.contractions import convolved, product
from ocannl_onnx.operators.conversions import rounded
from ocannl_onnx.operators.movement import axis_of, reshaped
from ocannl_onnx.registry import operator
from ocannl_onnx.values import Array, Sizes, Value

if TYPE_CHECKING:
    from ocannl_onnx.graphs import Node


def _along(node: Node, number: Value, shape: Sizes, axis: int, block: int) -> Tensor:
    """Return scales or zero points that broadcast over a tensor of `shape`."""
    tensor, rank = number.tensor, len(shape)
    if number.rank == 0 or number.shape == (1,):
        return reshaped(tensor, [])
    if number.rank == 1 and not block:
        if number.shape[0] != shape[axis]:
            node.invalid(
                "There is a scale for each position of the axis.",
                f"{number.shape[0]} for {shape[axis]}",
            )
        return reshaped(tensor, [-1 if at == axis else 1 for at in range(rank)])
    size = block or shape[axis] // number.shape[axis]
    wide = oc.repeat(tensor, size, axis)
    if number.shape[axis] * size != shape[axis]:
        keys = tuple(slice(0, shape[at]) if at == axis else slice(None) for at in range(rank))
        wide = wide[keys]
    return wide


def _axis(node: Node, x: Value, scale: Value) -> int:
    if scale.rank == 0 or x.rank == 0:
        return 0
    axis = node.attr("axis", 1)
    return axis_of(node, axis, x.rank) if -x.rank <= axis < x.rank else 0


def quantized(tensor: Tensor, zero: Any, target: Format) -> Tensor:
    """Return rounded numbers plus a zero point, saturated."""
    low, high = target.range
    whole = oc.round(tensor)
    if zero is not None:
        whole = whole + oc.cast(zero, str(whole.dtype))
    return oc.cast(oc.clip(whole, float(low), float(high)), target.carrier)


@operator("QuantizeLinear", since=10)
def quantize_linear(node: Node, x: Value, scale: Value, zero: Value | None = None) -> Value:
    number = node.attr("output_dtype", 0)
    target = (
        format_numbered(number)
        if number
        else zero.format
        if zero is not None
        else format_named("uint8")
    )
    if target is None:
        node.invalid("`output_dtype` is an element type.", str(number))
    axis, block = _axis(node, x, scale), node.attr("block_size", 0)
    precision = format_numbered(node.attr("precision", 0)) or (
        scale.format if scale.format.is_float and not scale.format.is_carried else x.format
    )
    if x.format.is_integer or precision.name in ("float16", "bfloat16"):
        precision = format_named("float32")
    ratio = oc.cast(x.tensor, precision.carrier) / oc.cast(
        _along(node, scale, x.shape, axis, block), precision.carrier
    )
    if target.is_integer:
        shift = None if zero is None else _along(node, zero, x.shape, axis, block)
        return Value.of_tensor(quantized(ratio, shift, target), target, shape=x.shape)
    return Value.of_tensor(
        rounded(node, ratio, target, bool(node.attr("saturate", 1))), target, shape=x.shape
    )


@operator("DequantizeLinear", since=10)
def dequantize_linear(node: Node, x: Value, scale: Value, zero: Value | None = None) -> Value:
    axis, block = _axis(node, x, scale), node.attr("block_size", 0)
    number = node.attr("output_dtype", 0)
    target = (format_numbered(number) if number else None) or scale.format
    cells = x.tensor
    factor = oc.cast(_along(node, scale, x.shape, axis, block), "float32")
    if zero is not None and x.format.is_integer:
        shift = _along(node, zero, x.shape, axis, block)
        wide = "int32" if x.format.bits <= 16 else "int64"
        cells = oc.cast(cells, wide) - oc.cast(shift, wide)
    result = oc.cast(oc.cast(cells, "float32") * factor, target.carrier)
    return Value.of_tensor(result, target, shape=x.shape)


@operator("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(node: Node, x: Value) -> Any:
    low = oc.minimum(oc.min(x.tensor), 0.0)
    high = oc.maximum(oc.max(x.tensor), 0.0)
    scale = (high - low) / 255.0
    zero = oc.cast(oc.clip(oc.round(-low / scale), 0.0, 255.0), "uint8")
    result = oc.cast(
        oc.clip(oc.round(x.tensor / scale) + oc.cast(zero, "float32"), 0.0, 255.0), "uint8"
    )
    return result, scale, zero


def _is_zero(value: Value | None) -> bool:
    return value is None or (value.array is not None and not np.any(value.array))


def _shifted(value: Value, zero: Value | None, axis: int, dtype: str) -> Tensor:
    """Return integers minus their zero point, which may differ along an axis."""
    if _is_zero(zero):
        is_read_directly = value.format.name == "int8"
        return value.tensor if is_read_directly else oc.cast(value.tensor, dtype)
    assert zero is not None
    shift = zero.tensor
    if zero.rank == 0 or math.prod(zero.shape) == 1:
        shift = reshaped(shift, [])
    elif zero.rank == 1:
        shift = reshaped(shift, [-1 if at == axis else 1 for at in range(value.rank)])
    return oc.cast(value.tensor, dtype) - oc.cast(shift, dtype)


def _greatest(value: Value, zero: Value | None) -> int:
    """Return the greatest distance of a number of a format from its zero point."""
    low, high = (int(each) for each in value.format.range)
    if zero is None:
        return max(-low, high)
    if zero.array is None:
        return high - low
    return max(int(zero.array.max()) - low, high - int(zero.array.min()))


def _greatest_sum(
    a: Value, a_zero: Value | None, b: Value, b_zero: Value | None, axis: int, depth: int
) -> int:
    """Return a bound of a product's sums, of `depth` terms for each position along `axis` of the
    right operand.
    """
    left = _greatest(a, a_zero)
    if b.array is None or (b_zero is not None and b_zero.array is None):
        return left * _greatest(b, b_zero) * depth
    shift: Any = 0
    if b_zero is not None and b_zero.array is not None:
        shift = b_zero.array.astype(np.int64)
        if b_zero.rank == 1 and b_zero.shape != (1,):
            shift = shift.reshape([-1 if at == axis else 1 for at in range(b.rank)])
    cells = np.abs(b.array.astype(np.int64) - shift)
    if b.rank > 2 and axis == b.rank - 1:  # a stack of matrices
        return left * int(cells.sum(-2).max(initial=0))
    others = tuple(at for at in range(b.rank) if at != axis)
    return left * int(cells.sum(others).max(initial=0))


MOST_EXACT = 1 << 24
"""Integers up to this one are numbers of `float32`."""


def _format_of_sums(bound: int) -> str:
    """Return the format of exact sums up to a bound.

    Sums of products that stay below 2**24 are exact in `float32` in any order; devices multiply
    matrices of floats faster than those of integers.
    """
    return "float32" if bound <= MOST_EXACT else "int32"


@dataclass(frozen=True, slots=True)
class _Factor:
    """A factor of a product of bytes: cells, and the zero point that is subtracted from them.

    Attributes:
        cells: The cells, in the format that the product takes.
        known: The same cells, if they are known when the graph is read.
        zero: The zero point, as int32; None for 0. It broadcasts over the factor.
        known_zero: The same numbers, if they are known; None for 0 as well.
    """

    cells: Tensor
    known: Array | None
    zero: Tensor | None
    known_zero: Array | None


def _factor(value: Value, zero: Value | None, axis: int, format: str) -> _Factor:
    """Return bytes in one of the two formats: cells and zero point move by 128 if they have the
    other one.
    """
    move = (format == "uint8") - (value.format.name == "uint8")  # 1, 0 or -1
    known = value.array
    if move and known is not None:
        known = (known.astype(np.int16) + 128 * move).astype(format)
    if not move:
        cells = value.tensor
    elif known is not None:
        cells = oc.tensor(np.asarray(known, order="C"), dtype=format)
    else:
        cells = oc.cast(oc.cast(value.tensor, "int32") + 128 * move, format)
    known_zero = np.zeros((), np.int32) if zero is None else zero.array
    if zero is None or known_zero is not None:
        assert known_zero is not None
        shift = known_zero.astype(np.int32) + 128 * move
        if not np.any(shift):
            return _Factor(cells, known, None, None)
        shift = shift.reshape(_broadcast_sizes(shift.shape, axis, value.rank))
        return _Factor(cells, known, oc.tensor(shift), shift)
    moved = oc.cast(zero.tensor, "int32") + 128 * move if move else oc.cast(zero.tensor, "int32")
    sizes = _broadcast_sizes(zero.shape, axis, value.rank)
    return _Factor(cells, known, reshaped(moved, sizes), None)


def _broadcast_sizes(shape: Sizes, axis: int, rank: int) -> list[int]:
    """Return the sizes by which numbers for each position of an axis, or one for all, or one for
    each row of a stack, broadcast over a tensor.
    """
    if math.prod(shape) == 1:
        return []
    return [shape[0] if at == axis else 1 for at in range(rank)] if len(shape) == 1 else [*shape]


def _times_sums(zero: _Factor, summed: _Factor, axes: tuple[int, ...], sizes: list[int]) -> Tensor:
    """Return the zero point of one factor times sums of another one's cells along some axes.

    Args:
        sizes: The sizes of the sums.
    """
    assert zero.zero is not None
    if summed.known is None:
        sums = oc.sum(oc.cast(summed.cells, "int32"), axis=axes)
        return zero.zero * reshaped(sums, sizes)
    known = summed.known.sum(axes, dtype=np.int32).reshape(sizes)
    if zero.known_zero is None:
        return zero.zero * oc.tensor(known)
    return oc.tensor(zero.known_zero * known)


def integer_product(
    node: Node, a: Value, a_zero: Value | None, b: Value, b_zero: Value | None
) -> Tensor:
    """Return products of matrices of integers, exact modulo 2**32; of narrow floats in float32.

    The zero points are subtracted from the sums, so that devices multiply bytes:

        sum (a - za) (b - zb) = sum a b - za sum b - zb sum a + n za zb
    """
    if not (a.format.is_integer and b.format.is_integer):
        left_cells = _shifted(a, a_zero, a.rank - 2, "float32")
        right_cells = _shifted(b, b_zero, b.rank - 1, "float32")
        return product(node, left_cells, a.shape, right_cells, b.shape, "float32")
    if a.rank == 1:
        a = Value.of_tensor(reshaped(a.tensor, [1, *a.shape]), a.format, shape=(1, *a.shape))
        return reshaped(integer_product(node, a, a_zero, b, b_zero), [*b.shape[:-2], b.shape[-1]])
    if b.rank == 1:
        b = Value(b.format, (*b.shape, 1), array=None if b.array is None else b.array[:, None],
                  tensor=reshaped(b.tensor, [*b.shape, 1]))  # fmt: skip
        total = integer_product(node, a, a_zero, b, b_zero)
        return reshaped(total, [*a.shape[:-1]])
    left = _factor(a, a_zero, a.rank - 2, "uint8")
    right = _factor(b, b_zero, b.rank - 1, "int8")
    total = product(node, left.cells, a.shape, right.cells, b.shape, "int32")
    if left.zero is not None:
        sizes = [*b.shape[:-2], 1, b.shape[-1]]
        total = total - _times_sums(left, right, (b.rank - 2,), sizes)
    if right.zero is not None:
        total = total - _times_sums(right, left, (a.rank - 1,), [*a.shape[:-1], 1])
    if left.zero is not None and right.zero is not None:
        total = total + left.zero * right.zero * a.shape[-1]
    return total


LEAST_CHANNELS = 8
"""The channels of a group from which on a convolution multiplies bytes."""


def _convolved(
    node: Node, x: Value, x_zero: Value | None, w: Value, w_zero: Value | None, extra: int = 0
) -> Tensor:
    """Return a convolution of integers, exact modulo 2**32.

    Bytes are multiplied as in `integer_product`, with the channels of the weight beside each other.
    Windows of a few channels, and weights with a zero point, are shifted before they are
    multiplied.

    Args:
        extra: The greatest absolute number that is added to a sum later.
    """
    count = x.rank - 2
    if len(w.shape) == x.rank and w.shape[1] >= LEAST_CHANNELS:
        left, right = _factor(x, x_zero, 1, "uint8"), _factor(w, w_zero, 0, "int8")
        if right.zero is None:
            order = (0, *range(2, 2 + count), 1)
            weight = (
                oc.permute(right.cells, *order)
                if right.known is None
                else oc.tensor(np.ascontiguousarray(right.known.transpose(order)), dtype="int8")
            )
            outside: Any = 0
            if left.zero is not None:
                known = left.known_zero
                outside = oc.cast(left.zero, "uint8") if known is None else int(known.item())
            total = convolved(
                node, left.cells, x.shape, weight, w.shape, "int32", outside, channels_last=True
            )
            if left.zero is None:
                return total
            sizes = [w.shape[0], *[1] * count]
            return total - _times_sums(left, right, tuple(range(1, w.rank)), sizes)
    bound = extra + _greatest_sum(x, x_zero, w, w_zero, 0, math.prod(w.shape[1:]))
    dtype = _format_of_sums(bound)
    # cells outside of the image are the zero point, which is 0 after the shift
    return convolved(
        node,
        _shifted(x, x_zero, 1, dtype), x.shape,
        _shifted(w, w_zero, 0, dtype), w.shape,
        dtype, 0,
    )  # fmt: skip


@operator("MatMulInteger", since=10)
def matmul_integer(
    node: Node, a: Value, b: Value, a_zero: Value | None = None, b_zero: Value | None = None
) -> Tensor:
    return oc.cast(integer_product(node, a, a_zero, b, b_zero), "int32")


@operator("ConvInteger", since=10)
def conv_integer(
    node: Node, x: Value, w: Value, x_zero: Value | None = None, w_zero: Value | None = None
) -> Tensor:
    return oc.cast(_convolved(node, x, x_zero, w, w_zero), "int32")


def scale_along(scale: Value, rank: int, axis: int) -> Tensor:
    tensor = oc.cast(scale.tensor, "float32")
    if scale.rank == 0 or math.prod(scale.shape) == 1:
        return reshaped(tensor, [])
    if scale.rank == 1:
        return reshaped(tensor, [-1 if at == axis else 1 for at in range(rank)])
    return tensor


@operator("QLinearMatMul", since=10)
def qlinear_matmul(
    node: Node,
    a: Value, a_scale: Value, a_zero: Value,
    b: Value, b_scale: Value, b_zero: Value,
    y_scale: Value, y_zero: Value,
) -> Value:  # fmt: skip
    total = integer_product(node, a, a_zero, b, b_zero)
    rank = len(tuple(total.shape.dims))
    factor = scale_along(a_scale, rank, rank - 2) * scale_along(b_scale, rank, rank - 1)
    real = oc.cast(total, "float32") * (factor / scale_along(y_scale, rank, rank - 2))
    zero = reshaped(y_zero.tensor, []) if math.prod(y_zero.shape) == 1 else y_zero.tensor
    return Value.of_tensor(quantized(real, zero, y_zero.format), y_zero.format)


@operator("QLinearConv", since=10)
def qlinear_conv(
    node: Node,
    x: Value, x_scale: Value, x_zero: Value,
    w: Value, w_scale: Value, w_zero: Value,
    y_scale: Value, y_zero: Value, bias: Value | None = None,
) -> Value:  # fmt: skip
    extra = 0
    if bias is not None:
        cells = bias.array
        extra = MOST_EXACT if cells is None else int(np.abs(cells.astype(np.int64)).max(initial=0))
    total = _convolved(node, x, x_zero, w, w_zero, extra)
    if bias is not None:
        addend = oc.cast(bias.tensor, str(total.dtype))
        total = total + reshaped(addend, [-1, *[1] * (x.rank - 2)])
    factor = (
        scale_along(x_scale, x.rank, 1)
        * scale_along(w_scale, x.rank, 1)
        / scale_along(y_scale, x.rank, 1)
    )
    zero = reshaped(y_zero.tensor, [])
    return Value.of_tensor(
        quantized(oc.cast(total, "float32") * factor, zero, y_zero.format), y_zero.format
    )
