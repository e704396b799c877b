"""The interface between data parallel training and other processes.

A process works on consecutive slots of every batch, on one device or several. Its sums of spans
then meet those of the other processes in a communicator, which adds them up in the tree and hands
the sum of all slots to every process. The tree fixes each addition, so that the bits do not depend
on the number of processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from ocannl_core.dtypes import DType
from ocannl_core.fast_dataclass import dataclass
from ocannl_core.host_arrays import Array
from ocannl_core.target import Buffer
from ocannl_core.train.slot_tree import Span, TreeSum


@dataclass(frozen=True, slots=True)
class Summand:
    """A tensor that is added up over the slots; the list of them is fixed when training starts.

    Attributes:
        name: Its name, for messages: that of a parameter, with `.grad`, of a statistic or metric.
        dtype: The number format of the sums.
        dims: Its extents.
    """

    name: str
    dtype: DType
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Partial:
    """The sums over a span of slots.

    Attributes:
        span: The slots.
        arrays: A copy of each summand in memory of this process.
        buffers: The memory of each on the device, for communicators that read it directly. It keeps
            its cells until `all_reduce` returns.
    """

    span: Span
    arrays: tuple[Array, ...]
    buffers: tuple[Buffer, ...] = ()


@runtime_checkable
class Communicator(Protocol):
    """A group of processes with one model, each of which has consecutive slots of every batch."""

    @property
    def rank(self) -> int:
        """The number of this process."""
        ...

    @property
    def size(self) -> int:
        """The number of processes."""
        ...

    def agree(self, facts: Mapping[str, str]) -> None:
        """Return if all processes state the same facts: code, summands, slots, settings, versions.

        Raises:
            UsageError: with the name of the fact that differs, and its values.
        """
        ...

    def prepare(self, summands: Sequence[Summand], slots: int) -> None:
        """Take the list of summands, once, before the first step."""
        ...

    def all_reduce(self, partials: Sequence[Partial]) -> Sequence[Array]:
        """Return the sum of each summand over all slots, added up in the tree; called by all
        processes, each with the largest spans of its slots.
        """
        ...

    def all_gather(self, rows: Sequence[Array], totals: Sequence[int]) -> Sequence[Array]:
        """Return arrays of the rows of all processes in order; called by all of them.

        Args:
            rows: Some rows of each array: as `slot_tree.share` divides them among the processes.
            totals: The number of rows of each array.
        """
        ...

    def broadcast(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the arrays of process 0; called by all processes with arrays of equal extents."""
        ...


@dataclass(frozen=True, slots=True)
class OneProcess:
    """The communicator of a process that works alone."""

    rank: int = 0
    size: int = 1

    def agree(self, facts: Mapping[str, str]) -> None:
        return

    def prepare(self, summands: Sequence[Summand], slots: int) -> None:
        return

    def all_reduce(self, partials: Sequence[Partial]) -> Sequence[Array]:
        (whole,) = partials
        return whole.arrays

    def all_gather(self, rows: Sequence[Array], totals: Sequence[int]) -> Sequence[Array]:
        return rows

    def broadcast(self, arrays: Sequence[Array]) -> Sequence[Array]:
        return arrays


def add_arrays(left: Sequence[Array], right: Sequence[Array]) -> tuple[Array, ...]:
    """Return sums of arrays, rounded once, as devices compute them; the left ones may be
    overwritten.
    """
    return tuple(np.add(one, other, out=one) for one, other in zip(left, right, strict=True))


def tree_sum(slots: int) -> TreeSum[tuple[Array, ...]]:
    """Return the tree in which a communicator adds up arrays of `Partial`s."""
    return TreeSum(slots, add_arrays)
