"""Queues of work for devices of this process, with events, and locks of its threads."""

from ocannl_core.backend.queues import HostQueue, QueueEvent
from ocannl_core.base.forks import process_lock

__all__ = ["HostQueue", "QueueEvent", "process_lock"]
