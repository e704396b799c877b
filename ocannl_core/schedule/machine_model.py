"""The machine model: every cost and limit that is assumed of processors.

Passes and heuristics choose among kernels that compute the same, up to the order in which sums are
rounded. They read the constants here, which hold for all processors, and the properties of one:
`MachineModel`, made from its `Target`, or on thread blocks `ThreadBlocks`. `cost_model` estimates
code with them. Limits of a search, and tolerances that another processor would not change, stay
beside the code that uses them; the costs of matrix units are in their descriptions.

Units are part of the docstrings. A *cycle* is one of a core; an *operation* is the time of one
addition of vectors at full rate. Constants without a stated source were tuned on the workloads in
`benchmarks/`, on x86-64 servers: their values matter as far as they order schedules by their times.
"""

from __future__ import annotations

from collections.abc import Mapping

from ocannl_core.base import settings
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.rounding import ceil_div
from ocannl_core.ir.numbers.primitives import PRIMITIVES, Cost, Op
from ocannl_core.ir.target import Target

OPERATIONS_PER_CYCLE = 2
"""Vector operations, and vector loads, that start in one cycle: Intel since Haswell, AMD since
Zen 2.
"""
MULTIPLY_ADD_LATENCY = 4
"""Cycles from the start of a multiply-add to its result: Intel since Skylake, AMD since Zen 3."""
ACCUMULATOR_CHAINS = MULTIPLY_ADD_LATENCY * OPERATIONS_PER_CYCLE
"""Independent accumulations with which no multiply-add waits for the one before."""

DIVISION_COST = 4
"""Operations that a division, a remainder, a reciprocal or a square root takes."""
FUNCTION_COST = 10
"""Operations that an elementary function takes. Also the cost from which on an epilogue needs so
many registers that it runs after the reduction, from a copy of the accumulators.
"""
HASH_COST = 40
"""Operations that Threefry takes for a block of random bits."""

_OPERATIONS = {
    Cost.OPERATION: 1,
    Cost.DIVISION: DIVISION_COST,
    Cost.FUNCTION: FUNCTION_COST,
    Cost.HASH: HASH_COST,
}
OPERATION_COSTS: Mapping[Op, int] = {op: _OPERATIONS[op.value.cost] for op in PRIMITIVES}
"""Operations that each primitive takes."""

STORE_AND_LOAD_COST = 4
"""Operations that storing a number to memory and loading it again takes. Cheaper computations are
repeated rather than stored.
"""
MAX_RECOMPUTED_OPERATIONS = 12
"""Operations, none of them a division or a function, that take as long as loading a row of a fused
kernel: they depend on no memory, so that vectors of them overlap.
"""
MAX_REPEATED_COST = 4 * HASH_COST
"""Operations, divisions and functions among them, that inlining repeats at most for each cell of a
node that depends on no memory. A mask of dropout is computed again in backpropagation; normal
numbers in a matrix product are computed once.
"""
MAX_BROADCAST_COST = 5
"""Operations and loads that computing a number takes, at most, if it is computed at every read from
operands far smaller than the node: two operations on three numbers.
"""


NOMINAL_LANES = 16
"""Numbers in a vector, in estimates that must not depend on the machine."""
AUTOVECTORIZED_LANES = 4
"""The same for innermost loops that a C compiler vectorizes, or does not."""
MIN_REGISTERS = 8
"""Vector registers for which tiles are chosen if a target has fewer."""
MAX_TILE_VECTORS = 4
"""Vectors along the rows of a register tile: more of them leave registers for too few rows."""

LOAD_CYCLES = 0.02
"""Cycles of one step of a register tile for each number or vector that it loads, beyond those of
the load units: some loads miss the nearest cache.
"""
STEP_CYCLES = 0.1
"""Cycles of the loop around one step of a register tile."""
REMAINDER_FACTOR = 1.02
"""Cost of a nest that has a second copy of its code for a remainder, relative to one without."""
SCATTERED_STORE_CYCLES = 3.0
"""Cycles for each result whose neighbors in a vector are not neighbors in memory. The store takes
fewer, but its code is long.
"""
GATHER_CYCLES = 1.5
"""Cycles for each number that is loaded into a vector whose other numbers are elsewhere."""
SHUFFLE_CYCLES = 0.25
"""The same where the numbers are every second one of some contiguous ones."""
SECOND_CACHE_BYTES = 24
"""Bytes of vectors that register tiles load from the second cache in one cycle."""
LAST_CACHE_BYTES = 12
"""The same for the last cache."""
TILE_SQUARES = 4
"""Squares of vectors along both sides of a tile in which rows become columns."""

TRANSPOSE_CYCLES = 0.5
"""The same where squares of vectors can be loaded and transposed in registers."""
HORIZONTAL_CYCLES = 2.5
"""Cycles for each lane of a vector of accumulators that is reduced to one number."""
LANES_SUM_COST = 128
"""Multiplications that take as long as adding up the lanes of a vector, if such sums overlap."""

MIN_SCHEDULED_STEPS = 64
"""Iterations of a reduction below which plain loops take as long as any schedule."""
MIN_ACCUMULATED_TERMS = 64
"""Terms that accumulators collect between two stores of partial results, if there are as many."""


MIN_PACK_REUSE = 32
"""Uses of each number of an operand from which on packing it pays."""
MIN_GATHER_REUSE = 8
"""The same for an operand whose vectors would otherwise be gathered along an output axis."""
MIN_COMPACTION_REUSE = 192
"""The same for an operand whose vectors are contiguous, but far from each other."""
MIN_BLOCKING_REUSE = 48
"""Uses of each number of an operand from which on a reduction is cut so that it stays in the second
cache.
"""
MIN_CONVERSION_REUSE = 3
"""Register tiles that use a vector of another format, from which on a converted copy pays."""
MIN_BLOCK_ROWS = 24
"""Rows that a block of a fused contraction has at least: with fewer, its other operand is loaded
more often than multiply-adds can hide.
"""
BLOCK_ROWS = 64
"""Rows from which on more of them hide no more; a block has as many even where its results leave
the second cache, whose lines are read in order.
"""


CACHE_LINE_BYTES = 64
"""Bytes of a cache line, the unit of transfers from memory: x86-64, and most processors of Arm."""
CACHE_WAY_BYTES = 4096
"""Bytes of one way of the nearest cache: addresses that differ by a multiple of it share a set. 64
sets of lines, as in all x86-64 processors whose nearest cache is indexed by offsets in a page.
"""
SECOND_CACHE_WAYS = 8
"""Lines of each set of the second cache, at least: AMD since Zen; Intel has up to 16."""
PADDED_STRIDE_BYTES = CACHE_WAY_BYTES // 4
"""Rows of a packed operand that are a multiple of this apart are padded by a line: without, they
share at most four sets.
"""
MEMORY_STREAMS = 8
"""Rows of memory that are read or written side by side at full bandwidth."""
MEMORY_BYTES_PER_CYCLE = 8
"""Bandwidth of memory behind the caches for one thread."""
DEFAULT_CACHE_BYTES = (32 << 10, 512 << 10)
"""Sizes of the first and second cache where a target does not state them."""
DEFAULT_LAST_CACHE_BYTES = 32 << 20
"""Size of the last cache where a target states fewer than two."""

PREFETCH_MIN_TERMS = 8
"""Terms of a sum between two groups of prefetches: with fewer, loops take longer than sums."""
PACKING_PREFETCH_TERMS = 64
"""Terms of a sum between two groups of prefetches of the operand that is packed next."""
MAX_PREFETCHED_LINES = 32
"""Cache lines of such a group, at most: more of them wait for each other."""
PREFETCH_MIN_BLOCKS = 4
"""Iterations of a loop over register tiles from which on a tile prefetches for the next one."""


MIN_THREAD_CYCLES = 1 << 13
"""Cycles of work that are worth another thread: some two microseconds.

Measured with parts of known length on two processors of 3.7 GHz: a part that a waiting thread takes
over costs 0.1 to 0.2 microseconds, the same for two and for eight parts. The rest is for what the
estimate of the work is off, and for the caches that the other thread has to fill.
"""
STACK_BYTES = 1 << 15
"""Bytes of a buffer on the stack of a thread; larger ones are elsewhere."""
PARTIAL_SUMS = 16
"""Partial results of a reduction that several threads share: enough for equal shares of the common
numbers of threads. Fixed, so that bits do not depend on the number of threads.
"""
MAX_BLOCK_TERMS = 1 << 12
"""Terms that one accumulator of float32 adds up where no schedule has divided a sum: the error of
a block is at most 2**-12 of its terms' magnitudes.
"""
MAX_PART_TERMS = 1 << 16
"""Terms of a partial result, which several accumulators share where a schedule allows it."""
MIN_PARTIAL_TERMS = 400
"""Terms of a partial result: storing and loading it costs a few hundredths of as many."""
MIN_SPLIT_TERMS = 1 << 18
"""Terms of a reduction, of all cells together, that are worth partial results."""
MIN_SAVED_OPERATIONS = 1 << 13
"""Multiplications that are worth another kernel."""
SUM_TILE_CELLS = 64
"""Results that one register tile holds if no operand is used twice."""
ROW_TILE_CELLS = 8
"""The same if the lanes run along the terms of each result: several threads share few results."""
PRODUCT_TILE_CELLS = 400
"""The same if axes of cells share operands: 24 accumulators of 16 lanes, and some."""


MIN_COARSE_CELLS = 1 << 20
"""Cells of a nest from which on a thread computes several of them."""
THREAD_CELLS = 4
"""The number of those cells: so many loads of a thread are under way together."""
MOST_PRIVATE_BYTES = 256
"""The cells of rows that a thread of a block keeps in its registers: half of those it may have."""
TRANSPOSED_SIDE = 32
"""Rows and columns of a tile that a thread block transposes: neighboring threads store a line of
memory, and load sectors of one.
"""
THREAD_VECTORS = 2
"""The same where each load is a vector: enough bytes are under way."""
MIN_FUSED_STEPS = 1024
"""Iterations of a sum from which on products are added without being rounded: in shorter ones other
work of the kernel takes longer.
"""
MIN_TREE_TERMS = 32
"""Terms of a reduction that are worth several threads."""
MIN_THREAD_TERMS = 4
"""Terms of each of these threads, at least."""
MAX_GRID_PARTS = 256
"""Partial results of a reduction to a single cell, on as many thread blocks; fewer for more cells.
Fixed, so that bits depend on the extents alone.
"""
CELLS_OF_BLOCK = 32
"""Results of a reduction that one thread block computes together."""
MIN_GRID_PARTS = 4
"""The fewest parts that are worth a second kernel."""
MIN_GRID_TERMS = 2048
"""Terms of a part of a single cell, at least; fewer for more cells."""
MIN_GRID_CELLS = 8
"""The cells from which on a part has this fraction of these terms at least."""
LARGE_BYTES = 1 << 24
"""Bytes of a value in a loop over time from which on no cache holds it until the gradient reads it,
whatever the target.
"""
KEPT_ACCESSES = 4
"""Transfers of a value that a loop keeps for its gradient: a load and a store for the copy of each
step, and the same in the gradient.
"""
SMALL_STEP_BYTES = 1 << 10
"""Bytes of the nodes of a step that may run far from its readers, at most."""
STATISTICS_PER_MATRIX = 8
"""Operands below this fraction of a matrix, as statistics of its rows, are stored and loaded where
the matrix is computed again.
"""
VECTOR_PRODUCTS_PER_BYTE = 8
"""Multiply-adds of a processor's thread while memory transfers a byte that several threads share:
56 G/s and 7 GB/s. As many are computed again rather than stored.
"""
PRODUCTS_PER_BYTE = 10
"""The same for processors with thread blocks, by the peaks of an H100: 33 T/s and 3.3 TB/s."""
TILE_PRODUCTS_PER_BYTE = 60
"""The same for instructions that multiply small matrices of narrow formats."""
ATTENTION_THREADS = 128
"""The threads of a block of flash attention, which walks along its columns."""
ATTENTION_COLUMN_THREADS = (16, 8)
"""The threads with the same rows: the first number of which a subgroup has as many, or the last."""
ATTENTION_DIGIT = 4
"""The threads inside of a digit of a thread's number along the columns: copies use digits."""
ATTENTION_ROWS, ATTENTION_COLUMNS = (8, 4, 2, 1), (4, 2, 1)
"""The rows and columns of a thread that multiplies numbers, of which a rule chooses."""
ATTENTION_TILES, ATTENTION_TILE_COLUMNS = (2, 1), (8, 4, 2)
"""The same for a matrix instruction: its tiles along rows, and groups of neighboring columns."""
ATTENTION_FRAGMENT_REGISTERS = 24
"""The registers for the factors of an instruction and for the next factors."""
MAX_NUMBER_REGISTERS = 224
"""Registers of a thread for numbers: devices have 255, of which addresses take some."""
ATTENTION_ROW_REGISTERS = 3
"""The statistics that such a thread keeps for each of its rows."""
ATTENTION_REGISTERS = 20
"""The registers that it needs for addresses and for statistics while they change."""
ATTENTION_ADDRESS_REGISTERS = 12
"""The registers for addresses alone, in an attention without statistics, as in the backward
pass.
"""
SCORE_OPERATIONS = 10
"""Operations of a thread for each score of an attention, beside products."""
ROW_OPERATIONS = 30
"""Operations of a thread for each of its rows and each tile of columns: the greatest score, and
corrections.
"""
WALK_TERMS = 4
"""The terms of its products that a thread loads from shared memory at once."""
MAX_IDLE_WALK = 8
"""An attention is one kernel unless fewer than one processor in so many had a thread block, which
would walk along more tiles than so many.
"""
GRID_TILE = 64
"""Rows and columns of the tiles of a product by which the blocks are counted that work on it."""
MIN_TILE_TERMS = 1024
"""Terms of a part of a product, at least: a tile of partial results is stored and loaded in less
time than its operands take.
"""
MAX_UNROLLED_SHIFTS = 64
"""Positions of a window whose sums run as kernels one after the other."""
MAX_GATHERED_STEPS = 1 << 26
"""Terms of all windows together up to which one kernel that gathers the terms of each cell is
faster than tiles of products for each position, with a launch of each.
"""
MIN_CYCLIC_SCATTERS = 64
"""Iterations of a scatter, at least, whose positions thread blocks share cyclically."""
MERGED_BLOCKS = 8
"""Thread blocks that a processor runs at the same time if they need little shared memory."""
MAX_LAUNCH_KERNELS = 64
"""Kernels that run at the same time in one launch."""
MAX_LAUNCH_ARGUMENTS = 112
"""Nodes that such a launch accesses: devices pass 1024 bytes of arguments at least."""
MAX_LAUNCH_DISTANCE = 128
"""Launches over which a kernel moves, at most, to one that it joins."""
MAX_MOVED_BYTES = 1 << 24
"""Memory that kernels access, at most, which move over others to share a launch."""
BANKS = 32
"""Banks of shared memory, each of which serves one address at a time."""
BANK_BYTES = 4
"""Bytes of a bank that lie beside each other."""
SHARED_ACCESS_BYTES = 16
"""Bytes beside each other that a thread accesses in shared memory at once, at most."""
SHARED_TURN_THREADS = BANKS * BANK_BYTES // SHARED_ACCESS_BYTES
"""Threads with such accesses that the banks serve in one turn."""
PADDING_CELLS = 4
"""Cells between rows of a packed operand that threads write across: neighboring threads then write
to different banks, and vectors in a row stay aligned.
"""
REGISTER_BYTES = 4
"""Bytes of a register of a thread."""
MIN_BLOCK_TILE = 16
"""Rows and columns of a product from which on tiles in shared memory pay."""
BLOCK_TERMS = 16
"""Terms of a product that are in shared memory at a time."""
ROW_THREADS = 4
"""The usual numbers of threads that a multiprocessor runs at least, where the shared memory of rows
limits its blocks.
"""
ROW_DIGITS, COLUMN_DIGITS = (4, 2), (8, 2)
"""The threads inside of each digit of a thread's number along the rows and columns of a tile, but
the innermost one. Threads of a subgroup have the rows and columns of all digits but the outermost
ones: 4 x 8. Operands are copied by these digits: they are powers of two, so small that some of them
together run along any row of an operand, or as far as the banks of shared memory allow.
"""
RESIDENT_BLOCKS = 2
"""Blocks with large register tiles that a processor runs at the same time."""
STAGE_VECTOR_BYTES = 16
"""Bytes of each operand that a thread copies for a stage of a register tile, about."""
THREAD_ROWS = 8
"""Rows and columns of the largest register tile of a thread; smaller ones are halves of it."""
TILE_RATES = {8: 1.0, 4: 0.9, 2: 0.35}
"""The rates at which a processor computes register tiles, by their rows and columns, as parts of
that of the largest: loads of shared memory for each multiply-add limit the smaller ones.
"""

# From descriptions of the devices; no schedule with them has been timed.

WARP_BLOCKS: tuple[tuple[tuple[int, int], tuple[int, int]], ...] = (
    ((2, 4), (64, 32)),
    ((2, 4), (32, 32)),
    ((2, 2), (32, 32)),
    ((2, 2), (16, 16)),
)
"""Warps of a block along rows and columns, and the rows and columns of each, the largest first."""
WARP_REGISTERS = 32
"""Registers of a thread for addresses and copies, beside those for sums and operands."""
STAGE_ROW_BYTES = 64
"""Bytes of the terms of a row that are in one stage."""
MAX_STAGES = 4
"""Stages of operands in shared memory: three are on their way while one is multiplied."""
GROUP_BLOCKS: tuple[tuple[int, int], ...] = ((2, 256), (2, 128), (1, 128), (1, 64))
"""Groups of threads of a block, and the columns of each, the largest first."""
MIN_RING_STEPS = 2
"""Stages of terms that a product has before a multistage pipeline is worth it."""
COPY_BOX_BYTES = 16
"""Multiples of bytes at which a box that a copy engine copies, and each of its rows, may begin."""
MAX_COPY_BOX_AXES = 5
"""Axes of an array of which such an engine copies a box."""
RING_BYTES = 2048
"""Bytes of shared memory for the barriers of a ring, and before its first stage for alignment."""


MAX_EXPRESSION_DEPTH = 48
"""Levels of the deepest expression that substitution may build. Renderers and C compilers recurse
over expressions.
"""
MAX_EXPRESSION_NODES = 256
"""Nodes of the largest value that substitution may copy to each of its readers."""
MAX_STRAIGHT_LINE_STATEMENTS = 128
"""Statements of a kernel without loops: compilers take more than linear time for a function."""
MIN_HOISTED_COST = 4
"""Operations of an invariant expression from which on it is hoisted: compilers hoist cheaper ones.
"""
MIN_SHARED_COST = 8
"""Operations that a common subexpression saves, at least: compilers share cheaper ones, and
schedules need the terms of a sum in one expression.
"""
MAX_UNROLLED_EPILOGUE = 10
"""Loads, stores and operations of an epilogue below which it is unrolled for every accumulator: a
compiler takes milliseconds for longer ones.
"""
MIN_OUTLINED_TERMS = 256
"""Terms of a sum from which on a long epilogue is a loop: loading accumulators from memory takes
a hundredth of the time of as many.
"""


@dataclass(frozen=True, slots=True)
class MachineModel:
    """The properties of one processor that schedules depend on."""

    vector_bytes: int
    """Width of a vector register; 0 if there is none."""
    registers: int
    """Vector registers."""
    has_fma: bool
    """True if one instruction multiplies and adds with one rounding."""
    cache_bytes: tuple[int, ...]
    """Sizes of the data caches, nearest first; fewer if unknown."""
    threads: int
    """Threads that may share a kernel."""

    @classmethod
    def of(cls, target: Target) -> MachineModel:
        """Return the model of a target, with the number of threads that the settings give it."""
        return cls(
            target.vector_bytes,
            max(target.vector_registers, MIN_REGISTERS),
            target.has_fma,
            target.cache_bytes,
            settings.current().threads or target.cores,
        )

    def lanes(self, nbytes: int) -> int:
        """Return how many numbers of a size a vector register holds; 1 without vectors."""
        return max(1, self.vector_bytes // nbytes)

    def max_accumulators(self, vectors: int) -> int:
        """Return the most registers that accumulate beside the vectors of a step.

        The vectors, one broadcast number and one number in passing need registers, or compilers
        load vectors again for each row; a quarter is left for the epilogue, or accumulators would
        be spilled for it.
        """
        return min(self.registers * 3 // 4, self.registers - vectors - 2)

    @property
    def max_tile_rows(self) -> int:
        """The most rows that several short axes together contribute to a register tile."""
        return self.registers // 2

    @property
    def reduction_tile_extent(self) -> int:
        """The most cells along an axis of a register tile that is vectorized along a reduced axis:
        the squares of 4 and 3 are somewhat more than half of 32 and 16 registers.
        """
        return 4 if self.registers >= 32 else 3

    def _cache(self, level: int) -> int:
        known = self.cache_bytes if level < len(self.cache_bytes) else DEFAULT_CACHE_BYTES
        return known[min(level, len(known) - 1)]

    @property
    def l1_bytes(self) -> int:
        """The size of the nearest cache."""
        return self._cache(0)

    @property
    def l1_ways(self) -> int:
        """The lines of each set of the nearest cache."""
        return max(4, self.l1_bytes // CACHE_WAY_BYTES)

    @property
    def l1_working_set(self) -> int:
        """Bytes that stay in the nearest cache beside the data that passes through it."""
        return self.l1_bytes // 2

    @property
    def l1_block(self) -> int:
        """Bytes of a block of rows that several kernels use one after the other."""
        return self.l1_bytes // 4

    @property
    def l2_bytes(self) -> int:
        """The size of the second cache."""
        return self._cache(1)

    @property
    def l2_working_set(self) -> int:
        """Bytes of contiguous data that stay in the second cache."""
        return self.l2_bytes // 2

    @property
    def l2_copy(self) -> int:
        """Bytes that stay in the second cache beside the operand that they are copied from."""
        return self.l2_bytes // 4

    @property
    def l2_strided(self) -> int:
        """Bytes of strided data that stay in the second cache, whose sets they fill unevenly."""
        return self.l2_bytes // 8

    @property
    def l2_negligible(self) -> int:
        """Bytes of a node below which its transfers to the second cache do not matter."""
        return ceil_div(self.l2_bytes, 32)

    @property
    def sequential_bytes(self) -> int:
        """Bytes of packed operands that stay near enough if they are read in order: up to four
        times the second cache, if they are an eighth of the third one.
        """
        return max(self.l2_working_set, min(4 * self.l2_bytes, self._cache(2) // 8))

    @property
    def last_bytes(self) -> int:
        """The size of the last cache, which all threads share."""
        return self.cache_bytes[-1] if len(self.cache_bytes) > 1 else DEFAULT_LAST_CACHE_BYTES

    @property
    def last_share(self) -> int:
        """Bytes that one of several threads keeps in the last cache."""
        return self.last_bytes // 4

    @property
    def streamed_bytes(self) -> int:
        """Bytes of a node from which on no cache holds it until a later kernel loads it."""
        return ceil_div(self.last_bytes, 2)
