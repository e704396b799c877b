"""ONNX graphs with random weights: convolutional networks, transformers, quantized ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]


class GraphBuilder:
    """A graph that is made node by node; nodes and weights have numbers as names."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Array] = {}
        self.random = np.random.default_rng(0)

    def node(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; return the name of its output, or of its outputs."""
        names = [f"v{len(self.nodes)}_{each}" for each in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def weight(self, cells: Any, dtype: str = "float32") -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(cells, dtype)
        return name

    def drawn(self, *shape: int, depth: int = 1) -> str:
        """Add a weight that is drawn at random, for sums of so many terms."""
        return self.weight(self.random.standard_normal(shape) / np.sqrt(depth))

    def model(self, shape: tuple[int, ...], output: str) -> onnx.ModelProto:
        """Return the model with one input, `x`."""
        graph = helper.make_graph(
            self.nodes,
            "graph",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
            [numpy_helper.from_array(each, name) for name, each in self.weights.items()],
        )
        opsets = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)

    def convolution(
        self, x: str, before: int, after: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> str:
        depth = before // groups
        return str(
            self.node(
                "Conv",
                x,
                self.drawn(after, depth, kernel, kernel, depth=depth * kernel**2),
                self.drawn(after, depth=100),
                **_windows(kernel, stride, groups),
            )
        )

    def classes(self, x: str, channels: int) -> str:
        """Add the mean of each channel, and a thousand classes."""
        row = self.node("Flatten", self.node("GlobalAveragePool", x))
        weight = self.drawn(1000, channels, depth=channels)
        return str(self.node("Gemm", row, weight, self.drawn(1000), transB=1))


def _windows(kernel: int, stride: int, groups: int) -> dict[str, Any]:
    return {
        "kernel_shape": [kernel] * 2,
        "strides": [stride] * 2,
        "pads": [(kernel - 1) // 2] * 4,
        "group": groups,
    }


def residual_network(size: int = 224) -> onnx.ModelProto:
    """Return a network with the sizes of ResNet-18."""
    g = GraphBuilder()
    x = g.node("Relu", g.convolution("x", 3, 64, 7, 2))
    x = g.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for stage, width in enumerate((64, 128, 256, 512)):
        for stride in (2 if stage else 1, 1):
            y = g.node("Relu", g.convolution(x, channels, width, 3, stride))
            y = g.convolution(y, width, width, 3)
            if channels != width:
                x = g.convolution(x, channels, width, 1, stride)
            x, channels = g.node("Relu", g.node("Add", x, y)), width
    return g.model((1, 3, size, size), g.classes(x, channels))


def inverted_network(size: int = 224) -> onnx.ModelProto:
    """Return a network with the sizes of MobileNet-V2."""
    g = GraphBuilder()
    low, high = g.weight(0), g.weight(6)

    def clipped(x: str) -> str:
        return str(g.node("Clip", x, low, high))

    x, channels = clipped(g.convolution("x", 3, 32, 3, 2)), 32
    for factor, width, count, first in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
        (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for at in range(count):
            inner, stride = channels * factor, 1 if at else first
            y = x if factor == 1 else clipped(g.convolution(x, channels, inner, 1))
            y = clipped(g.convolution(y, inner, inner, 3, stride, groups=inner))
            y = g.convolution(y, inner, width, 1)
            x, channels = g.node("Add", x, y) if at else y, width
    x = clipped(g.convolution(x, channels, 1280, 1))
    return g.model((1, 3, size, size), g.classes(x, 1280))


def transformer(
    layers: int = 6, width: int = 384, heads: int = 6, length: int = 128, *, quantized: bool = False
) -> onnx.ModelProto:
    """Return an encoder; quantized, its products have weights of 8 bits and quantize their input
    at run time.
    """
    g, depth = GraphBuilder(), width // heads

    def product(x: str, before: int, after: int) -> str:
        weight = g.random.standard_normal((before, after)) / np.sqrt(before)
        if quantized:
            scale = np.abs(weight).max() / 127
            cells, own, zero = g.node("DynamicQuantizeLinear", x, outputs=3)
            total = g.node("MatMulInteger", cells, g.weight(np.round(weight / scale), "int8"), zero)
            real = g.node("Cast", total, to=TensorProto.FLOAT)
            y = g.node("Mul", real, g.node("Mul", own, g.weight(scale)))
        else:
            y = g.node("MatMul", x, g.weight(weight))
        return str(g.node("Add", y, g.drawn(after, depth=100)))

    def normal(x: str) -> str:
        return str(
            g.node("LayerNormalization", x, g.weight(np.ones(width)), g.drawn(width), axis=-1)
        )

    def split(x: str, order: list[int]) -> str:
        shape = g.weight([1, length, heads, depth], "int64")
        return str(g.node("Transpose", g.node("Reshape", x, shape), perm=order))

    x = "x"
    for _ in range(layers):
        h = normal(x)
        queries, keys, values = (
            split(product(h, width, width), order)
            for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        scores = g.node("Mul", g.node("MatMul", queries, keys), g.weight(depth**-0.5))
        mixed = g.node("MatMul", g.node("Softmax", scores, axis=-1), values)
        rows = g.node("Transpose", mixed, perm=[0, 2, 1, 3])
        joined = g.node("Reshape", rows, g.weight([1, length, width], "int64"))
        x = g.node("Add", x, product(joined, width, width))
        h = product(normal(x), width, 4 * width)
        e = g.node("Erf", g.node("Div", h, g.weight(np.sqrt(2))))
        h = g.node("Mul", g.node("Mul", h, g.node("Add", e, g.weight(1))), g.weight(0.5))
        x = g.node("Add", x, product(h, 4 * width, width))
    return g.model((1, length, width), normal(x))


def quantized_network(size: int = 64) -> onnx.ModelProto:
    """Return a network of quantized depthwise and pointwise convolutions."""
    g = GraphBuilder()
    step, zero = g.weight(0.05), g.weight(128, "uint8")

    def convolution(
        x: str, before: int, after: int, kernel: int, stride: int, groups: int = 1
    ) -> str:
        depth = before // groups * kernel**2
        cells = g.random.standard_normal((after, before // groups, kernel, kernel)) * 40
        return str(
            g.node(
                "QLinearConv", x, step, zero,
                g.weight(np.clip(np.round(cells), -127, 127), "int8"),
                g.weight(np.full(after, 0.01 / np.sqrt(depth))),
                g.weight(np.zeros(after), "int8"),
                step, zero,
                g.weight(g.random.integers(-50, 50, after), "int32"),
                **_windows(kernel, stride, groups),
            )
        )  # fmt: skip

    x, channels = convolution(g.node("QuantizeLinear", "x", step, zero), 3, 32, 3, 2), 32
    for width, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1)):
        x = convolution(x, channels, channels, 3, stride, groups=channels)
        x, channels = convolution(x, channels, width, 1, 1), width
    real = g.node("DequantizeLinear", x, step, zero)
    return g.model((1, 3, size, size), g.node("GlobalAveragePool", real))


def recurrent_network(length: int = 64, width: int = 128) -> onnx.ModelProto:
    """Return a long short-term memory over a sequence, read in both directions."""
    g = GraphBuilder()
    weights = [g.drawn(2, 4 * width, width, depth=width) for _ in range(2)]
    y = g.node("LSTM", "x", *weights, hidden_size=width, direction="bidirectional")
    return g.model((length, 1, width), y)


GRAPHS = {
    "residual": residual_network,
    "inverted": inverted_network,
    "transformer": transformer,
    "recurrent": recurrent_network,
    "8-bit transformer": lambda: transformer(2, quantized=True),
    "8-bit network": quantized_network,
}
"""The graphs by name."""
