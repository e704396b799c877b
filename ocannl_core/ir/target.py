"""Descriptions of devices: everything that compiling for a device depends on."""

from __future__ import annotations

from enum import Enum

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.launch_limits import LaunchLimits
from ocannl_core.ir.matrix_units import MatrixUnit, Unit
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.ir.numbers.primitives import Primitives


@dataclass(frozen=True, slots=True)
class ThreadBlocks:
    """The execution of a kernel by a grid of thread blocks, as on a GPU.

    All threads run one kernel; the threads of a block share local memory and meet at barriers.
    Schedules depend on these numbers alone, never on the name of a backend.

    Attributes:
        max_threads: The most threads of a block, along its first axis.
        threads: The threads of a block that hide the latency of memory; schedules choose so many.
        local_bytes: The memory that the threads of a block share.
        registers: The number of 32-bit registers of a thread.
        subgroup: Threads that execute one instruction together: at least so many run a row, or
            neighboring cells; 1 if each thread has an instruction of its own.
        processors: The blocks that run at the same time, at least.
        vector_bytes: The bytes that a thread loads or stores in one access, at most; memory of the
            device begins at multiples of it. 0 if all accesses are of one cell.
        has_shuffles: True if the threads of a subgroup exchange numbers without memory.
        asynchronous_copies: The bytes that one instruction may copy to shared memory while the
            thread goes on, each a divisor of the alignment of buffers.
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
    asynchronous_copies: tuple[int, ...] = ()
    has_conditional_barriers: bool = True
    limits: LaunchLimits | None = None


class Capability(Enum):
    """A part of the language that a backend may lack: the core then refuses programs that need it
    before the backend gets them.

    The conformance suite requires all that a device declares, and reports undeclared parts that
    work.
    """

    BARRIERS = "barriers"
    """Threads of a group (BLOCK loops) meet at barriers."""
    EXTERNAL_CALLS = "external calls"
    """User-written operations run between kernels: in Python, or as code in the backend's own
    language.
    """
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
        vector_registers: The number of vector registers, at least 1 beside a width; 0 leaves
            programs unscheduled.
        has_fma: True if one instruction multiplies and adds with one rounding; products and sums
            become such instructions where a program or a schedule allows it, and never otherwise.
        matrix_units: The instructions that add products of several numbers; of those of one kind
            the first that fits counts.
        cache_bytes: Sizes of the data caches of one processor, nearest first; empty if unknown.
        thread_blocks: The blocks of threads that run a kernel; None if one thread runs it, or parts
            of its parallel loops.
        compiler: A key of the compiler and its flags, without which measurements do not compare.
        capabilities: The optional parts of the language that it has.
        formats: The number formats that it has, in memory and in expressions; None for all.
        primitives: The primitives that it has; None for all that the version of the interface has
            for which its plugin was written. Others are expanded into these where the core knows
            how, and refused elsewhere.
        has_device: False for a described device that this machine need not have: code is generated
            for it, and neither compiled nor run.
        survives_forks: False if its driver, opened to list devices, does not work in the child of a
            fork: the core then refuses all work there.
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
    matrix_units: tuple[MatrixUnit, ...] = ()
    cache_bytes: tuple[int, ...] = ()
    compiler: str = ""
    thread_blocks: ThreadBlocks | None = None
    capabilities: tuple[Capability, ...] = ()
    formats: tuple[DType, ...] | None = None
    is_reference: bool = False
    primitives: Primitives | None = None
    has_device: bool = True
    survives_forks: bool = True

    @property
    def last_cache_bytes(self) -> int:
        """The cache that is nearest to memory, which processors share; 0 if unknown."""
        return self.cache_bytes[-1] if self.cache_bytes else 0

    def units(self, kind: type[Unit]) -> tuple[Unit, ...]:
        """Return the matrix units of one kind."""
        return tuple(each for each in self.matrix_units if isinstance(each, kind))

    def __str__(self) -> str:
        return f"{self.backend}:{self.device}"
