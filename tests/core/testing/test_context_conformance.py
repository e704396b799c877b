"""Asynchronous devices pass the suite about contexts; one that returns stale cells does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
import ocannl_interp as interp
from ocannl_core.backend import manager
from ocannl_core.backend.queues import HostQueue
from ocannl_core.backend_api import (
    Buffer,
    Done,
    Event,
    HostBuffer,
    KernelStream,
    NodeInfo,
    Target,
    TargetReport,
    TensorNode,
    hookimpl,
    replace,
)
from ocannl_core.runtime.context import Context
from ocannl_core.testing.contexts import ContextConformance
from ocannl_interp.memory import ArrayBuffer


class Delayed:
    """The interpreter, with launches that happen later.

    Args:
        name: The name of the backend.
        returns_events: True if launchers return events.
        waits: True if `ocannl_synchronize` waits.
        orders_copies: True if copies wait for the launches before.
        stages_uploads: True if copies from the host also take the cells at once.
    """

    OCANNL_API = (1, 0)

    def __init__(
        self,
        name: str,
        *,
        returns_events: bool = False,
        waits: bool = True,
        orders_copies: bool = False,
        stages_uploads: bool = False,
    ) -> None:
        self.OCANNL_STAGES_UPLOADS = stages_uploads
        self.target = replace(interp.TARGET, backend=name, description="late", priority=-5)
        self.queue = HostQueue(name)
        self.returns_events, self.waits, self.orders_copies = returns_events, waits, orders_copies

    @hookimpl
    def ocannl_targets(self) -> TargetReport:
        return TargetReport((self.target,))

    @hookimpl
    def ocannl_generate(self, kernels: KernelStream, target: Target) -> Any:
        return interp.ocannl_generate(kernels, interp.TARGET)

    @hookimpl
    def ocannl_compile(self, source: Any, target: Target) -> Any:
        return DelayedExecutable(interp.ocannl_compile(source, interp.TARGET), self)

    @hookimpl
    def ocannl_allocate(self, info: NodeInfo, target: Target) -> ArrayBuffer:
        return ArrayBuffer(np.zeros(info.buffer_dims, info.dtype.numpy), info, target)

    @hookimpl
    def ocannl_transfer(self, destination: Buffer, source: Buffer) -> Event | None:
        if not all(isinstance(each, ArrayBuffer | HostBuffer) for each in (destination, source)):
            return None
        cells = source.array  # type: ignore[attr-defined]
        if self.OCANNL_STAGES_UPLOADS and isinstance(source, HostBuffer):
            cells = cells.copy()
        copy = partial(np.copyto, destination.array, cells)  # type: ignore[attr-defined]
        if self.orders_copies:
            return self.queue.submit(copy, "copy")
        copy()
        return Done()

    @hookimpl
    def ocannl_synchronize(self, target: Target) -> bool:
        if self.waits:
            self.queue.synchronize()
        return True


class DelayedExecutable:
    def __init__(self, executable: Any, device: Delayed) -> None:
        self.executable, self.device = executable, device

    def link(
        self,
        buffers: Mapping[TensorNode, Buffer],
        merge_buffers: Mapping[TensorNode, Buffer] | None = None,
    ) -> Callable[[Sequence[int]], Event | None]:
        run = self.executable.link(buffers, merge_buffers)
        device = self.device

        def work(values: Sequence[int]) -> None:
            time.sleep(0.01)
            run(values)

        def launch(values: Sequence[int]) -> Event | None:
            event = device.queue.submit(partial(work, tuple(values)), "launch")
            return event if device.returns_events else None

        return launch


DEVICES = {
    "events": Delayed("events", returns_events=True),
    "late": Delayed("late"),
    "ordered": Delayed("ordered", waits=False, orders_copies=True),
    "stale": Delayed("stale", waits=False),
    "staged": Delayed("staged", waits=False, orders_copies=True, stages_uploads=True),
}
CHECKS = [
    name
    for name in vars(ContextConformance)
    if name.startswith("test_") and "without_room" not in name  # it reads no cells
]


@pytest.fixture
def registered(fresh_plugins: None) -> None:
    for name, device in DEVICES.items():
        device.target = replace(device.target, backend=name)
        manager.register(name, device)


@pytest.mark.usefixtures("registered")
class TestAsynchronousDevices(ContextConformance):
    @pytest.fixture(params=["events", "late", "ordered", "staged"])
    def target(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)


@pytest.mark.usefixtures("registered")
def test_a_write_from_the_host_waits_for_nothing_where_uploads_are_staged() -> None:
    device, ctx = DEVICES["staged"], Context("staged")
    started = threading.Event()
    x = oc.placeholder("x", output=[4], dtype="int32")
    step = ctx.compile(oc.train.forward(x * 3))
    ctx[x] = 1
    step()
    device.queue.submit(lambda: started.wait(60), "work that has not begun")
    cells = np.arange(4, dtype=np.int32)
    ctx[x] = cells
    cells[:] = 7
    started.set()
    assert ctx[x].tolist() == [0, 1, 2, 3]


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("check", CHECKS)
def test_a_device_that_returns_stale_cells_fails_every_check(check: str) -> None:
    DEVICES["stale"].queue.synchronize()
    suite = ContextConformance()
    session = ContextConformance._session.__wrapped__(suite)  # type: ignore[attr-defined]
    next(session)
    contexts = {"ctx": Context("stale"), "other": Context("stale")}
    test = getattr(suite, check)
    wanted = test.__code__.co_varnames[1 : test.__code__.co_argcount]
    with pytest.raises(AssertionError):
        test(**{name: contexts[name] for name in wanted})
    DEVICES["stale"].queue.synchronize()
    next(session, None)
