"""The tests of the repository on CUDA devices, in parts: on emulated ones under an instrument, or on
real ones.

    python -m plugins.ocannl_cuda.tests.runs_in_parts sanitize --seconds 540
    python -m plugins.ocannl_cuda.tests.runs_in_parts races tests/backends/test_scan.py
    python -m plugins.ocannl_cuda.tests.runs_in_parts device --processes 8

A part is some tests in a process of their own: a race, an access beyond an allocation, or a lost
context ends its part only. Results are printed as they come and kept in a file, by the content of the repository, so
that the same command goes on where a run has ended. The exit code is 1 if a part has failed, else 3
if some are left, else 0.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
INSTRUMENTS: dict[str, tuple[list[str] | None, dict[str, str]]] = {
    "device": (None, {}),
    "device-graphs": (None, {"OCANNL_CUDA__GRAPHS": "1"}),
    "emulated": ([], {}),
    "emulated-graphs": ([], {"OCANNL_CUDA__GRAPHS": "1"}),
    "sanitize": (["--sanitize"], {}),
    "races": (["--races"], {}),
}
"""Options of the emulation, which `None` leaves out, and environment variables."""
DEFAULT_PATHS = ("tests/backends",)
RESULTS = ROOT / "build" / "runs-in-parts.jsonl"
_TRACKED = (
    "ocannl_core",
    "plugins/ocannl_cuda/src",
    "plugins/ocannl_interp/src",
    "tests",
    "conftest.py",
)
"""Folders on whose content the results depend."""
_SUFFIXES = {".py", ".c", ".cpp", ".hpp"}
_SHOWN_LINES = 25
_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed)\b")


@dataclass(frozen=True)
class Part:
    """Tests that run in one process.

    Attributes:
        tests: Their names for pytest.
    """

    tests: tuple[str, ...]

    @property
    def title(self) -> str:
        files = dict.fromkeys(each.partition("::")[0] for each in self.tests)
        first, *rest = (Path(each).name for each in files)
        return f"{first} and {len(rest)} more" if rest else first

    def key(self, content: str, instrument: str) -> str:
        """Return the name of the result in the file of results."""
        text = "\0".join([content, instrument, *self.tests])
        return hashlib.sha256(text.encode()).hexdigest()[:24]


@dataclass(frozen=True)
class Result:
    """The end of a part.

    Attributes:
        key: Its name.
        code: The exit code of pytest.
        seconds: Its time.
        counts: What has become of its tests.
        output: The end of its output if it has failed.
    """

    key: str
    code: int
    seconds: float
    counts: dict[str, int]
    output: str = ""

    @property
    def has_passed(self) -> bool:
        return self.code == 0 and self.counts.get("passed", 0) > 0


def parts_of(names: Sequence[str], most: int) -> Iterator[Part]:
    """Yield the tests in parts of at most so many, in order; the tests of a file stay together if
    they fit.
    """
    files: dict[str, list[str]] = {}
    for name in names:
        files.setdefault(name.partition("::")[0], []).append(name)
    gathered: list[str] = []
    for tests in files.values():
        if gathered and len(gathered) + len(tests) > most:
            yield Part(tuple(gathered))
            gathered = []
        while len(tests) > most:
            yield Part(tuple(tests[:most]))
            tests = tests[most:]
        gathered += tests
    if gathered:
        yield Part(tuple(gathered))


def content_of(root: Path) -> str:
    """Return a digest of the files that the results depend on."""
    digest = hashlib.sha256()
    for folder in _TRACKED:
        place = root / folder
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.suffix in _SUFFIXES:
                digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()


def counts_of(output: str) -> dict[str, int]:
    """Return the numbers of the summary of pytest."""
    last = output.strip().rpartition("\n")[2]
    return {kind.removesuffix("s"): int(number) for number, kind in _COUNT.findall(last)}


def known_results(path: Path) -> dict[str, Result]:
    """Return the results of the file; lines that a killed process has cut short are left out."""
    found: dict[str, Result] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            result = Result(**json.loads(line))
        except (ValueError, TypeError):
            continue
        found[result.key] = result
    return found


class Runner:
    """Processes that run parts until a moment.

    Args:
        instrument: A key of `INSTRUMENTS`.
        until: The moment, as `time.monotonic` has it.
        cache: The directory of compiled kernels, which later runs use, too.
    """

    def __init__(self, instrument: str, until: float, cache: Path) -> None:
        options, self._variables = INSTRUMENTS[instrument]
        emulation = [sys.executable, "-m", "ocannl_cuda_emulator", "--devices", "2"]
        self._prefix = [] if options is None else ["nice", *emulation, *options, "--"]
        self._prefix += [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
        self._prefix += ["-m", "", "--all-devices", "-q", "--no-header", f"--kept-cache={cache}"]
        if importlib.util.find_spec("xdist") is not None:
            self._prefix.append("--numprocesses=0")
        self._until = until

    def collected(self, paths: Sequence[str], expression: str) -> list[str]:
        """Return the names of the tests.

        Raises:
            SystemExit: if pytest cannot collect them.
        """
        run = self._run([*paths, "-k", expression, "--collect-only"])
        names = [line for line in run.stdout.splitlines() if "::" in line]
        if run.returncode or not names:
            raise SystemExit(f"no tests are collected:\n{run.stdout}{run.stderr}")
        return names

    def result(self, part: Part, key: str) -> Result | None:
        """Return the end of a part; None if the time was over before it."""
        if time.monotonic() > self._until:
            return None
        start = time.monotonic()
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as names:
            names.write("\n".join(part.tests) + "\n")
            names.flush()
            try:
                run = self._run([f"@{names.name}"])
            except subprocess.TimeoutExpired:
                return None
        seconds = round(time.monotonic() - start, 1)
        lines = f"{run.stdout}\n{run.stderr}".strip().splitlines()
        output = "" if not run.returncode else "\n".join(lines[-_SHOWN_LINES:])
        return Result(key, run.returncode, seconds, counts_of(run.stdout), output)

    def _run(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._prefix, *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=max(self._until - time.monotonic(), 1),
            env=os.environ | {"PYTHONUNBUFFERED": "1"} | self._variables,
        )


def main() -> int:
    """Run the parts that have no result yet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("instrument", choices=INSTRUMENTS)
    parser.add_argument("paths", nargs="*", default=DEFAULT_PATHS)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--tests", type=int, default=60, help="the most tests of a part")
    parser.add_argument("-k", dest="expression", default="cuda", help="an expression of pytest")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file of results")
    given = parser.parse_intermixed_args()
    end = time.monotonic() + min(given.seconds, 1e6)
    runner = Runner(given.instrument, end, given.results.absolute().parent / "kernels")
    parts = list(parts_of(runner.collected(given.paths, given.expression), given.tests))
    content, known = content_of(ROOT), known_results(given.results)
    keys = [part.key(content, given.instrument) for part in parts]
    left = [(p, key) for p, key in zip(parts, keys, strict=True) if key not in known]
    print(f"{given.instrument}: {len(parts)} parts, {len(parts) - len(left)} of them known")
    given.results.parent.mkdir(parents=True, exist_ok=True)
    with (
        given.results.open("a", encoding="utf-8") as file,
        ThreadPoolExecutor(given.processes) as pool,
    ):
        for (part, _), result in zip(
            left, pool.map(lambda e: runner.result(*e), left), strict=True
        ):
            if result is None:
                continue
            known[result.key] = result
            file.write(json.dumps(vars(result)) + "\n")
            file.flush()
            verdict = "passed" if result.has_passed else f"FAILED with {result.code}"
            shown = ", ".join(f"{number} {kind}" for kind, number in result.counts.items())
            print(f"{verdict}: {part.title}: {shown}, {result.seconds} s", flush=True)
            print(result.output, end="\n" if result.output else "")
    return _summed_up([known.get(key) for key in keys])


def _summed_up(results: Sequence[Result | None]) -> int:
    """Print the sums of the results, and return the exit code."""
    finished = [each for each in results if each is not None]
    failed = sum(not each.has_passed for each in finished)
    left = len(results) - len(finished)
    tests = sum(each.counts.get("passed", 0) for each in finished)
    print(f"{tests} tests passed, {failed} parts failed, {left} parts are left")
    return 1 if failed else 3 if left else 0


if __name__ == "__main__":
    sys.exit(main())
