"""Time of shape inference against the size of a program: transformers of 1 to 48 layers.

Building adds constraints as expressions are written, closing decides open variables, and projecting
computes the index maps of every operation. The time for each operation should not grow. All times
are processor time, which a busy machine disturbs little.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import time
from dataclasses import dataclass

import harness  # before NumPy: it limits the threads
import transformer

import numpy as np  # isort: skip

import ocannl_core as oc
from ocannl_core.shape.projections.projections import project
from ocannl_core.tensor.graph.definitions import Applied, ancestors
from ocannl_core.tensor.graph.tensor import Tensor


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """Seconds of processor time of each phase for one program."""

    layers: int
    operations: int
    build: float
    close: float
    project: float

    @property
    def total(self) -> float:
        return self.build + self.close + self.project


def measure(layers: int) -> PhaseTimes:
    """Return the times of one transformer, in a new session."""
    gc.collect()
    with oc.Session():
        start = time.process_time()
        loss = transformer.loss(layers)
        built = time.process_time()
        tensors = ancestors([loss])
        loss.session.environment.close([tensor.terms for tensor in tensors])
        closed = time.process_time()
        operations = [tensor for tensor in tensors if isinstance(tensor.definition, Applied)]
        for tensor in operations:
            project_operation(tensor)
        projected = time.process_time()
    return PhaseTimes(layers, len(operations), built - start, closed - built, projected - closed)


def project_operation(tensor: Tensor) -> None:
    """Compute the index maps of the operation that a tensor is the result of."""
    assert isinstance(tensor.definition, Applied)
    shapes = [operand.shape for operand in tensor.definition.operands]
    project(tensor.definition.logic, tensor.shape, shapes, tensor.origin)


def best(layers: int, rounds: int) -> PhaseTimes:
    """Return the fastest of several measurements."""
    return min((measure(layers) for _ in range(rounds)), key=lambda found: found.total)


def exponent(found: list[PhaseTimes]) -> float:
    """Return the power of the number of operations with which the total time grows."""
    sizes = np.log([each.operations for each in found])
    seconds = np.log([each.total for each in found])
    return float(np.polyfit(sizes, seconds, 1)[0])


def table(found: list[PhaseTimes]) -> str:
    """Return the measurements as text."""
    columns = ("layers", "operations", "build", "close", "project", "total", "us/operation")
    lines = ["".join(f"{column:>13}" for column in columns)]
    for each in found:
        phases = "".join(
            f"{value:>11.3f} s" for value in (each.build, each.close, each.project, each.total)
        )
        per_operation = 1e6 * each.total / each.operations
        lines.append(f"{each.layers:>13}{each.operations:>13}{phases}{per_operation:>13.0f}")
    return "\n".join(lines)


def profile(layers: int) -> None:
    """Print the functions that inference spends its time in."""
    profiler = cProfile.Profile()
    profiler.runcall(measure, layers)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default=None, help="ignored: inference needs no backend")
    parser.add_argument("--threads", type=int, default=1, help="threads of the process")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 2, 3, 6, 12, 24, 48])
    parser.add_argument("--profile", type=int, metavar="LAYERS", help="profile this size instead")
    options = parser.parse_args()
    if options.profile is not None:
        profile(options.profile)
        return
    measure(1)  # fills the cache of parsed specifications
    found = [best(layers, min(options.rounds, 3)) for layers in options.layers]
    print(f"shape inference of a transformer, {harness.THREADS} thread(s)")
    print(table(found))
    if len(found) > 1:
        large = [each for each in found if each.operations >= 200] or found
        whole, late = exponent(found), exponent(large) if len(large) > 1 else float("nan")
        print(f"time grows as operations ** {whole:.2f} (** {late:.2f} from 200 operations on)")


if __name__ == "__main__":
    main()
