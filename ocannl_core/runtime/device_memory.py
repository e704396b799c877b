"""Memory of a device with an address space of its own, and the arguments of kernels in it.

A backend describes the memory by two methods, `read` and `write` (`AddressableMemory`). The rest
follows: buffers, their transfers, and for each routine the addresses of arrays, index variables,
private memory and failure flags (`RoutineMemory`), in the order in which kernels of the C family
take them.

    memory = DeviceMemory(target, my_chip, Arena(0, my_chip.nbytes))
    buffer = memory.allocate(info)                        # ocannl_allocate
    transfer(buffer, HostBuffer(array, info))             # ocannl_transfer
    routine = RoutineMemory(memory, plan, buffers, merge_buffers)
    launcher = routine.launcher(source.steps, start)      # Executable.link
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, assert_never

import numpy as np

from ocannl_core.backend.exclusive import make_exclusive
from ocannl_core.backend.host_calls import host_call
from ocannl_core.backend.protocols import Buffer, Done, HostBuffer
from ocannl_core.base.errors import HookError, LinkError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.codegen.text.routine_source import Launch, RunStep
from ocannl_core.compile.memory_plan import memory_plan
from ocannl_core.ir.host_arrays import Array, cells_in, interior
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.kernels.nodes import Plan, RepeatedSteps
from ocannl_core.ir.loops.computed_positions import raise_failed_check
from ocannl_core.ir.loops.nodes import CallExternal, CheckPositions
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.target import Target

_ZEROS = bytes(1 << 20)
_VARIABLE_BYTES = 8
"""The size of a static index and of a failure flag."""

Bytes = bytes | memoryview
BytesLike = bytes | bytearray | memoryview | np.ndarray[Any, Any]
Run = Callable[[], object]


class AddressableMemory(Protocol):
    """Access to the memory of a device by address.

    Reads, writes and kernels take effect in the order in which they are called. A device with one
    queue may return from `write`, and from a kernel, when the work is submitted; its backend has
    the hook `ocannl_synchronize` then.

    Addresses of blocks are multiples of `ALIGNMENT`, and must still be ones after the device has
    added the base of its memory: compiled code loads whole vectors.
    """

    def read(self, address: int, nbytes: int) -> BytesLike:
        """Return the bytes at an address after all earlier work, as any object with the buffer
        protocol: a copy, or a view that later work may change.
        """
        ...

    def write(self, address: int, data: Bytes) -> None:
        """Store bytes at an address; work that is finished later has a copy of them."""
        ...


class Allocator(Protocol):
    """Blocks of addresses; an `Arena` is one."""

    def allocate(self, nbytes: int, alignment: int | None = None) -> int:
        """Return the address of a new block; raise MemoryError if there is no room."""
        ...

    def free(self, address: int) -> None:
        """Make the memory of a block available again; finalizers call it."""
        ...


class MemoryBlock:
    """Bytes of a device, which are freed when the block is garbage-collected.

    Attributes:
        address: The address of the first one.
    """

    def __init__(self, allocator: Allocator, nbytes: int, alignment: int | None = None) -> None:
        self.address = allocator.allocate(nbytes, alignment)
        self.nbytes = nbytes
        # at the end of the process the device may be gone
        weakref.finalize(self, allocator.free, self.address).atexit = False


@dataclass(frozen=True, slots=True, eq=False)
class DeviceBuffer:
    """The cells of one node.

    Attributes:
        address: The address of the first cell.
        block: The memory that has them.
    """

    memory: DeviceMemory
    info: NodeInfo
    address: int
    block: MemoryBlock

    @property
    def target(self) -> Target:
        return self.memory.target


class DeviceMemory:
    """The memory of one device.

    Args:
        target: The device.
        access: Reads and writes its memory.
        allocator: The addresses that buffers may have, such as an `Arena`.
    """

    def __init__(self, target: Target, access: AddressableMemory, allocator: Allocator) -> None:
        self.target = target
        self.access = access
        self.allocator = allocator

    def allocate(self, info: NodeInfo) -> DeviceBuffer:
        """Return new memory for the cells of a node, all zero.

        Raises:
            MemoryError: if there is no room.
        """
        block = self.reserve(info.nbytes)
        for offset in range(0, info.nbytes, len(_ZEROS)):
            zeros = memoryview(_ZEROS)[: info.nbytes - offset]
            self.access.write(block.address + offset, zeros)
        return DeviceBuffer(self, info, block.address, block)

    def reserve(self, nbytes: int, alignment: int | None = None) -> MemoryBlock:
        """Return a block of undefined bytes.

        Raises:
            MemoryError: if there is no room.
        """
        return MemoryBlock(self.allocator, nbytes, alignment)

    def store(self, data: Bytes) -> MemoryBlock:
        """Return a new block with these bytes, such as a table of addresses."""
        block = self.reserve(len(data))
        self.access.write(block.address, data)
        return block

    def load(self, address: int, nbytes: int) -> Bytes:
        """Return the bytes at an address.

        Raises:
            HookError: if the device returns anything else.
        """
        data: object = self.access.read(address, nbytes) if nbytes else b""
        try:
            found = memoryview(data) if nbytes else memoryview(b"")  # type: ignore[arg-type]
            found = found.cast("B") if found.nbytes else found
        except TypeError:
            returned = f"{type(data).__name__}, not bytes in one piece"
        else:
            if found.nbytes == nbytes:
                return found
            returned = f"{found.nbytes} bytes"
        raise HookError(
            "A read of n bytes of a device's memory returns n bytes.",
            found=f"{type(self.access).__name__}.read({address:#x}, {nbytes}) returned {returned}",
            where=str(self.target),
            fix="return bytes, a bytearray, a memoryview or an array",
        )

    def read(self, buffer: DeviceBuffer) -> np.ndarray[Any, Any]:
        """Return a copy of the memory of a node, as `HostBuffer` has it."""
        info = buffer.info
        found = np.empty(info.memory_dims, info.memory_numpy)
        data = self.load(buffer.address, info.nbytes)
        found.reshape(-1).view(np.uint8)[:] = np.frombuffer(data, np.uint8)
        return found

    def write(self, buffer: DeviceBuffer, array: np.ndarray[Any, Any]) -> None:
        """Replace the memory of a node."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.access.write(buffer.address, data.data)


def transfer(destination: Buffer, source: Buffer) -> Done | None:
    """Copy cells between buffers as the hook `ocannl_transfer` does.

    Returns:
        None for pairs that are not of a `DeviceBuffer` and a `HostBuffer`, or of two of the former.
    """
    match destination, source:
        case DeviceBuffer(), DeviceBuffer():
            data = source.memory.load(source.address, source.info.nbytes)
            destination.memory.access.write(destination.address, data)
        case DeviceBuffer(), HostBuffer():
            destination.memory.write(destination, source.array)
        case HostBuffer(), DeviceBuffer():
            np.copyto(destination.array, source.memory.read(source))
        case _:
            return None
    return Done()


class RoutineMemory:
    """The memory of one routine: its buffers, index variables, private memory and failure flag.

    Args:
        memory: The memory of the device.
        plan: The routine.
        buffers: The memory of the plan's `params`.
        merges: The merge buffers that the routine reads.

    Raises:
        MemoryError: if the device has no room for the routine's own nodes.
        LinkError: if a buffer is in other memory.
    """

    def __init__(
        self,
        memory: DeviceMemory,
        plan: Plan,
        buffers: Mapping[TensorNode, Buffer],
        merges: Mapping[TensorNode, Buffer] | None = None,
    ) -> None:
        self._memory = memory
        self._plan = plan
        self._buffers = {node: _own(memory, node, each) for node, each in buffers.items()}
        self._buffers |= _scratch(memory, plan)
        self._merges = {node: _own(memory, node, each) for node, each in (merges or {}).items()}
        self._indices: dict[StaticIndex, tuple[MemoryBlock, list[int]]] = {}
        self._flag = memory.store(bytes(_VARIABLE_BYTES))
        self._private: list[MemoryBlock] = []

    def arguments(self, launch: Launch) -> tuple[int, ...]:
        """Return the addresses of a kernel's arguments in their order: arrays, merge buffers,
        static indices of 64 bits, private memory, and a failure flag of 64 bits.
        """
        addresses = [self._buffers[node].address for node in launch.arguments]
        addresses += [self._merges[node].address for node in launch.merges]
        addresses += [self._index(each)[0].address for each in launch.indices]
        for at, nbytes in enumerate(launch.text.private):  # one kernel runs at a time
            if at == len(self._private):
                self._private.append(self._memory.reserve(nbytes))
            elif self._private[at].nbytes < nbytes:
                self._private[at] = self._memory.reserve(nbytes)
        return (
            *addresses,
            *(block.address for block in self._private[: len(launch.text.private)]),
            *([self._flag.address] if launch.checks else []),
        )

    def launcher(
        self,
        steps: Sequence[RunStep | RepeatedSteps[RunStep]],
        kernel: Callable[[Launch, tuple[int, ...]], Run],
    ) -> Callable[[Sequence[int]], None]:
        """Return the launcher of the routine, as `Executable.link` does; overlapping calls raise.

        Args:
            steps: The steps of the routine, such as `RoutineSource.steps`.
            kernel: Returns a function that runs a kernel with the addresses of its arguments. It
                returns when the kernel has finished; or when it is submitted, if reads and writes
                of the memory take effect after it.

        Raises:
            HookError: if `kernel` returns no function.
        """
        for launch in _launches(steps):
            self.arguments(launch)  # private memory gets its final place
        run = self._sequence(steps, kernel)
        indices = [self._index(each) for each in self._plan.indices]

        def launch_all(numbers: Sequence[int]) -> None:
            for variable, number in zip(indices, numbers, strict=True):
                self._assign(variable, number)
            run()

        return make_exclusive(launch_all, self._plan.name)

    def _sequence(
        self,
        steps: Sequence[RunStep | RepeatedSteps[RunStep]],
        kernel: Callable[[Launch, tuple[int, ...]], Run],
    ) -> Run:
        actions = [self._action(step, kernel) for step in steps]

        def run() -> None:
            for action in actions:
                action()

        return run

    def _action(
        self,
        step: RunStep | RepeatedSteps[RunStep],
        kernel: Callable[[Launch, tuple[int, ...]], Run],
    ) -> Run:
        match step:
            case Launch():
                run_kernel = kernel(step, self.arguments(step))
                if not callable(run_kernel):
                    raise _no_function(kernel, step, run_kernel)
                if not step.checks:
                    return run_kernel

                def run_checked() -> None:
                    run_kernel()
                    self._raise_failures(step.checks)

                return run_checked
            case CallExternal():
                return host_call(step, self._buffers, transfer)
            case RepeatedSteps():
                variable = self._index(step.index)
                run = self._sequence(step.steps, kernel)

                def repeat() -> None:
                    for iteration in step.iterations:
                        self._assign(variable, iteration)
                        run()

                return repeat
            case _:
                assert_never(step)

    def _index(self, index: StaticIndex) -> tuple[MemoryBlock, list[int]]:
        """Return the variable of a static index, and its value on the host."""
        if index not in self._indices:
            self._indices[index] = (self._memory.reserve(_VARIABLE_BYTES), [0])
        return self._indices[index]

    def _assign(self, variable: tuple[MemoryBlock, list[int]], number: int) -> None:
        block, value = variable
        value[0] = number
        word = (number & (1 << 64) - 1).to_bytes(_VARIABLE_BYTES, "little")
        self._memory.access.write(block.address, word)

    def _raise_failures(self, checks: Iterable[CheckPositions]) -> None:
        """Raise the error of a check that has failed."""
        flag = self._flag.address
        if not any(self._memory.load(flag, _VARIABLE_BYTES)):
            return
        self._memory.access.write(flag, bytes(_VARIABLE_BYTES))

        def cells_of(node: TensorNode) -> Array:
            buffer = self._buffers[node]
            return interior(cells_in(self._memory.read(buffer), buffer.info), buffer.info)

        raise_failed_check(
            checks, cells_of, lambda extent: self._index(extent)[1][0], self._plan.name
        )


def _no_function(kernel: object, launch: Launch, returned: object) -> HookError:
    name = getattr(kernel, "__name__", type(kernel).__name__)
    shown = "None" if returned is None else f"a {type(returned).__name__}"
    return HookError(
        "A kernel with its addresses is a function without arguments, which runs it.",
        found=f"{name}({launch.text.symbol}, ...) returned {shown}, not a function",
        where="RoutineMemory.launcher, called by link",
        fix="return functools.partial(run, symbol, addresses), or a nested function",
    )


def _launches(steps: Iterable[RunStep | RepeatedSteps[RunStep]]) -> Iterable[Launch]:
    for step in steps:
        match step:
            case Launch():
                yield step
            case RepeatedSteps():
                yield from _launches(step.steps)


def _own(memory: DeviceMemory, node: TensorNode, buffer: Buffer) -> DeviceBuffer:
    if isinstance(buffer, DeviceBuffer) and buffer.memory is memory:
        return buffer
    raise LinkError(
        "A routine runs over memory of its device.",
        found=f"{node.name} is in memory of {buffer.target}, not {memory.target}",
    )


def _scratch(memory: DeviceMemory, plan: Plan) -> dict[TensorNode, DeviceBuffer]:
    """Return memory of the routine's own nodes, shared where they do not live together."""
    places = memory_plan(plan)
    if not places.places:
        return {}
    block = memory.reserve(places.nbytes)
    return {
        node: DeviceBuffer(memory, plan.nodes[node], block.address + place.offset, block)
        for node, place in places.places.items()
    }
