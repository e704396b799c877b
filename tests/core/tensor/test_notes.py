"""Texts about tensors, which disappear with them."""

from __future__ import annotations

from collections.abc import Callable

from ocannl_core.base.undo_log import UndoLog
from ocannl_core.tensor.graph.session import Notes


class Subject:
    """A stand-in for a tensor, whose visits may free others, as the collector may at any time."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.visited: Callable[[], object] | None = None

    @property
    def id(self) -> int:
        if self.visited is not None:
            self.visited()
        return self._number


def test_notes_are_copied_while_other_tensors_are_freed() -> None:
    kept = Subject(0)
    dropped = [Subject(1), Subject(2)]
    notes = Notes(UndoLog())
    for number in range(2):
        notes[dropped[number]] = "dropped"
    notes[kept] = "kept"
    kept.visited = dropped.clear
    last = Subject(3)
    notes[last] = "last"
    copy = notes.copy()
    assert (copy[kept], copy[last], len(copy), len(notes)) == ("kept", "last", 2, 2)
