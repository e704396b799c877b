"""The order of additions in data parallel training: one binary tree over the slots of a batch.

    8 slots      0 1   2 3   4 5   6 7
                  +     +     +     +
                     +           +
                           +

A node of the tree is a span of slots. It splits at the largest power of two below its size, so the
left part is a complete tree. Workers have consecutive slots: each computes the sums of the largest
spans that lie inside its part, and the sums of all workers are joined in the same tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from ocannl_core.base.fast_dataclass import dataclass

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Span:
    """A node of the tree: the slots from `start` to `stop`, the latter excluded."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    def halves(self) -> tuple[Span, Span]:
        """Return both parts of a span of at least two slots."""
        middle = self.start + (1 << ((self.size - 1).bit_length() - 1))
        return Span(self.start, middle), Span(middle, self.stop)

    def is_inside(self, part: range) -> bool:
        return part.start <= self.start and self.stop <= part.stop


def share(slots: int, workers: int, worker: int) -> range:
    """Return the slots of a worker: consecutive, and equally many up to one."""
    return range(slots * worker // workers, slots * (worker + 1) // workers)


def largest_spans(slots: int, part: range) -> tuple[Span, ...]:
    """Return the largest nodes of the tree that lie inside a part, in order."""
    found, pending = [], [Span(0, slots)]
    while pending:
        span = pending.pop()
        if span.is_inside(part):
            found.append(span)
        elif span.start < part.stop and part.start < span.stop:
            left, right = span.halves()
            pending += [right, left]
    return tuple(found)


def parent_of(span: Span, slots: int) -> tuple[Span, Span, Span] | None:
    """Return the node above a node and both of its parts; None for the root."""
    node = Span(0, slots)
    if span == node:
        return None
    while True:
        left, right = node.halves()
        if span in (left, right):
            return node, left, right
        node = left if span.stop <= left.stop else right


class TreeSum(Generic[T]):
    """The sums of spans, added up in the tree in whatever order they arrive.

    Args:
        slots: The number of slots.
        add: Returns the sum of a left and a right part.
    """

    def __init__(self, slots: int, add: Callable[[T, T], T]) -> None:
        self._slots = slots
        self._add = add
        self.held: dict[Span, T] = {}

    def insert(self, span: Span, value: T) -> None:
        """Add the sum of a span; join it with its neighbors as far as they are there."""
        self.held[span] = value
        while (above := parent_of(span, self._slots)) is not None:
            node, left, right = above
            if left not in self.held or right not in self.held:
                return
            self.held[node] = self._add(self.held.pop(left), self.held.pop(right))
            span = node

    @property
    def root(self) -> T | None:
        """The sum of all slots; None as long as spans are missing."""
        return self.held.get(Span(0, self._slots))


@dataclass(frozen=True, slots=True)
class Compute:
    """Compute the values of a slot."""

    slot: int


@dataclass(frozen=True, slots=True)
class CopyToRegister:
    """Copy the values of the last slot to a register."""

    register: int


@dataclass(frozen=True, slots=True)
class AddToRegister:
    """Add the values of the last slot to a register."""

    register: int


@dataclass(frozen=True, slots=True)
class Add:
    """Add the right register to the left one."""

    left: int
    right: int


Sum = CopyToRegister | AddToRegister | Add
Action = Compute | Sum


@dataclass(frozen=True, slots=True)
class Receive:
    """Copy a register of another device to one of the first device."""

    worker: int
    source: int
    target: int


Join = Receive | Add


@dataclass(frozen=True, slots=True)
class Work:
    """The actions of a worker, and the registers of its sums."""

    actions: tuple[Action, ...]
    sums: tuple[tuple[Span, int], ...]
    registers: int


class _Program:
    """Actions that add up spans in registers, of which freed ones are used again.

    Args:
        count: The number of registers that exist.
        used: Those that hold sums.
    """

    def __init__(self, slots: int, count: int = 0, used: Sequence[int] = ()) -> None:
        self.actions: list[Any] = []
        self.count = count
        self._free = [register for register in range(count) if register not in used]
        self.tree = TreeSum(slots, self._add)

    def take(self) -> int:
        """Return a register that is free."""
        if self._free:
            return self._free.pop()
        self.count += 1
        return self.count - 1

    def _add(self, left: int, right: int) -> int:
        if right == _LAST_SLOT:
            self.actions.append(AddToRegister(left))
        else:
            self.actions.append(Add(left, right))
            self._free.append(right)
        return left

    def sums(self) -> tuple[tuple[Span, int], ...]:
        """Return the spans whose sums are there, with their registers, in order."""
        return tuple(sorted(self.tree.held.items(), key=lambda item: item[0].start))


_LAST_SLOT = -1
"""The place of the values of a slot that have just been computed."""


def work_of(slots: int, part: range) -> Work:
    """Return the work of the worker that has a part of the slots."""
    program = _Program(slots)
    for slot in part:
        program.actions.append(Compute(slot))
        span = Span(slot, slot + 1)
        program.tree.insert(span, _LAST_SLOT)
        if program.tree.held.get(span) == _LAST_SLOT:
            program.tree.held[span] = register = program.take()
            program.actions.append(CopyToRegister(register))
    return Work(tuple(program.actions), program.sums(), program.count)


def plan_joins(
    slots: int, works: Sequence[Work]
) -> tuple[Sequence[Join], tuple[tuple[Span, int], ...]]:
    """Return the actions by which the first device joins the sums of all devices, and its registers
    of the sums then. The sum of all slots is in register 0.
    """
    first, *others = works
    program = _Program(slots, first.registers, [register for _, register in first.sums])
    program.tree.held.update(first.sums)
    for worker, work in enumerate(others, 1):
        for span, source in work.sums:
            target = program.take()
            program.actions.append(Receive(worker, source, target))
            program.tree.insert(span, target)
    return program.actions, program.sums()
