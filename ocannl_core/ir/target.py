"""Descriptions of devices: everything that compiling for a device depends on."""

from __future__ import annotations

from enum import Enum
from math import prod

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.launch_limits import LaunchLimits
from ocannl_core.ir.numbers.dtypes import DType


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

    The digits of a thread's number, and the digits of a place among the cells of that thread, say
    which cell it is. Every cell has one thread and one place.

    Attributes:
        threads: The digits of a thread's number in its subgroup, the most significant one first.
        places: The digits of a place; neighbouring places share a register where they fit into it.
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
        name: Its name, part of the name of a helper in generated code.
        dtype: The number format of the factors in memory.
        left: The fragment of the first factor, of rows and terms.
        right: The fragment of the second factor, of terms and columns.
        sums: The fragment of the sums, of rows and columns; one digit of places along either.
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
        name: Its name, part of the name of a helper in generated code.
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
        """The number of terms of a stage, which fill a row that runs along them."""
        return self.row_bytes // self.dtype.nbytes

    @property
    def threads(self) -> int:
        """The threads of a group."""
        return prod(each.count for each in self.sums.threads)


@dataclass(frozen=True, slots=True)
class ThreadBlocks:
    """The execution of a kernel by a grid of thread blocks, as on a GPU.

    All threads run one kernel; the threads of a block share local memory and meet at barriers.
    Schedules depend on these numbers alone, never on the name of a backend.

    Attributes:
        max_threads: The most threads of a block, along its first axis.
        threads: The threads of a block that hide the latency of memory: schedules choose about as
            many.
        local_bytes: The memory that the threads of a block share.
        registers: The number of 32-bit registers of a thread.
        subgroup: Threads that execute one instruction together: at least so many run a row, or
            neighbouring cells; 1 if each thread has an instruction of its own.
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
            terms and 16 columns, to numbers of float32, with the same flush to zero.
        cache_bytes: Sizes of the data caches of one processor, nearest first; empty if unknown.
        thread_blocks: The blocks of threads that run a kernel; None if one thread runs it, or parts
            of its parallel loops.
        compiler: A key of the compiler and its flags: measurements with another compiler are not
            comparable.
        capabilities: The optional parts of the language that it has.
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
