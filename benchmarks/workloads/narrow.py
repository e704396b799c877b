"""Workloads whose tensors are all stored in one format, which may be a narrow float."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import ocannl_core as oc
from workloads import rows, training
from workloads.functions import Function, TrainingStep

Array = np.ndarray[Any, Any]
Runner = Callable[[int], None]
Result = Callable[[], Array]

_SIZES = (64, 256, 512, 1024)


@dataclass(frozen=True, slots=True)
class Work:
    """A workload in one format.

    Attributes:
        name: Its title.
        own: A function that compiles the routine in a format, in the current session, and returns
            it with its result.
        torch: The same in PyTorch, as a function that runs a number of times.
        jax: The same in JAX.
    """

    name: str
    own: Callable[[str, str | None], tuple[Callable[[], Any], Result]]
    torch: Callable[[str, int], tuple[Runner, Result]]
    jax: Callable[[str, int], tuple[Runner, Result]]


def workloads() -> Iterator[Work]:
    """Yield products, functions along rows, and a training step."""
    for size in _SIZES:
        yield _function_work(_product(size))
    for each in rows.workloads():
        if not each.gradients:
            yield _function_work(each)
    yield _step_work(next(training.workloads()))


def _product(size: int) -> Function:
    def arrays() -> dict[str, Array]:
        random = np.random.default_rng(size)
        return {
            "a": random.standard_normal((size, size), dtype=np.float32),
            "b": random.standard_normal((size, size), dtype=np.float32),
        }

    def product(a: Any, b: Any) -> Any:
        return a @ b

    return Function(
        name=f"square {size}",
        arrays=arrays,
        own=lambda a, b: oc.einsum("ij; jk => ik", a, b),
        torch=product,
        jax=product,
        tinygrad=product,
        pytensor=None,
    )


# --- functions ------------------------------------------------------------------------------------


def _function_work(work: Function) -> Work:
    def own(dtype: str, backend: str | None) -> tuple[Callable[[], Any], Result]:
        arguments = {
            name: oc.tensor(cells, dtype=dtype, batch_axes=work.batch_axes.get(name, 0), label=name)
            for name, cells in work.arrays().items()
        }
        value = work.own(**arguments)
        context = oc.Context(backend)
        routine = context.compile(oc.train.forward(value), keep=[value])
        return routine, lambda: np.array(context[value]).astype(np.float32)

    return Work(
        work.name,
        own,
        lambda dtype, threads: _in_torch(work, dtype, threads),
        lambda dtype, threads: _in_jax(work, dtype),
    )


def _in_torch(work: Function, dtype: str, threads: int) -> tuple[Runner, Result]:
    import torch

    torch.set_num_threads(threads)
    kind = getattr(torch, dtype)
    arguments = {k: torch.from_numpy(v).to(kind) for k, v in work.arrays().items()}

    def run(times: int) -> None:
        with torch.no_grad():
            for _ in range(times):
                work.torch(**arguments)

    return run, lambda: work.torch(**arguments).float().numpy()


def _in_jax(work: Function, dtype: str) -> tuple[Runner, Result]:
    import jax

    arguments = {k: jax.numpy.asarray(v, dtype) for k, v in work.arrays().items()}
    apply = jax.jit(work.jax)

    def run(times: int) -> None:
        for _ in range(times):
            apply(**arguments).block_until_ready()

    return run, lambda: np.asarray(apply(**arguments)).astype(np.float32)


# --- a training step ------------------------------------------------------------------------------


def _step_work(work: TrainingStep) -> Work:
    return Work(
        work.name,
        lambda dtype, backend: _own_step(work, dtype, backend),
        lambda dtype, threads: _torch_step(work, dtype, threads),
        lambda dtype, threads: _jax_step(work, dtype),
    )


def _hot(work: TrainingStep) -> Array:
    targets = work.targets()
    hot: Array = np.eye(int(targets.max()) + 1, dtype=np.float32)[targets[0]]
    return hot


def _own_step(
    work: TrainingStep, dtype: str, backend: str | None
) -> tuple[Callable[[], Any], Result]:
    inputs = oc.tensor(work.batches()[0], dtype=dtype, batch_axes=1)
    targets = oc.tensor(_hot(work), dtype=dtype, batch_axes=1)
    parameters = {
        name: oc.param(
            name, init=oc.tensor(cells, dtype=dtype, input_axes=work.input_axes.get(name, 0))
        )
        for name, cells in work.parameters().items()
    }
    scores = work.own(inputs, **parameters)
    shifted = scores - oc.stop_gradient(oc.einmax("...|... => ...|0", scores))
    log_total = oc.log(oc.einsum("...|... => ...|0", oc.exp(shifted)))
    loss = oc.einsum("...|... => 0", targets * (log_total - shifted)) / len(_hot(work))
    context = oc.Context(backend)
    update = oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=work.rate)
    routine = context.compile(update, keep=())
    context.init_params(loss)
    first = next(iter(parameters.values()))
    return routine, lambda: np.array(context[first]).astype(np.float32)


def _torch_step(work: TrainingStep, dtype: str, threads: int) -> tuple[Runner, Result]:
    import torch

    torch.set_num_threads(threads)
    kind = getattr(torch, dtype)
    parameters = {
        key: torch.from_numpy(cells.copy()).to(kind).requires_grad_(True)
        for key, cells in work.parameters().items()
    }
    optimizer = torch.optim.SGD(list(parameters.values()), lr=work.rate)
    inputs = torch.from_numpy(work.batches()[0]).to(kind)
    labels = torch.from_numpy(work.targets()[0])

    def run(times: int) -> None:
        for _ in range(times):
            optimizer.zero_grad(set_to_none=True)
            scores = work.torch(inputs, **parameters)
            torch.nn.functional.cross_entropy(scores, labels).backward()
            optimizer.step()

    first = next(iter(parameters.values()))
    return run, lambda: first.detach().float().numpy()


def _jax_step(work: TrainingStep, dtype: str) -> tuple[Runner, Result]:
    import jax

    parameters = {k: jax.numpy.asarray(v, dtype) for k, v in work.parameters().items()}
    inputs = jax.numpy.asarray(work.batches()[0], dtype)
    targets = jax.numpy.asarray(_hot(work), dtype)

    def loss(current: dict[str, Any]) -> Any:
        scores = work.jax(inputs, **current)
        return -(targets * jax.nn.log_softmax(scores)).sum() / len(targets)

    @jax.jit
    def update(current: dict[str, Any]) -> dict[str, Any]:
        found = jax.grad(loss)(current)
        return {k: (v - work.rate * found[k]).astype(v.dtype) for k, v in current.items()}

    state = parameters

    def run(times: int) -> None:
        nonlocal state
        for _ in range(times):
            state = update(state)
        jax.block_until_ready(state)

    name = next(iter(parameters))
    return run, lambda: np.asarray(state[name]).astype(np.float32)
