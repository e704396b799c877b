"""Broadcasts that are probably mistakes give a warning with the line, once."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest

import ocannl_core as oc

Build = Callable[[], oc.Tensor]


def warnings_of(build: Build, times: int = 1) -> list[str]:
    """Return the texts of the warnings about shapes while a loss is compiled."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with oc.Session():
            loss = build()
            for _ in range(times):
                oc.Context("interp").compile(oc.train.forward(loss))
    return [str(each.message) for each in found if each.category is oc.ShapeWarning]


def data(*shape: int, batch: int = 0) -> oc.Tensor:
    numbers = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return oc.tensor(numbers, batch_axes=batch)


def prediction() -> oc.Tensor:
    found: oc.Tensor = oc.param("w", output=[1]) @ data(8, 3, batch=1)
    return found


def loss_of(error: oc.Tensor) -> oc.Tensor:
    found: oc.Tensor = oc.einsum("...|... => 0", error * error)
    return found


MISTAKES: dict[str, Build] = {
    "a target along an output axis": lambda: loss_of(prediction() - data(8)),
    "the target first": lambda: loss_of(data(8) - prediction()),
    "a placeholder": lambda: loss_of(prediction() - oc.placeholder("y", output=[8])),
    "a product": lambda: loss_of(prediction() * data(8)),
    "a prediction along an output axis": lambda: loss_of(
        oc.param("w", output=[8]) @ data(3) - data(8, 1, batch=1)
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_all_pairs_of_a_prediction_and_a_target_give_a_warning(case: str) -> None:
    (text,) = warnings_of(MISTAKES[case])
    assert "has shape 8|8: all pairs of a batch axis and an output axis" in text
    assert "test_doubtful_broadcasts.py" in text
    assert "batch_axes=1" in text


PAIRS_OF_THE_BATCH: dict[str, Build] = {
    "a norm": lambda: data(8, 3, batch=1) / oc.norm(data(8, 3, batch=1), axis=-1)[..., None],
    "a mask": lambda: data(8, batch=1)[:, None] * data(8, 3, batch=1),
    "a condition": lambda: oc.where(data(8, batch=1)[:, None], data(8, 3, batch=1), 0.0),
    "a target with a new axis": lambda: prediction() - data(8, batch=1)[:, None],
    "a mask of lengths": lambda: data(8, 3, batch=1) * (oc.arange(3) < data(8, batch=1)[:, None]),
    "a mask of lengths as a condition": lambda: oc.where(
        oc.arange(3)[None] < data(8, batch=1)[:, None], data(8, 3, batch=1), 0.0
    ),
    "classes": lambda: (
        oc.cast(oc.arange(3) == data(8, batch=1)[:, None], "float32") * data(8, 3, batch=1)
    ),
    "two new axes": lambda: data(8, 8, 3, batch=2) * data(8, batch=1)[:, None, None],
    "of two axes": lambda: data(8, 8, batch=2)[..., None] * data(8, 8, 3, batch=2),
}


@pytest.mark.parametrize("case", PAIRS_OF_THE_BATCH)
def test_all_pairs_of_the_batch_by_an_axis_at_the_end_give_a_warning(case: str) -> None:
    (text,) = warnings_of(PAIRS_OF_THE_BATCH[case])
    assert "8,8|" in text
    assert "all pairs of positions of the batch" in text
    assert "without the new axis" in text


NO_PAIRS: dict[str, Build] = {
    "with itself": lambda: data(8, 3, batch=1)[:, None] - data(8, 3, batch=1)[None],
    "the other way": lambda: data(8, 3, batch=1)[None] - data(8, 3, batch=1)[:, None],
    "several for each": lambda: oc.expand_dims(data(8, 3, batch=1), 1) - data(8, 8, 3, batch=2),
    "of two output axes": lambda: data(8, 2, 3, batch=1)[:, None] - data(8, 2, 3, batch=1)[None],
}


@pytest.mark.parametrize("case", NO_PAIRS)
def test_a_new_output_axis_beside_a_new_batch_axis_gives_a_warning(case: str) -> None:
    (text,) = warnings_of(NO_PAIRS[case])
    assert "8|1," in text
    assert "positions of the last batch axes meet, and no pairs" in text
    assert 'oc.subtract(x, y, logic="i|...; j|... => i,j|...")' in text


def test_an_error_about_axes_that_meet_by_position_names_the_pairs() -> None:
    x, y = data(8, 3, batch=1), data(5, 3, batch=1)
    with pytest.raises(oc.ShapeError, match="not of the same position") as caught:
        x[:, None] - y[None]
    assert 'oc.subtract(x, y, logic="i|...; j|... => i,j|...")' in caught.value.fix
    assert str(oc.subtract(x, y, logic="i|...; j|... => i,j|...").shape) == "8,5|3"
    with pytest.raises(oc.ShapeError) as caught:
        x - y
    assert "position" not in caught.value.fix


def test_an_error_about_a_vector_for_each_sequence_names_a_new_batch_axis() -> None:
    sequences, x = data(8, 5, 3, batch=2), data(8, 3, batch=1)
    with pytest.raises(oc.ShapeError, match="not of the same position") as caught:
        sequences + x[:, None]
    assert 'oc.einsum("...|..x.. => ...,0|..x..", x)' in caught.value.fix
    assert str((sequences + oc.einsum("...|..x.. => ...,0|..x..", x)).shape) == "8,5|3"


MEANT: dict[str, Build] = {
    "an output axis for another one": lambda: data(8, 1, 3, batch=1) * data(8, 2, 3, batch=1),
    "an output axis beside a part of the batch": lambda: (
        data(4, 8, 1, 3, batch=2) * data(8, 3, batch=1)
    ),
    "all pairs by a specification": lambda: oc.subtract(
        data(8, 3, batch=1), data(8, 3, batch=1), logic="i|...; j|... => i,j|..."
    ),
    "a target along the batch": lambda: loss_of(prediction() - data(8, 1, batch=1)),
    "a target of the batch without axes": lambda: loss_of(prediction() - data(8, batch=1)),
    "a target of another length": lambda: loss_of(prediction() - data(5)),
    "axes that are named": lambda: loss_of(
        oc.subtract(prediction(), data(8), logic="b|0; o => b|o")
    ),
    "a bias as long as the batch": lambda: loss_of(
        oc.param("w", output=[8]) @ data(8, 3, batch=1) + oc.param("b")
    ),
    "data of two kinds": lambda: loss_of(data(8, 1, batch=1) * data(8) * oc.param("s", output=[])),
    "a norm": lambda: data(8, 3, batch=1) / oc.norm(data(8, 3, batch=1), axis=-1),
    "a norm that keeps its axis": lambda: (
        data(8, 3, batch=1) / oc.norm(data(8, 3, batch=1), axis=-1, keepdims=True)
    ),
    "a mask of lengths": lambda: data(8, batch=1) < data(8, batch=1)[:, None],
    "all pairs of examples": lambda: data(8, batch=1)[:, None] * data(8, 3, batch=1)[None],
    "a mask of lengths without a new axis": lambda: (
        data(8, 3, batch=1) * (oc.arange(3) < data(8, batch=1))
    ),
    "a mask for each query": lambda: (
        data(8, 5, 3, batch=2) * (oc.arange(3) < data(8, batch=1)[:, None])
    ),
    "pairs of rows": lambda: (
        oc.reshape(data(8, 3, batch=1), batch=[8, 1], output=[3]) * data(8, 3, batch=1)
    ),
    "numbers of another axis": lambda: data(4, batch=1)[:, None] * data(8, 3, batch=1),
    "weights of cells": lambda: loss_of(prediction() * oc.param("v", output=[8])),
}


def _without_batch() -> oc.Tensor:
    return loss_of(oc.param("w", output=[2]) @ data(8, 3) - data(8, 2, batch=1))


def test_data_without_a_batch_axis_give_a_warning() -> None:
    (text,) = warnings_of(_without_batch)
    assert "is one prediction, which is compared with each of literal" in text
    assert "of shape 8,3" in text
    assert "batch_axes=1" in text


@pytest.mark.parametrize(
    "build",
    [
        lambda: loss_of(oc.param("w", output=[2]) @ data(3) - data(8, 2, batch=1)),
        lambda: loss_of(oc.param("w", output=[2]) @ data(8, 3, batch=1) - data(8, 2, batch=1)),
        lambda: loss_of(oc.param("c", output=[2]) - data(8, 2, batch=1)),
        lambda: loss_of(oc.param("w", output=[2]) @ data(28, 28) - data(8, 2, batch=1)),
    ],
)
def test_other_predictions_without_a_batch_axis_give_none(build: Build) -> None:
    assert warnings_of(build) == []


def _sum(make: Callable[[oc.Tensor, oc.Tensor], oc.Tensor]) -> Build:
    def build() -> oc.Tensor:
        made = oc.param("w", output=[2]) @ data(4, 3, batch=1)
        return make(made, oc.param("b", input=[5]))

    return build


@pytest.mark.parametrize(
    "build",
    [
        _sum(lambda y, b: y + b),
        _sum(lambda y, b: b - y),
        lambda: (
            oc.param("w", output=[2]) @ oc.placeholder("x", output=[3]) + oc.param("b", input=[5])
        ),
    ],
)
def test_a_bias_with_input_axes_gives_a_warning(build: Build) -> None:
    (text,) = warnings_of(build)
    assert "Parameter b" in text
    assert "of shape 5->2" in text
    assert "a matrix for each vector" in text
    assert "test_doubtful_broadcasts.py" in text


@pytest.mark.parametrize(
    "build",
    [
        _sum(lambda y, b: y * b),
        _sum(lambda y, b: oc.add(y, b, logic="b|o; i->o => b|i->o")),
        lambda: oc.param("w", output=[2]) @ data(4, 3, batch=1) + oc.param("b", input=[1]),
        lambda: oc.param("w", input=[5], output=[2]) - oc.param("c", output=[2]),
        lambda: oc.param("w", input=[5], output=[2]) - 1.0,
    ],
)
def test_other_sums_of_matrices_give_none(build: Build) -> None:
    assert warnings_of(build) == []


@pytest.mark.parametrize("case", MEANT)
def test_other_broadcasts_give_none(case: str) -> None:
    assert warnings_of(MEANT[case]) == []


def test_the_warning_is_given_once_for_a_line() -> None:
    assert len(warnings_of(MISTAKES["a product"], times=3)) == 1


def test_a_setting_makes_it_an_error_or_ends_it() -> None:
    with (
        oc.settings.overrides(missing_axes="error"),
        pytest.raises(oc.ShapeError, match="all pairs"),
    ):
        warnings_of(MISTAKES["a product"])
    with oc.settings.overrides(missing_axes="allow"):
        assert warnings_of(MISTAKES["a product"]) == []


GROWN: dict[str, Build] = {
    "a factor of data": lambda: oc.param("s", init=1.0) * data(8, 3, batch=1),
    "a summand of data": lambda: data(8, 3, batch=1) + oc.param("s", init=0.0),
    "a temperature": lambda: (
        oc.param("w", output=[3]) @ data(8, 4, batch=1) / oc.param("s", init=1.0)
    ),
}
STATED: dict[str, Build] = {
    "one number": lambda: oc.param("s", init=1.0, output=[]) * data(8, 3, batch=1),
    "the axes of its uses": lambda: oc.param("s", init=1.0, output=[...]) * data(8, 3, batch=1),
    "sizes": lambda: oc.param("s", init=1.0, output=[3]) * data(8, 3, batch=1),
    "numbers": lambda: oc.param("s", init=[1.0, 2.0, 3.0]) * data(8, 3, batch=1),
    "a bias": lambda: oc.param("w", output=[3]) @ data(8, 4, batch=1) + oc.param("b", init=0.0),
    "a normalization": lambda: oc.nn.layer_norm(data(8, 4, batch=1)),
    "an operand of one number": lambda: oc.param("s", init=1.0) * data(8, 1, batch=1),
}


def test_a_product_with_one_number_is_no_cause_of_growth() -> None:
    def decayed() -> oc.Tensor:
        convolved = oc.nn.conv2d(data(2, 6, 6, 1, batch=1), channels=[4])
        decay = sum(oc.einsum("...->... => 0", 0.5 * each) for each in convolved.params)
        return oc.einsum("...|... => 0", convolved) + decay

    assert warnings_of(decayed) == []


@pytest.mark.parametrize("case", GROWN)
def test_a_number_that_grows_with_its_use_gives_a_warning(case: str) -> None:
    (text,) = warnings_of(GROWN[case])
    assert text.startswith("Parameter s (test_doubtful_broadcasts.py")
    assert "has shape 3, from a " in text
    assert "output=[] for one number" in text


@pytest.mark.parametrize("case", STATED)
def test_a_parameter_of_stated_shape_gives_none(case: str) -> None:
    assert warnings_of(STATED[case]) == []


@pytest.mark.parametrize("optimizer", [oc.train.SGD, oc.train.Adam, oc.train.Lion])
def test_a_step_of_an_optimizer_gives_none_for_a_bias(
    optimizer: Callable[..., oc.train.Optimizer],
) -> None:
    with warnings.catch_warnings(record=True) as found, oc.Session():
        warnings.simplefilter("always")
        hidden = oc.param("w", output=[3]) @ data(8, 4, batch=1) + oc.param("b", init=0.0)
        loss = loss_of(oc.nn.conv2d(data(2, 6, 6, 1, batch=1), channels=[4])) + loss_of(hidden)
        update = optimizer(learning_rate=0.1).update(loss)
        oc.Context("interp").compile(oc.train.grad_update(loss) + update)
    assert [str(each.message) for each in found] == []


PRODUCTS: dict[str, Build] = {
    "an activation": lambda: oc.relu(data(4, 3, batch=1)) @ data(3, 2),
    "a filled matrix": lambda: oc.eye(3) @ data(3),
    "a hidden layer": lambda: oc.tanh(oc.param("w", output=[8]) @ data(4, 3, batch=1)) @ data(8, 2),
}


@pytest.mark.parametrize("case", PRODUCTS)
def test_a_left_operand_without_input_axes_gives_a_warning(case: str) -> None:
    (text,) = warnings_of(PRODUCTS[case])
    assert "its operands have no input axes" in text
    assert "the matrix is the left operand, as in w @ x" in text


@pytest.mark.parametrize(
    "build",
    [
        lambda: oc.eye(input=3, output=3) @ data(3),
        lambda: (2 * oc.param("w", output=[2])) @ data(3),
        lambda: oc.tanh(oc.param("w", output=[2]) - 1) @ data(4, 3, batch=1),
        lambda: oc.tensor(np.ones((2, 3), np.float32), input_axes=1) @ data(3),
    ],
)
def test_a_matrix_on_the_left_gives_no_warning(build: Build) -> None:
    assert warnings_of(build) == []


def test_a_batch_along_an_output_axis_gives_a_warning() -> None:
    def gates() -> oc.Tensor:
        chosen = oc.relu(data(4, 2, 3, batch=1))
        flat = oc.cumsum(oc.reshape(chosen, 8, 3), axis=0)
        return chosen * oc.reshape(flat, 4, 2, 3)

    (text,) = warnings_of(gates)
    assert "of shape 4,2,3, which is computed from a batch, have the result 4|4,2,3" in text
    assert "oc.reshape(x, batch=[4], output=[2, 3])" in text


@pytest.mark.parametrize(
    "build",
    [
        lambda: (
            data(4, 3, batch=1)
            * oc.reshape(oc.reshape(data(4, 3, batch=1), 12), batch=[4], output=[3])
        ),
        lambda: data(4, 3, batch=1) * oc.mean(data(4, 3, batch=1), axis=0),
        lambda: data(4, 3, batch=1) * oc.relu(data(4, 3)),
        lambda: oc.add(
            data(4, 3, batch=1),
            oc.reshape(oc.reshape(data(4, 3, batch=1), 12), 4, 3),
            logic="i|...; j... => i|j...",
        ),
    ],
)
def test_a_batch_along_batch_axes_or_named_axes_gives_no_warning(build: Build) -> None:
    assert warnings_of(build) == []
