"""Compiled kernels on disk, found by their content.

    <cache directory>/cpu_c/<compiler identity>/objects/<hash>.c, .so     one file per compilation
                                                kernels/<hash>.json       where each kernel is

The files of the least recently used half go when there are too many. An entry is code that runs in
the user's process, so the directory belongs to the user alone. Nothing is locked: files appear
whole by renaming, and what cannot be read as expected is built again.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import stat
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from ocannl_core import settings
from ocannl_core.codegen.kernel_text import Loops
from ocannl_core.records import dataclass
from ocannl_cpu_c.compiler import Compilation, Compiler

_MOST_FILES = 4000
"""Some hundred megabytes; each compilation leaves two files."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A file to compile.

    Attributes:
        keys: Those of the kernels that its table lists.
        text: The file.
        loops: What is left to vectorise.
        calls_libraries: False if nothing of a library is mentioned.
    """

    keys: tuple[str, ...]
    text: str
    loops: Loops = Loops.PLAIN
    calls_libraries: bool = True


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a compiled kernel is.

    Attributes:
        path: The shared object.
        position: The kernel's position in the object's table.
        digest: A hash of the object's bytes.
    """

    path: Path
    position: int
    digest: str


@dataclass(frozen=True, slots=True)
class Building:
    """A file that is being compiled."""

    unit: Unit
    compilation: Compilation

    def stop(self) -> None:
        """Ends the compiler if it still runs, and leaves nothing of an unfinished object."""
        self.compilation.stop()
        self.compilation.target.unlink(missing_ok=True)


class DiskCache:
    """The compiled kernels of one compiler on one kind of machine.

    Args:
        root: A directory of the user's own.
        compiler: What builds entries.
    """

    def __init__(self, root: Path, compiler: Compiler) -> None:
        self.root = root
        self._objects = root / compiler.identity[:32] / "objects"
        self._kernels = root / compiler.identity[:32] / "kernels"
        self._compiler = compiler
        self._verified: dict[str, bool] = {}

    def find(self, key: str) -> Entry | None:
        """Returns where a kernel is; None if it is not cached, or not as it was written."""
        try:
            record = json.loads((self._kernels / f"{key}.json").read_bytes())
            path = self._objects / Path(record["object"]).name
            if not self._is_intact(path, record["sha256"]):
                return None
            return Entry(path, int(record["position"]), record["sha256"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def start(self, unit: Unit) -> Building:
        """Starts to compile a file; what is started is given to `build` or stopped.

        Raises:
            OSError: if it cannot be written.
        """
        self._objects.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._kernels.mkdir(mode=0o700, parents=True, exist_ok=True)
        source = self._objects / f"{_name(unit)}.c"
        _write(source, unit.text.encode())
        mark = f"{os.getpid()}.{os.urandom(4).hex()}"
        built = self._objects / f"{_name(unit)}.{mark}.tmp"
        compilation = self._compiler.start(
            source, built, unit.loops, calls_libraries=unit.calls_libraries
        )
        return Building(unit, compilation)

    def build(self, units: Sequence[Unit], early: Sequence[Building] = ()) -> dict[str, Entry]:
        """Compiles files side by side; returns where their kernels are, by key.

        Args:
            units: The files.
            early: Files that are being compiled, whose kernels are wanted, too.

        Raises:
            CompileError: if the compiler rejects one of them.
        """
        started = list(early)
        entries: dict[str, Entry] = {}
        try:
            for unit in units:
                started.append(self.start(unit))
            for each in started:
                each.compilation.finish()
                entries |= self._record(each.unit, each.compilation.target)
        finally:
            for each in started:
                each.stop()
        self._drop_old()
        return entries

    def _drop_old(self) -> None:
        """Removes the half of the files that was not used for longest, if there are too many."""
        files = [each for each in self.root.glob("*/objects/*") if each.suffix != ".tmp"]
        if len(files) <= _MOST_FILES:
            return
        for each in sorted(files, key=_last_use)[: len(files) // 2]:
            with suppress(OSError):
                each.unlink()
        for record in self.root.glob("*/kernels/*.json"):
            with suppress(OSError, ValueError, KeyError, TypeError):
                name = Path(json.loads(record.read_bytes())["object"]).name
                if not (record.parent.parent / "objects" / name).exists():
                    record.unlink()

    def _record(self, unit: Unit, built: Path) -> dict[str, Entry]:
        """Returns where the kernels of a compiled file are, after noting it for later processes."""
        target = self._objects / f"{_name(unit)}.so"
        digest = hashlib.sha256(built.read_bytes()).hexdigest()
        os.replace(built, target)
        for position, key in enumerate(unit.keys):
            record = {"object": target.name, "position": position, "sha256": digest}
            _write(self._kernels / f"{key}.json", json.dumps(record).encode())
        return {key: Entry(target, position, digest) for position, key in enumerate(unit.keys)}

    def _is_intact(self, path: Path, digest: str) -> bool:
        """True if a file is the one that was recorded; looked at once per process."""
        if digest not in self._verified:
            self._verified[digest] = hashlib.sha256(path.read_bytes()).hexdigest() == digest
            with suppress(OSError):  # nobody's right to change the time, say
                os.utime(path)
        return self._verified[digest]


def _last_use(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another process removed it
        return 0.0


def _name(unit: Unit) -> str:
    return hashlib.sha256("\n".join(unit.keys).encode()).hexdigest()[:32]


def open_cache(compiler: Compiler) -> DiskCache:
    """Returns the cache in the user's cache directory, or a temporary one after a warning."""
    return _opened(settings.cache_directory(), compiler)


@cache
def _opened(directory: Path, compiler: Compiler) -> DiskCache:
    root = directory / "cpu_c"
    try:
        _make_private(root)
    except OSError as error:
        return temporary_cache(root, compiler, error)
    return DiskCache(root, compiler)


def temporary_cache(root: Path, compiler: Compiler, error: OSError) -> DiskCache:
    """Returns a cache that goes with the process, after a warning about one that cannot be used."""
    warnings.warn(
        f"Compiled code is not kept: {root} cannot be used ({error}). "
        "Set OCANNL_CACHE_DIR to a directory of your own.",
        RuntimeWarning,
        stacklevel=2,
    )
    return DiskCache(_temporary(), compiler)


@cache
def _temporary() -> Path:
    """Returns a directory that is removed when the process ends."""
    directory = tempfile.mkdtemp(prefix="ocannl-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)


def _make_private(directory: Path) -> None:
    """Makes a directory that only the user can use.

    Raises:
        OSError: if it belongs to somebody else, or cannot be written to.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.stat()
    if status.st_uid != os.geteuid():
        raise PermissionError(f"it belongs to user {status.st_uid}")
    if stat.S_IMODE(status.st_mode) & 0o077:
        directory.chmod(0o700)
    with tempfile.TemporaryFile(dir=directory):
        pass


def _write(path: Path, content: bytes) -> None:
    """Makes a file appear with all its content at once."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
