"""Fourier transforms as products, windows, and matrices of filters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

import ocannl_core as oc
from ocannl_core import Tensor
from ocannl_onnx.formats import format_numbered
from ocannl_onnx.operators.movement import axis_of, reshaped, section
from ocannl_onnx.registry import operator
from ocannl_onnx.values import Array, Value

if TYPE_CHECKING:
    from ocannl_onnx.graphs import Node

LONGEST = 4096
"""Cells along a transformed axis: the product has as many rows and columns."""


def _waves(rows: int, columns: int, length: int) -> tuple[Array, Array]:
    """Return cosines and sines of `2 pi row column / length`."""
    angle = (np.outer(np.arange(rows), np.arange(columns)) % length) * (2 * math.pi / length)
    return np.cos(angle), np.sin(angle)


def _along(x: Tensor, matrix: Array, axis: int, rank: int, carrier: str) -> Tensor:
    """Multiply an axis by a matrix."""
    names = [f"a{k}" for k in range(rank)]
    result = [*names]
    result[axis] = "f"
    spec = f"{''.join(f'{n}, ' for n in names)}; f, a{axis} => {''.join(f'{n}, ' for n in result)}"
    return oc.einsum(spec, x, oc.tensor(matrix.astype(carrier), dtype=carrier), dtype=carrier)


def _sized(x: Tensor, axis: int, have: int, wanted: int, rank: int) -> Tensor:
    """Cut or fill an axis with zeros."""
    if have >= wanted:
        return section(x, axis, 0, wanted) if have > wanted else x
    return oc.pad(x, [(0, wanted - have) if at == axis else (0, 0) for at in range(rank)])


def transformed(
    node: Node,
    x: Tensor,
    shape: tuple[int, ...],
    axis: int,
    length: int,
    one_sided: bool,
    inverse: bool,
    carrier: str,
) -> Tensor:
    """Return a discrete Fourier transform; the last axis holds the real and the imaginary part."""
    if length > LONGEST:
        node.refuse(
            f"an axis of {length} cells is transformed by a product with a matrix, of at most "
            f"{LONGEST} rows"
        )
    rank, is_complex = len(shape) - 1, shape[-1] == 2
    if inverse and one_sided:
        return _real_inverse(x, shape, axis, length, carrier)
    keys: tuple[Any, ...] = (Ellipsis,)
    real = _sized(x[(*keys, 0)], axis, shape[axis], length, rank)
    rows = length // 2 + 1 if one_sided else length
    cosine, sine = _waves(rows, length, length)
    sign = 1.0 if inverse else -1.0
    scale = 1.0 / length if inverse else 1.0
    out_real = _along(real, cosine * scale, axis, rank, carrier)
    out_imaginary = _along(real, sine * (sign * scale), axis, rank, carrier)
    if is_complex:
        imaginary = _sized(x[(*keys, 1)], axis, shape[axis], length, rank)
        out_real = out_real - _along(imaginary, sine * (sign * scale), axis, rank, carrier)
        out_imaginary = out_imaginary + _along(imaginary, cosine * scale, axis, rank, carrier)
    return oc.concat(
        [oc.expand_dims(out_real, rank), oc.expand_dims(out_imaginary, rank)], axis=rank
    )


def _real_inverse(
    x: Tensor, shape: tuple[int, ...], axis: int, length: int, carrier: str
) -> Tensor:
    """Return the real signal of half of its frequencies."""
    rank, half = len(shape) - 1, length // 2 + 1
    weight = np.full(half, 2.0)
    weight[0] = 1.0
    if length % 2 == 0:
        weight[-1] = 1.0
    cosine, sine = _waves(length, half, length)
    real = _sized(x[..., 0], axis, shape[axis], half, rank)
    result = _along(real, cosine * weight / length, axis, rank, carrier)
    if shape[-1] == 2:
        imaginary = _sized(x[..., 1], axis, shape[axis], half, rank)
        result = result - _along(imaginary, sine * weight / length, axis, rank, carrier)
    return oc.expand_dims(result, rank)


@operator("DFT", since=17)
def dft(node: Node, x: Value, length: Value | None = None, axis: Value | None = None) -> Tensor:
    if node.version < 20:
        along = node.attr("axis", 1)
    else:
        along = -2 if axis is None else int(node.known(axis, "axis").reshape(-1)[0])
    along = axis_of(node, along, x.rank)
    inverse, one_sided = bool(node.attr("inverse", 0)), bool(node.attr("onesided", 0))
    if length is not None:
        size = int(node.known(length, "length").reshape(-1)[0])
    else:
        size = 2 * (x.shape[along] - 1) if inverse and one_sided else x.shape[along]
    return transformed(node, x.tensor, x.shape, along, size, one_sided, inverse, x.format.carrier)


@operator("STFT", since=17)
def stft(
    node: Node, x: Value, step: Value, window: Value | None = None, length: Value | None = None
) -> Tensor:
    hop = int(node.known(step, "frame step").reshape(-1)[0])
    if length is not None:
        size = int(node.known(length, "frame length").reshape(-1)[0])
    else:
        size = x.shape[1] if window is None else window.shape[0]
    if hop < 1 or size > x.shape[1]:
        node.invalid(
            "Frames fit into the signal, and have a step.",
            f"frames of {size}, step {hop}, of {x.shape[1]}",
        )
    count = 1 + (x.shape[1] - size) // hop
    parts = 1 if x.rank == 2 else x.shape[2]
    signal = reshaped(x.tensor, [x.shape[0], x.shape[1], parts])
    signal = section(signal, 1, 0, hop * (count - 1) + size)
    frames = oc.einsum(f"b, {hop}*f<+1*k, c => b, f, k, c", signal, values={"k": size})
    if window is not None:
        frames = frames * reshaped(window.tensor, [size, 1])
    one_sided = bool(node.attr("onesided", 1))
    shape = (x.shape[0], count, size, parts)
    return transformed(node, frames, shape, 2, size, one_sided, False, x.format.carrier)


def _window(name: str, weights: tuple[float, ...]) -> None:
    @operator(name, since=17)
    def window(node: Node, size: Value) -> Value:
        count = int(node.known(size, "size").reshape(()))
        target = format_numbered(node.attr("output_datatype", 1))
        if target is None or count < 0:
            node.invalid("A window has a size and a format.", f"{count}")
        span = count if node.attr("periodic", 1) else count - 1
        at = np.arange(count) * (2 * math.pi / max(span, 1))
        cells = sum(weight * np.cos(k * at) for k, weight in enumerate(weights))
        return Value.of_array(np.asarray(cells).astype(target.numpy), target)


_window("HannWindow", (0.5, -0.5))
_window("HammingWindow", (25 / 46, -21 / 46))
_window("BlackmanWindow", (0.42, -0.5, 0.08))


@operator("MelWeightMatrix", since=17)
def mel_weight_matrix(
    node: Node, bins: Value, length: Value, rate: Value, low: Value, high: Value
) -> Value:
    names = ("number of bins", "length", "sample rate", "lowest frequency", "highest frequency")
    count, size, samples, lowest, highest = (
        node.known(each, name).reshape(())
        for each, name in zip((bins, length, rate, low, high), names, strict=True)
    )
    target = format_numbered(node.attr("output_datatype", 1))
    if target is None:
        node.invalid("`output_datatype` is an element type.", str(node.attr("output_datatype")))

    def mel(frequency: Any) -> Any:
        return 2595 * np.log1p(frequency / 700) / np.log(10)

    spectrum = int(size) // 2 + 1
    edges = np.arange(int(count) + 2)
    steps = edges * ((mel(highest) - mel(lowest)) / len(edges)) + mel(lowest)
    places = ((int(size) + 1) * (700 * np.expm1(steps / 2595 * np.log(10))) // int(samples)).astype(
        int
    )
    result = np.zeros((spectrum, int(count)))
    for k in range(int(count)):
        left, center, right = places[k : k + 3]
        if center == left:
            result[center, k] = 1
        else:
            rising = np.arange(left, center + 1)
            result[rising, k] = (rising - left) / (center - left)
        if right > center:
            falling = np.arange(center, right)
            result[falling, k] = (right - falling) / (right - center)
    return Value.of_array(result.astype(target.numpy), target)


__all__ = ["dft", "stft"]
