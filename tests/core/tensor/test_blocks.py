"""Blocks: when parameters are made, and who shares them."""

from __future__ import annotations

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


def test_names_tell_the_function_the_block_and_the_argument(x: oc.Tensor) -> None:
    y = layer(hidden=4, label="L1")(x)
    assert y.node.name == "layer_L1_x"
    assert sorted(p.node.name for p in y.params) == ["b_L1", "w_L1"]


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

    with pytest.raises(oc.UsageError, match="each parameter once"):
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
