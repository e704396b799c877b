"""Threefry: 128-bit words for random numbers.

Words are hashed, computed from numbers, and converted to numbers.
"""

from __future__ import annotations

from ocannl_core.ir.numbers import dtypes

Words = tuple[int, int, int, int]
"""A 128-bit word as four 32-bit lanes, low lane first."""

_MASK = 0xFFFFFFFF
ROTATIONS = ((10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20))
"""Rotation constants of Threefry-4x32.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", table 2.
"""


def threefry4x32(key: Words, counter: Words, rounds: int = 20) -> Words:
    """Return the Threefry-4x32 hash of a counter under a key.

    With 20 rounds it is the published function of Random123; 12 rounds are the fewest that pass the
    statistical tests of its authors, so that 12 is quicker and has no margin of safety.
    """
    k0, k1, k2, k3 = key
    schedule = (k0, k1, k2, k3, k0 ^ k1 ^ k2 ^ k3 ^ 0x1BD11BDA)
    a, b, c, d = (counter[i] + schedule[i] & _MASK for i in range(4))
    for r in range(rounds):
        first, second = ROTATIONS[r % 8]
        a = a + b & _MASK
        c = c + d & _MASK
        turned = (b << first | b >> 32 - first) & _MASK ^ a
        b = (d << second | d >> 32 - second) & _MASK ^ c
        d = turned
        if r % 4 == 3:
            group = r // 4 + 1
            a = a + schedule[group % 5] & _MASK
            b = b + schedule[(group + 1) % 5] & _MASK
            c = c + schedule[(group + 2) % 5] & _MASK
            d = d + schedule[(group + 3) % 5] + group & _MASK
    return (a, d, c, b) if rounds % 2 else (a, b, c, d)  # lanes change places in pairs of rounds


def word_of(value: dtypes.Number, dtype: dtypes.DType = dtypes.int64) -> Words:
    """Return a number of a format as a word.

    The bits of a number are the low lanes of the word. A 32-bit integer is spread over all four
    lanes, so that small counters differ in each of them:

        u  -->  u, u ^ 0x9E3779B9, u ^ 0x6C078965, u ^ (u rotated left by 16)
    """
    if dtype is dtypes.uint4x32:
        a, b, c, d = value
        return (a, b, c, d)
    bits = dtypes.bits_of(value, dtype)
    if dtype in (dtypes.int32, dtypes.uint32):
        turned = bits << 16 & _MASK | bits >> 16
        return (bits, bits ^ 0x9E3779B9, bits ^ 0x6C078965, bits ^ turned)
    return (bits & _MASK, bits >> 32, 0, 0)


def number_of(word: Words, dtype: dtypes.DType = dtypes.float32) -> dtypes.Number:
    """Return the number of a format that a word is converted to.

    Floats of 16 bits and more are uniform in [0, 1], where only rounding reaches 1; a float32 is
    exact and less than 1. The number is made of the low lanes: of the upper 24 bits of the first
    one for float32 and bfloat16, of its lower 16 bits for float16, of two lanes for float64. An
    8-bit float, an integer and a word are the low bits themselves.
    """
    if dtype is dtypes.bfloat16:
        return dtypes.round_to(number_of(word, dtypes.float32), dtypes.bfloat16)
    if dtype is dtypes.float32:
        return (word[0] >> 8) * 2.0**-24
    return numbers_of(word, dtype)[0]


def numbers_of(word: Words, dtype: dtypes.DType) -> tuple[dtypes.Number, ...]:
    """Return the numbers of a format that a word holds, low bits first, as many as fit.

    Floats of 16 bits and more are uniform in [0, 1], where only rounding reaches 1; an 8-bit float,
    an integer and a word are the bits themselves.
    """
    whole = sum(lane << (32 * position) for position, lane in enumerate(word))
    bits = 8 * dtype.nbytes  # of a bool, the lowest of the eight
    parts = [(whole >> shift) & ((1 << bits) - 1) for shift in range(0, 128, bits)]
    if dtype.kind is not dtypes.Kind.FLOAT or bits == 8:
        return tuple(dtypes.from_bits(part, dtype) for part in parts)
    if dtype is dtypes.float64:
        return tuple(part * 2.0**-64 for part in parts)
    kept = min(bits, 24)  # a float32 takes the upper 24 bits, which it holds exactly
    return tuple(dtypes.round_to((part >> (bits - kept)) * 2.0**-kept, dtype) for part in parts)
