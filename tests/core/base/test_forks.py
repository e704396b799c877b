"""The child of a fork has no thread that could release the locks of its parent."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ocannl_core.base.forks import note_threads, process_lock
from ocannl_core.testing.children import succeeds_in_child

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@contextmanager
def held_by_another_thread(lock: threading.RLock) -> Iterator[None]:
    inside, may_go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            inside.set()
            may_go_on.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    yield
    may_go_on.set()
    thread.join()


def is_free(lock: threading.RLock) -> bool:
    found = []

    def take() -> None:
        if lock.acquire(blocking=False):
            found.append(lock)
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return bool(found)


def require(condition: Callable[[], bool]) -> Callable[[], None]:
    def check() -> None:
        assert condition()

    return check


def test_a_lock_of_another_thread_is_free_in_a_child() -> None:
    lock = process_lock()
    with held_by_another_thread(lock):
        assert succeeds_in_child(require(lambda: is_free(lock)))
        assert not is_free(lock)
    assert is_free(lock)


def test_a_lock_of_the_thread_that_forks_is_its_own_in_a_child() -> None:
    lock = process_lock()

    def release() -> None:
        assert not is_free(lock)
        lock.release()
        assert is_free(lock)

    with lock:
        assert succeeds_in_child(release)


def test_a_child_calls_objects_with_threads_that_live() -> None:
    told: list[str] = []

    class Owner:
        def __init__(self, name: str) -> None:
            self.name = name
            note_threads(self)

        def _after_fork(self) -> None:
            told.append(self.name)

    kept, gone = Owner("kept"), Owner("gone")
    del gone
    assert succeeds_in_child(require(lambda: told == [kept.name]))
    assert told == []
