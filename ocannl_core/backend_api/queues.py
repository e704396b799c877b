"""Queues of work for devices of this process, with events."""

from ocannl_core.backend.queues import HostQueue, QueueEvent

__all__ = ["HostQueue", "QueueEvent"]
