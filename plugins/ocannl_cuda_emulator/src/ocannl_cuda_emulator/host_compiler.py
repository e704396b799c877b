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
from functools import cache
from pathlib import Path

from ocannl_core.backend_api import dataclass, settings
from ocannl_core.backend_api.files import object_cache, unfinished_directory
from ocannl_cuda.compiler import RejectedError

FOLDER = Path(__file__).parent
_NAMES = ("cuda_emulator.hpp", "ptx_emulator.hpp", "warpgroup_emulator.hpp")
HEADERS = tuple(FOLDER / name for name in _NAMES)
RACE_HEADER = FOLDER / "race_detector.hpp"
RACE_DETECTOR = FOLDER / "race_detector.cpp"
VARIABLE = "CUDA_EMULATOR_CXX"
"""The variable with the compiler's command, by default the first of `g++`, `c++`, `clang++`."""
RACES = "CUDA_EMULATOR_RACES"
"""The variable that is 1 to report races of threads."""
_DETECTOR = "race_detector"
_CANDIDATES = ("g++", "c++", "clang++")
_FLAGS = (
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-w",
    "-ffp-contract=off",
    "-fwrapv",
    "-fvisibility=hidden",
    "-nostdinc++",
)
"""Headers of C have all that kernels use; headers of C++ take longer to read."""
_SANITIZED = ("-g1", "-fsanitize=address", "-fsanitize-sections=cuda_shared")
_KERNEL = re.compile(
    r'extern "C" __global__ void (?:__launch_bounds__\((\d+)(?:, \d+)?\) )?(\w+)\(([^)]*)\)'
)
_MEETS = re.compile(
    r"\b(?:__(?:sync\w+|shfl_\w+|ballot_sync|any_sync|all_sync)|multiply_add_\w+|load_matrices_\w+|await_phase)\("
)


@dataclass(frozen=True, slots=True)
class HostCompiler:
    """A C++ compiler that works.

    Attributes:
        command: The program and its first arguments.
        flags: The arguments before the files.
        version: Its name and version.
        finds_races: True if kernels report races of their threads.
    """

    command: tuple[str, ...]
    flags: tuple[str, ...]
    version: str
    finds_races: bool = False

    @property
    def name(self) -> str:
        return f"emulator ({shlex.join(self.command)}: {self.version})"

    @property
    def identity(self) -> str:
        races = (RACE_HEADER, RACE_DETECTOR) if self.finds_races else ()
        files = (*HEADERS, *races)
        digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
        return f"emulator {self.version} {self.command} {self.flags} {digest}"

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
            for bounds, kernel, _ in _KERNEL.findall(text)
        ]
        if self.finds_races:
            exports = [*(_names_of(*found[1:]) for found in _KERNEL.findall(text)), *exports]
        with unfinished_directory(settings.cache_directory(), "cuda_emulator") as directory:
            directory.create(name, "\n".join([text, *exports, ""]).encode())
            target, races = "code.so", [RACE_HEADER] if self.finds_races else []
            headers = [HEADERS[0], *races, *HEADERS[1:]]
            includes = (each for header in headers for each in ("-include", str(header)))
            first = [*self.command, *self.flags, *includes]
            if self.finds_races:
                instrumented = ["-g1", "-fsanitize=thread"]
                # linked without the option: the detector defines the functions that it calls
                detector = str(_race_detector(self.command))
                steps = [
                    [*first, *instrumented, "-x", "c++", "-c", name, "-o", "kernels.o"],
                    [*self.command, "-shared", "kernels.o", detector, "-o", target],
                ]
            else:
                steps = [[*first, "-shared", "-x", "c++", name, "-o", target]]
            for step in steps:
                run = directory.run(step)
                if run.returncode:
                    raise RejectedError(run.stderr.strip() or f"exit code {run.returncode}")
            made = directory.read_unfinished(target)
            if made is None:
                raise RejectedError("no shared object")
            return made


def _names_of(kernel: str, parameters: str) -> str:
    """Return the definition of the names of a kernel's parameters, pointers with a star."""
    each = [part.strip() for part in parameters.split(",")]
    names = ["*" * ("*" in part) + re.split(r"\W+", part)[-1] for part in each if part]
    return f'static const char cuda_race_names_{kernel}[] = "{",".join(names)}";'


@cache
def _race_detector(command: tuple[str, ...]) -> Path:
    """Return the compiled detector of races, from the cache directory or a new compilation."""
    flags = ["-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-w", "-c"]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True).stdout
    parts = [
        *command,
        *flags,
        version,
        *(each.read_text() for each in (RACE_HEADER, RACE_DETECTOR)),
    ]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    stored = object_cache(settings.cache_directory(), "cuda_emulator", key, ".o")
    found = stored.find(_DETECTOR)
    if found is None:
        with unfinished_directory(settings.cache_directory(), "cuda_emulator") as directory:
            made = f"{_DETECTOR}.o"
            run = directory.run([*command, *flags, str(RACE_DETECTOR), "-o", made])
            content = directory.read_unfinished(made)
            if run.returncode or content is None:
                raise RejectedError(run.stderr.strip() or f"exit code {run.returncode}")
            found = stored.add([_DETECTOR], content)
    return found.path


def find() -> HostCompiler | str:
    """Return the compiler in use; a sentence if there is none."""
    chosen = os.environ.get(VARIABLE)
    command = shlex.split(chosen) if chosen else [next(filter(shutil.which, _CANDIDATES), "")]
    return _find(tuple(command), os.environ.get(RACES) == "1")


@cache
def _find(command: tuple[str, ...], finds_races: bool) -> HostCompiler | str:
    if not command[0] or shutil.which(command[0]) is None:
        return f"there is no C++ compiler: {command[0] or ', '.join(_CANDIDATES)}"
    run = subprocess.run([*command, "--version"], capture_output=True, text=True)
    if run.returncode:
        return f"{shlex.join(command)} does not work: {run.stderr.strip()}"
    is_sanitized = not finds_races and any(
        each.startswith("-fsanitize=address") for each in command
    )
    flags = (*_FLAGS, *_SANITIZED) if is_sanitized else _FLAGS
    return HostCompiler(command, flags, run.stdout.splitlines()[0], finds_races)
