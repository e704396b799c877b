"""Memory of this process with the alignment of vector registers and cache lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ocannl_core.backend_api import (
    ALIGNMENT,
    Buffer,
    Done,
    Event,
    HostBuffer,
    MemoryPlan,
    NodeInfo,
    Target,
    TensorNode,
    dataclass,
)

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class CBuffer:
    """The cells of a node, margins included, as an array of `info.memory_dims`."""

    array: Array
    info: NodeInfo
    target: Target

    @property
    def address(self) -> int:
        """The address of the first cell; valid as long as the array lives."""
        return address(self.array)


def address(array: Array) -> int:
    """Return the address of an array's first cell."""
    location: int = array.__array_interface__["data"][0]
    return location


def zeros(info: NodeInfo) -> Array:
    """Return an aligned array of `info.memory_dims`, all zero."""
    return raw(info.nbytes).view(info.memory_numpy).reshape(info.memory_dims)


def raw(nbytes: int) -> Array:
    """Return aligned bytes, all zero."""
    whole = np.zeros(nbytes + ALIGNMENT, np.uint8)
    start = -address(whole) % ALIGNMENT
    return whole[start : start + nbytes]


def arena(plan: MemoryPlan, nodes: Mapping[TensorNode, NodeInfo]) -> dict[TensorNode, Array]:
    """Return the arrays of a routine's own nodes, all in one allocation."""
    whole = raw(plan.nbytes)
    arrays = {}
    for node, place in plan.places.items():
        info = nodes[node]
        part = whole[place.offset : place.offset + info.nbytes]
        arrays[node] = part.view(info.memory_numpy).reshape(info.memory_dims)
    return arrays


def allocate(info: NodeInfo, target: Target) -> CBuffer:
    """Return new memory, all zero."""
    return CBuffer(zeros(info), info, target)


def shared(buffer: Buffer, target: Target) -> CBuffer | None:
    """Return memory over the array of a buffer; None if it has none that C can address."""
    array: object = getattr(buffer, "array", None)
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
        return None
    info = buffer.info
    fits = array.shape == info.memory_dims and array.dtype == info.memory_numpy
    if not fits or not array.flags.aligned or not array.flags.writeable:
        return None
    return CBuffer(array, info, target)


def transfer(destination: Buffer, source: Buffer) -> Event | None:
    """Copy between arrays of this backend and of the host; return None for any other pair."""
    served = CBuffer | HostBuffer
    if not isinstance(destination, served) or not isinstance(source, served):
        return None
    np.copyto(destination.array, source.array, casting="no")
    return Done()
