"""Results whose sizes follow from data: up to a bound, with a count, and never with other cells."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
from onnx import TensorProto, helper  # noqa: E402

import ocannl_onnx  # noqa: E402
from ocannl_onnx import OnnxError, UnknownValueError  # noqa: E402
from ocannl_onnx.backend import PreparedModel  # noqa: E402
from ocannl_onnx.bounded import BoundedValue  # noqa: E402
from ocannl_onnx.values import Value  # noqa: E402
from plugins.ocannl_onnx.tests.models import model  # noqa: E402
from plugins.ocannl_onnx.tests.node_cases import compare, data_sets, load_cases  # noqa: E402

Array = np.ndarray[Any, Any]
NODE_CASES = [
    "compress_0",
    "compress_default_axis",
    "compress_negative_axis",
    "nonmaxsuppression_center_point_box_format",
    "nonmaxsuppression_flipped_coordinates",
    "nonmaxsuppression_iou_threshold_boundary",
    "nonmaxsuppression_limit_output_size",
    "nonmaxsuppression_suppress_by_IOU_and_scores",
    "nonmaxsuppression_two_batches",
    "nonmaxsuppression_two_classes",
    "nonzero_example",
    "unique_length_1",
    "unique_sorted_without_axis",
]
OF_DATA = {"X", "input", "condition", "boxes", "scores"}
"""Inputs that are tensors, whose values no result knows when the graph is read."""


@pytest.fixture(scope="module")
def cases() -> dict[str, Any]:
    return load_cases("node")


@pytest.mark.parametrize("name", NODE_CASES)
def test_node_cases_agree_with_data_at_run_time(name: str, cases: dict[str, Any]) -> None:
    from onnx.backend.test.runner import Runner

    case = cases[f"test_{name}"]
    output = case.model.graph.node[0].output[0]
    prepared = PreparedModel(ocannl_onnx.load(case.model, bounds={output: 12}), "interp")
    for inputs, expected in data_sets(case, case.model):
        found = prepared.run(inputs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compare(Runner, expected, found, case.rtol, case.atol)
    assert not prepared.constants & OF_DATA


WEIGHTS = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "zero": np.array([0], np.int64),
    "one": np.array([1], np.int64),
    "two": np.array([2], np.int64),
    "first": np.array(0, np.int64),
    "shape": np.array([2, -1], np.int64),
}


def model_of(nodes: list[Any], *outputs: str) -> Any:
    """Return a model of an input `x`, with a small matrix and some positions."""
    return model(nodes, {"x": [3, 4]}, dict.fromkeys(outputs), WEIGHTS)


NON_ZERO = [
    helper.make_node("NonZero", ["x"], ["at"], name="found"),
    helper.make_node("Transpose", ["at"], ["rows"], perm=[1, 0]),
    helper.make_node("GatherND", ["x", "rows"], ["cells"]),
]
Reference = Callable[[Array, Array, Array], Any]
READERS: dict[str, tuple[list[Any], Reference]] = {
    "cells": ([], lambda x, at, cells: cells),
    "rows": ([], lambda x, at, cells: at.T),
    "a pointwise operator": (
        [helper.make_node("Exp", ["cells"], ["y"])],
        lambda x, at, cells: np.exp(cells),
    ),
    "two values of one count": (
        [
            helper.make_node("Cast", ["at"], ["numbers"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["numbers", "cells"], ["y"]),
        ],
        lambda x, at, cells: at * cells,
    ),
    "a sum": (
        [
            helper.make_node("Exp", ["cells"], ["e"]),
            helper.make_node("ReduceSum", ["e"], ["y"], keepdims=0),
        ],
        lambda x, at, cells: np.exp(cells).sum(),
    ),
    "a product": (
        [helper.make_node("ReduceProd", ["cells"], ["y"], keepdims=0)],
        lambda x, at, cells: cells.prod(),
    ),
    "a minimum": (
        [helper.make_node("ReduceMin", ["cells"], ["y"], keepdims=0)],
        lambda x, at, cells: cells.min(initial=np.inf),
    ),
    "a greatest position": (
        [helper.make_node("ReduceMax", ["at", "one"], ["y"], keepdims=0)],
        lambda x, at, cells: at.max(axis=1, initial=-(2**63)),
    ),
    "a sum along another axis": (
        [helper.make_node("ReduceSum", ["at", "zero"], ["y"], keepdims=0)],
        lambda x, at, cells: at.sum(axis=0),
    ),
    "a column of positions": (
        [
            helper.make_node("Gather", ["rows", "first"], ["column"], axis=1),
            helper.make_node("Gather", ["x", "column"], ["y"], axis=0),
        ],
        lambda x, at, cells: x[at[0]],
    ),
    "positions plus a number, back again": (
        [
            helper.make_node("Add", ["rows", "one"], ["more"]),
            helper.make_node("Sub", ["more", "one"], ["less"]),
            helper.make_node("GatherND", ["x", "less"], ["y"]),
        ],
        lambda x, at, cells: cells,
    ),
    "parts": (
        [
            helper.make_node("Split", ["rows"], ["a", "b"], axis=1, num_outputs=2),
            helper.make_node("Concat", ["b", "a"], ["y"], axis=1),
        ],
        lambda x, at, cells: at.T[:, ::-1],
    ),
    "axes of size 1": (
        [
            helper.make_node("Unsqueeze", ["cells", "zero"], ["row"]),
            helper.make_node("Slice", ["row", "zero", "one", "zero"], ["part"]),
            helper.make_node("Squeeze", ["part", "zero"], ["y"]),
        ],
        lambda x, at, cells: cells,
    ),
    "rows times a matrix": (
        [
            helper.make_node("Cast", ["rows"], ["numbers"], to=TensorProto.FLOAT),
            helper.make_node("MatMul", ["numbers", "w"], ["product"]),
            helper.make_node("Softmax", ["product"], ["y"], axis=1),
        ],
        lambda x, at, cells: _softmax(at.T @ np.arange(6.0).reshape(2, 3)),
    ),
}


def _softmax(x: Array) -> Array:
    weights = np.exp(x - x.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("backend", ["interp", "cpu_c"])
@pytest.mark.parametrize("reader", READERS)
def test_readers_compute_with_counted_cells_alone(reader: str, backend: str) -> None:
    nodes, reference = READERS[reader]
    made = model_of([*NON_ZERO, *nodes], "y" if nodes else reader)
    rng = np.random.default_rng(1)
    with oc.Session():
        loaded = ocannl_onnx.load(made, bounds={"found": 8})
        x = oc.placeholder("x", output=[3, 4])
        result = loaded(x)
        is_bounded = isinstance(result, ocannl_onnx.Bounded)
        tensors = [result.cells, result.count] if is_bounded else [result]
        ctx = oc.Context(backend)
        code = sum(map(oc.train.forward, tensors[1:]), oc.train.forward(tensors[0]))
        routine = ctx.compile(code, keep=tensors)
        ctx.init_params(tensors[0])
        for share in (0.5, 0.0, 0.3):
            data = np.where(rng.random((3, 4)) < share, rng.normal(size=(3, 4)), 0)
            data = data.astype(np.float32)
            ctx[x] = data
            routine()
            at = np.array(np.nonzero(data))
            expected = np.asarray(reference(data, at, data[tuple(at)]))
            found = ctx[tensors[0]]
            if is_bounded:
                count = int(ctx[result.count])
                assert count == at.shape[1]
                beyond = np.take(found, range(count, 8), axis=result.axis)
                assert not beyond.any()
                found = np.take(found, range(count), axis=result.axis)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Shape", ["at"], ["y"]),
        helper.make_node("Size", ["at"], ["y"]),
        helper.make_node("Reshape", ["at", "shape"], ["y"]),
        helper.make_node("Flatten", ["at"], ["y"]),
        helper.make_node("Squeeze", ["cells"], ["y"]),
        helper.make_node("ReduceMean", ["cells"], ["y"]),
        helper.make_node("Softmax", ["cells"], ["y"]),
        helper.make_node("TopK", ["cells", "one"], ["y", "order"]),
        helper.make_node("CumSum", ["cells", "first"], ["y"]),
        helper.make_node("ArgMax", ["cells"], ["y"]),
        helper.make_node("Concat", ["cells", "cells"], ["y"], axis=0),
        helper.make_node("Slice", ["cells", "zero", "one"], ["y"]),
        helper.make_node("Split", ["cells"], ["y", "rest"], axis=0, num_outputs=2),
        helper.make_node("Gather", ["cells", "one"], ["y"]),
        helper.make_node("MatMul", ["cells", "cells"], ["y"]),
        helper.make_node("Pad", ["cells", "shape"], ["y"]),
        helper.make_node("Tile", ["cells", "two"], ["y"]),
        helper.make_node("ScatterND", ["x", "rows", "cells"], ["y"]),
        helper.make_node("ReverseSequence", ["rows", "two"], ["y"]),
        helper.make_node("SequenceConstruct", ["cells"], ["y"]),
    ],
    ids=lambda node: node.op_type,
)
def test_other_readers_are_refused(node: Any) -> None:
    made = model_of([*NON_ZERO, node], "y")
    with oc.Session():
        x = oc.placeholder("x", output=[3, 4])
        with pytest.raises(UnknownValueError, match="follows from data in found") as caught:
            ocannl_onnx.load(made, bounds={"found": 8})(x)
        assert caught.value.inputs == {"x"}


def test_values_with_other_counts_do_not_meet() -> None:
    nodes = [
        *NON_ZERO,
        helper.make_node("Abs", ["x"], ["positive"]),
        helper.make_node("NonZero", ["positive"], ["others"], name="others"),
        helper.make_node("Add", ["at", "others"], ["y"]),
    ]
    with oc.Session():
        loaded = ocannl_onnx.load(model_of(nodes, "y"), bounds={"found": 8, "others": 8})
        with pytest.raises(UnknownValueError, match="follows from data in found"):
            loaded(oc.placeholder("x", output=[3, 4]))


def test_no_code_reads_cells_without_their_count() -> None:
    with oc.Session():
        cells = Value.of_tensor(oc.placeholder("x", output=[4]))
        value = BoundedValue(cells, 0, oc.number(2), "found")
        with pytest.raises(oc.UsageError, match="a result of found, with cells up to its bound 4"):
            value.tensor  # noqa: B018


def test_more_cells_than_the_bound_are_an_error_at_run_time() -> None:
    with oc.Session():
        result = ocannl_onnx.load(model_of(NON_ZERO, "cells"), bounds={"found": 2})(
            x := oc.placeholder("x", output=[3, 4])
        )
        ctx = oc.Context("interp")
        routine = ctx.compile(oc.train.forward(result.cells), keep=[result.cells])
        ctx[x] = np.ones((3, 4))
        with pytest.raises(oc.UsageError, match="count_of_found = 12"):
            routine()


def test_gradients_flow_through_chosen_cells() -> None:
    with oc.Session():
        result = ocannl_onnx.load(model_of(NON_ZERO, "cells"), bounds={"at": 5})(
            x := oc.param("x", init=oc.tensor([[0, 2, 0, 0], [3, 0, 0, 0], [0, 0, 0, 4]]))
        )
        loss = oc.sum(result.cells * result.cells)
        ctx = oc.Context("interp")
        ctx.init_params(loss)
        ctx.compile(oc.train.grad_update(loss), keep=[x.grad])()
        assert ctx[x.grad].tolist() == [[0, 4, 0, 0], [6, 0, 0, 0], [0, 0, 0, 8]]


@pytest.mark.parametrize(
    ("bounds", "found"),
    [
        ({"nothing": 3}, "bounds of 'nothing', which is none of"),
        ({"found": 0}, "'found': 0"),
        ({"found": True}, "'found': True"),
        ({"found": 2.5}, "'found': 2.5"),
    ],
)
def test_bounds_are_numbers_of_positions_for_nodes_of_the_graph(
    bounds: dict[str, Any], found: str
) -> None:
    with pytest.raises(OnnxError) as caught:
        ocannl_onnx.load(model_of(NON_ZERO, "cells"), bounds=bounds)
    assert found in str(caught.value)


def test_without_a_bound_the_error_names_it() -> None:
    with oc.Session(), pytest.raises(UnknownValueError) as caught:
        ocannl_onnx.load(model_of(NON_ZERO, "cells"))(oc.placeholder("x", output=[3, 4]))
    assert 'load(..., bounds={"found": 100})' in str(caught.value)


def test_files_of_pictures_are_read_or_are_an_error() -> None:
    pytest.importorskip("PIL", reason="the package pillow is not installed")
    port = helper.make_tensor_value_info("data", TensorProto.UINT8, None)
    node = helper.make_node("ImageDecoder", ["data"], ["picture"])
    graph = helper.make_graph([node], "g", [port], [onnx.ValueInfoProto(name="picture")])
    opset = helper.make_opsetid("", 20)
    loaded = ocannl_onnx.load(helper.make_model(graph, opset_imports=[opset], ir_version=9))
    with oc.Session(), pytest.raises(OnnxError, match="The file is a picture that Pillow reads"):
        loaded(np.frombuffer(b"no picture", np.uint8))
