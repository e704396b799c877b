"""Workloads in this project."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from results import OWN

import ocannl_core as oc
from workloads.functions import Attempts, Contender, Function, TrainingStep, repeat, take_steps


def contenders(work: Function | TrainingStep, backend: str | None) -> Attempts:
    """Return the workload compiled; a step with and without its intermediate values kept."""
    match work:
        case Function():
            return {OWN: partial(function, work, backend)}
        case TrainingStep():
            return {
                OWN: partial(step, work, backend, ()),
                f"{OWN}, all kept": partial(step, work, backend, None),
            }


def function(work: Function, backend: str | None) -> Contender:
    """Return a compiled function of parameters."""
    wanted = work.differentiated() if work.gradients else ()
    with oc.Session():
        arguments = {
            name: oc.tensor(
                cells,
                batch_axes=work.batch_axes.get(name, 0),
                input_axes=work.input_axes.get(name, 0),
                label=name,
                requires_grad=name in wanted,
            )
            for name, cells in work.arrays().items()
        }
        value = work.own(**arguments)
        context = oc.Context(backend)
        if not work.gradients:
            routine = context.compile(oc.train.forward(value), keep=[value])
            kept = [value]
        else:
            weights = oc.tensor(work.weights(), batch_axes=work.batch_axes.get("result", 0))
            loss = oc.einsum("... => 0", value * weights)
            kept = [value, *(arguments[name].grad for name in wanted)]
            routine = context.compile(oc.train.grad_update(loss), keep=kept)
    return Contender(repeat(routine), lambda: [np.array(context[each]) for each in kept])


def step(work: TrainingStep, backend: str | None, keep: Sequence[oc.Tensor] | None) -> Contender:
    """Return a compiled training step."""
    with oc.Session():
        batches = work.batches()
        count = len(batches)
        number = oc.static_index("minibatch", range=count)
        inputs = oc.tensor(batches, batch_axes=2)[number]
        targets = oc.tensor(_targets(work), batch_axes=2)[number]
        parameters = {
            name: oc.param(name, init=oc.tensor(cells, input_axes=work.input_axes.get(name, 0)))
            for name, cells in work.parameters().items()
        }
        loss = _loss(work, work.own(inputs, **parameters), targets) / batches.shape[1]
        context = oc.Context(backend)
        update = oc.train.grad_update(loss)
        update += oc.train.sgd_update(loss, learning_rate=work.rate, momentum=work.momentum)
        routine = context.compile(update, bindings=[number], keep=keep)
        context.init_params(loss)

    def take(number: int) -> None:
        routine(minibatch=number)

    def results() -> list[Any]:
        return [np.array(context[each]) for each in parameters.values()]

    return Contender(take_steps(take, count), results)


def _targets(work: TrainingStep) -> Any:
    """Return them as scores are: `minibatch, example, class`."""
    targets = work.targets()
    if work.loss == "hinge":
        return targets[..., np.newaxis]
    return np.eye(targets.max() + 1, dtype=np.float32)[targets]


def _loss(work: TrainingStep, scores: Any, targets: Any) -> Any:
    """Return the sum over the examples."""
    if work.loss == "hinge":
        return oc.einsum("...|... => 0", oc.relu(1 - targets * scores))
    shifted = scores - oc.stop_gradient(oc.einmax("...|... => ...|0", scores))
    log_total = oc.log(oc.einsum("...|... => ...|0", oc.exp(shifted)))
    return oc.einsum("...|... => 0", targets * (log_total - shifted))
