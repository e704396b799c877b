"""Conformance of a device in training: a network beside the interpreter, step by step.

Derive a test class from `TrainingConformance` and provide the fixtures `target` and `oracle`, as
for `conformance.BackendConformance`. The other suites run single kernels without schedules; these
tests go the way of a user's program, with all passes and schedules of the device.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from ocannl_core.base.errors import UnsupportedError
from ocannl_core.ir.numbers.dtypes import float32, int32
from ocannl_core.ir.target import Capability
from ocannl_core.nn.losses import cross_entropy
from ocannl_core.runtime.context import Context
from ocannl_core.tensor.graph.session import Session
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.parameters import param
from ocannl_core.tensor.operations.literals import tensor
from ocannl_core.tensor.primitives.pointwise_operations import tanh
from ocannl_core.testing.compare import Array
from ocannl_core.testing.subject import Subject
from ocannl_core.train.optimizers import Adam

_STEPS = 8
_EXAMPLES, _INPUTS, _HIDDEN, _CLASSES = 24, 13, 37, 5


class TrainingConformance:
    """Tests of one device by training; see the module for how to use it."""

    tolerance: ClassVar[float] = 1e-3
    """The largest relative difference of losses and parameters after the last step."""

    def test_a_perceptron_trains_with_adam_as_on_the_interpreter(
        self, target: str, oracle: Subject
    ) -> None:
        device = Context(target).target
        if device.formats is not None and float32 not in device.formats:
            pytest.skip(f"{target} does not declare float32")
        has_indices = Capability.POSITION_CHECKS in device.capabilities and (
            device.formats is None or int32 in device.formats
        )
        try:
            found = train(target, has_indices=has_indices)
        except UnsupportedError as lack:  # of a primitive, for instance
            pytest.skip(f"{target} does not support the network: {lack.found.splitlines()[0]}")
        expected = train(str(oracle), has_indices=has_indices)
        assert expected["loss"][-1] < expected["loss"][0]
        for name, values in expected.items():
            error = np.abs(found[name] - values).max() / np.abs(values).max()
            assert error <= self.tolerance, f"{name} differs by {error:.1e} of its largest value"


def train(target: str, *, has_indices: bool) -> dict[str, Array]:
    """Return the loss of each step, and the parameters after the last one, by name.

    Args:
        has_indices: True for labels that are numbers of classes, whose positions are checked; False
            for probabilities of the classes.
    """
    random = np.random.default_rng(1)

    def weights(*shape: int) -> Array:
        return random.standard_normal(shape, np.float32) / np.float32(shape[-1] ** 0.5)

    with Session():
        x = tensor(weights(_EXAMPLES, _INPUTS), batch_axes=1)
        classes = random.integers(0, _CLASSES, _EXAMPLES).astype(np.int32)
        labels = tensor(classes if has_indices else _one_hot(classes), batch_axes=1)
        params: dict[str, Tensor] = {
            "w1": param("w1", input=[_INPUTS], init=weights(_HIDDEN, _INPUTS)),
            "b1": param("b1", init=weights(_HIDDEN)),
            "w2": param("w2", input=[_HIDDEN], init=weights(_CLASSES, _HIDDEN)),
        }
        hidden = tanh(params["w1"] @ x + params["b1"])
        loss = cross_entropy(params["w2"] @ hidden, labels)
        ctx = Context(target)
        step = ctx.compile(Adam(learning_rate=0.02).minimize(loss))
        ctx.init_params(loss)
        losses = []
        for _ in range(_STEPS):
            step()
            losses.append(ctx.item(loss))
        found = {name: np.array(ctx[each]) for name, each in params.items()}
        return {"loss": np.array(losses), **found}


def _one_hot(classes: Array) -> Array:
    return np.eye(_CLASSES, dtype=np.float32)[classes]
