"""Workloads in JAX, compiled as a whole."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from workloads.functions import Attempts, Contender, Function, TrainingStep, repeat, take_steps


def contenders(work: Function | TrainingStep) -> Attempts:
    """Return the workload compiled."""
    match work:
        case Function():
            return {"jax": functools.partial(function, work)}
        case TrainingStep():
            return {"jax": functools.partial(step, work)}


def function(work: Function) -> Contender:
    """Return the function, with its gradients if it has any."""
    everything = {name: jnp.asarray(cells) for name, cells in work.arrays().items()}
    arguments = {name: everything[name] for name in work.differentiated()}
    positions = {name: cells for name, cells in everything.items() if name not in arguments}

    def value(arguments: Any, positions: Any) -> Any:
        return work.jax(**arguments, **positions)

    def with_gradients(arguments: Any, positions: Any, weights: Any) -> Any:
        result, pull = jax.vjp(lambda arguments: value(arguments, positions), arguments)
        return result, pull(weights)[0]

    if work.gradients:
        weights = jnp.asarray(work.weights())
        once = functools.partial(jax.jit(with_gradients), arguments, positions, weights)
    else:
        once = functools.partial(jax.jit(value), arguments, positions)

    def results() -> list[Any]:
        found = once()
        if not work.gradients:
            return [np.asarray(found)]
        return [np.asarray(found[0]), *(np.asarray(found[1][name]) for name in arguments)]

    return Contender(repeat(lambda: jax.block_until_ready(once())), results)


def step(work: TrainingStep) -> Contender:
    """Return the training step; parameters and velocities are updated in their memory."""
    parameters = {name: jnp.asarray(cells) for name, cells in work.parameters().items()}
    velocities = jax.tree.map(jnp.zeros_like, parameters) if work.momentum else {}
    value_and_gradients = jax.value_and_grad(functools.partial(_loss, work))

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def update(parameters: Any, velocities: Any, inputs: Any, targets: Any) -> Any:
        loss, changes = value_and_gradients(parameters, inputs, targets)
        if work.momentum:
            velocities = jax.tree.map(lambda v, g: work.momentum * v + g, velocities, changes)
            changes = velocities
        parameters = jax.tree.map(lambda p, c: p - work.rate * c, parameters, changes)
        return parameters, velocities, loss

    inputs = [jnp.asarray(each) for each in work.batches()]
    targets = [jnp.asarray(each) for each in _narrow(work.targets())]
    state = [parameters, velocities, None]

    def take(number: int) -> None:
        state[:] = update(state[0], state[1], inputs[number], targets[number])

    steps = take_steps(take, len(inputs))

    def run(times: int) -> None:
        steps(times)
        jax.block_until_ready(state)

    return Contender(run, lambda: [np.asarray(state[0][name]) for name in parameters])


def _narrow(targets: Any) -> Any:
    """Return integers in 32 bits, JAX's width."""
    return targets.astype(np.int32) if targets.dtype.kind == "i" else targets


def _loss(work: TrainingStep, parameters: Any, inputs: Any, targets: Any) -> Any:
    scores = work.jax(inputs, **parameters)
    if work.loss == "hinge":
        return jax.nn.relu(1 - targets * scores[:, 0]).mean()
    logarithms = jax.nn.log_softmax(scores)
    return -jnp.take_along_axis(logarithms, targets[:, None], 1).mean()
