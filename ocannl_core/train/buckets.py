"""Buckets: tensors whose cells travel together."""

from __future__ import annotations

from collections.abc import Sequence


def buckets_of(
    sizes: Sequence[int], order: Sequence[int], least: int
) -> tuple[tuple[int, ...], ...]:
    """Return the numbers of tensors in buckets, in an order.

    A bucket is closed when it has enough bytes; also when it has half of them and the next tensor
    has enough by itself, so that it needs not wait for that one. Only the last one may be smaller.

    Args:
        sizes: The size of each tensor in bytes.
        order: The numbers of the tensors in the order in which they are complete.
        least: The least size of a bucket in bytes.
    """
    found: list[tuple[int, ...]] = []
    pending: list[int] = []
    total = 0
    for number in order:
        if pending and sizes[number] >= least and 2 * total >= least:
            found.append(tuple(pending))
            pending, total = [], 0
        pending.append(number)
        total += sizes[number]
        if total >= least:
            found.append(tuple(pending))
            pending, total = [], 0
    if pending:
        found.append(tuple(pending))
    return tuple(found)
