"""Products of matrices, compiled, in NumPy, and in every peer that is installed.

Every contender computes on the same arrays and must agree with the product in double precision
before it is timed. Convolutions are among the pieces of networks, in `networks.py`.
"""

from __future__ import annotations

import comparison  # before NumPy: it limits the threads
from workloads import products


def main() -> None:
    comparison.run(products.workloads(), comparison.options(__doc__, rounds=30, sample=0.01))


if __name__ == "__main__":
    main()
