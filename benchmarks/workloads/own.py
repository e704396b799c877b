"""Workloads as this project runs them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import ocannl_core as oc
from workloads.functions import Contender, Function, Step


def contenders(work: Function | Step, backend: str | None) -> list[Contender]:
    """Returns the workload compiled; a step with and without its intermediate values kept."""
    if isinstance(work, Function):
        return [function(work, backend)]
    return [step(work, backend, ()), step(work, backend, None)]


def function(work: Function, backend: str | None) -> Contender:
    """Returns a compiled function of parameters."""
    with oc.Session():
        arguments = {
            name: oc.tensor(
                cells,
                batch_axes=work.batch_axes.get(name, 0),
                input_axes=work.input_axes.get(name, 0),
                label=name,
                requires_grad=work.gradients,
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
            kept = [value, *(each.grad for each in arguments.values())]
            routine = context.compile(oc.train.grad_update(loss), keep=kept)

    def run(times: int) -> None:
        for _ in range(times):
            routine()

    return Contender("compiled", run, lambda: [np.array(context[each]) for each in kept])


def step(work: Step, backend: str | None, keep: Sequence[oc.Tensor] | None) -> Contender:
    """Returns a compiled training step."""
    with oc.Session():
        batches = work.batches()
        count = len(batches)
        number = oc.static_index("minibatch", range=count)
        inputs = oc.tensor(batches, batch_axes=2)[number]
        hot = np.eye(work.classes, dtype=np.float32)[work.labels()]
        targets = oc.tensor(hot, batch_axes=2)[number]
        parameters = {
            name: oc.param(name, init=oc.tensor(cells, input_axes=work.input_axes.get(name, 0)))
            for name, cells in work.parameters().items()
        }
        scores = work.own(inputs, **parameters)
        shifted = scores - oc.stop_gradient(oc.einmax("...|... => ...|0", scores))
        log_total = oc.log(oc.einsum("...|... => ...|0", oc.exp(shifted)))
        loss = oc.einsum("...|... => 0", targets * (log_total - shifted)) / batches.shape[1]
        context = oc.Context(backend)
        update = oc.train.grad_update(loss)
        update += oc.train.sgd_update(loss, learning_rate=work.rate, momentum=work.momentum)
        routine = context.compile(update, bindings=[number], keep=keep)
        context.init_params(loss)
    done = 0

    def run(times: int) -> None:
        nonlocal done
        for _ in range(times):
            routine(minibatch=done % count)
            done += 1

    name = "compiled" if keep is not None else "compiled, all kept"
    return Contender(name, run, lambda: [np.array(context[p]) for p in parameters.values()])
