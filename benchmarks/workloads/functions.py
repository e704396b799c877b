"""Workloads: functions and steps of gradient descent, independent of the framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
Loss = Literal["cross entropy", "hinge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function of arrays, optionally with its gradients.

    Attributes:
        name: Its title.
        arrays: A function that creates the arguments, by name.
        own: The function as an expression of this project; arguments are named as the arrays are.
        torch: The function in PyTorch.
        jax: The function in JAX.
        tinygrad: The function in tinygrad; None if that takes minutes to compile it.
        pytensor: The function in PyTensor; None if that cannot express it.
        numpy: The function in NumPy, if one call of NumPy does it; takes `out`, too.
        exact: The value in double precision by NumPy, if contenders must agree with that.
        batch_axes: The number of leading axes of an argument that are batch axes in this project; 0
            if not named.
        input_axes: The number of trailing axes of an argument that are input axes in this project.
        result: The extents of the value, of which the leading `batch_axes["result"]` are batch
            axes; needed for gradients.
        gradients: True to compute gradients of a weighted sum of the cells, too.
        flops: The number of multiplications and additions; 0 if no rate is printed.
    """

    name: str
    arrays: Callable[[], dict[str, Array]]
    own: Callable[..., Any]
    torch: Callable[..., Any]
    jax: Callable[..., Any]
    tinygrad: Callable[..., Any] | None
    pytensor: Callable[..., Any] | None
    numpy: Callable[..., Any] | None = None
    exact: Callable[..., Any] | None = None
    batch_axes: Mapping[str, int] = field(default_factory=dict)
    input_axes: Mapping[str, int] = field(default_factory=dict)
    result: tuple[int, ...] = ()
    gradients: bool = False
    flops: float | None = None

    def differentiated(self) -> tuple[str, ...]:
        """Return the names of the arguments that are real numbers; the others are positions."""
        return tuple(name for name, cells in self.arrays().items() if cells.dtype.kind == "f")

    def weights(self) -> Array:
        """Return the weights with which cells of the value are summed up to be differentiated."""
        return np.random.default_rng(2).standard_normal(self.result, dtype=np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """A step of gradient descent on one minibatch.

    Attributes:
        name: Its title.
        parameters: A function that creates the initial parameters, by name.
        batches: A function that creates the inputs of all minibatches, stacked along the first
            axis.
        targets: A function that creates the targets, stacked likewise: class numbers for the mean
            cross entropy, and 1 or -1 for the mean hinge loss, `minibatch, example`.
        loss: The loss to minimize.
        own: Scores from inputs and parameters, `b|n`, as an expression of this project; of extent
            1 for the hinge loss.
        torch: The same in PyTorch.
        jax: The same in JAX.
        tinygrad: The same in tinygrad.
        pytensor: The same in PyTensor; None if that cannot express it.
        input_axes: The number of trailing axes of a parameter that are input axes in this project.
        rate: The learning rate.
        momentum: The decay of the velocity in a step; 0 for none.
    """

    name: str
    parameters: Callable[[], dict[str, Array]]
    batches: Callable[[], Array]
    targets: Callable[[], Array]
    loss: Loss
    own: Callable[..., Any]
    torch: Callable[..., Any]
    jax: Callable[..., Any]
    tinygrad: Callable[..., Any]
    pytensor: Callable[..., Any] | None
    input_axes: Mapping[str, int] = field(default_factory=dict)
    rate: float = 0.01
    momentum: float = 0.9


Workload = Function | TrainingStep


def classes(count: int, batches: int, batch: int) -> Array:
    """Return a class for every example of every minibatch."""
    return np.random.default_rng(1).integers(0, count, (batches, batch))


@dataclass(frozen=True, slots=True)
class Contender:
    """One framework's implementation of a workload.

    Attributes:
        run: A function that does the work a number of times and returns when all of it is finished.
        results: A function that returns the arrays to compare: for a function, its value and
            gradients; for a step, the parameters, after the same number of steps.
    """

    run: Callable[[int], None]
    results: Callable[[], list[Array]]


Attempts = Mapping[str, Callable[[], Contender]]
"""Functions that prepare contenders, by the name of the framework with its settings."""


def repeat(once: Callable[[], Any]) -> Callable[[int], None]:
    """Return a function that calls another one a number of times."""

    def run(times: int) -> None:
        for _ in range(times):
            once()

    return run


def take_steps(step: Callable[[int], Any], count: int) -> Callable[[int], None]:
    """Return a function that takes a number of steps, through minibatches in turn."""
    done = 0

    def run(times: int) -> None:
        nonlocal done
        for number in range(done, done + times):
            step(number % count)
        done += times

    return run
