"""One training step of a network so small that calling it is most of the work: layers 2-16-1.

All start from the same weights and must agree before anything is timed. Beside the peers:
hand-written code in NumPy and in Numba, and an empty routine of this project with the same static
index, which measures the cost of a call.
"""

from __future__ import annotations

import comparison  # before NumPy: it limits the threads
import harness

import numpy as np  # isort: skip

from results import OWN
from workloads import moons
from workloads.functions import take_steps

import ocannl_core as oc


def empty_call(backend: str | None, calls: int = 8) -> harness.TimedWork:
    """Return calls of a routine that has nothing to do."""
    with oc.Session():
        number = oc.static_index("minibatch", range=calls)
        one = oc.tensor(np.arange(calls, dtype=np.float32), batch_axes=1)[number]
        nothing = oc.Context(backend).compile(oc.train.forward(one), bindings=[number])

    def call(number: int) -> None:
        nothing(minibatch=number)

    return harness.TimedWork("an empty call", take_steps(call, calls))


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
    (empty,) = harness.compare(
        [empty_call(chosen.backend)], rounds=chosen.rounds, sample_seconds=chosen.sample
    )
    print(f"  an empty call of {OWN} code: {empty.least * 1e6:.2f} us")


if __name__ == "__main__":
    main()
