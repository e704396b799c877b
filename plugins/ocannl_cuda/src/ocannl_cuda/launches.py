"""Launches of kernels over memory: arguments are packed before the first call."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ocannl_core.backend_api import LinkError, StaticIndex
from ocannl_cuda.dependences import MemoryAccess
from ocannl_cuda.device import CudaDevice

Values = dict[StaticIndex, int]
Action = Callable[[Values], None]
"""A step of a running routine, given the values of all static indices."""
Extents = tuple[int, int, int]
_WORD = 8
"""The bytes of every parameter: addresses and static indices."""


class KernelLaunch:
    """A launch of a loaded kernel.

    Args:
        function: The kernel.
        where: the kernel for messages, with its title.
        shape: The extents of the grid and of a block.
        addresses: Its first parameters.
        indices: The static indices that are its next ones.
        last: The addresses that are its last ones.
        shared_bytes: The shared memory of a block that the kernel does not declare.
        accesses: The memory that the kernel reads and writes.
        maps: The tensor maps that are its parameters before the addresses.

    Attributes:
        accesses: The same.
        enqueue: Enqueues the kernel on the stream of the device, with zeros for static indices.
        indices: The same.
        where: The same.
        is_empty: True if the grid has no blocks: there is nothing to launch.
    """

    __slots__ = (
        "__weakref__",
        "_cells",
        "_constant",
        "_device",
        "_first",
        "_function",
        "_grid_and_block",
        "_layout",
        "_shared_bytes",
        "accesses",
        "enqueue",
        "indices",
        "is_empty",
        "where",
    )

    def __init__(
        self,
        device: CudaDevice,
        function: Any,
        where: str,
        shape: tuple[Extents, Extents],
        addresses: Sequence[int],
        indices: tuple[StaticIndex, ...] = (),
        last: Sequence[int] = (),
        shared_bytes: int = 0,
        accesses: tuple[MemoryAccess, ...] = (),
        maps: Sequence[bytes] = (),
    ) -> None:
        self._device = device
        self._function = function
        self.where = where
        self.accesses = accesses
        self._grid_and_block = shape
        self._shared_bytes = shared_bytes
        self.indices = indices
        self._layout = struct.Struct(f"={len(indices)}q")
        before = b"".join(maps)
        self._first = len(before) + _WORD * len(addresses)
        zeros = (0,) * len(indices)
        layout = f"={len(addresses)}Q{len(indices)}q{len(last)}Q"
        self._cells = bytearray(before + struct.pack(layout, *addresses, *zeros, *last))
        self._constant = bytes(self._cells)
        self.is_empty = 0 in (*shape[0], *shape[1])
        enqueue = function._launch_kernel
        self.enqueue: Callable[[], object] = partial(
            enqueue, *shape, self._constant, shared_bytes, device.stream
        )
        device.own(self)

    def packed(self, values: Mapping[StaticIndex, int]) -> bytes | bytearray:
        """Return the parameters; without indices the same bytes go to every launch."""
        if not self.indices:
            return self._constant
        self._layout.pack_into(self._cells, self._first, *[values[i] for i in self.indices])
        return self._cells

    def pack_into(self, cells: bytearray, values: Sequence[int]) -> None:
        """Write the values of the indices, in their order, to parameters that `packed` has made."""
        self._layout.pack_into(cells, self._first, *values)

    def start(self, values: Mapping[StaticIndex, int], stream: Any = None) -> None:
        """Enqueue the kernel.

        Args:
            values: The values of the static indices.
            stream: The stream, by default the device's.

        Raises:
            LinkError: if the driver refuses it, or an earlier kernel has failed.
        """
        grid, block = self._grid_and_block
        device = self._device
        given, shared = self.packed(values), self._shared_bytes
        try:
            self._function._launch_kernel(grid, block, given, shared, stream or device.stream)
        except device.failures as error:
            raise device.failure(error, self.where) from error

    def free(self) -> None:
        """Drop the loaded kernel: its code must be released before the device is."""
        self._function = None
        self.enqueue = _refuse


def _refuse() -> None:
    raise LinkError("Kernels run before their device is closed, at the end of the process.")


class LaunchSequence:
    """An action that enqueues kernels without static indices, one after the other."""

    __slots__ = ("_device", "_launches")

    def __init__(self, device: CudaDevice, launches: Sequence[KernelLaunch]) -> None:
        self._device = device
        self._launches = tuple(launches)

    def __call__(self, values: Values) -> None:
        try:
            for launch in self._launches:
                launch.enqueue()
        except self._device.failures as error:
            raise self._device.failure(error, launch.where) from error
