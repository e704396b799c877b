"""The text of one kernel, and what those that compile and launch it have to know."""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from ocannl_core.fast_dataclass import dataclass


class CompilerVectorisation(Enum):
    """What of a kernel is left for a compiler to vectorise."""

    VECTORS = "nothing"
    """All its loops are written in vectors."""
    MIXED = "little"
    """Most of its text is written in vectors, but some loops are not."""
    FUNCTIONS = "little, beside constants to be kept in registers"
    """The same, and its vectors are given to elementary functions."""
    PLAIN = "all"


@dataclass(frozen=True, slots=True)
class KernelText:
    """One kernel.

    Attributes:
        symbol: Its name: `k_` and a hash of all that follows.
        text: Its definition.
        helpers: What it needs from the prelude.
        grid: Extents of the GRID axes that the device itself runs, outermost first.
        block: Extents of the BLOCK axes that the device itself runs, likewise.
        private: The bytes of each buffer of which every thread has its own, given after indices.
        bounds: How many pairs of a first iteration and an end it is given last: none, those of its
            loops, and those of the loops right inside.
        loops: What is left for a compiler to vectorise.
        author: Who wrote it, for messages, where that is not the compiler; kernels that differ only
            in this are equal.
    """

    symbol: str
    text: str
    helpers: tuple[str, ...] = ()
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    private: tuple[int, ...] = ()
    bounds: int = 0
    loops: CompilerVectorisation = CompilerVectorisation.PLAIN
    author: str = field(default="", compare=False)
