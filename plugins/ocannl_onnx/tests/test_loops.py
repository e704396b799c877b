"""Loops with a known number of steps are loops of the compiled code, where their steps are equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import ocannl_onnx  # noqa: E402
from plugins.ocannl_onnx.tests.models import model  # noqa: E402

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def port(name: str, kind: int = FLOAT, shape: list[int] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def decayed(count: int) -> onnx.ModelProto:
    """Return a loop `h = h * 0.5 + x * step`, whose steps also return `h * 2`."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["goes_on"], ["still"]),
            helper.make_node("Mul", ["h", "half"], ["less"]),
            helper.make_node("Cast", ["step"], ["number"], to=FLOAT),
            helper.make_node("Mul", ["x", "number"], ["part"]),
            helper.make_node("Add", ["less", "part"], ["next"]),
            helper.make_node("Add", ["next", "next"], ["row"]),
        ],
        "body",
        [port("step", INT, []), port("goes_on", BOOL, []), port("h")],
        [port("still", BOOL, []), port("next"), port("row")],
        [numpy_helper.from_array(np.float32(0.5), "half")],
    )
    nodes = [helper.make_node("Loop", ["count", "", "x"], ["last", "rows"], body=body)]
    return model(
        nodes, {"x": [3]}, {"last": [3], "rows": [count, 3]}, {"count": np.array(count, np.int64)}
    )


def decayed_by_numpy(x: Any, count: int) -> tuple[Any, Any]:
    h, rows = x, []
    for step in range(count):
        h = h * 0.5 + x * step
        rows.append(2 * h)
    return h, np.array(rows)


def compiled(proto: onnx.ModelProto, x: Any, backend: str = "interp") -> tuple[list[Any], Any]:
    """Return the outputs of a model of one input, and the routine."""
    with oc.Session():
        given = oc.placeholder("given", output=list(x.shape))
        found = ocannl_onnx.load(proto)(given)
        outputs = list(found) if isinstance(found, tuple) else [found]
        code = oc.train.forward(outputs[0])
        for each in outputs[1:]:
            code = code + oc.train.forward(each)
        ctx = oc.Context(backend)
        for each in outputs:
            ctx.init_params(each)
        routine = ctx.compile(code, keep=outputs)
        ctx[given] = x
        routine()
        return [ctx[each] for each in outputs], routine


@pytest.mark.parametrize("backend", ["interp", "cpu_c"])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_a_loop_computes_its_steps(count: int, backend: str) -> None:
    x = np.array([1, -2, 3], np.float32)
    if count == 0:
        with oc.Session():
            last, _ = ocannl_onnx.load(decayed(0))(oc.tensor(x))
            assert tuple(last.shape) == (3,)
        return
    (last, rows), _ = compiled(decayed(count), x, backend)
    wanted, wanted_rows = decayed_by_numpy(x, count)
    np.testing.assert_allclose(last, wanted, rtol=1e-6)
    np.testing.assert_allclose(rows, wanted_rows, rtol=1e-6)


@pytest.mark.parametrize("operator", ["Loop", "Scan"])
def test_stacked_outputs_of_no_iterations_have_the_format_and_the_sizes_of_others(
    operator: str,
) -> None:
    text = {
        "Loop": """g (float[2,3] x, float[0,3] none) => (float[2,3] y, int64[n,2] s) {
            y, s = Loop (m, c, x) <body = b (int64 i, bool go, float[2,3] v)
              => (bool on, float[2,3] w, int64[2] q) {
                on = Identity(go) w = Add(v, v) q = ArgMax<axis=1, keepdims=0>(v) }>
            } """,
        "Scan": """g (float[2,3] x, float[0,3] none) => (float[2,3] y, int64[2,n] s) {
            y, s = Scan <num_scan_inputs=1, scan_output_axes=[-1],
              body = b (float[2,3] v, float[3] row) => (float[2,3] w, int64[2] q) {
                w = Add(v, row) q = ArgMax<axis=1, keepdims=0>(v) }> (x, none)
            } """,
    }[operator].replace("{", "<int64 m={0}, bool c={1}> {", 1)
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {text}')
    with oc.Session():
        inputs = {"x": oc.tensor(np.ones((2, 3), np.float32)), "none": np.zeros((0, 3), np.float32)}
        found = ocannl_onnx.load(proto)(**inputs)[1]
        assert str(found.dtype) == "int64"
        assert tuple(found.shape.dims) == ((0, 2) if operator == "Loop" else (2, 0))


def test_the_code_of_a_loop_does_not_grow_with_its_steps() -> None:
    x = np.ones(3, np.float32)
    sizes = [len(str(compiled(decayed(count), x)[1].loop_ir).splitlines()) for count in (8, 64)]
    assert sizes[0] == sizes[1]


def test_gradients_go_through_a_loop() -> None:
    x = np.array([1, -2, 3], np.float32)
    with oc.Session():
        given = oc.param("given", init=x)
        last, _ = ocannl_onnx.load(decayed(5))(given)
        loss = oc.sum(last * last)
        ctx = oc.Context("interp")
        ctx.init_params(loss)
        ctx.compile(oc.train.grad_update(loss), keep=[given.grad])()
        slope = decayed_by_numpy(np.ones(3), 5)[0]
        np.testing.assert_allclose(ctx[given.grad], 2 * slope**2 * x, rtol=1e-5)


def test_a_loop_that_appends_is_unrolled() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["goes_on"], ["still"]),
            helper.make_node("Concat", ["h", "x"], ["next"], axis=0),
        ],
        "body",
        [port("step", INT, []), port("goes_on", BOOL, []), port("h")],
        [port("still", BOOL, []), port("next")],
    )
    nodes = [helper.make_node("Loop", ["count", "", "x"], ["last"], body=body)]
    proto = model(nodes, {"x": [2]}, {"last": [8]}, {"count": np.array(3, np.int64)})
    (last,), _ = compiled(proto, np.array([1, 2], np.float32))
    np.testing.assert_array_equal(last, [1, 2] * 4)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("back", "out_back"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_a_scan_reads_and_writes_any_axis_in_both_directions(
    axis: int, back: int, out_back: int
) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["total", "entry"], ["next"]),
            helper.make_node("Identity", ["next"], ["row"]),
        ],
        "body",
        [port("total"), port("entry")],
        [port("next"), port("row")],
    )
    node = helper.make_node(
        "Scan", ["zero", "x"], ["last", "rows"], body=body, num_scan_inputs=1,
        scan_input_axes=[axis], scan_input_directions=[back],
        scan_output_axes=[1], scan_output_directions=[out_back],
    )  # fmt: skip
    x = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    entries = np.moveaxis(x, axis, 0)[:: -1 if back else 1]
    proto = model(
        [node],
        {"x": [4, 5]},
        {"last": None, "rows": None},
        {"zero": np.zeros(entries.shape[1], np.float32)},
    )
    (last, rows), _ = compiled(proto, x)
    sums = np.cumsum(entries, axis=0)
    np.testing.assert_allclose(last, sums[-1], rtol=1e-5)
    np.testing.assert_allclose(rows, sums[:: -1 if out_back else 1].T, rtol=1e-5, atol=1e-6)
