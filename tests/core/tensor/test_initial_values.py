"""Parameters: names, initial values, and shapes inferred from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

CUBE = np.arange(24.0).reshape(2, 3, 4)


@pytest.mark.parametrize("name", ["", 3, None, "a b", "mlp.w", "1st"])
@pytest.mark.parametrize("make", [oc.param, oc.placeholder, oc.declare])
def test_a_name_is_an_identifier(make: Any, name: object) -> None:
    with pytest.raises(oc.UsageError, match="is an identifier") as caught:
        make(name)
    assert caught.value.found == repr(name)
    assert "test_initial_values.py" in caught.value.where


def test_a_parameter_has_cells() -> None:
    with pytest.raises(oc.UsageError, match=r"output=\[2, 0\] for w"):
        oc.param("w", output=[2, 0])


def test_sizes_come_in_a_list_or_as_the_only_one() -> None:
    assert oc.param("w", output=3, input=[2]).shape == oc.param("v", output=[3], input=2).shape
    assert str(oc.placeholder("x", batch=2, output=4).shape) == "2|4"
    assert str(oc.declare("c", batch=(), input=(), output=4).shape) == "4"
    with pytest.raises(oc.UsageError, match=r"output='3' for w"):
        oc.param("w", output="3")


@pytest.mark.parametrize(
    ("stated", "shape"),
    [
        ({}, "2,3,4"),
        ({"input": [4]}, "4->2,3"),
        ({"input": [3, ...]}, "3,4->2"),
        ({"input": [..., 4], "output": [2]}, "3,4->2"),
        ({"input": [...], "output": [2]}, "3,4->2"),
        ({"input": [...], "output": [2, 3, 4]}, "2,3,4"),
        ({"output": [2, ...]}, "2,3,4"),
        ({"output": [oc.Size(2, "p"), ...]}, "2:p,3,4"),
    ],
)
def test_stated_sizes_determine_the_input_axes_of_an_array(
    stated: dict[str, Any], shape: str
) -> None:
    assert str(oc.param("w", init=CUBE, **stated).shape) == shape


def test_an_open_number_of_input_axes_is_an_error() -> None:
    with pytest.raises(oc.UsageError, match=r"the last 0 or 1 or 2 or 3 of an array") as caught:
        oc.param("w", init=CUBE, input=[...])
    assert "input_axes" in caught.value.fix


@pytest.mark.parametrize("stated", [{"input": [3, 4, 2]}, {"input": [3]}, {"output": [2, 3]}])
def test_stated_sizes_agree_with_the_array(stated: dict[str, Any]) -> None:
    with pytest.raises(oc.UsageError, match="must agree"):
        oc.param("w", init=CUBE, **stated)


def test_the_error_states_the_input_axes_that_are_left() -> None:
    with pytest.raises(oc.UsageError, match="must agree") as caught:
        oc.param("w", init=CUBE, output=[2, 3])
    assert caught.value.fix == "state the input axes, too: input=[4]"
    assert str(oc.param("w", init=CUBE, output=[2, 3], input=[4]).shape) == "4->2,3"


def test_a_parameter_has_no_batch_axes() -> None:
    with pytest.raises(oc.UsageError, match="no batch axes"):
        oc.param("w", init=oc.batch(1, 2))


def test_a_parameter_of_repeated_layers_starts_as_an_array_of_all_layers() -> None:
    cells = np.arange(12, dtype=np.float32).reshape(3, 2, 2)

    def layer(x: oc.Tensor) -> oc.Tensor:
        return oc.param("w", init=oc.tensor(cells, batch_axes=1, input_axes=1)) @ x

    x = oc.tensor(np.ones(2, np.float32))
    y = oc.nn.repeat_layers(layer, x, layers=3)
    context = oc.Context("interp")
    context.init_params(y)
    context.compile(oc.train.forward(y))()
    np.testing.assert_array_equal(context[y], cells[2] @ cells[1] @ cells[0] @ np.ones(2))
    with pytest.raises(oc.UsageError, match="has the layers as its batch axis"):
        oc.nn.repeat_layers(layer, x, layers=4)


def test_a_number_fills_any_shape_and_a_number_in_brackets_is_an_axis() -> None:
    a, b = oc.param("a", init=-4), oc.param("b", init=[-4])
    x = oc.tensor(np.zeros((2, 3)))
    assert (a + x).info.dims == (2, 3)
    assert str(a.shape) == "2,3"
    assert str(b.shape) == "1"


@pytest.mark.parametrize("count", [4, 40])
def test_cells_of_no_fixed_shape_give_the_size_that_is_not_stated(count: int) -> None:
    w = oc.param("w", init=oc.reshape(range(count)), input=[2])
    y = w @ oc.tensor([1, 1])
    assert y.info.dims == (count // 2,)
    assert str(w.shape) == f"2->{count // 2}"


def test_an_initializer_function_takes_nothing_or_the_shape() -> None:
    seen = []

    def initializer(shape: object) -> oc.Tensor:
        seen.append(str(shape))
        return oc.uniform()

    oc.param("w", init=initializer, output=[3], input=[2])
    assert seen == ["2->3"]
    assert str(oc.param("v", init=lambda: [1.0, 2.0]).shape) == "2"
    assert str(oc.param("u", init=lambda scale=2.0: scale * CUBE).shape) == "2,3,4"


@pytest.mark.parametrize("result", [None, len])
def test_an_initializer_function_returns_a_value(result: object) -> None:
    with pytest.raises(oc.UsageError, match="An initializer function returns"):
        oc.param("w", init=lambda: result)


def test_an_initializer_that_is_no_value_is_refused() -> None:
    with pytest.raises(oc.UsageError, match="'zeros'"):
        oc.param("w", init="zeros")


def test_a_shape_that_nothing_fixes_is_an_error_with_the_name_and_the_line() -> None:
    x = oc.placeholder("x", batch=[2], output=[3])
    hidden = oc.param("hidden")
    y = oc.param("out", output=[1]) @ oc.relu(hidden @ x)
    with pytest.raises(oc.ShapeError) as caught:
        _ = y.info
    assert "parameter hidden: its output axes" in caught.value.found
    assert 'hidden = oc.param("hidden")' in caught.value.where
    assert 'oc.param("hidden", output=[...])' in caught.value.fix


def test_a_parameter_in_an_initial_value_is_initialized_first_but_not_trained() -> None:
    start = oc.param("start", init=2.0, output=[3])
    w = oc.param("w", init=start * 2.0)
    loss = w * 1.0
    assert list(loss.params) == [w]
    assert loss.parameters() == (start, w)


@oc.op
def layer(x: oc.Tensor, *, hidden: int) -> oc.Tensor:
    return oc.relu(oc.param("w") @ x + oc.param("b", output=[hidden]))


@oc.op
def mlp(x: oc.Tensor, *, widths: list[int]) -> oc.Tensor:
    for width in widths:
        x = layer(x, hidden=width)
    return x


@pytest.fixture
def x() -> oc.Tensor:
    return oc.placeholder("x", batch=[5], output=[3])


def test_names_are_paths_of_blocks_oldest_parameter_first(x: oc.Tensor) -> None:
    y = mlp(widths=[4, 2])(x) * oc.param("scale", init=1.0)
    assert list(y.params.keys()) == [
        "mlp.layer.w",
        "mlp.layer.b",
        "mlp.layer2.w",
        "mlp.layer2.b",
        "scale",
    ]


def test_labels_replace_the_names_of_functions(x: oc.Tensor) -> None:
    y = mlp(widths=[4], label="body")(x) + layer(hidden=4, label="skip")(x)
    assert list(y.params.keys()) == ["body.layer.w", "body.layer.b", "skip.w", "skip.b"]


def test_names_that_would_be_the_same_are_numbered_block_by_block(x: oc.Tensor) -> None:
    y = mlp(widths=[4])(x) + mlp(widths=[4])(x) + oc.param("c") + oc.param("c")
    assert list(y.params.keys()) == [
        "mlp.layer.w",
        "mlp.layer.b",
        "mlp2.layer.w",
        "mlp2.layer.b",
        "c",
        "c2",
    ]


def test_a_model_built_again_has_the_same_names(x: oc.Tensor) -> None:
    def build() -> oc.Tensor:
        result: oc.Tensor = mlp(widths=[4, 4])(x)
        return result

    first, second = build(), build()
    assert first.params.keys() == second.params.keys()
    assert not first.params & second.params


def test_parameters_are_found_by_name_and_named(x: oc.Tensor) -> None:
    params = mlp(widths=[4])(x).params
    w = params["mlp.layer.w"]
    assert params.name_of(w) == "mlp.layer.w"
    assert "mlp.layer.w" in params
    assert w in params
    assert dict(params.items()) == {name: params[name] for name in params.keys()}  # noqa: SIM118
    with pytest.raises(oc.UsageError, match=r"the names are mlp\.layer\.w, mlp\.layer\.b"):
        params["layer.w"]
    with pytest.raises(oc.UsageError, match="one of"):
        params.name_of(x)


def test_code_has_the_parameters_that_it_mentions(x: oc.Tensor) -> None:
    loss = mlp(widths=[4])(x)
    assert oc.train.grad_update(loss).params == loss.params
    p = loss.params["mlp.layer.b"]
    assert list(oc.train.sgd_step(p, learning_rate=0.1).params) == [p]
    shift = oc.param("shift", output=[4])

    @oc.cd
    def code() -> None:
        p.assign(oc.exp(shift * 2.0))

    assert set(code().params) == {p, shift}


def test_training_needs_a_parameter_that_is_trained() -> None:
    frozen = oc.param("w", init=1.0, requires_grad=False)
    with pytest.raises(oc.UsageError, match="only on parameters made with requires_grad=False"):
        oc.train.grad_update(frozen * 2.0)


def test_operations_that_let_no_gradient_through_are_named() -> None:
    w = oc.param("w", init=1.0)
    rounded = oc.trunc(w)
    with pytest.raises(oc.UsageError) as caught:
        oc.train.grad_update(rounded * 2.0)
    assert "trunc" in caught.value.found
    assert "rounded = oc.trunc(w)" in caught.value.where


def test_a_warning_about_parameters_points_at_the_program(x: oc.Tensor) -> None:
    @oc.op
    def growing(x: oc.Tensor, more: bool = False) -> oc.Tensor:
        return x * oc.param("b", init=1.0) if more else x

    block = growing()
    block(x)
    with pytest.warns(UserWarning, match="'b' of growing") as caught:
        block(x, True)
    assert caught[0].filename == __file__


def test_a_parameter_of_integers_is_trained_only_with_requires_grad() -> None:
    counts = oc.param("counts", output=[2], init=1, dtype="int32")
    assert counts.grad is None
    assert (counts * 0.5).grad is None
    with pytest.raises(oc.UsageError, match="requires_grad=False"):
        oc.train.grad_update(counts * 0.5)


@pytest.mark.parametrize(("init", "dtype"), [(1.5, "int32"), (-1, "uint8"), (300, "uint8")])
def test_a_first_value_is_a_number_of_the_format(init: float, dtype: str) -> None:
    with pytest.raises(oc.TransferError) as caught:
        oc.param("counts", output=[2], init=init, dtype=dtype)
    assert "parameter counts" in caught.value.where


def test_sizes_may_be_integers_of_numpy() -> None:
    labels = np.array([0, 2, 1])
    w = oc.param("w", output=[labels.max() + 1], input=[np.int32(2)])
    assert str(w.shape) == "2->3"
