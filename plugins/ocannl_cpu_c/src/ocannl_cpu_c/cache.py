"""Compiled kernels on disk, found by their content.

    <cache directory>/cpu_c/<compiler identity>/objects/<hash>.c     the files that were compiled
                                                objects/<hash>.so    their shared objects
                                                kernels/<hash>.json  the object of a kernel

Objects are named after a hash of their bytes, and have a table of the kernels in them, so that a
kernel is found by its key at any position. When there are too many files, the least recently used
half is removed. There are no locks: files are renamed into place when complete, and files whose
digest differs are built again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import field
from functools import lru_cache
from pathlib import Path

from ocannl_core.backend_api import CompileError, dataclass, settings
from ocannl_core.backend_api.c_family import CompilerVectorisation
from ocannl_core.backend_api.files import (
    PrivateDirectory,
    add_json_digest,
    private_directory,
    strip_json_digest,
    temporary_directory,
    unfinished_name,
)
from ocannl_cpu_c.compiler import Compilation, Compiler, UnfinishedError
from ocannl_cpu_c.object_files import defect_of

_MOST_FILES = 4000
"""The greatest number of files, some hundred megabytes; each compilation leaves two."""
_LARGEST_RECORD = 1 << 12
_MOST_RECENT = 8


@dataclass(frozen=True, slots=True)
class TranslationUnit:
    """A C file with the kernels that it defines.

    Attributes:
        keys: The keys of the kernels in its table.
        text: The file.
        loops: The loops that the compiler is to vectorise.
        calls_libraries: False if it calls no library.
    """

    keys: tuple[str, ...]
    text: str
    loops: CompilerVectorisation = CompilerVectorisation.PLAIN
    calls_libraries: bool = True


@dataclass(frozen=True, slots=True)
class CachedKernel:
    """The location of a compiled kernel.

    Attributes:
        key: The kernel's key.
        name: The name of the object, which is that of its bytes.
        content: The object.
        directory: The directory of the object.
    """

    key: str
    name: str
    content: bytes = field(repr=False, compare=False)
    directory: PrivateDirectory = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Building:
    """A translation unit in compilation.

    Attributes:
        unit: The file.
        compilation: The running compiler.
        directory: The directory of the source and of the unfinished object.
        cache: The cache that the finished object goes to.
    """

    unit: TranslationUnit
    compilation: Compilation
    directory: PrivateDirectory
    cache: DiskCache

    def stop(self) -> None:
        """Stop the compiler if it still runs, and remove unfinished files."""
        self.compilation.stop()
        self.cache.scratch.remove(self.directory.path.name)


class DiskCache:
    """The compiled kernels of one compiler on one kind of machine.

    Args:
        root: The directory of all such caches.
        compiler: The compiler that builds entries.
        is_temporary: True if compilers must put their temporary files there, too.

    Raises:
        OSError: if its directories cannot be made.
    """

    def __init__(
        self, root: PrivateDirectory, compiler: Compiler, *, is_temporary: bool = False
    ) -> None:
        self.root = root
        self.scratch = root.scratch
        own = root.child(compiler.identity[:32])
        self._objects = own.child("objects")
        self._kernels = own.child("kernels")
        self._compiler = compiler
        self._is_temporary = is_temporary
        self._spare: DiskCache | None = None
        self._recent: dict[str, bytes] = {}

    def is_current(self) -> bool:
        """Return True if its directories still exist and are still private."""
        return all(each.is_current() for each in (self.scratch, self._objects, self._kernels))

    def find(self, key: str) -> CachedKernel | None:
        """Return the location of a kernel; None if it is not cached, or its digest differs."""
        name = f"{key}.json"
        content = self._kernels.read(name, limit=_LARGEST_RECORD)
        record = None if content is None else strip_json_digest(name, content)
        if record is not None:
            found = self._intact(str(record.get("object")))
            if found is not None:
                return CachedKernel(key, str(record["object"]), found, self._objects)
        return None if self._spare is None else self._spare.find(key)

    def start(self, unit: TranslationUnit) -> Building:
        """Start to compile a file; the caller passes the result to `build` or stops it.

        Raises:
            OSError: if it cannot be written.
        """
        if self._spare is not None:
            return self._spare.start(unit)
        name = _name(unit)
        # objects contain the name of their source, so it is the same in each process
        directory = self.scratch.child(unfinished_name())
        try:
            directory.create(f"{name}.c", unit.text.encode())
            compilation = self._compiler.start(
                Path(f"{name}.c"),
                Path(f"{name}.so"),
                unit.loops,
                calls_libraries=unit.calls_libraries,
                directory=directory,
                is_only_place=self._is_temporary,
            )
        except BaseException:
            self.scratch.remove(directory.path.name)
            raise
        return Building(unit, compilation, directory, self)

    def build(
        self, units: Sequence[TranslationUnit], early: Sequence[Building] = ()
    ) -> dict[str, CachedKernel]:
        """Compile files in parallel; return the locations of their kernels by key.

        Args:
            units: The files.
            early: Files in compilation, whose kernels are returned, too.

        Raises:
            CompileError: if the compiler rejects one of them.
            UnfinishedError: if one was stopped, or did not write a whole object.
            OSError: if something cannot be written.
        """
        started = list(early)
        entries: dict[str, CachedKernel] = {}
        try:
            for unit in units:
                started.append(self.start(unit))
            for each in started:
                entries |= each.cache._finished(each)
        finally:
            for each in started:
                each.stop()
        self._drop_old()
        return entries

    def move(self, error: OSError) -> None:
        """Use a temporary directory for objects built from now on, after a warning.

        Args:
            error: The reason why this directory cannot be used.

        Raises:
            OSError: if there is no temporary directory.
        """
        if self._spare is None and not self._is_temporary:
            self._spare = _temporary(self.root.path, self._compiler, error)

    def _finished(self, building: Building) -> dict[str, CachedKernel]:
        """Return the locations of the kernels of a compiled file, after recording them on disk."""
        directory, source = building.directory, f"{_name(building.unit)}.c"
        try:
            building.compilation.finish(self._objects.path / source)
        except CompileError:
            self._objects.take(directory, source)
            raise
        self._objects.take(directory, source)
        content = directory.read_unfinished(building.compilation.target.name)
        missing = "there is none" if content is None else defect_of(content)
        if content is None or missing:
            raise UnfinishedError(
                building.compilation.command, f"it wrote no whole shared object: {missing}"
            )
        name = _object_name(content)
        self._objects.write(name, content)
        for key in building.unit.keys:
            record = f"{key}.json"
            self._kernels.write(record, add_json_digest(record, {"object": name}))
        return {key: CachedKernel(key, name, content, self._objects) for key in building.unit.keys}

    def _intact(self, name: str) -> bytes | None:
        """Return an object if its digest is right; consecutive kernels of one object read it
        once.
        """
        found = self._recent.get(name)
        if found is None:
            found = self._objects.read(name, is_use=True) if _is_object_name(name) else None
            if found is None or _object_name(found) != name:
                return None
            self._recent[name] = found
            while len(self._recent) > _MOST_RECENT:
                del self._recent[next(iter(self._recent))]
        return found

    def _drop_old(self) -> None:
        """Remove the least recently used half of the files, if there are too many."""
        every = [(place, name) for place in self._places("objects") for name in place.names()]
        if len(every) <= _MOST_FILES:
            return
        every.sort(key=lambda each: each[0].last_use(each[1]))
        for place, name in every[: len(every) // 2]:
            place.remove(name)
        left = {name for _, name in every[len(every) // 2 :]}
        for place in self._places("kernels"):
            for name in place.names():
                record = strip_json_digest(name, place.read(name, limit=_LARGEST_RECORD) or b"")
                if record is None or record.get("object") not in left:
                    place.remove(name)

    def _places(self, name: str) -> list[PrivateDirectory]:
        """Return the directories of this name of all compilers."""
        found = []
        for identity in self.root.names():
            with suppress(OSError):
                found.append(self.root.existing_child(identity).existing_child(name))
        return found


def _name(unit: TranslationUnit) -> str:
    return hashlib.sha256("\n".join(unit.keys).encode()).hexdigest()[:32]


def _object_name(content: bytes) -> str:
    return f"{hashlib.sha256(content).hexdigest()}.so"


def _is_object_name(name: str) -> bool:
    return name.endswith(".so") and name.removesuffix(".so").isalnum()


def open_cache(compiler: Compiler) -> DiskCache:
    """Return the cache in the user's cache directory, or a temporary one after a warning.

    Raises:
        OSError: if no temporary one can be made either.
    """
    directory = settings.cache_directory()
    found = _opened(directory, compiler)
    if not found.is_current():
        _opened.cache_clear()
        found = _opened(directory, compiler)
    return found


@lru_cache(maxsize=8)
def _opened(directory: Path, compiler: Compiler) -> DiskCache:
    try:
        return DiskCache(private_directory(directory, "cpu_c"), compiler)
    except OSError as error:
        return _temporary(directory, compiler, error)


def _temporary(directory: Path, compiler: Compiler, error: OSError) -> DiskCache:
    """Return a cache that is removed with the process, after a warning about the unusable one."""
    root = temporary_directory(directory, "cpu_c", error)
    return DiskCache(root, compiler, is_temporary=True)
