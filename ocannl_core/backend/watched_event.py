"""Events of plugins whose errors name the plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from ocannl_core.backend.protocols import Event
from ocannl_core.base.fast_dataclass import dataclass

RaiseFault = Callable[[str, BaseException], NoReturn]
"""A function that raises the error of a hook, with the plugin that it belongs to."""


@dataclass(frozen=True, slots=True, eq=False)
class WatchedEvent:
    """An event of a plugin."""

    event: Event
    hook: str
    raise_fault: RaiseFault

    @property
    def is_done(self) -> bool:
        """True if the work before it is certain to be over, and has not failed."""
        return getattr(self.event, "is_done", False) is True

    def wait(self) -> None:
        """Return when all work before it has finished.

        Raises:
            HookError: if the plugin raises anything but an error of the project.
        """
        try:
            self.event.wait()
        except BaseException as error:
            self.raise_fault(f"{self.hook}, wait of its Event", error)


def unwatched(event: Event) -> Event:
    """Return the object of the plugin that made an event."""
    return event.event if isinstance(event, WatchedEvent) else event
