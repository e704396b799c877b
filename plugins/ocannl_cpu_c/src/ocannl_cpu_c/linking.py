"""Libraries of shared objects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path

from ocannl_cpu_c.compiler_command import CompilerCommand


class Libraries(IntEnum):
    """The libraries that an object is linked with: none; the C library, for code that calls its
    functions; all libraries that the compiler links by default, for code that otherwise does not
    load.
    """

    NONE = 0
    C = 1
    DEFAULT = 2


Linking = tuple[tuple[str, ...], ...]
"""The arguments of a compiler for each of them."""

_DEFAULT = ("-lm", "-pthread")
_ALONE = "-nostdlib"
"""Without the C library: resolving its names takes as long as a small kernel, and Zig compiles
parts of it at the first link, for fifteen seconds. Calls that compilers insert, as of memset, are
resolved in the process that loads the object.
"""

_MAPS = Path("/proc/self/maps")  # linux: other systems have none
_C_LIBRARY = r"lib(c|m|pthread)\.so\.\d+|(ld-|libc\.)musl-[\w-]+\.so\.1"


def linking(command: CompilerCommand, macros: Mapping[str, str], *, is_gcc: bool) -> Linking:
    """Return the arguments for the libraries of objects.

    Args:
        command: The compiler.
        macros: The macros that it predefines.
        is_gcc: True for GCC, False for clang.
    """
    alone: tuple[str, ...] = _DEFAULT
    c_library: tuple[str, ...] = _DEFAULT
    if "__linux__" in macros and command.adds_nothing:
        alone = (_ALONE, "-lgcc") if is_gcc else (_ALONE,)
        if command.is_zig:
            loaded = loaded_c_library()
            c_library = (_ALONE, *loaded) if loaded else _DEFAULT
    return alone, c_library, _DEFAULT


def loaded_c_library(maps: Path = _MAPS) -> tuple[str, ...]:
    """Return the files of the C library that this process has loaded, which will load the objects;
    none where they are not known.

    A linker that reads them needs no part of the compiler's own C library, and binds names to the
    same functions as a compiler of the system.
    """
    try:
        lines = maps.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:  # elsewhere
        return ()
    # sorted: their addresses have another order in each process
    paths = sorted({Path(line[line.index("/") :]) for line in lines if "/" in line})
    found = [each for each in paths if re.fullmatch(_C_LIBRARY, each.name) and each.is_file()]
    has_functions = {each.name.partition(".")[0] for each in found} >= {"libc", "libm"}
    is_musl = any("musl" in each.name for each in found)
    return tuple(map(str, found)) if has_functions or is_musl else ()
