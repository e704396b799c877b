"""Perceptrons of three layers: all sizes but those of data and hidden layers are inferred."""

from __future__ import annotations

from typing import Any

import numpy as np

import ocannl_core as oc
from ocannl_core import nn

POINTS = np.random.default_rng(0).normal(size=(4, 3))
TARGETS = np.random.default_rng(1).normal(size=(4, 2))


def relu(x: Any) -> Any:
    return np.maximum(x, 0.0)


def test_the_last_width_of_a_perceptron_is_inferred_from_the_loss(check: Any) -> None:
    @oc.op
    def network(x: oc.Tensor, *, hidden: tuple[int, int]) -> oc.Tensor:
        first = oc.relu(oc.param("w1") @ x + oc.param("b1", output=[hidden[0]]))
        second = oc.tanh(oc.param("w2") @ first + oc.param("b2", output=[hidden[1]]))
        return oc.param("w3") @ second + oc.param("b3")

    output = network(oc.tensor(POINTS, batch_axes=1), hidden=(5, 4))
    error = output - oc.tensor(TARGETS, batch_axes=1)

    def reference(w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any) -> Any:
        first = relu(POINTS @ w1.T + b1)
        return np.tanh(first @ w2.T + b2) @ w3.T + b3 - TARGETS

    shapes = check(error, reference)
    assert shapes == ["3->5", "5", "5->4", "4", "4->2", "2"]


def test_a_block_applied_twice_shares_its_parameters_and_has_one_shape(check: Any) -> None:
    @oc.op
    def network(x: oc.Tensor, *, width: int) -> oc.Tensor:
        square = nn.dense(output=[width])
        return nn.dense(oc.tanh(square(oc.tanh(square(x)))), output=[2])

    output = network(oc.tensor(POINTS, batch_axes=1), width=3)

    def reference(w: Any, b: Any, last_w: Any, last_b: Any) -> Any:
        hidden = np.tanh(np.tanh(POINTS @ w.T + b) @ w.T + b)
        return hidden @ last_w.T + last_b

    shapes = check(output, reference)
    assert shapes == ["3->3", "3", "3->2", "2"]


def test_the_perceptron_of_the_library_infers_everything_but_hidden_widths(check: Any) -> None:
    network = nn.mlp(hidden=[5, 4], activation=oc.tanh)
    loss = (network(oc.tensor(POINTS, batch_axes=1)) - oc.tensor(TARGETS, batch_axes=1)) ** 2.0

    def reference(w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any) -> Any:
        hidden = np.tanh(np.tanh(POINTS @ w1.T + b1) @ w2.T + b2)
        return (hidden @ w3.T + b3 - TARGETS) ** 2

    assert check(loss, reference) == ["3->5", "5", "5->4", "4", "4->2", "2"]


def test_a_dense_layer_takes_any_number_of_axes(check: Any) -> None:
    images = np.random.default_rng(2).normal(size=(2, 3, 2))
    output = nn.dense(oc.tensor(images, batch_axes=1), output=[2, 2])

    def reference(w: Any, b: Any) -> Any:
        return np.einsum("nab,cdab->ncd", images, w) + b

    assert check(output, reference) == ["3,2->2,2", "2,2"]
