"""Faults planted in a copy of the repository, one after the other, and the tests that catch them:

    python -m plugins.ocannl_cuda.tests.plant
    python -m plugins.ocannl_cuda.tests.plant --only stream

The tests must pass without a fault. The exit code is 1 if they do not, or if a fault is not caught.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from plugins.ocannl_cuda.tests.planted_faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 300
"""The most seconds of the tests of a fault: one that hangs is caught."""


def copy_of_repository(folder: Path) -> None:
    """Copy the files of the repository, changed ones and new ones too."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, found.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)


def fails(folder: Path, chosen: Iterable[tuple[str, str]], seconds: float = SECONDS) -> str:
    """Return the last words of the first tests that fail, by files and expressions; empty if all pass."""
    places = [str(folder), *map(str, sorted(folder.glob("plugins/*/src")))]
    own = {"PYTHONPATH": os.pathsep.join(places), "PYTHONDONTWRITEBYTECODE": "1"}
    for file, expression in chosen:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-n0",
            "-p",
            "no:cacheprovider",
            "-m",
            "",
            f"--kept-cache={folder / 'build' / 'kernels'}",
            file,
        ]
        command += ["-k", expression] if expression else []
        try:
            run = subprocess.run(
                command,
                cwd=folder,
                env=os.environ | own,
                capture_output=True,
                text=True,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired:
            return f"more than {seconds:.0f} s"
        if run.returncode:
            lines = [
                line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))
            ]
            return (lines or [*run.stdout.splitlines(), f"exit code {run.returncode}"])[-1]
        if " passed" not in run.stdout:
            return f"no test: {file} -k {expression!r}"
    return ""


def is_caught(folder: Path, fault: Fault) -> str:
    """Return the failure by which a fault is caught; empty if it is not."""
    path = folder / fault.path
    text = path.read_text(encoding="utf-8")
    try:
        path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
        return fails(folder, [fault.tests])
    finally:
        path.write_text(text, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print each fault with the test that catches it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="faults whose name or path matches")
    given = parser.parse_args(arguments)
    chosen = {
        kind: [each for each in faults if re.search(given.only, f"{each.name} {each.path}")]
        for kind, faults in FAULTS.items()
    }
    with tempfile.TemporaryDirectory(prefix="ocannl-planted-") as place:
        folder = Path(place)
        copy_of_repository(folder)
        tests = dict.fromkeys(each.tests for faults in chosen.values() for each in faults)
        broken = fails(folder, tests)
        if broken:
            print(f"the tests fail without a fault: {broken}")
            return 1
        missed = 0
        for kind, faults in chosen.items():
            if not faults:
                continue
            caught = 0
            for each in faults:
                begun = time.monotonic()
                found = is_caught(folder, each)
                caught += bool(found)
                verdict = f"caught      {found[:100]}" if found else "NOT CAUGHT"
                print(f"{each.name:<64} {time.monotonic() - begun:4.0f} s  {verdict}", flush=True)
            print(f"{kind}: {caught} of {len(faults)} caught\n", flush=True)
            missed += len(faults) - caught
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
