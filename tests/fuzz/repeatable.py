"""Comparison of the C text of random programs between processes with different histories.

    python -m tests.fuzz.run --repeatable --count 500 --seed 1

One process generates code for all programs, another one in the opposite order, and some programs
have a process of their own. Dependences on addresses, on the order of sets and on caches of earlier
programs show as differences.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import ocannl_core as oc
from ocannl_core.backend.loaded_backend import Backend
from ocannl_core.backend.protocols import Source
from ocannl_core.base import settings

from .run import differentiated, program_of
from .sized.author import case_of
from .sized.run import setups_of

ROOT = Path(__file__).parents[2]
SIZED = 3
"""One program of so many has long axes."""


class _Generated(BaseException):
    """Carry generated code out of a compilation, before a compiler starts."""


def text_of(seed: int, number: int) -> str:
    """Return the C text of a program, or the name of the error that refuses it."""

    def stop(self: Backend, source: Source, *rest: object) -> None:
        raise _Generated(source.text)

    with (
        mock.patch.object(Backend, "compile", stop),
        warnings.catch_warnings(),
        oc.Session(seed=7, dtype="float64"),
    ):
        warnings.simplefilter("ignore")
        try:
            _compile(seed, number)
        except _Generated as generated:
            return str(generated)
        except oc.OcannlError as error:
            return type(error).__name__
    return "no code"


def _compile(seed: int, number: int) -> None:
    names: dict[str, Any] = {"np": np, "oc": oc}
    if number % SIZED == 0:
        case, setup = case_of(seed, number), setups_of(seed, number)[0]
        with settings.overrides(**dict(setup.overrides)):
            exec(compile(case.source(), "<program>", "exec"), names)
            oc.Context("cpu_c").compile(names["code"])
    else:
        program = program_of(seed, number)
        exec(compile(program.source(), "<program>", "exec"), names)
        exec(compile(program.code(differentiated(program, names, 1)), "<code>", "exec"), names)
        indices = [names[index.name] for index in program.indices]
        oc.Context("cpu_c").compile(names["code"], bindings=indices)


def texts_in_a_new_process(seed: int, numbers: Sequence[int]) -> dict[int, str]:
    """Return the texts of programs, compiled one after the other in a process with no cache."""
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {
            "OCANNL_CACHE_DIR": folder,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        command = [sys.executable, "-m", "tests.fuzz.repeatable", str(seed)]
        found = subprocess.run(
            command, env=env, cwd=ROOT, input=json.dumps(list(numbers)), capture_output=True, text=True
        )  # fmt: skip
    if found.returncode:
        raise RuntimeError(found.stderr)
    return {int(number): text for number, text in json.loads(found.stdout).items()}


def differences(seed: int, numbers: Sequence[int], alone: Sequence[int] = ()) -> list[str]:
    """Return the differences between processes, as reports to print.

    Args:
        seed: The seed of the programs.
        numbers: The programs.
        alone: Programs that are also compiled in a new process.
    """
    first = texts_in_a_new_process(seed, numbers)
    others = [texts_in_a_new_process(seed, [*reversed(numbers)])]
    others += [texts_in_a_new_process(seed, [number]) for number in alone]
    reports = []
    for other in others:
        for number, text in other.items():
            if text != first[number]:
                lines = difflib.unified_diff(first[number].splitlines(), text.splitlines(), n=1)
                shown = "\n".join([*lines][:40])
                reports.append(f"# ----- program {number} of seed {seed} differs\n{shown}\n")
    return reports


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the texts of programs; return 1 if some differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=200, help="how many programs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first program")
    given = parser.parse_args(arguments)
    numbers = range(given.first, given.first + given.count)
    reports = differences(given.seed, numbers, numbers[:: max(1, given.count // 20)])
    print("\n".join(reports) or f"{given.count} programs have one text each")
    return 1 if reports else 0


def _serve() -> None:
    """Write the texts of the programs whose numbers come in, as JSON."""
    if hasattr(os, "sched_setaffinity"):
        # with one processor no compiler starts ahead
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    seed, numbers = int(sys.argv[1]), json.load(sys.stdin)
    json.dump({number: text_of(seed, number) for number in numbers}, sys.stdout)


if __name__ == "__main__":
    _serve()
