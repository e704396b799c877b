"""Shared objects: checks that they are complete, and loading from memory.

The verified bytes are the loaded ones: they are copied to a sealed file in memory, and loaded from
there. They cannot be exchanged or truncated afterwards, and their directory may be mounted
`noexec`.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from ocannl_cpu_c.bindings import ffi

_MAGIC = b"\x7fELF"
_HEADERS = {1: "HHIIIIIHHHHHH", 2: "HHIQQQIHHHHHH"}
_SEGMENTS = {1: "IIIIIIII", 2: "IIQQQQQQ"}
_SECTIONS = {1: "IIIIIIIIII", 2: "IIQQQQIIQQ"}
_SHARED, _STRINGS, _NO_BITS = 3, 3, 8
_loads = count(1)


def defect_of(content: bytes) -> str:
    """Return the defect of bytes that are no complete shared object; empty if they are one.

    The use of a truncated object would kill the process.
    """
    if not sys.platform.startswith("linux"):
        return "" if content else "it is empty"
    try:
        return _lack_of_elf(content)
    except (struct.error, KeyError, IndexError):
        return f"it ends after {len(content)} bytes, within a header"


def _lack_of_elf(content: bytes) -> str:
    if not content:
        return "it is empty"
    if content[:4] != _MAGIC:
        return "it is no ELF file"
    width, order = content[4], "<>"[content[5] - 1] if content[5] in (1, 2) else "="
    header = struct.unpack_from(order + _HEADERS[width], content, 16)
    kind, _, _, _, segments, sections, _, _, size, count, section_size, section_count, names = (
        header
    )
    if kind != _SHARED:
        return "it is no shared object"
    parts = [(segments, size * count), (sections, section_size * section_count)]
    for number in range(count):
        found = struct.unpack_from(order + _SEGMENTS[width], content, segments + size * number)
        parts.append((found[1], found[4]) if width == 1 else (found[2], found[5]))
    named: tuple[int, ...] = ()
    for number in range(section_count):
        at = sections + section_size * number
        section = struct.unpack_from(order + _SECTIONS[width], content, at)
        if section[1] != _NO_BITS:
            parts.append((section[4], section[5]))
        if number == names:
            named = section
    end = max(start + length for start, length in parts)
    if end > len(content):
        return f"it ends after {len(content)} bytes, and has {end}"
    if not named or named[1] != _STRINGS:
        return "its table of sections is missing"
    return ""


def load(file: Path, content: bytes) -> Any:
    """Return a library.

    Args:
        file: The object, named after its content.
        content: The object.

    Raises:
        OSError: if it cannot be loaded.
    """
    problem = OSError(f"{file.name} cannot be loaded")
    for path in _paths(file, content):
        try:
            return ffi.dlopen(path, ffi.RTLD_NOW)
        except OSError as error:
            problem = error
    raise problem


def _paths(file: Path, content: bytes) -> Iterator[str]:
    """Yield paths to load an object from: memory, or else its private directory."""
    if hasattr(os, "memfd_create"):
        with suppress(OSError):
            descriptor = os.memfd_create(file.name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                _fill(descriptor, content)
                yield _unique(descriptor)
            finally:
                os.close(descriptor)
    yield str(file)


def _fill(descriptor: int, content: bytes) -> None:
    """Write a file in memory and seal it against changes."""
    import fcntl  # linux: called where files in memory exist

    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)


def _unique(descriptor: int) -> str:
    """Return a path of a descriptor that was not used before.

    The dynamic linker identifies objects by path, and descriptors are reused. Components `.` and
    empty ones have no effect on the path: they are the digits of a number.
    """
    digits = "".join("./" if digit == "1" else ".//" for digit in f"{next(_loads):b}")
    return f"/proc/self/fd/{digits}{descriptor}"  # linux: called where files in memory exist
