"""Tensor nodes: the identity of an array, its dtype and extents, and its placement.

A node is only an identity and a label. The results of inference (`NodeInfo`) and the placement in a
context (`Placement`) are in tables of their owners, so that no object that holds a node can be
stale.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, IntEnum
from functools import lru_cache
from math import prod
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from ocannl_core.base.errors import LinkError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.forks import process_lock
from ocannl_core.base.rounding import ceil_div
from ocannl_core.ir.indexing import Margin as Margin
from ocannl_core.ir.indexing import StaticExtent
from ocannl_core.ir.numbers.dtypes import DType


class _Entered:
    """A key of tables whose entries live as long as it does; see `NodeTable`."""

    __slots__ = ("__weakref__", "_entries")


@lru_cache(maxsize=4096)
def _identifier(label: tuple[str, ...]) -> str:
    """Return the parts of a label as one identifier, but for a digit at its beginning."""
    parts: list[str] = []
    for part in label:
        clean = "".join(c if c.isalnum() or c == "_" else "_" for c in part).strip("_")
        if clean and (not parts or parts[-1] != clean):
            parts.append(clean)
    return "_".join(parts)


@dataclass(frozen=True, slots=True, eq=False)
class TensorNode(_Entered):
    """The identity of a multi-dimensional array; compared by identity.

    Attributes:
        id: The creation ordinal within the session; keys of random numbers derive from it.
        label: Name parts, most significant first, for people to read.
        gradient_of: The node of which this one is the gradient.
    """

    id: int
    label: tuple[str, ...] = ()
    gradient_of: TensorNode | None = None

    @property
    def name(self) -> str:
        """The label as one identifier; `n<id>` for a node without one."""
        name = _identifier(self.label)
        return (
            name if name and not name[0].isdigit() else f"n{self.id}" + (f"_{name}" if name else "")
        )

    def __repr__(self) -> str:
        return f"<node {self.id} {self.name}>"


V = TypeVar("V")


_lock = process_lock()
"""Held while a node gets an entry: contexts of several threads have tables of their own."""


class NodeTable(Generic[V]):
    """A table of values by node, in which an entry lives as long as both the node and the table.

    Values may refer to their nodes: the nodes own them, so that the cyclic collector frees both.
    """

    __slots__ = ("__weakref__", "_nodes")

    def __init__(self) -> None:
        self._nodes: WeakSet[TensorNode] = WeakSet()

    def __setitem__(self, node: TensorNode, value: V) -> None:
        with _lock:
            entries = _entries(node)
            if entries is None:
                entries = WeakKeyDictionary()
                object.__setattr__(node, "_entries", entries)
            entries[self] = value
            self._nodes.add(node)

    def get(self, node: TensorNode) -> V | None:
        """Return the value of a node, or None."""
        entries = _entries(node)
        found: V | None = None if entries is None else entries.get(self)
        return found

    def __delitem__(self, node: TensorNode) -> None:
        entries = _entries(node)
        if entries is not None:
            del entries[self]
        self._nodes.discard(node)

    def __contains__(self, node: TensorNode) -> bool:
        return node in self._nodes

    def __len__(self) -> int:
        return len(self._nodes)

    def items(self) -> Iterator[tuple[TensorNode, V]]:
        """Yield the nodes with their values."""
        for node in self._nodes:
            value = self.get(node)
            if value is not None:
                yield node, value

    def values(self) -> Iterator[V]:
        """Yield all values."""
        return (value for _, value in self.items())


def _entries(node: TensorNode) -> WeakKeyDictionary[NodeTable[Any], Any] | None:
    found: WeakKeyDictionary[NodeTable[Any], Any] | None = getattr(node, "_entries", None)
    return found


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """The dtype, extents and margins of a node once inference has closed.

    Attributes:
        dtype: The number format of its cells.
        dims: Extents of the axes in buffer order (batch, output, input), without margins.
        padding: Margins per axis; empty when there are none.
        extents: The extent at run time of each axis that has one, which is at most its size in
            `dims`; cells beyond are undefined. Empty if all sizes are constant.
    """

    dtype: DType
    dims: tuple[int, ...]
    padding: tuple[Margin, ...] = ()
    extents: tuple[StaticExtent | None, ...] = ()

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
        cells, packed_bits = prod(self.buffer_dims), self.dtype.packed_bits
        return ceil_div(cells * packed_bits, 8) if packed_bits else cells * self.dtype.nbytes

    @property
    def memory_dims(self) -> tuple[int, ...]:
        """Extents of the array that is the node's memory: bytes of a packed format, else cells."""
        return (self.nbytes,) if self.dtype.is_packed else self.buffer_dims

    @property
    def memory_numpy(self) -> np.dtype[Any]:
        """The NumPy format of that array."""
        return np.dtype(np.uint8) if self.dtype.is_packed else self.dtype.numpy


class MemoryMode(Enum):
    """A set of places at which a node's cells may be.

    The places are no memory at all, memory of the routine, memory of the context on the device, and
    that with a copy on the host. Decisions remove places and never add one.
    """

    UNDECIDED = "undecided"
    VIRTUAL = "virtual"
    NEVER_VIRTUAL = "never virtual"
    EFFECTIVELY_CONSTANT = "effectively constant"
    LOCAL = "local"
    DEVICE_ONLY = "device only"
    MATERIALIZED = "materialized"
    ON_DEVICE = "on device"
    HOSTED = "hosted"

    @property
    def places(self) -> frozenset[MemoryMode]:
        """The modes of a single place in the set."""
        return _PLACES[self]


_M = MemoryMode
_MOST_LOCAL_FIRST = (_M.VIRTUAL, _M.LOCAL, _M.ON_DEVICE, _M.HOSTED)
_PLACES = {
    _M.UNDECIDED: frozenset(_MOST_LOCAL_FIRST),
    _M.VIRTUAL: frozenset({_M.VIRTUAL}),
    _M.NEVER_VIRTUAL: frozenset({_M.LOCAL, _M.ON_DEVICE, _M.HOSTED}),
    _M.EFFECTIVELY_CONSTANT: frozenset({_M.VIRTUAL, _M.ON_DEVICE, _M.HOSTED}),
    _M.LOCAL: frozenset({_M.LOCAL}),
    _M.DEVICE_ONLY: frozenset({_M.LOCAL, _M.ON_DEVICE}),
    _M.MATERIALIZED: frozenset({_M.ON_DEVICE, _M.HOSTED}),
    _M.ON_DEVICE: frozenset({_M.ON_DEVICE}),
    _M.HOSTED: frozenset({_M.HOSTED}),
}
_MODES = {places: mode for mode, places in _PLACES.items()}

STORED = frozenset({MemoryMode.MATERIALIZED, MemoryMode.ON_DEVICE, MemoryMode.HOSTED})
"""Modes in which a node outlives the routine that computes it."""


@dataclass(frozen=True, slots=True)
class ModeChoice:
    """The memory mode that a backend chooses for a node.

    Attributes:
        mode: One of the modes that the core left open.
        reason: The reason as a clause, for explanations: `it feeds the matrix unit`.
    """

    mode: MemoryMode
    reason: str = ""


class Reason(IntEnum):
    """The reason for a memory mode; its number is documented and stays searchable.

    Numbers below 200 and their meanings are OCANNL's, except for 15, which is new here. OCANNL's
    16 and 18 concern scalars that replace a node which turns out to be stored; here that is decided
    before any rewriting.
    """

    VISITED_TOO_OFTEN = 1
    INCONSISTENT_INDICES = 4
    UNSOLVABLE_INDEX = 5
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
    DECLARED_VARIABLE = 19
    READ_ONLY_KNOWN_STORED = 35
    READ_BEFORE_WRITE = 36
    READ_ONLY = 37
    CONSTANT_SCALAR = 40
    NOT_INJECTIVE = 51
    CONCATENATED_INDEX = 52
    VECTOR_STORE = 140
    INLINED_FILL = 151
    INLINED = 152
    PARAMETER = 200
    KEPT = 201
    HOST_DATA = 202
    USED_ELSEWHERE = 203
    DECLARED = 205
    BACKEND_CHOICE = 206
    NEVER_READ = 207
    REDUCTION_FOR_OTHER_CELLS = 208
    TOO_LARGE = 209
    EXTERNAL_CALL = 210
    READ_WITHIN_DEFINITION = 211
    INLINING_DISABLED = 212
    LOCAL_MEMORY_DISABLED = 213
    STRIDED_REDUCTION = 215
    INLINING_REQUESTED = 216
    COMPUTED_POSITION = 217
    WRITTEN_BY_LOOP = 218
    MEASURED_FASTEST = 219
    PARTS_IN_REDUCTION = 220

    @property
    def text(self) -> str:
        """The reason as a sentence."""
        return _REASON_TEXT[self]

    @property
    def advice(self) -> str:
        """A change that leads to another mode."""
        return _ADVICE[self]


_REASON_TEXT = {
    Reason.VISITED_TOO_OFTEN: "its cells are read more often than max_visits allows, and computing "
    "them takes more than a load",
    Reason.INCONSISTENT_INDICES: "one nest of loops writes or reads it at several positions",
    Reason.UNSOLVABLE_INDEX: "the loop variables of its definition do not follow from the position "
    "read: none of several in one index has the coefficient 1",
    Reason.UNTRACED_LOOP: "its definition has a loop that analyses must not look into",
    Reason.ESCAPING_STORE_SYMBOL: "it is read inside a loop whose variable is in the position that "
    "its definition writes, at another position",
    Reason.STAGED_CODE: "its definition contains code that a backend supplied as text",
    Reason.ESCAPING_LOAD_SYMBOL: "it is read inside a loop whose variable is in a position that "
    "its definition reads",
    Reason.ESCAPING_INDEX_SYMBOL: "it is read inside a loop whose variable is a number in its "
    "definition",
    Reason.ALREADY_STORED: "the context stores it",
    Reason.NO_SETTER: "the routine does not compute it",
    Reason.INDEX_MISMATCH: "it is read at positions that its definition cannot be solved for, "
    "such as i where 2*i is written",
    Reason.NO_COMPUTATION: "it is read before the code that computes it",
    Reason.OPERAND_OVERWRITTEN: "something that it is computed from is written between its "
    "definition and a read of it",
    Reason.SURVIVING_READ: "code reads it that needs it in memory: an external call, the "
    "iterations of a loop, a computed position, a check of positions, a merge buffer, or code "
    "supplied as text",
    Reason.DECLARED_VARIABLE: "its definition uses a scalar variable that other code shares",
    Reason.READ_ONLY_KNOWN_STORED: "the routine only reads it, and it has memory already",
    Reason.READ_BEFORE_WRITE: "the routine reads it before writing it",
    Reason.READ_ONLY: "the routine reads it and never writes it",
    Reason.CONSTANT_SCALAR: "it is one constant number",
    Reason.NOT_INJECTIVE: "its definition may write a cell several times, at positions that are "
    "sums of loop variables",
    Reason.CONCATENATED_INDEX: "its definition runs over axes in sequence",
    Reason.VECTOR_STORE: "several of its cells are written at once from one random word",
    Reason.INLINED_FILL: "it is filled with a number, which those that read it use instead",
    Reason.INLINED: "those that read it compute its cells themselves",
    Reason.PARAMETER: "it is a parameter",
    Reason.KEPT: "it was named in keep=, or is a result or a parameter's gradient that is kept "
    "by default",
    Reason.HOST_DATA: "its cells come from the host",
    Reason.USED_ELSEWHERE: "the context already stores it",
    Reason.DECLARED: "it keeps its value from one call to the next",
    Reason.BACKEND_CHOICE: "the backend chose this place",
    Reason.NEVER_READ: "nothing that is stored depends on it",
    Reason.REDUCTION_FOR_OTHER_CELLS: "it is a reduction, which is only merged into code that "
    "visits the same cells once",
    Reason.TOO_LARGE: "the expression for a cell would get too large",
    Reason.EXTERNAL_CALL: "a call out of the loop language computes it",
    Reason.WRITTEN_BY_LOOP: "the iterations of a loop compute it",
    Reason.READ_WITHIN_DEFINITION: "it is read inside the loops that compute it",
    Reason.INLINING_DISABLED: "inlining is switched off by max_visits = 0",
    Reason.STRIDED_REDUCTION: "it is a reduction across rows, whose loops can be reordered while "
    "it is in memory",
    Reason.PARTS_IN_REDUCTION: "every term of a reduction would choose one of its parts",
    Reason.INLINING_REQUESTED: "it was named in inline=",
    Reason.COMPUTED_POSITION: "its cells are written at computed positions",
    Reason.MEASURED_FASTEST: "a search on this machine measured the routine to be faster so",
    Reason.LOCAL_MEMORY_DISABLED: "everything is kept on the device: enable_device_only is off",
}

_APART = "read it in an assignment of its own, after the one that computes it"
_TO_STORE_IT = "name it in keep= to store it"
_TO_COMPUTE_IT = "add the code that computes it, such as oc.train.forward(t)"
_ADVICE = {
    Reason.VISITED_TOO_OFTEN: "name it in inline=, or raise max_visits, to compute it at every "
    "read",
    Reason.INCONSISTENT_INDICES: "write it at one position in each assignment, and read it in "
    "others",
    Reason.UNSOLVABLE_INDEX: "keep it stored, or write it at positions in which one loop variable "
    "has the coefficient 1",
    Reason.UNTRACED_LOOP: "let analyses look into that loop",
    Reason.ESCAPING_STORE_SYMBOL: _APART,
    Reason.STAGED_CODE: "write that code in the loop language",
    Reason.ESCAPING_LOAD_SYMBOL: _APART,
    Reason.ESCAPING_INDEX_SYMBOL: _APART,
    Reason.ALREADY_STORED: "leave it out of keep=, or compile in a context that does not store it",
    Reason.NO_SETTER: _TO_COMPUTE_IT,
    Reason.INDEX_MISMATCH: "keep it stored, or read it where it is written",
    Reason.NO_COMPUTATION: "put the code that computes it before its reads",
    Reason.OPERAND_OVERWRITTEN: "read it before that is written, or compute it from a copy",
    Reason.SURVIVING_READ: "keep it stored, or read it at positions that are known beforehand",
    Reason.DECLARED_VARIABLE: "write its definition as one expression",
    Reason.READ_ONLY_KNOWN_STORED: _TO_COMPUTE_IT,
    Reason.READ_BEFORE_WRITE: "assign it first, unless the value of an earlier call is meant",
    Reason.READ_ONLY: _TO_COMPUTE_IT,
    Reason.CONSTANT_SCALAR: _TO_STORE_IT,
    Reason.NOT_INJECTIVE: "keep it stored, or write every cell once",
    Reason.CONCATENATED_INDEX: "lower the program first, which gives every part a nest of its own",
    Reason.VECTOR_STORE: "keep it stored, or leave out packed=True",
    Reason.INLINED_FILL: _TO_STORE_IT,
    Reason.INLINED: _TO_STORE_IT,
    Reason.PARAMETER: "use an expression or a literal in place of the parameter",
    Reason.KEPT: "leave it out of keep=; keep=() keeps no results",
    Reason.HOST_DATA: "compute it on the device, as oc.arange does",
    Reason.USED_ELSEWHERE: "compile in a context of its own",
    Reason.DECLARED: "use an expression, unless the value has to outlast a call",
    Reason.BACKEND_CHOICE: "name it in inline= or keep=, or choose another backend",
    Reason.NEVER_READ: _TO_STORE_IT,
    Reason.REDUCTION_FOR_OTHER_CELLS: "name it in inline= to reduce again at every read",
    Reason.TOO_LARGE: "keep it stored, or store other parts of the expression with keep=",
    Reason.EXTERNAL_CALL: "keep it stored, or express it by primitives",
    Reason.WRITTEN_BY_LOOP: "keep it stored: every step of the loop reads or writes it",
    Reason.READ_WITHIN_DEFINITION: _APART,
    Reason.INLINING_DISABLED: "set max_visits to 1 or more, or name it in inline=",
    Reason.STRIDED_REDUCTION: "name it in inline= to reduce where it is read",
    Reason.PARTS_IN_REDUCTION: "name it in inline= to choose where it is read",
    Reason.INLINING_REQUESTED: "leave it out of inline=",
    Reason.COMPUTED_POSITION: "keep it stored, or select its cells by comparing positions",
    Reason.MEASURED_FASTEST: "set tune to off, or name it in inline= or keep=",
    Reason.LOCAL_MEMORY_DISABLED: "set enable_device_only to true",
}


@dataclass(frozen=True, slots=True)
class Placement:
    """A memory mode and its reason."""

    mode: MemoryMode = MemoryMode.UNDECIDED
    reason: Reason | None = None
    """The reason for it."""
    note: str = ""
    """The reason of a backend that chose it, in its own words."""

    @property
    def why(self) -> str:
        """The reason as a sentence, with the backend's own words; empty if there is none."""
        text = "" if self.reason is None else self.reason.text
        return f"{text}: {self.note}" if self.note else text

    def __str__(self) -> str:
        if self.reason is None:
            return self.mode.value
        return f"{self.mode.value} because {self.why} ({self.reason.value})"

    def refine(self, requested: Placement, node: TensorNode) -> Placement:
        """Return the decision that keeps the places common to both, an error if there are none."""
        left = _MODES.get(self.mode.places & requested.mode.places)
        if left is self.mode:
            return self
        if left is not None:
            return Placement(left, requested.reason, requested.note)
        raise LinkError(
            f"A memory mode can be refined but not reversed: {node.name} cannot become "
            f"{requested.mode.value}.",
            found=f"it is already {self.mode.value} because {_why(self)}; "
            f"{requested.mode.value} is requested because {_why(requested)}",
            fix="\n".join(dict.fromkeys((_advice(self), _advice(requested)))),
        )

    def settled(self) -> Placement:
        """Return the decision for the most local of the remaining places."""
        mode = next(mode for mode in _MOST_LOCAL_FIRST if mode in self.mode.places)
        return self if mode is self.mode else Placement(mode, self.reason, self.note)


def _why(placement: Placement) -> str:
    if placement.reason is None:
        return "no reason is known"
    return f"{placement.why} ({placement.reason.value})"


def _advice(placement: Placement) -> str:
    if placement.reason is None:
        return f"do not request {placement.mode.value}"
    return placement.reason.advice
