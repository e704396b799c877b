"""Windows: the memory of tensors as the messages of a communicator access it.

Where this process can address the memory of the device, or the communicator passes it to the
network, messages read and write the tensor itself. Elsewhere a window is an array of this process,
which is copied from the device before it is sent, and to it after it has arrived.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ocannl_core.backend.protocols import Buffer
from ocannl_core.ir.host_arrays import Array
from ocannl_core.runtime import values
from ocannl_core.runtime.context import Context
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.train.communication import Cells


class MessageWindow:
    """The memory of one tensor for messages.

    Attributes:
        memory: The array or buffer that messages access.
        is_direct: True if that is the memory of the tensor, not a copy.
    """

    def __init__(self, context: Context, tensor: Tensor, *, passes_device_memory: bool) -> None:
        stored = context.store.find(tensor.node)
        assert stored is not None, tensor
        self._stored = stored
        self._context = context
        info = stored.info
        direct = _addressable(stored.buffer, passes_device_memory=passes_device_memory)
        self.is_direct = direct is not None
        self.memory: Array | Buffer = (
            direct if direct is not None else np.empty(info.dims, info.dtype.numpy)
        )

    def rows(self, rows: range | None) -> Cells:
        """Return the cells of some rows along the first axis; None for all."""
        info = self._stored.info
        nbytes = int(np.prod(info.dims, dtype=np.int64)) * info.dtype.numpy.itemsize
        if rows is None:
            return Cells(self.memory, 0, nbytes)
        each = nbytes // info.dims[0] if info.dims[0] else 0
        return Cells(self.memory, each * rows.start, each * len(rows))

    def load(self) -> None:
        """Copy the cells from the device, before they are sent."""
        if not self.is_direct:
            self._context.store.wait_to_read(self._stored)
            self._host[...] = values.read(self._context.backend, self._stored.buffer)

    def store(self) -> None:
        """Copy the cells to the device, after they have arrived."""
        if not self.is_direct:
            self._context.store.wait_to_write(self._stored)
            values.write(self._context.backend, self._stored.buffer, self._host)
        self._context.store.history.host_wrote(self._stored, {})

    @property
    def _host(self) -> Array:
        assert isinstance(self.memory, np.ndarray)
        return self.memory


def _addressable(buffer: Buffer, *, passes_device_memory: bool) -> Any:
    """Return the memory of a buffer that messages can access directly; None if they cannot."""
    info = buffer.info
    if info.memory_dims != info.dims or info.memory_numpy != info.dtype.numpy:
        return None  # with margins, or packed: not the cells of an array
    array = getattr(buffer, "array", None)
    if isinstance(array, np.ndarray) and array.flags.c_contiguous:
        return array
    if passes_device_memory and hasattr(type(buffer), "__cuda_array_interface__"):
        return buffer
    return None
