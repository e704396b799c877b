"""Time from starting Python to the first result: nothing cached (cold), everything cached (warm).

Every figure is from a new process, with a cache directory that is empty for the cold start and
filled by it for the warm one. Imports of libraries are listed separately; the total excludes them:
from numbers to the first result. PyTorch and JAX cache compiled code on disk too, and are started
in the same two ways. Seconds are those on the wall; in parentheses, on the processors, compilers
included, which a busy machine changes less.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NAMES = ("softmax", "perceptron 784-512-256-10", "LeNet", "transformer block and gradients")
_CONTENDERS = ("own", "torch", "jax")


def processor_seconds() -> float:
    """Return the processor time of this process and its finished children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


class Stages:
    """Seconds by stage on the wall and on processors; a stage inside another one counts once."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self._inside: list[list[float]] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._inside.append([0.0, 0.0])
        wall, used = time.perf_counter(), processor_seconds()
        try:
            yield
        finally:
            spent = [time.perf_counter() - wall, processor_seconds() - used]
            inner = self._inside.pop()
            own = self.seconds.setdefault(name, [0.0, 0.0])
            for k in range(2):
                own[k] += spent[k] - inner[k]
                if self._inside:
                    self._inside[-1][k] += spent[k]

    def watch(self, place: Any, function: str, name: str) -> None:
        """Count all calls of a function as a stage."""
        real: Callable[..., Any] = getattr(place, function)

        def timed(*arguments: Any, **keywords: Any) -> Any:
            with self.stage(name):
                return real(*arguments, **keywords)

        setattr(place, function, timed)


def run(contender: str, name: str) -> dict[str, list[float]]:
    """Return the seconds by stage of one contender's start."""
    stages = Stages()
    with stages.stage("import"):
        import numpy as np  # noqa: F401

        if contender == "own":
            import ocannl_core  # noqa: F401
        else:
            __import__(contender)
            if contender == "torch":
                import torch._dynamo  # noqa: F401
    from workloads import block, rows, training

    works = {work.name: work for module in (rows, training, block) for work in module.workloads()}
    work: Any = works[name]
    make = _maker(contender, stages)
    with stages.stage("expressions"):
        ready = make(work)
    with stages.stage("first call"):
        ready.run(1)
    stages.seconds["total"] = [
        sum(each[k] for stage, each in stages.seconds.items() if stage != "import")
        for k in range(2)
    ]
    return stages.seconds


def _maker(contender: str, stages: Stages) -> Callable[[Any], Any]:
    """Return the function that prepares a workload; its first call may compile."""
    if contender == "torch":
        from workloads import in_torch

        return lambda work: in_torch.contenders(work)["torch compiled"]()
    if contender == "jax":
        from workloads import in_jax

        return lambda work: in_jax.contenders(work)["jax"]()
    from workloads import own
    from workloads.functions import Function

    _watch_own_stages(stages)

    def make(work: Any) -> Any:
        return own.function(work, None) if isinstance(work, Function) else own.step(work, None, ())

    return make


def _watch_own_stages(stages: Stages) -> None:
    from ocannl_core.backend import manager
    from ocannl_core.compile import driver, saved_code
    from ocannl_core.ir.kernels.stream import KernelStream
    from ocannl_core.runtime import context, link
    from ocannl_core.tensor.computations.computation import Computation

    stages.watch(manager, "select", "device and compiler")
    stages.watch(Computation, "resolve", "shapes and assignments")
    stages.watch(driver, "program_key", "look up")
    stages.watch(driver, "find_lowered", "lower")
    stages.watch(driver, "check_program", "check")
    stages.watch(driver, "find_saved", "look up")
    stages.watch(saved_code.SavedCode, "save", "look up")
    stages.watch(driver, "generate", "schedule")
    stages.watch(driver, "optimize", "passes")  # which imports the passes
    stages.watch(KernelStream, "_advance", "schedule")
    stages.watch(manager.Backend, "generate", "generate code")
    stages.watch(manager.Backend, "compile", "compile and load")
    stages.watch(link, "bind", "link")
    stages.watch(driver, "compile_source", "link")
    stages.watch(context, "Routine", "link")


@dataclass(frozen=True, slots=True)
class StartOptions:
    """Options common to all processes.

    Attributes:
        rounds: The number of cold and of warm starts; the least times are reported.
        processors: The number of processors of each process.
        bytecode: A folder for compiled Python.
    """

    rounds: int
    processors: int
    bytecode: str


def measure_in_process(
    contender: str, name: str, cache: str, options: StartOptions
) -> dict[str, list[float]]:
    """Return the seconds by stage, of a new process."""
    folders = ("OCANNL_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR")
    eager = {
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    command = [sys.executable, "-W", "ignore", __file__, "--child", contender, name]
    command += ["--threads", str(options.processors)]
    env = os.environ | eager | {each: str(Path(cache) / each.lower()) for each in folders}
    env |= {"PYTHONPYCACHEPREFIX": options.bytecode}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def least(samples: list[dict[str, list[float]]]) -> dict[str, list[float]]:
    """Return the least seconds of each stage."""
    return {
        stage: [min(each[stage][k] for each in samples if stage in each) for k in range(2)]
        for stage in dict.fromkeys(stage for each in samples for stage in each)
    }


def compare(name: str, contenders: list[str], options: StartOptions) -> None:
    """Print the stages of every contender's cold and warm start."""
    print(name)
    samples: dict[tuple[str, str], list[dict[str, list[float]]]] = {}
    for _ in range(options.rounds):
        for contender in contenders:  # in turn: a busy machine disturbs all of them
            with tempfile.TemporaryDirectory() as cache:
                for kind in ("cold", "warm"):
                    found = samples.setdefault((contender, kind), [])
                    found.append(measure_in_process(contender, name, cache, options))
    for contender in contenders:
        for kind in ("cold", "warm"):
            best = least(samples[contender, kind])
            wall, used = best.pop("total")
            parts = ", ".join(f"{stage} {s:.3f} ({p:.3f})" for stage, (s, p) in best.items())
            print(f"  {contender:<6}{kind}  {wall:>7.3f} s ({used:.3f}):  {parts}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default=None, help="ignored: the best one is measured")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="processors")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", default="", help="a part of the names to run")
    parser.add_argument("--contenders", nargs="+", choices=_CONTENDERS, default=list(_CONTENDERS))
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        import harness  # noqa: F401  # before NumPy: it limits the threads

        print(json.dumps(run(*options.child)))
        return
    installed = [
        each
        for each in options.contenders
        if each == "own" or importlib.util.find_spec(each) is not None
    ]
    print(f"starting on {options.threads} processor(s)")
    with tempfile.TemporaryDirectory() as folder:
        chosen = StartOptions(options.rounds, options.threads, folder)
        for each in installed:  # installed programs have their bytecode, too
            with tempfile.TemporaryDirectory() as cache:
                measure_in_process(each, _NAMES[0], cache, chosen)
        for name in _NAMES:
            if options.only in name:
                compare(name, installed, chosen)


if __name__ == "__main__":
    main()
