"""One training step of a network so small that calling it is most of the work: layers 2-16-1.

All start from the same weights and must agree before anything is timed. Beside the peers:
hand-written code in NumPy and in Numba. `calls.py` measures the cost of a call alone.
"""

from __future__ import annotations

import comparison  # before NumPy: it limits the threads
from workloads import moons


def main() -> None:
    chosen = comparison.options(__doc__, rounds=100, sample=0.005)
    work = moons.MOONS
    if chosen.list or not comparison.is_selected(work, chosen):
        comparison.run([work], chosen)
        return
    found = dict(comparison.attempts(work, chosen)) | moons.by_hand_in_numpy()
    if "numba" in comparison.installed_libraries(chosen.peers):
        found |= moons.by_hand_in_numba()
    comparison.report(comparison.measure(comparison.prepare(work, found), chosen), chosen.json)


if __name__ == "__main__":
    main()
