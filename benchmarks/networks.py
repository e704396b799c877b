"""Pieces of networks and training steps, compiled, beside every peer that is installed.

Every contender computes on the same numbers and must agree with the first one before timing. All
are sampled in turn, in one process.
"""

from __future__ import annotations

import itertools

import comparison  # before NumPy: it limits the threads
from workloads import (
    attention,
    block,
    convolutions,
    orderings,
    positions,
    recurrent,
    rows,
    training,
)


def main() -> None:
    modules = (rows, positions, orderings, convolutions, recurrent, training, block, attention)
    works = itertools.chain.from_iterable(each.workloads() for each in modules)
    comparison.run(works, comparison.options(__doc__, rounds=15, sample=0.02))


if __name__ == "__main__":
    main()
