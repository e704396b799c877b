"""Values that a program gives to tensors: arrays of the host, and memory of other libraries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ocannl_core.backend.protocols import Buffer
from ocannl_core.base.errors import LinkError, ShapeError, TransferError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.garbage import collect_if_due
from ocannl_core.ir.host_arrays import Array
from ocannl_core.ir.indexing import StaticExtent
from ocannl_core.ir.node import NodeInfo
from ocannl_core.runtime import link, values
from ocannl_core.runtime.store import BufferStore, NodeMemory

if TYPE_CHECKING:
    from ocannl_core.tensor.graph.tensor import Tensor

_HOST_VALUES = (np.ndarray, np.generic, int, float, list, tuple)
"""Values that describe no memory of a device."""


@dataclass(frozen=True, slots=True)
class HostCells:
    """Cells of the host for a tensor, checked and converted."""

    stored: NodeMemory
    cells: Array
    sizes: Mapping[StaticExtent, int]
    """The extents at run time that they state."""

    def write(self, store: BufferStore) -> None:
        """Copy them to the device."""
        _prepare_write(self.stored, store)
        values.write(store.backend, self.stored.buffer, self.cells)
        store.history.host_wrote(self.stored, self.sizes)


@dataclass(frozen=True, slots=True)
class DeviceCells:
    """Memory of another library on the device, for a tensor of the same format and extents."""

    stored: NodeMemory
    buffer: Buffer

    def write(self, store: BufferStore) -> None:
        """Copy the cells on the device; through the host, if they have margins in the context."""
        _prepare_write(self.stored, store)
        backend, into = store.backend, self.stored.buffer
        if into.info.padding:
            values.write(backend, into, values.read(backend, self.buffer))
        else:
            event = backend.transfer(into, self.buffer)
            if not backend.stages_uploads:
                event.wait()
        store.history.host_wrote(self.stored, {})


def _prepare_write(stored: NodeMemory, store: BufferStore) -> None:
    if stored.shared is not None:
        with store.history.lock:
            if stored.shared is not None:
                link.unshare(stored, store, stored.node.name)
    store.wait_for_others(stored)


def prepare(
    store: BufferStore, tensor: Tensor, value: object, new: list[NodeMemory] | None = None
) -> HostCells | DeviceCells:
    """Return a value for a tensor, after all checks, and memory for it.

    Args:
        new: Gets the memory that was allocated for the tensor.
    """
    tensor.note_host_write()
    if store.find(tensor.node) is not None:
        return _prepared(store, tensor, value, new)
    with store.history.lock:
        return _prepared(store, tensor, value, new)


def _prepared(
    store: BufferStore, tensor: Tensor, value: object, new: list[NodeMemory] | None
) -> HostCells | DeviceCells:
    found = store.find(tensor.node)
    info = found.info if found is not None else tensor.info
    allocated: NodeMemory | None = None
    if found is None:  # before the cells, which may be as large
        collect_if_due()
        allocated = store.new(tensor.node, info, tensor.describe(), tensor)
    buffer = _imported(store, value)
    cells: Array | None = None
    sizes: Mapping[StaticExtent, int] = {}
    if buffer is not None:
        _check_equal(tensor, info, buffer.info)
    else:
        cells, sizes = _host_cells(tensor, info, value)
    if allocated is not None:
        found = allocated
        store.add(found)
        if new is not None:
            new.append(found)
    assert found is not None
    if cells is not None:
        return HostCells(found, cells, sizes)
    assert buffer is not None
    return DeviceCells(found, buffer)


def _host_cells(
    tensor: Tensor, info: NodeInfo, value: object
) -> tuple[Array, Mapping[StaticExtent, int]]:
    """Return the cells of an array of the host, and the extents at run time that it states."""
    cells = values.unconverted(value, info)
    if cells is not None:
        return cells, {}
    name = tensor.describe()
    value = values.taken_over(value, name)
    sizes = values.given_sizes(value, info, name)
    given = values.sized(info, sizes)
    return values.cells_of(value, given, name, str(tensor.shape)), sizes


def adopt(store: BufferStore, tensor: Tensor, array: object) -> None:
    """Let a tensor use the memory of another library; routines are linked again.

    Raises:
        TransferError: if the object has no memory of the device, or another format.
        ShapeError: if its extents differ.
        LinkError: if the cells have margins in the context.
    """
    buffer = _imported(store, array)
    if buffer is None:
        raise TransferError(
            "A tensor adopts memory of the device of its context.",
            found=f"a {type(array).__name__}, in which {store.target} finds no such memory",
            where=tensor.describe(),
            fix="ctx[x] = array copies arrays of the host",
        )
    if getattr(buffer, "is_read_only", False):
        raise TransferError(
            "A tensor adopts memory that its routines may write.",
            found=f"a {type(array).__name__} that is read-only",
            where=tensor.describe(),
            fix="ctx[x] = array copies the cells",
        )
    if not getattr(buffer, "is_aligned", True):
        raise TransferError(
            "Adopted memory begins where the device loads vectors.",
            found=f"a {type(array).__name__} that begins between them, as a part of an array may",
            where=tensor.describe(),
            fix="ctx[x] = array copies the cells",
        )
    tensor.note_host_write()
    stored = store.find(tensor.node)
    info = stored.info if stored is not None else tensor.info
    _check_equal(tensor, info, buffer.info)
    if info.padding:
        raise LinkError(
            "Adopted memory has the cells of a tensor, without margins around them.",
            found=f"margins, which make the extents {info.buffer_dims}",
            where=tensor.describe(),
            fix="ctx[x] = array copies the cells",
        )
    if stored is None:
        stored = NodeMemory(tensor.node, buffer, tensor)
        store.add(stored)
    else:
        store.wait_to_write(stored)
        store.device.account.remove(stored)
        stored.buffer, stored.shared = buffer, None
        for routine in list(store.history.routines):
            routine.link_again(stored)
    store.history.host_wrote(stored, {})


def _imported(store: BufferStore, value: object) -> Buffer | None:
    """Return a value as memory of the device; None if it is none."""
    if isinstance(value, _HOST_VALUES):
        return None
    return store.backend.import_array(value, store.target)


def _check_equal(tensor: Tensor, info: NodeInfo, given: NodeInfo) -> None:
    """Raise if memory of another library has not the format and the extents of a tensor."""
    if given.dims != info.dims:
        raise ShapeError(
            "Memory of a device has the extents of its tensor: batch, output, input axes.",
            found=f"{list(given.dims)} for {list(info.dims)}",
            where=f"{tensor.describe()}, of shape {tensor.shape}",
            fix="reshape the array in its library",
        )
    if given.dtype is not info.dtype:
        raise TransferError(
            "Memory of a device has the number format of its tensor.",
            found=f"{given.dtype} for {info.dtype}",
            where=tensor.describe(),
            fix="convert the array in its library; arrays of the host are converted here",
        )
