"""Conditions and loops that data decide at run time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import ocannl_onnx  # noqa: E402
from ocannl_onnx import OnnxError, UnknownValueError  # noqa: E402
from plugins.ocannl_onnx.tests.models import model  # noqa: E402
from plugins.ocannl_onnx.tests.saved import code_of  # noqa: E402

Array = np.ndarray[Any, Any]
FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
BACKENDS = ["interp", pytest.param("cpu_c", marks=pytest.mark.slow)]
HUGE = 2**63 - 1
"""The trip count by which programs say that a loop has none."""


def port(name: str, kind: int = FLOAT, shape: list[int] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def subgraph(
    nodes: list[Any],
    inputs: list[Any],
    outputs: dict[str, int],
    weights: dict[str, Array] | None = None,
) -> onnx.GraphProto:
    """Return a subgraph; outputs that are no floats have one cell."""
    arrays = [numpy_helper.from_array(np.asarray(v), k) for k, v in (weights or {}).items()]
    results = [port(name, kind, None if kind == FLOAT else []) for name, kind in outputs.items()]
    return helper.make_graph(nodes, "body", inputs, results, arrays)


def runtime_of(proto: onnx.ModelProto) -> Any:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    return runtime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])


# Branches


def choice(then: list[Any], other: list[Any], *, opset: int = 18) -> onnx.ModelProto:
    """Return a model that computes `y` by one of two branches, the first where the sum of `x` is
    positive.
    """
    branches = {
        "then_branch": subgraph(then, [], {"y_then": FLOAT}),
        "else_branch": subgraph(other, [], {"y_else": FLOAT}),
    }
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Less", ["zero", "sum"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], name="choice", **branches),
    ]
    inputs: dict[str, Any] = {"x": [3], "i": [2], "j": [2]}
    weights = {"zero": np.float32(0), "pair": np.array([0, 1], np.int64)}
    return model(nodes, inputs, {"y": None}, weights, opset, i=INT, j=INT)


ROOTS = choice(
    [
        helper.make_node("Sqrt", ["x"], ["roots"]),
        helper.make_node("Gather", ["roots", "i"], ["y_then"]),
    ],
    [
        helper.make_node("Neg", ["x"], ["opposite"]),
        helper.make_node("Gather", ["opposite", "j"], ["y_else"]),
    ],
)
CHOICES: list[tuple[Array, Array, Array]] = [
    (np.array([1, 0, 4], np.float32), np.array([2, 0]), np.array([77, -99])),
    (np.array([0, -1, -4], np.float32), np.array([3, 1000]), np.array([0, -1])),
]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_condition_at_run_time_chooses_between_the_results_of_branches(backend: str) -> None:
    """The other branch reads no position beyond an axis."""
    with oc.Session():
        loaded = ocannl_onnx.load(ROOTS)
        inputs = loaded.placeholders()
        y = loaded(**inputs)
        ctx = oc.Context(backend)
        routine = ctx.compile(code_of([y]), keep=[y])
        session = runtime_of(ROOTS)
        for cells in CHOICES:
            given = dict(zip(inputs, cells, strict=True))
            for name, array in given.items():
                ctx[inputs[name]] = array
            routine()
            (expected,) = session.run(None, given)
            np.testing.assert_array_equal(ctx[y], expected)


def test_no_infinite_slope_of_the_other_branch_enters_gradients() -> None:
    with oc.Session():
        x = oc.param("x", init=[0.0, -1.0, -4.0])  # whose roots have no slope
        places = oc.tensor([0, 1], dtype="int64")
        y = ocannl_onnx.load(ROOTS)(x, places, places)
        loss = oc.sum(y * y)
        ctx = oc.Context("interp")
        ctx.init_params(loss)
        ctx.compile(oc.train.grad_update(loss), keep=[x.grad])()
        assert ctx[x.grad].tolist() == [0, -2, 0]


def test_branches_with_other_shapes_are_refused_by_name() -> None:
    proto = choice(
        [helper.make_node("Gather", ["x", "i"], ["y_then"])],
        [helper.make_node("Neg", ["x"], ["y_else"])],
    )
    with oc.Session():
        loaded = ocannl_onnx.load(proto)
        with pytest.raises(UnknownValueError, match="equal formats and shapes") as caught:
            loaded(**loaded.placeholders())
        text = str(caught.value)
        assert "node 'choice': If (operator set 18), which computes y" in text
        assert "<float32[2]> and <float32[3]> for y" in text
        assert "give x as an array" in text
        assert caught.value.inputs == {"x"}
        places = oc.tensor([0, 1], dtype="int64")
        assert loaded(np.ones(3), places, places).shape.dims == (2,)


def test_a_branch_that_cannot_be_computed_is_named() -> None:
    proto = choice(
        [helper.make_node("Reshape", ["x", "i"], ["y_then"])],
        [helper.make_node("Neg", ["x"], ["y_else"])],
    )
    with oc.Session():
        loaded = ocannl_onnx.load(proto)
        with pytest.raises(UnknownValueError, match="its then_branch cannot be") as caught:
            loaded(**loaded.placeholders())
        assert caught.value.inputs == {"x", "i"}


# Loops


def halving(count: int | None, *, with_input: bool = False) -> onnx.ModelProto:
    """Return a loop that halves `h` until its sum is at most 1, and also returns each `2 * h`."""
    body = subgraph(
        [
            helper.make_node("Mul", ["h", "half"], ["next"]),
            helper.make_node("ReduceSum", ["next"], ["sum"], keepdims=0),
            helper.make_node("Less", ["one", "sum"], ["still"]),
            helper.make_node("Add", ["next", "next"], ["row"]),
        ],
        [port("step", INT, []), port("goes_on", BOOL, []), port("h")],
        {"still": BOOL, "next": FLOAT, "row": FLOAT},
        {"half": np.float32(0.5), "one": np.float32(1)},
    )
    name = "count" if with_input or count is not None else ""
    nodes = [
        helper.make_node("Loop", [name, "", "x"], ["last", "rows"], name="halving", body=body),
        helper.make_node("ReduceSum", ["rows", "first"], ["total"], keepdims=0),
    ]
    weights: dict[str, Array] = {"first": np.array([0], np.int64)}
    inputs: dict[str, Any] = {"x": [2]}
    if with_input:
        inputs["count"] = []
    elif count is not None:
        weights["count"] = np.array(count, np.int64)
    outputs: dict[str, Any] = {"last": [2], "rows": [None, 2], "total": [2]}
    return model(nodes, inputs, outputs, weights, count=INT)


def halved(x: Array, most: int) -> tuple[Array, Array]:
    rows: list[Array] = []
    while len(rows) < most and (not rows or x.sum() > 1):
        x = x / 2
        rows.append(2 * x)
    return x, np.array(rows, np.float32).reshape(-1, 2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("count", "bounds", "most"),
    [(5, {}, 5), (HUGE, {"halving": 7}, 7), (None, {"last": 7}, 7), (4, {"halving": 50}, 4)],
)
def test_data_end_a_loop(
    count: int | None, bounds: dict[str, int], most: int, backend: str
) -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[2])
        last, rows, total = ocannl_onnx.load(halving(count), bounds=bounds)(x)
        assert isinstance(rows, ocannl_onnx.Bounded)
        assert tuple(rows.cells.shape) == (most, 2)
        results = [last, rows.cells, rows.count, total]
        ctx = oc.Context(backend)
        routine = ctx.compile(code_of(results), keep=results)
        for cells in ([3, 1], [0, 0], [16, 0], [0.5, -7]):
            ctx[x] = array = np.array(cells, np.float32)
            routine()
            end, wanted = halved(array, most)
            assert ctx.item(rows.count) == len(wanted)
            np.testing.assert_array_equal(ctx[last], end)
            np.testing.assert_array_equal(ctx[rows.cells][: len(wanted)], wanted)
            assert not ctx[rows.cells][len(wanted) :].any()
            np.testing.assert_array_equal(ctx[total], wanted.sum(axis=0))


def test_a_loop_that_data_end_agrees_with_onnxruntime() -> None:
    proto = halving(HUGE)
    x = np.array([100, 3], np.float32)
    expected = runtime_of(proto).run(None, {"x": x})
    with oc.Session():
        given = oc.placeholder("given", output=[2])
        last, rows, total = ocannl_onnx.load(proto, bounds={"halving": 20})(given)
        ctx = oc.Context("interp")
        results = [last, rows.cells, rows.count, total]
        routine = ctx.compile(code_of(results), keep=results)
        ctx[given] = x
        routine()
        found = [ctx[last], ctx[rows.cells][: int(ctx.item(rows.count))], ctx[total]]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("backend", BACKENDS)
def test_data_state_the_number_of_iterations(backend: str) -> None:
    with oc.Session():
        loaded = ocannl_onnx.load(halving(None, with_input=True), bounds={"halving": 6})
        inputs = loaded.placeholders()
        last, rows, _ = loaded(**inputs)
        ctx = oc.Context(backend)
        routine = ctx.compile(code_of([last, rows.count]), keep=[last, rows.count])
        ctx[inputs["x"]] = x = np.array([6400, 0], np.float32)
        for count in (3, 0, -2, 6):
            ctx[inputs["count"]] = np.array(count)
            routine()
            end, _ = halved(x, count)
            np.testing.assert_array_equal(ctx[last], end)
            assert ctx.item(rows.count) == max(count, 0)
        ctx[inputs["count"]] = np.array(7)
        with pytest.raises(oc.UsageError, match="count_of_halving = 7"):
            routine()


def test_more_iterations_than_the_bound_are_an_error_at_run_time() -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[2])
        last, _, _ = ocannl_onnx.load(halving(None), bounds={"halving": 3})(x)
        ctx = oc.Context("interp")
        routine = ctx.compile(oc.train.forward(last), keep=[last])
        ctx[x] = np.array([8.0, 0])  # 4, 2, 1
        routine()
        ctx[x] = np.array([9.0, 0])
        with pytest.raises(oc.UsageError, match="count_of_halving = 4"):
            routine()


@pytest.mark.parametrize("count", [None, HUGE])
def test_without_a_bound_the_error_names_it(count: int | None) -> None:
    with oc.Session(), pytest.raises(UnknownValueError) as caught:
        ocannl_onnx.load(halving(count))(oc.placeholder("x", output=[2]))
    text = str(caught.value)
    assert "its number of iterations depends on the input x at run time, and has no bound" in text
    assert 'load(..., bounds={"halving": 100})' in text


def test_gradients_are_those_of_the_iterations_that_run() -> None:
    with oc.Session():
        x = oc.param("x", init=[5.0, 2.0])
        last, rows, _ = ocannl_onnx.load(halving(9))(x)
        loss = oc.sum(last * last) + oc.sum(rows.cells)
        ctx = oc.Context("interp")
        ctx.init_params(loss)
        ctx.compile(oc.train.grad_update(loss), keep=[x.grad])()
        slopes = 2 * np.array([5, 2]) / 64 + (1 + 1 / 2 + 1 / 4)  # three iterations
        np.testing.assert_allclose(ctx[x.grad], slopes, rtol=1e-6)


def walk(initial: str) -> onnx.ModelProto:
    """Return a loop that follows positions in `next`, from `start`, and adds up square roots of
    `x` there until a position is none of the table.
    """
    body = subgraph(
        [
            helper.make_node("Gather", ["x", "at"], ["cell"]),
            helper.make_node("Sqrt", ["cell"], ["root"]),
            helper.make_node("Add", ["sum", "root"], ["sum_after"]),
            helper.make_node("Gather", ["next", "at"], ["at_after"]),
            helper.make_node("Less", ["at_after", "four"], ["still"]),
        ],
        [port("step", INT, []), port("goes_on", BOOL, []), port("at", INT, []), port("sum")],
        {"still": BOOL, "at_after": INT, "sum_after": FLOAT},
        {"four": np.array(4, np.int64)},
    )
    nodes = [
        helper.make_node("Less", ["start", "size"], ["is_inside"]),
        helper.make_node("Loop", ["count", initial, "start", "zero"], ["end", "y"], body=body),
    ]
    weights = {"count": np.array(6, np.int64), "zero": np.float32(0), "size": np.array(4, np.int64)}
    inputs: dict[str, Any] = {"x": [4], "next": [4], "start": []}
    return model(nodes, inputs, {"end": [], "y": []}, weights, next=INT, start=INT, end=INT)


@pytest.mark.parametrize("backend", BACKENDS)
def test_iterations_that_do_not_run_read_no_positions_beyond_an_axis(backend: str) -> None:
    """Nor do infinite slopes there enter gradients, also where no iteration runs."""
    with oc.Session():
        x = oc.param("x", init=[0.0, 1.0, 4.0, 9.0])
        successor = oc.placeholder("next", output=[4], dtype="int64")
        start = oc.placeholder("start", output=[], dtype="int64")
        end, y = ocannl_onnx.load(walk("is_inside"))(x, successor, start)
        ctx = oc.Context(backend)
        ctx.init_params(y)
        routine = ctx.compile(oc.train.grad_update(y), keep=[end, y, x.grad])
        ctx[successor] = np.array([1, 2, 3, 99])
        ctx[start] = np.array(1)
        routine()
        assert (ctx.item(end), ctx.item(y)) == (99, 6)
        np.testing.assert_allclose(ctx[x.grad], [0, 1 / 2, 1 / 4, 1 / 6], rtol=1e-6)
        ctx[start] = np.array(1000)
        routine()
        assert (ctx.item(end), ctx.item(y)) == (1000, 0)
        assert ctx[x.grad].tolist() == [0, 0, 0, 0]


def test_states_whose_sizes_change_are_refused_by_name() -> None:
    body = subgraph(
        [
            helper.make_node("Concat", ["h", "h"], ["next"], axis=0),
            helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
            helper.make_node("Less", ["one", "sum"], ["still"]),
        ],
        [port("step", INT, []), port("goes_on", BOOL, []), port("h")],
        {"still": BOOL, "next": FLOAT},
        {"one": np.float32(1)},
    )
    nodes = [helper.make_node("Loop", ["count", "", "x"], ["last"], name="growing", body=body)]
    proto = model(nodes, {"x": [2]}, {"last": None}, {"count": np.array(9, np.int64)})
    with oc.Session(), pytest.raises(UnknownValueError) as caught:
        ocannl_onnx.load(proto)(oc.placeholder("x", output=[2]))
    text = str(caught.value)
    assert "node 'growing': Loop (operator set 18), which computes last" in text
    assert "an iteration computes <float32[4]> from a state <float32[2]>" in text


# Both inside each other


@pytest.mark.parametrize("backend", BACKENDS)
def test_branches_and_loops_that_data_decide_nest(backend: str) -> None:
    """Count the steps of Collatz sequences, in a scan over their first numbers."""
    even = subgraph([helper.make_node("Div", ["n", "two"], ["half"])], [], {"half": INT})
    odd = subgraph(
        [
            helper.make_node("Mul", ["n", "three"], ["triple"]),
            helper.make_node("Add", ["triple", "one"], ["more"]),
        ],
        [],
        {"more": INT},
    )
    body = subgraph(
        [
            helper.make_node("Mod", ["n", "two"], ["rest"]),
            helper.make_node("Equal", ["rest", "zero"], ["is_even"]),
            helper.make_node("If", ["is_even"], ["n_after"], then_branch=even, else_branch=odd),
            helper.make_node("Add", ["steps", "one"], ["steps_after"]),
            helper.make_node("Less", ["one", "n_after"], ["still"]),
        ],
        [port("step", INT, []), port("goes_on", BOOL, []), port("n", INT), port("steps", INT)],
        {"still": BOOL, "n_after": INT, "steps_after": INT},
    )
    outer = subgraph(
        [
            helper.make_node("Less", ["one", "start"], ["begins"]),
            helper.make_node(
                "Loop",
                ["", "begins", "start", "zero"],
                ["last", "steps"],
                body=body,
                name="collatz",
            ),
            helper.make_node("Add", ["total", "steps"], ["total_after"]),
            helper.make_node("Identity", ["steps"], ["row"]),
        ],
        [port("total", INT, []), port("start", INT, [])],
        {"total_after": INT, "row": INT},
    )
    nodes = [
        helper.make_node("Scan", ["zero", "x"], ["sum", "rows"], body=outer, num_scan_inputs=1)
    ]
    weights = {
        name: np.array(number, np.int64)
        for name, number in (("zero", 0), ("one", 1), ("two", 2), ("three", 3))
    }
    proto = model(nodes, {"x": [4]}, {"sum": [], "rows": [4]}, weights, x=INT, sum=INT, rows=INT)
    numbers = np.array([1, 2, 3, 7])
    expected = runtime_of(proto).run(None, {"x": numbers})
    assert expected[1].tolist() == [0, 1, 7, 16]
    with oc.Session():
        x = oc.placeholder("x", output=[4], dtype="int64")
        results = ocannl_onnx.load(proto, bounds={"collatz": 20})(x)
        ctx = oc.Context(backend)
        routine = ctx.compile(code_of(list(results)), keep=list(results))
        ctx[x] = numbers
        routine()
        for one, other in zip(results, expected, strict=True):
            np.testing.assert_array_equal(ctx[one], other)


def test_bounds_are_for_nodes_of_the_model() -> None:
    with pytest.raises(OnnxError, match="'halve', which is none of"):
        ocannl_onnx.load(halving(None), bounds={"halve": 3})
