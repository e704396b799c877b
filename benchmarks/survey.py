"""Every public operation and block beside PyTorch eager: forward, and with gradients.

    survey.py --results FILE [--only TEXT] [--threads 2]    measure the rows that the file lacks
    survey.py --results FILE --above 1.0                    measure the slower rows again
    survey.py --results FILE --print                        only the tables

Both contenders compute on the same arguments, in turn, in one process; results of operations must
agree. The least time of each counts. A gradient of a weighted sum of the results is to the
arguments that are floats, and to the parameters of a block.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import harness  # before NumPy: it limits the threads

import numpy as np  # isort: skip

from survey_cases import Arrays, Case, all_cases, title
from survey_cases.compiled import cell_weights, compile_case

import ocannl_core as oc

_SAMPLE_SECONDS = 0.004
_MOST_SECONDS = 0.5
_ROUNDS = (5, 40)
_TOLERANCE = 2e-4

_COPIED = "PyTorch's gradients are views of one array, ours cells of their own"
_FOLLOWED = "finds the last of equal positions, so that gradients reach the cells that stayed"
REASONS: dict[str, str] = {
    "put and gradients": _FOLLOWED,
    "put_along and gradients": _FOLLOWED,
    "bitcast": "PyTorch's is a view, ours cells of their own",
    "stack along the first axis and gradients": _COPIED,
    "concat along the first axis and gradients": _COPIED,
    "group_norm and gradients": "several passes over rows of 8 channels, half of a register",
    "cast": "rounds one register of cells at a time, and stores half of one",
    "uniform": "each cell hashes a counter of its own: any number of threads draws the same",
    "normal": "hashes two words for each number",
    "gelu": "without AVX-512, a coefficient is looked up in two registers",
}
"""The reasons of ratios above 1.1, by the beginning of a row's name."""

MOST_WITHOUT_REASON = 1.1


@dataclass(frozen=True, slots=True)
class Row:
    """The least seconds of one case at one shape.

    Attributes:
        name: The case, and whether gradients are computed.
        shape: The shapes of its arguments.
        threads: The threads of each contender.
        own: The seconds of this project.
        torch: The seconds of PyTorch.
        failed: The error, if there was one.
    """

    name: str
    shape: str
    threads: int
    own: float = 0.0
    torch: float = 0.0
    failed: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        return self.name, self.shape, self.threads

    @property
    def ratio(self) -> float:
        return self.own / self.torch if self.torch else float("nan")

    def with_run(self, other: Row) -> Row:
        """Return the quieter one of two runs: the times of a run belong together."""
        if other.failed or self.failed:
            return other
        return min(self, other, key=lambda row: row.own + row.torch)


@dataclass(frozen=True, slots=True)
class _Contender:
    """One of the two.

    Attributes:
        run: Does the work once.
        results: Returns the result, then the gradients to the arguments.
    """

    run: Callable[[], Any]
    results: Callable[[], list[Any]]


def _own(case: Case, arrays: Arrays, gradients: bool, backend: str | None) -> _Contender:
    with oc.Session():
        routine, context, kept = compile_case(case, arrays, gradients, backend)
    return _Contender(routine, lambda: [np.array(context[each]) for each in kept])


def _torch(case: Case, arrays: Arrays, gradients: bool) -> _Contender:
    import torch

    torch.set_num_threads(harness.THREADS)
    torch.manual_seed(0)
    arguments = {
        name: torch.from_numpy(cells).requires_grad_(gradients and cells.dtype.kind == "f")
        for name, cells in arrays.items()
    }
    if case.module is not None:
        apply = case.module(torch, *arguments.values())
        prepare = getattr(apply, "prepare", None)
        if prepare is not None:
            arguments = {name: prepare(each) for name, each in arguments.items()}
        parameters = list(apply.parameters())
    else:
        assert case.torch is not None
        chosen = case.torch
        parameters = []

        def apply(*arguments: Any) -> Any:
            return chosen(torch, *arguments)

    operands = tuple(arguments.values())
    if not gradients:

        def evaluate() -> Any:
            with torch.no_grad():
                return apply(*operands)

        return _Contender(evaluate, lambda: [evaluate().float().numpy()])
    wanted = [each for each in arguments.values() if each.requires_grad]
    weights = torch.from_numpy(cell_weights(tuple(apply(*operands).shape)))

    def differentiate() -> Any:
        for each in (*wanted, *parameters):
            each.grad = None
        value = apply(*operands)
        value.backward(weights)
        return value

    def results() -> list[Any]:
        value = differentiate()
        return [value.detach().numpy(), *(each.grad.numpy() for each in wanted)]

    return _Contender(differentiate, results)


def measure(case: Case, arrays: Arrays, name: str, gradients: bool, backend: str | None) -> Row:
    """Return the row of a case at one shape; that of an error if one contender fails."""
    shape = title(arrays)
    try:
        pair = _own(case, arrays, gradients, backend), _torch(case, arrays, gradients)
        if case.module is None and not case.is_random:
            _check(pair)
    except Exception as error:
        reason = str(error).strip().splitlines()
        return Row(name, shape, harness.THREADS, failed=f"{type(error).__name__}: {reason[:3]}")
    own, torch = _least_seconds(pair)
    return Row(name, shape, harness.THREADS, own, torch)


def _check(pair: tuple[_Contender, _Contender]) -> None:
    """Raise ValueError if results differ; those of random numbers cannot be equal."""
    pair[0].run()
    for at, (ours, theirs) in enumerate(zip(pair[0].results(), pair[1].results(), strict=True)):
        theirs = theirs.reshape(ours.shape).astype(np.float64)
        scale = max(float(np.abs(theirs).max(initial=0.0)), 1.0)
        worst = float(np.abs(ours - theirs).max(initial=0.0))
        if not worst <= _TOLERANCE * scale:
            raise ValueError(f"array {at} differs by {worst / scale:.1e}")


def _least_seconds(pair: tuple[_Contender, _Contender]) -> tuple[float, float]:
    """Return the least seconds of both, sampled in turn."""
    counts = [_repetitions(each.run) for each in pair]
    least = [float("inf")] * 2
    fewest, most = _ROUNDS
    end = time.perf_counter() + _MOST_SECONDS
    gc.collect()
    gc.disable()
    try:
        for number in range(most):
            if number >= fewest and time.perf_counter() > end:
                break
            for at in (0, 1) if number % 2 else (1, 0):
                run, count = pair[at].run, counts[at]
                if harness.THREADS > 1:  # threads of the other one are waiting actively
                    time.sleep(harness.PAUSE_SECONDS)
                    run()
                start = time.perf_counter()
                for _ in range(count):
                    run()
                least[at] = min(least[at], (time.perf_counter() - start) / count)
    finally:
        gc.enable()
    return least[0], least[1]


def _repetitions(run: Callable[[], Any]) -> int:
    run()
    run()
    start = time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    return max(1, round(_SAMPLE_SECONDS / max(seconds, 1e-7)))


def read(file: Path) -> dict[tuple[str, str, int], Row]:
    """Return the rows of a file, each in its quietest run."""
    rows: dict[tuple[str, str, int], Row] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        row = Row(**json.loads(line))
        rows[row.key] = rows[row.key].with_run(row) if row.key in rows else row
    return rows


def reason_of(row: Row) -> str:
    """Return the reason of a ratio, if one is written down."""
    found = [name for name in REASONS if row.name.startswith(name)]
    return REASONS[max(found, key=len)] if found else ""


def tables(rows: list[Row]) -> str:
    """Return the rows that took longer than PyTorch, by threads, and a summary."""
    lines: list[str] = []
    for threads in sorted({row.threads for row in rows}):
        timed = [row for row in rows if row.threads == threads and not row.failed]
        if not timed:
            continue
        slower = sorted((row for row in timed if row.ratio > 1.0), key=lambda row: -row.ratio)
        ratios = [row.ratio for row in timed]
        lines += [
            f"### {threads} thread{'s' * (threads > 1)}",
            "",
            f"{len(timed)} rows; {len(slower)} above 1; the median is {np.median(ratios):.2f}.",
            "",
            "| work | arguments | ratio | ours, ms | PyTorch, ms | reason |",
            "| --- | --- | --: | --: | --: | --- |",
        ]
        for row in slower:
            times = f"{row.own * 1e3:.3g} | {row.torch * 1e3:.3g}"
            ratio = f"**{row.ratio:.2f}**"
            lines.append(f"| {row.name} | {row.shape} | {ratio} | {times} | {reason_of(row)} |")
        lines.append("")
    failed = [f"- {row.name}, {row.shape}: {row.failed}" for row in rows if row.failed]
    return "\n".join([*lines, *failed])


def unexplained(rows: list[Row]) -> list[Row]:
    """Return the rows above the limit without a reason, and those that failed."""
    return [
        row
        for row in rows
        if row.failed or (row.ratio > MOST_WITHOUT_REASON and not reason_of(row))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default=None)
    parser.add_argument("--threads", type=int, default=1, help="threads of both")
    parser.add_argument("--only", default="", help="a part of the names to run")
    parser.add_argument("--results", type=Path, help="the file of results, one in a line")
    parser.add_argument("--above", type=float, help="measure again the rows above this ratio")
    parser.add_argument("--print", action="store_true", help="print the tables, run nothing")
    parser.add_argument("--covered", action="store_true", help="print the public names it covers")
    chosen = parser.parse_args()
    if chosen.covered:
        print("\n".join(sorted({name for case in all_cases() for name in case.covers})))
        return
    known = read(chosen.results) if chosen.results else {}
    if not chosen.print:
        for row in _run(chosen, known):
            print(f"{row.ratio:6.2f}  {row.name}, {row.shape}  {row.failed}", flush=True)
            known[row.key] = known[row.key].with_run(row) if row.key in known else row
            if chosen.results:
                with chosen.results.open("a") as lines:
                    lines.write(json.dumps(asdict(row)) + "\n")
    rows = sorted(known.values(), key=lambda row: -row.ratio)
    print(tables(rows))
    left = unexplained(rows)
    raise SystemExit(f"{len(left)} without a reason" if left else 0)


def _run(chosen: argparse.Namespace, known: dict[tuple[str, str, int], Row]) -> Iterator[Row]:
    for case in all_cases():
        for gradients in (False, True) if case.gradients else (False,):
            name = case.name + (" and gradients" if gradients else "")
            if chosen.only not in name:
                continue
            for make in case.arrays:
                arrays = make()
                row = known.get((name, title(arrays), harness.THREADS))
                is_slow = row is not None and chosen.above is not None and row.ratio > chosen.above
                if row is None or row.failed or is_slow:
                    yield measure(case, arrays, name, gradients, chosen.backend)


if __name__ == "__main__":
    main()
