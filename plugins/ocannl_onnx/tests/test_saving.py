"""Expressions saved as ONNX models have the same results elsewhere, and read back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
import ocannl_onnx  # noqa: E402
from plugins.ocannl_onnx.tests.saved import (  # noqa: E402
    computed,
    random_cells,
    run_elsewhere,
    run_reference,
    saved,
)
from tests.support.slow import slow  # noqa: E402

# fmt: off
POINTWISE = sorted({
    "abs", "acos", "add", "asin", "atan", "atan2", "bitwise_and", "bitwise_not", "bitwise_or",
    "bitwise_xor", "ceil", "cos", "cosh", "divide", "equal", "erf", "exp", "exp2", "expm1",
    "floor", "floor_divide", "greater", "greater_equal", "isfinite", "isinf", "isnan", "less",
    "less_equal", "log", "log1p", "log2", "logical_and", "logical_not", "logical_or",
    "logical_xor", "maximum", "minimum", "mod", "multiply", "negative", "not_equal", "pow",
    "recip", "relu", "round", "sign", "sin", "sinh", "sqrt", "square", "subtract", "tan",
    "tanh", "trunc", "where",
} & set(oc.__all__))
# fmt: on


def _x(*output: int, name: str = "x", batch: Any = (), dtype: str | None = None) -> Any:
    return oc.placeholder(name, output=list(output), batch=list(batch), dtype=dtype)


def perceptron() -> Any:
    return oc.nn.mlp(_x(8, batch=[4]), hidden=(6, 6), output=3)


def lenet() -> Any:
    return oc.nn.lenet(classes=10)(_x(28, 28, 1, batch=[2]))


def residual_block() -> Any:
    return oc.nn.basic_block(_x(8, 8, 4, batch=[2]), channels=8, stride=2)


def convolutions() -> Any:
    x = _x(9, 9, 6, batch=[2])
    return (
        oc.nn.conv(x, channels=6, kernel=3, groups=3),
        oc.nn.conv(x, channels=4, kernel=3, dilation=2),
        oc.nn.separable_conv(x, channels=5, kernel=3),
        oc.einsum("oh, c; kh => 2*oh<+kh, c", _x(4, 2, name="few"), _x(3, name="filter")),
    )


def pools() -> Any:
    x = _x(9, 9, 4, batch=[2])
    return (
        oc.nn.max_pool(x, window=3, stride=2),
        oc.nn.max_pool(x, window=3, stride=1, padded=True),
        oc.nn.avg_pool(x, window=3, stride=3),
        oc.nn.global_avg_pool(x),
        oc.nn.resize(x, (18, 18)),
    )


def norms() -> Any:
    x = _x(4, 4, 6, batch=[2])
    return (
        oc.nn.batch_norm(x),
        oc.nn.group_norm(x, groups=2),
        oc.nn.instance_norm(x),
        oc.nn.layer_norm(x),
        oc.nn.rms_norm(x),
    )


def encoder() -> Any:
    return oc.nn.transformer_encoder(layers=2, heads=2, hidden=12)(_x(8, batch=[2, 5]))


def decoder() -> Any:
    memory = _x(8, name="memory", batch=[2, 4])
    return oc.nn.transformer_decoder(layers=2, heads=2, hidden=12)(_x(8, batch=[2, 5]), memory)


def gpt2() -> Any:
    ids = _x(name="ids", batch=[2, 5], dtype="int32")
    return oc.nn.gpt(vocabulary=11, layers=2, heads=2, width=4, length=8)(ids)


def llama() -> Any:
    ids = _x(name="ids", batch=[2, 5], dtype="int32")
    return oc.nn.gpt(
        ids,
        vocabulary=11,
        layers=2,
        heads=2,
        width=4,
        rotary_base=10000.0,
        norm=oc.nn.rms_norm,
        gated=True,
        activation=oc.silu,
        kv_heads=1,
        bias=False,
        tied=False,
    )


def lstm() -> Any:
    x = _x(3, batch=[5, 2])
    outputs, states = oc.nn.lstm(x, width=4, layers=2, bidirectional=True)
    return outputs, *states[-1]


def lengths() -> Any:
    counts = _x(name="counts", batch=[2], dtype="int32")
    return oc.nn.gru(_x(3, batch=[5, 2]), width=4, lengths=counts)[0]


def scan() -> Any:
    return oc.scan(oc.nn.gru_cell(width=3), 0.0, _x(3, batch=[4, 2]))[0]


def scan_while() -> Any:
    x, w = _x(2, batch=[3]), oc.param("w", output=[2], input=[2])

    def step(c: Any, _: None) -> Any:
        return c * 1.5 + w @ c, c

    return oc.scan_while(lambda c: oc.sum(c * c, axis=-1) < 50, step, x, length=6)


def embedding() -> Any:
    ids = _x(3, name="ids", dtype="int64")
    return oc.nn.embedding(ids, entries=7, width=4), oc.one_hot(ids, 5)


def movement() -> Any:
    x = _x(4, 6)
    return (
        oc.reshape(x, (3, 8)),
        oc.permute(x, (1, 0)),
        oc.flip(x, axis=0),
        oc.roll(x, 1, axis=0),
        oc.tile(x, (2, 1)),
        oc.repeat(x, 2, axis=1),
        oc.pad(x, ((1, 1), (0, 2))),
        oc.concat([x, x * 2], axis=0),
        oc.stack([x, x]),
        oc.broadcast_to(oc.expand_dims(x, 0), (3, 4, 6)),
        x[1:3, ::2],
        x[-1],
        oc.tril(x),
        oc.einsum("ii => i", oc.einsum("ij; kj => ik", x, x)),
    )


def reductions() -> Any:
    x = _x(4, 6)
    return (
        oc.sum(x),
        oc.mean(x, axis=0),
        oc.prod(x, axis=1),
        oc.max(x, axis=1),
        oc.min(x),
        oc.var(x, axis=1),
        oc.any(x > 0, axis=1),
        oc.all(x > -2, axis=0),
        oc.argmax(x, axis=1),
        oc.softmax(x),
        oc.log_softmax(x),
    )


def orders() -> Any:
    x = _x(4, 6)
    return (
        oc.sort(x, axis=1),
        oc.argsort(x, axis=0, descending=True),
        *oc.topk(x, 2),
        oc.searchsorted(oc.sort(x[0]), x),
        oc.cumsum(x, axis=1),
        oc.cumprod(x, axis=0),
        oc.cummax(x, axis=1),
        oc.cummin(x, axis=0),
        oc.take(x, _x(3, name="at", dtype="int32") % 4, axis=0),
    )


MODELS: dict[Callable[[], Any], bool] = {
    perceptron: True,
    lenet: False,
    residual_block: False,
    convolutions: False,
    pools: True,
    norms: False,
    encoder: False,
    decoder: False,
    gpt2: False,
    llama: False,
    lstm: True,
    lengths: True,
    scan: True,
    scan_while: True,
    embedding: True,
    movement: True,
    reductions: True,
    orders: True,
}
"""Models, and True for those that have the same bits when they are read back. Convolutions are
summed in another order, and `1 / sqrt(x)`, which norms contain, is rounded twice.
"""
LONGEST = (lenet, llama, gpt2, lstm)


@pytest.mark.parametrize(
    "make",
    [*(each for each in MODELS if each not in LONGEST), *slow(LONGEST)],
    ids=lambda make: make.__name__,
)
def test_a_saved_model_has_the_same_results(make: Callable[[], Any], tmp_path: Path) -> None:
    with oc.Session(seed=1), oc.evaluation():
        found = saved(tmp_path / "model.onnx", make())
    found.check()
    again = found.read_back()
    for result, other, here in zip(found.elsewhere(), again, found.results, strict=True):
        assert result.shape == here.shape
        assert np.allclose(result, here, rtol=1e-5, atol=1e-5)
        if MODELS[make]:
            assert np.array_equal(other, here)
        assert np.allclose(other, here, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "dtype", ["float32", "int32", *slow(["float64", "int8", "uint8", "bfloat16"])]
)
@pytest.mark.parametrize("name", POINTWISE)
def test_every_pointwise_operation_has_a_counterpart(name: str, dtype: str, tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    with oc.Session():
        inputs: list[Any] = []
        result: Any = None
        for _ in range(3):
            inputs.append(_x(60, name=f"x{len(inputs)}", dtype=dtype))
            try:
                result = getattr(oc, name)(*inputs)
                break
            except oc.OcannlError:
                continue
        assert result is not None
        cells = {each: random_cells(random, each) for each in inputs}
        if name in ("asin", "acos"):
            cells = {each: np.clip(value, -1, 1) for each, value in cells.items()}
        (here,), ctx = computed([result], cells)
        ocannl_onnx.save(tmp_path / "model.onnx", {"y": result}, inputs, ctx)
    onnx.checker.check_model(str(tmp_path / "model.onnx"), full_check=True)
    given = {each.node.name: value for each, value in cells.items()}
    lacks_implementations = dtype in ("float64", "bfloat16")
    run = run_reference if lacks_implementations else run_elsewhere
    (there,) = run(tmp_path / "model.onnx", given)
    wide = [np.asarray(each).astype(np.float64) for each in (here, there)]
    limit = 1e-2 if dtype == "bfloat16" else 1e-5
    assert np.allclose(*wide, rtol=limit, atol=limit, equal_nan=True)


@pytest.mark.parametrize("opset", [18, *slow([20, 21, 23]), 25])
def test_operator_sets(opset: int, tmp_path: Path) -> None:
    if opset > onnx.defs.onnx_opset_version():
        pytest.skip("the package onnx is older")
    with oc.Session(), oc.evaluation():
        found = saved(tmp_path / "model.onnx", (gpt2(), *orders()), opset=opset)
    found.check()
    assert found.proto.opset_import[0].version == opset
    for result, here in zip(found.elsewhere(), found.results, strict=True):
        assert np.allclose(result, here, atol=1e-5)


def test_versions_beyond_the_supported_ones_are_refused(tmp_path: Path) -> None:
    with oc.Session():
        with pytest.raises(ocannl_onnx.OnnxError, match="operator sets 18 to"):
            ocannl_onnx.save(tmp_path / "m.onnx", oc.relu(_x(3)), opset=17)
        with pytest.raises(ocannl_onnx.OnnxError, match="the first with functions"):
            ocannl_onnx.save(tmp_path / "m.onnx", oc.relu(_x(3)), ir_version=7)
    assert list(tmp_path.iterdir()) == []


def test_blocks_are_functions_that_equal_blocks_share(tmp_path: Path) -> None:
    with oc.Session(), oc.evaluation():
        found = saved(tmp_path / "model.onnx", perceptron())
    proto = found.proto
    functions = {each.name: each for each in proto.functions}
    assert set(functions) == {"dense", "mlp"}
    assert [each.op_type for each in proto.graph.node] == ["mlp"]
    assert [each.op_type for each in functions["mlp"].node].count("dense") == 3
    assert {each.name for each in proto.graph.initializer} == {
        f"mlp.{block}.{name}"
        for block in ("hidden1", "hidden2", "output")
        for name in ("weight", "bias")
    } or len(proto.graph.initializer) == 6


def test_layers_in_a_loop_are_one_function(tmp_path: Path) -> None:
    with oc.Session(), oc.evaluation():
        found = saved(tmp_path / "model.onnx", encoder())
    functions = {each.name: each for each in found.proto.functions}
    assert {"transformer_encoder", "transformer_layer", "multi_head_attention"} <= set(functions)
    (loop,) = (n for n in functions["transformer_encoder"].node if n.op_type == "Scan")
    (body,) = (each.g for each in loop.attribute if each.name == "body")
    assert "transformer_layer" in [each.op_type for each in body.node]


def test_extents_are_named_dimensions(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    path = tmp_path / "model.onnx"
    with oc.Session(), oc.evaluation():
        batch, time = oc.static_extent("batch", max=4), oc.static_extent("time", max=8)
        ids = _x(name="ids", batch=[batch, time], dtype="int32")
        images = _x(6, 6, 2, name="images", batch=[batch])
        scores = oc.nn.gpt(vocabulary=11, layers=2, heads=2, width=4, length=8)(ids)
        features = oc.nn.max_pool(oc.nn.conv(images, channels=3, kernel=3), window=2)
        means = oc.mean(images, axis=0)
        results = [scores, features, means]
        ctx = oc.Context("interp")
        for each in results:
            ctx.init_params(each)
        ocannl_onnx.save(
            path, dict(zip(("scores", "features", "means"), results, strict=True)), None, ctx
        )
        onnx.checker.check_model(str(path), full_check=True)
        routine = ctx.compile(
            oc.train.forward(scores) + oc.train.forward(features) + oc.train.forward(means),
            keep=results,
        )
        for rows, steps in ((4, 8), (1, 3), (3, 1)):
            cells = {
                "ids": random.integers(0, 11, (rows, steps)).astype(np.int32),
                "images": random.normal(size=(rows, 6, 6, 2)).astype(np.float32),
            }
            ctx[ids], ctx[images] = cells["ids"], cells["images"]
            routine(batch=rows, time=steps)
            for there, tensor in zip(run_elsewhere(path, cells), results, strict=True):
                here = np.asarray(ctx[tensor])
                assert there.shape == here.shape
                assert np.allclose(there, here, atol=1e-5)
    (output, *_) = onnx.load(path).graph.output
    dims = [d.dim_param or d.dim_value for d in output.type.tensor_type.shape.dim]
    assert dims == ["batch", "time", 11]


def test_loops_over_time_have_extents_and_static_indices(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with oc.Session():
        batch, row = oc.static_extent("batch", max=7), oc.static_index("row", range=3)
        x, table = _x(5, batch=[4, batch]), _x(3, 2, name="table")
        outputs, _ = oc.nn.lstm(x, width=3)
        _, sums = oc.scan(lambda c, v: (c + v * oc.sum(table[row]), None), 0.0, x)
        ctx = oc.Context("interp")
        ctx.init_params(outputs)
        ocannl_onnx.save(path, {"outputs": outputs, "sums": sums}, [x, table], ctx)
        onnx.checker.check_model(str(path), full_check=True)
        code = oc.train.forward(outputs) + oc.train.forward(sums)
        routine = ctx.compile(code, keep=[outputs, sums], bindings=[row])
        random = np.random.default_rng(4)
        for rows in (3, 7):
            cells = [random.normal(size=n).astype(np.float32) for n in ((4, rows, 5), (3, 2))]
            ctx[x], ctx[table] = cells
            routine(batch=rows, row=2)
            given = dict(zip(("x", "table"), cells, strict=True))
            found = run_elsewhere(path, given | {"row": np.array(2)})
            for there, tensor in zip(found, (outputs, sums), strict=True):
                assert there.shape == ctx[tensor].shape
                assert np.allclose(there, ctx[tensor], atol=1e-5)


def _recurrent(batch: oc.StaticExtent) -> Any:
    x = _x(5, batch=[4, batch])
    return [x], oc.nn.lstm(x, width=3)[0]


def _means_of_steps(batch: oc.StaticExtent) -> Any:
    x = _x(5, batch=[4, batch])

    def step(h: oc.Tensor, row: oc.Tensor) -> Any:
        h = oc.sigmoid(h + row)
        return h, oc.mean(h, axis=0)

    return [x], oc.scan(step, oc.zeros_like(x[0]), x)[0]


def _centered(batch: oc.StaticExtent) -> Any:
    x = _x(5, batch=[batch])
    return [x], oc.sigmoid(x - oc.mean(x, axis=0))


@pytest.mark.parametrize("build", [_recurrent, _means_of_steps, _centered])
def test_programs_over_extents_are_loaded_again(tmp_path: Path, build: Any) -> None:
    path = tmp_path / "model.onnx"
    with oc.Session():
        inputs, y = build(oc.static_extent("batch", max=7))
        ctx = oc.Context("interp")
        ctx.init_params(y)
        ocannl_onnx.save(path, {"y": y}, inputs, ctx)
        operators = [each.op_type for each in onnx.load(path).graph.node]
        assert "Slice" not in operators
        loaded = ocannl_onnx.load(path, extents={"batch": oc.static_extent("batch", max=8)})
        (port,) = loaded.placeholders().values()
        again = loaded(port)
        ctx.init_params(again)
        first, second = (ctx.compile(oc.train.forward(each), keep=[each]) for each in (y, again))
        for rows in (3, 7):
            sizes = [4, rows, 5] if build is not _centered else [rows, 5]
            cells = np.random.default_rng(rows).normal(size=sizes).astype(np.float32)
            ctx[inputs[0]] = ctx[port] = cells
            first(batch=rows)
            second(batch=rows)
            assert np.allclose(ctx[again], ctx[y], atol=1e-6)


def test_a_cache_is_an_input_and_an_output(tmp_path: Path) -> None:
    path = tmp_path / "decode.onnx"
    with oc.Session(seed=3):
        model = oc.nn.gpt(vocabulary=20, layers=2, heads=2, width=4, length=8)
        cache = oc.nn.key_value_cache(layers=2, length=8, heads=2, width=4, batch=1)
        token = _x(name="token", batch=[1, 1], dtype="int32")
        place = oc.static_index("place", range=8)
        scores = oc.declare("scores")

        @oc.cd
        def decode() -> None:
            scores[:] = model(token, cache, place)

        ctx = oc.Context("interp")
        with oc.evaluation():
            code = decode()
        ctx.init_params(code)
        ocannl_onnx.save(
            path,
            {"scores": scores, "keys_after": cache.keys, "values_after": cache.values},
            {"token": token, "keys": cache.keys, "values": cache.values},
            ctx,
            code=code,
        )
        onnx.checker.check_model(str(path), full_check=True)
        routine = ctx.compile(code, bindings=[place])
        keys = values = np.zeros((2, 1, 8, 2, 4), np.float32)
        for at, each in enumerate([2, 5, 5, 19]):
            ctx[token] = [[each]]
            routine(place=at)
            given = {"token": np.array([[each]], np.int32), "keys": keys, "values": values}
            found, keys, values = run_elsewhere(path, {**given, "place": np.array(at, np.int64)})
            assert np.allclose(found, ctx[scores], atol=1e-5)
        assert np.allclose(keys, ctx[cache.keys], atol=1e-5)


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float64", "int8", "uint8", "int4", "uint4", "int64", "uint32"]
)
def test_weights_keep_their_format(dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    cells = np.arange(7) % 5
    with oc.Session():
        weights = oc.tensor(cells, dtype=dtype)
        result = oc.cast(weights, "float32") * _x(7)
        (here,), ctx = computed([result], {t: np.ones(7, np.float32) for t in result.operands[1:]})
        ocannl_onnx.save(path, {"y": result}, None, ctx)
    onnx.checker.check_model(str(path), full_check=True)
    (initializer,) = onnx.load(path).graph.initializer
    assert onnx.TensorProto.DataType.Name(initializer.data_type).lower() == {
        "float64": "double"
    }.get(dtype, dtype)
    (there,) = run_reference(path, {"x": np.ones(7, np.float32)})
    assert np.array_equal(there, here)


def test_weights_of_a_model_keep_their_names_in_its_file(tmp_path: Path) -> None:
    names = ["fc.weight", "onnx::Add_7", "scale/0", "y_"]
    cells = [np.eye(2), np.ones(2), np.array(3.0), np.ones((1, 2))]
    results = ["product", "sum", "scaled", "y"]
    nodes = [
        onnx.helper.make_node(kind, [before, name], [after])
        for kind, before, name, after in zip(
            ("MatMul", "Add", "Mul", "Add"), ["x", *results[:-1]], names, results, strict=True
        )
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "linear",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 2])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 2])],
        [
            onnx.numpy_helper.from_array(each.astype(np.float32), name)
            for each, name in zip(cells, names, strict=True)
        ],
    )
    opset = [onnx.helper.make_opsetid("", 21)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=10)
    path = tmp_path / "model.onnx"
    for _ in range(2):
        with oc.Session():
            x = _x(2, 2)
            y, again = (ocannl_onnx.load(model)(x) for _ in range(2))
            _, ctx = computed([y, again], {x: np.ones((2, 2), np.float32)})
            ocannl_onnx.save(path, {"y": y}, None, ctx)
            model = onnx.load(path)
            assert [each.name for each in model.graph.initializer] == names
            ocannl_onnx.save(path, {"y": y, "z": again}, None, ctx)
            both = {each.name for each in onnx.load(path).graph.initializer}
            assert both == {*names, *(f"{name}_1" for name in names)}
    onnx.checker.check_model(model, full_check=True)


def test_products_of_bytes_are_exact(tmp_path: Path) -> None:
    with oc.Session():
        a, b = _x(4, 8, name="a", dtype="int8"), _x(8, 5, name="b", dtype="int8")
        found = saved(tmp_path / "model.onnx", oc.einsum("ij; jk => ik", a, b, dtype="int32"))
    found.check()
    assert np.array_equal(found.elsewhere()[0], found.results[0])


def test_large_weights_are_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    for layers in ((50, 20), (50, 30)):
        with oc.Session(seed=layers[1]), oc.evaluation():
            result = oc.nn.mlp(_x(8, batch=[4]), hidden=layers, output=3)
            found = saved(path, result, weights="beside")
        found.check()
        assert np.allclose(found.elsewhere()[0], found.results[0], atol=1e-5)
        assert np.array_equal(found.read_back()[0], found.results[0])
        (data,) = (each for each in tmp_path.iterdir() if each != path)
        assert data.name.startswith("model.onnx.")
        assert data.suffix == ".data"
        assert data.stat().st_size >= 4 * (8 * 50 + layers[0] * layers[1])


def test_weights_beyond_the_limit_of_a_file_are_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ocannl_onnx.saving._MOST_INSIDE", 2000)
    with oc.Session(), oc.evaluation():
        result = oc.nn.mlp(_x(8, batch=[4]), hidden=(50,), output=3)
        found = saved(tmp_path / "model.onnx", result)
        with pytest.raises(ocannl_onnx.OnnxError, match="limited to 2 GiB"):
            saved(tmp_path / "other.onnx", result, weights="inside")
    found.check()
    assert len([*tmp_path.iterdir()]) == 2


def test_a_file_is_replaced_as_a_whole_or_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    with oc.Session(), oc.evaluation():
        saved(path, perceptron(), weights="beside")
        before = {each: each.read_bytes() for each in tmp_path.iterdir()}
        monkeypatch.setattr("os.fsync", _full)
        with pytest.raises(ocannl_onnx.OnnxError, match="no space"):
            saved(path, encoder(), weights="beside")
    assert {each: each.read_bytes() for each in tmp_path.iterdir()} == before
    with oc.Session(), pytest.raises(ocannl_onnx.OnnxError, match="a folder that exists"):
        ocannl_onnx.save(tmp_path / "none" / "model.onnx", oc.relu(_x(3)))


def _full(number: int) -> None:
    raise OSError("no space left on device")


class Doubled(oc.custom.Op):
    """A user-written operation without a counterpart."""

    spec = "... => ..."

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = 2 * inputs[0]


def test_operations_without_a_counterpart_are_refused_by_name_and_line(tmp_path: Path) -> None:
    with oc.Session():
        noise = oc.normal()
        with pytest.raises(ocannl_onnx.NoCounterpartError, match="random numbers") as refusal:
            ocannl_onnx.save(tmp_path / "m.onnx", _x(3) + noise)
        assert "oc.normal()" in str(refusal.value)
        assert "oc.evaluation()" in str(refusal.value)
        doubled = Doubled()(_x(3))
        with pytest.raises(ocannl_onnx.NoCounterpartError, match="has no counterpart") as refusal:
            ocannl_onnx.save(tmp_path / "m.onnx", doubled)
        assert "Doubled()(_x(3))" in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


def test_dropout_has_no_nodes_in_evaluation(tmp_path: Path) -> None:
    with oc.Session():
        x = _x(3)
        with oc.evaluation():
            found = saved(tmp_path / "m.onnx", oc.relu(oc.nn.dropout(x, rate=0.5)))
        assert [each.op_type for each in found.proto.graph.node] == ["Relu"]
        with pytest.raises(ocannl_onnx.NoCounterpartError, match="random numbers"):
            ocannl_onnx.save(tmp_path / "m.onnx", oc.nn.dropout(x, rate=0.5), None, oc.Context())


def test_tensors_without_values_and_unused_inputs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with oc.Session():
        x, other = _x(3), _x(3, name="other")
        y = oc.param("w", output=[3]) * x
        with pytest.raises(ocannl_onnx.OnnxError, match="none for parameter w"):
            ocannl_onnx.save(path, y, [x])
        with pytest.raises(ocannl_onnx.OnnxError, match="other, which nothing reads"):
            ocannl_onnx.save(path, oc.relu(x), [x, other])
        with pytest.raises(ocannl_onnx.OnnxError, match="Names in a model are unique"):
            ocannl_onnx.save(path, {"x": oc.relu(x)}, [x])
        with pytest.raises(ocannl_onnx.OnnxError, match="A model has outputs"):
            ocannl_onnx.save(path, [])


def test_a_literal_that_the_host_has_overwritten_is_saved_with_its_cells(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with oc.Session():
        x, c = _x(3), oc.tensor([1.0, 2.0, 3.0])
        y = x + c
        ctx = oc.Context("interp")
        ctx.compile(oc.train.forward(y))
        ctx[c] = [5, 6, 7]
        ocannl_onnx.save(path, {"y": y, "same": y, "x_too": x, "c_too": c}, [x], ctx)
    found = run_elsewhere(path, {"x": np.ones(3, np.float32)})
    assert [each.tolist() for each in found] == [[6, 7, 8], [6, 7, 8], [1, 1, 1], [5, 6, 7]]


def test_saving_leaves_the_program_as_it_was(tmp_path: Path) -> None:
    """Code compiled later computes the tensors itself."""
    with oc.Session():
        x = _x(3)
        y = oc.relu(x)
        ocannl_onnx.save(tmp_path / "m.onnx", y)
        out = oc.declare("out")

        @oc.cd
        def code() -> None:
            out[:] = y + 1

        ctx = oc.Context("interp")
        routine = ctx.compile(code())
        ctx[x] = [1, -2, 3]
        routine()
        assert ctx[out].tolist() == [2, 1, 4]


def test_scatters_and_bits_have_counterparts(tmp_path: Path) -> None:
    with oc.Session():
        x, ids = _x(6), oc.tensor(np.array([0, 2, 2, 0, 1, 2], np.int64))
        results = (
            *(
                oc.scatter(ids, x, size=4, combine=each)
                for each in (oc.add, oc.multiply, oc.maximum, oc.minimum)
            ),
            oc.bitcast(x, "int32"),
            oc.bitcast(oc.bitcast(oc.cast(x, "bfloat16"), "uint16"), "float16"),
        )
        model = saved(tmp_path / "m.onnx", results, opset=26)
        model.check()
        for found, expected in zip(model.read_back(), model.results, strict=True):
            assert found.tolist() == expected.tolist()
        with pytest.raises(ocannl_onnx.NoCounterpartError, match="needs opset=26"):
            ocannl_onnx.save(tmp_path / "old.onnx", results[-1], [x], opset=25)
