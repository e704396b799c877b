"""Workloads in PyTensor: with its default linker, which is Numba, and with the one for C.

Arrays are shared variables, and a step is a function with updates of them. There is no convolution
of images with channels in PyTensor; one made of slices takes minutes to compile.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from workloads.functions import Attempts, Contender, Function, TrainingStep, repeat, take_steps

_MODES = {"pytensor": "NUMBA", "pytensor C": "CVM"}


def contenders(work: Function | TrainingStep) -> Attempts:
    """Return the workload by each linker, if PyTensor can do it."""
    if work.pytensor is None:
        return {}
    match work:
        case Function():
            return {name: partial(function, work, mode) for name, mode in _MODES.items()}
        case TrainingStep():
            return {name: partial(step, work, mode) for name, mode in _MODES.items()}


def function(work: Function, mode: str) -> Contender:
    """Return the function, with its gradients if it has any."""
    arguments = {name: _shared(cells) for name, cells in work.arrays().items()}
    assert work.pytensor is not None
    value = work.pytensor(**arguments)
    wanted = [value]
    if work.gradients:
        weights = {value: pt.as_tensor(_shared(work.weights()))}
        reals = [arguments[name] for name in work.differentiated()]
        wanted += pt.grad(None, reals, known_grads=weights)
    outputs = [pytensor.Out(each, borrow=True) for each in wanted]
    once = pytensor.function([], outputs, mode=mode)
    once.trust_input = True
    return Contender(repeat(once), lambda: [np.asarray(each) for each in once()])


def step(work: TrainingStep, mode: str) -> Contender:
    """Return the training step as one function with updates."""
    inputs, targets = list(work.batches()), list(work.targets())
    x, y = (pt.as_tensor(each[0]).type() for each in (inputs, targets))
    parameters = {name: _shared(cells.copy()) for name, cells in work.parameters().items()}
    assert work.pytensor is not None
    loss = _loss(work, work.pytensor(x, **parameters), y)
    updates = []
    for each, change in zip(
        parameters.values(), pt.grad(loss, list(parameters.values())), strict=True
    ):
        if work.momentum:
            velocity = _shared(np.zeros_like(each.get_value()))
            change = np.float32(work.momentum) * velocity + change
            updates.append((velocity, change))
        updates.append((each, each - np.float32(work.rate) * change))
    arguments = [pytensor.In(each, borrow=True) for each in (x, y)]
    update = pytensor.function(arguments, loss, updates=updates, mode=mode)
    update.trust_input = True

    def take(number: int) -> None:
        update(inputs[number], targets[number])

    return Contender(
        take_steps(take, len(inputs)), lambda: [each.get_value() for each in parameters.values()]
    )


def _shared(cells: Any) -> Any:
    return pytensor.shared(cells, shape=cells.shape)


def _loss(work: TrainingStep, scores: Any, targets: Any) -> Any:
    if work.loss == "hinge":
        one, zero = np.float32(1), np.float32(0)
        return pt.maximum(one - targets * scores[:, 0], zero).mean(dtype="float32")
    logarithms = pt.special.log_softmax(scores, axis=-1)
    return -logarithms[pt.arange(targets.shape[0]), targets].mean(dtype="float32")
