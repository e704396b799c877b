"""Starting programs under `mpiexec`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("mpi4py", reason="the processes of MPI need mpi4py")

from ocannl_mpi.checks import find_launcher

PROGRAMS = Path(__file__).parent / "programs"
Launch = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def launch() -> Launch:
    """Return a function that runs a program in a number of processes."""
    launcher = find_launcher()
    if launcher is None:
        pytest.skip("mpiexec is not installed")
    environment = os.environ | {"OCANNL_THREADS": "1"}

    def run(
        count: int, program: str, *arguments: object, emulates_cuda: bool = False
    ) -> subprocess.CompletedProcess[str]:
        emulator = [sys.executable, "-m", "ocannl_cuda_emulator", "--"] if emulates_cuda else []
        command = [str(launcher), "-n", str(count), *emulator, sys.executable]
        return subprocess.run(
            [*command, str(PROGRAMS / program), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=300,
            env=environment,
        )

    return run
