"""Time from expressions to a compiled training step, stage by stage, for transformers.

Times are processor times of this process, which the load of the machine hardly changes; for the
compiler of generated code, which is a child process, wall-clock times. The last column is the power
of the number of operations with which a stage grows between the two largest sizes; 1 is linear.
Nothing is read from the cache of compiled code.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import math
import pstats
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context

import harness  # before NumPy: it limits the threads
import transformer

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.compile.check_program import check_program, partial_candidates
from ocannl_core.compile.driver import resolve
from ocannl_core.compile.lowered_code import lower_code
from ocannl_core.compile.stages import CompileOptions
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.passes.loops.decisions import Decisions
from ocannl_core.passes.loops.pipeline import core_passes
from ocannl_core.tensor.graph.definitions import Applied, ancestors


class Stopwatch:
    """Seconds by stage, in the order in which stages ran; can profile one of them."""

    def __init__(self, profiled: str | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self._profiled = profiled

    @contextmanager
    def stage(self, name: str, clock: Callable[[], float] = time.process_time) -> Iterator[None]:
        """Time a block, by default in processor time."""
        gc.collect()
        profiler = cProfile.Profile() if name == self._profiled else None
        start = clock()
        if profiler:
            profiler.enable()
        yield
        if profiler:
            profiler.disable()
        self.seconds[name] = clock() - start
        if profiler:
            pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Times of the stages of one training step.

    Attributes:
        layers: The layers of the transformer.
        operations: The operations on tensors, those of backpropagation and updates not counted.
        kernels: The number of kernels in one call of the routine.
        lines: The lines of generated code.
        seconds: Times by stage, in the order in which stages ran.
        passes: The stages that are passes over the loop language.
    """

    layers: int
    operations: int
    kernels: int
    lines: int
    seconds: dict[str, float]
    passes: tuple[str, ...]


def measure(layers: int, backend: str | None, profiled: str | None) -> StageTimes:
    """Take one training step through every stage."""
    watch = Stopwatch(profiled)
    with (
        tempfile.TemporaryDirectory() as folder,
        settings.overrides(cache_dir=folder),
        oc.Session(),
    ):
        context = oc.Context(backend)
        with watch.stage("expressions"):
            loss = transformer.loss(layers)
            rate = oc.placeholder("rate")
            update = oc.train.sgd_update(loss, learning_rate=rate, momentum=0.9)
            computation = oc.train.grad_update(loss) + update
        with watch.stage("shapes and assignments"):
            code = resolve(computation, CompileOptions())
        with watch.stage("lower"):
            lowered = lower_code(code.program, partial_candidates(code))
        with watch.stage("nodes to store"):
            checked = check_program(code, lowered, CompileOptions(), context.store.state())
        loops, decisions = checked.request.lowered, Decisions(checked.request.stored)
        passes = (*core_passes(decisions), *context.backend.passes(context.target))
        for each in passes:
            with watch.stage(each.name):
                loops = each.run(loops)
        with watch.stage("split into kernels"):
            plan = split_kernels(loops)
        with watch.stage("generate"):
            source = context.backend.generate(plan, context.target)
        with watch.stage("compile generated code", time.perf_counter):
            context.backend.compile(source, context.target)
    operations = sum(isinstance(t.definition, Applied) for t in ancestors([loss]))
    lines = source.text.count("\n")
    names = tuple(each.name for each in passes)
    return StageTimes(layers, operations, len(plan.steps), lines, watch.seconds, names)


def measure_in_process(layers: int, backend: str | None, profiled: str | None) -> StageTimes:
    """Return a measurement by a new process, which has compiled nothing yet."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measure, layers, backend, profiled).result()


def table(found: list[StageTimes]) -> str:
    """Return seconds by stage and size as text."""
    counts = {
        "operations": [each.operations for each in found],
        "kernels called": [each.kernels for each in found],
        "lines of code": [each.lines for each in found],
    }
    rows = [f"{'':<26}" + "".join(f"{each.layers:>6} layers" for each in found)]
    rows += [
        f"{name:<26}" + "".join(f"{value:>13}" for value in row) for name, row in counts.items()
    ]
    stages = {name: [each.seconds[name] for each in found] for name in found[0].seconds}
    stages["all passes"] = [sum(each.seconds[n] for n in each.passes) for each in found]
    stages["total"] = [sum(each.seconds.values()) for each in found]
    for stage, seconds in stages.items():
        row = "".join(f"{value:>11.3f} s" for value in seconds)
        rows.append(f"{stage:<26}{row}{growth(seconds, counts['operations'])}")
    return "\n".join(rows)


def growth(seconds: list[float], sizes: list[int]) -> str:
    """Return the exponent of the power law through the last two points, as a column of text."""
    if len(seconds) < 2:
        return ""
    return f"{math.log(seconds[-1] / seconds[-2]) / math.log(sizes[-1] / sizes[-2]):>10.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default=None)
    parser.add_argument("--threads", type=int, default=1, help="threads of the process")
    parser.add_argument("--rounds", type=int, default=1, help="ignored: every stage runs once")
    parser.add_argument("--layers", type=int, nargs="+", default=[3, 6, 12])
    parser.add_argument("--profile", metavar="STAGE", help="profile this stage of the largest size")
    options = parser.parse_args()
    print(f"compiling the training step of a transformer, {harness.THREADS} thread(s)")
    sizes = sorted(options.layers)
    found = [
        measure_in_process(
            layers, options.backend, options.profile if layers == sizes[-1] else None
        )
        for layers in sizes
    ]
    print(table(found))


if __name__ == "__main__":
    main()
