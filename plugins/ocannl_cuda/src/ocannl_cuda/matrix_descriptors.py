"""Descriptors of factors in shared memory, and the layout that they describe.

A factor is an array of rows of 128 bytes. Its rows run along the terms, one for each cell, or
across them: then a row has neighboring cells of one term, and blocks of so many cells follow each
other. In eight rows, which begin at a multiple of 1024 bytes, the 16-byte chunks of row r are
exchanged: chunk c is at place c XOR r. So threads, and the matrix units, read columns of chunks
from different banks. PTX states the figures for `wgmma`, the driver's manual for tensor maps.
"""

from __future__ import annotations

from ocannl_core.backend_api import AsynchronousProduct

CHUNK_BYTES = 16
"""The bytes that are exchanged as a whole."""
ATOM_ROWS = 8
"""The rows in which chunks are exchanged."""
ADDRESS_SHIFT = 4
"""Addresses and distances are in units of 16 bytes."""
ADDRESS_MASK = 0x3FFFF
_LEADING, _STRIDE, _SWIZZLE = 16, 32, 62
"""The first bits of both distances, and of the kind of the exchange."""
_SWIZZLE_128 = 1


def matrix_descriptor(product: AsynchronousProduct, *, is_across: bool) -> int:
    """Return the descriptor of a factor, but for its address.

    Args:
        is_across: True if rows run across the terms.
    """
    atom = ATOM_ROWS * product.row_bytes
    # from one block of cells to the next one; rows along the terms have no second block
    leading = product.depth * product.row_bytes if is_across else CHUNK_BYTES
    return (
        (leading >> ADDRESS_SHIFT) << _LEADING
        | (atom >> ADDRESS_SHIFT) << _STRIDE
        | _SWIZZLE_128 << _SWIZZLE
    )


def place_of(product: AsynchronousProduct, cell: int, term: int, *, is_across: bool) -> int:
    """Return the offset in bytes of a number of a factor from the start of its stage.

    Args:
        cell: Its row or column in the result.
        term: Its number among the terms of a stage.
        is_across: True if rows run across the terms.
    """
    nbytes = product.dtype.nbytes
    if is_across:
        width = product.row_bytes // nbytes
        row, byte = cell // width * product.depth + term, cell % width * nbytes
    else:
        row, byte = cell, term * nbytes
    chunk = byte // CHUNK_BYTES ^ row % ATOM_ROWS
    return row * product.row_bytes + chunk * CHUNK_BYTES + byte % CHUNK_BYTES
