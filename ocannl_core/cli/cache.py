"""`ocannl cache`: the directory of generated and compiled code, and of measured schedules.

ocannl cache info      its place and size
ocannl cache list      every file, with its size and last use
ocannl cache verify    compares files with their digests; damaged ones are never used
ocannl cache clear     removes the files
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from pathlib import Path

from ocannl_core.base import settings
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.files.digests import strip_digest, strip_json_digest
from ocannl_core.base.files.directory import open_private

_PLACE = re.compile(
    r"(routines|kernels|schedules/[^/]+|placements/[^/]+|[^/]+/[0-9a-f]{16,64}/(objects|kernels))"
    r"/[0-9a-f]{16,64}(\.[a-z]+)?"
)
"""The paths of cached files; others are left alone."""


class _Integrity(Enum):
    RIGHT = "right"
    DAMAGED = "damaged"
    UNCHECKED = "without a digest"


@dataclass(frozen=True, slots=True)
class _Cached:
    """A file of the cache: its place there, its size, and the time of its last use."""

    path: Path
    place: str
    nbytes: int
    used: float

    @property
    def kind(self) -> str:
        """The directory directly in the cache: `routines`, `kernels`, `schedules`, or a backend."""
        return self.place.partition("/")[0]


HELP = "show, verify or empty the cache of compiled code"
DESCRIPTION = (
    "Shows, verifies or empties the cache of generated code, compiled code and measured schedules."
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    command.add_argument("action", choices=("info", "list", "verify", "clear"))
    command.add_argument("kind", nargs="?", help="only this part, such as routines or cpu_c")


def run(arguments: argparse.Namespace) -> int:
    """Perform the action; return 1 if files are damaged."""
    folder = settings.cache_directory()
    found = list(_files(folder))
    parts = sorted({each.kind for each in found})
    files = [each for each in found if arguments.kind in (None, each.kind)]
    match arguments.action:
        case "list":
            for each in sorted(files, key=lambda each: each.used):
                used = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.used))
                print(f"{used}  {each.nbytes:>10,}  {each.place}")
        case "verify":
            return _verify(files)
        case "clear":
            if files and not _is_marked(folder):
                print(f"nothing is removed: {folder} had other files when it became a cache")
                return 1
            for each in files:
                with suppress(FileNotFoundError):
                    each.path.unlink()
            parents = {each for file in files for each in file.path.relative_to(folder).parents}
            for parent in sorted(parents - {Path()}, reverse=True):
                with suppress(OSError):  # it has other files
                    (folder / parent).rmdir()
    total = sum(each.nbytes for each in files)
    verb = "removed: " if arguments.action == "clear" else ""
    for kind in sorted({each.kind for each in files}):
        own = [each for each in files if each.kind == kind]
        print(f"{verb}{kind}: {len(own)} files, {sum(each.nbytes for each in own):,} bytes")
    print(f"{verb}{len(files)} files, {total:,} bytes in {folder}")
    if arguments.kind and not files and parts:
        print(f"parts of the cache: {', '.join(parts)}")
    return 0


def _is_marked(folder: Path) -> bool:
    with suppress(OSError):
        return open_private(folder).is_marked()
    return False


def _files(folder: Path) -> Iterator[_Cached]:
    """Yield the files that caches have written, and no others."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            place = path.relative_to(folder).as_posix()
            if _PLACE.fullmatch(place):
                with suppress(FileNotFoundError):
                    status = path.lstat()
                    if stat.S_ISREG(status.st_mode):
                        yield _Cached(path, place, status.st_size, status.st_mtime)


def _verify(files: list[_Cached]) -> int:
    found: dict[_Integrity, int] = dict.fromkeys(_Integrity, 0)
    for each in files:
        integrity = _integrity(each)
        found[integrity] += 1
        if integrity is _Integrity.DAMAGED:
            print(f"damaged: {each.path}")
    print(", ".join(f"{count} {each.value}" for each, count in found.items()))
    if found[_Integrity.DAMAGED]:
        print("damaged files are not used, and written again; `ocannl cache clear` removes them")
    return 1 if found[_Integrity.DAMAGED] else 0


def _integrity(file: _Cached) -> _Integrity:
    try:
        content = file.path.read_bytes()
    except OSError:
        return _Integrity.UNCHECKED
    name = file.path.name
    if file.kind in ("routines", "kernels"):
        is_right = strip_digest(name, content) is not None
    elif name.endswith(".json"):
        is_right = strip_json_digest(name, content) is not None
    elif len(file.path.stem) == hashlib.sha256().digest_size * 2:
        is_right = hashlib.sha256(content).hexdigest() == file.path.stem
    else:
        return _Integrity.UNCHECKED
    return _Integrity.RIGHT if is_right else _Integrity.DAMAGED
