"""The C compiler of the Python package `ziglang`: clang and a linker, in one wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from ocannl_core.base import settings
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.files.directory import private_directory

PACKAGE = "ziglang"


@dataclass(frozen=True, slots=True)
class PackagedCompiler:
    """The compiler of an installed package.

    Attributes:
        command: The program and its first argument.
        version: The version of the package.
    """

    command: tuple[str, ...]
    version: str


def find() -> PackagedCompiler | None:
    """Return the compiler of the package; None if it is not installed.

    A package in the working directory, which others may have put there, is none.
    """
    here = os.path.realpath("")
    places = [each for each in sys.path if os.path.realpath(each) != here]
    spec = PathFinder.find_spec(PACKAGE, places)
    if spec is None or spec.origin is None:
        return None
    for name in ("zig", "zig.exe"):
        program = Path(spec.origin).with_name(name)
        if program.is_file() and os.access(program, os.X_OK):
            return PackagedCompiler((str(program), "cc"), _version(program.parents[1]))
    return None


def _version(folder: Path) -> str:
    """Return the version of the package that is installed in a folder; empty if it has no record.

    The name of the record has it. Reading the record takes longer than running the compiler.
    """
    records = sorted(folder.glob(f"{PACKAGE}-*.dist-info"))
    return records[-1].name.split("-")[1].removesuffix(".dist") if records else ""


def cache_variables(temporary: str, *, keep_libraries: bool) -> dict[str, str]:
    """Return the environment variables by which Zig keeps its files in directories of the user.

    By default it keeps compiled libraries, which it does not verify, in the home directory.

    Args:
        temporary: The directory for files that are not kept.
        keep_libraries: True to keep libraries that it compiles; False if it compiles none.
    """
    if not keep_libraries:
        return {"ZIG_LOCAL_CACHE_DIR": temporary, "ZIG_GLOBAL_CACHE_DIR": temporary}
    kept = os.environ.get("ZIG_GLOBAL_CACHE_DIR")
    kept = kept or str(private_directory(settings.cache_directory(), "zig").path)
    return {"ZIG_LOCAL_CACHE_DIR": temporary, "ZIG_GLOBAL_CACHE_DIR": kept}


def run(
    compiler: PackagedCompiler, arguments: Sequence[str], temporary: str, *, keep_libraries: bool
) -> subprocess.CompletedProcess[str]:
    """Return the outcome of a run of the compiler; arguments as for `cache_variables`."""
    return subprocess.run(
        [*compiler.command, *arguments],
        env={**os.environ, **cache_variables(temporary, keep_libraries=keep_libraries)},
        capture_output=True,
        text=True,
        check=False,
    )
