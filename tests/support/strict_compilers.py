"""Compilers of C that take every warning for an error."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from ocannl_cpu_c.compiler import find


def compilers() -> list[str]:
    """The compilers of this machine."""
    found = [shutil.which(name) for name in ("gcc", "clang")]
    return [each for each in found if each] or [find().command[0]]


def built(source: Path, command: str, flags: list[str]) -> Path:
    """Return the shared library of a C file."""
    library = source.with_name(f"{source.stem}-{Path(command).name}{''.join(flags)}.so")
    every = ["-std=gnu99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wno-unknown-pragmas"]
    command_line = [command, *every, *flags, "-shared", "-fPIC", "-o", str(library), str(source)]
    result = subprocess.run([*command_line, "-lm"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return library
