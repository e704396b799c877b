"""Failures of devices: in errors of the system, and one record of unusable devices for all of their
contexts.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Iterable
from typing import Protocol

from ocannl_core.base.errors import DeviceError, DeviceFailure
from ocannl_core.base.forks import note_threads
from ocannl_core.ir.target import Target

_FAILURES = {
    errno.ENODEV: DeviceFailure.LOST,
    errno.ENXIO: DeviceFailure.LOST,
    errno.EIO: DeviceFailure.FAULT,
    errno.ETIMEDOUT: DeviceFailure.TIME_LIMIT,
}


def failure_in(error: BaseException) -> DeviceFailure | None:
    """Return the failure of a device that an error of the system states, or None."""
    match error:
        case ConnectionError():
            return DeviceFailure.LOST
        case TimeoutError():
            return DeviceFailure.TIME_LIMIT
        case OSError():
            return _FAILURES.get(error.errno or 0)
        case _:
            return None


class FailureObserver(Protocol):
    """An object that depends on a device."""

    def device_failed(self) -> None:
        """Do what follows from the failure; any thread may call it."""
        ...


class DeviceFailures:
    """The devices of a backend that are unusable, each with its first failure."""

    __slots__ = ("__weakref__", "_found", "_listed", "_observers")

    def __init__(self) -> None:
        self._found: dict[str, DeviceError] = {}
        self._observers: dict[str, weakref.WeakSet[FailureObserver]] = {}
        self._listed: set[str] = set()
        note_threads(self)

    def __bool__(self) -> bool:
        return bool(self._found)

    def record(self, failure: DeviceError) -> None:
        """Record that the device of a failure is unusable, unless the failure states otherwise."""
        if failure.is_usable or failure.device in self._found:
            return
        self._found[failure.device] = failure.at("")  # without a traceback, which keeps memory
        for each in list(self._observers.get(failure.device, ())):
            each.device_failed()

    def observe(self, target: Target, observer: FailureObserver) -> None:
        """Notify an object, as long as it exists, when a device becomes unusable."""
        self._observers.setdefault(str(target), weakref.WeakSet()).add(observer)

    def note_listed(self, targets: Iterable[Target]) -> None:
        """Make devices unusable in later forks if their drivers, which are open now, do not survive
        these.
        """
        self._listed.update(str(each) for each in targets if not each.survives_forks)

    def _after_fork(self) -> None:
        found = f"process {os.getpid()}, the child of a fork"
        for each in self._listed:
            self.record(DeviceError(DeviceFailure.FORKED, found=found, device=each))

    def check(self, *targets: Target) -> None:
        """Refuse work of unusable devices.

        Raises:
            DeviceError: the failure that made one of the devices unusable.
        """
        for target in targets:
            found = self._found.get(str(target)) if self._found and target.has_device else None
            if found is not None:
                raise found.at("")
