"""Search for the schedules that are fastest on this machine, within a budget of seconds.

The kernels of a routine share the budget in proportion to their time. Each search starts from the
default's schedule and goes from the fastest schedule found so far to its neighbors
(`schedule.tuning.schedule_candidates`), a batch at a time: compiled together, compared with the
default's result, sampled in turn with the fastest. A schedule that beats the default by more than
`MARGIN` in a last comparison enters the tuning cache; otherwise the default does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.compile.kernel_benchmark import Bench
from ocannl_core.compile.placements.report import PlacementTuning, report
from ocannl_core.compile.profile import duration
from ocannl_core.compile.trial_memory import LAST_ROUNDS, MARGIN, ROUNDS, STEP
from ocannl_core.ir.canonical import canonical_text
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_plan import NestKernel, NestPlan, nest_kernels
from ocannl_core.ir.kernels.nodes import NodeInfos, TuningResult
from ocannl_core.ir.kernels.transforms import Schedule, schedule_text
from ocannl_core.ir.loops.nodes import LoopProgram
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.pipeline import nest_plan
from ocannl_core.passes.kernels.schedule_kernels import has_schedules
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.schedule.cost_model import estimated_cycles
from ocannl_core.schedule.tuning.schedule_candidates import (
    ScheduleCandidate,
    first_candidates,
    is_applicable,
    neighbors,
)
from ocannl_core.schedule.tuning.tuning_cache import tuning_cache

if TYPE_CHECKING:
    from ocannl_core.backend.manager import Backend

_MOST_IN_BATCH = 6
_SLOW_WORK = 1 << 19
"""Plain loops are not tried above this many cycles of work: they are slower by far, and take long.
"""


@dataclass(frozen=True, slots=True)
class KernelTuning:
    """The result of the search for one kernel."""

    title: str
    measured: TuningResult

    @property
    def is_faster(self) -> bool:
        """Return True if the tuning cache has another schedule than the default."""
        return self.measured.schedule != self.measured.default

    def __str__(self) -> str:
        found = self.measured
        tried = f"{found.tried} schedules tried"
        if not self.is_faster:
            seconds = duration(found.default_seconds)
            return f"{self.title}\n  {seconds} by default; {tried}, none faster"
        gain = 100 * (1 - found.seconds / found.default_seconds)
        return (
            f"{self.title}\n  {duration(found.default_seconds)} by default, "
            f"{duration(found.seconds)} now ({gain:.0f} % less; {tried})\n"
            f"  {schedule_text(found.schedule) or 'plain loops'}"
        )


@dataclass(frozen=True, slots=True)
class Tuning:
    """The results of a search for a routine; printable."""

    name: str
    """The routine's name."""
    kernels: tuple[KernelTuning, ...]
    """The kernels that were searched for, the longest first."""
    known: int
    """The number of kernels left out because an earlier search for them was complete."""
    left: int
    """The number left out because the budget was used up, or they cannot run alone."""
    seconds: float
    """The duration of the search."""
    placements: PlacementTuning | None = None
    """The result of a search over placements; None if there was none."""

    def __str__(self) -> str:
        counts = [f"{len(self.kernels)} kernels searched for in {self.seconds:.1f} s"]
        counts += [f"{self.known} known already"] if self.known else []
        counts += [f"{self.left} left for the next time"] if self.left else []
        before = [] if self.placements is None else [str(self.placements)]
        kernels = f"routine {self.name}: {', '.join(counts)}"
        return "\n".join([*before, kernels, *map(str, self.kernels)])


@dataclass(slots=True, eq=False)
class _Subject:
    """A kernel to search for."""

    kernel: NestKernel
    count: int = 1
    default: float = 0.0

    @property
    def nest(self) -> Nest:
        return self.kernel.nest


def search_schedules(
    program: LoopProgram, backend: Backend, target: Target, budget: float, *, again: bool = False
) -> Tuning:
    """Search for schedules of the kernels of a program and add them to the tuning cache.

    If the cache cannot be written, they are lost after a warning.

    Args:
        budget: The seconds to spend, about; the longest kernel is always searched for.
        again: True to repeat complete searches.
    """
    start = time.perf_counter()
    if not has_schedules(target):
        return Tuning(program.name, (), 0, 0, 0.0)
    plan = nest_plan(split_kernels(program), target, offer=backend.library(target))
    nodes = plan.nodes
    memory = tuning_cache(target)
    found = _subjects(plan, target)
    fresh = [each for each in found if again or not _is_known(memory.find(each.nest, nodes))]
    pending: list[_Subject] = []
    for each in fresh:
        if _time_default(each, plan, backend, target):
            pending.append(each)
        if time.perf_counter() - start > budget / 2:
            break
    pending.sort(key=lambda each: each.default * each.count, reverse=True)
    tuned: list[KernelTuning] = []
    while pending and (not tuned or time.perf_counter() - start < budget):
        rest = sum(each.default * each.count for each in pending)
        subject = pending.pop(0)
        left = budget - (time.perf_counter() - start)
        share = left * subject.default * subject.count / rest
        bench = Bench(plan, subject.kernel, backend, target)
        before = memory.find(subject.nest, nodes)
        measured = _Search(subject, bench, nodes, target, share, before).run()
        memory.keep(subject.nest, nodes, measured)
        tuned.append(KernelTuning(subject.kernel.title, measured))
        report(tuned[-1])
    return Tuning(
        program.name,
        tuple(tuned),
        len(found) - len(fresh),
        len(fresh) - len(tuned),
        time.perf_counter() - start,
    )


def _is_known(measured: TuningResult | None) -> bool:
    return measured is not None and measured.is_complete


def _subjects(plan: NestPlan, target: Target) -> list[_Subject]:
    """Return the kernels that have schedules to choose from, equal ones once."""
    subjects: dict[str, _Subject] = {}
    for kernel in nest_kernels(plan):
        if not first_candidates(kernel.nest, plan.nodes, target):
            continue
        text = canonical_text(kernel.nest, plan.nodes)
        if text in subjects:
            subjects[text].count += 1
        else:
            subjects[text] = _Subject(kernel)
    return list(subjects.values())


def _time_default(subject: _Subject, plan: NestPlan, backend: Backend, target: Target) -> bool:
    """Time a kernel with its default schedule; return False if it cannot run alone."""
    bench = Bench(plan, subject.kernel, backend, target)
    if bench.memory is None:
        return False
    default, *_ = first_candidates(subject.nest, plan.nodes, target)
    (subject.default,) = bench.memory.least_times(bench.compile([default.schedule]), 3)
    return True


class _Search:
    """The search for the fastest schedule of one kernel."""

    def __init__(
        self,
        subject: _Subject,
        bench: Bench,
        nodes: NodeInfos,
        target: Target,
        seconds: float,
        before: TuningResult | None,
    ) -> None:
        assert bench.memory is not None
        self._bench = bench
        self._memory = bench.memory
        self._nest = subject.nest
        self._nodes = nodes
        self._target = target
        self._end = time.perf_counter() + seconds
        default, *others, plain = first_candidates(subject.nest, nodes, target)
        self._default = self._best = default
        self._middle = next(
            (each for each in (default, *others) if each.parameters is not None), default
        )
        (self._trial,) = self._bench.compile([default.schedule])
        self._default_trial = self._trial
        self._expected = self._memory.results(self._trial)
        self._tried: set[Schedule] = {default.schedule}
        is_short = estimated_cycles(bench.plain.body, nodes) <= _SLOW_WORK
        self._first = [*others, plain] if is_short else others
        if before is not None and before.schedule and is_applicable(subject.nest, before.schedule):
            self._first.append(ScheduleCandidate(before.schedule, None))

    def run(self) -> TuningResult:
        """Return the fastest schedule with its time and the default's."""
        pending = [*self._first, *self._neighbors()]
        size = 0
        while pending and (size == 0 or time.perf_counter() < self._end):
            size = min(size + 2, _MOST_IN_BATCH)
            batch, pending = pending[:size], pending[size:]
            if self._improve(batch) and self._best.parameters is not None:
                self._middle = self._best
                pending = list(self._neighbors())
        trials = [self._default_trial, self._trial]
        default, best = self._memory.least_times(trials, LAST_ROUNDS)
        if best > (1 - MARGIN) * default:
            self._best, best = self._default, default
        runs = self._bench.runs
        return TuningResult(
            self._best.schedule,
            best / runs,
            self._default.schedule,
            default / runs,
            len(self._tried),
            is_complete=not pending,
        )

    def _neighbors(self) -> Iterator[ScheduleCandidate]:
        for each in neighbors(self._nest, self._nodes, self._target, self._middle):
            if each.schedule not in self._tried:
                yield each

    def _improve(self, batch: list[ScheduleCandidate]) -> bool:
        """Time some candidates beside the fastest; return True if one of them replaces it."""
        self._tried |= {each.schedule for each in batch}
        trials = self._bench.compile([each.schedule for each in batch])
        right = [
            (each, trial)
            for each, trial in zip(batch, trials, strict=True)
            if self._memory.agree(self._expected, self._memory.results(trial))
        ]
        if not right:
            return False
        times = self._memory.least_times([self._trial, *(each for _, each in right)], ROUNDS)
        seconds, (candidate, trial) = min(
            zip(times[1:], right, strict=True), key=lambda pair: pair[0]
        )
        if seconds > (1 - STEP) * times[0]:
            return False
        self._best, self._trial = candidate, trial
        return True
