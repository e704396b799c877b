"""Memory plan: one arena for a routine's own nodes, shared where live ranges are disjoint.

step                  1   2   3   4
a, 4096 bytes         #####                  at 0
b, 4096 bytes             #####              at 4096
c, 2048 bytes                 #####     -->  at 0, where a was
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import TypeVar

import numpy as np

from ocannl_core.base.errors import LinkError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.rounding import round_up
from ocannl_core.base.text_tables import aligned_rows
from ocannl_core.ir.kernels.live_ranges import live_ranges
from ocannl_core.ir.kernels.nodes import Plan
from ocannl_core.ir.node import TensorNode
from ocannl_core.schedule.machine_model import CACHE_LINE_BYTES

M = TypeVar("M")
ALIGNMENT = CACHE_LINE_BYTES
"""Bytes: a cache line, and the widest vector register."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """The place and the live range of a node in the arena.

    Attributes:
        offset: The offset of its first byte; a multiple of `ALIGNMENT`.
        nbytes: The bytes of its cells, margins included.
        first: The position of the first step that mentions it.
    """

    offset: int
    nbytes: int
    first: int
    last: int

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Places for the nodes whose memory belongs to a routine.

    Attributes:
        places: The place of each, in the order of the plan.
    """

    places: Mapping[TensorNode, Allocation]
    nbytes: int
    nbytes_unshared: int

    def __str__(self) -> str:
        if not self.places:
            return "no memory of its own"
        rows = [
            (node.name, f"bytes {place.offset} to {place.end}", _steps(place))
            for node, place in self.places.items()
        ]
        head = f"memory of its own: {self.nbytes} bytes, {self.nbytes_unshared} without sharing"
        return "\n  ".join([head, *aligned_rows(rows)])


def _steps(place: Allocation) -> str:
    if place.first == place.last:
        return f"in step {place.first + 1}"
    return f"from step {place.first + 1} to {place.last + 1}"


def memory_plan(plan: Plan) -> MemoryPlan:
    """Return an arena for the nodes whose memory belongs to the routine.

    A node is live from the first step that mentions it to the last one: the operands and results of
    a step never overlap. Its cells are undefined at first, as after any `Allocate`.
    Larger nodes are placed first, each where the gap is smallest that it fits in.

    Raises:
        LinkError: if no arena of less than 2**63 bytes has room for them.
    """
    lives = live_ranges(plan)
    ordered = sorted(lives, key=lambda node: (-plan.nodes[node].nbytes, lives[node].start, node.id))
    arena = _Arena(len(ordered))
    try:
        found = {node: arena.place(plan.nodes[node].nbytes, lives[node]) for node in ordered}
    except OverflowError as error:
        raise too_large(plan, "2**63 bytes or more") from error
    return MemoryPlan(
        {node: found[node] for node in plan.own_nodes},
        max((_aligned(place.end) for place in found.values()), default=0),
        sum(_aligned(place.nbytes) for place in found.values()),
    )


def allocate_pieces(
    plan: Plan, allocate: Callable[[int], M], *, shares: bool = True
) -> dict[TensorNode, M]:
    """Return memory for the nodes of a routine in several allocations, for devices that demand an
    alignment of each: nodes with disjoint lifetimes have the same one.

    Args:
        allocate: Returns memory of so many bytes.
        shares: False to give each node memory of its own.
    """
    pieces: list[tuple[int, int, M]] = []  # size, last step, memory
    found: dict[TensorNode, M] = {}
    places = memory_plan(plan).places
    for node, place in sorted(places.items(), key=lambda each: each[1].first):
        nbytes = plan.nodes[node].nbytes
        free = [piece for piece in pieces if piece[1] < place.first and piece[0] >= nbytes]
        if free and shares:
            chosen = min(free, key=itemgetter(0))
            pieces.remove(chosen)
            size, _, memory = chosen
        else:
            size, memory = nbytes, allocate(nbytes)
        pieces.append((size, place.last, memory))
        found[node] = memory
    return found


def too_large(plan: Plan, nbytes: str) -> LinkError:
    """Return the error for an arena that the device has no room for."""
    return LinkError(
        "The tensors that a routine keeps for itself fit into the memory of the device.",
        found=f"no room for {nbytes}",
        where=f"compiling {plan.name}",
        fix="make an axis shorter, or reduce in the operation that makes the axes",
    )


class _Arena:
    """Places in the order of their offsets, as the columns of one table.

    Each new place is compared with all others. A routine can have thousands, so this is done by a
    few operations on columns.
    """

    def __init__(self, most: int) -> None:
        self._table = np.zeros((4, most), np.int64)  # offset, aligned end, first step, last step
        self._count = 0

    def place(self, nbytes: int, life: range) -> Allocation:
        """Return a new place: in the smallest sufficient gap of its life, or behind all others."""
        first, last = life.start, life.stop - 1
        offsets, ends, firsts, lasts = self._table[:, : self._count]
        busy = (firsts <= last) & (lasts >= first)
        starts = np.concatenate(([0], np.maximum.accumulate(ends[busy])))
        gaps = offsets[busy] - starts[:-1]
        sufficient = np.flatnonzero(gaps >= nbytes)
        at = sufficient[gaps[sufficient].argmin()] if sufficient.size else -1
        place = Allocation(int(starts[at]), nbytes, first, last)
        if nbytes:
            self._insert(place)
        return place

    def _insert(self, place: Allocation) -> None:
        at = int(np.searchsorted(self._table[0, : self._count], place.offset, side="right"))
        self._table[:, at + 1 : self._count + 1] = self._table[:, at : self._count]
        self._table[:, at] = place.offset, _aligned(place.end), place.first, place.last
        self._count += 1


def _aligned(nbytes: int) -> int:
    """Return the next multiple of the alignment."""
    return round_up(nbytes, ALIGNMENT)
