"""Pooling: extremes, means and norms of windows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

import ocannl_core as oc
from ocannl_core import Tensor
from ocannl_onnx.operators.contractions import labels, slid_axes, spec_of, window_geometry, windows
from ocannl_onnx.operators.movement import moved, reshaped, section
from ocannl_onnx.registry import operator
from ocannl_onnx.values import Value

if TYPE_CHECKING:
    from ocannl_onnx.graphs import Node


class _Pool:
    """The windows of a pooling node."""

    def __init__(self, node: Node, x: Value) -> None:
        count = x.rank - 2
        self.node = node
        self.kernel = node.attr("kernel_shape", ())
        if len(self.kernel) != count or count < 1:
            node.invalid(
                "`kernel_shape` has a size for each axis.",
                f"{list(self.kernel)} for {list(x.shape)}",
            )
        self.count = count
        self.lead, self.sizes = x.shape[:2], x.shape[2:]
        self.strides = node.attr("strides", (1,) * count)
        self.dilations = node.attr("dilations", (1,) * count)
        self.widths, self.outputs = window_geometry(
            node,
            x.shape[2:],
            self.kernel,
            self.dilations,
            self.strides,
            bool(node.attr("ceil_mode", 0)),
        )

    def windows(self, tensor: Tensor, value: Any) -> tuple[Tensor, str]:
        """Return a tensor of the input's sizes, and the specification of its windows.

        Args:
            value: The number outside of the axes, which changes no result.
        """
        tensor, slid = slid_axes(
            self.node,
            tensor,
            2,
            self.sizes,
            self.widths,
            self.outputs,
            self.kernel,
            self.dilations,
            self.strides,
            value,
        )
        return tensor, spec_of(["n", "c", *slid], ["n", "c", *labels("o", self.count)])

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the result."""
        return (*self.lead, *self.outputs)

    @property
    def values(self) -> dict[str, int]:
        return {f"k{k}": size for k, size in enumerate(self.kernel)}


def _least(x: Value) -> Any:
    return -math.inf if x.format.is_float else x.format.range[0]


@operator("MaxPool")
def max_pool(node: Node, x: Value) -> Any:
    pool = _Pool(node, x)
    tensor, spec = pool.windows(x.tensor, _least(x))
    result = node.sized(oc.einmax(spec, tensor, values=pool.values), pool.shape)
    if not node.wants(1):
        return moved(x, result)
    return moved(x, result), _places(node, x, pool)


def _places(node: Node, x: Value, pool: _Pool) -> Tensor:
    """Return the positions of maxima in the whole input, the first of equal ones."""
    sizes = x.shape[2:]
    number = math.prod(pool.kernel)
    per_axis = []
    for k in range(pool.count):
        start = np.arange(pool.outputs[k]) * pool.strides[k] - pool.widths[k][0]
        per_axis.append(
            start[:, None] + np.arange(pool.kernel[k]) * pool.dilations[k]
        )  # [out, cell]
    shape = (*pool.outputs, *pool.kernel)
    inside, flat = np.ones(shape, bool), np.zeros(shape, np.int64)
    order = range(pool.count) if not node.attr("storage_order", 0) else reversed(range(pool.count))
    stride = dict.fromkeys(range(pool.count), 1)
    step = 1
    for axis in reversed(list(order)):
        stride[axis] = step
        step *= sizes[axis]
    read = np.zeros(shape, np.int64)
    for k, places in enumerate(per_axis):
        form = [1] * (2 * pool.count)
        form[k], form[pool.count + k] = places.shape
        grid = places.reshape(form)
        inside &= (grid >= 0) & (grid < sizes[k])
        flat += grid * stride[k]
        read += np.clip(grid, 0, sizes[k] - 1) * math.prod(sizes[k + 1 :])
    total = math.prod(pool.outputs)
    cells = oc.take(
        reshaped(x.tensor, [*x.shape[:2], math.prod(sizes)]),
        oc.tensor(read.reshape(total, number)), axis=2,
    )  # fmt: skip
    cells = oc.where(oc.tensor(inside.reshape(total, number)), cells, _least(x))
    chosen = oc.argmax(cells, axis=-1)
    table = oc.tensor(flat.reshape(total, number))
    hot = oc.one_hot(chosen, number, dtype="int64")
    places = oc.sum(hot * table, axis=-1, dtype="int64")
    channel = np.arange(math.prod(x.shape[:2]), dtype=np.int64).reshape(
        *x.shape[:2], 1
    ) * math.prod(sizes)
    return reshaped(places + oc.tensor(channel), [*x.shape[:2], *pool.outputs])


@operator("AveragePool")
def average_pool(node: Node, x: Value) -> Value:
    pool = _Pool(node, x)
    tensor, spec = pool.windows(x.tensor, 0.0)
    total = oc.einsum(spec, tensor, values=pool.values, dtype=x.format.carrier)
    node.sized(total, pool.shape)
    inclusive = bool(node.attr("count_include_pad", 0))
    counts = np.ones((1,) * pool.count)
    for k in range(pool.count):
        start = np.arange(pool.outputs[k]) * pool.strides[k] - pool.widths[k][0]
        cells = start[:, None] + np.arange(pool.kernel[k]) * pool.dilations[k]
        low = -pool.widths[k][0] if inclusive else 0
        high = x.shape[2 + k] + (pool.widths[k][1] if inclusive else 0)
        number = ((cells >= low) & (cells < high)).sum(1)
        form = [1] * pool.count
        form[k] = len(number)
        counts = counts * number.reshape(form)
    mean = total / oc.tensor(np.maximum(counts, 1).astype(x.format.carrier))
    return moved(x, node.sized(mean, pool.shape))


@operator("LpPool")
def lp_pool(node: Node, x: Value) -> Value:
    pool, p = _Pool(node, x), node.attr("p", 2)
    powers = oc.abs(x.tensor) ** float(p)
    powers, spec = pool.windows(powers, 0.0)
    total = oc.einsum(spec, powers, values=pool.values)
    return moved(x, total ** (1.0 / p))


def _whole(node: Node, x: Value, tensor: Tensor) -> Value:
    """Return a result with one cell for each channel."""
    return moved(x, node.sized(tensor, [*x.shape[:2], *[1] * (x.rank - 2)]))


@operator("GlobalMaxPool")
def global_max_pool(node: Node, x: Value) -> Value:
    return _whole(node, x, oc.max(x.tensor, axis=tuple(range(2, x.rank)), keepdims=True))


@operator("GlobalAveragePool")
def global_average_pool(node: Node, x: Value) -> Value:
    return _whole(node, x, oc.mean(x.tensor, axis=tuple(range(2, x.rank)), keepdims=True))


@operator("GlobalLpPool", since=2)
def global_lp_pool(node: Node, x: Value) -> Value:
    p = node.attr("p", 2)
    total = oc.sum(oc.abs(x.tensor) ** float(p), axis=tuple(range(2, x.rank)), keepdims=True)
    return moved(x, total ** (1.0 / p))


@operator("MaxUnpool", since=9)
def max_unpool(node: Node, x: Value, places: Value, shape: Value | None = None) -> Value:
    count = x.rank - 2
    kernel = node.attr("kernel_shape")
    strides, pads = node.attr("strides", (1,) * count), node.attr("pads", (0,) * (2 * count))
    own = [
        strides[k] * (x.shape[2 + k] - 1) + kernel[k] - pads[k] - pads[count + k]
        for k in range(count)
    ]
    inner = [*x.shape[:2], *own]
    sizes = inner if shape is None else list(node.known_sizes(shape, "output shape"))
    number, cells = math.prod(x.shape), math.prod(inner)
    flat = oc.scatter(
        node.valid_positions(reshaped(places.tensor, [number])),
        reshaped(x.tensor, [number]),
        size=max(cells, math.prod(sizes)),
        axis=0,
    )
    if sizes == inner:
        return moved(x, reshaped(flat, sizes))
    # positions count in the smaller result, whose cells keep their coordinates
    result = reshaped(section(flat, 0, 0, cells), inner)
    return moved(
        x, oc.pad(result, [(0, big - small) for big, small in zip(sizes, inner, strict=True)])
    )


@operator("Col2Im", since=18)
def col2im(node: Node, x: Value, image: Value, block: Value) -> Value:
    sizes, kernel = node.known_sizes(image, "image shape"), node.known_sizes(block, "block shape")
    count = len(sizes)
    dilations, strides = node.attr("dilations", (1,) * count), node.attr("strides", (1,) * count)
    pads = node.attr("pads", (0,) * (2 * count))
    n, channels = x.shape[0], x.shape[1] // math.prod(kernel)
    outputs = [
        (sizes[k] + pads[k] + pads[count + k] - dilations[k] * (kernel[k] - 1) - 1) // strides[k]
        + 1
        for k in range(count)
    ]
    tensor = reshaped(x.tensor, [n, channels, *kernel, *outputs])
    cells, places = labels("k", count), labels("o", count)
    spec = spec_of(["n", "c", *cells, *places], ["n", "c", *windows(count, strides, dilations)])
    result = oc.einsum(spec, tensor)
    for k in range(count):
        have = strides[k] * (outputs[k] - 1) + dilations[k] * (kernel[k] - 1) + 1
        stop = min(pads[k] + sizes[k], have)
        result = section(result, 2 + k, pads[k], stop)
        missing = pads[k] + sizes[k] - have
        if missing > 0:
            result = oc.pad(result, [(0, missing if at == 2 + k else 0) for at in range(2 + count)])
    return moved(x, result)
