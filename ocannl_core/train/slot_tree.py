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
from typing import Generic, TypeVar

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
        """Add the sum of a span; join it with its neighbours as far as they are there."""
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
class Work:
    """The actions of a worker, and the registers of its sums."""

    actions: tuple[Action, ...]
    sums: tuple[tuple[Span, int], ...]
    registers: int


class Registers:
    """Numbers of registers, of which freed ones are used again."""

    def __init__(self, count: int = 0) -> None:
        self._free: list[int] = []
        self.count = count

    def take(self) -> int:
        if self._free:
            return self._free.pop()
        self.count += 1
        return self.count - 1

    def free(self, register: int) -> None:
        self._free.append(register)


def work_of(slots: int, part: range) -> Work:
    """Return the work of the worker that has a part of the slots."""
    registers = Registers()
    actions: list[Action] = []
    sums = tuple((span, _append(span, actions, registers)) for span in largest_spans(slots, part))
    return Work(tuple(actions), sums, registers.count)


def _append(span: Span, actions: list[Action], registers: Registers) -> int:
    """Append the actions that compute the sum of a span; return its register."""
    if span.size == 1:
        actions.append(Compute(span.start))
        register = registers.take()
        actions.append(CopyToRegister(register))
        return register
    left, right = span.halves()
    register = _append(left, actions, registers)
    if right.size == 1:
        actions += [Compute(right.start), AddToRegister(register)]
        return register
    other = _append(right, actions, registers)
    actions.append(Add(register, other))
    registers.free(other)
    return register


@dataclass(frozen=True, slots=True)
class Receive:
    """Copy a register of another device to one of the first device."""

    worker: int
    source: int
    target: int


Join = Receive | Add


def plan_joins(slots: int, works: Sequence[Work]) -> tuple[list[Join], list[tuple[Span, int]]]:
    """Return the actions by which the first device joins the sums of all devices, and its registers
    of the sums then. The sum of all slots is in register 0.
    """
    first, *others = works
    registers = Registers(first.registers)
    for number in range(first.registers):
        if number not in dict(first.sums).values():
            registers.free(number)
    actions: list[Join] = []

    def add(left: int, right: int) -> int:
        actions.append(Add(left, right))
        registers.free(right)
        return left

    tree = TreeSum(slots, add)
    for span, register in first.sums:
        tree.insert(span, register)
    for worker, work in enumerate(others, 1):
        for span, source in work.sums:
            target = registers.take()
            actions.append(Receive(worker, source, target))
            tree.insert(span, target)
    return actions, sorted(tree.held.items(), key=lambda item: item[0].start)
