"""A routine runs one call at a time: it has one memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.backend import manager
from ocannl_core.testing.children import succeeds_in_child
from tests.support.sample_ops import Calling

SECONDS = 30
"""The time for which a thread waits for another one before the test fails."""


def calling(target: str, perform: Callable[[], None]) -> tuple[Any, Callable[[], list[float]]]:
    """Return a routine that calls a function while it runs, and a function that reads its
    result.
    """

    def double(inputs: Any, storage: Any) -> None:
        perform()
        storage[0][0] = inputs[0] * 2

    with oc.Session():
        x = oc.placeholder("x", output=[3])
        y = oc.exp(Calling(double)(x + 1.0) * 0.0)
        ctx = oc.Context(target)
        step = ctx.compile(oc.train.forward(y), name="doubled")
        ctx[x] = [1, 2, 3]
    return step, lambda: ctx[y].tolist()


def test_a_call_during_another_one_is_an_error_that_names_the_routine(target: str) -> None:
    inside, may_go_on = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        assert may_go_on.wait(SECONDS)

    step, result = calling(target, wait)
    other = threading.Thread(target=step)
    other.start()
    assert inside.wait(SECONDS)
    with pytest.raises(oc.UsageError, match="One call of a routine runs at a time") as error:
        step()
    assert error.value.found.startswith("doubled called while another call of it runs")
    assert "hold a lock" in error.value.fix
    may_go_on.set()
    other.join()
    assert result() == [1, 1, 1]
    step()


def test_a_routine_does_not_call_itself(target: str) -> None:
    routines: list[Any] = []

    def again() -> None:
        routines[0]()

    step, _ = calling(target, again)
    routines.append(step)
    with pytest.raises(oc.OpError) as error:
        step()
    assert isinstance(error.value.__cause__, oc.UsageError)
    assert "doubled" in error.value.__cause__.found


def test_a_call_that_failed_is_over(target: str) -> None:
    fails = [True]

    def fail_once() -> None:
        if fails.pop():
            fails.append(False)
            raise ValueError("once")

    step, result = calling(target, fail_once)
    with pytest.raises(oc.OpError, match="once"):
        step()
    step()
    assert result() == [1, 1, 1]


def test_threads_that_call_one_routine_of_compiled_code_find_out() -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[400, 400])
        y = oc.einsum("i,j; j,k => i,k", oc.tanh(x), x)
        ctx = oc.Context("cpu_c")
        step = ctx.compile(oc.train.forward(y), name="product")
        cells = np.random.default_rng(0).standard_normal((400, 400)).astype(np.float32)
        ctx[x] = cells
    step()
    right = ctx[y].tobytes()
    refused: list[str] = []
    barrier = threading.Barrier(4, timeout=SECONDS)

    def call() -> None:
        for _ in range(50):
            barrier.wait()
            try:
                step()
            except oc.UsageError as error:
                refused.append(error.found)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert refused
    assert all(each.startswith("product called while") for each in refused)
    assert ctx[y].tobytes() == right


def test_indices_that_are_refused_leave_a_routine_callable(target: str) -> None:
    class Wrong:
        def __index__(self) -> int:
            raise ValueError("no number")

    with oc.Session():
        i = oc.static_index("i", range=3)
        x = oc.placeholder("x", batch=[3], output=[2])
        y = x[i] * 2.0
        ctx = oc.Context(target)
        step = ctx.compile(oc.train.forward(y), bindings=[i])
        ctx[x] = [[1, 2], [3, 4], [5, 6]]
    for _ in range(2):
        with pytest.raises(ValueError, match="no number"):
            step(i=Wrong())
        step(i=1)
        assert ctx[y].tolist() == [6, 8]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_call_of_a_thread_of_the_parent_does_not_run_in_a_child(target: str) -> None:
    inside, may_go_on = threading.Event(), threading.Event()
    waits = [True]

    def wait() -> None:
        if waits:
            inside.set()
            assert may_go_on.wait(SECONDS)

    step, result = calling(target, wait)
    other = threading.Thread(target=step)
    other.start()
    assert inside.wait(SECONDS)
    _, device = manager.select(target)

    def run() -> None:
        waits.clear()
        if not device.survives_forks:
            with pytest.raises(oc.DeviceError, match="the child of a fork"):
                step()
            return
        step()
        assert result() == [1, 1, 1]

    assert succeeds_in_child(run)
    may_go_on.set()
    other.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_calls_compiled_code_that_runs_in_its_parent() -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[700, 700])
        y = oc.einsum("i,j; j,k => i,k", x, x)
        ctx = oc.Context("cpu_c")
        step = ctx.compile(oc.train.forward(y), name="product")
        ctx[x] = np.ones((700, 700), np.float32)
    is_over, begun = threading.Event(), threading.Event()

    def call() -> None:
        while not is_over.is_set():
            step()
            begun.set()

    def run() -> None:
        step()
        assert (ctx[y] == 700).all()

    thread = threading.Thread(target=call)
    thread.start()
    begun.wait()
    assert all(succeeds_in_child(run) for _ in range(3))
    is_over.set()
    thread.join()
