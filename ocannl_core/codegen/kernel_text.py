"""The text of a kernel, with the properties that compiling and launching it depend on."""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from ocannl_core.fast_dataclass import dataclass


class CompilerVectorisation(Enum):
    """Amount of vectorisation that is left for the C compiler."""

    VECTORS = "nothing"
    """All loops are rendered in vectors."""
    MIXED = "little"
    """Most of the text is rendered in vectors, but some loops are not."""
    FUNCTIONS = "little, beside constants to be kept in registers"
    """The same, and the vector code calls elementary functions."""
    PLAIN = "all"


@dataclass(frozen=True, slots=True)
class KernelText:
    """One kernel.

    Attributes:
        symbol: Its name: `k_` and a hash of all other attributes that distinguish kernels.
        text: Its definition.
        helpers: The helpers of the prelude that it uses.
        grid: The grid of thread blocks that the device runs, of one axis; empty if loops run the
            GRID axes. Native code may have more axes.
        block: The threads of a block, likewise.
        private: The size in bytes of each buffer that is private to a thread; these parameters
            follow the indices.
        bounds: The number of trailing pairs of a first iteration and an end: 0, 1 for its loops, 2
            for the loops directly inside as well.
        vectorisation: Amount of vectorisation that is left for the C compiler.
        checks: True if the kernel checks positions: an integer to be set to 1 by a failure is its
            last argument.
        group_bytes: Bytes of the memory that the threads of a block share.
        author: The author, for messages, if it is not the compiler; kernels that differ only in
            this are equal.
    """

    symbol: str
    text: str
    helpers: tuple[str, ...] = ()
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    private: tuple[int, ...] = ()
    bounds: int = 0
    vectorisation: CompilerVectorisation = CompilerVectorisation.PLAIN
    checks: bool = False
    group_bytes: int = 0
    author: str = field(default="", compare=False)
