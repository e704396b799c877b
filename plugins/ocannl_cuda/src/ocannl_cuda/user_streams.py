"""Work in order with the streams of other libraries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ocannl_core.backend_api import UsageError
from ocannl_cuda.driver_calls import LEGACY_STREAM

if TYPE_CHECKING:
    from ocannl_cuda.device import CudaDevice

_ATTRIBUTES = ("handle", "cuda_stream", "ptr")
"""The attributes that streams of PyCUDA, of PyTorch, and of CuPy have their handles in."""


@contextmanager
def on_stream(stream: object, device: int = 0) -> Iterator[None]:
    """Let routines and copies inside of a `with` statement run in order with the work of a stream.

        with ocannl_cuda.on_stream(torch.cuda.current_stream()):
            ctx[x] = batch
            step()

    What this thread submits to the device inside comes after the earlier work of the stream, and
    before its later work; nothing waits on the host.

    Args:
        stream: An object with `__cuda_stream__`, a stream of PyCUDA, PyTorch or CuPy, or a handle.
            1 is the legacy default stream, which libraries state as 0, too; 2 the thread's.
        device: The ordinal of the device.

    Raises:
        UsageError: if it is no stream of the device.
        LinkError: if the device cannot be used.
    """
    from ocannl_cuda.device import ordinal_device

    chosen = ordinal_device(device)
    with chosen.following(handle_of(stream, chosen)):
        yield


def handle_of(stream: object, device: CudaDevice) -> int:
    """Return the handle of a stream of a device.

    Raises:
        UsageError: if it is none.
    """
    handle = _stated_handle(stream)
    if not handle and not isinstance(stream, int):
        handle = LEGACY_STREAM  # the default stream of PyTorch and CuPy has the handle 0
    _check(handle, device)
    return handle


def _stated_handle(stream: object) -> int:
    described = getattr(stream, "__cuda_stream__", None)
    found: object = stream
    if callable(described):
        _, found = described()
    elif not isinstance(stream, int):
        held = (getattr(stream, name, None) for name in _ATTRIBUTES)
        found = next((each for each in held if isinstance(each, int)), None)
    if not isinstance(found, int):
        raise UsageError(
            "Work follows a stream of CUDA.",
            found=f"a {type(stream).__name__}: {stream!r}",
            fix="an object with `__cuda_stream__`, as torch.cuda.current_stream(), or a handle",
        )
    return found


def _check(handle: int, device: CudaDevice) -> None:
    if not handle:
        raise UsageError(
            "The handle of a stream says which default stream is meant.",
            found="0, which is ambiguous",
            fix="1 for the legacy default stream, 2 for that of the thread",
        )
    with device.current():
        try:
            context = device.calls.context_of(handle)
        except device.failures as error:
            raise UsageError(
                "Work follows a stream of CUDA.", found=f"the handle {handle:#x}: {error}"
            ) from error
    if context != int(device.context.handle):
        raise UsageError(
            "Work follows a stream of its own device, in the primary context.",
            found=f"a stream of another device or context, for device {device.ordinal}",
            fix="on_stream(stream, device=1) states the device",
        )
