"""Random programs with long axes: results of C are within a bound of the exact ones.

    python -m tests.fuzz.run --sized --count 1000 --seed 1
    python -m tests.fuzz.run --sized --count 100 --seed 2 --sanitize

Every case is compiled with random settings: with schedules and without, for one thread and for two,
for the caches of this machine and for small ones. A failure is reduced to a small program, which
is printed as a script to run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from math import isfinite
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import numpy as np

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.target import Target
from ocannl_core.schedule.rules.decision import ScheduleDecision
from ocannl_core.schedule.tuning.schedule_candidates import first_candidates, neighbors
from tests.support.schedules import contraction_schedule

from ..contraction import Undetermined
from ..grid import TooLarge
from ..limits import Hang, limited
from . import bounds
from .author import case_of
from .bounds import FORMATS, Array, Bounded
from .operations import BoundedCells, Slope, evaluate, pull_back
from .programs import Given, SizedCase, differentiable, shapes_of, smaller_cases

SECONDS = 240
SECONDS_TO_SHRINK = 240
PROGRESS = 100
"""The number of cases between two lines of progress."""
CACHES = ((2 << 10, 16 << 10, 64 << 10), (1 << 10, 4 << 10, 8 << 10), (8 << 10, 64 << 10, 1 << 20))
"""Small caches, so that the schedules of large tensors apply to smaller ones."""
MOST_TRIED = 20
SHORT_OF_RANGE = "Arithmetic on margins needs a format with infinities."
"""The refusal of maxima over windows that leave an axis, in integers and `float8_e4m3fn`."""
FARTHEST = 2
"""The largest number of steps from the default schedule to a drawn one."""


@dataclass(frozen=True)
class Setup:
    """Settings and schedules of a compilation.

    Attributes:
        overrides: Settings.
        keep: `default`, `all` or `none`.
        caches: The sizes of the caches for schedules; None for those of this machine.
        drawn: The seed of schedules drawn from the candidates of a search; None for the default
            ones.
    """

    overrides: tuple[tuple[str, object], ...] = ()
    keep: str = "default"
    caches: tuple[int, ...] | None = None
    drawn: int | None = None

    def with_override(self, name: str, value: object) -> Setup:
        return replace(self, overrides=tuple({**dict(self.overrides), name: value}.items()))


@dataclass(frozen=True)
class CaseOutcome:
    """Result of a case; `agrees`, `too large` and `refused` are no failures.

    Attributes:
        kind: The kind of failure.
        detail: The failure.
        tight: The share of the compared cells whose bound is small beside the tensor.
    """

    kind: str
    detail: str = ""
    tight: float = 0.0

    @property
    def is_failure(self) -> bool:
        return self.kind not in ("agrees", "too large", "refused")

    @property
    def signature(self) -> str:
        is_error = self.kind == "exception"
        return self.detail.partition(":")[0] if is_error else self.kind


def setups_of(seed: int, number: int) -> list[Setup]:
    """Return how a case is compiled: with a schedule, and in other ways."""
    random = Random(f"setups {seed} {number}")
    chosen: dict[str, object] = {
        "threads": random.choice([1, 2]),
        "contract": random.random() < 0.7,
        "max_visits": random.choice([1, 1, 1, 0, 3]),
        "inline_complex_computations": random.random() < 0.15,
        "accumulation": random.choice(["float32", "float32", "float32", "exact", "fast"]),
        "tune": "off",
    }
    caches = random.choice([None, *CACHES])
    arch = random.choice(["native", "native", "native", "x86-64-v3", "x86-64"])
    first = Setup(
        tuple({**chosen, "cpu_c__arch": arch}.items()),
        random.choice(["default", "default", "all", "none"]),
        caches,
        random.randrange(10**6) if number % 4 == 2 else None,
    )
    found = [first]
    if number % 4 == 0:
        found.append(first.with_override("schedule", "none"))
    if number % 4 == 1:
        other = 3 - int(str(chosen["threads"]))
        found.append(first.with_override("threads", other))
    return found


@dataclass(frozen=True)
class ExpectedResults:
    """Expected results of a case: tensors after the last call, and shapes."""

    values: dict[str, Bounded]
    gradients: dict[str, Bounded]


def expected_of(case: SizedCase, *, is_wide: bool = True) -> ExpectedResults:
    """Return the results of a case with their bounds.

    Args:
        is_wide: Sums of narrow floats are added up in float32 and rounded once.

    Raises:
        TooLarge: if there is too much to enumerate.
    """
    shapes = shapes_of(case.program)
    leaves = {
        leaf.name: BoundedCells(bounds.exact(leaf.array(), FORMATS[leaf.format]), leaf.shape)
        for leaf in case.program.leaves
        if isinstance(leaf, Given)
    }
    state: dict[str, Bounded] = {}
    values: dict[str, BoundedCells] = {}
    gradients: dict[str, Bounded] = {}
    for _ in range(case.calls):
        values = dict(leaves)
        for step in case.program.expanded:
            operands = [values[name] for name in step.operands]
            whole, _, _ = step.name.partition(".")
            values[step.name] = evaluate(step.call, operands, shapes[whole], is_wide=is_wide)
        if case.training is not None:
            gradients = _gradients(case, values, is_wide=is_wide)
            for name in case.updated:
                own = leaves[name]
                updated = _updated(case.training.rule, name, own.cells, gradients[name], state)
                leaves[name] = replace(own, cells=updated)
    found = {name: cells.cells for name, cells in values.items()}
    found |= {name: leaves[name].cells for name in case.compared}
    return ExpectedResults(found, gradients)


def _gradients(
    case: SizedCase, values: dict[str, BoundedCells], *, is_wide: bool
) -> dict[str, Bounded]:
    assert case.training is not None
    slopes = {}
    for name, value in values.items():
        form = value.cells.format
        narrow = form if is_wide and form.is_narrow else None
        slopes[name] = Slope(value.cells.value.shape, narrow)
    for name in case.training.losses:
        loss = values[name].cells
        ones = bounds.exact(np.ones(loss.value.shape), loss.format)
        slopes[name].add(np.arange(loss.value.size), ones)
    reached = set(case.training.losses)
    for step in reversed(case.program.expanded):
        if step.name not in reached:
            continue
        reached.update(differentiable(step))
        result = values[step.name]
        gradient = slopes[step.name].total(result.cells.format)
        operands = [values[name] for name in step.operands]
        pull_back(step.call, operands, result, gradient, [slopes[name] for name in step.operands])
    return {name: slopes[name].total(values[name].cells.format) for name in sorted(case.params)}


def _updated(
    rule: str, name: str, p: Bounded, gradient: Bounded, state: dict[str, Bounded]
) -> Bounded:
    def times(factor: float, a: Bounded) -> Bounded:
        return bounds.mul(bounds.exact(np.full(a.value.shape, factor), a.format), a)

    def kept(what: str) -> Bounded:
        return state.get(f"{name} {what}", bounds.exact(np.zeros(p.value.shape), p.format))

    if rule == "none":
        return p
    if rule == "sgd":
        delta = bounds.add(gradient, times(0.25, p))
        velocity = bounds.add(times(0.5, kept("velocity")), delta)
        state[f"{name} velocity"] = velocity
        return bounds.sub(p, times(0.125, velocity))
    mean = bounds.add(times(0.75, kept("mean")), times(0.25, gradient))
    squared = bounds.mul(gradient, gradient)
    square = bounds.add(times(0.875, kept("square")), times(0.125, squared))
    state[f"{name} mean"], state[f"{name} square"] = mean, square
    one = bounds.exact(np.ones(p.value.shape), p.format)
    return bounds.sub(p, bounds.div(times(0.125, mean), bounds.sqrt(bounds.add(square, one))))


def outcome_of(case: SizedCase, setups: Sequence[Setup], seconds: int = SECONDS) -> CaseOutcome:
    """Return the outcome of a case that is compiled in several ways."""
    try:
        with limited(seconds), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # labels that are summed at once are meant here
            return _judged(case, setups)
    except Hang:
        return CaseOutcome("hang", f"more than {seconds} seconds")
    except (TooLarge, Undetermined):
        return CaseOutcome("too large")
    except oc.LoweringError as error:
        if SHORT_OF_RANGE in str(error):
            return CaseOutcome("refused")
        return CaseOutcome("exception", f"{type(error).__name__}: {error}")
    except Exception as error:
        return CaseOutcome("exception", f"{type(error).__name__}: {error}")


def _judged(case: SizedCase, setups: Sequence[Setup]) -> CaseOutcome:
    models = {is_wide: expected_of(case, is_wide=is_wide) for is_wide in map(_sums_wide, setups)}
    tight = total = 0
    found: list[dict[str, Array]] = []
    for setup in setups:
        expected = models[_sums_wide(setup)]
        results = run(case, setup)
        found.append(results)
        for name, cells in results.items():
            right = _right(case, expected, name)
            wrong = difference(name, cells, right)
            if wrong:
                return CaseOutcome("shape" if "shape" in wrong else "value", f"{setup}\n{wrong}")
            tight += int((right.error <= 2.0**-8 * _scale(right)).sum())
            total += right.value.size
    for setup, results in zip(setups[1:], found[1:], strict=True):
        if _must_be_same_bits(case, setups[0], setup):
            for name, cells in results.items():
                if cells.tobytes() != found[0][name].tobytes():
                    count = int((cells != found[0][name]).sum())
                    return CaseOutcome(
                        "bits", f"{setups[0]}\n{setup}\n{name}: {count} cells differ"
                    )
    return CaseOutcome("agrees", tight=tight / max(1, total))


def _sums_wide(setup: Setup) -> bool:
    """Return whether all sums of narrow floats are added up in float32."""
    stated = dict(setup.overrides)
    return stated.get("accumulation") != "exact" and stated.get("schedule") != "none"


def _must_be_same_bits(case: SizedCase, one: Setup, other: Setup) -> bool:
    """True where all that two ways of compiling differ in changes no bits."""
    here, there = dict(one.overrides), dict(other.overrides)
    differ = {name for name in here | there if here.get(name) != there.get(name)}
    return differ <= {"threads"} and replace(one, overrides=()) == replace(other, overrides=())


def _right(case: SizedCase, expected: ExpectedResults, name: str) -> Bounded:
    base, _, what = name.partition(".")
    return expected.gradients[base] if what else expected.values[base]


def _scale(right: Bounded) -> float:
    finite = np.abs(right.value[np.isfinite(right.value)])
    return float(finite.max(initial=0.0))


def difference(name: str, cells: Array, right: Bounded) -> str:
    """Return the difference of cells as text; empty if there is none."""
    if cells.shape != right.value.shape:
        return f"{name} has the shape {cells.shape} instead of {right.value.shape}"
    if cells.dtype.name != right.format.name:
        return f"{name} has the format {cells.dtype} instead of {right.format.name}"
    if right.format.is_integer:
        wrong = (cells.astype(np.int64) != right.value) & (right.error == 0)
        distance = np.abs(cells.astype(np.int64) - right.value).astype(np.float64)
    else:
        wide = cells.astype(np.float64)
        with np.errstate(all="ignore"):
            distance = np.where(wide == right.value, 0.0, np.abs(wide - right.value))
        wrong = ~(distance <= right.error) & np.isfinite(right.error)
    if not wrong.any():
        return ""
    first = tuple(int(axis[0]) for axis in np.nonzero(wrong))
    return (
        f"{name}: {int(wrong.sum())} of {cells.size} cells are wrong, the first at {first}: "
        f"{cells[first]} instead of {right.value[first]} +- {right.error[first]:.3g}; "
        f"the greatest distance is {np.max(distance[wrong]):.3g}"
    )


def run(case: SizedCase, setup: Setup) -> dict[str, Array]:
    """Return all that can be read after the last call, by name; gradients as `name.grad`."""
    names: dict[str, Any] = {"oc": oc, "np": np}
    with ExitStack() as stack:
        stack.enter_context(oc.Session(seed=7))
        stack.enter_context(settings.overrides(**dict(setup.overrides)))
        if setup.caches is not None:
            path = "ocannl_cpu_c.devices._cache_bytes"
            stack.enter_context(mock.patch(path, return_value=setup.caches))
        if setup.drawn is not None:
            # cached code has other schedules
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            stack.enter_context(settings.overrides(cache_dir=folder))
            path = "ocannl_core.passes.kernels.schedule_kernels.decide_on_processor"
            stack.enter_context(mock.patch(path, drawn_schedules(setup.drawn)))
        exec(compile(case.source(), "<program>", "exec"), names)
        context = oc.Context("cpu_c")
        wanted = _wanted(case, setup.keep)
        keep = [
            names[name.removesuffix(".grad")].grad if name.endswith(".grad") else names[name]
            for name in wanted
        ]
        step = context.compile(names["code"], keep=None if setup.keep == "default" else keep)
        for leaf in case.program.leaves:
            if isinstance(leaf, Given) and leaf.kind != "tensor":
                context[names[leaf.name]] = leaf.array()
        for _ in range(case.calls):
            step()
        found = {}
        for name in [*wanted, *case.compared]:
            tensor = names[name.removesuffix(".grad")]
            found[name] = np.array(context[tensor.grad if name.endswith(".grad") else tensor])
        return found


def drawn_schedules(seed: int) -> Callable[[Nest, NodeInfos, Target], ScheduleDecision]:
    """Return a rule that takes any of the schedules near the default one."""
    random = Random(seed)

    def schedule(nest: Nest, nodes: NodeInfos, target: Target) -> ScheduleDecision:
        candidates = first_candidates(nest, nodes, target)
        if not candidates:
            return ScheduleDecision(contraction_schedule(nest, nodes, target))
        found = candidates[0]
        for _ in range(FARTHEST):
            count = random.randint(1, MOST_TRIED)
            found = [found, *islice(neighbors(nest, nodes, target, found), count)][-1]
        return ScheduleDecision(found.schedule)

    return schedule


def _wanted(case: SizedCase, keep: str) -> list[str]:
    if keep == "none":
        return (
            [] if case.training is not None and case.training.rule != "none" else case.program.roots
        )
    steps = [step.name for step in case.program.steps]
    gradients = [f"{name}.grad" for name in case.params]
    return [*(case.program.roots if keep == "default" else steps), *gradients]


def reduced(
    case: SizedCase, setups: Sequence[Setup], outcome: CaseOutcome
) -> tuple[SizedCase, list[Setup]]:
    """Return the smallest case found, and the fewest settings, that fail in the same way."""
    until = time.monotonic() + SECONDS_TO_SHRINK

    def fails(candidate: SizedCase, ways: Sequence[Setup]) -> bool:
        if time.monotonic() > until:
            return False
        found = outcome_of(candidate, ways, 30)
        return found.is_failure and found.signature == outcome.signature

    ways = list(setups)
    for setup in setups:
        if len(ways) > 1 and fails(case, [setup]):
            ways = [setup]
    ways = _plainest(case, ways, fails)
    progress = True
    while progress:
        progress = False
        for candidate in smaller_cases(case):
            if fails(candidate, ways):
                case, progress = candidate, True
                break
    return case, _plainest(case, ways, fails)


def _plainest(case: SizedCase, ways: list[Setup], fails: Any) -> list[Setup]:
    """Return ways to compile with fewer settings that still fail."""
    for name in {name for setup in ways for name, _ in setup.overrides}:
        if name != "tune":
            without = [
                replace(s, overrides=tuple(o for o in s.overrides if o[0] != name)) for s in ways
            ]
            if fails(case, without):
                ways = without
    for change in ({"caches": None}, {"keep": "default"}, {"drawn": None}):
        plainer = [replace(setup, **change) for setup in ways]
        if plainer != ways and fails(case, plainer):
            ways = plainer
    return ways


def report(
    seed: int, number: int, case: SizedCase, setups: Sequence[Setup], outcome: CaseOutcome
) -> str:
    """Return a failure as text: the failure of the smallest case, and the case."""
    small, ways = reduced(case, setups, outcome)
    again = outcome_of(small, ways, 60)
    told = again if again.is_failure else outcome
    detail = "\n".join(f"# {line[:1000]}" for line in told.detail.splitlines())
    keep = None if ways[0].keep == "default" else _wanted(small, ways[0].keep)
    script = small.script(dict(ways[0].overrides), keep)
    return f"# ----- case {number} of seed {seed}: {outcome.kind}\n{detail}\n# {ways}\n{script}\n"


def run_many(seed: int, first: int, count: int, stop_after: int, *, reduce: bool = True) -> int:
    """Run cases and print failures and counts; return how many failed."""
    kinds: Counter[str] = Counter()
    tight = 0.0
    failures = 0
    started = time.monotonic()
    for number in range(first, first + count):
        if (number - first) % PROGRESS == PROGRESS - 1:
            print(f"{number - first + 1} cases: {dict(kinds)}", file=sys.stderr, flush=True)
        case, setups = case_of(seed, number), setups_of(seed, number)
        outcome = outcome_of(case, setups)
        kinds[outcome.kind] += 1
        tight += outcome.tight if isfinite(outcome.tight) else 0.0
        if outcome.is_failure:
            failures += 1
            if reduce:
                print(report(seed, number, case, setups, outcome), flush=True)
            else:
                print(
                    f"case {number} of seed {seed}: {outcome}\n{setups}\n{case.source()}",
                    flush=True,
                )
            if failures >= stop_after:
                break
    share = tight / max(1, kinds["agrees"])
    print(f"{dict(kinds)} in {time.monotonic() - started:.0f} s, {share:.0%} of cells told tightly")
    return failures


def run_sanitized(seed: int, first: int, count: int, stop_after: int) -> int:
    """Run cases in a process whose kernels the address and undefined-behavior sanitizers watch.

    Little is optimized there: the compiler takes several times as long with sanitizers.
    """
    compiler = shutil.which("gcc")
    if compiler is None:
        print("sanitizers need gcc")
        return 1
    library = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        watched = Path(folder) / "gcc-watched"
        watched.write_text(
            # the compiler itself is not watched
            f'#!/bin/sh\nunset LD_PRELOAD\nexec {compiler} "$@" -g1 -O1 -fsanitize=address,undefined '
            "-fno-sanitize-recover=all\n",
            encoding="utf-8",
        )
        watched.chmod(0o755)
        env = os.environ | {
            "LD_PRELOAD": library,
            "ASAN_OPTIONS": "detect_leaks=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "OCANNL_CPU_C__CC": str(watched),
            "OCANNL_CACHE_DIR": folder,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        command = [
            sys.executable,
            "-u",
            "-m",
            __name__ if __name__ != "__main__" else "tests.fuzz.sized.run",
        ]
        command += ["--seed", str(seed), "--first", str(first), "--count", str(count)]
        command += ["--stop-after", str(stop_after), "--as-found"]
        return subprocess.run(command, env=env, cwd=Path(__file__).parents[3]).returncode


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases that the command line selects; return 1 if there were failures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=200, help="how many cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--stop-after", type=int, default=10, help="how many failures to report")
    parser.add_argument("--sanitize", action="store_true", help="watch accesses to memory")
    parser.add_argument("--as-found", action="store_true", help="do not reduce failures")
    given = parser.parse_args(arguments)
    if given.sanitize:
        return run_sanitized(given.seed, given.first, given.count, given.stop_after)
    failures = run_many(
        given.seed, given.first, given.count, given.stop_after, reduce=not given.as_found
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
