"""Events of asynchronous backends: devices that wait for each other without the host."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

import ocannl_core as oc
from ocannl_core.backend import manager
from ocannl_core.backend.protocols import Event, HostBuffer, TargetReport
from ocannl_core.backend.queues import HostQueue, QueueEvent
from ocannl_core.backend.specs import hookimpl
from ocannl_core.base.errors import HookError
from ocannl_core.ir.target import Capability, Target
from tests.support.faulty_backend import faulty

ocannl_interp = pytest.importorskip("ocannl_interp")

_PATIENCE = 20.0
"""Seconds until a test gives up that would wait forever."""


class Chip:
    """The interpreter as two devices, each with a queue of its own, and a gate for each."""

    OCANNL_API = (1, 0)

    def __init__(self) -> None:
        self.queues = [HostQueue(f"chip:{number}") for number in range(2)]
        self.gates = [threading.Event() for _ in range(2)]
        self.synchronized = 0
        for gate in self.gates:
            gate.set()

    @hookimpl
    def ocannl_targets(self) -> TargetReport:
        chips = (Target("chip", k, capabilities=(Capability.MERGE_BUFFERS,)) for k in range(2))
        return TargetReport(tuple(chips))

    def submit(self, work: Callable[[], object], target: Target) -> QueueEvent:
        def gated() -> None:
            assert self.gates[target.device].wait(_PATIENCE), "the gate stayed closed"
            work()

        return self.queues[target.device].submit(gated, "work")

    @hookimpl
    def ocannl_compile(self, source: Any, target: Target) -> Any:
        executable = ocannl_interp.ocannl_compile(source, target)

        class Linked:
            def link(linked, *buffers: Mapping[Any, Any]) -> Callable[[Sequence[int]], None]:
                launch = executable.link(*buffers)

                def start(values: Sequence[int]) -> None:
                    self.submit(lambda found=tuple(values): launch(found), target)

                return start

        return Linked()

    @hookimpl
    def ocannl_transfer(self, destination: Any, source: Any) -> Event:
        target = source.target if isinstance(destination, HostBuffer) else destination.target
        return self.submit(lambda: ocannl_interp.ocannl_transfer(destination, source), target)

    @hookimpl
    def ocannl_synchronize(self, target: Target) -> bool:
        self.synchronized += 1
        self.queues[target.device].synchronize()
        return True

    @hookimpl
    def ocannl_record_event(self, target: Target) -> Event:
        return self.submit(lambda: None, target)

    @hookimpl
    def ocannl_wait_event(self, event: Event, target: Target) -> bool | None:
        if not isinstance(event, QueueEvent):
            return None
        self.queues[target.device].wait_for(event)
        return True

    @hookimpl
    def ocannl_generate(self, kernels: Any, target: Target) -> Any:
        return ocannl_interp.ocannl_generate(kernels, target)

    @hookimpl
    def ocannl_allocate(self, info: Any, target: Target) -> Any:
        return ocannl_interp.ocannl_allocate(info, target)

    def register(self, *without: str) -> None:
        """Register the backend, without some of its hooks."""
        for hook in without:
            setattr(self, hook, None)
        manager.register("chip", self)


@pytest.fixture
def chip(fresh_plugins: None) -> Chip:
    return Chip()


def program(scale: int = 2) -> tuple[oc.Tensor, oc.Tensor, oc.Computation]:
    x = oc.placeholder("x", output=[4], dtype="int32")
    y = x * scale
    return x, y, oc.train.forward(y)


def test_a_copy_from_one_device_to_another_does_not_wait_on_the_host(chip: Chip) -> None:
    chip.register()
    x, y, code = program()
    first, second = oc.Context("chip", device=0), oc.Context("chip", device=1)
    step = first.compile(code)
    p = oc.placeholder("p", output=[4], dtype="int32")
    z = p + 1
    follow = second.compile(oc.train.forward(z))
    first[x] = 3
    chip.gates[0].clear()
    step()
    second.copy_from(first, {p: y})
    follow()
    step()  # after the copy: it writes what is being copied
    chip.gates[0].set()  # a host that waits for the first device never comes here
    assert second[z].tolist() == [7] * 4
    assert first[y].tolist() == [6] * 4


@pytest.mark.parametrize(
    "without",
    [["ocannl_wait_event"], ["ocannl_record_event"], ["ocannl_record_event", "ocannl_wait_event"]],
    ids=len,
)
def test_without_a_hook_the_host_waits_and_results_are_the_same(
    chip: Chip, without: list[str]
) -> None:
    chip.register(*without)
    x, total = (oc.placeholder(name, output=[4], dtype="int32") for name in ("x", "total"))

    contexts = [oc.Context("chip", device=k) for k in range(2)]
    steps = [each.compile(_added(total, x)) for each in contexts]
    for each in contexts:
        each[x], each[total] = 1, 0
    for turn in range(6):
        here, there = turn % 2, 1 - turn % 2
        steps[here]()
        contexts[there].copy_from(contexts[here], total)
    assert contexts[0][total].tolist() == [6] * 4


def test_work_that_overwrites_cells_follows_their_copy(chip: Chip) -> None:
    chip.register()
    x, y, code = program()
    first, second = oc.Context("chip", device=0), oc.Context("chip", device=1)
    step = first.compile(code)
    first[x] = 1
    step()
    first.synchronize()
    chip.gates[1].clear()  # the copy, which is work of its destination, does not begin yet
    second.copy_from(first, y)
    first[x] = 100
    step()
    chip.gates[1].set()
    assert second[y].tolist() == [2] * 4
    assert first[y].tolist() == [200] * 4


def test_a_streamed_merge_buffer_is_read_before_its_source_is_written_again(chip: Chip) -> None:
    chip.register()
    x, total = (oc.placeholder(name, output=[4], dtype="int32") for name in ("x", "total"))
    y = x * 2
    first, second = oc.Context("chip", device=0), oc.Context("chip", device=1)
    step, merge = first.compile(oc.train.forward(y)), second.compile(_merged(total, y))
    first[x], second[total] = 5, 0
    step()
    second.fill_merge(y, source=first, streamed=True)
    first[x] = 50
    chip.gates[1].clear()
    merge()
    step()
    chip.gates[1].set()
    assert second[total].tolist() == [10] * 4
    assert first[y].tolist() == [100] * 4


def test_events_between_two_backends_are_waited_for_on_the_host(chip: Chip) -> None:
    chip.register()
    x, y, code = program()
    here, there = oc.Context("interp", asynchronous=True), oc.Context("chip", device=1)
    step = here.compile(code)
    p = oc.placeholder("p", output=[4], dtype="int32")
    z = p + 1
    follow = there.compile(oc.train.forward(z))
    for value in (1, 2, 3):
        here[x] = value
        step()
        there.copy_from(here, {p: y})
        follow()
        here.copy_from(there, {y: z})
        assert here[y].tolist() == [2 * value + 1] * 4


def exchange() -> None:
    """Copy a result from one device to the other, and read it."""
    x, y, code = program()
    first, second = oc.Context("chip", device=0), oc.Context("chip", device=1)
    step = first.compile(code)
    first[x] = 3
    step()
    second.copy_from(first, y)
    assert second[y].tolist() == [6] * 4


@pytest.mark.parametrize("answer", [3, "text", False, object()], ids=lambda each: repr(each)[:9])
@pytest.mark.parametrize("hook", ["ocannl_record_event", "ocannl_wait_event"])
def test_a_wrong_result_of_a_hook_about_events_is_named(
    chip: Chip, hook: str, answer: object
) -> None:
    chip.register()
    exchange()
    manager.refresh()
    setattr(chip, hook, hookimpl(lambda: answer))
    chip.register()
    with pytest.raises(HookError, match=f"{hook}: it must return") as caught:
        exchange()
    assert caught.value.where == "backend chip, plugin registered in this process"


@pytest.mark.parametrize("hook", ["ocannl_record_event", "ocannl_wait_event"])
def test_a_hook_about_events_that_raises_is_named(chip: Chip, hook: str) -> None:
    def fail() -> None:
        raise KeyError("no event")

    setattr(chip, hook, hookimpl(fail))
    chip.register()
    with pytest.raises(HookError, match=f"{hook}: it raised KeyError"):
        exchange()


class Broken:
    """An event whose wait fails."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def wait(self) -> None:
        raise self.error


@pytest.mark.parametrize("error", [ValueError("lost"), SystemExit("lost")], ids=repr)
def test_an_error_of_waiting_for_an_event_names_the_plugin(
    chip: Chip, error: BaseException
) -> None:
    chip.ocannl_transfer = hookimpl(lambda: Broken(error))  # type: ignore[method-assign]
    chip.register()
    x, _, code = program()
    ctx = oc.Context("chip")
    ctx.compile(code)
    with pytest.raises(HookError) as caught:
        ctx[x] = 1
    name = type(error).__name__
    assert caught.value.found.startswith(f"ocannl_transfer, wait of its Event: it raised {name}: ")
    assert caught.value.where == "backend chip, plugin registered in this process"


def test_an_error_of_the_event_of_a_launch_names_the_routine_and_the_plugin(chip: Chip) -> None:
    class Linked:
        def link(self, *buffers: object) -> Callable[[object], Event]:
            return lambda values: Broken(OSError("the device is gone"))

    chip.ocannl_compile = hookimpl(lambda: Linked())  # type: ignore[method-assign]
    chip.register()
    x, y, code = program()
    ctx = oc.Context("chip")
    step = ctx.compile(code)
    ctx[x] = 1
    step()
    with pytest.raises(HookError) as caught:
        ctx[y]
    assert caught.value.found.startswith("the launcher of forward, wait of its Event: it raised")
    assert "the device is gone" in caught.value.found


def test_an_event_that_a_launcher_returns_must_have_a_wait(chip: Chip) -> None:
    class Linked:
        def link(self, *buffers: object) -> Callable[[object], int]:
            return lambda values: 3

    chip.ocannl_compile = hookimpl(lambda: Linked())  # type: ignore[method-assign]
    chip.register()
    x, _, code = program()
    ctx = oc.Context("chip")
    step = ctx.compile(code)
    ctx[x] = 1
    with pytest.raises(HookError, match=r"the launcher of .*: it must return an Event"):
        step()


def test_errors_of_the_project_are_not_blamed_on_the_plugin(chip: Chip) -> None:
    chip.ocannl_transfer = hookimpl(  # type: ignore[method-assign]
        lambda: Broken(oc.LinkError("The device has been reset."))
    )
    chip.register()
    x, _, code = program()
    ctx = oc.Context("chip")
    ctx.compile(code)
    with pytest.raises(oc.LinkError, match="reset"):
        ctx[x] = 1


def test_a_launcher_that_fails_in_a_queue_is_named() -> None:
    class Odd:
        def link(self, buffers: object) -> Callable[[object], None]:
            def launch(values: object) -> None:
                raise IndexError("off the end")

            return launch

    manager.refresh()
    faulty(ocannl_compile=lambda: Odd())
    with oc.Session():
        x, y, code = program()
        ctx = oc.Context("faulty", asynchronous=True)
        step = ctx.compile(code)
        ctx[x] = 1
        step()
        with pytest.raises(HookError, match=r"the launcher of forward.*: it raised IndexError"):
            ctx[y]
    manager.refresh()


@oc.cd
def _added(total: oc.Tensor, x: oc.Tensor) -> None:
    total += x


@oc.cd
def _merged(total: oc.Tensor, x: oc.Tensor) -> None:
    total += x.merge
