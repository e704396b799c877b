"""The boundary between the core and a backend.

A backend describes its devices (`Target`), generates code for a plan (`Source`), compiles it
(`Executable`), and owns memory (`Buffer`). All but the frozen descriptions are protocols: a backend
brings its own classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from math import prod
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.launch_limits import LaunchLimits
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import DType

BACKEND_API = (1, 0)
"""The version of this boundary. A plugin states the version it was written for as `OCANNL_API`;
majors must agree.
"""


@dataclass(frozen=True, slots=True)
class Digit:
    """One digit of a number in a mixed radix; each count of it is a step along a matrix.

    Attributes:
        count: The values of the digit.
        rows: The step along the rows of the matrix.
        columns: The step along its columns; one of the two is 0.
    """

    count: int
    rows: int = 0
    columns: int = 0


@dataclass(frozen=True, slots=True)
class Fragment:
    """The cells of a small matrix that each thread of a subgroup has in registers.

    The digits of a thread's number, and those of the place of a cell among its own, say which cell
    it is. Every cell has one thread and one place.

    Attributes:
        threads: The digits of a thread's number in its subgroup, the most significant one first.
        places: Those of a place; places beside each other share a register where they fit into it.
    """

    threads: tuple[Digit, ...]
    places: tuple[Digit, ...]

    @property
    def digits(self) -> tuple[Digit, ...]:
        return (*self.threads, *self.places)

    @property
    def rows(self) -> int:
        return prod(each.count for each in self.digits if each.rows)

    @property
    def columns(self) -> int:
        return prod(each.count for each in self.digits if each.columns)

    def cell(self, thread: int, place: int) -> tuple[int, int]:
        """Return the row and the column of a cell."""
        row = column = 0
        for number, digits in ((thread, self.threads), (place, self.places)):
            for each in reversed(digits):
                number, value = divmod(number, each.count)
                row += value * each.rows
                column += value * each.columns
        return row, column


@dataclass(frozen=True, slots=True)
class MatrixInstruction:
    """An instruction by which a subgroup of threads adds a product of small matrices to a third.

    Products are exact. Sums are float32, and may be truncated.

    Attributes:
        name: Its name, part of that of a helper in generated code.
        dtype: The number format of the factors in memory.
        left: The fragment of the first factor, of rows and terms.
        right: That of the second factor, of terms and columns.
        sums: That of the sums, of rows and columns; one digit of places along either.
        parts: The narrower numbers that a factor is cut into, whose sum it is.
    """

    name: str
    dtype: DType
    left: Fragment
    right: Fragment
    sums: Fragment
    parts: int = 1

    @property
    def terms(self) -> int:
        return self.left.columns


@dataclass(frozen=True, slots=True)
class AsynchronousProduct:
    """An instruction by which a group of threads adds a product of two small matrices in shared
    memory to a third one in registers, while the threads go on.

    Products are exact. Sums are float32, and may be truncated. Both factors lie in shared memory in
    rows of `row_bytes`, whose parts a copy engine exchanges in a fixed way; rows run along the
    terms, or across them.

    Attributes:
        name: Its name, part of that of a helper in generated code.
        dtype: The number format of the factors.
        sums: The fragment of the sums, of all rows and the fewest columns; further columns are the
            same fragment again.
        columns: The numbers of columns that an instruction may have.
        terms: The terms of an instruction.
        row_bytes: The bytes of a row of a factor in shared memory.
    """

    name: str
    dtype: DType
    sums: Fragment
    columns: tuple[int, ...]
    terms: int
    row_bytes: int

    @property
    def depth(self) -> int:
        """The terms of a row that runs along them: those of a stage."""
        return self.row_bytes // self.dtype.nbytes

    @property
    def threads(self) -> int:
        """The threads of a group."""
        return prod(each.count for each in self.sums.threads)


@dataclass(frozen=True, slots=True)
class ThreadBlocks:
    """The execution of a kernel by a grid of thread blocks, as on a GPU.

    All threads run one kernel; those of a block share local memory and meet at barriers. Schedules
    depend on these numbers alone, never on the name of a backend.

    Attributes:
        max_threads: The most threads of a block, along its first axis.
        threads: The threads of a block that hide the latency of memory: schedules choose about as
            many.
        local_bytes: The memory that the threads of a block share.
        registers: The numbers of 32 bits that a thread keeps in registers.
        subgroup: Threads that execute one instruction together: so many run a row, or neighbouring
            cells, at least; 1 if each has its own.
        processors: The blocks that run at the same time, at least.
        vector_bytes: The bytes that a thread loads or stores in one access, at most; memory of the
            device begins at multiples of it. 0 if all accesses are of one cell.
        has_shuffles: True if the threads of a subgroup exchange numbers without memory.
        matrix_instructions: Products of small matrices, by subgroups.
        asynchronous_copies: The bytes that one instruction may copy to shared memory while the
            thread goes on, each a divisor of the alignment of buffers.
        asynchronous_products: Products of small matrices in shared memory, by groups of threads;
            the device has a copy engine that fills it then.
        has_conditional_barriers: True if the threads of a block may meet at barriers that other
            blocks of the launch do not come to.
        limits: The limits of launches; None if launches of any shape run.
    """

    max_threads: int
    threads: int = 256
    local_bytes: int = 32 << 10
    registers: int = 64
    subgroup: int = 1
    processors: int = 1
    vector_bytes: int = 0
    has_shuffles: bool = False
    matrix_instructions: tuple[MatrixInstruction, ...] = ()
    asynchronous_copies: tuple[int, ...] = ()
    asynchronous_products: tuple[AsynchronousProduct, ...] = ()
    has_conditional_barriers: bool = True
    limits: LaunchLimits | None = None


class Capability(Enum):
    """A part of the language that a backend may lack; it refuses it with a `CodegenError` then.

    The conformance suite requires all that a device declares, and reports undeclared parts that
    work.
    """

    BARRIERS = "barriers"
    """Threads of a group (BLOCK loops) meet at barriers."""
    EXTERNAL_CALLS = "external calls"
    """User-written operations run in Python, between kernels."""
    MERGE_BUFFERS = "merge buffers"
    """Kernels read copies of nodes that other devices have sent."""
    POSITION_CHECKS = "position checks"
    """A position beyond its axis ends the routine with an error."""
    REPETITIONS = "repetitions"
    """Steps that repeat, as in loops over time."""
    SCATTERS = "scatters"
    """Stores to computed positions."""
    SEVERAL_DEVICES = "several devices"
    """The backend may have more than one device, and copies between them."""


@dataclass(frozen=True, slots=True)
class Target:
    """One device of one backend, as schedules and code generators need it.

    Attributes:
        backend: The name of the backend's entry point.
        device: The ordinal among that backend's devices.
        description: Its name for people.
        priority: The available backend of highest priority is the default one.
        vector_bytes: Width of a vector register; 0 when there is none.
        cores: Processors that can work in parallel.
        vector_registers: The number of vector registers; 0 leaves programs unscheduled.
        has_fma: True if one instruction multiplies and adds with one rounding; products and sums
            become such instructions where a program or a schedule allows it, and never otherwise.
        pair_products: Formats of which one instruction adds two products to a number of float32,
            with numbers below 2**-126 taken for zero.
        tile_products: Formats of which one instruction adds products of blocks, of 16 rows, 32
            terms and 16 columns, to numbers of float32, likewise.
        cache_bytes: Sizes of the data caches of one processor, nearest first; empty if unknown.
        thread_blocks: The blocks of threads that run a kernel; None if one thread runs it, or parts
            of its parallel loops.
        compiler: A key of the compiler and its flags: measurements with another compiler are not
            comparable.
        capabilities: Parts of the language that it has, of those that a backend may lack.
        formats: The number formats that it has; None for all.
        is_reference: True if its results are right by definition: it follows the meaning of the
            loop language operation by operation, and checks every access.
    """

    backend: str
    device: int = 0
    description: str = ""
    priority: int = 0
    vector_bytes: int = 0
    cores: int = 1
    vector_registers: int = 0
    has_fma: bool = False
    pair_products: tuple[DType, ...] = ()
    tile_products: tuple[DType, ...] = ()
    cache_bytes: tuple[int, ...] = ()
    compiler: str = ""
    thread_blocks: ThreadBlocks | None = None
    capabilities: tuple[Capability, ...] = ()
    formats: tuple[DType, ...] | None = None
    is_reference: bool = False

    @property
    def last_cache_bytes(self) -> int:
        """The cache that is nearest to memory, which processors share; 0 if unknown."""
        return self.cache_bytes[-1] if self.cache_bytes else 0

    def __str__(self) -> str:
        return f"{self.backend}:{self.device}"


HOST = Target("host", description="memory of this Python process", priority=-1)


@dataclass(frozen=True, slots=True)
class TargetReport:
    """The devices of a backend on this machine, or the reason why there are none.

    Attributes:
        targets: The devices that can be used now.
        reason: The reason why there are none, as one sentence; empty when there are some.
        fix: A repair by the user.
        details: Facts worth showing in a report: compiler, driver, versions.
        priority: The priority that the missing devices would have; choosing a backend of lower
            priority in their place warns with the reason.
    """

    targets: tuple[Target, ...] = ()
    reason: str = ""
    fix: str = ""
    details: tuple[str, ...] = ()
    priority: int = 0


@runtime_checkable
class Source(Protocol):
    """Generated code: the result of `Routine.source`. A backend's own class may hold more.

    A plugin whose sources are frozen dataclasses of nothing but data states their class as
    `OCANNL_SOURCE`: generated code is then cached on disk, and later processes that compile the
    same program do not generate it again.
    """

    @property
    def language(self) -> str: ...

    @property
    def text(self) -> str: ...


@runtime_checkable
class Buffer(Protocol):
    """Memory of a device holding the cells of one node, margins included, in row-major order.

    Memory of another library may have an attribute `is_read_only`, which is True if no routine may
    write it.
    """

    @property
    def target(self) -> Target: ...

    @property
    def info(self) -> NodeInfo: ...


@dataclass(frozen=True, slots=True)
class HostBuffer:
    """An array of this process as a buffer: one end of every transfer with the host."""

    array: np.ndarray[Any, Any]
    info: NodeInfo

    @property
    def target(self) -> Target:
        return HOST


class Event(Protocol):
    """A point in the work of a device."""

    def wait(self) -> None:
        """Return when all earlier work has finished."""
        ...


@dataclass(frozen=True, slots=True)
class Done:
    """The event of work that was finished when it was submitted."""

    def wait(self) -> None:
        return


Launcher = Callable[[Sequence[int]], Event | None]
"""A routine bound to its memory: a function of the values of its static indices, in the order of
the plan's `indices`.

On an asynchronous device it returns before the work is finished: with the event of its end, or
with None where `ocannl_synchronize` waits for it. Work of one device takes effect in the order of
submission.
"""


class Executable(Protocol):
    """The compiled code of one routine, not bound to memory."""

    def link(
        self,
        buffers: Mapping[TensorNode, Buffer],
        merge_buffers: Mapping[TensorNode, Buffer] | None = None,
    ) -> Launcher:
        """Return a callable that runs the routine over these buffers; all addresses are resolved
        here.

        Args:
            buffers: The memory of the plan's `params`; scratch nodes belong to the executable.
            merge_buffers: The merge buffers that the routine reads, by node.
        """
        ...


@runtime_checkable
class DivisibleExecutable(Executable, Protocol):
    """An executable whose steps can run in several launches, so that a caller may act in between:
    it sends the first results of a routine while later ones are computed.
    """

    def link_parts(
        self,
        buffers: Mapping[TensorNode, Buffer],
        merge_buffers: Mapping[TensorNode, Buffer] | None,
        ends: Sequence[int],
    ) -> Sequence[Launcher]:
        """Return a launcher for each of consecutive parts of the plan's `steps`, over common
        memory. Run one after the other they are the routine.

        Args:
            buffers: The memory of the plan's `params`.
            merge_buffers: The merge buffers that the routine reads, by node.
            ends: The number of steps before the end of each part, ascending; the last is that of
                all steps.
        """
        ...


class ExternalOp(Protocol):
    """A computation outside the loop language that loop programs call.

    `perform` reads `inputs` and overwrites `outputs`, both as arrays without margins; it must not
    keep them. An input that is an output too is the same memory, which `perform` changes in place.
    """

    @property
    def name(self) -> str: ...

    @property
    def line_axis(self) -> int | None:
        """The axis whose lines are computed each by itself: cells beyond an extent at run time of
        another axis affect no others. None if an output cell may follow from all input cells.
        """
        ...

    def perform(
        self, inputs: Sequence[np.ndarray[Any, Any]], outputs: Sequence[np.ndarray[Any, Any]]
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class NativeCode:
    """Code of an external operation in the language of a backend.

    In scope of the body is an array for every input and output, under the names below, and nothing
    else of the surrounding code. For an array `x` it may also use `x_size` (its number of cells),
    `x_shape` (an array of its extents) and `x_type` (the type of its cells). `$name`, in the body
    and in the support code, is a name private to this operation.

    Attributes:
        body: Statements.
        inputs: The names of the inputs.
        outputs: The names of the outputs.
        support: Declarations and functions in front of it.
        headers: Header files, such as `<math.h>`.
        grid: Extents of the grid of thread blocks, for devices that have one.
        block: Extents of a thread block, likewise.
        origin: The operation and the user's line that applied it, for messages.
    """

    body: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    support: str = ""
    headers: tuple[str, ...] = ()
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    origin: str = ""


@runtime_checkable
class NativeOp(Protocol):
    """An external operation that may have code in the language of a backend."""

    def native(self, language: str) -> NativeCode | None:
        """Return the code in a language such as `c`; None if there is none."""
        ...
