"""The cost of a call: of a compiled function that adds four numbers, and of one that does nothing.

Beside jitted functions of JAX, compiled ones of PyTorch, and an expression of NumPy.
"""

from __future__ import annotations

import comparison  # before NumPy: it limits the threads
from workloads import calls


def main() -> None:
    chosen = comparison.options(__doc__, rounds=50, sample=0.005)
    works = [calls.ADDITION, calls.NOTHING]
    if chosen.list:
        comparison.run(works, chosen)
        return
    libraries = comparison.installed_libraries(chosen.peers)
    added = dict(comparison.attempts(calls.ADDITION, chosen)) | calls.expression()
    nothing = calls.empty(chosen.backend, libraries)
    for work, contenders in ((calls.ADDITION, added), (calls.NOTHING, nothing)):
        if comparison.is_selected(work, chosen):
            ready = comparison.prepare(work, contenders)
            comparison.report(comparison.measure(ready, chosen), chosen.json)


if __name__ == "__main__":
    main()
