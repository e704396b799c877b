"""Kernels in timelines: the steps of a routine run one by one, each timed until it has finished."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

from ocannl_core.backend.protocols import Launcher
from ocannl_core.base import timeline
from ocannl_core.compile.parts import PartitionedSource
from ocannl_core.compile.profile import CountedStep, isolate_step
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.kernels.nodes import RepeatedSteps, Step
from ocannl_core.runtime.observers.observers import LinkedRoutine, RunObserver

Values = dict[StaticIndex, int]


class KernelTimeline(RunObserver):
    """An observer that records each kernel of each run."""

    def launcher(self, routine: LinkedRoutine, launch: Launcher) -> Launcher:
        """Return a launcher that runs the kernels one by one, over the same memory; the kernels of
        a routine on several devices run part by part.
        """
        build, plan = routine.build, routine.build.plan
        if isinstance(build.source, PartitionedSource):
            return _whole(routine, launch)
        backend, target = build.backend, build.target
        own = {node: backend.allocate(plan.nodes[node], target) for node in plan.own_nodes}
        buffers = {**routine.buffers, **own}

        def actions(
            steps: Sequence[Step], indices: tuple[StaticIndex, ...]
        ) -> Iterator[Callable[[Values], None]]:
            for step in steps:
                if isinstance(step, RepeatedSteps):
                    inside = list(actions(step.steps, (*indices, step.index)))
                    yield _repeated(step, inside)
                    continue
                alone = isolate_step(plan, CountedStep(step, 1, indices))
                code = backend.compile(backend.generate(alone, target), target)
                run = backend.link(code, {node: buffers[node] for node in alone.params})
                yield _timed(run, indices, step.title or routine.name, synchronize)

        def synchronize() -> None:
            backend.synchronize(target)

        kernels = list(actions(plan.steps, plan.indices))

        def run(numbers: Sequence[int]) -> None:
            values = routine.values(numbers)
            with timeline.span("routine", routine.name):
                for kernel in kernels:
                    kernel(values)

        return run


def _whole(routine: LinkedRoutine, launch: Launcher) -> Launcher:
    def run(numbers: Sequence[int]) -> None:
        with timeline.span("routine", routine.name):
            launch(numbers)

    return run


def _repeated(
    step: RepeatedSteps, inside: Sequence[Callable[[Values], None]]
) -> Callable[[Values], None]:
    def run(values: Values) -> None:
        for iteration in step.iterations:
            for each in inside:
                each({**values, step.index: iteration})

    return run


def _timed(
    launch: Launcher, indices: Sequence[StaticIndex], title: str, wait: Callable[[], None]
) -> Callable[[Values], None]:
    def run(values: Values) -> None:
        start = perf_counter()
        launch([values[index] for index in indices])
        wait()
        timeline.record("kernel", title, start, perf_counter())

    return run
