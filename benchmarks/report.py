"""One table, in Markdown, of all workloads beside every peer that is installed.

    python benchmarks/report.py                     everything, on one thread and on two
    python benchmarks/report.py --only softmax      workloads with that in their names
    python benchmarks/report.py --results FILE      adds to the file; the least times count

Every workload runs in a process of its own, so that a peer which crashes loses that workload alone.
It takes an hour and a quiet machine: peers compile for longer than anything runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from results import LIBRARIES, OWN, WorkloadResult

_SCRIPTS = ("calls.py", "tiny_step.py", "contractions.py", "networks.py", "epochs.py")
_FEATURES = {
    "x86": ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    "arm": ("asimd", "sve", "sve2", "bf16"),
}
_COLUMNS = ("torch", "torch compiled", "jax", "keras", "tinygrad", "pytensor", "numpy", "numba")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default=None)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, help="samples of each contender")
    parser.add_argument("--only", default="", help="a part of the names to run")
    parser.add_argument(
        "--peers", nargs="*", choices=LIBRARIES, help="the libraries to compare with"
    )
    parser.add_argument("--results", type=Path, help="the file of results, one in a line")
    parser.add_argument("--print", action="store_true", help="only print the results on file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = options.results or Path(folder) / "results"
        if not options.print:
            measure(options, file)
        found = [WorkloadResult(**json.loads(line)) for line in lines_of(file)]
    print(machine(options.backend))
    for threads in sorted({each.threads for each in found}):
        print(table([each for each in together(found) if each.threads == threads], threads))


def lines_of(file: Path) -> list[str]:
    """Return the lines of a file, none if it is not there."""
    return file.read_text().splitlines() if file.exists() else []


def measure(options: argparse.Namespace, file: Path) -> None:
    """Run every selected workload; results are written to the file, and output to stderr."""
    chosen = ["--json", str(file)]
    for name in ("backend", "rounds"):
        if getattr(options, name) is not None:
            chosen += [f"--{name}", str(getattr(options, name))]
    if options.peers is not None:
        chosen += ["--peers", *options.peers]
    for script in _SCRIPTS:
        path = str(Path(__file__).resolve().parent / script)
        command = [sys.executable, "-W", "ignore", path]
        names = subprocess.run(
            [*command, "--list", "--only", options.only],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        for name in names.stdout.splitlines():
            for threads in options.threads:
                print(f"== {name}, threads: {threads}", file=sys.stderr, flush=True)
                done = subprocess.run(
                    [*command, "--exactly", name, "--threads", str(threads), *chosen],
                    stdout=sys.stderr,
                )
                if done.returncode:
                    print(f"failed with exit status {done.returncode}", file=sys.stderr, flush=True)


def together(found: Iterable[WorkloadResult]) -> list[WorkloadResult]:
    """Return one result for each workload and number of threads: the least times of all runs."""
    results: dict[tuple[str, int], WorkloadResult] = {}
    for each in found:
        key = (each.workload, each.threads)
        results[key] = results[key].with_run(each) if key in results else each
    return list(results.values())


def table(found: list[WorkloadResult], threads: int) -> str:
    """Return the results as a table in Markdown, with errors below it."""
    columns = [each for each in _COLUMNS if any(each in _by_column(result) for result in found)]
    title = f"{threads} thread{'s' if threads > 1 else ''}, float32, {_amx()}; least milliseconds"
    head = ["workload", "ours", "ratio", "best peer", *columns]
    lines = [f"### {title}", "", _row(head), _row(["---", *["--:"] * (len(head) - 1)])]
    lines += [_row(cells) for result in found for cells in _rows(result, columns)]
    failures = {
        f"- {result.workload}: {name} failed: {reason}"
        for result in found
        for name, reason in result.failed.items()
    }
    return "\n".join([*lines, *([""] if failures else []), *sorted(failures), ""])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rows(result: WorkloadResult, columns: list[str]) -> Iterator[list[str]]:
    """Yield a row for each way in which this project did the work."""
    peers = _by_column(result)
    theirs = [_milliseconds(peers[each]) if each in peers else "-" for each in columns]
    for name, seconds in result.least.items():
        if name.startswith(OWN):
            work = result.workload + name.removeprefix(OWN)
            best = result.best_peer()
            ratio = f"**{result.ratio(name):.2f}**" if best else "-"
            yield [work, _milliseconds(seconds), ratio, best or "-", *theirs]


def _by_column(result: WorkloadResult) -> dict[str, float]:
    """Return the least seconds of the peers, the fastest of the settings of each."""
    found: dict[str, float] = {}
    for name, seconds in result.peers().items():
        column = max((each for each in _COLUMNS if name.startswith(each)), key=len)
        found[column] = min(seconds, found.get(column, seconds))
    return found


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"


def machine(backend: str | None) -> str:
    """Return the machine and the versions of all libraries, as a list in Markdown."""
    from ocannl_core.backend import manager

    chosen, target = manager.select(backend)
    sizes = ", ".join(f"{each // 1024} KiB" for each in target.cache_bytes)
    lines = [
        f"Processor: {_processor()}; {os.cpu_count()} cores; caches of {sizes}",
        f"Instructions: {', '.join(_features()) or 'unknown'}; {_amx()}",
        f"System: {platform.system()} {platform.machine()}, Python {platform.python_version()}",
        f"Backend: {'; '.join((chosen.name, *chosen.targets().details[:1]))}",
        f"Peers: {', '.join(_versions())}",
    ]
    return "\n".join(f"- {line}" for line in lines) + "\n"


def _cpuinfo(*names: str) -> str:
    for line in lines_of(Path("/proc/cpuinfo")):
        name, _, value = line.partition(":")
        if name.strip() in names:
            return value.strip()
    return ""


def _processor() -> str:
    name = _cpuinfo("model name") or platform.processor() or "unknown"
    numbers = [_cpuinfo(each) for each in ("cpu family", "model")]
    return f"{name}, family {numbers[0]}, model {numbers[1]}" if all(numbers) else name


def _features() -> list[str]:
    flags = _cpuinfo("flags", "Features").split()
    return [each for kind in _FEATURES.values() for each in kind if each in flags]


def _amx() -> str:
    return "AMX" if "amx_tile" in _cpuinfo("flags").split() else "no AMX"


def _versions() -> Iterator[str]:
    for library in ("numpy", *LIBRARIES):
        try:
            yield f"{library} {metadata.version(library)}"
        except metadata.PackageNotFoundError:
            yield f"{library} is not installed"


if __name__ == "__main__":
    main()
