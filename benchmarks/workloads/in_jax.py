"""Workloads as JAX runs them, compiled as a whole."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from workloads.functions import Contender, Function, Step


def contenders(work: Function | Step) -> list[Contender]:
    """Returns the workload compiled."""
    return [function(work) if isinstance(work, Function) else step(work)]


def function(work: Function) -> Contender:
    """Returns the function, with its gradients if it has any."""
    arguments = {name: jnp.asarray(cells) for name, cells in work.arrays().items()}

    def value(arguments: Any) -> Any:
        return work.jax(**arguments)

    def with_gradients(arguments: Any, weights: Any) -> Any:
        result, pull = jax.vjp(value, arguments)
        return result, pull(weights)[0]

    if work.gradients:
        weights = jnp.asarray(work.weights())
        once = functools.partial(jax.jit(with_gradients), arguments, weights)
    else:
        once = functools.partial(jax.jit(value), arguments)

    def results() -> list[Any]:
        found = once()
        if not work.gradients:
            return [np.asarray(found)]
        return [np.asarray(found[0]), *(np.asarray(found[1][name]) for name in arguments)]

    def run(times: int) -> None:
        for _ in range(times):
            jax.block_until_ready(once())

    return Contender("jax", run, results)


def step(work: Step) -> Contender:
    """Returns the training step; parameters and velocities are updated in their memory."""
    parameters = {name: jnp.asarray(cells) for name, cells in work.parameters().items()}
    velocities = jax.tree.map(jnp.zeros_like, parameters)

    def loss_of(parameters: Any, inputs: Any, labels: Any) -> Any:
        logarithms = jax.nn.log_softmax(work.jax(inputs, **parameters))
        return -jnp.take_along_axis(logarithms, labels[:, None], 1).mean()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def update(parameters: Any, velocities: Any, inputs: Any, labels: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, inputs, labels)
        velocities = jax.tree.map(lambda v, g: work.momentum * v + g, velocities, gradients)
        parameters = jax.tree.map(lambda p, v: p - work.rate * v, parameters, velocities)
        return parameters, velocities, loss

    inputs = [jnp.asarray(each) for each in work.batches()]
    labels = [jnp.asarray(each.astype(np.int32)) for each in work.labels()]
    state = [parameters, velocities]
    done = 0

    def run(times: int) -> None:
        nonlocal done
        for _ in range(times):
            number = done % len(inputs)
            *state[:], loss = update(*state, inputs[number], labels[number])
            done += 1
        jax.block_until_ready((state, loss))

    return Contender("jax", run, lambda: [np.asarray(state[0][name]) for name in parameters])
