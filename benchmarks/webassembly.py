"""Least times of exported networks in WebAssembly, beside the same C file and onnxruntime-web.

`pip install ziglang onnx; npm install --prefix FOLDER onnxruntime-web`, then
`python benchmarks/webassembly.py --peers FOLDER`. Node.js runs the modules; all have one thread.
The C file has vectors of 128 bits and no fused multiply-add, as WebAssembly has.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

import ocannl_core as oc
import ocannl_onnx

Array = npt.NDArray[Any]
Contender = Callable[[int], tuple[float, float]]
"""Does the work so often, and returns the sum of its results, and the least time of a call."""

_WARM = 100
_SAMPLE = 0.03
"""Calls before timing, in which engines compile, and seconds of a sample."""

RNG = np.random.default_rng(0)
CC = os.environ.get("CC", "cc").split()
FLAGS = ("-O3", "-mavx", "-mno-fma", "-shared", "-fPIC", "-lm")


def normal(*shape: int) -> npt.NDArray[np.float32]:
    return (RNG.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


class Graph:
    """An ONNX graph under construction."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Array] = {}

    def constant(self, cells: Array) -> str:
        self.weights[f"w{len(self.weights)}"] = cells
        return f"w{len(self.weights) - 1}"

    def __call__(self, operator: str, *inputs: str, **attributes: object) -> str:
        """Add an operator, and return the name of its result."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def save(self, path: Path, given: onnx.ValueInfoProto, scores: str, dims: list[int]) -> None:
        self.nodes.append(helper.make_node("Identity", [scores], ["scores"]))
        result = helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, dims)
        weights = [numpy_helper.from_array(cells, name) for name, cells in self.weights.items()]
        graph = helper.make_graph(self.nodes, path.stem, [given], [result], weights)
        opset = helper.make_opsetid("", 20)
        onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), path)


def lenet(path: Path) -> npt.NDArray[np.float32]:
    """Write a LeNet for images of 28 by 28 pixels, and return an image."""
    graph, x = Graph(), "x"
    for inputs, channels in ((1, 16), (16, 32)):
        kernel = graph.constant(
            RNG.standard_normal((channels, inputs, 3, 3)).astype(np.float32) / 4
        )
        bias = graph.constant(normal(channels))
        x = graph("Relu", graph("Conv", x, kernel, bias, pads=[1, 1, 1, 1]))
        x = graph("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = graph("Flatten", x)
    x = graph(
        "Relu", graph("Gemm", x, graph.constant(normal(1568, 96)), graph.constant(normal(96)))
    )
    x = graph("Gemm", x, graph.constant(normal(96, 10)), graph.constant(normal(10)))
    given = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 1, 28, 28])
    graph.save(path, given, x, [1, 10])
    return normal(1, 1, 28, 28)


def gpt(
    path: Path,
    layers: int = 2,
    heads: int = 4,
    width: int = 128,
    length: int = 64,
    words: int = 256,
) -> npt.NDArray[np.int32]:
    """Write a GPT-2 of a small size, and return tokens."""
    graph = Graph()
    constant = graph.constant
    ones, zeros = np.ones(width, np.float32), np.zeros(width, np.float32)
    divided = constant(np.array([1, length, heads, width // heads]))
    joined = constant(np.array([1, length, width]))
    mask = constant(np.triu(np.full((length, length), -1e9, np.float32), 1))
    scale = constant(np.float32((width // heads) ** -0.5))

    def linear(x: str, inputs: int, outputs: int) -> str:
        product = graph("MatMul", x, constant(normal(inputs, outputs)))
        return graph("Add", product, constant(np.zeros(outputs, np.float32)))

    def norm(x: str) -> str:
        return graph("LayerNormalization", x, constant(ones), constant(zeros), axis=-1)

    def split(x: str, order: list[int]) -> str:
        return graph("Transpose", graph("Reshape", x, divided), perm=order)

    x = graph("Gather", constant(normal(words, width)), "x")
    x = graph("Add", x, constant(normal(length, width)))
    for _ in range(layers):
        each = norm(x)
        q, k, v = (linear(each, width, width) for _ in range(3))
        rows = split(q, [0, 2, 1, 3])
        products = graph("Mul", graph("MatMul", rows, split(k, [0, 2, 3, 1])), scale)
        weights = graph("Softmax", graph("Add", products, mask), axis=-1)
        attended = graph("MatMul", weights, split(v, [0, 2, 1, 3]))
        attended = graph("Reshape", graph("Transpose", attended, perm=[0, 2, 1, 3]), joined)
        x = graph("Add", x, linear(attended, width, width))
        hidden = graph("Gelu", linear(norm(x), width, 4 * width), approximate="tanh")
        x = graph("Add", x, linear(hidden, 4 * width, width))
    x = graph("MatMul", norm(x), constant(normal(width, words)))
    given = helper.make_tensor_value_info("x", onnx.TensorProto.INT32, [1, length])
    graph.save(path, given, x, [1, length, words])
    return RNG.integers(0, words, (1, length)).astype(np.int32)


NETWORKS = {"lenet": lenet, "gpt": gpt}


def export(name: str, folder: Path) -> tuple[Array, Path]:
    """Write a network as an ONNX file, a WebAssembly module and a shared library."""
    cells = NETWORKS[name](folder / f"{name}.onnx")
    with oc.Session(seed=0):
        x = oc.placeholder("x", output=list(cells.shape), dtype=cells.dtype.name)
        scores = ocannl_onnx.load(str(folder / f"{name}.onnx"))(x=x)
        ctx = oc.Context("cpu_c")
        ctx.init_params(scores)
        predict = ctx.compile(oc.train.forward(scores))
        ctx.export({"predict": predict}, folder / f"{name}.wasm", outputs={"scores": scores})
    library = folder / f"{name}.so"
    command = [*CC, "-w", str(folder / f"{name}.c"), *FLAGS, "-o", str(library)]
    subprocess.run(command, check=True)
    return cells, library


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path, help="the folder with onnxruntime-web")
    parser.add_argument("--rounds", type=int, default=40)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        works, own = [], {}
        for title in NETWORKS:
            cells, library = export(title, folder)
            (folder / f"{title}.bin").write_bytes(cells.tobytes())
            works.append(
                {"name": title, "input": "x", "dims": cells.shape, "type": cells.dtype.name}
            )
            own[title] = cells, oc.load_exported(library)
        (folder / "works.json").write_text(json.dumps(works))
        peers = str(chosen.peers.resolve()) if chosen.peers else ""
        command = ["node", str(Path(__file__).with_suffix(".mjs")), str(folder), peers]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as node:
            for title, (cells, model) in own.items():
                contenders: dict[str, Contender] = {
                    "C": partial(calls, model, cells),
                    "WebAssembly": partial(answer, node, f"{title} wasm"),
                }
                if peers:
                    contenders["onnxruntime-web"] = partial(
                        answer, node, f"{title} onnxruntime-web"
                    )
                print(f"{title}: {(folder / f'{title}.wasm').stat().st_size:,} bytes")
                print(compared(contenders, chosen.rounds))


def compared(contenders: Mapping[str, Contender], rounds: int) -> str:
    """Return the least time of a call of each contender, as a table.

    All are called in turn, so that a slow phase of the machine affects all of them.
    """
    least, counts = {}, {}
    expected = contenders["C"](1)[0]
    for name, run in contenders.items():
        found, seconds = run(_WARM)
        if not np.isclose(found, expected, rtol=1e-4):
            raise SystemExit(f"{name} computes {found}, and C {expected}")
        least[name], counts[name] = seconds, max(1, round(_SAMPLE / seconds))
    for _ in range(rounds):
        for name, run in contenders.items():
            least[name] = min(least[name], run(counts[name])[1])
    return "\n".join(
        f"{name:<16}{seconds * 1e6:>10,.1f} us{least['C'] / seconds:>8.2f} of the speed of C"
        for name, seconds in least.items()
    )


def calls(model: oc.ExportedModel, cells: Array, count: int) -> tuple[float, float]:
    """Call a function so often; return the sum of its results, and the least time of a call."""
    least = np.inf
    for _ in range(count):
        begun = time.perf_counter()
        scores = model.predict(cells)
        least = min(least, time.perf_counter() - begun)
    return float(np.abs(scores[0] if isinstance(scores, tuple) else scores).sum()), least


def answer(node: subprocess.Popen[str], name: str, count: int) -> tuple[float, float]:
    """Let Node.js do the same."""
    assert node.stdin is not None
    assert node.stdout is not None
    node.stdin.write(f"{name}: {count}\n")
    node.stdin.flush()
    found, least = node.stdout.readline().split()
    return float(found), float(least)


if __name__ == "__main__":
    main()
