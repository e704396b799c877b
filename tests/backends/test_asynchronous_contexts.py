"""Programs over several contexts have the results of synchronous ones, whatever the timing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

import ocannl_core as oc
from ocannl_core.backend.queues import HostQueue
from ocannl_core.base import settings
from ocannl_core.testing.children import succeeds_in_child

CONTEXTS = 3
Action = tuple[str, int, int]
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["write", "double", "add", "copy", "merge", "stream", "read"]),
        st.integers(0, CONTEXTS - 1),
        st.integers(0, CONTEXTS - 1),
    ),
    min_size=1,
    max_size=14,
)


@oc.cd
def double(x: oc.Tensor) -> None:
    x += x


@oc.cd
def add(total: oc.Tensor, x: oc.Tensor) -> None:
    total += x


@oc.cd
def add_merged(total: oc.Tensor, x: oc.Tensor) -> None:
    total += x.merge


class Program:
    """Contexts with two tensors each, and the routines of the actions."""

    def __init__(self, backend: str, *, asynchronous: bool) -> None:
        self.session = oc.Session()
        with self.session, settings.overrides(host_devices=CONTEXTS):
            self.x, self.total = (
                oc.placeholder(name, output=[64], dtype="int32") for name in ("x", "total")
            )
            self.contexts = [
                oc.Context(f"{backend}:{k}", asynchronous=asynchronous) for k in range(CONTEXTS)
            ]
            first = self.contexts[0]
            self.steps = {}
            for name, code in (
                ("double", double(self.x)),
                ("add", add(self.total, self.x)),
                ("merge", add_merged(self.total, self.x)),
            ):
                step = first.compile(code, name=name)
                self.steps[name] = [step, *(ctx.link(step) for ctx in self.contexts[1:])]

    def run(self, actions: list[Action]) -> list[bytes]:
        """Return what the reads give, and all values at the end."""
        x, total, found = self.x, self.total, []
        for k, ctx in enumerate(self.contexts):
            ctx[x], ctx[total] = k + 1, 0
        for number, (name, k, other) in enumerate(actions):
            ctx, source = self.contexts[k], self.contexts[other]
            match name:
                case "write":
                    ctx[x] = np.arange(64) + number
                case "copy":
                    ctx.copy_from(source, x)
                case "merge" | "stream":
                    ctx.fill_merge(x, source=source, streamed=name == "stream")
                    self.steps["merge"][k]()
                case "read":
                    found.append(ctx[total].tobytes())
                case _:
                    self.steps[name][k]()
        for ctx in self.contexts:
            found += [ctx[x].tobytes(), ctx[total].tobytes()]
        return found


@pytest.fixture(scope="module", params=["interp", "cpu_c"])
def programs(request: pytest.FixtureRequest) -> tuple[Program, Program]:
    return tuple(Program(request.param, asynchronous=each) for each in (False, True))  # type: ignore[return-value]


@pytest.fixture
def _uneven_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the second device be late."""
    original = HostQueue.run

    def run(self: HostQueue, work: Callable[[], object]) -> BaseException | None:
        if self.name.endswith(":1"):
            time.sleep(0.002)
        return original(self, work)

    monkeypatch.setattr(HostQueue, "run", run)


@pytest.mark.usefixtures("_uneven_queues")
@examples(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ACTIONS)
def test_queues_change_no_result(programs: tuple[Program, Program], actions: list[Action]) -> None:
    synchronous, asynchronous = programs
    assert asynchronous.run(actions) == synchronous.run(actions)


def test_host_access_waits_for_one_routine_and_not_for_later_ones() -> None:
    with oc.Session():
        x, y = oc.placeholder("x", output=[2]), oc.placeholder("y", output=[2])
        ctx = oc.Context("interp", asynchronous=True)
        fast, slow = ctx.compile(double(x)), ctx.compile(double(y))
        ctx[x], ctx[y] = 1.0, 1.0
        fast()
        gate = HostQueue("gate")
        held = gate.submit(lambda: time.sleep(0.2), "wait")
        queue = ctx._store.queue
        assert queue is not None
        queue.wait_for(held)
        slow()
        assert ctx[x].tolist() == [2.0, 2.0]
        assert not held.is_done  # the second routine has not run
        assert ctx[y].tolist() == [2.0, 2.0]
        assert held.is_done


def test_an_error_of_submitted_work_is_raised_by_the_first_wait() -> None:
    with oc.Session():
        table, ids = oc.placeholder("t", output=[3]), oc.placeholder("i", output=[2], dtype="int32")
        picked = oc.take(table, ids, axis=0)
        ctx = oc.Context("cpu_c", asynchronous=True)
        step = ctx.compile(oc.train.forward(picked))
        ctx[table], ctx[ids] = [1.0, 2.0, 3.0], [0, 7]
        step()
        with pytest.raises(oc.UsageError, match="7"):
            ctx[picked]
        ctx[ids] = [0, 2]
        step()
        assert ctx[picked].tolist() == [1.0, 3.0]
        ctx[ids] = [0, 9]
        step()
        with pytest.raises(oc.UsageError, match="9"):
            ctx.synchronize()
        ctx.synchronize()


def test_work_behind_a_failure_is_left_out_until_it_is_raised() -> None:
    queue, done = HostQueue("test"), []

    def fail() -> None:
        raise ValueError("broken")

    first, second = queue.submit(fail, "fail"), queue.submit(lambda: done.append(1), "later")
    for event in (second, first):
        with pytest.raises(ValueError, match="broken"):
            event.wait()
    assert not done
    queue.submit(lambda: done.append(2), "again").wait()
    assert done == [2]


def test_an_event_of_another_queue_comes_first() -> None:
    slow, fast, order = HostQueue("slow"), HostQueue("fast"), []

    def later() -> None:
        time.sleep(0.05)
        order.append("slow")

    fast.wait_for(slow.submit(later, "later"))
    fast.submit(lambda: order.append("fast"), "fast").wait()
    assert order == ["slow", "fast"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_work_that_is_not_over_at_a_fork_fails_in_the_child() -> None:
    queue, done = HostQueue("test"), []
    begun, may_go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        may_go_on.wait()

    works = {"first": wait, "second": lambda: done.append(2)}
    events = {each: queue.submit(work, each) for each, work in works.items()}
    begun.wait()

    def run() -> None:
        for name, event in events.items():
            with pytest.raises(oc.UsageError, match=f"{name}: not over when the process forked"):
                event.wait()
        queue.submit(lambda: done.append(3), "third").wait()
        queue.synchronize()
        assert done == [3]

    assert succeeds_in_child(run)
    may_go_on.set()
    queue.synchronize()
    assert done == [2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_has_the_values_that_were_there_before_a_fork() -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[2])
        ctx = oc.Context("cpu_c", asynchronous=True)
        step = ctx.compile(double(x))
        ctx[x] = 1.0
        step()
        ctx.synchronize()

        def run() -> None:
            step()
            assert ctx[x].tolist() == [4.0, 4.0]

        assert succeeds_in_child(run)
        assert ctx[x].tolist() == [2.0, 2.0]
