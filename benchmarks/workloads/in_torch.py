"""Workloads in PyTorch: eager, and compiled."""

from __future__ import annotations

from functools import partial
from typing import Any

import harness
import torch
import torch._dynamo

from workloads.functions import Attempts, Contender, Function, TrainingStep, repeat, take_steps

torch.set_num_threads(harness.THREADS)
torch._dynamo.config.recompile_limit = 100  # one function is compiled for many extents

_compiled = partial(torch.compile, dynamic=False)  # extents never change here


def contenders(work: Function | TrainingStep) -> Attempts:
    """Return the workload as written and compiled; a step also compiled as a whole."""
    match work:
        case Function():
            return {
                "torch": partial(function, work, lambda each: each),
                "torch compiled": partial(function, work, _compiled),
            }
        case TrainingStep():
            return {
                "torch": partial(step, work, lambda each: each),
                "torch compiled": partial(step, work, _compiled),
                "torch compiled as a whole": partial(whole_step, work),
            }


def function(work: Function, compiled: Any) -> Contender:
    """Return the function, on tensors whose last axis is next to itself in memory."""
    apply = compiled(work.torch)
    wanted = work.differentiated() if work.gradients else ()
    arguments = {
        key: torch.from_numpy(cells).requires_grad_(key in wanted)
        for key, cells in work.arrays().items()
    }
    if not work.gradients:

        def evaluate() -> Any:
            with torch.no_grad():
                return apply(**arguments)

        return Contender(repeat(evaluate), lambda: [evaluate().numpy()])
    weights = torch.from_numpy(work.weights())

    def differentiate() -> Any:
        for each in arguments.values():
            each.grad = None
        value = apply(**arguments)
        value.backward(weights)
        return value

    def results() -> list[Any]:
        value = differentiate()
        tensors = [value.detach(), *(arguments[key].grad for key in wanted)]
        return [each.contiguous().numpy() for each in tensors]

    return Contender(repeat(differentiate), results)


def step(work: TrainingStep, compiled: Any) -> Contender:
    """Return the training step with the fused optimizer."""
    parameters = {
        key: torch.from_numpy(cells.copy()).requires_grad_(True)
        for key, cells in work.parameters().items()
    }
    optimizer = torch.optim.SGD(
        list(parameters.values()), lr=work.rate, momentum=work.momentum, fused=True
    )
    apply = compiled(partial(_loss, work))
    inputs, targets = _minibatches(work)

    def take(number: int) -> None:
        optimizer.zero_grad(set_to_none=True)
        apply(parameters, inputs[number], targets[number]).backward()
        optimizer.step()

    def results() -> list[Any]:
        return [each.detach().numpy() for each in parameters.values()]

    return Contender(take_steps(take, len(inputs)), results)


def whole_step(work: TrainingStep) -> Contender:
    """Return the training step as one compiled function, gradients and optimizer included."""
    parameters = {key: torch.from_numpy(cells.copy()) for key, cells in work.parameters().items()}
    velocities = {key: torch.zeros_like(cells) for key, cells in parameters.items()}
    gradients_of = torch.func.grad_and_value(partial(_loss, work))

    def update(parameters: Any, velocities: Any, inputs: Any, targets: Any) -> Any:
        gradients, loss = gradients_of(parameters, inputs, targets)
        for key, gradient in gradients.items():
            if work.momentum:
                gradient = velocities[key].mul_(work.momentum).add_(gradient)
            parameters[key].sub_(gradient * work.rate)
        return loss

    apply = _compiled(update)
    inputs, targets = _minibatches(work)

    def take(number: int) -> None:
        apply(parameters, velocities, inputs[number], targets[number])

    return Contender(
        take_steps(take, len(inputs)), lambda: [each.numpy() for each in parameters.values()]
    )


def _minibatches(work: TrainingStep) -> tuple[list[Any], list[Any]]:
    return tuple(
        list(torch.from_numpy(each).unbind(0)) for each in (work.batches(), work.targets())
    )


def _loss(work: TrainingStep, parameters: Any, inputs: Any, targets: Any) -> Any:
    scores = work.torch(inputs, **parameters)
    if work.loss == "hinge":
        return torch.relu(1 - targets * scores.squeeze(-1)).mean()
    return torch.nn.functional.cross_entropy(scores, targets)
