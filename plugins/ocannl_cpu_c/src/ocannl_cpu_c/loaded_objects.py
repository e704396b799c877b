"""Shared objects that stay mapped as long as something uses their kernels.

Otherwise a process that compiles program after program would run out of mappings. The most recently
used objects stay mapped, so that a program that is built again finds its kernels.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping
from typing import Any

from ocannl_cpu_c.bindings import ffi

_MOST_RECENT = 256
"""The number of unused objects that stay mapped: some ten megabytes."""


class LoadedObject:
    """A shared object, which is unmapped when nothing refers to it any more. At the end of the
    process it stays: other threads may still run its code.

    Args:
        code: Its exported symbols.
        positions: The position of each of its kernels in its table, by key.
    """

    __slots__ = ("__weakref__", "code", "positions")

    def __init__(self, code: Any, positions: Mapping[str, int]) -> None:
        self.code = code
        self.positions = positions
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(code))  # or the last reference closes it
        weakref.finalize(self, _unmap, code).atexit = False


class LoadedKernel:
    """A function of a shared object.

    Attributes:
        address: The function.
    """

    __slots__ = ("__weakref__", "address", "mapped")

    def __init__(self, address: Any, mapped: LoadedObject) -> None:
        self.address = address
        self.mapped = mapped


def _unmap(code: Any) -> None:
    ffi.dlclose(code)
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(code))


class RecentObjects:
    """The objects used last."""

    def __init__(self) -> None:
        self._objects: dict[LoadedObject, None] = {}

    def use(self, mapped: LoadedObject) -> None:
        """Record a use of an object; drop the least recently used one if there are too many."""
        self._objects.pop(mapped, None)
        self._objects[mapped] = None
        if len(self._objects) > _MOST_RECENT:
            del self._objects[next(iter(self._objects))]

    def clear(self) -> None:
        self._objects.clear()
