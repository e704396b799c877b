"""Operators of onnxruntime on weights of a few bits, with a scale for each block.

A block of weights lies along the last axis, packed into bytes with the first one in the low bits.
Weights that are known when the graph is read stay in 4 bits in memory; products convert them where
they read them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

import ocannl_core as oc
from ocannl_core import Tensor
from ocannl_onnx.operators.contractions import labels, spec_of
from ocannl_onnx.operators.movement import axis_of, moved, reshaped, section
from ocannl_onnx.operators.positions import wrapped_positions
from ocannl_onnx.registry import MICROSOFT, operator
from ocannl_onnx.values import Array, Sizes, Value

if TYPE_CHECKING:
    from ocannl_onnx.graphs import Node

BITS = (2, 4, 8)


def _unpacked(node: Node, packed: Value, bits: int, sizes: Sizes, role: str) -> Tensor:
    """Return the numbers in bytes, of `sizes`; rows of bytes may have unused bits at their end."""
    *outer, count = sizes
    per = 8 // bits
    width = -(-count // per)
    if packed.format.name != "uint8" or math.prod(packed.shape) != math.prod(outer) * width:
        node.invalid(
            f"The {role} are bytes, {[*outer, width]}.", f"{packed.format}{list(packed.shape)}"
        )
    if bits == 8:
        return reshaped(packed.tensor, sizes)
    if packed.array is not None:
        return oc.tensor(_known_numbers(packed.array, bits, sizes), dtype="uint4")
    rows = reshaped(packed.tensor, [*outer, width])
    parts = [
        oc.bitwise_and(oc.floor_divide(rows, 2**shift), 2**bits - 1) for shift in range(0, 8, bits)
    ]
    cells = reshaped(oc.stack(parts, axis=-1), [*outer, width * per])
    return section(cells, len(outer), 0, count)


def _known_numbers(packed: Array, bits: int, sizes: Sizes) -> Array:
    *outer, count = sizes
    numbers = packed.reshape(*outer, -1, 1) >> np.arange(0, 8, bits, dtype=np.uint8)
    rows = (numbers & (2**bits - 1)).reshape(*outer, -1)
    return np.ascontiguousarray(rows[..., :count])


def _centered(node: Node, packed: Value, zeros: Value | None, bits: int, sizes: Sizes) -> Tensor:
    """Return weights, less the middle of their range if they have no zero points of their own.

    The latter are stored as signed integers if they are known, so that products subtract nothing.
    """
    numbers = _unpacked(node, packed, bits, sizes, "weights")
    if zeros is not None:
        return oc.cast(numbers, "float32")
    middle = 2 ** (bits - 1)
    if packed.array is None:
        return oc.cast(numbers, "float32") - float(middle)
    signed = _known_numbers(packed.array, bits, sizes).astype(np.int16) - middle
    return oc.cast(oc.tensor(signed, dtype="int8" if bits == 8 else "int4"), "float32")


def _zero_points(node: Node, zeros: Value, bits: int, sizes: Sizes) -> Tensor:
    """Return the zero points of blocks, packed as the weights are, or floats."""
    if zeros.format.is_float:
        return oc.cast(reshaped(zeros.tensor, sizes), "float32")
    return oc.cast(_unpacked(node, zeros, bits, sizes, "zero points"), "float32")


def _checked_bits(node: Node) -> int:
    bits: int = node.attr("bits", 4)
    if bits not in BITS:
        node.refuse(f"its weights have {bits} bits; those of 2, 4 and 8 bits are read")
    return bits


@operator("MatMulNBits", domain=MICROSOFT)
def matmul_of_packed(
    node: Node,
    a: Value,
    b: Value,
    scales: Value,
    zeros: Value | None = None,
    groups: Value | None = None,
    bias: Value | None = None,
) -> Value:
    bits = _checked_bits(node)
    depth, width, size = node.attr("K"), node.attr("N"), node.attr("block_size")
    if a.shape[-1:] != (depth,):
        node.invalid(f"The rows of the left factor have K = {depth} cells.", f"{list(a.shape)}")
    if node.attr("weight_prepacked", 0):
        node.refuse("its weights are in the order of one device (`weight_prepacked`)")
    if groups is not None:
        in_order = np.arange(depth) // size
        if groups.array is None or not np.array_equal(groups.array.reshape(-1)[:depth], in_order):
            node.refuse("its blocks are not in order (`g_idx`)")
    count = -(-depth // size)
    weights = _centered(node, b, zeros, bits, (width, count, size))
    if zeros is not None:
        weights = weights - reshaped(
            _zero_points(node, zeros, bits, (width, count)), [width, count, 1]
        )
    weights = weights * oc.cast(reshaped(scales.tensor, [width, count, 1]), "float32")
    cells = oc.cast(a.tensor, "float32")
    if depth % size:
        cells = oc.pad(cells, [*[(0, 0)] * (a.rank - 1), (0, count * size - depth)])
    outer = labels("i", a.rank - 1)
    cells = reshaped(cells, [*a.shape[:-1], count, size])
    spec = spec_of([*outer, "b", "k"], ["n", "b", "k"], [*outer, "n"])
    result = node.sized(oc.einsum(spec, cells, weights, dtype="float32"), (*a.shape[:-1], width))
    if bias is not None:
        result = result + bias.tensor
    return moved(a, oc.cast(result, a.format.carrier))


@operator("GatherBlockQuantized", domain=MICROSOFT)
def gather_of_packed(
    node: Node, data: Value, ids: Value, scales: Value, zeros: Value | None = None
) -> Value:
    bits, size = _checked_bits(node), node.attr("block_size", 128)
    last = data.rank - 1
    gathered = axis_of(node, node.attr("gather_axis", 0), data.rank)
    if axis_of(node, node.attr("quantize_axis", 1), data.rank) != last or gathered == last:
        node.refuse("its blocks do not lie along the last axis, or positions of it are gathered")
    is_packed = data.format.name == "uint8"
    length = data.shape[-1] * (8 // bits if is_packed else 1)
    sizes, blocks = (*data.shape[:-1], length), (*data.shape[:-1], -(-length // size))
    places = wrapped_positions(node, ids, data, gathered)
    shift: Tensor | None = None
    if is_packed:
        cells = _centered(node, data, zeros, bits, sizes)
    else:
        cells = oc.cast(data.tensor, "float32")
    if zeros is not None:
        shift = (
            _zero_points(node, zeros, bits, blocks)
            if is_packed
            else oc.cast(zeros.tensor, "float32")
        )

    def along(numbers: Tensor) -> Tensor:
        wide = oc.repeat(oc.take(numbers, places, axis=gathered), size, -1)
        return section(wide, last + ids.rank - 1, 0, length)

    taken = oc.take(cells, places, axis=gathered)
    if shift is not None:
        taken = taken - along(shift)
    result = taken * along(oc.cast(reshaped(scales.tensor, blocks), "float32"))
    shape = (*data.shape[:gathered], *ids.shape, *data.shape[gathered + 1 : -1], length)
    return moved(scales, oc.cast(node.sized(reshaped(result, shape), shape), scales.format.carrier))
