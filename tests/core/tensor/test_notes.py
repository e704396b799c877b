"""Texts about tensors, which disappear with them."""

from __future__ import annotations

import gc
from typing import Any

from ocannl_core.tensor.graph.session import Notes


class Subject:
    """A stand-in for a tensor, which only the collector frees."""

    def __init__(self, number: int) -> None:
        self.id = number
        self.itself: Any = self


def test_notes_are_copied_while_the_collector_frees_their_tensors() -> None:
    kept, dropped = ([Subject(first + n) for n in range(500)] for first in (0, 500))
    notes = Notes()
    for each in (*kept, *dropped):
        notes[each] = f"note {each.id}"
    threshold = gc.get_threshold()
    gc.disable()
    dropped.clear()
    del each
    gc.set_threshold(1)
    gc.enable()  # it runs at the next allocation
    try:
        copy = notes.copy()
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert [copy[each] for each in kept] == [f"note {each.id}" for each in kept]
    assert len(copy) == len(kept)
