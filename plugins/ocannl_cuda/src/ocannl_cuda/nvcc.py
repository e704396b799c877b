"""nvcc, the compiler of CUDA C++ as a program."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache

from ocannl_core.backend_api import dataclass, settings
from ocannl_core.backend_api.files import unfinished_directory
from ocannl_cuda.compiler import OPTIONS, NvidiaCompiler, RejectedError

_RELEASE = re.compile(r"release (\d+)\.(\d+), (V[\d.]+)")


@dataclass(frozen=True, slots=True)
class Nvcc(NvidiaCompiler):
    """A program that works.

    Attributes:
        command: Its path.
        version: The major and minor version of CUDA.
        release: The complete version.
    """

    command: str
    version: tuple[int, int]
    release: str

    @property
    def name(self) -> str:
        return f"nvcc {self.release} ({self.command})"

    @property
    def identity(self) -> str:
        return f"nvcc {self.release} {OPTIONS}"

    def compile_and_report(
        self, text: str, architecture: str, name: str, *more_options: str
    ) -> tuple[bytes, str]:
        """Return a cubin and the messages of the compiler.

        Raises:
            RejectedError: with the messages of the compiler.
        """
        quiet = [] if more_options else ["-w"]
        options = ["-cubin", f"-arch={architecture}", *quiet, *OPTIONS, *more_options]
        with unfinished_directory(settings.cache_directory(), "cuda") as directory:
            directory.create(name, text.encode())
            run = directory.run([self.command, *options, "-o", "code.cubin", name])
            log = (run.stderr + run.stdout).strip()
            cubin = directory.read_unfinished("code.cubin")
            if run.returncode or cubin is None:
                raise RejectedError(log or f"exit code {run.returncode}")
            return cubin, log


@cache
def find(command: str, newest: int | None = None) -> Nvcc | str:
    """Return nvcc under a path or name; a sentence if it does not work.

    Args:
        command: The path or name.
        newest: The newest major version whose code the driver accepts; None for any.
    """
    path = shutil.which(command)
    if path is None:
        return f"there is no program {command}"
    try:
        run = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{path} does not run: {error}"
    match = _RELEASE.search(run.stdout)
    if match is None:
        return f"{path} is no nvcc: it prints no release"
    found = Nvcc(path, (int(match[1]), int(match[2])), match[3])
    if newest is not None and found.version[0] > newest:
        return f"{found.name} is too new for the driver, of CUDA {newest}"
    return found
