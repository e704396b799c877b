"""The text of a kernel, with the properties that compiling and launching it depend on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from enum import Enum

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.files.digests import text_digest
from ocannl_core.base.rounding import round_up
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.passes.kernels.parallel_loops import ParallelIterations


class CompilerVectorization(Enum):
    """Amount of vectorization that is left for the C compiler."""

    VECTORS = "nothing"
    """All loops are rendered in vectors."""
    MIXED = "little"
    """Most of the text is rendered in vectors, but some loops are not."""
    FUNCTIONS = "little, beside constants to be kept in registers"
    """The same, and the vector code calls elementary functions."""
    INDEPENDENT = "all, and no iteration depends on another one"
    PLAIN = "all"


CODEGEN_VERSION = 3
"""Incremented when kernels change without their text, by the rest of a file, too."""

GROUP_ALIGNMENT = 16
"""Bytes to which an array that threads share is aligned, at least."""


def group_offsets(arrays: Sequence[tuple[str, DType, int]]) -> list[int]:
    """Return the offset in bytes of each array that the threads of a block share, and the end.

    Args:
        arrays: The name, the format and the number of cells of each.
    """
    offsets = [0]
    for _, dtype, size in arrays:
        nbytes = max(size, 1) * dtype.nbytes
        offsets.append(offsets[-1] + round_up(nbytes, GROUP_ALIGNMENT))
    return offsets


def symbol_of(*parts: str) -> str:
    """Return the symbol of a kernel with this content."""
    return "k_" + text_digest(*parts)[:16]


@dataclass(frozen=True, slots=True)
class TensorMap:
    """An array in memory of which a copy engine copies boxes to memory that threads share.

    Cells of a box beyond the extents of the array are zeros. The first axis is contiguous.

    Attributes:
        argument: The position of the array among the arguments of the kernel.
        dtype: The number format.
        offset: The position of the first cell in the buffer.
        extents: The cells along each axis.
        strides: The cells from one position of each axis but the first to the next one.
        box: The cells of a box along each axis.
        row_bytes: The bytes of a row of a box, whose parts are exchanged with parts of other rows.
    """

    argument: int
    dtype: DType
    offset: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    row_bytes: int


@dataclass(frozen=True, slots=True)
class KernelText:
    """One kernel.

    Attributes:
        symbol: Its name: `k_` and a hash of all other attributes that distinguish kernels.
        helpers: The helpers of the prelude that it uses.
        grid: The grid of thread blocks that the device runs, of one axis; empty if loops run the
            GRID axes. Native code may have more axes.
        block: The threads of a block, likewise.
        private: The bytes of each buffer that is private to a thread; they follow the indices.
        bounds: The number of trailing pairs of a first iteration and an end: 0, 1 for its loops, 2
            for the loops directly inside as well.
        vectorization: Amount of vectorization that is left for the C compiler.
        checks: True if the kernel checks positions: an integer to be set to 1 by a failure is its
            last argument.
        group_bytes: Bytes of the memory that the threads of a block share.
        tensor_maps: The arrays of which the copy engine copies boxes: the first parameters. Blocks
            of such a kernel are persistent: any number of them runs the grid.
        definitions: A digest of the definitions of the helpers.
        author: The author, for messages, if not the compiler; equality ignores it.
        has_plain_tiles: True if loops that the schedule has in vectors, or on a matrix unit, are
            plain loops, since the renderer has no form for their code.
        shares: The iterations of native code that threads may share.
    """

    symbol: str
    text: str
    helpers: tuple[str, ...] = ()
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    private: tuple[int, ...] = ()
    bounds: int = 0
    vectorization: CompilerVectorization = CompilerVectorization.PLAIN
    checks: bool = False
    group_bytes: int = 0
    tensor_maps: tuple[TensorMap, ...] = ()
    definitions: str = ""
    author: str = field(default="", compare=False)
    has_plain_tiles: bool = False
    shares: ParallelIterations | None = None
