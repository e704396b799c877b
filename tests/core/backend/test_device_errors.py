"""Devices that fail: the error names the state and the remedy, and no plugin."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from inline_snapshot import snapshot

import ocannl_core as oc
from ocannl_core.backend import manager
from ocannl_core.backend.device_statistics import host_memory_statistics
from ocannl_core.backend.protocols import HostBuffer, MemoryStatistics, TargetReport
from ocannl_core.base.errors import DeviceError, DeviceFailure, HookError, LinkError
from ocannl_core.ir.node import NodeInfo
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.target import Target
from ocannl_core.testing.children import succeeds_in_child
from ocannl_core.testing.conformance import BackendConformance
from ocannl_core.testing.subject import subject_named
from tests.support.faulty_backend import faulty, run

ocannl_interp = pytest.importorskip("ocannl_interp")


pytestmark = pytest.mark.usefixtures("fresh_plugins")


class Failing:
    """An executable of the interpreter whose launcher raises."""

    def __init__(self, executable: Any, error: BaseException) -> None:
        self._executable = executable
        self._error = error

    def link(self, *buffers: Any) -> Callable[[Sequence[int]], None]:
        self._executable.link(*buffers)

        def launch(values: Sequence[int]) -> None:
            raise self._error

        return launch


def with_launcher(error: BaseException, **hooks: Callable[..., Any]) -> None:
    def ocannl_compile(source: Any, target: Any) -> Failing:
        return Failing(ocannl_interp.ocannl_compile(source, target), error)

    faulty(ocannl_compile=ocannl_compile, **hooks)


def failure() -> DeviceError:
    with pytest.raises(DeviceError) as caught:
        run("faulty")
    assert "plugin" not in str(caught.value)
    assert "defect" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENODEV, "no such device"), DeviceFailure.LOST),
        (OSError(errno.ENXIO, "gone"), DeviceFailure.LOST),
        (OSError(errno.EIO, "bus error"), DeviceFailure.FAULT),
        (OSError(errno.ETIMEDOUT, "late"), DeviceFailure.TIME_LIMIT),
        (TimeoutError("late"), DeviceFailure.TIME_LIMIT),
        (BrokenPipeError(errno.EPIPE, "closed"), DeviceFailure.LOST),
        (ConnectionResetError("the board is gone"), DeviceFailure.LOST),
        (DeviceError(DeviceFailure.LOST, found="unplugged"), DeviceFailure.LOST),
    ],
)
def test_errors_of_launchers_become_failures_of_the_device(
    error: Exception, kind: DeviceFailure
) -> None:
    with_launcher(error)
    found = failure()
    assert found.failure is kind
    assert "the launcher of " in found.where
    assert "backend faulty" in found.where
    assert not found.is_usable
    assert run("interp") == [9.0, 18.0, 18.0, 36.0]


def test_the_message_has_the_state_and_the_remedy() -> None:
    with_launcher(DeviceError(DeviceFailure.TIME_LIMIT, found="watchdog", fix="raise TdrDelay"))
    assert str(failure()) == snapshot("""\
The work of a device ends within its time limit.
  found  watchdog
         state: contexts on the device are unusable, and the values of their tensors are lost
  where  the launcher of forward, backend faulty
  try    raise TdrDelay
         shorten the work: smaller batches, or parts of an axis
         start a new process, and load the last checkpoint; `ocannl doctor` checks devices\
""")


def test_a_plugin_classifies_exceptions_of_its_libraries() -> None:
    class LibraryError(Exception):
        pass

    def ocannl_device_error(error: BaseException) -> DeviceError | None:
        known = isinstance(error, LibraryError)
        return DeviceError(DeviceFailure.FAULT, found=str(error), is_usable=True) if known else None

    with_launcher(LibraryError("misaligned"), ocannl_device_error=ocannl_device_error)
    found = failure()
    assert found.is_usable
    assert "the device works" in found.found
    manager.refresh()
    with_launcher(ValueError("a bug"), ocannl_device_error=ocannl_device_error)
    with pytest.raises(HookError, match="this is a defect of the plugin"):
        run("faulty")


@pytest.mark.parametrize("answer", [3, "lost", ValueError()])
def test_a_wrong_classification_is_a_defect(answer: object) -> None:
    def ocannl_device_error(error: BaseException) -> object:
        return answer

    with_launcher(ValueError("a bug"), ocannl_device_error=ocannl_device_error)
    with pytest.raises(
        HookError, match="ocannl_device_error: it must return a DeviceError or None"
    ):
        run("faulty")


def test_errors_of_files_and_compilers_are_no_failures_of_a_device() -> None:
    def ocannl_compile() -> None:
        raise TimeoutError("the compiler")

    faulty(ocannl_compile=ocannl_compile)
    with pytest.raises(HookError, match="ocannl_compile: it raised TimeoutError: the compiler"):
        run("faulty")


def call(step: oc.Routine, ctx: oc.Context) -> None:
    step()
    ctx.synchronize()


@pytest.mark.parametrize("is_usable", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_values_on_an_unusable_device_are_not_read(is_usable: bool, asynchronous: bool) -> None:
    with_launcher(DeviceError(DeviceFailure.FAULT, found="fault", is_usable=is_usable))
    x = oc.tensor([1.0, 2.0])
    y = x + 1.0
    ctx = oc.Context("faulty", asynchronous=asynchronous)
    step = ctx.compile(oc.train.forward(y))
    ctx[y] = [3.0, 4.0]
    with pytest.raises(DeviceError):
        call(step, ctx)
    if is_usable:
        ctx[y] = [5.0, 6.0]
        assert ctx[y].tolist() == [5.0, 6.0]
    else:
        with pytest.raises(DeviceError, match="fault"):
            _ = ctx[y]


class Board:
    """The faults of a device, which a test switches on: the name of a path, and an error."""

    def __init__(self) -> None:
        self.failing = ""
        self.error: BaseException = DeviceError(DeviceFailure.FAULT, found="cosmic ray")

        def ocannl_allocate(info: Any, target: Any) -> Any:
            self.pass_by("allocation")
            return ocannl_interp.ocannl_allocate(info, target)

        def ocannl_transfer(destination: Any, source: Any) -> Any:
            self.pass_by("read" if isinstance(destination, HostBuffer) else "write")
            done = ocannl_interp.ocannl_transfer(destination, source)
            return None if done is None else Late(self, "event of a copy")

        def ocannl_compile(source: Any, target: Any) -> Any:
            return Launching(self, ocannl_interp.ocannl_compile(source, target))

        def ocannl_synchronize(target: Any) -> bool:
            self.pass_by("synchronization")
            return True

        hooks = (ocannl_allocate, ocannl_transfer, ocannl_compile, ocannl_synchronize)
        faulty(**{each.__name__: each for each in hooks})

    def pass_by(self, path: str) -> None:
        if path == self.failing:
            raise self.error


class Late:
    """An event of a board."""

    def __init__(self, board: Board, path: str) -> None:
        self._board = board
        self._path = path

    def wait(self) -> None:
        self._board.pass_by(self._path)


class Launching:
    """An executable of a board, whose launchers return events."""

    def __init__(self, board: Board, executable: Any) -> None:
        self._board = board
        self._executable = executable

    def link(self, *buffers: Any) -> Callable[[Sequence[int]], Late]:
        self._board.pass_by("link")
        launch = self._executable.link(*buffers)

        def launch_late(values: Sequence[int]) -> Late:
            self._board.pass_by("launch")
            launch(values)
            return Late(self._board, "event of a launch")

        return launch_late


@pytest.mark.parametrize("is_usable", [False, True])
@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize(
    "path",
    [
        "allocation",
        "read",
        "write",
        "launch",
        "link",
        "event of a copy",
        "event of a launch",
        "synchronization",
    ],
)
def test_a_failure_on_any_path_refuses_all_work(path: str, repeated: bool, is_usable: bool) -> None:
    board = Board()
    x = oc.placeholder("x", output=[2])
    y = x * 2.0
    ctx, other = oc.Context("faulty"), oc.Context("faulty")
    steps = []
    for each in (ctx, other):
        each[x] = [1.0, 2.0]
        steps.append(each.compile(oc.train.forward(y)))
        for _ in range(1 + repeated):  # the second call checks nothing
            steps[-1]()
        assert each[y].tolist() == [2.0, 4.0]
        steps[-1]()
    fresh = oc.tensor([5.0, 6.0]) * 3.0
    causes: dict[str, Callable[[], object]] = {
        "allocation": lambda: ctx.compile(oc.train.forward(fresh)),
        "link": lambda: ctx.compile(oc.train.forward(y + 1.0)),
        "write": lambda: ctx.__setitem__(x, [3.0, 4.0]),
        "launch": steps[0],
        "synchronization": ctx.synchronize,
    }
    board.failing = path
    board.error = DeviceError(DeviceFailure.FAULT, found="cosmic ray", is_usable=is_usable)
    with pytest.raises(DeviceError) as caught:
        causes.get(path, lambda: ctx[y])()
    assert caught.value.rule == "The work of a device runs to its end."
    assert caught.value.device == "faulty:0"
    board.failing = ""
    later: list[Callable[[], object]] = [
        *steps,
        lambda: ctx[y],
        lambda: ctx.__setitem__(x, [5.0, 6.0]),
        lambda: other.__setitem__(x, [5.0, 6.0]),
        ctx.synchronize,
        lambda: oc.Context("faulty"),
        lambda: ctx.compile(oc.train.forward(fresh)),
        *steps,
        lambda: other[y],
    ]
    for work in later:
        if is_usable:
            work()
            continue
        with pytest.raises(DeviceError, match="cosmic ray") as again:
            work()
        assert again.value.where == caught.value.where
    if is_usable:
        assert other[y].tolist() == [10.0, 12.0]
    assert run("interp") == [9.0, 18.0, 18.0, 36.0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("survives_forks", [False, True])
def test_a_child_makes_no_use_of_devices_whose_drivers_do_not_survive_forks(
    survives_forks: bool,
) -> None:
    listed = TargetReport((Target("faulty", survives_forks=survives_forks),))
    faulty(ocannl_targets=lambda: listed)
    x = oc.placeholder("x", output=[2])
    y = x * 2.0

    def run_alone() -> None:
        assert run("faulty") == [9.0, 18.0, 18.0, 36.0]

    assert succeeds_in_child(run_alone)  # no device was listed before
    manager.select("faulty")
    assert succeeds_in_child(lambda: _refused(run_alone, survives_forks))
    ctx = oc.Context("faulty")
    step = ctx.compile(oc.train.forward(y))
    ctx[x] = [1.0, 2.0]
    step()
    step()
    works: list[Callable[[], object]] = [
        step,
        lambda: ctx[y],
        lambda: ctx.__setitem__(x, [5.0, 6.0]),
        ctx.synchronize,
        lambda: ctx.compile(oc.train.forward(y + 1.0)),
    ]
    for work in works:
        assert succeeds_in_child(lambda work=work: _refused(work, survives_forks))  # type: ignore[misc]
    step()
    assert ctx[y].tolist() == [2.0, 4.0]


def _refused(work: Callable[[], object], is_allowed: bool) -> None:
    if is_allowed:
        work()
        return
    with pytest.raises(DeviceError) as caught:
        work()
    assert caught.value.failure is DeviceFailure.FORKED
    assert f"process {os.getpid()}, the child of a fork" in caught.value.found
    assert caught.value.device == "faulty:0"
    assert "spawn" in caught.value.fix


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_the_conformance_suite_finds_devices_that_do_not_survive_forks() -> None:
    process = os.getpid()

    def ocannl_compile(source: Any, target: Any) -> Any:
        if os.getpid() != process:
            raise OSError("a pipe of the parent")
        return ocannl_interp.ocannl_compile(source, target)

    faulty(ocannl_compile=ocannl_compile)
    subject, oracle = map(subject_named, ("faulty", "interp"))
    with pytest.raises(AssertionError, match="survives_forks=False declares it"):
        BackendConformance().test_the_child_of_a_fork_computes(subject, oracle)


def test_a_queue_refuses_runs_after_its_error_was_raised() -> None:
    error = DeviceError(DeviceFailure.FAULT, found="cosmic ray")
    with_launcher(error)
    ctx = oc.Context("faulty", asynchronous=True)
    step = ctx.compile(oc.train.forward(oc.tensor([1.0, 2.0]) * 2.0))
    for _ in range(3):
        with pytest.raises(DeviceError, match="cosmic ray"):
            call(step, ctx)
    with pytest.raises(DeviceError, match="cosmic ray"):
        step()


def test_a_run_without_checks_has_the_errors_of_a_run() -> None:
    errors: list[BaseException] = []

    class Counting:
        def __init__(self, executable: Any) -> None:
            self._executable = executable

        def link(self, *buffers: Any) -> Callable[[Sequence[int]], None]:
            launch = self._executable.link(*buffers)

            def launch_or_fail(values: Sequence[int]) -> None:
                if errors:
                    raise errors[0]
                launch(values)

            return launch_or_fail

    def ocannl_compile(source: Any, target: Any) -> Counting:
        return Counting(ocannl_interp.ocannl_compile(source, target))

    faulty(ocannl_compile=ocannl_compile)
    ctx = oc.Context("faulty")
    step = ctx.compile(oc.train.forward(oc.tensor([1.0, 2.0]) * 2.0))
    step()
    run_again = step.unchecked()
    assert run_again is not None
    run_again()
    errors.append(ConnectionResetError("the board is gone"))
    with pytest.raises(DeviceError, match="the board is gone"):
        run_again()
    errors.clear()
    with pytest.raises(DeviceError, match="the board is gone"):
        step()


def test_a_failure_states_its_device_where_a_call_has_two() -> None:
    targets = tuple(Target("faulty", number) for number in range(2))
    stated = ["faulty:1"]

    def ocannl_transfer(destination: Any, source: Any) -> Any:
        if not isinstance(destination, HostBuffer) and not isinstance(source, HostBuffer):
            raise DeviceError(DeviceFailure.LOST, found="unplugged", device=stated[0])
        return ocannl_interp.ocannl_transfer(destination, source)

    faulty(ocannl_targets=lambda: TargetReport(targets), ocannl_transfer=ocannl_transfer)
    backend, _ = manager.select("faulty")
    info = NodeInfo(dtypes.float32, (2,))
    first, second = (backend.allocate(info, each) for each in targets)
    with pytest.raises(DeviceError, match="unplugged"):
        backend.transfer(first, second)
    backend.allocate(info, targets[0])
    with pytest.raises(DeviceError, match="unplugged"):
        backend.allocate(info, targets[1])
    manager.refresh()
    faulty(ocannl_targets=lambda: TargetReport(targets), ocannl_transfer=ocannl_transfer)
    backend, _ = manager.select("faulty")
    stated[0] = ""
    first, second = (backend.allocate(info, each) for each in targets)
    with pytest.raises(DeviceError, match="unplugged"):
        backend.transfer(first, second)
    backend.allocate(info, targets[1])
    with pytest.raises(DeviceError, match="unplugged"):
        backend.allocate(info, targets[0])


def test_a_failure_of_a_fallback_leaves_the_device_usable() -> None:
    with_launcher(DeviceError(DeviceFailure.LOST, found="unplugged"))
    backend, target = manager.select("faulty")
    interp, other = manager.select("interp")
    with pytest.raises(DeviceError, match="unplugged") as caught:
        backend.launch(lambda values: _raise(OSError(errno.ENODEV, "unplugged")), (), target)
    with pytest.raises(DeviceError) as again:
        interp.raise_fault("the launcher of a routine", caught.value, other)
    assert again.value is caught.value
    interp.failures.check(other)
    with pytest.raises(DeviceError):
        backend.failures.check(target)


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_lack_of_memory_in_a_launcher_names_tensors_and_sizes(asynchronous: bool) -> None:
    with_launcher(MemoryError())
    y = oc.tensor(np.ones((30, 10))) * 2.0
    ctx = oc.Context("faulty", asynchronous=asynchronous)
    step = ctx.compile(oc.train.forward(y))
    with pytest.raises(LinkError) as caught:
        call(step, ctx)
    assert "A run of a routine finds the memory that it needs." in caught.value.rule
    assert "2,400  mul" in caught.value.found or "1,200  mul" in caught.value.found
    assert "extents (30, 10)" in caught.value.found
    assert "bytes are in use on faulty:0" in caught.value.found
    assert "ctx.release()" in caught.value.fix


@pytest.mark.parametrize("kind", DeviceFailure)
@pytest.mark.parametrize("is_usable", [False, True])
def test_a_copy_is_equal_and_keeps_its_place(kind: DeviceFailure, is_usable: bool) -> None:
    error = DeviceError(kind, found="a", where="here", fix="b", is_usable=is_usable)
    assert str(error.at("elsewhere")) == str(error)
    assert DeviceError(kind).at("there").where == "there"


def test_statistics_of_memory_are_part_of_the_report() -> None:
    faulty(ocannl_memory_statistics=lambda: MemoryStatistics(1000, 600, in_use=400))
    ctx = oc.Context("faulty")
    assert "its driver: 600 of 1,000 free, 400 held by this process" in str(ctx.memory)


@pytest.mark.parametrize(
    ("answer", "violation"),
    [
        (3, "must return MemoryStatistics or None"),
        (MemoryStatistics(10, 20), "no more memory is free than there is"),
        (MemoryStatistics(10, -1), "MemoryStatistics.free is a number of bytes"),
        (MemoryStatistics(10, 5, in_use=True), "MemoryStatistics.in_use is a number of bytes"),
    ],
)
def test_wrong_statistics_are_a_defect(answer: object, violation: str) -> None:
    faulty(ocannl_memory_statistics=lambda: answer)
    backend, target = manager.select("faulty")
    with pytest.raises(HookError, match=violation):
        backend.memory_statistics(target)


def test_the_statistics_of_this_machine_follow_its_memory() -> None:
    before = host_memory_statistics()
    if before is None or before.in_use is None:
        pytest.skip("this system states no memory of processes")
    held = np.ones(1 << 24)  # 128 MiB, all pages written
    after = host_memory_statistics()
    assert after is not None
    assert after.in_use is not None
    assert after.in_use - before.in_use > held.nbytes // 2
    assert 0 < after.free <= after.total == before.total


def test_a_plugin_measures_launches_by_its_own_clock() -> None:
    calls = []

    def ocannl_time_launch(launcher: Any, values: Sequence[int]) -> float:
        launcher(values)
        calls.append(values)
        return 1.5

    faulty(ocannl_time_launch=ocannl_time_launch)
    y = oc.tensor([1.0, 2.0]) * 2.0
    ctx = oc.Context("faulty")
    step = ctx.compile(oc.train.forward(y))
    step()
    found = step.profile(0.0)
    assert [each.seconds for each in found.kernels] == [1.5]
    assert len(calls) == found.rounds


@pytest.mark.parametrize("answer", [-1.0, float("nan"), 3, "fast"])
def test_a_wrong_time_is_a_defect(answer: object) -> None:
    faulty(ocannl_time_launch=lambda: answer)
    backend, target = manager.select("faulty")
    with pytest.raises(HookError, match="it must return a time in seconds"):
        backend.time_launch(lambda values: None, (), target)
