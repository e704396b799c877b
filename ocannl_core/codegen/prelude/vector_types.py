"""Vector types of generated C, by the vector extensions of GCC and Clang."""

from __future__ import annotations

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.codegen.text.helper import Helper

ELEMENTS = {
    "float32": ("float", 4),
    "float64": ("double", 8),
    "int32": ("int32_t", 4),
    "uint32": ("uint32_t", 4),
    "int64": ("int64_t", 8),
    "uint64": ("uint64_t", 8),
}
"""Formats of vector arithmetic: the type in C and its size."""

TYPES = ELEMENTS | {
    "int8": ("int8_t", 1),
    "uint8": ("uint8_t", 1),
    "int16": ("int16_t", 2),
    "uint16": ("uint16_t", 2),
}
"""Formats of all vectors, with those that are only loaded and stored."""


@dataclass(frozen=True, slots=True)
class Vector:
    """A vector type, by the name of its format."""

    dtype: str
    lanes: int

    @property
    def name(self) -> str:
        """The type in C; names of functions on it begin with it."""
        return f"{self.dtype}x{self.lanes}"

    @property
    def element(self) -> str:
        """The type of a number in C."""
        return TYPES[self.dtype][0]

    @property
    def nbytes(self) -> int:
        """The size of a vector."""
        return self.lanes * TYPES[self.dtype][1]

    @property
    def mask(self) -> str:
        """The type of a comparison in C: all bits of a lane, or none."""
        return f"int{8 * TYPES[self.dtype][1]}x{self.lanes}"

    @property
    def cells(self) -> str:
        """The type of a vector in memory, aligned as a number."""
        return f"{self.name}_cells"

    @property
    def definition(self) -> Helper:
        """The definition of the type."""
        size = f"vector_size({self.nbytes})"
        own = f"{size}, aligned({self.nbytes // self.lanes}), may_alias"
        return Helper(
            f"typedef {self.element} {self.name} __attribute__(({size}));\n"
            f"typedef {self.element} {self.cells} __attribute__(({own}));"
        )


PARTIAL_VECTORS = frozenset(
    each.name for dtype in TYPES for lanes in (2, 4) if (each := Vector(dtype, lanes)).nbytes < 16
)
"""The vector types that are smaller than any vector register."""
