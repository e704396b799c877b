"""The typed methods of a backend: handling of the results of its hooks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inline_snapshot import snapshot

from ocannl_core.backend import manager
from ocannl_core.backend.manager import Backend
from ocannl_core.backend.protocols import Buffer, Done, Event, HostBuffer, TargetReport
from ocannl_core.backend.specs import hookimpl
from ocannl_core.base.errors import CodegenError, CompileError, HookError, LinkError, TransferError
from ocannl_core.ir.kernels.nodes import Plan
from ocannl_core.ir.node import MemoryMode, ModeChoice, NodeInfo, Placement, Reason, TensorNode
from ocannl_core.ir.numbers.dtypes import float32, float64
from ocannl_core.ir.target import Target
from ocannl_core.passes.loops.pipeline import NamedPass

INFO = NodeInfo(float32, (2, 3))
NODE = TensorNode(0, ("x",))
PLAN = Plan("nothing", (), (), (), (), {})


pytestmark = pytest.mark.usefixtures("fresh_plugins")


@dataclass(frozen=True, eq=False)
class ListBuffer:
    """Memory of one of the devices below."""

    array: np.ndarray[Any, Any]
    info: NodeInfo
    target: Target


class Minimal:
    """A backend with a device and nothing else."""

    OCANNL_API = (1, 0)

    def __init__(self, name: str) -> None:
        self.target = Target(name)

    @hookimpl
    def ocannl_targets(self) -> TargetReport:
        return TargetReport((self.target,))


class Copying(Minimal):
    """A backend that copies between the host and its own memory only, and counts the copies."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.copies: list[str] = []

    @hookimpl
    def ocannl_allocate(self, info: NodeInfo, target: Target) -> Buffer:
        return ListBuffer(np.zeros(info.buffer_dims, info.dtype.numpy), info, target)

    @hookimpl
    def ocannl_transfer(self, destination: Buffer, source: Buffer) -> Event | None:
        ends = (destination, source)
        foreign = [each for each in ends if each.target != self.target]
        if all(isinstance(each, HostBuffer) for each in foreign) and len(foreign) < 2:
            to_array, from_array = (
                each.array for each in ends if isinstance(each, ListBuffer | HostBuffer)
            )
            np.copyto(to_array, from_array)
            self.copies.append(f"{source.target} to {destination.target}")
            return Done()
        return None


def registered(plugin: Minimal) -> Backend:
    manager.register(plugin.target.backend, plugin)
    return manager.backend(plugin.target.backend)


def with_targets(answer: Callable[[], object]) -> TargetReport:
    class Odd(Minimal):
        @hookimpl
        def ocannl_targets(self) -> Any:
            return answer()

    return registered(Odd("odd")).targets()


def test_a_hook_that_raises_becomes_a_report_with_the_reason() -> None:
    def fail() -> object:
        raise OSError("the bus is on fire")

    report = with_targets(fail)
    assert report.targets == ()
    assert report.reason.startswith("looking for devices failed: OSError: the bus is on fire (")
    assert report.fix.startswith("this is a defect of the plugin")


def test_an_answer_that_is_no_report_becomes_a_report_with_the_reason() -> None:
    assert with_targets(lambda: 3).reason == snapshot(
        "ocannl_targets must return a TargetReport, and returned 3"
    )


def test_a_device_of_another_backend_is_refused() -> None:
    assert with_targets(lambda: TargetReport((Target("other", 1),))).reason == snapshot(
        "it reports devices of another backend: other:1"
    )


def test_no_device_and_no_reason_is_itself_a_reason() -> None:
    assert with_targets(TargetReport).reason == snapshot("it reports no device and no reason")


def test_a_missing_hook_is_an_error_that_names_it() -> None:
    backend = registered(Minimal("minimal"))
    target = Target("minimal")
    with pytest.raises(CodegenError) as caught:
        backend.generate(PLAN, target)
    assert str(caught.value) == snapshot("""\
Backend 'minimal' generates no code.
  found  no answer to ocannl_generate
  where  plugin registered in this process
  try    choose another backend; `ocannl backends` lists them\
""")

    class Text:
        language = text = "text"

    with pytest.raises(CompileError):
        backend.compile(Text(), target)
    with pytest.raises(LinkError):
        backend.allocate(INFO, target)
    assert backend.passes(target) == []
    backend.synchronize(target)


def test_passes_of_a_backend_keep_their_order() -> None:
    passes = [NamedPass("first", lambda program: program), NamedPass("second", lambda p: p)]

    class Passing(Minimal):
        @hookimpl
        def ocannl_passes(self) -> list[NamedPass]:
            return passes

    found = registered(Passing("passing")).passes(Target("passing"))
    assert [each.name for each in found] == ["first", "second"]


class Choosing(Minimal):
    answer: object = None

    @hookimpl
    def ocannl_resolve_mode(self) -> object:
        return self.answer


def test_a_memory_mode_is_chosen_among_those_left_open() -> None:
    plugin = Choosing("choosing")
    backend = registered(plugin)
    local, device = candidates = (MemoryMode.LOCAL, MemoryMode.ON_DEVICE)
    for answer, chosen in [
        (None, None),
        (local, None),
        (device, Placement(device, Reason.BACKEND_CHOICE)),
        (ModeChoice(device, "so"), Placement(device, Reason.BACKEND_CHOICE, "so")),
        (ModeChoice(local, "so"), Placement(local, Reason.BACKEND_CHOICE, "so")),
    ]:
        plugin.answer = answer
        assert backend.resolve_mode(NODE, INFO, candidates, plugin.target) == chosen
    plugin.answer = MemoryMode.VIRTUAL
    with pytest.raises(HookError) as caught:
        backend.resolve_mode(NODE, INFO, candidates, plugin.target)
    assert str(caught.value) == snapshot("""\
A hook of a plugin works and returns what its specification states.
  found  ocannl_resolve_mode: it returned MemoryMode.VIRTUAL for x; open are local, on device
  where  backend choosing, plugin registered in this process
  try    this is a defect of the plugin registered in this process: report it to its authors\
""")
    plugin.answer = ModeChoice(device, 3)  # type: ignore[arg-type]
    with pytest.raises(HookError, match="the reason of a choice is a text, not 3"):
        backend.resolve_mode(NODE, INFO, candidates, plugin.target)


def test_devices_that_do_not_know_each_other_copy_through_the_host() -> None:
    left, right = Copying("left"), Copying("right")
    left_backend, right_backend = registered(left), registered(right)
    source = left_backend.allocate(INFO, left.target)
    destination = right_backend.allocate(INFO, right.target)
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    left_backend.transfer(source, HostBuffer(values, INFO)).wait()
    manager.transfer(right_backend, left_backend, destination, source).wait()
    result = HostBuffer(np.empty((2, 3), np.float32), INFO)
    right_backend.transfer(result, destination).wait()
    np.testing.assert_array_equal(result.array, values)
    assert left.copies == ["host:0 to left:0", "left:0 to host:0"]
    assert right.copies == ["host:0 to right:0", "right:0 to host:0"]


def test_the_destination_is_called_before_the_source_and_both_before_the_host() -> None:
    asked: list[str] = []

    class Asked(Copying):
        serves = False

        @hookimpl
        def ocannl_transfer(self, destination: Buffer, source: Buffer) -> Event | None:
            asked.append(self.target.backend)
            return Done() if self.serves else None

    left, right = Asked("left"), Asked("right")
    backends = registered(left), registered(right)
    source, destination = (
        backend.allocate(INFO, plugin.target)
        for backend, plugin in zip(backends, (left, right), strict=True)
    )
    left.serves = True
    manager.transfer(backends[1], backends[0], destination, source).wait()
    assert asked == ["right", "left"]
    right.serves = True
    manager.transfer(backends[1], backends[0], destination, source).wait()
    assert asked == ["right", "left", "right"]


def test_a_transfer_that_no_backend_serves_is_an_error_naming_the_backends() -> None:
    left, right = registered(Minimal("left")), registered(Copying("right"))
    source = ListBuffer(np.zeros((2, 3), np.float32), INFO, Target("left"))
    destination = right.allocate(INFO, Target("right"))
    with pytest.raises(TransferError) as caught:
        manager.transfer(right, left, destination, source)
    assert str(caught.value) == snapshot("""\
A backend must copy between its devices and the host.
  found  no way from left:0 to right:0, not even by way of the host
  where  called: right (registered in this process), left (registered in this process)
  try    this is a defect of the plugin: report it to its authors\
""")


def test_arrays_of_this_process_need_no_backend_of_their_own() -> None:
    backend = registered(Minimal("minimal"))
    source = HostBuffer(np.ones((2, 3), np.float32), INFO)
    destination = HostBuffer(np.zeros((2, 3), np.float32), INFO)
    backend.transfer(destination, source).wait()
    np.testing.assert_array_equal(destination.array, source.array)


def test_buffers_of_different_formats_are_not_connected() -> None:
    backend = registered(Copying("copying"))
    wide = HostBuffer(np.ones((2, 3)), NodeInfo(float64, (2, 3)))
    with pytest.raises(TransferError) as caught:
        backend.transfer(backend.allocate(INFO, Target("copying")), wide)
    assert str(caught.value) == snapshot("""\
A transfer must connect buffers of equal number format and extents.
  found  float64 [2, 3] to float32 [2, 3]
  where  from host:0 to copying:0
  try    convert the values before copying them\
""")


WRAPPER = """
    from ocannl_core.backend.specs import hookimpl

    OCANNL_API = (1, 0)
    seen = []

    @hookimpl({options})
    def ocannl_allocate(info, target):
        seen.append(str(target))
        {body}
"""


def test_a_wrapper_sees_the_calls_of_every_backend(install: Callable[..., Path]) -> None:
    code = WRAPPER.format(options="wrapper=True", body="return (yield)")
    install("watch", code, group="ocannl.wrappers")
    for plugin in (Copying("left"), Copying("right")):
        registered(plugin).allocate(INFO, plugin.target)
    import plugin_watch  # type: ignore[import-not-found]

    assert plugin_watch.seen == ["left:0", "right:0"]


def test_a_wrapper_that_could_answer_for_a_backend_is_not_used(
    install: Callable[..., Path],
) -> None:
    code = WRAPPER.format(options="", body="return None")
    install("greedy", code, group="ocannl.wrappers")
    plugin = Copying("left")
    with pytest.warns(RuntimeWarning, match="greedy"):
        registered(plugin).allocate(INFO, plugin.target)
    assert [entry.error for entry in manager.wrapper_entries()] == snapshot(
        [
            "ocannl_allocate must be marked with hookimpl(wrapper=True): a wrapper observes a backend and never answers for it"
        ]
    )
