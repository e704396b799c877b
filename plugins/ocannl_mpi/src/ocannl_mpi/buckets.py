"""Division of the summands into buckets, and of the cells of a bucket into one chunk per process.

    summands   [ w1            ][ b1 ][ w2     ][ b2 ]
    buckets    [ 0       ][ 1             ][ 2       ]
    chunks     [ r0 | r1 ][ r0    | r1    ][ r0 | r1 ]

The division is a function of the summands and the number of processes: each process computes it by
itself, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from ocannl_core.backend_api import DType
from ocannl_core.train.communication import Summand

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive cells of a summand, in row-major order.

    Attributes:
        summand: The number of the summand.
        start: The first cell.
        stop: The cell after the last one.
    """

    summand: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Bucket:
    """Pieces of one number format that travel in one message.

    Attributes:
        dtype: Their format.
        pieces: The pieces, in the order of the summands.
    """

    dtype: DType
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)

    def pieces_of(self, chunk: range) -> Iterator[Piece]:
        """Yield the parts of the pieces that lie in a chunk of the bucket's cells."""
        first = 0
        for piece in self.pieces:
            start, stop = max(chunk.start, first), min(chunk.stop, first + piece.size)
            if start < stop:
                yield Piece(piece.summand, piece.start + start - first, piece.start + stop - first)
            first += piece.size


def buckets_of(summands: Sequence[Summand], most_bytes: int) -> tuple[Bucket, ...]:
    """Return buckets of at most so many bytes, each of one format, that hold every cell once."""
    found: list[Bucket] = []
    numbered = enumerate(summands)
    for dtype, group in groupby(numbered, key=lambda each: each[1].dtype):
        most = max(1, most_bytes // dtype.numpy.itemsize)
        pieces: list[Piece] = []
        free = most
        for number, summand in group:
            start, stop = 0, int(np.prod(summand.dims, dtype=np.int64))
            while start < stop:
                taken = min(free, stop - start)
                pieces.append(Piece(number, start, start + taken))
                start, free = start + taken, free - taken
                if not free:
                    found.append(Bucket(dtype, tuple(pieces)))
                    pieces, free = [], most
        if pieces:
            found.append(Bucket(dtype, tuple(pieces)))
    return tuple(found)


def pack(bucket: Bucket, chunk: range, arrays: Sequence[Array], into: Array) -> None:
    """Copy the cells of a chunk from flat arrays of the summands, one after the other."""
    at = 0
    for piece in bucket.pieces_of(chunk):
        into[at : at + piece.size] = arrays[piece.summand][piece.start : piece.stop]
        at += piece.size


def unpack(bucket: Bucket, chunk: range, cells: Array, arrays: Sequence[Array]) -> None:
    """Copy the cells of a chunk to flat arrays of the summands."""
    at = 0
    for piece in bucket.pieces_of(chunk):
        arrays[piece.summand][piece.start : piece.stop] = cells[at : at + piece.size]
        at += piece.size
