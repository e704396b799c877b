"""The kinds of an axis: the order and the execution resource of a loop's iterations.

The table is `AxisKind`. Passes, schedules and code generation read the columns of a row, so that a
new kind is a row here, and its rendering: `loop_pragma` of a dialect, or a renderer of its loops.
"""

from __future__ import annotations

from enum import Enum

from ocannl_core.base.fast_dataclass import dataclass


class Resource(Enum):
    """The hardware that runs the iterations of a loop."""

    THREAD = "thread"
    """One thread, in ascending order."""
    INSTRUCTION = "instruction"
    """One instruction may run all iterations; its renderer matches the statements inside."""
    THREADS = "threads"
    """Several threads of a processor."""
    DEVICE = "device"
    """The grid of a device and its thread blocks; memory and barriers depend on these loops."""


@dataclass(frozen=True, slots=True)
class _Row:
    text: str
    resource: Resource
    verb: str = ""
    is_whole: bool = False
    splits_sums: bool = False
    may_reduce: bool = True
    on_processors: bool = True
    on_blocks: bool = False


class AxisKind(Enum):
    """The kind of an axis. Its value is its name in printed loops.

    The iterations of every kind but SERIAL may run in any order; the interpreter runs them in
    ascending order.

    Attributes:
        verb: The transform that gives axes this kind, as `unroll` in `unroll i1`; "" for a kind
            that other transforms imply.
        is_whole: True for loops over registers and their lanes: all iterations run, also those
            beyond the end of an axis at run time.
        splits_sums: True if, on a processor, every reduced iteration has its own accumulator.
        may_reduce: True if a reduced axis may have it.
        on_processors: True if a schedule for a processor may have it.
        on_blocks: True if a schedule for thread blocks may have it.
    """

    _value_: str

    def __new__(cls, row: _Row) -> AxisKind:
        kind = object.__new__(cls)
        kind._value_ = row.text
        return kind

    def __init__(self, row: _Row) -> None:
        self.resource = row.resource
        self.verb = row.verb
        self.is_whole = row.is_whole
        self.splits_sums = row.splits_sums
        self.may_reduce = row.may_reduce
        self.on_processors = row.on_processors
        self.on_blocks = row.on_blocks

    SERIAL = _Row("serial", Resource.THREAD, on_blocks=True)
    PARALLEL = _Row("parallel", Resource.THREADS, "parallelize", may_reduce=False)
    """Iterations may run on different threads."""
    VECTOR = _Row(
        "vector", Resource.THREAD, "vectorize", is_whole=True, splits_sums=True, on_blocks=True
    )
    """Iterations may run in the lanes of a vector register."""
    UNROLLED = _Row(
        "unrolled", Resource.THREAD, "unroll", is_whole=True, splits_sums=True, on_blocks=True
    )
    """The loop is fully unrolled."""
    DOT = _Row("dot", Resource.INSTRUCTION, "dot", is_whole=True)
    """Iterations run over the terms of a dot product, neighbors in one lane of a vector or of a
    tile register: two narrow floats, or four bytes. One instruction may add all of them to one
    number, which flushes floats below 2**-126 to zero; or they copy the terms to memory that such
    an instruction reads.
    """
    PAIR = DOT
    """The name of `DOT` in version 1.0 of the backend interface."""
    TILE = _Row("tile", Resource.INSTRUCTION, is_whole=True, on_blocks=True)
    """Iterations run over the rows, the columns or the terms of a tile register; one instruction
    may execute all of them, which flushes numbers below 2**-126 to zero.

    In BLOCK loops they run over the cells of a tile that one thread has: the threads of a
    subgroup, which have the whole tile together, execute one instruction. Its additions may
    truncate, and it may cut factors of float32 into narrower parts.
    """
    COPY = _Row("copy", Resource.INSTRUCTION)
    """Iterations copy neighboring cells to memory of scope GROUP; cells beyond the ends are zeros.
    One instruction may copy all of them while the thread goes on: the cells are undefined until a
    barrier that waits for the copy.
    """
    REDUCTION = _Row("reduction", Resource.THREAD)
    """Iterations accumulate into the same cells."""
    GRID = _Row(
        "grid", Resource.DEVICE, "grid", may_reduce=False, on_processors=False, on_blocks=True
    )
    """Iterations run on different thread blocks, which cannot synchronize."""
    BLOCK = _Row("block", Resource.DEVICE, "block", on_processors=False, on_blocks=True)
    """Iterations run on the threads of one block, which synchronize at barriers."""

    @property
    def has_own_threads(self) -> bool:
        """True if the iterations run on different threads."""
        return self.resource in (Resource.THREADS, Resource.DEVICE)


VERBS = {kind.verb: kind for kind in AxisKind if kind.verb}
"""The kinds by the transforms that give them to axes."""
