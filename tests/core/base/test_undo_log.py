"""The undo log, against copies of everything."""

from __future__ import annotations

import sys
from copy import deepcopy
from threading import Thread
from types import FrameType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ocannl_core.base.undo_log import UndoLog


class State:
    """Data of each kind that a log restores."""

    def __init__(self, log: UndoLog) -> None:
        self.log = log
        self.ordered: dict[int, int] = {}
        self.unordered: dict[int, int] = {}
        self.items: list[int] = []
        self.elements: set[int] = set()
        self.attribute = 0
        self.numbers = log.supply(5)

    def change(self, kind: int, key: int, value: int) -> None:
        """Apply one change."""
        log = self.log
        match kind:
            case 0:
                log.put(self.ordered, key, value)
            case 1:
                log.remove(self.ordered, key)
            case 2:
                log.put(self.unordered, key, value)
            case 3:
                log.remove_unordered(self.unordered, key)
            case 4:
                log.append(self.items, key, value)
            case 5:
                log.add(self.elements, key)
            case 6:
                log.set(self, "attribute", value)
            case _:
                self.numbers.take()

    def copy(self) -> Any:
        """Return all data, dictionaries with their order where it counts."""
        kept = [*self.ordered.items()], self.unordered, self.items, self.elements, self.attribute
        return deepcopy((*kept, self.numbers.next))


@given(st.lists(st.tuples(st.integers(0, 14), st.integers(0, 3), st.integers(0, 9))))
def test_a_rollback_restores_the_state_at_the_beginning_or_at_the_last_commit(
    steps: list[tuple[int, int, int]],
) -> None:
    log = UndoLog()
    state = State(log)
    opened: list[tuple[int, int, Any]] = []
    for kind, key, value in steps:
        if kind < 8:
            state.change(kind, key, value)
        elif kind < 11:
            copy = state.copy()
            opened.append((log.depth, log.begin(), copy))
        elif kind == 11:
            log.commit()
            opened = [(depth, position, state.copy()) for depth, position, _ in opened]
        elif opened:
            at = len(opened) - 1 - key % min(len(opened), 2)  # an interrupt leaves inner ones open
            depth, position, copy = opened[at]
            del opened[at:]
            if kind > 12:
                log.rollback(position)
                assert state.copy() == copy
            log.end(depth)
        assert log.depth == len(opened)


def test_a_transaction_that_has_ended_does_not_undo_the_changes_of_later_ones() -> None:
    log = UndoLog()
    first = log.begin()
    log.end(0)
    later: list[int] = []
    log.begin()
    log.append(later, 1)
    log.commit()
    log.rollback(first)
    log.end(0)
    log.end(1)
    assert later == [1]
    assert log.depth == 0


def test_a_rollback_is_complete_when_an_interrupt_comes() -> None:
    events = 0

    def interrupt(frame: FrameType, event: str, argument: object) -> None:
        nonlocal events
        if event in ("call", "c_return"):  # where Python looks for signals
            events += 1
            if events == moment:
                raise KeyboardInterrupt

    moment = 1  # the first one enters the function
    while events >= moment - 1:
        log = UndoLog()
        state = State(log)
        for kind in (0, 2, 4, 5, 6, 7):
            state.change(kind, 1, 2)
        known, position = state.copy(), log.begin()
        for kind in range(8):
            state.change(kind, 1, 3)
        events, moment = 0, moment + 1
        sys.setprofile(interrupt)
        try:
            log.rollback(position)
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        assert state.copy() == known
    assert moment > 30


def test_threads_take_different_numbers() -> None:
    numbers = UndoLog().supply()
    taken: list[int] = []
    threads = [
        Thread(target=lambda: taken.extend(numbers.take() for _ in range(5000))) for _ in range(4)
    ]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        sys.setswitchinterval(before)
    assert sorted(taken) == list(range(20000))
