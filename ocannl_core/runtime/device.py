"""Devices of this process: what the contexts on one device share."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from ocannl_core.backend.protocols import Buffer
from ocannl_core.backend.queues import HostQueue
from ocannl_core.base.forks import process_lock
from ocannl_core.ir.node import NodeInfo, NodeTable, TensorNode
from ocannl_core.ir.target import Target
from ocannl_core.runtime.memory import Account

if TYPE_CHECKING:
    from ocannl_core.backend.manager import Backend
    from ocannl_core.runtime.store import History


class SharedCells:
    """Cells of a literal on a device, as long as a context holds them."""

    __slots__ = ("__weakref__", "buffer")

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer


class SharedDevice:
    """One device of a backend."""

    def __init__(self, backend: Backend, target: Target) -> None:
        self.backend = backend
        self.target = target
        self.account = Account()
        """The memory of all contexts and routines on it."""
        self.histories: weakref.WeakSet[History] = weakref.WeakSet()
        """The histories of its contexts."""
        self._literals: NodeTable[weakref.ref[SharedCells]] = NodeTable()
        self._queue: HostQueue | None = None
        backend.failures.observe(target, self)

    def check_usable(self) -> None:
        """Refuse work of an unusable device.

        Raises:
            DeviceError: the failure that made it unusable.
        """
        self.backend.failures.check(self.target)

    def device_failed(self) -> None:
        """Let the next call of each routine check the device."""
        for each in list(self.histories):
            each.last = None

    def literal(self, node: TensorNode, info: NodeInfo) -> SharedCells | None:
        """Return the cells of a literal in this layout, if a context has uploaded them."""
        held = self._literals.get(node)
        cells = None if held is None else held()
        return cells if cells is not None and cells.buffer.info == info else None

    def share_literal(self, stored: Any) -> SharedCells:
        """Let other contexts on the device use the cells of a literal, a `Stored`."""
        cells = SharedCells(stored.buffer)
        self.account.move(stored, cells, is_shared=True)
        self._literals[stored.node] = weakref.ref(cells)
        return cells

    @property
    def queue(self) -> HostQueue:
        """The queue of work that contexts submit to the device."""
        with _lock:
            if self._queue is None:
                self._queue = HostQueue(str(self.target))
            return self._queue


_devices: dict[tuple[str, int], SharedDevice] = {}
_lock = process_lock()


def device_of(backend: Backend, target: Target) -> SharedDevice:
    """Return the device of a target, the same one for all contexts."""
    key = backend.key, target.device
    with _lock:
        found = _devices.get(key)
        if found is None or found.backend is not backend or found.target != target:
            found = _devices[key] = SharedDevice(backend, target)
        return found
