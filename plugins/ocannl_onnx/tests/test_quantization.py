"""Products of bytes with zero points: exact, in every pair of formats and with sums that exceed
float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the package onnx is not installed")

from onnx import TensorProto, helper, numpy_helper

import ocannl_core as oc
import ocannl_onnx

Array = np.ndarray[Any, Any]
BACKENDS = ["interp", "cpu_c"]
FORMATS = [("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8"), ("int8", "uint8")]


def drawn(random: np.random.Generator, dtype: str, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return random.integers(limits.min, limits.max + 1, shape).astype(dtype)


def result_of(
    operator: str,
    backend: str,
    cells: dict[str, Array],
    known: set[str],
    dtype: int = TensorProto.INT32,
    **attributes: Any,
) -> Array:
    """Return the output of a node. Known inputs are initializers of the graph, and the others are
    inputs at run time.
    """
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in cells.items()
        if name not in known
    ]
    graph = helper.make_graph(
        [helper.make_node(operator, list(cells), ["y"], **attributes)],
        "graph",
        given,
        [helper.make_tensor_value_info("y", dtype, None)],
        [numpy_helper.from_array(cells[name], name) for name in known],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with oc.Session(seed=0):
        tensors = {
            name: oc.placeholder(name, output=list(x.shape), dtype=str(x.dtype))
            for name, x in cells.items()
            if name not in known
        }
        y = ocannl_onnx.load(proto)(**tensors)
        context = oc.Context(backend)
        routine = context.compile(oc.train.forward(y), keep=[y])
        for name, tensor in tensors.items():
            context[tensor] = cells[name]
        routine()
        return np.asarray(context[y])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("known", [set(), {"b"}, {"b", "z"}, {"b", "z", "w"}], ids=len)
@pytest.mark.parametrize(("left", "right"), FORMATS)
def test_products_of_bytes_are_exact(left: str, right: str, known: set[str], backend: str) -> None:
    random = np.random.default_rng(0)
    m, k, n = (5, 19, 7) if backend == "interp" else (21, 301, 37)
    for left_zero, right_zero in (((), ()), ((m,), (n,))):
        cells = {
            "a": drawn(random, left, 2, m, k),
            "b": drawn(random, right, k, n),
            "z": drawn(random, left, *left_zero),
            "w": drawn(random, right, *right_zero),
        }
        wide = {name: x.astype(np.int64) for name, x in cells.items()}
        shift = wide["z"].reshape(-1, 1) if left_zero else wide["z"]
        exact = (wide["a"] - shift) @ (wide["b"] - wide["w"])
        np.testing.assert_array_equal(result_of("MatMulInteger", backend, cells, known), exact)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shapes", [((9,), (9, 4)), ((3, 9), (9,)), ((2, 3, 9), (2, 9, 4))])
def test_vectors_and_stacks_are_multiplied(
    shapes: tuple[tuple[int, ...], ...], backend: str
) -> None:
    random = np.random.default_rng(0)
    a, b = drawn(random, "int8", *shapes[0]), drawn(random, "uint8", *shapes[1])
    cells = {"a": a, "b": b, "z": np.int8(-3), "w": np.uint8(200)}
    cells = {name: np.asarray(x) for name, x in cells.items()}
    exact = (a.astype(int) + 3) @ (b.astype(int) - 200)
    for known in ({"w"}, {"b", "z", "w"}):
        np.testing.assert_array_equal(result_of("MatMulInteger", backend, cells, known), exact)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("known", [set(), {"w"}, {"w", "z", "u"}], ids=len)
@pytest.mark.parametrize(("left", "right"), FORMATS)
def test_convolutions_of_bytes_are_exact(
    left: str, right: str, known: set[str], groups: int, backend: str
) -> None:
    """Cells outside of the image are the zero point."""
    random = np.random.default_rng(0)
    for channels, shift in ((16, 0), (16, 5), (4, 0)):
        middle = 128 if right == "uint8" else 0
        cells = {
            "x": drawn(random, left, 1, channels * groups, 6, 5),
            "w": drawn(random, right, 4 * groups, channels, 3, 2),
            "z": drawn(random, left),
            "u": np.asarray(middle + shift, right),
        }
        found = result_of(
            "ConvInteger", backend, cells, known, pads=[1, 0, 2, 1], strides=[2, 1], group=groups
        )
        x = cells["x"].astype(int) - int(cells["z"])
        w = cells["w"].astype(int) - int(cells["u"])
        padded = np.pad(x, [(0, 0), (0, 0), (1, 2), (0, 1)])
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 2), (2, 3))[:, :, ::2]
        parts = zip(np.split(windows, groups, 1), np.split(w, groups), strict=True)
        exact = [np.einsum("ncpqij,mcij->nmpq", part, weight) for part, weight in parts]
        np.testing.assert_array_equal(found, np.concatenate(exact, 1))


def test_sums_beyond_the_integers_of_float32_are_exact() -> None:
    a, b = np.full((16, 4096), 255, np.uint8), np.full((4096, 16), -127, np.int8)
    b[0] = -128
    cells = {"a": a, "b": b}
    exact = a.astype(np.int64) @ b.astype(np.int64)
    assert abs(exact).min() > 1 << 24
    np.testing.assert_array_equal(result_of("MatMulInteger", "cpu_c", cells, {"b"}), exact)
