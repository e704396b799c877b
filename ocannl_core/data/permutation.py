"""Pseudorandom permutations as functions of a key: each position is computed alone.

Positions are pairs of digits. Every round adds a hash of one digit to the other (a Feistel network
of Black and Rogaway, 2002), which permutes all pairs; a pair beyond the last position is permuted
again until it is not (cycle walking). There is no table, so that the order of a billion examples is
as cheap to resume as the order of ten.
"""

from __future__ import annotations

from functools import lru_cache
from math import isqrt
from typing import Any

import numpy as np

from ocannl_core.base.rounding import ceil_div
from ocannl_core.ir.numbers.threefry import threefry4x32

Positions = np.ndarray[Any, np.dtype[np.int64]]
_Digits = np.ndarray[Any, np.dtype[np.uint64]]

_ROUNDS = 12
_DOMAIN = 0x6F72646572  # distinguishes these keys from other uses of one seed
_MASK = 0xFFFFFFFF


def permutation(count: int, positions: Positions, *, seed: int, epoch: int) -> Positions:
    """Return the examples at positions of an epoch's order: a bijection of `range(count)`.

    The order is a function of the arguments alone: equal on every machine, in every process and for
    every version of NumPy.

    Args:
        count: The number of examples, from 1.
        positions: The positions, from 0 to `count - 1`.
        seed: Selects the orders, an integer of 64 bits.
        epoch: Selects one of them, from 0.
    """
    width = isqrt(count - 1) + 1 if count > 1 else 1
    height = ceil_div(count, width)
    keys = _round_keys(seed & (1 << 64) - 1, epoch)
    found = _rounds(positions.astype(np.uint64), width, height, keys)
    while (outside := np.flatnonzero(found >= count)).size:
        found[outside] = _rounds(found[outside], width, height, keys)
    return found.astype(np.int64)


def _rounds(pairs: _Digits, width: int, height: int, keys: tuple[int, ...]) -> _Digits:
    sizes = np.uint64(width), np.uint64(height)
    digits = [pairs % sizes[0], pairs // sizes[0]]
    for number, key in enumerate(keys):
        moved = number % 2
        size = sizes[moved]
        hashes = _hash(digits[1 - moved], np.uint64(key))
        # scaled to `range(size)`, for sizes up to 2**32
        total = digits[moved] + (((hashes >> np.uint64(32)) * size) >> np.uint64(32))
        digits[moved] = np.where(total >= size, total - size, total)
    return digits[1] * sizes[0] + digits[0]


def _hash(values: _Digits, key: np.uint64) -> _Digits:
    """Return 64 well-mixed bits of each value (the finalizer of SplitMix64)."""
    z = values * np.uint64(0x9E3779B97F4A7C15) + key
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@lru_cache(maxsize=16)
def _round_keys(seed: int, epoch: int) -> tuple[int, ...]:
    key = (seed & _MASK, seed >> 32, epoch & _MASK, epoch >> 32)
    words = [
        threefry4x32(key, (number, 0, _DOMAIN & _MASK, _DOMAIN >> 32))
        for number in range(_ROUNDS // 2)
    ]
    return tuple(
        low | high << 32 for word in words for low, high in ((word[0], word[1]), (word[2], word[3]))
    )
