"""Memory of devices with an address space of their own, on an array that stands for one."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ocannl_core as oc
from ocannl_core.backend import manager
from ocannl_core.backend_api import (
    ALIGNMENT,
    Buffer,
    Done,
    Executable,
    HostBuffer,
    Launcher,
    LinkError,
    Margin,
    NodeInfo,
    Target,
    TensorNode,
    hookimpl,
)
from ocannl_core.backend_api.launches import Launch, RoutineSource
from ocannl_core.backend_api.memory import (
    Arena,
    DeviceBuffer,
    DeviceMemory,
    RoutineMemory,
    transfer,
)
from ocannl_core.backend_api.queues import HostQueue
from ocannl_core.base.errors import HookError
from ocannl_core.cli.new_backend import backend_text
from ocannl_core.ir.numbers import dtypes
from ocannl_core.runtime import device_memory
from ocannl_core.testing import programs
from ocannl_core.testing.conformance import BackendConformance
from ocannl_core.testing.contexts import ContextConformance
from ocannl_core.testing.subject import subject_named

NBYTES = 1 << 20
TARGET = Target("island")


class Island:
    """An array of bytes behind addresses of its own."""

    def __init__(self, nbytes: int) -> None:
        room = np.full(nbytes + ALIGNMENT, 0xA5, np.uint8)
        self.cells = room[-room.ctypes.data % ALIGNMENT :][:nbytes]

    def read(self, address: int, nbytes: int) -> bytes:
        assert 0 <= address <= address + nbytes <= self.cells.size
        return self.cells[address : address + nbytes].tobytes()

    def write(self, address: int, data: bytes | memoryview) -> None:
        assert isinstance(data, bytes | memoryview)
        assert 0 <= address <= address + len(data) <= self.cells.size
        self.cells[address : address + len(data)] = np.frombuffer(data, np.uint8)


def new_memory() -> DeviceMemory:
    return DeviceMemory(TARGET, Island(NBYTES), Arena(64, NBYTES - 64))


def free_nbytes(memory: DeviceMemory) -> int:
    assert isinstance(memory.allocator, Arena)
    return memory.allocator.free_nbytes


@given(
    st.sampled_from([*dtypes.ALL, *dtypes.PACKED]),
    st.lists(st.integers(0, 4), max_size=3),
    st.integers(0, 2**32 - 1),
)
def test_cells_survive_the_way_to_the_device_and_back(
    dtype: dtypes.DType, dims: list[int], seed: int
) -> None:
    memory = new_memory()
    info = NodeInfo(dtype, tuple(dims), tuple(Margin(1, 2) for _ in dims))
    random = np.random.default_rng(seed)
    data = random.integers(0, 256, info.nbytes, np.uint8).view(info.memory_numpy)
    host = HostBuffer(data.reshape(info.memory_dims), info)
    first, second = memory.allocate(info), memory.allocate(info)
    assert not memory.read(first).tobytes().strip(b"\0")
    found = HostBuffer(np.zeros_like(host.array), info)
    for destination, source in ((first, host), (second, first), (found, second)):
        done = transfer(destination, source)
        assert done is not None
        done.wait()
    assert found.array.tobytes() == host.array.tobytes()


def test_all_cells_of_large_memory_are_zero_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "_ZEROS", bytes(16))
    memory = new_memory()
    before, buffer, after = (
        memory.allocate(NodeInfo(dtypes.uint8, (nbytes,))) for nbytes in (ALIGNMENT, 100, 1)
    )
    assert not memory.read(buffer).any()
    assert memory.load(buffer.address + 100, 1) == b"\xa5"
    del before, after


def test_memory_is_free_when_its_buffers_are_gone() -> None:
    memory = new_memory()
    buffers = [memory.allocate(NodeInfo(dtypes.float32, (1000,))) for _ in range(10)]
    assert free_nbytes(memory) < NBYTES - 64 - 40_000
    del buffers
    assert free_nbytes(memory) == NBYTES - 64


def test_a_full_arena_is_a_memory_error() -> None:
    memory = new_memory()
    kept = memory.allocate(NodeInfo(dtypes.uint8, (NBYTES // 2,)))
    with pytest.raises(MemoryError, match="no room for 524288 bytes"):
        memory.allocate(NodeInfo(dtypes.uint8, (NBYTES // 2,)))
    del kept
    memory.allocate(NodeInfo(dtypes.uint8, (NBYTES // 2,)))


@pytest.mark.parametrize(
    "view", [bytes, bytearray, memoryview, lambda found: np.frombuffer(found, np.uint8)]
)
def test_reads_return_any_object_with_the_buffer_protocol(view: Callable[[bytes], Any]) -> None:
    class Viewed(Island):
        def read(self, address: int, nbytes: int) -> Any:
            return view(super().read(address, nbytes))

    memory = DeviceMemory(TARGET, Viewed(NBYTES), Arena(64, NBYTES - 64))
    info = NodeInfo(dtypes.int16, (3,))
    first, second = memory.allocate(info), memory.allocate(info)
    memory.write(first, np.array([1, -2, 3], np.int16))
    transfer(second, first)
    assert memory.read(second).tolist() == [1, -2, 3]


@pytest.mark.parametrize(
    ("result", "returned"),
    [
        (b"", "0 bytes"),
        (bytes(13), "13 bytes"),
        (None, "NoneType, not bytes in one piece"),
        (np.zeros((6, 4), np.uint8)[:, :2], "ndarray, not bytes in one piece"),
    ],
)
def test_a_wrong_read_names_the_function_of_the_author(result: Any, returned: str) -> None:
    class Faulty(Island):
        def read(self, address: int, nbytes: int) -> Any:
            return result

    memory = DeviceMemory(TARGET, Faulty(NBYTES), Arena(64, NBYTES - 64))
    info = NodeInfo(dtypes.float32, (3,))
    buffer = memory.allocate(info)
    copies: list[Callable[[], object]] = [
        lambda: memory.read(buffer),
        lambda: transfer(HostBuffer(np.zeros(3, np.float32), info), buffer),
        lambda: transfer(memory.allocate(info), buffer),
    ]
    for copy in copies:
        with pytest.raises(HookError) as caught:
            copy()
        assert caught.value.found == f"Faulty.read(0x40, 12) returned {returned}"


@given(st.lists(st.integers(0, 300), min_size=1, max_size=20))
def test_blocks_are_aligned(sizes: list[int]) -> None:
    memory = new_memory()
    blocks = [memory.reserve(each) for each in sizes]
    assert all(each.address % ALIGNMENT == 0 for each in blocks)


def test_other_pairs_are_not_copied() -> None:
    info = NodeInfo(dtypes.float32, (2,))
    host = HostBuffer(np.zeros(2, np.float32), info)
    assert transfer(host, host) is None


class QueuedIsland:
    """An island behind a queue: writes return when they are submitted."""

    def __init__(self, island: Island, queue: HostQueue) -> None:
        self._island = island
        self._queue = queue

    def read(self, address: int, nbytes: int) -> bytes:
        found: list[bytes] = []

        def read() -> None:
            found.append(self._island.read(address, nbytes))

        self._queue.submit(read, "a read").wait()
        return found[0]

    def write(self, address: int, data: bytes | memoryview) -> None:
        kept = bytes(data)
        self._queue.submit(lambda: self._island.write(address, kept), "a write")


def island_backend(name: str, queue: HostQueue | None = None) -> ModuleType:
    """Return the backend of `ocannl new-backend`, with its memory replaced by an arena.

    Args:
        queue: The queue of its reads, writes and kernels, which are only submitted.
    """
    module = ModuleType(name)
    sys.modules[name] = module  # for its dataclass
    exec(compile(backend_text(name), "<new backend>", "exec"), vars(module))
    scaffold = SimpleNamespace(**vars(module))
    target = scaffold.ocannl_targets().targets[0]
    island = Island(1 << 24)
    base = island.cells.ctypes.data
    access = island if queue is None else QueuedIsland(island, queue)
    memory = DeviceMemory(target, access, Arena(0, 1 << 24))

    @hookimpl
    def ocannl_allocate(info: NodeInfo, target: Target) -> DeviceBuffer:
        return memory.allocate(info)

    @hookimpl
    def ocannl_transfer(destination: Buffer, source: Buffer) -> Done | None:
        return transfer(destination, source)

    @hookimpl
    def ocannl_compile(source: RoutineSource, target: Target) -> Executable:
        library = scaffold.ocannl_compile(source, target)._library
        return Linked(memory, base, source, library, queue)

    vars(module).update(
        ocannl_allocate=ocannl_allocate,
        ocannl_transfer=ocannl_transfer,
        ocannl_compile=ocannl_compile,
    )
    if queue is not None:

        @hookimpl
        def ocannl_synchronize(target: Target) -> bool:
            queue.synchronize()
            return True

        vars(module).update(ocannl_synchronize=ocannl_synchronize)
    return module


@dataclass
class Linked:
    """A routine in machine code, whose arguments are addresses of the arena."""

    memory: DeviceMemory
    base: int
    source: RoutineSource
    library: Any
    queue: HostQueue | None

    def link(
        self,
        buffers: Mapping[TensorNode, Buffer],
        merge_buffers: Mapping[TensorNode, Buffer] | None = None,
    ) -> Launcher:
        routine = RoutineMemory(self.memory, self.source.plan, buffers, merge_buffers)
        return routine.launcher(self.source.steps, self._kernel)

    def _kernel(self, launch: Launch, addresses: tuple[int, ...]) -> Callable[[], object]:
        table = (ctypes.c_void_p * len(addresses))(*(self.base + each for each in addresses))
        function, queue = self.library[launch.text.symbol], self.queue
        if queue is None:
            return lambda: function(table)
        return lambda: queue.submit(lambda: function(table), launch.text.symbol)


PLUGIN = island_backend("island")


@pytest.fixture
def target() -> str:
    return registered("island", PLUGIN)


def registered(name: str, plugin: ModuleType) -> str:
    """Return the name of a plugin, which is registered if it is not yet."""
    if name not in {entry.name for entry in manager.backend_entries()}:
        manager.register(name, plugin)
    return name


@pytest.mark.slow
class TestABackendOverAnAddressSpace(BackendConformance):
    oracle_name = "interp"


class TestItsContexts(ContextConformance):
    pass


QUEUED = island_backend("queued_island", HostQueue("queued_island:0"))


class TestContextsOfADeviceThatOnlySubmits(ContextConformance):
    @pytest.fixture
    def target(self) -> str:
        return registered("queued_island", QUEUED)


@pytest.mark.slow
class TestADeviceThatOnlySubmits(TestABackendOverAnAddressSpace):
    @pytest.fixture
    def target(self) -> str:
        return registered("queued_island", QUEUED)


def test_a_kernel_without_a_function_is_refused_in_link(target: str) -> None:
    subject, example = subject_named(target), programs.matrix_product()
    linked = subject.compile(example.program)
    assert isinstance(linked, Linked)

    def kernel(launch: Launch, addresses: tuple[int, ...]) -> Any:
        return None

    nodes = example.program.nodes
    buffers = {node: linked.memory.allocate(nodes[node]) for node in example.program.params}
    routine = RoutineMemory(linked.memory, linked.source.plan, buffers)
    with pytest.raises(HookError, match=r"kernel\(k_\w+, \.\.\.\) returned None, not a function"):
        routine.launcher(linked.source.steps, kernel)


def test_buffers_of_other_memory_are_refused(target: str) -> None:
    subject, example = subject_named(target), programs.matrix_product()
    foreign, nodes = new_memory(), example.program.nodes
    buffers = {node: foreign.allocate(nodes[node]) for node in example.program.params}
    with pytest.raises(LinkError, match="memory of its device"):
        subject.compile(example.program).link(buffers)


def test_nodes_of_a_routine_that_live_together_have_memory_of_their_own(target: str) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    rows = oc.tensor(x, batch_axes=1)
    sums, maxima = oc.sum(rows, axis=-1, keepdims=True), oc.max(rows, axis=-1, keepdims=True)
    result = rows * sums - maxima
    ctx = oc.Context(target)
    routine = ctx.compile(oc.train.forward(result))
    assert len({place.offset for place in routine.memory_plan.places.values()}) > 1
    routine()
    wanted = x * x.sum(1, keepdims=True) - x.max(1, keepdims=True)
    np.testing.assert_array_equal(ctx[result], wanted)
