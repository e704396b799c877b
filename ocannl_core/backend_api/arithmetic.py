"""Rounding, bit patterns, and the meaning of primitives on numbers of Python."""

from ocannl_core.ir.numbers.dtypes import Kind, Number, bits_of, from_bits, round_to, rounder
from ocannl_core.ir.numbers.meanings import multiply_add_singles
from ocannl_core.ir.numbers.primitives import (
    EVERY_PRIMITIVE,
    BinaryOp,
    Op,
    Primitives,
    TernaryOp,
    UnaryOp,
    VectorOp,
    meaning_in,
    primitives_of,
)
from ocannl_core.ir.numbers.threefry import Words, number_of, numbers_of, word_of

# fmt: off
__all__ = [
    "EVERY_PRIMITIVE", "BinaryOp", "Kind", "Number", "Op", "Primitives", "TernaryOp", "UnaryOp",
    "VectorOp", "Words", "bits_of", "from_bits", "meaning_in", "multiply_add_singles", "number_of",
    "numbers_of", "primitives_of", "round_to", "rounder", "word_of",
]
# fmt: on
