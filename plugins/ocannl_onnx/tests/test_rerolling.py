"""Repeated layers of a graph, loaded as one loop: the same numbers, from one compiled layer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ocannl_core as oc

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
from onnx import helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import ocannl_onnx  # noqa: E402
from plugins.ocannl_onnx.tests.models import Array, model  # noqa: E402

WIDTH = 3


def residual_layers(count: int, *, mask: bool = False) -> onnx.ModelProto:
    """Return layers `x + relu(x @ w + b) * scale`, with a constant of its own name in each."""
    random = np.random.default_rng(1)
    nodes, weights, x = [], {}, "x"
    if mask:
        nodes.append(helper.make_node("Sigmoid", ["x"], ["mask"]))
    for k in range(count):
        layer = f"layers.{k}"
        weights[f"{layer}.w"] = random.standard_normal((WIDTH, WIDTH)).astype(np.float32)
        weights[f"{layer}.b"] = random.standard_normal(WIDTH).astype(np.float32)
        weights[f"{layer}.scale"] = np.array(0.5, np.float32)
        steps = [
            ("MatMul", [x, f"{layer}.w"], "product"),
            ("Add", [f"{layer}.product", f"{layer}.b"], "sum"),
            ("Relu", [f"{layer}.sum"], "positive"),
            ("Mul", [f"{layer}.positive", "mask" if mask else f"{layer}.scale"], "scaled"),
            ("Add", [x, f"{layer}.scaled"], "y"),
        ]
        nodes += [
            helper.make_node(op, inputs, [f"{layer}.{name}"], name=f"/{layer}/{op}{at}")
            for at, (op, inputs, name) in enumerate(steps)
        ]
        x = f"{layer}.y"
    return model(nodes, {"x": [2, WIDTH]}, {x: [2, WIDTH]}, weights)


def cells(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def outputs_of(
    proto: onnx.ModelProto, x: Array, *, reroll: bool, backend: str = "interp"
) -> tuple[list[Any], ocannl_onnx.Model]:
    """Return the outputs of a model of one input."""
    with oc.Session():
        loaded = ocannl_onnx.load(proto, reroll=reroll)
        given = oc.placeholder("given", output=list(x.shape))
        found = loaded(given)
        outputs = list(found) if isinstance(found, tuple) else [found]
        context = oc.Context(backend)
        code = oc.train.forward(outputs[0])
        for each in outputs[1:]:
            code = code + oc.train.forward(each)
        for each in outputs:
            context.init_params(each)
        context[given] = x
        context.compile(code, keep=outputs)()
        return [context[each] for each in outputs], loaded


def check(proto: onnx.ModelProto, x: Array, **options: Any) -> ocannl_onnx.Model:
    """Check that a rerolled model gives the numbers of the unrolled one, and return it."""
    unrolled, _ = outputs_of(proto, x, reroll=False, **options)
    rolled, loaded = outputs_of(proto, x, reroll=True, **options)
    for one, other in zip(unrolled, rolled, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    expected = ReferenceEvaluator(proto).run(None, {"x": x})
    for one, other in zip(expected, rolled, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    return loaded


@pytest.mark.parametrize("backend", ["interp", "cpu_c"])
@pytest.mark.parametrize("mask", [False, True])
def test_layers_are_one_loop_over_stacked_weights(backend: str, mask: bool) -> None:
    loaded = check(residual_layers(4, mask=mask), cells(2, WIDTH), backend=backend)
    (loop,) = [each for each in loaded.proto.graph.node if each.op_type == "Scan"]
    assert len(loaded.proto.graph.node) == 1 + mask
    (body,) = [each.g for each in loop.attribute if each.name == "body"]
    assert [each.name for each in body.node] == [
        "/layers.*/MatMul0", "/layers.*/Add1", "/layers.*/Relu2", "/layers.*/Mul3", "/layers.*/Add4"
    ]  # fmt: skip
    shapes = {name: tuple(each.shape.dims) for name, each in loaded.parameters.items()}
    assert shapes == {"layers.*.w": (4, WIDTH, WIDTH), "layers.*.b": (4, WIDTH)}


def test_inputs_with_values_in_the_file_keep_them() -> None:
    proto = residual_layers(6)
    names = [each.name for each in proto.graph.initializer]
    for each in proto.graph.initializer:
        proto.graph.input.append(
            helper.make_tensor_value_info(each.name, each.data_type, each.dims)
        )
    loaded = ocannl_onnx.load(proto, reroll=True)
    assert not loaded.defaults
    with oc.Session():
        for name in names:
            with pytest.raises(ocannl_onnx.OnnxError, match="by their names"):
                loaded(**{name: 1.0})


def test_the_rewritten_graph_is_one_that_others_run() -> None:
    proto, x = residual_layers(4, mask=True), cells(2, WIDTH)
    loaded = ocannl_onnx.load(proto, reroll=True)
    rewritten = onnx.load_from_string(loaded.serialized())
    (expected,) = ReferenceEvaluator(proto).run(None, {"x": x})
    (found,) = ReferenceEvaluator(rewritten).run(None, {"x": x})
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_gradients_of_stacked_weights_are_those_of_all_layers() -> None:
    found = []
    for reroll in (False, True):
        with oc.Session():
            loaded = ocannl_onnx.load(residual_layers(4), trainable=True, reroll=reroll)
            x = oc.tensor(cells(2, WIDTH))
            loss = oc.mean(loaded(x) ** 2.0)
            context = oc.Context("interp")
            routine = context.compile(oc.train.grad_update(loss))
            context.init_params(loss)
            routine()
            found.append({name: context[p.grad] for name, p in loaded.parameters.items()})
    for part in ("w", "b"):
        unrolled = [found[0][f"layers.{k}.{part}"] for k in range(4)]
        np.testing.assert_allclose(found[1][f"layers.*.{part}"], np.stack(unrolled), rtol=1e-5)


def test_values_that_are_read_after_the_loop_are_kept_for_all_layers() -> None:
    proto = residual_layers(4)
    for name in ("layers.0.y", "layers.2.y", "layers.1.positive", "layers.3.positive"):
        port = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, WIDTH])
        proto.graph.output.append(port)
    assert any(e.op_type == "Scan" for e in check(proto, cells(2, WIDTH)).proto.graph.node)


def test_weights_that_layers_share_by_copies_are_read_by_all() -> None:
    proto, copies = residual_layers(4), []
    for k in range(1, 4):
        copies.append(helper.make_node("Identity", ["layers.0.b"], [f"layers.{k}.b"]))
    kept = [each for each in proto.graph.initializer if not each.name.endswith(".b")]
    kept += [each for each in proto.graph.initializer if each.name == "layers.0.b"]
    nodes = [*copies, *proto.graph.node]
    del proto.graph.initializer[:], proto.graph.node[:]
    proto.graph.initializer.extend(kept)
    proto.graph.node.extend(nodes)
    loaded = check(proto, cells(2, WIDTH))
    assert list(loaded.parameters) == ["layers.0.b", "layers.*.w"]
    assert len(loaded.proto.graph.node) == 1


def with_factors(factors: Sequence[int]) -> onnx.ModelProto:
    """Return layers that also multiply by the weights of given layers."""
    proto = residual_layers(len(factors))
    nodes = []
    for node in proto.graph.node:
        if node.op_type == "MatMul":
            layer = len(nodes) // 6
            called = f"layers.{factors[layer]}.w"
            nodes.append(helper.make_node("MatMul", [node.input[0], called], [f"factor.{layer}"]))
            node.input[0] = f"factor.{layer}"
        nodes.append(node)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto


@pytest.mark.parametrize("factors", [(0, 0, 0, 0), (0, 1, 1, 0), (3, 2, 1, 0)])
def test_layers_may_read_the_weights_of_others(factors: tuple[int, ...]) -> None:
    loaded = check(with_factors(factors), cells(2, WIDTH))
    assert "layers.*.w" in loaded.parameters


def test_a_trainable_weight_of_several_layers_stays_one_parameter() -> None:
    with pytest.raises(ocannl_onnx.OnnxError, match="leave reroll=True out"):
        ocannl_onnx.load(with_factors((3, 2, 1, 0)), reroll=True, trainable=True)
    loaded = ocannl_onnx.load(with_factors((0, 0, 0, 0)), reroll=True, trainable=True)
    assert loaded.weights.keys() >= {"layers.0.w", "layers.*.w"}  # the first layer, and the others


def test_copies_of_constants_are_kept_with_the_constants() -> None:
    proto = residual_layers(4)
    cells_of = onnx.numpy_helper.from_array(cells(2))
    proto.graph.node.extend(
        [
            helper.make_node("Constant", [], ["constant"], value=cells_of),
            helper.make_node("Identity", ["constant"], ["copy"]),
            helper.make_node("Identity", ["layers.0.w"], ["copy_of_weight"]),
        ]
    )
    for name, sizes in (("copy", [2]), ("copy_of_weight", [WIDTH, WIDTH])):
        port = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, sizes)
        proto.graph.output.append(port)
    check(proto, cells(2, WIDTH))


def test_the_first_layer_may_read_a_weight_as_its_state() -> None:
    proto = residual_layers(4, mask=True)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(cells(2, WIDTH), "start"))
    for node in proto.graph.node[1:]:
        node.input[:] = ["start" if name == "x" else name for name in node.input]
    check(proto, cells(2, WIDTH))


def test_inputs_and_outputs_of_all_layers_are_entries_of_the_loop() -> None:
    nodes, ports, x = [], {"x": [2, WIDTH]}, "x"
    weights = {"axis": np.array([0], np.int64)}
    results = {}
    for k in range(4):
        ports[f"past.{k}"], results[f"present.{k}"] = [5, WIDTH], [7, WIDTH]
        nodes += [
            helper.make_node("Concat", [f"past.{k}", x], [f"present.{k}"], axis=0),
            helper.make_node("ReduceMean", [f"present.{k}", "axis"], [f"mean.{k}"]),
            helper.make_node("Add", [x, f"mean.{k}"], [f"sum.{k}"]),
            helper.make_node("Tanh", [f"sum.{k}"], [f"y.{k}"]),
        ]
        x = f"y.{k}"
    proto = model(nodes, ports, {x: [2, WIDTH], **results}, weights)
    values = {name: cells(*shape) * (k + 1) for k, (name, shape) in enumerate(ports.items())}
    with oc.Session():
        loaded = ocannl_onnx.load(proto, reroll=True)
        given = loaded.placeholders()
        outputs = loaded(**given)
        context = oc.Context("interp")
        routine = context.compile(
            sum(map(oc.train.forward, outputs[1:]), oc.train.forward(outputs[0]))
        )
        for name, placeholder in given.items():
            context[placeholder] = values[name]
        routine()
        found = [context[each] for each in outputs]
    assert any(each.op_type == "Scan" for each in loaded.proto.graph.node)
    for one, other in zip(found, ReferenceEvaluator(proto).run(None, values), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def without_repetition() -> onnx.ModelProto:
    return residual_layers(2)


def other_flow() -> onnx.ModelProto:
    """Return layers of which the later ones read a value of the second one."""
    proto = residual_layers(6)
    for node in proto.graph.node[15:]:
        node.input[:] = ["layers.1.sum" if name.endswith(".scale") else name for name in node.input]
    return proto


def old() -> onnx.ModelProto:
    proto = residual_layers(4)
    proto.opset_import[0].version = 8
    return proto


def drawing() -> onnx.ModelProto:
    nodes = [
        helper.make_node("RandomNormalLike", [f"x{k}" if k else "x"], [f"x{k + 1}"], seed=1.0)
        for k in range(12)
    ]
    return model(nodes, {"x": [2]}, {"x12": [2]})


def drawing_functions() -> onnx.ModelProto:
    """Return layers that call a function, which calls another one, which draws numbers."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    draw = helper.make_node("RandomNormalLike", ["x"], ["y"])
    call = helper.make_node("Noise", ["x"], ["y"], domain="own")
    nodes = [
        helper.make_node("Layer", [f"x{k}" if k else "x"], [f"x{k + 1}"], domain="own")
        for k in range(12)
    ]
    proto = model(nodes, {"x": [2]}, {"x12": [2]})
    proto.opset_import.append(opsets[1])
    for name, node in (("Layer", call), ("Noise", draw)):
        proto.functions.append(helper.make_function("own", name, ["x"], ["y"], [node], opsets))
    return proto


@pytest.mark.parametrize("make", [without_repetition, old, drawing, drawing_functions])
def test_a_graph_without_repeated_layers_is_refused(make: Any) -> None:
    with pytest.raises(ocannl_onnx.OnnxError, match="leave reroll=True out"):
        ocannl_onnx.load(make(), reroll=True)


def test_layers_with_another_flow_of_values_are_another_loop() -> None:
    loaded = check(other_flow(), cells(2, WIDTH))
    assert [each.op_type for each in loaded.proto.graph.node].count("Scan") == 2


@dataclass(frozen=True)
class Template:
    """A layer of a random graph.

    Attributes:
        steps: For each node the operator and its operands: numbers of earlier nodes, or of values
            from outside: -1 and -2 are the results of the layer before, -3 the input of the graph.
        weighted: The nodes whose second operand is a weight.
        after: The nodes that the next layer reads.
    """

    steps: tuple[tuple[str, int, int], ...]
    weighted: frozenset[int]
    after: tuple[int, int]


@st.composite
def templates(draw: st.DrawFn) -> Template:
    number = draw(st.integers(2, 5))
    steps = []
    for at in range(number):
        operand = st.integers(-3, at - 1)
        steps.append((draw(st.sampled_from(["Add", "Mul", "Max"])), draw(operand), draw(operand)))
    weighted = draw(st.frozensets(st.integers(0, number - 1)))
    node = st.integers(0, number - 1)
    return Template(tuple(steps), weighted, (draw(node), draw(node)))


def unrolled(template: Template, count: int, read: Sequence[tuple[int, int]]) -> onnx.ModelProto:
    """Return a graph of equal layers, some values of which are outputs."""
    nodes, weights = [helper.make_node("Neg", ["x"], ["start"])], {}
    before = ("x", "start")
    random = np.random.default_rng(2)
    for k in range(count):
        names = [f"n{at}.{k}" for at in range(len(template.steps))]
        called = {-1: before[0], -2: before[1], -3: "x"} | dict(enumerate(names))
        for at, (op, left, right) in enumerate(template.steps):
            second = called[right]
            if at in template.weighted:
                second = f"w{at}.{k}"
                weights[second] = random.uniform(-1, 1, 2).astype(np.float32)
            nodes.append(helper.make_node(op, [called[left], second], [names[at]]))
        before = names[template.after[0]], names[template.after[1]]
    outputs = dict.fromkeys([before[0], *(f"n{at % len(template.steps)}.{k}" for at, k in read)])
    return model(nodes, {"x": [2]}, {name: [2] for name in outputs}, weights)


@settings(max_examples=20)
@given(
    templates(),
    st.integers(3, 6),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), max_size=2),
)
def test_random_layers_give_the_same_numbers(
    template: Template, count: int, read: list[tuple[int, int]]
) -> None:
    proto, x = unrolled(template, count, read), cells(2)
    found, _ = outputs_of(proto, x, reroll=False)
    with suppress(ocannl_onnx.OnnxError):  # layers that exchange other values are no loop
        rolled, _ = outputs_of(proto, x, reroll=True)
        for one, other in zip(found, rolled, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
