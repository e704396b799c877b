"""The checks of `ocannl doctor mpi`: libraries, launcher, and sums over two processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ocannl_core.backend_api import Check, CheckOutcome
from ocannl_mpi.own_settings import MpiSettings

OCANNL_SETTINGS = MpiSettings
_SECONDS = 60.0


def checks() -> Iterator[Check]:
    """Yield the checks; each that others depend on ends them when it fails."""
    try:
        from mpi4py import MPI
    except Exception as error:
        yield Check(
            "MPI library",
            CheckOutcome.FAIL,
            f"{type(error).__name__}: {error}",
            "pip install 'ocannl-mpi[mpich]', or install the MPI library of the system",
        )
        return
    yield Check("MPI library", CheckOutcome.OK, MPI.Get_library_version().split("\n")[0].strip())
    launcher = find_launcher()
    if launcher is None:
        yield Check(
            "mpiexec",
            CheckOutcome.FAIL,
            "neither beside Python nor on PATH",
            "pip install 'ocannl-mpi[mpich]', or install the MPI library of the system",
        )
        return
    yield Check("mpiexec", CheckOutcome.OK, str(launcher))
    yield _sum_check(launcher)


def find_launcher() -> Path | None:
    """Return the launcher beside Python, as wheels install it, or the one on PATH."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    return Path(found) if found else None


def _sum_check(launcher: Path) -> Check:
    subject = "sums over two processes"
    command = [str(launcher), "-n", "2", sys.executable, "-m", "ocannl_mpi", "0.001", "16"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, env=dict(os.environ)
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(subject, CheckOutcome.FAIL, str(error), "run it by hand: " + " ".join(command))
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-3:])
        return Check(subject, CheckOutcome.FAIL, last, "run it by hand: " + " ".join(command))
    lines = [line for line in done.stdout.splitlines() if line.startswith("all-reduce")]
    return Check(subject, CheckOutcome.OK, "; ".join(lines))
