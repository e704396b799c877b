"""Dialects of the C family: the base class is C, subclasses override methods.

The kernel renderer handles the loop language. A dialect supplies the spelling: type names, the
signature of a kernel, library functions, pragmas, and the mapping of parallel axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from ocannl_core.base.errors import CodegenError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.rounding import ceil_div
from ocannl_core.codegen.prelude.elementwise import math_helper
from ocannl_core.codegen.prelude.prelude import C_WORDS, PreludeWords, headers_of, prelude
from ocannl_core.codegen.text.helper import MATH, STRING
from ocannl_core.codegen.text.kernel_text import KernelText, TensorMap
from ocannl_core.codegen.text.names import NameRole
from ocannl_core.codegen.text.precedence import CExpr, Precedence, call
from ocannl_core.ir.kernels.nodes import Kernel
from ocannl_core.ir.launch_limits import LaunchLimits
from ocannl_core.ir.loops.nodes import AxisKind, Block, For, Scope, Stmt
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers import dtypes

if TYPE_CHECKING:
    from ocannl_core.codegen.rendering.render_state import RenderState

_LINE_WIDTH = 100


@dataclass(frozen=True, slots=True)
class KernelParameter:
    """One argument of a kernel.

    Attributes:
        name: The name inside the kernel.
        dtype: The number format of its cells; None for a static index.
        is_written: False if the kernel only reads it.
        is_tensor_map: True for an array of which the copy engine copies boxes.
    """

    name: str
    dtype: dtypes.DType | None
    is_written: bool = False
    is_tensor_map: bool = False


class Dialect:
    """Plain C11 with GNU pragmas, run by one thread per kernel."""

    language: ClassVar[str] = "c"
    """The name under which `Verbatim` code addresses the dialect."""
    words: ClassVar[PreludeWords] = C_WORDS
    """The spelling of helpers."""
    restrict: ClassVar[str] = "restrict"
    index_type: ClassVar[str] = "int64_t"
    headers: ClassVar[tuple[str, ...]] = (MATH, "<stdint.h>", STRING)
    """Headers that user code may rely on; generated code includes only what its helpers need."""
    has_vectors: ClassVar[bool] = True
    """True if the language has the vector extensions of GCC."""
    stack_limit: ClassVar[int] = 1 << 20
    """Limit in bytes on the arrays of a kernel, except the buffers passed to it."""
    partitions_loops: ClassVar[bool] = False
    """True if a parallel kernel is called for parts of its iterations."""
    reports_failures: ClassVar[bool] = False
    """True if a kernel that checks positions gets an integer to set, which ends the routine."""
    required_helpers: ClassVar[frozenset[str]] = frozenset()
    """Helpers of all kernels: UNFUSED for targets without fused multiply-add."""
    linkage: ClassVar[str] = ""
    """Specifiers in front of kernels: `static ` for code that is part of one file."""
    replaces_doubles: ClassVar[bool] = False
    """True if functions of float64 have code of their own, as those of float32, for vectors."""
    signed_wraps: ClassVar[bool] = False
    """True if signed integers of 32 bits and more wrap around, as with the flag -fwrapv."""

    type_names: ClassVar[dict[dtypes.DType, str]] = {
        **{each: f"{each}_t" for each in dtypes.ALL if each.is_integer},
        **{each: f"uint{8 * each.nbytes}_t" for each in (dtypes.bool_, *dtypes.NARROW)},
        dtypes.int4: "int8_t",
        dtypes.uint4: "uint8_t",
        dtypes.float32: "float",
        dtypes.float64: "double",
        dtypes.uint4x32: "uint4x32",
    }
    """Storage types of cells."""

    integer_suffixes: ClassVar[dict[dtypes.DType, str]] = {
        dtypes.uint32: "u",
        dtypes.int64: "LL",
        dtypes.uint64: "ULL",
    }

    def varied(self, **attributes: object) -> Self:
        """Return a copy with other values of some attributes, such as `index_type`."""
        found = copy(self)
        vars(found).update(attributes)
        return found

    def storage_type(self, dtype: dtypes.DType) -> str:
        """Return the type of a cell in memory; of packed cells, the type of the bytes."""
        return self.type_names[dtypes.uint8 if dtype.is_packed else dtype]

    def value_type(self, dtype: dtypes.DType) -> str:
        """Return the type in which the language computes with numbers of the format."""
        return self.type_names[dtypes.float32 if dtype.is_narrow else dtype]

    def constant(self, value: float, dtype: dtypes.DType) -> CExpr:
        """Return a literal of exactly this number, rounded to the format.

        Raises:
            CodegenError: for 128-bit words, which numbers do not denote.
        """
        if dtype is dtypes.uint4x32:
            raise CodegenError("A number is no 128-bit word.", found=f"the constant {value}")
        exact = dtypes.round_to(value, dtype)
        return self._float(exact, dtype) if dtype.is_float else self._integer(exact, dtype)

    def _float(self, value: float, dtype: dtypes.DType) -> CExpr:
        if math.isnan(value):
            return CExpr("NAN")
        if math.isinf(value):
            return CExpr("INFINITY") if value > 0 else CExpr("-INFINITY", Precedence.UNARY)
        # the shortest decimal that parses to the same number
        digits = repr(value) if dtype is dtypes.float64 else str(np.float32(value)) + "f"
        return CExpr(digits, Precedence.UNARY if digits.startswith("-") else Precedence.PRIMARY)

    def _integer(self, value: int, dtype: dtypes.DType) -> CExpr:
        suffix = self.integer_suffixes.get(dtype, "")
        if dtype is dtypes.int64 and -(2**31) < value < 2**31:
            suffix = ""  # an int, which every operand beside it widens
        if value in (-(2**31), -(2**63)) and dtype in (dtypes.int32, dtypes.int64):
            # the digits of the least number denote its negation, which does not exist
            return CExpr(f"-{-(value + 1)}{suffix} - 1", Precedence.SUM)
        return CExpr(f"{value}{suffix}", Precedence.UNARY if value < 0 else Precedence.PRIMARY)

    def function(self, name: str, dtype: dtypes.DType) -> str:
        """Return the library function `name` for the format in which `dtype` is computed."""
        return name if self.value_type(dtype) == "double" else f"{name}f"

    def math_helper(self, name: str, dtype: dtypes.DType) -> str | None:
        """Return the helper that replaces a library function; None if there is none."""
        kind = self.value_type(dtype)
        if kind == "double":
            return math_helper(name, "float64") if self.replaces_doubles else None
        return math_helper(name, "float32") if kind == "float" else None

    def opening(self, symbol: str, parameters: Sequence[KernelParameter]) -> list[str]:
        """Return the opening lines of a kernel."""
        # compilers trust `restrict` on parameters only, so a wrapper unpacks the arguments
        return self.function_head(f"static void {symbol}_body", parameters)

    def closing(self, symbol: str, parameters: Sequence[KernelParameter]) -> list[str]:
        """Return the closing lines of a kernel."""
        given = [
            f"*(const {self.index_type} *)args[{position}]"
            if each.dtype is None
            else f"args[{position}]"
            for position, each in enumerate(parameters)
        ]
        return [
            "}",
            "",
            f"{self.linkage}void {symbol}(void *const *args) {{",
            *_wrap_list(f"  {symbol}_body(", given, ");"),
            "}",
        ]

    def function_head(self, function: str, parameters: Sequence[KernelParameter]) -> list[str]:
        """Return the opening lines of a function with these parameters."""
        return _wrap_list(f"{function}(", [self.parameter(each) for each in parameters], ") {")

    def parameter(self, parameter: KernelParameter) -> str:
        """Return the declaration of one parameter."""
        if parameter.dtype is None:
            return f"{self.index_type} {parameter.name}"
        const = "" if parameter.is_written else "const "
        return f"{const}{self.storage_type(parameter.dtype)} *{self.restrict} {parameter.name}"

    def definitions(self, helpers: Iterable[str]) -> str:
        """Return the definitions of helpers, as a part of the meaning of a text."""
        return prelude(helpers, self.words)

    def prelude(self, helpers: Iterable[str]) -> str:
        """Return the includes and definitions for kernels that use these helpers."""
        helpers = list(helpers)
        needed = {"<stdint.h>", *headers_of(helpers, self.words.files)}
        includes = "\n".join(f"#include {each}" for each in self.headers if each in needed)
        definitions = prelude(helpers, self.words)
        return f"{includes}\n\n{definitions}\n" if definitions else f"{includes}\n"

    def unit(self, kernels: Iterable[KernelText]) -> str:
        """Return a file with kernels and the helpers that they use."""
        kernels = list(kernels)
        helpers = {helper for kernel in kernels for helper in kernel.helpers}
        return "\n".join([self.prelude(helpers), *(kernel.text for kernel in kernels)])

    def launch_shape(self, kernel: KernelText) -> str:
        """Return the grid and the block of a kernel for readers, empty if there is none."""
        return ""

    def loop_pragma(self, kind: AxisKind, extent: int) -> str:
        """Return the pragma of a loop, or ""."""
        match kind:
            case AxisKind.UNROLLED if extent <= 65534:
                return f"#pragma GCC unroll {extent}"
            case AxisKind.VECTOR:
                return "#pragma GCC ivdep"
            case _:
                return ""

    def for_positions(self, most: int) -> Dialect:
        """Return the dialect for a kernel without a position beyond a number; one with another
        `index_type` may compute addresses faster.
        """
        return self

    def compiler_barrier(self) -> list[str]:
        """Return the lines of a compiler barrier: in a branch it prevents speculation of loads, in
        a loop vectorization by the compiler.
        """
        return ['__asm__ volatile ("");']

    def device_index(self, kind: AxisKind) -> str | None:
        """Return the number of the thread block (GRID), or of the thread in its block (BLOCK), as a
        primary expression; None if loops run the axes of the kind.

        The axes of a kind share one number; `KernelText` has the count to launch.
        """
        return None

    def barrier(self, inside_block_axis: bool) -> list[str]:
        """Return the lines of a barrier among the iterations of BLOCK axes.

        Raises:
            CodegenError: if the iterations run in sequence, so that none can wait for the others.
        """
        if inside_block_axis:
            raise CodegenError(
                "Iterations that run one after the other cannot meet at a barrier.",
                found="a barrier inside a BLOCK axis",
                fix="split the axis into one loop before and one loop after the barrier",
            )
        return []

    def fold_grid(self, blocks: int) -> tuple[int, ...]:
        """Return the extents of a grid of so many thread blocks at least, its first axis first.

        Args:
            blocks: The number of thread blocks.
        """
        return (blocks,)

    @property
    def folded_block_number(self) -> str:
        """The number of a thread block in a grid of two axes, as a primary expression.

        Raises:
            CodegenError: if grids have one axis.
        """
        raise CodegenError(f"Grids of {self.language} have one axis.", found="a folded grid")

    def device_loops(self, kernel: Kernel, state: RenderState) -> DeviceLoops:
        """Return the renderer of loops that instructions of the device execute as a whole.

        Args:
            state: The names in scope, the receiver of statements, and the renderer of addresses.
        """
        return DeviceLoops(self)

    @property
    def thread_number(self) -> str:
        """The number of a thread in its block, as a primary expression.

        Raises:
            CodegenError: if the iterations of BLOCK axes run in sequence.
        """
        number = self.device_index(AxisKind.BLOCK)
        if number is None:
            raise CodegenError(
                "Iterations that run one after the other cannot exchange values.",
                found="a reduction across iterations of a BLOCK axis",
            )
        return number

    def shuffle_xor(self, value: str, apart: int, threads: int) -> str | None:
        """Return the value of a variable in the thread whose number differs in one bit; None if
        threads exchange values through memory only.

        Args:
            apart: The bit, a power of two.
            threads: The threads of a block.
        """
        return None

    def prefetch(self, cell: CExpr) -> str | None:
        """Return a prefetch of the cache line of a cell for writing; None if unsupported."""
        return f"__builtin_prefetch(&{cell}, 1);"

    def array(self, name: str, dtype: dtypes.DType, size: int, scope: Scope) -> str:
        """Return the declaration of an array that is local to the kernel."""
        return f"__attribute__((aligned(64))) {self.storage_type(dtype)} {name}[{max(size, 1)}];"

    def group_arrays(self, arrays: Sequence[tuple[str, dtypes.DType, int]]) -> list[str]:
        """Return the declarations of the arrays that the threads of a block share.

        Args:
            arrays: The name, the format and the number of cells of each.
        """
        return [self.array(*each, Scope.GROUP) for each in arrays]

    def zero_fill(self, cells: str, array: str, size: int) -> str | None:
        """Return a statement that zeroes `size` cells of an array; None if a loop is needed."""
        return f"{call('memset', CExpr(cells), CExpr('0'), CExpr(f'{size} * sizeof *{array}'))};"


class DeviceLoops:
    """The loops of a kernel that instructions of its device execute as a whole.

    In this class there are none, so that all loops are plain ones, with the same results. A
    dialect of a device with such instructions has a subclass, which `Dialect.device_loops` makes.
    Where the language has vectors, its methods may raise `NotVectorizedError` for code that the
    instructions do not express: the kernel is rendered again with plain loops.

    Args:
        dialect: The dialect for the axes of the device.
    """

    tensor_maps: tuple[TensorMap, ...] = ()
    """The arrays of which a copy engine copies boxes, in the order of the parameters."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect

    def parameters(self) -> list[KernelParameter]:
        """Return the parameters before the arrays."""
        names = map(NameRole.BOXES.name_of, range(len(self.tensor_maps)))
        return [KernelParameter(name, None, is_tensor_map=True) for name in names]

    def launch(
        self, counts: tuple[tuple[int, ...], tuple[int, ...]]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the grid and the block of a launch, given the iterations of the loops."""
        return counts

    def write_body(self, body: Block, blocks: int, write_block: Callable[[Block], None]) -> None:
        """Write the statements of all threads of a kernel.

        Args:
            body: The body of the kernel.
            blocks: The iterations of the grid.
            write_block: Writes statements, by the other methods where they concern these.
        """
        write_block(body)

    def allocate(self, node: TensorNode, scope: Sequence[Stmt]) -> bool:
        """Allocate an array of one iteration in registers of instructions; return False if it needs
        memory.

        Args:
            scope: The statements that may mention the array.
        """
        return False

    def skips(self, stmt: Stmt) -> bool:
        """Return True for a statement that other threads run than those whose code is written."""
        return False

    def around(self, loop: For) -> AbstractContextManager[None]:
        """Write statements before and after a loop."""
        return _NOTHING_AROUND

    def is_around_tile(self, loop: For) -> bool:
        """Return True if the iterations of an unrolled loop share registers of an instruction."""
        return False

    def render(self, loop: For) -> bool:
        """Write a loop as instructions; return False if it is a plain loop."""
        return False

    def await_copies(self, pending: int) -> None:
        """Write that a barrier waits for all asynchronous copies but some last groups."""

    def close(self) -> None:
        """Write what instructions need at the beginning and at the end of the kernel."""


_NOTHING_AROUND = nullcontext()


class AddressSpace(Enum):
    """The memory that a pointer of a kernel points into."""

    GLOBAL = "global"
    """Buffers that the kernel is given."""
    GROUP = "group"
    """Memory that the threads of a block share."""
    PRIVATE = "private"
    """Memory of one thread."""


class BlockDialect(Dialect):
    """The common part of the languages of devices with thread blocks, one kernel per launch.

    Args:
        max_blocks: The most blocks along the first axis of a grid: larger grids have two axes. None
            for any number.
    """

    headers: ClassVar[tuple[str, ...]] = ()
    has_vectors: ClassVar[bool] = False
    reports_failures: ClassVar[bool] = True
    stack_limit: ClassVar[int] = 16 << 10
    """Bytes of a thread's arrays outside of registers: a device reserves them for every thread that
    it can run, 4 GB on one of 132 multiprocessors.
    """
    preamble: ClassVar[str] = ""
    """Types and constants in front of every text."""
    far: ClassVar[int] = 1 << 30
    """The position from which on sums of positions may exceed 32 bits."""
    vector_bytes: ClassVar[int] = 0
    """The most bytes that one access of memory copies; 0 if all accesses are of one cell."""

    def __init__(self, max_blocks: int | None = None) -> None:
        self.max_blocks = max_blocks

    def for_limits(self, limits: LaunchLimits | None) -> Self:
        """Return the dialect for a device with some limits of launches."""
        most = None if limits is None else limits.grid[0]
        return self if most == self.max_blocks else self.varied(max_blocks=most)

    def fold_grid(self, blocks: int) -> tuple[int, ...]:
        if self.max_blocks is None or blocks <= self.max_blocks:
            return (blocks,)
        rows = ceil_div(blocks, self.max_blocks)
        return ceil_div(blocks, rows), rows

    def vector_copy(
        self, destination: tuple[str, AddressSpace], source: tuple[str, AddressSpace], nbytes: int
    ) -> str:
        """Return a statement that copies bytes from one address to another in one access.

        Args:
            destination: The address, a multiple of `nbytes`, and the memory that it is in.
            source: Those of the other end.
            nbytes: A power of two, no greater than `vector_bytes`.

        Raises:
            CodegenError: if the language has none.
        """
        raise CodegenError(f"{self.language} copies one cell at a time.", found=f"{nbytes} bytes")

    def closing(self, symbol: str, parameters: Sequence[KernelParameter]) -> list[str]:
        return ["}"]

    def prelude(self, helpers: Iterable[str]) -> str:
        definitions = prelude(helpers, self.words)
        return f"{self.preamble}\n{definitions}\n" if definitions else self.preamble

    def launch_shape(self, kernel: KernelText) -> str:
        grid, block = (" x ".join(map(str, each or (1,))) for each in (kernel.grid, kernel.block))
        return f" on {grid} blocks of {block}"

    def compiler_barrier(self) -> list[str]:
        return []

    def prefetch(self, cell: CExpr) -> str | None:
        return None

    def zero_fill(self, cells: str, array: str, size: int) -> str | None:
        return None


def _wrap_list(before: str, items: Sequence[str], after: str) -> list[str]:
    """Return a bracketed list on one line, or with one item per line."""
    line = f"{before}{', '.join(items)}{after}"
    if len(line) <= _LINE_WIDTH or not items:
        return [line]
    margin = " " * (len(before) - len(before.lstrip()))
    rows = [f"{margin}    {item}," for item in items]
    return [before, *rows[:-1], f"{rows[-1][:-1]}{after}"]
