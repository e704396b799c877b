"""Tensor nodes: the identity of a piece of memory, what is known of it, and where it is stored.

A node is only an identity and a label. What inference finds (`NodeInfo`) and where a context stores
it (`Placement`) live in tables of those who decide, so that nothing that holds a node can go stale.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from math import prod

from ocannl_core.dtypes import DType
from ocannl_core.errors import LinkError
from ocannl_core.indexing import Margin

__all__ = ["STORED", "Margin", "MemoryMode", "NodeInfo", "Placement", "Reason", "TensorNode"]


@dataclass(frozen=True, slots=True, eq=False)
class TensorNode:
    """The identity of a multi-dimensional array; compared by identity.

    Attributes:
        id: The creation ordinal within the session; keys of random numbers derive from it.
        label: Name parts, most significant first, for people to read.
    """

    id: int
    label: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The label as one identifier; `n<id>` for a node without one."""
        parts: list[str] = []
        for part in self.label:
            clean = "".join(c if c.isalnum() or c == "_" else "_" for c in part).strip("_")
            if clean and (not parts or parts[-1] != clean):
                parts.append(clean)
        name = "_".join(parts)
        return (
            name if name and not name[0].isdigit() else f"n{self.id}" + (f"_{name}" if name else "")
        )

    def __repr__(self) -> str:
        return f"<node {self.id} {self.name}>"


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What is known of a node once inference has closed.

    Attributes:
        dtype: The number format of its cells.
        dims: Extents of the axes in buffer order (batch, output, input), without margins.
        padding: Margins per axis; empty when there are none.
    """

    dtype: DType
    dims: tuple[int, ...]
    padding: tuple[Margin, ...] = ()

    @property
    def buffer_dims(self) -> tuple[int, ...]:
        """Extents of the stored array, margins included."""
        if not self.padding:
            return self.dims
        return tuple(n + m.left + m.right for n, m in zip(self.dims, self.padding, strict=True))

    @property
    def size(self) -> int:
        """The number of stored cells."""
        return prod(self.buffer_dims)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.nbytes


class MemoryMode(Enum):
    """Where a node's cells are. Modes form a lattice: a decision can be refined, never reversed."""

    UNDECIDED = "undecided"
    VIRTUAL = "virtual"
    NEVER_VIRTUAL = "never virtual"
    EFFECTIVELY_CONSTANT = "effectively constant"
    LOCAL = "local"
    DEVICE_ONLY = "device only"
    MATERIALIZED = "materialized"
    ON_DEVICE = "on device"
    HOSTED = "hosted"


_M = MemoryMode
_REFINES: dict[MemoryMode, frozenset[MemoryMode]] = {
    _M.UNDECIDED: frozenset(_M),
    _M.VIRTUAL: frozenset({_M.EFFECTIVELY_CONSTANT}),
    _M.NEVER_VIRTUAL: frozenset(
        {_M.LOCAL, _M.DEVICE_ONLY, _M.MATERIALIZED, _M.ON_DEVICE, _M.HOSTED}
    ),
    _M.EFFECTIVELY_CONSTANT: frozenset(
        {_M.VIRTUAL, _M.NEVER_VIRTUAL, _M.MATERIALIZED, _M.ON_DEVICE, _M.HOSTED}
    ),
    _M.DEVICE_ONLY: frozenset({_M.LOCAL, _M.ON_DEVICE, _M.MATERIALIZED}),
    _M.MATERIALIZED: frozenset({_M.ON_DEVICE, _M.HOSTED}),
    _M.LOCAL: frozenset(),
    _M.ON_DEVICE: frozenset({_M.HOSTED}),
    _M.HOSTED: frozenset(),
}

STORED = frozenset({MemoryMode.MATERIALIZED, MemoryMode.ON_DEVICE, MemoryMode.HOSTED})
"""Modes in which a node outlives the routine that computes it."""


class Reason(IntEnum):
    """Why a memory mode was chosen; the numbers are those of the documents and stay searchable."""

    VISITED_TOO_OFTEN = 1
    INCONSISTENT_INDICES = 4
    REPEATED_SYMBOL = 5
    UNTRACED_LOOP = 6
    ESCAPING_STORE_SYMBOL = 7
    STAGED_CODE = 8
    ESCAPING_LOAD_SYMBOL = 9
    ESCAPING_INDEX_SYMBOL = 10
    ALREADY_STORED = 11
    NO_SETTER = 12
    INDEX_MISMATCH = 13
    NO_COMPUTATION = 14
    OPERAND_OVERWRITTEN = 15
    SURVIVING_READ = 17
    READ_ONLY_KNOWN_STORED = 35
    READ_BEFORE_WRITE = 36
    READ_ONLY = 37
    CONSTANT_SCALAR = 40
    NOT_INJECTIVE = 51
    CONCATENATED_INDEX = 52
    VECTOR_STORE = 140
    PARAMETER = 200
    KEPT = 201
    HOST_DATA = 202
    USED_ELSEWHERE = 203
    ONLY_USED_HERE = 204
    DECLARED = 205
    BACKEND_CHOICE = 206

    @property
    def text(self) -> str:
        """The reason as a sentence."""
        return _REASON_TEXT.get(self, self.name.replace("_", " ").lower())


_REASON_TEXT = {
    Reason.PARAMETER: "it is a parameter",
    Reason.KEPT: "it was named in keep=, or is a result or a parameter's gradient that is kept "
    "by default",
    Reason.HOST_DATA: "its cells come from the host",
    Reason.USED_ELSEWHERE: "the context already stores it",
    Reason.ONLY_USED_HERE: "only the routine that computes it uses it",
    Reason.DECLARED: "it keeps its value from one call to the next",
    Reason.BACKEND_CHOICE: "the backend prefers to keep it on the device",
    Reason.READ_ONLY: "the routine reads it and never writes it",
    Reason.READ_BEFORE_WRITE: "the routine reads it before writing it",
}


@dataclass(frozen=True, slots=True)
class Placement:
    """A memory mode together with the reason for it."""

    mode: MemoryMode = MemoryMode.UNDECIDED
    reason: Reason | None = None

    def refine(self, requested: Placement, node: TensorNode) -> Placement:
        """Returns the finer of two compatible decisions.

        Raises:
            LinkError: if the decisions exclude each other; the message gives both reasons.
        """
        if requested.mode is self.mode or self.mode in _REFINES[requested.mode]:
            return self
        if requested.mode in _REFINES[self.mode]:
            return requested
        raise LinkError(
            f"A memory mode can be refined but not reversed: {node.name} cannot become "
            f"{requested.mode.value}.",
            found=f"it is already {self.mode.value} because {_why(self)}; "
            f"{requested.mode.value} was asked for because {_why(requested)}",
        )


def _why(placement: Placement) -> str:
    return placement.reason.text if placement.reason is not None else "nothing else was known"
