"""Blocks: creation and sharing of parameters."""

from __future__ import annotations

import functools
import inspect
import pydoc
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc


@oc.op
def layer(x: oc.Tensor, *, hidden: int) -> oc.Tensor:
    return oc.relu(oc.param("w") @ x + oc.param("b", output=[hidden]))


@oc.op
def perceptron(x: oc.Tensor, *, sizes: list[int]) -> oc.Tensor:
    for size in sizes:
        x = layer(x, hidden=size)
    return oc.param("out", output=[1]) @ x


@pytest.fixture
def x() -> oc.Tensor:
    return oc.placeholder("x", batch=[5], output=[3])


def test_applications_of_one_block_share_parameters(x: oc.Tensor) -> None:
    block = layer(hidden=4, label="L1")
    assert block(x).params == block(2.0 * x).params


def test_configuring_twice_makes_new_parameters(x: oc.Tensor) -> None:
    assert not layer(x, hidden=4).params & layer(x, hidden=4).params


def test_sub_blocks_in_a_loop_have_parameters_of_their_own_and_are_shared_by_applications(
    x: oc.Tensor,
) -> None:
    block = perceptron(sizes=[4, 4])
    first = block(x)
    assert len(first.params) == 5
    assert block(3.0 * x).params == first.params


def test_names_contain_the_function_the_block_and_the_argument(x: oc.Tensor) -> None:
    y = layer(hidden=4, label="L1")(x)
    assert y.node.name == "layer_L1_x"
    assert sorted(p.node.name for p in y.params) == ["b_L1", "w_L1"]


@pytest.mark.parametrize(
    ("argument", "name"),
    [
        (lambda x: oc.tensor([1.0, 2.0]), "layer"),
        (lambda x: oc.tensor([1.0, 2.0], label="data"), "layer_data"),
        (lambda x: 2.0 * x + 1.0, "layer_x"),
        (lambda x: oc.param("mixing", output=[3]) @ (x - 1.0), "layer_x"),
        (lambda x: oc.param("given"), "layer_given"),
        (lambda x: oc.multiply(x, x, label="square"), "layer_square"),
        (lambda x: oc.number(3.0) * oc.tensor([1.0, 2.0]), "layer"),
        (lambda x: oc.uniform() * x, "layer_x"),
        (lambda x: layer(hidden=3, label="L1")(oc.tensor([1.0])), "layer_L1"),
        (lambda x: oc.arange(3), "layer_arange"),
    ],
)
def test_a_block_is_called_after_the_nearest_tensor_with_a_name(
    x: oc.Tensor, argument: Callable[[oc.Tensor], oc.Tensor], name: str
) -> None:
    assert layer(hidden=4)(argument(x)).node.name == name


def test_a_skipped_sub_block_does_not_shift_the_others(x: oc.Tensor) -> None:
    @oc.op
    def choosing(x: oc.Tensor, use: bool = True) -> oc.Tensor:
        if use:
            x = layer(x, hidden=3, label="first")
        return layer(x, hidden=3, label="second")

    block = choosing()
    both, second = block(x).params, block(x, False).params
    assert second < both


def test_asking_for_one_parameter_twice_in_an_application_is_an_error(x: oc.Tensor) -> None:
    @oc.op
    def twice(x: oc.Tensor) -> oc.Tensor:
        return x * oc.param("a", init=1.0) * oc.param("a", init=1.0)

    with pytest.raises(oc.UsageError, match="each parameter name once"):
        twice(x)


def test_a_parameter_that_is_new_in_a_later_application_warns(x: oc.Tensor) -> None:
    @oc.op
    def growing(x: oc.Tensor, more: bool = False) -> oc.Tensor:
        x = x * oc.param("a", init=1.0)
        return x * oc.param("b", init=1.0) if more else x

    block = growing()
    block(x)
    with pytest.warns(UserWarning, match="'b' of growing"):
        block(x, True)


def test_unknown_and_missing_configuration_is_named(x: oc.Tensor) -> None:
    with pytest.raises(oc.UsageError, match="unknown hiden; missing hidden"):
        layer(x, hiden=3)


def test_an_error_in_a_body_leaves_no_block_open(x: oc.Tensor) -> None:
    @oc.op
    def failing(x: oc.Tensor) -> oc.Tensor:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        failing(x)
    assert oc.param("w", output=[1], input=[1]).label == ("w",)


def test_names_do_not_grow_with_depth(x: oc.Tensor) -> None:
    for index in range(3):
        x = layer(x, hidden=4, label=f"L{index}")
    assert x.node.name == "layer_L2_x"


def test_sub_blocks_are_numbered_in_the_names_of_their_parameters(x: oc.Tensor) -> None:
    y = perceptron(x, sizes=[4, 4])
    assert sorted(p.node.name for p in y.params) == [
        "b_perceptron_layer",
        "b_perceptron_layer2",
        "out_perceptron",
        "w_perceptron_layer",
        "w_perceptron_layer2",
    ]


def test_blocks_made_in_a_comprehension_outside_are_kept_in_a_list(x: oc.Tensor) -> None:
    layers = [layer(hidden=4, label=f"L{index}") for index in range(3)]

    def stacked(x: oc.Tensor) -> oc.Tensor:
        for each in layers:
            x = each(x)
        return x

    assert stacked(x).params == stacked(2.0 * x).params
    assert len(stacked(x).params) == 6


def test_sub_blocks_of_a_comprehension_inside_a_body_are_shared_by_applications(
    x: oc.Tensor,
) -> None:
    @oc.op
    def heads(x: oc.Tensor, *, count: int) -> oc.Tensor:
        return oc.stack(*[layer(x, hidden=2) for _ in range(count)])

    block = heads(count=3)
    first = block(x)
    assert len(first.params) == 6
    assert block(2.0 * x).params == first.params


def test_configured_sub_blocks_can_be_applied_twice_in_a_body(x: oc.Tensor) -> None:
    @oc.op
    def twice(x: oc.Tensor) -> oc.Tensor:
        same = layer(hidden=3)
        return same(same(x))

    assert len(twice(x).params) == 2


def test_functions_arrays_and_dicts_in_a_configuration_are_compared_by_their_contents(
    x: oc.Tensor,
) -> None:
    @oc.op
    def activated(x: oc.Tensor, *, function: object, start: object, table: object) -> oc.Tensor:
        return function(oc.param("w", output=[3], init=start) * x)  # type: ignore[operator]

    @oc.op
    def outer(x: oc.Tensor, *, factor: float) -> oc.Tensor:
        return activated(
            x,
            function=lambda value: oc.tanh(value) * factor,
            start=np.ones(3),
            table={"rate": [0.1]},
        )

    block = outer(factor=2.0)
    assert block(x).params == block(2.0 * x).params


@pytest.mark.parametrize("numbers", [(0.0, -0.0), (np.float32(0.0), np.float32(-0.0)), (1, True)])
def test_numbers_in_a_configuration_are_compared_by_class_and_bits(
    x: oc.Tensor, numbers: tuple[Any, Any]
) -> None:
    configured: list[object] = []

    @oc.op
    def scaled(x: oc.Tensor, *, by: Any) -> oc.Tensor:
        configured.append(by)
        return by * x

    @oc.op
    def network(x: oc.Tensor) -> oc.Tensor:
        return scaled(x, by=next(left))

    left = iter(numbers)
    net = network()
    net(x)
    net(x)
    assert [*map(repr, configured)] == [*map(repr, numbers)]


def test_a_number_that_is_none_is_one_configuration(x: oc.Tensor) -> None:
    @oc.op
    def filled(x: oc.Tensor, *, fill: float) -> oc.Tensor:
        return oc.param("w", output=[3]) * oc.where(x > 0.0, x, fill)

    @oc.op
    def network(x: oc.Tensor) -> oc.Tensor:
        return filled(x, fill=float("nan"))

    net = network()
    net(x)
    net(x)
    assert len(net.params) == 1


def test_partial_and_recursive_functions_are_compared_by_their_contents(x: oc.Tensor) -> None:
    @oc.op
    def activated(x: oc.Tensor, *, function: object) -> oc.Tensor:
        return function(oc.param("w", output=[3]) * x)  # type: ignore[operator]

    def scaled(factor: float, value: oc.Tensor) -> oc.Tensor:
        return value * factor

    @oc.op
    def outer(x: oc.Tensor) -> oc.Tensor:
        def repeated(value: oc.Tensor, times: int = 2) -> oc.Tensor:
            return repeated(oc.tanh(value), times - 1) if times else value

        x = activated(x, function=functools.partial(scaled, 2.0))
        return activated(x, function=repeated)

    block = outer()
    first = block(x)
    assert len(first.params) == 2
    assert block(2.0 * x).params == first.params


def test_a_configuration_that_cannot_be_compared_is_refused_inside_a_body(x: oc.Tensor) -> None:
    @oc.op
    def outer(x: oc.Tensor) -> oc.Tensor:
        return configured(x, choice={1, 2})

    @oc.op
    def configured(x: oc.Tensor, *, choice: set[int]) -> oc.Tensor:
        return x * oc.param("w", init=1.0)

    configured(x, choice={1, 2})
    with pytest.raises(oc.UsageError, match="choice= is a set, which is not hashable"):
        outer(x)


def test_a_body_that_returns_no_tensor_is_refused(x: oc.Tensor) -> None:
    @oc.op
    def forgetful(x: oc.Tensor) -> oc.Tensor:
        x = x * 2.0  # type: ignore[return]

    with pytest.raises(oc.UsageError, match="forgetful returned None"):
        forgetful(x)


def test_a_body_may_return_several_tensors(x: oc.Tensor) -> None:
    @oc.op
    def halves(x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
        return x * 0.5, x + 0.5

    first, second = halves(x)
    assert {first.label, second.label} == {("halves", "x")}


def test_tensors_that_a_body_does_not_take_are_counted(x: oc.Tensor) -> None:
    with pytest.raises(oc.UsageError, match="too many positional arguments; 2 given") as error:
        layer(hidden=3)(x, x)
    assert error.value.fix.startswith("layer(x")


def test_a_sub_block_that_is_new_in_a_later_application_warns(x: oc.Tensor) -> None:
    @oc.op
    def growing(x: oc.Tensor, more: bool = False) -> oc.Tensor:
        x = layer(x, hidden=3)
        return layer(x, hidden=3, label="extra") if more else x

    block = growing()
    block(x)
    with pytest.warns(UserWarning, match="new in a later application"):
        block(x, True)


def test_parameters_made_in_recorded_code_are_those_of_the_block(x: oc.Tensor) -> None:
    block = layer(hidden=4)
    outside = block(x)
    c = oc.declare("c")

    @oc.cd
    def code() -> None:
        c[:] = block(x * 2.0)

    mentioned = {tensor for tensor in code().tensors().values() if tensor.is_parameter}
    assert mentioned == set(outside.params)


def test_tensors_can_be_given_by_name(x: oc.Tensor) -> None:
    @oc.op
    def scaled(x: oc.Tensor, by: oc.Tensor | None = None, *, factor: float) -> oc.Tensor:
        return x * factor if by is None else x * by * factor

    block = scaled(factor=2.0)
    assert block(x, by=x).operands[0].operands == (x, x)
    assert scaled(x, by=x, factor=2.0).operands[0].operands == (x, x)
    assert scaled(x=x, factor=2.0).operands[0] is x


def test_a_block_may_be_a_method(x: oc.Tensor) -> None:
    class Model:
        def __init__(self, width: int) -> None:
            self.width = width

        @oc.op
        def layer(self, x: oc.Tensor, *, scale: float) -> oc.Tensor:
            return oc.param("w", output=[self.width]) @ x * scale

        @oc.op
        def twice(self, x: oc.Tensor) -> oc.Tensor:
            return self.layer(self.layer(x, scale=1.0), scale=2.0)

    small, large = Model(2), Model(7)
    block = small.twice()
    first = block(x)
    assert block(2.0 * x).params == first.params
    assert list(first.params.keys()) == ["twice.layer.w", "twice.layer2.w"]
    assert large.layer(x, scale=1.0).info.dims == (5, 7)


def test_a_body_may_take_the_label_of_its_block(x: oc.Tensor) -> None:
    @oc.op
    def named(x: oc.Tensor, *, label: str | None) -> oc.Tensor:
        return oc.multiply(x, oc.param(f"scale_{label}", init=1.0))

    assert list(named(label="first")(x).params.keys()) == ["first.scale_first"]
    assert list(named(x).params.keys()) == ["named.scale_None"]


def test_the_label_of_a_block_is_a_text() -> None:
    with pytest.raises(oc.UsageError, match=r"label=\['a', 'b'\]"):
        layer(hidden=3, label=["a", "b"])


def test_a_block_function_is_shown_with_its_parameters() -> None:
    assert repr(layer).startswith("<block function layer(x: ")


def test_a_block_has_the_signature_and_the_text_of_its_body() -> None:
    @oc.op
    def masked(x: oc.Tensor, mask: Any = None, *, hidden: int) -> oc.Tensor:
        """Return a masked layer."""
        return oc.param("w", output=[hidden]) @ x

    block = masked(hidden=4, label="L1")
    assert str(inspect.signature(block)) == (
        "(x: 'oc.Tensor', mask: 'Any' = None, *, label: 'str | None' = None) -> 'oc.Tensor'"
    )
    assert inspect.getdoc(block) == "Return a masked layer."
    assert block.__name__ == "L1"
    assert "Return a masked layer." in pydoc.plain(pydoc.render_doc(block))
    assert "config: " in str(inspect.signature(oc.NetworkBlock))


def test_a_block_belongs_to_the_session_of_its_parameters(x: oc.Tensor) -> None:
    block = layer(hidden=3)
    block(x)
    with oc.Session(), pytest.raises(oc.UsageError, match="belong to one session") as caught:
        block(oc.tensor([1.0, 2.0, 3.0]))
    assert "after oc.reset()" in caught.value.fix


@pytest.mark.parametrize(
    ("name", "counterpart"),
    [
        ("parameters", "net.params are those of a block that was applied"),
        ("parameters", "oc.train.SGD(learning_rate=0.1).minimize(loss)"),
        ("weights", "loss.params those of a loss"),
        ("state_dict", "{name: ctx[p] for name, p in loss.params.items()}"),
    ],
)
def test_attributes_of_models_elsewhere_name_their_counterpart(name: str, counterpart: str) -> None:
    net = oc.nn.dense(output=[3])
    net(oc.tensor([1.0, 2.0]))
    with pytest.raises(oc.UsageError, match=re.escape(counterpart)):
        getattr(net, name)()


def test_the_parameters_of_a_block_are_those_that_its_body_uses() -> None:
    """Also those of blocks and parameters from outside, but not those of its arguments."""
    x, image = oc.tensor([1.0, 2.0]), oc.param("image", output=[2])
    encoder, shift = oc.nn.dense(output=[3]), oc.param("shift", output=[3], input=[])
    table = oc.param("table", output=[4], input=[3])

    @oc.op
    def product(w: oc.Tensor, h: oc.Tensor) -> oc.Tensor:
        return w @ h

    @oc.op
    def classifier(h: oc.Tensor) -> oc.Tensor:
        return oc.nn.dense(oc.nn.batch_norm(product(table, h)), output=[5])

    @oc.op
    def network(x: oc.Tensor, *, depth: int = 2) -> oc.Tensor:
        h = encoder(x) + shift
        h = oc.nn.repeat_layers(lambda h: h + oc.relu(oc.nn.dense(h)), h, layers=depth)
        return classifier(oc.nn.dropout(h, rate=0.1))

    net = network()
    with pytest.raises(oc.UsageError, match="exist once it has been applied"):
        _ = net.params
    y, other = net(x), net(image)
    assert net.params == y.params
    assert list(net.params.items()) == list(y.params.items())
    assert net.statistics == y.statistics
    assert set(other.params) - set(net.params) == {image}
    assert encoder.params == encoder(x).params
    failing = oc.op(lambda x: encoder(x) + oc.ones((7,)))()
    with pytest.raises(oc.ShapeError):
        failing(x)
    with pytest.raises(oc.UsageError, match="exist once"):
        _ = failing.params


def test_one_width_needs_no_list() -> None:
    x = oc.tensor([1.0, 2.0])
    results = oc.nn.mlp(x, hidden=4, output=3), oc.nn.mlp(x, hidden=[4], output=[3])
    one, listed = (sorted(str(p.shape) for p in each.params.values()) for each in results)
    assert one == listed


@pytest.mark.parametrize("size", [8, [16, 4], (3, 3)])
def test_sizes_by_position_are_refused_by_blocks_of_the_library(size: Any) -> None:
    """As users of other libraries write them: they would be the input."""
    with pytest.raises(oc.UsageError, match=r"(?s)by position.*write oc.nn.dense\(output=..., "):
        oc.nn.dense(size)
