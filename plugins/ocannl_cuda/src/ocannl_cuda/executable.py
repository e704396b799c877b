"""A compiled routine, and its link to memory: arguments are packed before the first call."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, assert_never

import numpy as np

from ocannl_core.backend_api import (
    Buffer,
    CallExternal,
    HostBuffer,
    Launcher,
    LinkError,
    RepeatedSteps,
    Target,
    TensorNode,
    ThreadBlocks,
    allocate_pieces,
    dataclass,
    interior,
    linked_buffer,
    make_exclusive,
)
from ocannl_core.backend_api.files import CachedObject
from ocannl_core.backend_api.host_calls import host_call
from ocannl_core.backend_api.launches import KernelText, Launch, RoutineSource
from ocannl_core.backend_api.launches import RunStep as SourceStep
from ocannl_core.backend_api.loops import CheckPositions, raise_failed_check
from ocannl_cuda import own_settings
from ocannl_cuda.building import build
from ocannl_cuda.compiler import CudaCompiler
from ocannl_cuda.dependences import MemoryAccess
from ocannl_cuda.device import CudaDevice, device_of
from ocannl_cuda.dialect import DIALECT, STATIC_SHARED_BYTES
from ocannl_cuda.driver_calls import DriverCallError
from ocannl_cuda.graphs import HostStep, Repetition, RunStep, actions_of
from ocannl_cuda.launches import KernelLaunch, Values
from ocannl_cuda.memory import CudaBuffer, transfer, wait_for
from ocannl_cuda.source import check_launches, check_needs, needs_of
from ocannl_cuda.staging import HostMemory
from ocannl_cuda.tensor_maps import encode

Buffers = Mapping[TensorNode, Buffer]
_FLAG_BYTES = 8


@dataclass(frozen=True, slots=True)
class CudaExecutable:
    """The compiled code of one routine, not bound to memory.

    Attributes:
        source: The code.
        cubins: The compiled code of its kernels, by symbol.
        target: The device.
    """

    source: RoutineSource
    cubins: Mapping[str, CachedObject]
    target: Target

    @classmethod
    def compiled(
        cls, source: RoutineSource, target: Target, compiler: CudaCompiler, architecture: str
    ) -> CudaExecutable:
        """Return the routine compiled; kernels that the cache has are not compiled again.

        Raises:
            LaunchLimitError: if the device does not run some launch.
            CompileError: if the compiler rejects the code.
        """
        check_launches(source, target)
        launches = (each for each in source.launches if isinstance(each, Launch))
        titles = {each.text.symbol: each.title for each in launches}
        return cls(source, build(source.kernels, compiler, architecture, titles), target)

    def link(self, buffers: Buffers, merge_buffers: Buffers | None = None) -> Launcher:
        """Return a callable that enqueues the routine over these buffers.

        Args:
            buffers: The memory of every parameter.
            merge_buffers: The merge buffers of the nodes of which the routine reads one.

        Raises:
            LinkError: if a buffer is missing, belongs to another device, or does not fit its node;
                or if the device has too little memory for the nodes of the routine.
            LaunchLimitError: if a block needs more registers than the device has.
        """
        device = device_of(self.target)
        try:
            return _Linker(self, device, buffers, merge_buffers or {}).launcher()
        except device.failures as error:
            raise device.failure(error, f"linking {self.source.plan.name}") from error


class _Linker:
    """The memory of one link, and the launches over it."""

    def __init__(
        self, executable: CudaExecutable, device: CudaDevice, buffers: Buffers, merges: Buffers
    ) -> None:
        self._executable = executable
        self._plan = executable.source.plan
        self._device = device
        self._merges = merges
        self._memory = {node: self._buffer(node, buffers, "buffer") for node in self._plan.params}
        self._kept: list[object] = []
        self._sources: dict[int, CudaDevice] = {}
        self._allocate_scratch()

    def launcher(self) -> Launcher:
        plan, device = self._plan, self._device
        # who waits for every kernel gets them one by one
        is_blocking = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"
        uses_graphs = own_settings.current().graphs and not is_blocking
        with device:
            steps = list(self._steps(self._executable.source.steps))
            actions = list(actions_of(steps, device, uses_graphs=uses_graphs))
        # devices whose memory the kernels read: they may write it again afterwards
        sources = tuple(self._sources.values())
        count, indices, kept = len(plan.indices), plan.indices, (self._memory, self._kept)

        def launch(values: Sequence[int]) -> None:
            if len(values) != count:
                raise LinkError(
                    f"The routine takes {count} static indices.", found=f"{len(values)} given"
                )
            assert kept  # the memory whose addresses the actions have
            known = dict(zip(indices, values, strict=True))
            for each in sources:
                wait_for(device, each)
            with device:
                device.note_run(plan.name)
                for action in actions:
                    action(known)
            for each in sources:
                wait_for(each, device)

        return make_exclusive(launch, plan.name)

    def _allocate_scratch(self) -> None:
        """Allocate the nodes of the routine; nodes with disjoint lifetimes share memory."""
        plan, target = self._plan, self._executable.target
        pool = self._device.memory
        try:
            with self._device:
                found = allocate_pieces(plan, pool.allocate, shares=not pool.is_exact)
                for node, memory in found.items():
                    self._memory[node] = CudaBuffer(memory, plan.nodes[node], target)
        except MemoryError as error:
            raise LinkError(
                "The intermediate tensors of a routine fit into the memory of its device.",
                found=str(error),
                where=f"routine {plan.name}, whose largest are {self._largest()}",
                fix="make a batch smaller, or cut the routine into several",
            ) from None

    def _largest(self) -> str:
        sizes = [(self._plan.nodes[node].nbytes, node.name) for node in self._plan.own_nodes]
        largest = sorted(sizes, reverse=True)[:5]
        return ", ".join(f"{name} of {nbytes:,} bytes" for nbytes, name in largest)

    def _steps(self, steps: Sequence[SourceStep | RepeatedSteps[SourceStep]]) -> Iterator[RunStep]:
        for step in steps:
            match step:
                case RepeatedSteps():
                    yield Repetition(step.index, step.iterations, tuple(self._steps(step.steps)))
                case CallExternal():
                    yield self._host_call(step)
                case Launch():
                    yield from self._launch(step)
                case _:
                    assert_never(step)

    def _host_call(self, called: CallExternal) -> HostStep:
        memory = {node: self._memory[node] for node in (*called.inputs, *called.outputs)}
        call = host_call(called, memory, transfer)
        return HostStep(lambda values: call())

    def _launch(self, source: Launch) -> Iterator[RunStep]:
        """Yield the launch of a kernel, and a step that waits for it if it has checks."""
        text, symbol = source.text, source.text.symbol
        function = self._device.function(self._executable.cubins[symbol], symbol)
        addresses, accesses = self._arguments(source)
        flag = self._device.host_memory(_FLAG_BYTES) if source.checks else None
        grid, maps = text.grid, self._tensor_maps(text, addresses, source.title)
        if maps:  # persistent blocks: one for each multiprocessor
            grid = (min(prod(grid), self._blocks.processors),)
        shape = _padded(grid), _padded(text.block)
        last = () if flag is None else (flag.address,)
        where = f"kernel {symbol}, {source.title}"
        needs = needs_of(text, self._device.registers(function))
        check_needs(source, needs, self._blocks.limits, str(self._executable.target))
        shared = text.group_bytes if text.group_bytes > STATIC_SHARED_BYTES else 0
        if shared:
            self._device.allow_shared_memory(function, shared, where)
        launch = KernelLaunch(
            self._device,
            function,
            where,
            shape,
            addresses,
            source.indices,
            last,
            shared,
            accesses,
            maps=maps,
        )
        if launch.is_empty:
            return
        yield launch
        if flag is not None:
            yield self._check(source.checks, flag, where)

    @property
    def _blocks(self) -> ThreadBlocks:
        blocks = self._executable.target.thread_blocks
        assert blocks is not None
        return blocks

    def _tensor_maps(self, text: KernelText, addresses: Sequence[int], title: str) -> list[bytes]:
        """Return the tensor maps of the arrays of which a kernel copies boxes."""
        try:
            return [
                encode(self._device.calls, each, addresses[each.argument])
                for each in text.tensor_maps
            ]
        except DriverCallError as error:
            raise LinkError(
                "The driver takes the arrays of asynchronous products as tensor maps.",
                found=f"device {self._device.ordinal}: {error}",
                where=f"kernel {text.symbol}, {title}",
                fix="oc.settings.overrides(asynchronous_products=False) chooses `mma.sync`",
            ) from error

    def _check(self, checks: tuple[CheckPositions, ...], flag: HostMemory, where: str) -> HostStep:
        """Return the step that waits for a kernel and raises the error of a check that failed.

        Args:
            checks: The checks of the kernel.
            flag: The number that they set.
            where: The kernel for messages.
        """
        device = self._device

        def check(values: Values) -> None:
            try:
                device.stream.synchronize()
            except device.failures as error:
                raise device.failure(error, where) from error
            if flag.cells.any():
                flag.cells[:] = 0
                self._raise_failure(checks, values)

        return HostStep(check)

    def _arguments(self, source: Launch) -> tuple[list[int], tuple[MemoryAccess, ...]]:
        """Return the addresses that a kernel is given, and its accesses."""
        given = [(self._memory[node], node in source.written) for node in source.arguments]
        given += [(self._merge_buffer(node), False) for node in source.merges]
        self._kept += given
        accesses = tuple(
            MemoryAccess(buffer.address, buffer.address + buffer.info.nbytes, is_written)
            for buffer, is_written in given
        )
        return [buffer.address for buffer, _ in given], accesses

    def _raise_failure(self, checks: Sequence[CheckPositions], values: Values) -> None:
        """Raise the error of a check that failed."""

        def cells_of(node: TensorNode) -> np.ndarray[Any, Any]:
            buffer = self._memory[node]
            cells = np.empty(buffer.info.buffer_dims, buffer.info.dtype.numpy)
            copied = transfer(HostBuffer(cells, buffer.info), buffer)
            assert copied is not None
            copied.wait()
            return interior(cells, buffer.info)

        raise_failed_check(checks, cells_of, values.__getitem__, self._plan.name)

    def _merge_buffer(self, node: TensorNode) -> CudaBuffer:
        """Return the merge buffer of a node, which may be memory of another device."""
        buffer, target = self._merges.get(node), self._executable.target
        if not isinstance(buffer, CudaBuffer) or buffer.target == target:
            return self._buffer(node, self._merges, "merge buffer")
        source = device_of(buffer.target)
        if not self._device.reaches(source):
            raise LinkError(
                "A device reads a merge buffer of another one if they can access each other.",
                found=f"{target} cannot read memory of {buffer.target}",
                where=repr(node),
                fix="fill the merge buffer with streamed=False, which copies it",
            )
        self._sources[source.ordinal] = source
        return self._buffer(node, self._merges, "merge buffer", buffer.target)

    def _buffer(
        self, node: TensorNode, buffers: Buffers, what: str, target: Target | None = None
    ) -> CudaBuffer:
        """Return the memory of a node on a device, by default the executable's."""
        wanted = target or self._executable.target
        buffer = linked_buffer(
            buffers,
            node,
            self._plan.nodes[node],
            CudaBuffer,
            what,
            is_reached=lambda buffer: buffer.target == wanted,
        )
        if buffer.address % DIALECT.vector_bytes:
            raise LinkError(
                f"Memory of a device begins at a multiple of {DIALECT.vector_bytes} bytes.",
                found=f"a {what} at the address {buffer.address:#x}",
                where=repr(node),
                fix="copy it to memory of its own",
            )
        return buffer


def _padded(extents: tuple[int, ...]) -> tuple[int, int, int]:
    """Return extents of a grid or block, which have three axes; the first one given is x."""
    x, y, z, *_ = (*extents, 1, 1, 1)
    return x, y, z
