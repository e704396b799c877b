"""What a workload is, whichever framework runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Function:
    """A function of arrays; with its gradients, if asked for.

    Attributes:
        name: What it is, for readers.
        arrays: Makes the arguments, by name.
        own: The function as an expression of this project; arguments are named as the arrays are.
        torch: The function in PyTorch.
        jax: The function in JAX.
        batch_axes: How many leading axes of an argument are batch axes in this project; 0 if not
            named.
        input_axes: How many trailing axes of an argument are input axes in this project.
        result: The extents of the value, of which so many leading ones as `batch_axes["result"]`
            tells are batch axes; needed where there are gradients.
        gradients: Whether gradients of a weighted sum of the cells are computed, too.
    """

    name: str
    arrays: Callable[[], dict[str, Array]]
    own: Callable[..., Any]
    torch: Callable[..., Any]
    jax: Callable[..., Any]
    batch_axes: Mapping[str, int] = field(default_factory=dict)
    input_axes: Mapping[str, int] = field(default_factory=dict)
    result: tuple[int, ...] = ()
    gradients: bool = False

    def weights(self) -> Array:
        """Returns the weights with which cells of the value are summed up to be differentiated."""
        return np.random.default_rng(2).standard_normal(self.result, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Step:
    """A step of gradient descent with momentum on one minibatch.

    Attributes:
        name: What is trained, for readers.
        parameters: Makes the parameters to start from, by name.
        batches: Makes the inputs of all minibatches, stacked along the first axis.
        classes: How many classes there are.
        own: Scores from inputs and parameters, `b|n`, as an expression of this project.
        torch: The same in PyTorch.
        jax: The same in JAX.
        input_axes: How many trailing axes of a parameter are input axes in this project.
    """

    name: str
    parameters: Callable[[], dict[str, Array]]
    batches: Callable[[], Array]
    classes: int
    own: Callable[..., Any]
    torch: Callable[..., Any]
    jax: Callable[..., Any]
    input_axes: Mapping[str, int] = field(default_factory=dict)
    rate: float = 0.01
    momentum: float = 0.9

    def labels(self) -> Array:
        """Returns the class of every example of every minibatch."""
        count, batch = self.batches().shape[:2]
        return np.random.default_rng(1).integers(0, self.classes, (count, batch))


Workload = Function | Step


@dataclass(frozen=True, slots=True)
class Contender:
    """One framework's way to do a workload.

    Attributes:
        name: The framework, and its settings where there are several.
        run: Does the work so many times and returns when all of it is finished.
        results: What must agree with other frameworks: for a function, its value and gradients; for
            a step, the parameters, to be asked for after the same number of steps.
    """

    name: str
    run: Callable[[int], None]
    results: Callable[[], list[Array]]
