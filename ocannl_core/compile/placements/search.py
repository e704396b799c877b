"""Search for the placements with which a routine is fastest on this machine.

A node is a candidate if it may be virtual (computed at each read) and may be local (stored once in
memory of the routine); the rules of the passes choose one of the two. An arm is the whole routine,
compiled with some candidates in the other mode. The default comes first, then the arm that stores
every candidate; from the faster of them, the search flips one candidate at a time, the most
promising first, and keeps each flip that makes the routine faster.

Arms run on memory apart from the context's, and are sampled in turn with the fastest one. An arm
loses, whatever the cause, if it fails to compile or to run, exceeds a limit on memory, or differs
from the default's results by more than reordered sums may.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from math import prod
from statistics import median
from typing import Any

import numpy as np

from ocannl_core.backend.protocols import Buffer, Executable, HostBuffer
from ocannl_core.base import settings
from ocannl_core.base.errors import OcannlError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.compile import trial_memory
from ocannl_core.compile.memory_plan import memory_plan
from ocannl_core.compile.placements.placement_cache import apply_result, placement_cache
from ocannl_core.compile.placements.placement_candidates import (
    Generate,
    PlacementCandidate,
    find_candidates,
)
from ocannl_core.compile.placements.report import Arm, PlacementTuning, report
from ocannl_core.compile.stages import CompileRequest, GeneratedCode
from ocannl_core.compile.tuned_placements import PlacementResult, describe_in_line
from ocannl_core.ir.host_arrays import Array, memory_of
from ocannl_core.ir.loops.nodes import LoopProgram
from ocannl_core.ir.loops.ranges import ranges_of
from ocannl_core.ir.loops.usage import usage_of
from ocannl_core.ir.node import MemoryMode, NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import Kind
from ocannl_core.passes.loops.accesses import analyze_accesses
from ocannl_core.passes.loops.recompute_in_budget import needed_bytes
from ocannl_core.schedule.cost_model import program_cycles

_MOST_WORK = 8
"""Arms with more than this many times the default's estimated cycles are not run."""
_TOO_SLOW = 2
"""Arms that take more than this many times as long as the fastest are not sampled."""
_MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Winner:
    """The fastest placements of a search, compiled."""

    request: CompileRequest
    code: GeneratedCode
    executable: Executable


@dataclass(frozen=True, slots=True, eq=False)
class _Variant:
    """The routine with some flips."""

    flips: frozenset[PlacementCandidate]
    code: GeneratedCode
    executable: Executable
    trial: trial_memory.Trial
    """The code on memory of its own."""


class _ArmError(Exception):
    """The reason why an arm loses without being timed."""


def search_placements(
    request: CompileRequest,
    generate: Generate,
    budget: float,
    *,
    memory: Mapping[TensorNode, Buffer] | None = None,
    in_use: int = 0,
    again: bool = False,
) -> tuple[Winner | None, PlacementTuning]:
    """Search for the placements of a program and add them to the tuning cache.

    If the cache cannot be written, they are lost to other programs after a warning.

    Args:
        budget: The seconds to spend, about; one arm is always tried.
        memory: The memory of its parameters, which is copied; by default numbers are made up.
        in_use: The bytes of the device that other memory takes.
        again: True to repeat a complete search.

    Returns:
        The fastest placements, None where nothing was tried or they are in force; the report.
    """
    start = time.perf_counter()
    known = placement_cache(request.target).find(request)
    plain = replace(request, tuned=None)

    def tuning(
        found: PlacementResult,
        candidates: int,
        tried: Sequence[Arm] = (),
        left: int = 0,
        **facts: Any,
    ) -> PlacementTuning:
        name, spent = request.lowered.name, time.perf_counter() - start
        times = found.default_seconds, found.seconds
        arms = tuple(tried)
        return PlacementTuning(
            name, candidates, *times, found.flips, arms, left, budget, spent, **facts
        )

    if known is not None and known.is_complete and not again:
        is_used = request.tuned is not None and request.tuned.measured == known
        winner = None if is_used else _compiled(apply_result(plain, known), generate)
        return winner, tuning(known, known.candidates, is_known=True)
    nothing = PlacementResult((), 0.0, 0.0, 0)
    code, candidates = find_candidates(plain, generate)
    search = _Search(plain, generate, code, candidates, start + budget, in_use)
    try:
        search.begin(memory)
    except _ArmError as error:
        failed = tuning(nothing, len(candidates), problem=str(error))
        report(failed)
        return None, failed
    measured = search.run() if candidates else None
    if measured is not None:
        placement_cache(plain.target).keep(plain, measured)
    found = tuning(measured or nothing, len(candidates), search.arms, search.left)
    report(found)
    if measured is None:
        return None, found
    best = search.best
    return Winner(apply_result(plain, measured), best.code, best.executable), found


def _compiled(request: CompileRequest, generate: Generate) -> Winner:
    code = generate(request)
    return Winner(request, code, request.backend.compile(code.source, request.target))


@dataclass(slots=True, eq=False)
class _Search:
    """The search for the fastest placements of one program."""

    request: CompileRequest
    generate: Generate
    code: GeneratedCode
    candidates: Sequence[PlacementCandidate]
    """The nodes that may be flipped, the most promising first."""
    end: float
    """The time at which the budget is spent."""
    in_use: int
    """The bytes of the device that other memory takes."""
    arms: list[Arm] = field(default_factory=list)
    left: int = 0
    """The number of candidates that were not flipped in the end, for lack of time."""
    best: _Variant = field(init=False)
    _default: _Variant = field(init=False)
    _memory: trial_memory.TrialMemory = field(init=False)
    _expected: list[Array] = field(init=False)
    _copies: int = 0
    _arm_seconds: float = 0.0
    _run_seconds: float = 0.0
    _cycles: int = 0

    def begin(self, memory: Mapping[TensorNode, Buffer] | None) -> None:
        """Compile the default and run it once."""
        plan, lowered = self.code.plan, self.request.lowered
        usage = usage_of(lowered)
        values = trial_memory.index_values(plan.indices, usage.limits)
        if values is None:
            raise _ArmError("no values of its static indices were found")
        random, known = np.random.default_rng(0), memory or {}
        initial: dict[TensorNode, Buffer] = {
            node: known[node] if node in known else _made_up(random, plan.nodes[node])
            for node in plan.params
        }
        contents = trial_memory.Contents(
            plan.nodes,
            initial,
            [node for node in plan.params if node in usage.writes],
            [node for node in plan.params if node in usage.writes & usage.reads_first],
            self.code.program.usage.merged,
            _most_terms(lowered),
        )
        self._copies = sum(plan.nodes[node].nbytes for node in (*initial, *contents.merged))
        self._cycles = _cycles(self.code)
        try:
            self._memory = trial_memory.TrialMemory(
                contents, values, self.request.backend, self.request.target
            )
        except (OcannlError, MemoryError) as error:
            raise _ArmError(describe_in_line(error)) from None
        self._default = self.best = self._variant(frozenset(), self.code)
        try:
            self._expected = self._memory.results(self._default.trial)
        except Exception as error:
            raise _ArmError(f"the default does not run: {describe_in_line(error)}") from None

    def run(self) -> PlacementResult:
        """Return the fastest placements with their time and the default's."""
        virtual = [each for each in self.candidates if each.flip.mode is MemoryMode.LOCAL]
        if len(virtual) > 1:
            self._try("all stored", frozenset(virtual))
        tried, is_improved = {self.best.flips}, True
        while is_improved and self.left == 0:
            is_improved = False
            for position, candidate in enumerate(self.candidates):
                flips = self.best.flips ^ {candidate}
                if flips in tried:
                    continue
                if self.arms and not self._has_time():
                    self.left = len(self.candidates) - position
                    break
                tried.add(flips)
                mode = candidate.flip.mode
                is_back = candidate in self.best.flips
                title = f"{candidate.flip.name} {'by default' if is_back else mode.value}"
                is_improved |= self._try(title, flips)
        default, best = self._compare_with_default()
        kept = tuple(each.flip for each in self.candidates if each in self.best.flips)
        is_complete = self.left == 0
        count = len(self.arms) + 1
        return PlacementResult(kept, best, default, count, len(self.candidates), is_complete)

    def _compare_with_default(self) -> tuple[float, float]:
        """Return the least times of the default and of the fastest placements, which are the
        default where the others do not save more than the margin.

        Whole routines are sampled twice as often as kernels: where threads of other programs take
        turns with the routine's runs, few samples of it run on all cores.
        """
        rounds = 2 * trial_memory.LAST_ROUNDS
        if self.best is self._default:
            (seconds,) = self._memory.least_times([self._default.trial], rounds)
            return seconds, seconds
        default, best = self._memory.samples([self._default.trial, self.best.trial], rounds)
        if _saves(trial_memory.MARGIN, default, best):
            return min(default), min(best)
        self.best = self._default
        return min(default), min(default)

    def _has_time(self) -> bool:
        """Return True if another arm and the last comparison fit into the budget, about."""
        last = 4 * trial_memory.LAST_ROUNDS * max(trial_memory.SAMPLE_SECONDS, self._run_seconds)
        return time.perf_counter() + self._arm_seconds + last < self.end

    def _try(self, title: str, flips: frozenset[PlacementCandidate]) -> bool:
        """Time an arm beside the fastest; return True if it replaces it."""
        start = time.perf_counter()
        try:
            variant = self._variant(flips, self.generate(self._request_of(flips)))
            self._verify(variant)
            trials = [self.best.trial, variant.trial]
            before, found = self._memory.samples(trials, trial_memory.ROUNDS)
            if _saves(trial_memory.STEP, before, found):  # once more, as noise must not lead it
                before, found = self._memory.samples(trials, trial_memory.ROUNDS)
        except Exception as error:  # a failure of any stage is no reason to end the program
            problem = str(error) if isinstance(error, _ArmError) else describe_in_line(error)
            self.arms.append(Arm(title, None, None, problem))
            return False
        self._arm_seconds = time.perf_counter() - start
        self.arms.append(Arm(title, min(found), min(before)))
        if not _saves(trial_memory.STEP, before, found):
            return False
        self.best = variant
        return True

    def _request_of(self, flips: frozenset[PlacementCandidate]) -> CompileRequest:
        chosen = tuple(each.flip for each in flips)
        return apply_result(self.request, PlacementResult(chosen, 0.0, 0.0, 0))

    def _variant(self, flips: frozenset[PlacementCandidate], code: GeneratedCode) -> _Variant:
        """Return code linked with memory of its own."""
        for each in flips:
            placement = code.program.placements[each.node]
            if placement.mode is not each.flip.mode:
                name, mode = each.flip.name, placement.mode.value
                raise _ArmError(f"{name} stays {mode}, because {placement.why}")
        added = set(code.plan.params) - set(self.code.plan.params)
        if added:
            names = ", ".join(sorted(node.name for node in added))
            raise _ArmError(f"it reads {names}, which the default does not")
        text = self.request.backend.text
        if flips and text(code.source) == text(self.best.code.source):
            raise _ArmError("the code is the same")
        if _cycles(code) > _MOST_WORK * self._cycles:
            times = _cycles(code) / max(1, self._cycles)
            raise _ArmError(f"it is estimated at {times:.0f} times the work")
        self._check_memory(code)
        backend, target, plan = self.request.backend, self.request.target, code.plan
        executable = backend.compile(code.source, target)
        trial = self._memory.link(executable, plan.params, plan.indices)
        return _Variant(flips, code, executable, trial)

    def _check_memory(self, code: GeneratedCode) -> None:
        """Raise _ArmError if code takes more memory than settings allow."""
        chosen, own = settings.current(), memory_plan(code.plan).nbytes
        if chosen.device_memory is not None:
            room = chosen.device_memory * _MEBIBYTE - self.in_use - self._copies
            if own > room:
                raise _ArmError(
                    f"it takes {own:,} bytes of its own, and device_memory leaves {max(0, room):,}"
                )
        if chosen.memory_budget is not None and code is not self.code:
            needed = needed_bytes(code.program.loops)
            if needed > max(chosen.memory_budget, needed_bytes(self.code.program.loops)):
                raise _ArmError(
                    f"it takes {needed:,} bytes for values of its own, and memory_budget allows "
                    f"{chosen.memory_budget:,}"
                )

    def _verify(self, variant: _Variant) -> None:
        """Raise _ArmError if the results of an arm are not the default's, or it is far slower."""
        if not self._memory.agree(self._expected, self._memory.results(variant.trial)):
            raise _ArmError("its results differ by more than reordered sums may")
        fastest = min(self._memory.run(self.best.trial) for _ in range(2))
        self._run_seconds = fastest
        seconds = min(self._memory.run(variant.trial) for _ in range(2))
        if seconds > _TOO_SLOW * fastest + 1e-4:
            raise _ArmError(f"it takes {seconds / fastest:.1f} times as long")


def _saves(margin: float, before: Sequence[float], found: Sequence[float]) -> bool:
    """Return True if the least and the median of some samples are below those of others by more
    than a fraction. The median keeps a single lucky sample from deciding.
    """
    limit = 1 - margin
    return min(found) < limit * min(before) and median(found) < limit * median(before)


def _cycles(code: GeneratedCode) -> int:
    return program_cycles(code.program.loops.body, code.program.loops.all_nodes)


def _made_up(random: np.random.Generator, info: NodeInfo) -> HostBuffer:
    """Return cells for a node without a value: floats in (0, 1], whose quotients and logarithms
    are finite, and integers that are positions of most axes.
    """
    if info.dtype.kind is Kind.FLOAT:
        cells: Array = (random.integers(1, 17, info.buffer_dims) / 16).astype(info.dtype.numpy)
    else:
        cells = random.integers(0, 2, info.buffer_dims).astype(info.dtype.numpy)
    return HostBuffer(memory_of(cells, info), info)


def _most_terms(program: LoopProgram) -> int:
    """Return the approximate number of terms that all sums of a program have behind one another."""
    accesses = analyze_accesses(program)
    lengths = [
        prod(values.extent for values in ranges_of(site.loops).values()) // max(1, facts.info.size)
        for facts in accesses.nodes.values()
        for _, site in facts.writes
    ]
    return 8 * max(1, sum(lengths))
