"""The host's compiler in place of NVRTC: kernels as a shared object for emulated devices.

The object has a function `cuda_emulator_run_<kernel>` for every kernel; the emulated driver takes
it as a cubin.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from ocannl_core.backend_api import dataclass
from ocannl_cuda.compiler import RejectedError

HEADERS = tuple(Path(__file__).parent / name for name in ("cuda_emulator.hpp", "ptx_emulator.hpp"))
VARIABLE = "CUDA_EMULATOR_CXX"
"""The variable with the compiler's command, by default the first of `g++`, `c++`, `clang++`."""
_CANDIDATES = ("g++", "c++", "clang++")
_FLAGS = (
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-shared",
    "-w",
    "-ffp-contract=off",
    "-fwrapv",
    "-fvisibility=hidden",
)
_SANITIZED = ("-g", "-fsanitize=address", "-fsanitize-sections=cuda_shared")
_KERNEL = re.compile(
    r'extern "C" __global__ void (?:__launch_bounds__\((\d+)(?:, \d+)?\) )?(\w+)\('
)
_MEETS = re.compile(
    r"\b(?:__(?:sync\w+|shfl_\w+|ballot_sync|any_sync|all_sync)|multiply_add_\w+|load_matrices_\w+)\("
)


@dataclass(frozen=True, slots=True)
class HostCompiler:
    """A C++ compiler that works.

    Attributes:
        command: The program and its first arguments.
        flags: The arguments before the files.
        version: Its name and version.
    """

    command: tuple[str, ...]
    flags: tuple[str, ...]
    version: str

    @property
    def name(self) -> str:
        return f"emulator ({shlex.join(self.command)}: {self.version})"

    @property
    def identity(self) -> str:
        header = hashlib.sha256(b"".join(each.read_bytes() for each in HEADERS)).hexdigest()
        return f"emulator {self.version} {self.command} {self.flags} {header}"

    @property
    def is_emulator(self) -> bool:
        return True

    def compile(self, text: str, architecture: str, name: str) -> bytes:
        """Return a shared object with a function for each kernel.

        Raises:
            RejectedError: with the messages of the compiler.
        """
        # a kernel without barriers needs no fibers; helpers may contain some
        meets = str(_MEETS.search(text) is not None).lower()
        exports = [
            f"CUDA_EMULATOR_EXPORT({kernel}, {bounds or 0}, {meets})"
            for bounds, kernel in _KERNEL.findall(text)
        ]
        with tempfile.TemporaryDirectory(prefix="ocannl-emulator-") as folder:
            source, target = Path(folder) / name, Path(folder) / "code.so"
            source.write_text("\n".join([text, *exports, ""]), encoding="utf-8")
            includes = (each for header in HEADERS for each in ("-include", str(header)))
            command = [*self.command, *self.flags, *includes, "-x", "c++", name]
            run = subprocess.run(
                [*command, "-o", target.name], cwd=folder, capture_output=True, text=True
            )
            if run.returncode or not target.is_file():
                raise RejectedError(run.stderr.strip() or f"exit code {run.returncode}")
            return target.read_bytes()


def find() -> HostCompiler | str:
    """Return the compiler in use; a sentence if there is none."""
    chosen = os.environ.get(VARIABLE)
    command = shlex.split(chosen) if chosen else [next(filter(shutil.which, _CANDIDATES), "")]
    return _find(tuple(command))


@cache
def _find(command: tuple[str, ...]) -> HostCompiler | str:
    if not command[0] or shutil.which(command[0]) is None:
        return f"there is no C++ compiler: {command[0] or ', '.join(_CANDIDATES)}"
    run = subprocess.run([*command, "--version"], capture_output=True, text=True)
    if run.returncode:
        return f"{shlex.join(command)} does not work: {run.stderr.strip()}"
    is_sanitized = any(each.startswith("-fsanitize=address") for each in command)
    flags = (*_FLAGS, *_SANITIZED) if is_sanitized else _FLAGS
    return HostCompiler(command, flags, run.stdout.splitlines()[0])
