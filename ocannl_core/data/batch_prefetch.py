"""Batches that a thread makes while earlier ones are used."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import TypeVar

from ocannl_core.base.fast_dataclass import dataclass

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _End:
    """The end of the items, and the exception that caused it, if one did."""

    error: BaseException | None


def prefetched(items: Iterator[T], ahead: int) -> Iterator[T]:
    """Yield items that one thread takes from an iterator, up to `ahead` of them in advance.

    An exception of the iterator is raised here, after the items before it. The thread ends with
    the items, or when this generator is closed; it does not keep the process from ending.
    """
    room = Semaphore(ahead)
    made: SimpleQueue[T | _End] = SimpleQueue()
    is_closed = False

    def work() -> None:
        error: BaseException | None = None
        try:
            while room.acquire() and not is_closed:
                made.put(next(items))
        except StopIteration:
            pass
        except BaseException as raised:
            error = raised
        made.put(_End(error))

    Thread(target=work, name="ocannl prefetch", daemon=True).start()
    try:
        while True:
            item = made.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            room.release()
            yield item
    finally:
        is_closed = True
        room.release()
