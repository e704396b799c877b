"""Messages in flight, and waiting for them with a limit of time.

A process that never answers would leave the others waiting forever. Each wait here ends with an
error after a time without progress, which names the processes whose messages are missing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from mpi4py import MPI

from ocannl_core.backend_api import OcannlError

_SPIN_SECONDS = 0.002
"""Seconds that a wait tests without a pause; messages inside of a machine take less."""

_PAUSE_SECONDS = 50e-6


class CommunicationError(OcannlError):
    """A process of the group does not answer, or has failed."""


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """A message in flight.

    Attributes:
        request: The request of MPI.
        source: The process that it comes from; None for one that is sent.
    """

    request: MPI.Request
    source: int | None = None


Exchange = Iterator[list[Message]]
"""Work in phases: it yields the messages that must have arrived before its next phase."""


def run(exchanges: Iterable[Exchange], most: int, timeout: float, subject: str) -> None:
    """Run exchanges to their ends, a number of them at a time, in the given order.

    Args:
        exchanges: The exchanges.
        most: The number that may be in flight.
        timeout: Seconds without any message after which the group is given up.
        subject: The operation, for messages.

    Raises:
        CommunicationError: if no message arrives in that time.
    """
    waiting = iter(exchanges)
    active = deque((each, list[Message]()) for each in islice(waiting, most))
    last = time.monotonic()
    while active:
        for _ in range(len(active)):
            exchange, messages = active.popleft()
            left = [each for each in messages if not each.request.Test()]
            if len(left) < len(messages) or not messages:
                last = time.monotonic()
            if left:
                active.append((exchange, left))
            elif (following := next(exchange, None)) is not None:
                active.append((exchange, following))
            else:
                active.extend((each, list[Message]()) for each in islice(waiting, 1))
        idle = time.monotonic() - last
        if idle > timeout:
            raise _unanswered([each for _, messages in active for each in messages], idle, subject)
        if idle > _SPIN_SECONDS:
            time.sleep(_PAUSE_SECONDS)


def _unanswered(messages: list[Message], idle: float, subject: str) -> CommunicationError:
    sources = sorted({each.source for each in messages if each.source is not None})
    named = ", ".join(map(str, sources)) or "none; messages to others have not been received"
    return CommunicationError(
        f"Every process takes part in {subject}.",
        found=f"no message for {idle:.0f} s; missing are those of rank {named}",
        fix="see what these processes printed last; a slower one, as while it compiles, needs"
        "\nocannl_mpi.communicator(timeout=...)",
    )
