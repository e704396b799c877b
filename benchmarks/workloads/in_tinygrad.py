"""Workloads in tinygrad: captured by its JIT, on its device for processors.

The environment variable `BEAM` enables its search for kernels, which takes minutes for each of
them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from tinygrad import Device, Tensor, TinyJit, nn
from tinygrad.helpers import Context, getenv

from workloads.functions import Attempts, Contender, Function, TrainingStep, take_steps


def contenders(work: Function | TrainingStep) -> Attempts:
    """Return the workload captured, if tinygrad compiles it within minutes."""
    if work.tinygrad is None:
        return {}
    beam = getenv("BEAM", 0)
    name = f"tinygrad, beam {beam}" if beam else "tinygrad"
    match work:
        case Function():
            return {name: partial(function, work)}
        case TrainingStep():
            return {name: partial(step, work)}


def function(work: Function) -> Contender:
    """Return the function, with its gradients if it has any."""
    compute = work.tinygrad
    assert compute is not None
    arguments = {name: Tensor(cells).realize() for name, cells in work.arrays().items()}
    weights = Tensor(work.weights()).realize() if work.gradients else None

    @TinyJit
    def once(**arguments: Any) -> Any:
        value = compute(**arguments)
        found = [value.contiguous()]
        if weights is not None:
            wanted = [arguments[name] for name in work.differentiated()]
            found += value.gradient(*wanted, gradient=weights)
        return Tensor.realize(*found), found

    def call() -> Any:
        return once(**arguments)

    def run(times: int) -> None:
        _finished(lambda: [call() for _ in range(times)])

    return Contender(run, lambda: [each.numpy() for each in call()[1]])


def step(work: TrainingStep) -> Contender:
    """Return the training step with the library's optimizer."""
    parameters = {
        name: Tensor(cells.copy()).realize().is_param_()
        for name, cells in work.parameters().items()
    }
    optimizer = nn.optim.SGD(list(parameters.values()), lr=work.rate, momentum=work.momentum)

    @TinyJit
    def update(inputs: Any, targets: Any) -> Any:
        optimizer.zero_grad()
        loss = _loss(work, work.tinygrad(inputs, **parameters), targets)
        loss.backward()
        return loss.realize(*optimizer.schedule_step())

    inputs = [Tensor(each).realize() for each in work.batches()]
    targets = [Tensor(each).realize() for each in _narrow(work.targets())]
    steps = take_steps(lambda number: update(inputs[number], targets[number]), len(inputs))

    def run(times: int) -> None:
        with Context(TRAINING=1):
            _finished(lambda: steps(times))

    return Contender(run, lambda: [each.numpy() for each in parameters.values()])


def _narrow(targets: Any) -> Any:
    return targets.astype(np.int32) if targets.dtype.kind == "i" else targets


def _loss(work: TrainingStep, scores: Any, targets: Any) -> Any:
    if work.loss == "hinge":
        return (1 - targets * scores.squeeze(-1)).relu().mean()
    return scores.sparse_categorical_crossentropy(targets)


def _finished(work: Callable[[], Any]) -> None:
    work()
    Device[Device.DEFAULT].synchronize()
