"""The memory of a context: which nodes have buffers and values, and why others have none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from itertools import count
from typing import TYPE_CHECKING

from ocannl_core.node import NodeInfo, Placement, TensorNode
from ocannl_core.records import dataclass
from ocannl_core.runtime.interfaces import TensorLike
from ocannl_core.target import Buffer, Target

if TYPE_CHECKING:
    from ocannl_core.hooks.manager import Backend
    from ocannl_core.runtime.recompute import Recipe


@dataclass(slots=True, eq=False)
class Run:
    """When a routine ran last; 0 if it has not.

    Attributes:
        at: When it ran last.
        routine: The routine, as messages call it.
        passed_on: Gradients that it leaves passed on to operands.
    """

    at: int = 0
    routine: str = ""
    passed_on: frozenset[TensorNode] = frozenset()


class History:
    """The order of what happens to the memory of a lineage of contexts.

    Attributes:
        last: What happened last, if that was a run after which nothing has to be checked or noted
            before the same routine runs again; None after everything else.
    """

    __slots__ = ("_ordinals", "last")

    def __init__(self) -> None:
        self.last: Run | None = None
        self._ordinals = count(1)

    def host_wrote(self, stored: Stored) -> None:
        """Notes that the host has written to a node."""
        self.last = None
        stored.has_value = True
        stored.host_wrote_at = next(self._ordinals)

    def ran(self, run: Run, *, is_repeatable: bool) -> None:
        """Notes that a routine has run.

        Args:
            run: What tells when it did.
            is_repeatable: Whether it may run again at once without being checked.
        """
        run.at = next(self._ordinals)
        self.last = run if is_repeatable else None


@dataclass(slots=True, eq=False)
class Stored:
    """The memory of one node.

    Attributes:
        node: The node.
        buffer: Its cells.
        tensor: The tensor behind it, if known: what messages call it.
        has_value: True once the host or a routine has written it; never becomes False again.
        is_linked: True once a routine holds the buffer's address.
        writers: Names of the routines that compute it, oldest first.
        runs: When each routine that writes it ran last.
        host_wrote_at: When the host wrote it last.
    """

    node: TensorNode
    buffer: Buffer
    tensor: TensorLike | None = None
    has_value: bool = False
    is_linked: bool = False
    writers: list[str] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    host_wrote_at: int = 0

    def passed_on_by(self) -> Run | None:
        """Returns the run that wrote the node last, if that left it passed on to operands."""
        last = max(self.runs, key=lambda run: run.at, default=None)
        if last is None or last.at <= self.host_wrote_at or self.node not in last.passed_on:
            return None
        return last

    def written_at(self) -> int:
        """Returns when it was written last."""
        return max((self.host_wrote_at, *(run.at for run in self.runs)))

    @property
    def info(self) -> NodeInfo:
        return self.buffer.info


@dataclass(frozen=True, slots=True)
class Unstored:
    """A node that some routine computes and does not keep.

    Attributes:
        routine: The routine's name.
        placement: Where it is there, and why.
        recipe: How later code computes it, if it can.
    """

    routine: str
    placement: Placement
    recipe: Recipe | None = None


class Store:
    """The buffers of a context and of those that it descends from.

    Attributes:
        backend: What the memory belongs to.
        target: Its device.
        history: What happened to the memory, in order; a lineage has one.
    """

    def __init__(self, backend: Backend, target: Target, parent: Store | None = None) -> None:
        self.backend = backend
        self.target = target
        self._parent = parent
        self.history: History = History() if parent is None else parent.history
        self._stored: dict[TensorNode, Stored] = {}
        self._unstored: dict[TensorNode, Unstored] = {}

    def _lineage(self) -> Iterator[Store]:
        store: Store | None = self
        while store is not None:
            yield store
            store = store._parent

    def find(self, node: TensorNode) -> Stored | None:
        """Returns the memory of a node, from the nearest context of the lineage that has it."""
        for store in self._lineage():
            found = store._stored.get(node)
            if found is not None:
                return found
        return None

    def owns(self, node: TensorNode) -> bool:
        """True if this context, not one that it descends from, has the node's memory."""
        return node in self._stored

    def allocate(self, info: NodeInfo) -> Buffer:
        """Returns new memory, all zero."""
        return self.backend.allocate(info, self.target)

    def add(self, stored: Stored) -> None:
        self._stored[stored.node] = stored

    def find_unstored(self, node: TensorNode) -> Unstored | None:
        """Returns why a node that some routine computes has no memory."""
        for store in self._lineage():
            found = store._unstored.get(node)
            if found is not None:
                return found
        return None

    def add_unstored(self, node: TensorNode, unstored: Unstored) -> None:
        self._unstored[node] = unstored

    def nbytes(self) -> int:
        """Returns the bytes of this context's own buffers."""
        return sum(stored.info.nbytes for stored in self._stored.values())

    def __len__(self) -> int:
        return len(self._stored)
