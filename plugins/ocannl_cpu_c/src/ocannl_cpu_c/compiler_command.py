"""The choice of a compiler: of a setting, of the path, or of the package `ziglang`."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

from ocannl_core.backend_api import CompileError, dataclass
from ocannl_core.backend_api.files import packaged_compiler

WITHOUT_COMPILER = (
    "install a C compiler (Debian, Ubuntu: apt-get install gcc) or the one of a Python package\n"
    "(pip install 'ocannl-cpu-c[compiler]'), or run without one: OCANNL_BACKEND=interp"
)

_CANDIDATES = ("cc", "gcc", "clang")
_WITHOUT_LIBRARY = "-[DUIOm]|-g$|-pipe$|-fno-"
_PACKAGE = "ziglang"
"""The name of the package, and of its compiler in settings."""


@dataclass(frozen=True, slots=True)
class CompilerCommand:
    """A program that compiles C, with arguments that the user chose.

    Attributes:
        words: The program and its arguments.
        origin: The place of the choice, for reports.
        identity: The words, or a package and its version in the place of a path: the same command
            in every virtual environment.
        program: The number of words that name the program; the others are flags.
    """

    words: tuple[str, ...]
    origin: str
    identity: tuple[str, ...]
    program: int = 1

    @property
    def is_zig(self) -> bool:
        """True if clang is part of Zig, which names processors in its own way."""
        return self.program == 2 or "ziglang" in self.words

    @property
    def adds_nothing(self) -> bool:
        """True for a program that is no script, if its flags need no library. A script may add
        others, such as the flags of sanitizers, which need libraries for all code.
        """
        path = shutil.which(self.words[0])
        flags = self.words[self.program :]
        if path is None or not all(re.match(_WITHOUT_LIBRARY, each) for each in flags):
            return False
        try:
            with open(path, "rb") as file:
                return file.read(4) == b"\x7fELF"
        except OSError:  # executable, not readable
            return False


def choose(setting: str | None, variable: str | None) -> CompilerCommand:
    """Return the compiler of the setting or of the variable `CC`, else the first one on the path,
    else the compiler of the package.

    Raises:
        CompileError: if there is none; a chosen one is never replaced by another.
    """
    for origin, given in (("the setting cc (OCANNL_CPU_C__CC)", setting), ("CC", variable)):
        if given:
            return _chosen(given, origin)
    for name in _CANDIDATES:
        if shutil.which(name):
            return CompilerCommand((name,), "the path", (name,))
    packaged = _packaged()
    if packaged is not None:
        return packaged
    raise CompileError(
        "The CPU backend needs a C compiler.",
        found=f"none of {', '.join(_CANDIDATES)} on the path, and no package {_PACKAGE}",
        fix=WITHOUT_COMPILER,
    )


def _chosen(given: str, origin: str) -> CompilerCommand:
    try:
        words = tuple(shlex.split(given))
    except ValueError as error:
        raise CompileError(
            "The chosen C compiler must be a command as in a shell.",
            found=f"{given!r}: {error}".rstrip("."),
            where=origin,
            fix="close what is quoted, such as in \"gcc '-DA=b c'\"",
        ) from None
    if words and words[0] == _PACKAGE:
        packaged = _packaged(words[1:])
        if packaged is not None:
            return packaged
    elif words and shutil.which(words[0]) is not None:
        is_zig = Path(words[0]).name == "zig" and words[1:2] == ("cc",)
        return CompilerCommand(words, origin, words, program=2 if is_zig else 1)
    raise CompileError(
        "The chosen C compiler must be installed.",
        found=f"no program {given!r}",
        where=origin,
        fix=WITHOUT_COMPILER,
    )


def _packaged(flags: tuple[str, ...] = ()) -> CompilerCommand | None:
    """Return the compiler of the package with flags; None if it is not installed."""
    found = packaged_compiler()
    if found is None:
        return None
    origin = f"the package {_PACKAGE} {found.version}"
    identity = (_PACKAGE, found.version, *flags)
    return CompilerCommand((*found.command, *flags), origin, identity, program=2)
