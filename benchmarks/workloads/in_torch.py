"""Workloads as PyTorch runs them: as written, and compiled."""

from __future__ import annotations

from typing import Any

import harness
import torch

from workloads.functions import Contender, Function, Step

torch.set_num_threads(harness.THREADS)


def contenders(work: Function | Step, *, compiled: bool) -> list[Contender]:
    """Returns the workload as written and, if wanted, compiled."""
    build = function if isinstance(work, Function) else step
    kinds = (False, True) if compiled else (False,)
    return [build(work, each) for each in kinds]  # type: ignore[arg-type]


def function(work: Function, compiled: bool) -> Contender:
    """Returns the function, on tensors whose last axis is next to itself in memory."""
    name = "torch compiled" if compiled else "torch"
    apply = torch.compile(work.torch) if compiled else work.torch
    arguments = {
        key: torch.from_numpy(cells).requires_grad_(work.gradients)
        for key, cells in work.arrays().items()
    }
    if not work.gradients:

        def evaluate() -> Any:
            with torch.no_grad():
                return apply(**arguments)

        return Contender(name, _repeated(evaluate), lambda: [evaluate().numpy()])
    weights = torch.from_numpy(work.weights())

    def differentiate() -> Any:
        for each in arguments.values():
            each.grad = None
        value = apply(**arguments)
        value.backward(weights)
        return value

    def results() -> list[Any]:
        value = differentiate()
        tensors = [value.detach(), *(each.grad for each in arguments.values())]
        return [each.contiguous().numpy() for each in tensors]

    return Contender(name, _repeated(differentiate), results)


def step(work: Step, compiled: bool) -> Contender:
    """Returns the training step with the fused optimiser."""
    name = "torch compiled" if compiled else "torch"
    parameters = {
        key: torch.from_numpy(cells.copy()).requires_grad_(True)
        for key, cells in work.parameters().items()
    }
    optimiser = torch.optim.SGD(
        list(parameters.values()), lr=work.rate, momentum=work.momentum, fused=True
    )

    def loss_of(inputs: Any, labels: Any) -> Any:
        scores = work.torch(inputs, **parameters)
        return torch.nn.functional.cross_entropy(scores, labels)

    apply = torch.compile(loss_of) if compiled else loss_of
    inputs = list(torch.from_numpy(work.batches()).unbind(0))
    labels = list(torch.from_numpy(work.labels()).unbind(0))
    done = 0

    def run(times: int) -> None:
        nonlocal done
        for _ in range(times):
            optimiser.zero_grad(set_to_none=True)
            apply(inputs[done % len(inputs)], labels[done % len(inputs)]).backward()
            optimiser.step()
            done += 1

    return Contender(name, run, lambda: [p.detach().numpy() for p in parameters.values()])


def _repeated(once: Any) -> Any:
    def run(times: int) -> None:
        for _ in range(times):
            once()

    return run
