"""Built-in fallback hooks: copies through host memory.

They copy between arrays of this process, which belong to no backend, and synchronize backends whose
work is finished when it is submitted. `stage` connects two backends without a common transfer.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ocannl_core.backend.protocols import BACKEND_API, Buffer, Done, Event, HostBuffer
from ocannl_core.backend.specs import hookimpl
from ocannl_core.ir.target import Target

OCANNL_API = BACKEND_API

Copy = Callable[[Buffer, Buffer], Event | None]
"""A function that copies to the first buffer from the second; it returns None for a pair that it
does not serve.
"""


@hookimpl(trylast=True)
def ocannl_transfer(destination: Buffer, source: Buffer) -> Event | None:
    """Copy between two arrays of this process."""
    if isinstance(destination, HostBuffer) and isinstance(source, HostBuffer):
        np.copyto(destination.array, source.array, casting="no")
        return Done()
    return None


@hookimpl(trylast=True)
def ocannl_synchronize(target: Target) -> bool:
    """Return at once: a backend without this hook finishes its work before it returns."""
    return True


def stage(
    destination: Buffer, source: Buffer, *, to_destination: Copy, from_source: Copy
) -> Event | None:
    """Copy through an array of this process; return None when either copy is not served."""
    host = HostBuffer(np.empty(source.info.memory_dims, source.info.memory_numpy), source.info)
    arrived = from_source(host, source)
    if arrived is None:
        return None
    arrived.wait()
    written = to_destination(destination, host)
    if written is None:
        return None
    written.wait()  # the array must outlive the copy
    return Done()
