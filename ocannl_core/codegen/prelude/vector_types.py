"""Vector types of generated C, by the vector extensions of GCC and Clang.

A vector of 128-bit words is four vectors of 32-bit lanes. A helper on it, such as the hash of
random numbers, has a name as `uint4x32x16_threefry4x32`. The functions are written once, in
`c/word_vectors.c.in`, over types that stand for vectors of any width: WORDS, and UINTS, INTS and
FLOATS of as many lanes.
"""

from __future__ import annotations

import re
from functools import cache

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.codegen.text.helper import Helper, read_helpers

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
    """A vector type.

    Attributes:
        dtype: The name of the format.
        lanes: The number of lanes.
    """

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


def instruction(macro: str, name: str) -> str:
    """Return the condition that the target has an instruction and the compiler a builtin for it.

    A compiler may have builtins for instructions that the target lacks, so both are tested.
    """
    return f"defined({macro}) && __has_builtin(__builtin_{name})"


PARTIAL_VECTORS = frozenset(
    each.name for dtype in TYPES for lanes in (2, 4) if (each := Vector(dtype, lanes)).nbytes < 16
)
"""The vector types that are smaller than any vector register."""


_WORD_NAME = re.compile(r"uint4x32x(?P<lanes>\d+)(?P<function>_\w+)?")
_TEMPLATE_TYPE = re.compile(r"\b(WORDS|UINTS|INTS|FLOATS)(_\w+)?\b")
_LANE_FORMATS = {"UINTS": "uint32", "INTS": "int32", "FLOATS": "float32"}


def is_word_vector(helper: str) -> bool:
    """Return True of the name of a vector of words, or of a function on them."""
    return _WORD_NAME.fullmatch(helper) is not None


@cache
def word_vector_helper(name: str) -> Helper | None:
    """Return the vector of words, or the function on them, of this name; None if there is none."""
    found = _WORD_NAME.fullmatch(name)
    if found is None:
        return None
    template = read_helpers("word_vectors.c.in").get(f"WORDS{found['function'] or ''}")
    if template is None:
        return None
    lanes = int(found["lanes"])
    needs = dict.fromkeys(template.needs)

    def spell(token: re.Match[str]) -> str:
        kind, function = token[1], token[2] or ""
        vector = f"uint4x32x{lanes}" if kind == "WORDS" else Vector(_LANE_FORMATS[kind], lanes).name
        if f"{vector}{function}" != name:
            needs.setdefault(f"{vector}{function}")
        return f"{vector}{function}"

    text = _TEMPLATE_TYPE.sub(spell, template.text)
    return Helper(text, tuple(needs), is_instruction=found["function"] is not None)
