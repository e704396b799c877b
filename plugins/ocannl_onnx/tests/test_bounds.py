"""Results whose sizes follow from data: up to a bound, with a count, and never with other cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
from onnx import TensorProto, helper  # noqa: E402

import ocannl_onnx  # noqa: E402
from ocannl_onnx import OnnxError, UnknownValueError  # noqa: E402
from ocannl_onnx.bounded import BoundedValue  # noqa: E402
from ocannl_onnx.values import Value  # noqa: E402
from plugins.ocannl_onnx.tests.models import model  # noqa: E402
from plugins.ocannl_onnx.tests.saved import code_of  # noqa: E402

Array = np.ndarray[Any, Any]
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


def _with_suffix(node: Any, suffix: str) -> Any:
    """Return a node with other names of values than those of all readers."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    shared = {"x", "at", "rows", "cells", *WEIGHTS}
    for names in (made.input, made.output):
        names[:] = [each if each in shared else f"{each}{suffix}" for each in names]
    return made


@pytest.mark.parametrize("backend", ["interp", pytest.param("cpu_c", marks=pytest.mark.slow)])
def test_readers_compute_with_counted_cells_alone(backend: str) -> None:
    nodes, outputs = list(NON_ZERO), []
    for number, (name, (own, _)) in enumerate(READERS.items()):
        nodes += [_with_suffix(each, f"_{number}") for each in own]
        outputs.append(f"y_{number}" if own else name)
    rng = np.random.default_rng(1)
    with oc.Session():
        x = oc.placeholder("x", output=[3, 4])
        results = ocannl_onnx.load(model_of(nodes, *outputs), bounds={"found": 8})(x)
        pairs = [
            (each.cells, each) if isinstance(each, ocannl_onnx.Bounded) else (each, None)
            for each in results
        ]
        tensors = [cells for cells, _ in pairs]
        tensors += [bounded.count for _, bounded in pairs if bounded is not None]
        ctx = oc.Context(backend)
        routine = ctx.compile(code_of(tensors), keep=tensors)
        for each in tensors:
            ctx.init_params(each)
        for share in (0.5, 0.0, 0.3):
            data = np.where(rng.random((3, 4)) < share, rng.normal(size=(3, 4)), 0)
            ctx[x] = data = data.astype(np.float32)
            routine()
            at = np.array(np.nonzero(data))
            for (cells, bounded), (name, (_, reference)) in zip(
                pairs, READERS.items(), strict=True
            ):
                expected = np.asarray(reference(data, at, data[tuple(at)]))
                found = ctx[cells]
                if bounded is not None:
                    count = int(ctx[bounded.count])
                    assert count == at.shape[1]
                    assert not np.take(found, range(count, 8), axis=bounded.axis).any(), name
                    found = np.take(found, range(count), axis=bounded.axis)
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=name)


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


def test_extents_and_bounds_do_not_meet() -> None:
    made = model([helper.make_node("NonZero", ["x"], ["y"])], {"x": ["n", 4]}, {"y": None})
    with oc.Session():
        extent = oc.static_extent("n", max=3)
        loaded = ocannl_onnx.load(made, extents={"n": extent}, bounds={"y": 12})
        with pytest.raises(ocannl_onnx.UnsupportedOperatorError, match="extent at run time"):
            loaded(**loaded.placeholders())


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


def test_gradients_are_those_of_the_counted_cells() -> None:
    """Cells beyond the count have no logarithm, no reciprocal, and no part in the gradients."""
    nodes = [
        *NON_ZERO,
        helper.make_node("Log", ["cells"], ["logarithms"]),
        helper.make_node("Div", ["s", "logarithms"], ["quotients"]),
        helper.make_node("ReduceSum", ["quotients"], ["y"], keepdims=0),
    ]
    made = model(nodes, {"x": [3, 4], "s": [1]}, {"y": None})
    cells = np.zeros((3, 4))
    cells[0, 1], cells[2, 3] = 2.0, 3.0
    with oc.Session():
        x, s = oc.param("x", init=oc.tensor(cells)), oc.param("s", init=oc.tensor([5.0]))
        y = ocannl_onnx.load(made, bounds={"found": 6})(x, s)
        ctx = oc.Context("interp")
        ctx.init_params(y)
        ctx.compile(oc.train.grad_update(y), keep=[x.grad, s.grad, y])()
        logarithms = np.log([2.0, 3.0])
        assert ctx.item(y) == pytest.approx((5 / logarithms).sum(), rel=1e-5)
        assert ctx[s.grad].tolist() == pytest.approx([(1 / logarithms).sum()], rel=1e-5)
        expected = np.zeros((3, 4))
        expected[0, 1], expected[2, 3] = -5 / logarithms**2 / [2.0, 3.0]
        np.testing.assert_allclose(ctx[x.grad], expected, rtol=1e-5)


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


@pytest.mark.parametrize("is_sorted", [1, 0])
@pytest.mark.parametrize(
    ("shape", "axis"), [([3, 4], None), ([5, 2], 0), ([4, 3, 2], 1), ([2, 6], -1), ([6], 0)]
)
def test_distinct_parts_along_an_axis(shape: list[int], axis: int | None, is_sorted: int) -> None:
    attributes = {} if axis is None else {"axis": axis}
    names = ("parts", "first", "back", "counts")
    node = helper.make_node("Unique", ["x"], list(names), sorted=is_sorted, **attributes)
    with oc.Session():
        x = oc.placeholder("x", output=shape)
        made = model([node], {"x": shape}, dict.fromkeys(names))
        parts, first, back, counts = ocannl_onnx.load(made, bounds={"parts": 12})(x)
        assert parts.axis == (axis or 0) % len(shape)
        results = [parts.cells, first.cells, back, counts.cells, parts.count]
        ctx = oc.Context("interp")
        routine = ctx.compile(code_of(results), keep=results)
        rng = np.random.default_rng(0)
        for _ in range(3):
            ctx[x] = data = rng.integers(0, 2, shape).astype(np.float32)
            routine()
            cells, places, inverse, numbers = np.unique(data, True, True, True, axis=axis)
            order = np.arange(len(places)) if is_sorted else np.argsort(places)
            rank = np.argsort(order)
            assert ctx.item(parts.count) == len(places)
            found = np.take(ctx[parts.cells], range(len(places)), axis=axis or 0)
            np.testing.assert_array_equal(found, np.take(cells, order, axis=axis or 0))
            assert ctx[first.cells][: len(places)].tolist() == places[order].tolist()
            assert ctx[counts.cells][: len(places)].tolist() == numbers[order].tolist()
            assert ctx[back].tolist() == rank[inverse.reshape(-1)].tolist()


def test_all_nan_of_rows_are_one() -> None:
    node = helper.make_node("Unique", ["x"], ["rows"], axis=0)
    with oc.Session():
        x = oc.placeholder("x", output=[5, 2])
        made = model([node], {"x": [5, 2]}, {"rows": None})
        rows = ocannl_onnx.load(made, bounds={"rows": 5})(x)
        ctx = oc.Context("interp")
        routine = ctx.compile(code_of([rows.cells]), keep=[rows.cells, rows.count])
        with oc.settings.overrides(allow_nan=True):
            nan = float("nan")
            ctx[x] = np.array([[1, nan], [nan, 2], [1, nan], [nan, 1], [nan, 2]], np.float32)
        routine()
        assert ctx.item(rows.count) == 3
        expected = np.array([[1, nan], [nan, 1], [nan, 2], [0, 0], [0, 0]])
        np.testing.assert_array_equal(ctx[rows.cells], expected)


def in_body(nodes: list[Any], output: str) -> onnx.GraphProto:
    """Return the body of a scan that adds up a number of each row."""
    nodes = [*nodes, helper.make_node("Add", ["sum", output], ["after"])]
    nodes.append(helper.make_node("Identity", [output], ["row_of_all"]))
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("sum", "row")]
    results = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("after", "row_of_all")
    ]
    return helper.make_graph(nodes, "body", ports, results)


@pytest.mark.parametrize("backend", ["interp", pytest.param("cpu_c", marks=pytest.mark.slow)])
def test_bodies_of_loops_have_bounds(backend: str) -> None:
    body = in_body(
        [
            helper.make_node("NonZero", ["row"], ["at"], name="found"),
            helper.make_node("Transpose", ["at"], ["places"]),
            helper.make_node("GatherND", ["row", "places"], ["cells"]),
            helper.make_node("ReduceProd", ["cells"], ["product"], keepdims=0),
        ],
        "product",
    )
    nodes = [
        helper.make_node("Identity", ["start"], ["zero_sum"]),
        helper.make_node("Scan", ["zero_sum", "x"], ["sum", "rows"], body=body, num_scan_inputs=1),
    ]
    made = model(nodes, {"x": [3, 4], "start": []}, {"sum": None, "rows": None})
    with oc.Session():
        x, start = oc.placeholder("x", output=[3, 4]), oc.placeholder("start", output=[])
        results = list(ocannl_onnx.load(made, bounds={"found": 3})(x, start))
        ctx = oc.Context(backend)
        routine = ctx.compile(code_of(results), keep=results)
        ctx[x] = np.array([[0, 2, 0, 3], [0, 0, 0, 0], [5, 7, 2, 0]])
        ctx[start] = np.array(1)
        routine()
        assert ctx[results[1]].tolist() == [6, 1, 70]
        assert ctx.item(results[0]) == 78
        ctx[x] = np.ones((3, 4))
        with pytest.raises(oc.UsageError, match="count_of_found = 4"):
            routine()


def test_rows_of_sizes_that_data_decides_are_refused() -> None:
    body = in_body([helper.make_node("NonZero", ["row"], ["at"], name="found")], "row")
    body.node[-1].input[0] = "at"
    node = helper.make_node(
        "Scan", ["first_cell", "x"], ["sum", "rows"], body=body, num_scan_inputs=1
    )
    start = helper.make_node("ReduceSum", ["x"], ["first_cell"], keepdims=0)
    made = model([start, node], {"x": [3, 4]}, {"sum": None, "rows": None})
    with oc.Session():
        loaded = ocannl_onnx.load(made, bounds={"found": 3})
        with pytest.raises(ocannl_onnx.UnsupportedOperatorError, match="rows of a stacked output"):
            loaded(oc.placeholder("x", output=[3, 4]))


def test_files_of_pictures_are_read_or_are_an_error() -> None:
    pytest.importorskip("PIL", reason="the package pillow is not installed")
    port = helper.make_tensor_value_info("data", TensorProto.UINT8, None)
    node = helper.make_node("ImageDecoder", ["data"], ["picture"])
    graph = helper.make_graph([node], "g", [port], [onnx.ValueInfoProto(name="picture")])
    opset = helper.make_opsetid("", 20)
    loaded = ocannl_onnx.load(helper.make_model(graph, opset_imports=[opset], ir_version=9))
    with oc.Session(), pytest.raises(OnnxError, match="The file is a picture that Pillow reads"):
        loaded(np.frombuffer(b"no picture", np.uint8))
