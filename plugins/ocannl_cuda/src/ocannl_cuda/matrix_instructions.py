"""The matrix instructions of devices, as data: shapes, formats, and the fragments of threads.

Thread 4 * g + t of a warp has the cells of the sums in rows g and g + 8 and columns 2 * t and
2 * t + 1. Of the factors it has those of rows, or columns, g and g + 8, and terms t times the
numbers that a register holds, and half of all terms beyond. The figures are stated by PTX for
`mma.sync`.
"""

from __future__ import annotations

from ocannl_core.backend_api import (
    AsynchronousProduct,
    Digit,
    Fragment,
    MatrixInstruction,
    MatrixUnit,
    bfloat16,
    float16,
    float32,
)

OLDEST = (8, 0)
"""The oldest compute capability with the instructions below, and with asynchronous copies."""
COPIES = (16, 8, 4)
"""The bytes that `cp.async` copies."""

_SUMS = Fragment(
    threads=(Digit(8, rows=1), Digit(4, columns=2)), places=(Digit(2, rows=8), Digit(2, columns=1))
)
_LEFT_OF_16_BITS = Fragment(
    threads=(Digit(8, rows=1), Digit(4, columns=2)),
    places=(Digit(2, columns=8), Digit(2, rows=8), Digit(2, columns=1)),
)
_RIGHT_OF_16_BITS = Fragment(
    threads=(Digit(8, columns=1), Digit(4, rows=2)), places=(Digit(2, rows=8), Digit(2, rows=1))
)
_LEFT_OF_32_BITS = Fragment(
    threads=(Digit(8, rows=1), Digit(4, columns=1)), places=(Digit(2, columns=4), Digit(2, rows=8))
)
_RIGHT_OF_32_BITS = Fragment(
    threads=(Digit(8, columns=1), Digit(4, rows=1)), places=(Digit(2, rows=4),)
)

BFLOAT16 = MatrixInstruction("bf16", bfloat16, _LEFT_OF_16_BITS, _RIGHT_OF_16_BITS, _SUMS)
FLOAT16 = MatrixInstruction("f16", float16, _LEFT_OF_16_BITS, _RIGHT_OF_16_BITS, _SUMS)
TF32 = MatrixInstruction("tf32", float32, _LEFT_OF_32_BITS, _RIGHT_OF_32_BITS, _SUMS, parts=2)
"""Factors have 11 binary digits: a number of float32 is the sum of two of them, but for its last
digit.
"""

INSTRUCTIONS = (BFLOAT16, FLOAT16, TF32)


def copies_of(capability: tuple[int, int]) -> tuple[int, ...]:
    """Return the bytes that one instruction of a compute capability copies asynchronously."""
    return COPIES if capability >= OLDEST else ()


ASYNCHRONOUS_CAPABILITY = (9, 0)
"""The only compute capability with asynchronous products of warpgroups (`wgmma`)."""
_GROUP_SUMS = Fragment(
    threads=(Digit(4, rows=16), Digit(8, rows=1), Digit(4, columns=2)),
    places=(Digit(2, rows=8), Digit(2, columns=1)),
)
_GROUP_COLUMNS = (64, 128, 256)
ASYNCHRONOUS = tuple(
    AsynchronousProduct(name, dtype, _GROUP_SUMS, _GROUP_COLUMNS, terms=16, row_bytes=128)
    for name, dtype in (("bf16", bfloat16), ("f16", float16))
)


UNITS: tuple[MatrixUnit, ...] = (*ASYNCHRONOUS, *INSTRUCTIONS)


def units_of(capability: tuple[int, int]) -> tuple[MatrixUnit, ...]:
    """Return the matrix units of a compute capability."""
    if capability < OLDEST:
        return ()
    return UNITS if capability == ASYNCHRONOUS_CAPABILITY else INSTRUCTIONS
