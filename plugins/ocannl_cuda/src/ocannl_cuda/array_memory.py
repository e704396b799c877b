"""The pool of a device as the allocator of PyCUDA's arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ocannl_core.backend_api import UsageError
from ocannl_cuda.driver_calls import LEGACY_STREAM
from ocannl_cuda.user_streams import handle_of

if TYPE_CHECKING:
    from ocannl_cuda.device import CudaDevice


def allocator(device: int = 0, *, stream: object = LEGACY_STREAM) -> Callable[[int], Any]:
    """Return a function that allocates memory of a device from the pool of its tensors.

        GPUArray((4, 3), np.float32, allocator=ocannl_cuda.allocator())

    Blocks that arrays and tensors have freed are reused by both. What the stream does with a new
    block comes after all earlier uses of it, and later uses of a freed block come after what the
    stream has done with it so far; nothing waits on the host.

    Args:
        device: The ordinal of the device.
        stream: The stream that uses the arrays, as `on_stream` takes it; the legacy default
            stream if there is none. Arrays that another stream uses need a wait between both.

    Raises:
        UsageError: if it is no stream of the device.
        LinkError: if the device cannot be used.
    """
    from ocannl_cuda.device import ordinal_device

    chosen = ordinal_device(device)
    handle = handle_of(stream, chosen)

    def allocate(nbytes: int) -> Any:
        _check_context(chosen)
        with chosen.current():
            memory = chosen.memory.allocate(nbytes)
            chosen.let_follow(handle)
        made = _holder_class()(chosen, handle, memory)
        chosen.own(made)
        return made

    return allocate


def _check_context(device: CudaDevice) -> None:
    current = device.calls.current_context()
    if current not in (0, int(device.context.handle)):
        raise UsageError(
            "Memory of the pool belongs to the primary context of its device.",
            found=f"another context is current, for device {device.ordinal}",
            fix="import pycuda.autoprimaryctx in the place of pycuda.autoinit",
        )


@functools.cache
def _holder_class() -> type[Any]:
    """Return the class of allocations that PyCUDA takes as pointers; it must be installed."""
    import pycuda.driver as driver

    base: Any = driver.PointerHolderBase

    class PooledMemory(base):  # type: ignore[misc]
        """Memory of the pool, which returns to it with `free` or with the last reference."""

        def __init__(self, device: CudaDevice, stream: int, memory: Any) -> None:
            super().__init__()
            self._device = device
            self._stream = stream
            self._memory = memory

        def get_pointer(self) -> int:
            if self._memory is None:
                raise UsageError("Memory is used before it is freed.", found="freed memory")
            address: int = self._memory.address
            return address

        __int__ = __index__ = get_pointer

        def free(self) -> None:
            """Return the memory; whoever gets it next comes after the work so far of the stream."""
            memory, self._memory = self._memory, None
            if memory is not None:
                self._device.take_back(self._stream)

        def __del__(self) -> None:
            self.free()

    return PooledMemory
