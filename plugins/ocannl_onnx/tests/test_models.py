"""Models are blocks: their outputs are tensors with gradients, their weights parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
from onnx import TensorProto, helper  # noqa: E402

import ocannl_onnx  # noqa: E402
from ocannl_onnx.backend import CBackend  # noqa: E402
from plugins.ocannl_onnx.tests.models import expected_of, model, perceptron  # noqa: E402


def computed(result: Any, cells: dict[Any, Any], backend: str = "interp", **calls: int) -> Any:
    """Return the cells of a tensor for those of placeholders."""
    ctx = oc.Context(backend)
    ctx.init_params(result)
    routine = ctx.compile(oc.train.forward(result), keep=[result])
    for tensor, value in cells.items():
        ctx[tensor] = value
    routine(**calls)
    return ctx[result]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize("backend", ["interp", "cpu_c"])
def test_a_model_in_a_file_computes_its_nodes(
    tmp_path: Path, rng: np.random.Generator, backend: str
) -> None:
    proto, weights = perceptron(rng)
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    x = rng.standard_normal((4, 3)).astype(np.float32)
    with oc.Session():
        loaded = ocannl_onnx.load(path)
        given = oc.placeholder("given", output=[4, 3])
        y = loaded(x=given)
        assert np.allclose(computed(y, {given: x}, backend), expected_of(weights, x), atol=1e-5)


def test_an_input_may_be_named_by_a_keyword() -> None:
    proto = model([helper.make_node("Neg", ["as"], ["in"])], {"as": [2]}, {"in": [2]})
    x = np.array([1, -2], np.float32)
    with oc.Session():
        given = oc.placeholder("x", output=[2])
        loaded = ocannl_onnx.load(proto)
        assert loaded._usage() == "model(as_=...)"
        assert computed(loaded(as_=given), {given: x}).tolist() == [-1, 2]


def test_an_extent_at_run_time_takes_the_place_of_a_named_axis(rng: np.random.Generator) -> None:
    proto, weights = perceptron(rng)
    x = rng.standard_normal((5, 3)).astype(np.float32)
    with oc.Session():
        batch = oc.static_extent("batch", max=8)
        loaded = ocannl_onnx.load(proto, extents={"batch": batch})
        inputs = loaded.placeholders()
        y = loaded(**inputs)
        found = computed(y, {inputs["x"]: x}, batch=5)
        assert found.shape == (5, 2)
        assert np.allclose(found, expected_of(weights, x), atol=1e-5)


@pytest.mark.parametrize(("size", "scale"), [(7, 1.7), (7, 0.6), (5, 0.3), (1, 2.5)])
def test_corners_of_a_resized_axis_are_those_of_its_whole_length(size: int, scale: float) -> None:
    """As PyTorch and onnxruntime compute `interpolate(scale_factor=, align_corners=True)`."""
    attributes = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], **attributes)
    scales = {"scales": np.float32([1, scale])}
    loaded = ocannl_onnx.load(model([node], {"x": [1, size]}, {"y": None}, scales))
    given = loaded.placeholders()
    cells = np.square(np.arange(size, dtype=np.float32))
    found = computed(loaded(**given), {given["x"]: cells[None]})
    places = np.linspace(0, size - 1, int(size * scale))
    assert np.allclose(found, [np.interp(places, np.arange(size), cells)], rtol=1e-6)


@pytest.mark.parametrize("pads", [[1, 1, 1, 1], [0, 1, 2, 1], [0, 0, 1, 1], [2, 2, 0, 0]])
@pytest.mark.parametrize("stride", [1, 2])
def test_windows_of_a_computed_tensor_reach_into_its_margins(
    rng: np.random.Generator, pads: list[int], stride: int
) -> None:
    attributes = {"kernel_shape": [3, 3], "strides": [stride] * 2, "pads": pads}
    nodes = [
        helper.make_node("Relu", ["x"], ["h"]),
        helper.make_node("Conv", ["h", "w"], ["c"], **attributes),
        helper.make_node("MaxPool", ["h"], ["m"], **attributes),
        helper.make_node("Add", ["c", "m"], ["y"]),
    ]
    weight = rng.standard_normal((2, 2, 3, 3)).astype(np.float32)
    proto = model(nodes, {"x": [1, 2, 6, 8]}, {"y": None}, {"w": weight})
    cells = rng.standard_normal((1, 2, 6, 8)).astype(np.float32)
    wide = [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])]

    def seen(outside: float) -> Any:
        whole = np.pad(np.maximum(cells, 0), wide, constant_values=outside)
        slid = np.lib.stride_tricks.sliding_window_view(whole, (3, 3), (2, 3))
        return slid[:, :, ::stride, ::stride]

    expected = np.einsum("nchwkl,mckl->nmhw", seen(0.0), weight) + seen(-np.inf).max((4, 5))
    with oc.Session():
        x = oc.placeholder("x", output=[1, 2, 6, 8])
        y = ocannl_onnx.load(proto)(x=x)
        np.testing.assert_allclose(computed(y, {x: cells}), expected, rtol=1e-4, atol=1e-5)
        assert x.info.padding == ()  # callers fill its cells


def test_weights_are_trained_if_the_caller_says_so(rng: np.random.Generator) -> None:
    proto, weights = perceptron(rng)
    x = rng.standard_normal((4, 3)).astype(np.float32)
    with oc.Session():
        loaded = ocannl_onnx.load(proto, trainable=True)
        y = loaded(x=oc.tensor(x))
        loss = oc.mean(y * y)
        ctx = oc.Context("interp")
        ctx.init_params(loss)
        weight = loaded.parameters["layers.1.weight"]
        step = ctx.compile(
            oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.05),
            keep=[loss, weight.grad],
        )
        step()
        hidden = np.maximum(x @ weights["layers.0.weight"] + weights["layers.0.bias"], 0)
        slope = hidden.T @ (2 * (hidden @ weights["layers.1.weight"]) / 8)
        assert np.allclose(ctx[weight.grad], slope, atol=1e-4)
        before = ctx.item(loss)
        for _ in range(5):
            step()
        assert ctx.item(loss) < before


def test_weights_have_no_gradient_otherwise(rng: np.random.Generator) -> None:
    proto, _ = perceptron(rng)
    with oc.Session():
        loaded = ocannl_onnx.load(proto)
        loaded(x=oc.tensor(np.ones((1, 3), np.float32)))
        assert set(loaded.parameters) == {"layers.0.weight", "layers.0.bias", "layers.1.weight"}
        assert not any(each.requires_grad for each in loaded.parameters.values())


def test_applications_share_the_weights(rng: np.random.Generator) -> None:
    proto, _ = perceptron(rng)
    with oc.Session():
        loaded = ocannl_onnx.load(proto)
        first = loaded(x=oc.tensor(np.ones((1, 3), np.float32)))
        weight = loaded.parameters["layers.0.weight"]
        second = loaded(x=oc.tensor(np.zeros((2, 3), np.float32)))
        assert loaded.parameters["layers.0.weight"] is weight
        assert set(first.params) == set(second.params)


def test_sessions_share_a_model() -> None:
    proto = model(
        [helper.make_node("Mul", ["x", "two"], ["y"])],
        {"x": [2]},
        {"y": [2]},
        {"two": np.float32(2)},
    )
    loaded = ocannl_onnx.load(proto)
    for _ in range(2):
        with oc.Session():
            y = loaded(oc.tensor([1.0, 3.0]))
            ctx = oc.Context("interp")
            ctx.compile(oc.train.forward(y))()
            assert ctx[y].tolist() == [2, 6]


def test_nodes_give_tensors_their_names(rng: np.random.Generator) -> None:
    proto, _ = perceptron(rng)
    with oc.Session():
        loaded = ocannl_onnx.load(proto)
        y = loaded(x=oc.tensor(np.ones((1, 3), np.float32)))
        assert y.label == ("layers_1_MatMul",)
        assert "layers_0_weight" in str(oc.summary(y))
        assert "layers_0_weight" in str(oc.tree(y))


def test_weights_go_to_a_checkpoint_and_back(tmp_path: Path, rng: np.random.Generator) -> None:
    proto, weights = perceptron(rng)
    path = tmp_path / "weights.safetensors"
    with oc.Session():
        y = ocannl_onnx.load(proto)(x=oc.tensor(np.ones((1, 3), np.float32)))
        ctx = oc.Context("interp")
        ctx.init_params(y)
        oc.save(path, ctx, y)
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    for each in changed.graph.initializer:
        each.raw_data = bytes(len(each.raw_data))
    with oc.Session():
        loaded = ocannl_onnx.load(changed)
        y = loaded(x=oc.tensor(np.ones((1, 3), np.float32)))
        ctx = oc.Context("interp")
        ctx.init_params(y)
        oc.load(path, ctx, y)
        found = ctx[loaded.parameters["layers.0.weight"]]
        assert np.array_equal(found, weights["layers.0.weight"])


def test_large_weights_are_mapped_from_the_file(tmp_path: Path, rng: np.random.Generator) -> None:
    weight = rng.standard_normal((64, 64)).astype(np.float32)
    proto = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": [1, 64]},
        {"y": [1, 64]},
        {"w": weight},
    )
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    x = rng.standard_normal((1, 64)).astype(np.float32)
    with oc.Session():
        loaded = ocannl_onnx.load(path)
        assert isinstance(loaded.weights["w"].array, np.memmap)
        assert not loaded.proto.graph.initializer[0].raw_data
        assert np.allclose(computed(loaded(oc.tensor(x)), {}), x @ weight, atol=1e-4)
        assert onnx.load_from_string(loaded.serialized()) == proto


def test_external_data_are_mapped(tmp_path: Path, rng: np.random.Generator) -> None:
    proto, weights = perceptron(rng)
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    x = rng.standard_normal((2, 3)).astype(np.float32)
    with oc.Session():
        loaded = ocannl_onnx.load(path)
        assert isinstance(loaded.weights["layers.0.weight"].array, np.memmap)
        found = computed(loaded(oc.tensor(x)), {})
        assert np.allclose(found, expected_of(weights, x), atol=1e-5)


def test_an_array_is_known_when_the_graph_is_read() -> None:
    proto = model(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        {"x": [2, 3], "shape": ["rank"]},
        {"y": ["a", "b", "c"]},
        shape=TensorProto.INT64,
    )
    with oc.Session():
        loaded = ocannl_onnx.load(proto)
        x = oc.placeholder("x", output=[2, 3])
        assert tuple(loaded(x=x, shape=[3, 1, -1]).shape.dims) == (3, 1, 2)
        with pytest.raises(ocannl_onnx.UnknownValueError, match="depends on the input shape"):
            loaded(x=x, shape=oc.placeholder("shape", output=[3], dtype="int64"))


def test_an_input_with_a_value_in_the_file_may_be_given(rng: np.random.Generator) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["scaled"]),
        helper.make_node("Reshape", ["scaled", "shape"], ["y"]),
    ]
    weights = {"scale": np.arange(6.0, dtype=np.float32), "shape": np.array([2, 3])}
    proto = model(nodes, {"x": [6], "scale": [6]}, {"y": ["m", "n"]}, weights)
    proto.graph.input.append(helper.make_tensor_value_info("shape", TensorProto.INT64, [2]))
    x, scale = rng.standard_normal((2, 6)).astype(np.float32)
    for backend in ("interp", "cpu_c"):
        with oc.Session():
            loaded = ocannl_onnx.load(proto)
            assert [port.name for port in loaded.inputs] == ["x"]
            given = oc.placeholder("x", output=[6])
            found = computed(loaded(given), {given: x}, backend)
            assert found.tolist() == (x * weights["scale"]).reshape(2, 3).tolist()
            other = oc.placeholder("other", output=[6])
            y = loaded(given, scale=other, shape=[3, 2])
            found = computed(y, {given: x, other: scale}, backend)
            assert found.tolist() == (x * scale).reshape(3, 2).tolist()
            with pytest.raises(ocannl_onnx.OnnxError, match="the shape that the model states"):
                loaded(given, scale=oc.placeholder("wrong", output=[5]))
    prepared = CBackend.prepare(proto)
    for inputs in ([x, scale], {"x": x, "scale": scale}):
        assert prepared.run(inputs)[0].tolist() == (x * scale).reshape(2, 3).tolist()
    with pytest.raises(ocannl_onnx.OnnxError, match="takes 3 inputs"):
        prepared.run([x] * 4)


def test_a_shape_computed_from_shapes_is_known() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["rows"]),
        helper.make_node("Unsqueeze", ["rows", "zero"], ["rows1"]),
        helper.make_node("Concat", ["rows1", "rest"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["y"]),
    ]
    numbers = {"zero": np.array([0], np.int64), "rest": np.array([-1], np.int64)}
    numbers["zero"] = np.array(0, np.int64)
    nodes[2] = helper.make_node("Unsqueeze", ["rows", "axes"], ["rows1"])
    numbers["axes"] = np.array([0], np.int64)
    proto = model(nodes, {"x": ["n", 2, 3]}, {"y": ["n", 6]}, numbers)
    with oc.Session():
        x = oc.placeholder("x", output=[4, 2, 3])
        assert tuple(ocannl_onnx.load(proto)(x).shape.dims) == (4, 6)


def test_refusals_name_node_operator_version_and_reason() -> None:
    proto = model(
        [helper.make_node("RandomUniformLike", ["x"], ["y"], name="draw")],
        {"x": [10]},
        {"y": [10]},
        opset=20,
    )
    with oc.Session(), pytest.raises(ocannl_onnx.UnsupportedOperatorError) as refusal:
        ocannl_onnx.load(proto)(oc.placeholder("x", output=[10]))
    text = str(refusal.value)
    assert "node 'draw': RandomUniformLike (operator set 20)" in text
    assert "draw the same random numbers" in text


def test_an_operator_of_another_domain_may_be_a_function_of_the_model() -> None:
    proto = model([helper.make_node("Twice", ["x"], ["y"], domain="own")], {"x": [10]}, {"y": [10]})
    proto.opset_import.append(helper.make_opsetid("own", 1))
    x = oc.placeholder("x", output=[10])
    with pytest.raises(ocannl_onnx.UnsupportedOperatorError, match=r"onnx\.helper\.make_function"):
        ocannl_onnx.load(proto)(x)
    body = helper.make_node("Add", ["a", "a"], ["b"])
    proto.functions.append(
        helper.make_function("own", "Twice", ["a"], ["b"], [body], [*proto.opset_import])
    )
    cells = np.arange(10, dtype=np.float32)
    found = computed(ocannl_onnx.load(proto)(x), {x: cells})
    assert found.tolist() == (2 * cells).tolist()


def test_an_error_of_an_operation_names_the_node() -> None:
    proto = model(
        [helper.make_node("Add", ["x", "w"], ["y"], name="add")],
        {"x": ["n"]},
        {"y": ["n"]},
        {"w": np.ones(3, np.float32)},
    )
    with oc.Session(), pytest.raises(ocannl_onnx.OnnxError) as error:
        ocannl_onnx.load(proto)(oc.placeholder("x", output=[4]))
    assert "node 'add'" in error.value.where


def test_inputs_are_checked() -> None:
    proto = model(
        [helper.make_node("Add", ["a", "b"], ["y"])], {"a": ["n"], "b": ["n"]}, {"y": ["n"]}
    )
    with oc.Session():
        loaded = ocannl_onnx.load(proto)
        a, b = oc.placeholder("a", output=[4]), oc.placeholder("b", output=[3])
        with pytest.raises(ocannl_onnx.OnnxError, match="where n is 4"):
            loaded(a, b)
        with pytest.raises(ocannl_onnx.OnnxError, match="none for b"):
            loaded(a)
        with pytest.raises(ocannl_onnx.OnnxError, match="'c'"):
            loaded(a, c=b)
        with pytest.raises(ocannl_onnx.OnnxError, match="int32"):
            loaded(a, oc.placeholder("b", output=[4], dtype="int32"))


@pytest.mark.parametrize("extents", [{"N": 4}, {"n": -1}, {"n": "4"}, {"x": [4, 0.5]}, [4]])
def test_extents_are_checked_when_a_model_is_loaded(extents: Any) -> None:
    proto = model([helper.make_node("Neg", ["x"], ["y"])], {"x": ["n", 3]}, {"y": ["n", 3]})
    with pytest.raises(ocannl_onnx.OnnxError, match=r"^(Extents are sizes|A size is a number)"):
        ocannl_onnx.load(proto, extents=extents)


def test_only_files_and_messages_are_loaded() -> None:
    with pytest.raises(ocannl_onnx.OnnxError, match="load_model_from_string"):
        ocannl_onnx.load(b"content")  # type: ignore[arg-type]


def test_batch_and_input_axes_of_an_input_are_axes_in_their_order(rng: np.random.Generator) -> None:
    two = np.ones((2, 3, 4), np.float32)
    nodes = [
        helper.make_node("Add", ["x", "two"], ["s"]),
        helper.make_node("Mul", ["s", "x"], ["y"]),
    ]
    proto = model(nodes, {"x": [2, 3, 4]}, {"y": [2, 3, 4]}, {"two": two})
    cells = rng.standard_normal((2, 3, 4)).astype(np.float32)
    with oc.Session():
        x = oc.placeholder("x", batch=[2], output=[3], input=[4])
        y = ocannl_onnx.load(proto)(x)
        assert str(y.shape) == "2,3,4"
        np.testing.assert_array_equal(computed(y, {x: cells}), (cells + 1) * cells)


def test_random_numbers_are_drawn_on_request_only() -> None:
    proto = model(
        [helper.make_node("RandomNormalLike", ["x"], ["y"])], {"x": [1000]}, {"y": [1000]}
    )
    with oc.Session(), pytest.raises(ocannl_onnx.UnsupportedOperatorError, match="random=True"):
        ocannl_onnx.load(proto)(oc.placeholder("x", output=[1000]))
    with oc.Session(seed=1):
        y = ocannl_onnx.load(proto, random=True)(oc.tensor(np.zeros(1000, np.float32)))
        cells = computed(y, {})
        assert abs(cells.mean()) < 0.15
        assert 0.9 < cells.std() < 1.1


def _flattened(divide: bool) -> Any:
    """Return a model that flattens by sizes that it computes, or divides by one."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["rows"]),
    ]
    if divide:
        nodes += [
            helper.make_node("Cast", ["rows"], ["count"], to=TensorProto.FLOAT),
            helper.make_node("Div", ["x", "count"], ["y"], name="mean"),
        ]
    else:
        nodes += [
            helper.make_node("Unsqueeze", ["rows", "axes"], ["row"]),
            helper.make_node("Concat", ["row", "rest"], ["wanted"], axis=0),
            helper.make_node("Reshape", ["x", "wanted"], ["y"]),
        ]
    numbers = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1])}
    return model(nodes, {"x": ["n", 2, 3]}, {"y": None}, numbers)


def test_a_new_shape_keeps_an_extent_at_run_time(rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 2, 3)).astype(np.float32)
    with oc.Session():
        n = oc.static_extent("n", max=5)
        loaded = ocannl_onnx.load(_flattened(divide=False), extents={"n": n})
        inputs = loaded.placeholders()
        y = computed(loaded(**inputs), {inputs["x"]: x}, n=3)
        assert np.array_equal(y, x.reshape(3, 6))


def test_an_extent_at_run_time_is_a_number_of_each_call() -> None:
    with oc.Session():
        loaded = ocannl_onnx.load(
            _flattened(divide=True), extents={"n": oc.static_extent("n", max=5)}
        )
        inputs = loaded.placeholders()
        y = loaded(**inputs)
        for rows in (2, 4):
            cells = np.ones((rows, 2, 3), np.float32)
            assert np.allclose(computed(y, {inputs["x"]: cells}, n=rows), 1 / rows)
    with oc.Session():
        loaded = ocannl_onnx.load(_flattened(divide=True), extents={"n": 4})
        inputs = loaded.placeholders()
        y = computed(loaded(**inputs), {inputs["x"]: np.ones((4, 2, 3), np.float32)})
        assert np.allclose(y, 0.25)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("last = Sub(n, one) y = Gather(x, last)", lambda x: x[-1]),
        ("at = Constant<value = int64[2] {-1, 0}>() y = Gather(x, at)", lambda x: x[[-1, 0]]),
        ("at = Sub(first, second) y = Gather(x, at)", lambda x: x[[-1]]),
        ("f = Cast<to = 1>(n) s = Sqrt(f) y = Div(x, s)", lambda x: x / len(x) ** 0.5),
        ("s = Shape(x) f = Cast<to = 1>(s) p = ReduceProd(f) y = Div(x, p)", lambda x: x / x.size),
        ("s = Size(x) f = Cast<to = 1>(s) y = Div(x, f)", lambda x: x / x.size),
        (
            """few = Constant<value = int64 {3}>() is_short = Less(n, few) y = If(is_short) <
                then_branch = short () => (float[n, 3] s) { s = Neg(x) },
                else_branch = long () => (float[n, 3] l) { f = Cast<to = 1>(n) l = Mul(x, f) }>""",
            lambda x: -x if len(x) < 3 else x * len(x),
        ),
        (
            """z = Constant<value = float {0}>() s = ReduceMax<keepdims = 0>(x) b = Less(s, z)
               m = If(b) <
                then_branch = some () => (int64 s) { s = Identity(n) },
                else_branch = none () => (int64 l) { l = Constant<value = int64 {5}>() }>
               f = Cast<to = 1>(m) y = Mul(x, f)""",
            lambda x: x * 5,
        ),
        ("y = Slice(x, first, rows, first)", lambda x: x),
        (
            "r = Range(zero, n, one) f = Cast<to = 1>(r) u = Unsqueeze(f, second) y = Add(x, u)",
            lambda x: x + np.arange(len(x))[:, None],
        ),
        (
            "y = Hardmax<axis = 0>(x)",
            lambda x: (np.arange(len(x))[:, None] == x.argmax(0)).astype(np.float32),
        ),
        ("y = EyeLike<k = 1>(x)", lambda x: np.eye(len(x), 3, 1)),
        ("d, m = Dropout(x) y = Cast<to = 1>(m)", np.ones_like),
        (
            "p = ArgMin<axis = 1>(x) y = GatherElements<axis = 1>(x, p)",
            lambda x: x.min(1, keepdims=True),
        ),
        ("y = Trilu<upper = 0>(x)", np.tril),
        ("y = CumSum(x, zero)", lambda x: x.cumsum(0)),
        ("y = CumSum<reverse = 1, exclusive = 1>(x, zero)", lambda x: x.sum(0) - x.cumsum(0)),
        ("i = Cast<to = 7>(x) y = CumSum<exclusive = 1>(i, zero)", lambda x: x.cumsum(0) - x),
        ("y = CumProd<reverse = 1>(x, zero)", lambda x: x[::-1].cumprod(0)[::-1]),
        (
            """c = Constant<value = int64[1] {6}>() s = Concat<axis = 0>(rows, c)
               y = Resize<mode = "nearest", nearest_mode = "floor",
                          coordinate_transformation_mode = "asymmetric">(x, , , s)""",
            lambda x: x.repeat(2, axis=1),
        ),
        ("y = Trilu(x, one)", lambda x: np.triu(x, 1)),
        ("at = Constant<value = int64[2, 1] {-1, 0}>() y = GatherND(x, at)", lambda x: x[[-1, 0]]),
        ("p = ArgMax<axis = 1>(x) y = GatherND<batch_dims = 1>(x, p)", lambda x: x.max(1)),
        (
            """p = ArgMax<axis = 1>(x) q = GatherElements<axis = 1>(x, p) m = Neg(q)
               y = ScatterElements<axis = 1>(x, p, m)""",
            lambda x: np.where(x == x.max(1, keepdims=True), -x, x),
        ),
        (
            """at = Constant<value = int64[1, 1] {-1}>() u = Constant<value = float[1, 3] {7, 8, 9}>()
               y = ScatterND(x, at, u)""",
            lambda x: np.concatenate([x[:-1], [[7, 8, 9]]]),
        ),
    ],
)
def test_graphs_compute_with_extents(nodes: str, expected: Any) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
        g (float[n, 3] x) => (float[a] y)
        <int64 one = {{1}}, int64 zero = {{0}}, int64[1] first = {{0}}, int64[1] second = {{1}}> {{
            rows = Shape<end=1>(x) n = Squeeze(rows) {nodes} }}"""
    with oc.Session():
        n = oc.static_extent("n", max=5)
        loaded = ocannl_onnx.load(onnx.parser.parse_model(text), extents={"n": n})
        inputs = loaded.placeholders()
        y = loaded(**inputs)
        for rows in (2, 5):
            x = np.arange(3.0 * rows, dtype=np.float32).reshape(rows, 3)
            found = computed(y, {inputs["x"]: x}, n=rows)
            assert np.allclose(found, expected(x), rtol=1e-6)


@pytest.mark.parametrize("rest", [(), (3,)])
def test_cells_at_tuples_of_positions_along_axes_of_extents(
    rng: np.random.Generator, rest: tuple[int, ...]
) -> None:
    """As PyTorch's exporter writes `mask[rows[:, None, None], columns]`."""
    inner = "".join(f", {size}" for size in rest)
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
        g (float[n, m{inner}] x, int64[n, k, m, 2] at) => (float[n, k, m{inner}] y) {{
            y = GatherND(x, at) }}"""
    with oc.Session():
        n, m = oc.static_extent("n", max=5), oc.static_extent("m", max=6)
        loaded = ocannl_onnx.load(onnx.parser.parse_model(text), extents={"n": n, "m": m, "k": 2})
        inputs = loaded.placeholders()
        y = loaded(**inputs)
        for rows, columns in ((3, 4), (5, 2)):
            x = rng.standard_normal((rows, columns, *rest)).astype(np.float32)
            where = (rows, 2, columns)
            at = np.stack([rng.integers(-size, size, where) for size in (rows, columns)], axis=-1)
            found = computed(y, {inputs["x"]: x, inputs["at"]: at}, n=rows, m=columns)
            assert np.array_equal(found, x[at[..., 0], at[..., 1]])


@pytest.mark.parametrize("operator", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("lengths", ["", ", , length"])
def test_recurrent_layers_start_from_zeros_for_every_batch(
    rng: np.random.Generator, operator: str, lengths: str
) -> None:
    gates = {"RNN": 2, "GRU": 6, "LSTM": 8}[operator]
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
        g (float[4, n, 3] x, int32[n] length, float[2, {gates}, 3] w, float[2, {gates}, 2] r)
        => (float[4, 2, n, 2] y) {{
            y = {operator}<hidden_size = 2, direction = "bidirectional">(x, w, r{lengths}) }}"""
    given = {
        "x": rng.standard_normal((4, 5, 3)),
        "length": np.array([4, 1, 3, 2, 4]),
        "w": rng.standard_normal((2, gates, 3)),
        "r": rng.standard_normal((2, gates, 2)),
    }
    with oc.Session():
        n = oc.static_extent("n", max=5)
        model = ocannl_onnx.load(onnx.parser.parse_model(text), extents={"n": n})
        inputs = model.placeholders()
        y = model(**inputs)
        whole = computed(y, {inputs[name]: cells for name, cells in given.items()}, n=5)
        given["x"], given["length"] = given["x"][:, :2], given["length"][:2]
        part = computed(y, {inputs[name]: cells for name, cells in given.items()}, n=2)
        np.testing.assert_array_equal(part, whole[:, :, :2])


@pytest.mark.parametrize(
    "nodes",
    [
        "e = Sub(rows, one) y = Slice(x, first, e, first)",
        "f = Cast<to = 1>(rows) g = Erf(f) h = Mul(g, f) e = Cast<to = 7>(h) y = Expand(zero, e)",
        "e, p = TopK(rows, one) y = ConstantOfShape(e)",
        "c = Constant<value = float[5] {1, 2, 3, 4, 5}>() y = Reshape(c, rows)",
        "e = Mul(rows, rows) y = Expand(zero, e)",
        "t = Add(one, one) d = Div(rows, t) m = Mul(d, t) y = Expand(zero, m)",
        "b = Less(one, rows) e = Where(b, rows, one) y = Expand(zero, e)",
    ],
)
def test_other_sizes_that_follow_from_extents_are_refused(nodes: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
        g (float[n, 3] x) => (float[a, b] y)
        <int64[1] one = {{1}}, int64[1] first = {{0}}, float zero = {{0}}> {{
            rows = Shape<end=1>(x) {nodes} }}"""
    with oc.Session():
        extents = {"n": oc.static_extent("n", max=5)}
        loaded = ocannl_onnx.load(onnx.parser.parse_model(text), extents=extents)
        with pytest.raises(ocannl_onnx.UnsupportedOperatorError, match="an extent at run time"):
            loaded(**loaded.placeholders())


@pytest.mark.parametrize(
    "nodes",
    [
        "z = Constant<value = float {1.5}>() spread = Expand(z, sizes)",
        "z = Relu(x) h = ReduceMax<keepdims=1>(z) l = Clip(h, top, top) spread = Expand(l, sizes)",
        "spread = ConstantOfShape<value = float[1] {1.5}>(sizes)",
        """rows = Shape<end=1>(x) cells = Constant<value = int64[1] {3}>()
           joined = Concat<axis=0>(rows, cells) z = Constant<value = float {1.5}>()
           spread = Expand(z, joined)""",
        # of PyTorch: a size of -1 stands for the operand's size
        """z = Constant<value = float[1, 1] {1.5}>() rows = Shape<end=1>(x)
           minus = Constant<value = int64[1] {-1}>() wanted = Concat<axis=0>(rows, minus)
           is_own = Equal(wanted, minus) ones = Constant<value = int64[2] {1, 3}>()
           joined = Where(is_own, ones, wanted) spread = Expand(z, joined)""",
        """z = Constant<value = float {1.5}>() cells = Constant<value = int64[1] {3}>()
           rows = Shape<end=1>(x) i = Cast<to = 6>(rows) l = Cast<to = 7>(i)
           twelve = Constant<value = int64[1] {12}>() zero = Constant<value = int64[1] {0}>()
           a = Mul(l, twelve) b = Mul(l, a) c = Div(b, a) d = Add(zero, c) e = Sub(d, zero)
           f = Mul(cells, e) g = Div(f, cells) joined = Concat<axis=0>(g, cells)
           spread = Expand(z, joined)""",
    ],
)
def test_a_shape_of_an_extent_spreads_cells_along_it(nodes: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
        g (float[n, 3] x) => (float[n, 3] spread, float[n, 3] y) <float top = {{1.5}}> {{
            sizes = Shape(x) {nodes} y = Add(x, spread) }}"""
    with oc.Session():
        n = oc.static_extent("n", max=5)
        model = ocannl_onnx.load(onnx.parser.parse_model(text), extents={"n": n})
        x = model.placeholders()["x"]
        spread, y = model(x=x)
        ctx = oc.Context("interp")
        run = ctx.compile(oc.train.forward(spread) + oc.train.forward(y), keep=[spread, y])
        ctx[x] = np.ones((2, 3))
        run(n=2)
        assert ctx[spread].tolist() == [[1.5] * 3] * 2
        assert ctx[y].tolist() == [[2.5] * 3] * 2


def test_branches_of_unequal_shapes_that_an_extent_chooses_are_refused() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]>
        g (float[n, 3] x) => (float[a, b] y) {
            n = Size(x) few = Constant<value = int64 {3}>() is_short = Less(n, few)
            y = If(is_short) <
                then_branch = short () => (float[n, 3] s) { s = Neg(x) },
                else_branch = long () => (float[m, 6] l) { l = Concat<axis = 1>(x, x) }> }"""
    with oc.Session():
        extents = {"n": oc.static_extent("n", max=5)}
        model = ocannl_onnx.load(onnx.parser.parse_model(text), extents=extents)
        with pytest.raises(ocannl_onnx.UnsupportedOperatorError, match="equal formats") as caught:
            model(**model.placeholders())
        assert "state a constant size for its axis" in str(caught.value)


_END = 2**63 - 1


@pytest.mark.parametrize(
    ("starts", "ends", "steps"),
    [
        *((0, 1, 1), (1, 2, 1), (0, 2, 1), (-1, _END, 1), (-2, -1, 1), (-2, _END, 1)),
        *((0, _END, 1), (-9, 5, 1), (0, 5, 1), (7, 9, 1), (1, -7, 1)),
        *((1, 0, -1), (1, -_END, -1), (-1, -3, -1), (_END, -2, -1)),
    ],
)
def test_parts_of_an_axis_with_an_extent_are_of_constant_size(
    starts: int, ends: int, steps: int
) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
        g (float[n, 3] x) => (float[m, 2] y)
        <int64[2] starts = {{{starts}, 1}}, int64[2] ends = {{{ends}, 3}}, int64[2] axes = {{0, 1}},
         int64[2] steps = {{{steps}, 1}}> {{ y = Slice(x, starts, ends, axes, steps) }}"""
    with oc.Session():
        n = oc.static_extent("n", max=5)
        model = ocannl_onnx.load(onnx.parser.parse_model(text), extents={"n": n})
        x = model.placeholders()["x"]
        y = model(x=x)
        for rows in (2, 3, 5):
            cells = np.arange(3.0 * rows, dtype=np.float32).reshape(rows, 3)
            stop = None if ends < -5 and steps < 0 else ends
            expected = cells[starts:stop:steps, 1:3]
            np.testing.assert_array_equal(computed(y, {x: cells}, n=rows), expected)


@pytest.mark.parametrize(
    ("starts", "ends", "steps"),
    [(1, _END, 1), (0, -1, 1), (-1, 2, 1), (-1, -_END, -1), (2, -5, -1)],
)
def test_parts_of_an_axis_whose_size_the_call_decides_are_refused(
    starts: int, ends: int, steps: int
) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
        g (float[n, 3] x) => (float[m, 3] y) <int64[1] starts = {{{starts}}},
         int64[1] ends = {{{ends}}}, int64[1] axes = {{0}}, int64[1] steps = {{{steps}}}> {{
            y = Slice(x, starts, ends, axes, steps) }}"""
    with oc.Session():
        n = oc.static_extent("n", max=5)
        model = ocannl_onnx.load(onnx.parser.parse_model(text), extents={"n": n})
        with pytest.raises(ocannl_onnx.UnsupportedOperatorError, match="the size of a part"):
            model(**model.placeholders())


def test_a_part_beyond_the_extent_of_a_call_is_an_error() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]>
        g (float[n, 3] x) => (float[3, 3] y) <int64[1] zero = {0}, int64[1] three = {3}> {
            y = Slice(x, zero, three, zero) }"""
    with oc.Session():
        n = oc.static_extent("n", max=5)
        model = ocannl_onnx.load(onnx.parser.parse_model(text), extents={"n": n})
        x = model.placeholders()["x"]
        with pytest.raises(oc.UsageError, match="A position lies on its axis"):
            computed(model(x=x), {x: np.ones((2, 3), np.float32)}, n=2)


def test_a_table_is_read_up_to_an_extent() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]>
        g (float[n, 2] x) => (float[n, 2] y)
        <int64[1] zero = {0}, float[6, 2] table = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
         int64[5] ids = {4, 3, 2, 1, 0}> {
            rows = Shape<end=1>(x) first = Slice(table, zero, rows) some = Slice(ids, zero, rows)
            others = Gather(table, some) s = Add(first, others) y = Add(x, s) }"""
    table = np.arange(1.0, 13.0).reshape(6, 2)
    with oc.Session():
        n = oc.static_extent("n", max=5)
        model = ocannl_onnx.load(onnx.parser.parse_model(text), extents={"n": n})
        x = model.placeholders()["x"]
        y = model(x=x)
        for rows in (1, 2, 5):
            cells = np.ones((rows, 2), np.float32)
            expected = 1 + table[:rows] + table[[4, 3, 2, 1, 0][:rows]]
            np.testing.assert_array_equal(computed(y, {x: cells}, n=rows), expected)


def test_a_part_up_to_an_extent_that_may_be_longer_is_refused() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]>
        g (float[n, 3] x) => (float[m] y) <int64[1] zero = {0}> {
            rows = Shape<end=1>(x) c = Constant<value = float[4] {1, 2, 3, 4}>()
            y = Slice(c, zero, rows) }"""
    with oc.Session():
        n = oc.static_extent("n", max=5)
        model = ocannl_onnx.load(onnx.parser.parse_model(text), extents={"n": n})
        with pytest.raises(ocannl_onnx.UnsupportedOperatorError, match="an extent at run time"):
            model(**model.placeholders())
