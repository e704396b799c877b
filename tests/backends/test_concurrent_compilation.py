"""Threads compile programs of their own at the same time, each with the results that it has alone."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.backend.queues import HostQueue
from ocannl_core.base import settings
from ocannl_core.ir import node
from ocannl_core.ir.node import TensorNode
from ocannl_core.runtime import device
from ocannl_core.tensor.graph import tensor
from tests.support.slow import slow

THREADS = 3
ROUNDS = 2
Result = TypeVar("Result")


@pytest.fixture(autouse=True)
def short_turns() -> Iterator[None]:
    """Switch between threads after ten microseconds, so that races of the interpreter show."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def train(backend: str, width: int) -> tuple[list[float], str]:
    """Return the losses of a network and the loops of its training step."""
    with oc.Session(seed=width):
        x = oc.tensor(np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3), batch_axes=1)
        hidden = oc.tanh(oc.param("w1", output=[width]) @ x + oc.param("b1", init=0.0))
        scores = oc.softmax(oc.param("w2", output=[4]) @ hidden, axis=-1)
        loss = oc.einsum("...|... => 0", (scores - oc.einsum("i => i", scores) * 0.5) ** 2.0)
        context = oc.Context(backend)
        step = context.compile(oc.train.Adam(learning_rate=1e-2).minimize(loss))
        context.init_params(loss)
        losses = []
        for _ in range(3):
            step()
            losses.append(context.item(loss))
        return losses, str(step.loop_ir)


def at_once(work: Sequence[Callable[[], Result]]) -> list[Result]:
    """Return the results of functions in threads that begin at the same moment."""
    barrier = threading.Barrier(len(work))

    def run(each: Callable[[], Result]) -> Result:
        barrier.wait()
        return each()

    with ThreadPoolExecutor(len(work)) as pool:
        return list(pool.map(run, work))


def together(work: list[tuple[str, int]]) -> list[tuple[list[float], str]]:
    """Train networks in threads that begin at the same moment."""
    return at_once([partial(train, *item) for item in work])


@pytest.mark.parametrize("backend", [*slow(["interp"]), "cpu_c"])
@pytest.mark.parametrize("is_same", [*slow([False]), True], ids=["other programs", "one program"])
def test_threads_that_compile_at_once_have_the_bits_of_one(backend: str, is_same: bool) -> None:
    widths = [5 + (0 if is_same else number) for number in range(THREADS)]
    found = together([(backend, width) for width in widths])
    assert found == [train(backend, width) for width in widths]


def test_settings_of_a_thread_are_its_own_while_others_compile() -> None:
    barrier = threading.Barrier(THREADS)

    def run(number: int) -> bool:
        with settings.overrides(backend="interp", max_visits=number):
            barrier.wait()
            train("interp", 5 + number)
            return settings.current().max_visits == number

    with ThreadPoolExecutor(THREADS) as pool:
        assert all(pool.map(run, range(THREADS)))


@pytest.mark.parametrize("backend", [*slow(["interp"]), "cpu_c"])
def test_threads_compile_one_program_for_contexts_of_their_own(backend: str) -> None:
    def compute(x: oc.Tensor, loss: oc.Tensor, code: oc.Computation) -> float:
        context = oc.Context(backend)
        context[x] = np.linspace(-1, 1, 6)
        context.init_params(loss)
        context.compile(code)()
        return context.item(loss)

    for _ in range(ROUNDS):
        with oc.Session():
            x = oc.placeholder("x", output=[6])
            hidden = oc.tanh(oc.param("w1", output=[5]) @ x + oc.param("b1", init=0.0))
            loss = oc.einsum("... => 0", (oc.param("w2", output=[4]) @ hidden) ** 2.0)
        program = partial(compute, x, loss, oc.train.forward(loss))
        assert at_once([program] * THREADS) == [program()] * THREADS


@pytest.mark.parametrize("backend", [*slow(["interp"]), "cpu_c"])
def test_routines_that_threads_compile_in_one_context_share_its_memory(backend: str) -> None:
    @oc.cd
    def add(total: oc.Tensor, factor: float, x: oc.Tensor) -> None:
        total += factor * x

    for _ in range(ROUNDS):
        with oc.Session():
            x, total = oc.placeholder("x", output=[3]), oc.placeholder("total", output=[3])
            codes = [add(total, number + 1.0, x) for number in range(THREADS)]
        context = oc.Context(backend)
        steps = at_once([partial(context.compile, code) for code in codes])
        context[x], context[total] = [1, 2, 3], 0.0
        for step in steps:
            step()
        assert context[total].tolist() == [6, 12, 18]


def slowly(make: Callable[..., Result]) -> Callable[..., Result]:
    """Return a function that lets other threads run before it returns."""

    def made(*arguments: Any) -> Result:
        result = make(*arguments)
        time.sleep(0.01)
        return result

    return made


def test_threads_that_ask_for_the_node_of_a_tensor_get_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[3])
    monkeypatch.setattr(tensor, "TensorNode", slowly(TensorNode))
    assert len(set(at_once([lambda: x.node] * THREADS))) == 1


def test_values_that_threads_give_a_tensor_stay_in_each_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[3])
    contexts = [oc.Context("interp") for _ in range(THREADS)]
    monkeypatch.setattr(node, "WeakKeyDictionary", slowly(weakref.WeakKeyDictionary))
    at_once([partial(each.__setitem__, x, number) for number, each in enumerate(contexts)])
    assert [each[x].tolist() for each in contexts] == [[number] * 3 for number in range(THREADS)]


def test_contexts_of_threads_share_the_queue_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = oc.Context("interp").store.device
    monkeypatch.setattr(shared, "_queue", None)
    monkeypatch.setattr(device, "HostQueue", slowly(HostQueue))
    queues = at_once([lambda: oc.Context("interp", asynchronous=True).store.queue] * THREADS)
    assert len(set(queues)) == 1
