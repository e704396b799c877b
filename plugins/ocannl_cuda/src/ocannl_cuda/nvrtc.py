"""NVRTC, the compiler of CUDA C++ as a library: from a wheel, or of the system.

The library of built-in functions must be loaded first: NVRTC searches for it in the directories of
the dynamic linker only, where libraries of wheels are not.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
from collections.abc import Iterator
from dataclasses import field
from functools import cache
from pathlib import Path

from ocannl_core.backend_api import dataclass
from ocannl_cuda.compiler import OPTIONS, NvidiaCompiler, RejectedError

_NAME = re.compile(r"libnvrtc\.so\.(\d+)(?:\.(\d+))?")
_MAJORS = (13, 12)
"""The versions whose soname is searched for in the directories of the dynamic linker."""


@dataclass(frozen=True, slots=True)
class Nvrtc(NvidiaCompiler):
    """A loaded library.

    Attributes:
        functions: The functions of the shared object.
        path: Its file, or its name if the dynamic linker found it.
        version: The major and minor version of CUDA.
    """

    functions: ctypes.CDLL = field(repr=False, compare=False)
    path: str
    version: tuple[int, int]

    @property
    def name(self) -> str:
        major, minor = self.version
        return f"NVRTC {major}.{minor} ({self.path})"

    @property
    def identity(self) -> str:
        size = os.path.getsize(self.path) if os.path.isfile(self.path) else 0
        return f"nvrtc {self.version} {size} {OPTIONS}"

    def compile_and_report(
        self, text: str, architecture: str, name: str, *more_options: str
    ) -> tuple[bytes, str]:
        """Return a cubin and the messages of the compiler.

        Raises:
            RejectedError: with the messages of the compiler.
        """
        target = f"--gpu-architecture={architecture}"
        # a report has the notes of the assembler, too
        quiet = [] if more_options else ["--disable-warnings"]
        options = [target, *quiet, *OPTIONS, *more_options]
        given = (ctypes.c_char_p * len(options))(*map(str.encode, options))
        program = ctypes.c_void_p()
        unit = text.encode(), name.encode()
        self._call("nvrtcCreateProgram", ctypes.byref(program), *unit, 0, None, None)
        try:
            code = self.functions.nvrtcCompileProgram(program, len(options), given)
            log = self._bytes("nvrtcGetProgramLog", program).rstrip(b"\0").decode().strip()
            if code:
                raise RejectedError(log or self._message(code))
            return self._bytes("nvrtcGetCUBIN", program), log
        finally:
            self.functions.nvrtcDestroyProgram(ctypes.byref(program))

    def _bytes(self, function: str, program: ctypes.c_void_p) -> bytes:
        """Return a result of a program, whose size another function returns."""
        size = ctypes.c_size_t()
        self._call(f"{function}Size", program, ctypes.byref(size))
        content = ctypes.create_string_buffer(size.value)
        self._call(function, program, content)
        return content.raw

    def _call(self, function: str, *arguments: object) -> None:
        code = getattr(self.functions, function)(*arguments)
        if code:
            raise RejectedError(f"{function}: {self._message(code)}")

    def _message(self, code: int) -> str:
        self.functions.nvrtcGetErrorString.restype = ctypes.c_char_p
        message: bytes = self.functions.nvrtcGetErrorString(code)
        return message.decode()


def find(newest: int | None = None) -> Iterator[Nvrtc | str]:
    """Yield the libraries that can be loaded, wheels first; a sentence if there are none of a kind.

    Args:
        newest: The newest major version whose code the driver accepts; None for any.
    """
    for places, absence in (
        (_in_wheels(), "NVRTC is not installed as a wheel"),
        (_in_system(), "the system has no NVRTC"),
    ):
        problems = [absence]
        for place in places:
            found = load(place)
            if isinstance(found, str):
                problems.append(found)
            elif newest is not None and found.version[0] > newest:
                problems.append(f"{found.name} is too new for the driver, of CUDA {newest}")
            else:
                yield found
        yield problems[-1]


@cache
def load(path: str) -> Nvrtc | str:
    """Return the library in a file, or under a name; a sentence if it cannot be loaded."""
    folder = Path(path).parent
    try:
        for builtins in sorted(folder.glob("libnvrtc-builtins.so.*")):
            ctypes.CDLL(str(builtins))
        library = ctypes.CDLL(path)
        major, minor = ctypes.c_int(), ctypes.c_int()
        library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    except (OSError, AttributeError) as error:
        return f"NVRTC cannot be loaded: {error}"
    return Nvrtc(library, path, (major.value, minor.value))


def _in_wheels() -> Iterator[str]:
    """Yield the libraries in installed wheels, newest first."""
    package = importlib.util.find_spec("nvidia")
    for location in package.submodule_search_locations or () if package is not None else ():
        yield from _libraries_in(Path(location).glob("*/lib"))


def _in_system() -> Iterator[str]:
    """Yield the names that the dynamic linker may find, and libraries of installed toolkits."""
    for major in _MAJORS:
        name = f"libnvrtc.so.{major}"
        if isinstance(load(name), Nvrtc):
            yield name
    for root in toolkits():
        yield from _libraries_in([root / "lib64"])


def toolkits() -> Iterator[Path]:
    """Yield the directories of installed toolkits, the user's choice first."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable])
    yield Path("/usr/local/cuda")
    yield from sorted(Path("/usr/local").glob("cuda-*"), reverse=True)


def _libraries_in(folders: Iterator[Path] | list[Path]) -> Iterator[str]:
    found: list[tuple[tuple[int, ...], str]] = []
    for folder in folders:
        for path in folder.glob("libnvrtc.so.*"):
            match = _NAME.fullmatch(path.name)
            if match is not None:
                found.append((tuple(int(part or 0) for part in match.groups()), str(path)))
    yield from (path for _, path in sorted(found, reverse=True))
