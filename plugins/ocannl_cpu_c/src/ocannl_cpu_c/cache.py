"""The kernels of one compiler, on disk or in compilation.

Beside each object is the C file that was compiled. An object has a table of the kernels in it, so
that a kernel is found by its key at any position.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from ocannl_core.backend_api import CompileError, dataclass, settings
from ocannl_core.backend_api.files import (
    CachedObject,
    ObjectCache,
    PrivateDirectory,
    object_cache,
    unfinished_name,
)
from ocannl_core.backend_api.launches import CompilerVectorization
from ocannl_cpu_c.compiler import Compilation, Compiler, UnfinishedError
from ocannl_cpu_c.linking import Libraries
from ocannl_cpu_c.object_files import defect_of


@dataclass(frozen=True, slots=True)
class TranslationUnit:
    """A C file with the kernels that it defines.

    Attributes:
        keys: The keys of the kernels in its table.
        text: The file.
        loops: The loops that the compiler is to vectorize.
        libraries: The libraries to link it with.
        has_doubles: True if it may convert numbers to float64 and back.
    """

    keys: tuple[str, ...]
    text: str
    loops: CompilerVectorization = CompilerVectorization.PLAIN
    libraries: Libraries = Libraries.C
    has_doubles: bool = False


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
        self.cache.compiled.scratch.remove(self.directory.path.name)


class DiskCache:
    """The kernels of one compiler on one kind of machine, on disk or in compilation.

    Args:
        compiled: The objects on disk.
        compiler: The compiler that builds entries.
    """

    def __init__(self, compiled: ObjectCache, compiler: Compiler) -> None:
        self.compiled = compiled
        self._compiler = compiler
        self._spare: DiskCache | None = None

    def find(self, key: str) -> CachedObject | None:
        """Return the object that has a kernel; None if it is not cached, or its digest differs."""
        found = self.compiled.find(key)
        if found is not None:
            return found
        return None if self._spare is None else self._spare.find(key)

    def add_key(self, key: str, found: CachedObject) -> None:
        """Record that an object has another key, too.

        Raises:
            OSError: if it cannot be written.
        """
        if self._spare is not None:
            self._spare.add_key(key, found)
        else:
            self.compiled.add([key], found.content)

    def start(self, unit: TranslationUnit) -> Building:
        """Start to compile a file; the caller passes the result to `build` or stops it.

        Raises:
            OSError: if it cannot be written.
        """
        if self._spare is not None:
            return self._spare.start(unit)
        name = _name(unit)
        # objects contain the name of their source, so it is the same in each process
        scratch = self.compiled.scratch
        directory = scratch.child(unfinished_name())
        try:
            directory.create(f"{name}.c", unit.text.encode())
            compilation = self._compiler.start(
                Path(f"{name}.c"),
                Path(f"{name}.so"),
                unit.loops,
                libraries=unit.libraries,
                has_doubles=unit.has_doubles,
                directory=directory,
            )
        except BaseException:
            scratch.remove(directory.path.name)
            raise
        return Building(unit, compilation, directory, self)

    def build(
        self, units: Sequence[TranslationUnit], early: Sequence[Building] = ()
    ) -> dict[str, CachedObject]:
        """Compile files in parallel; return the objects of their kernels by key.

        Args:
            units: The files.
            early: Files in compilation, whose kernels are returned, too.

        Raises:
            CompileError: if the compiler rejects one of them.
            UnfinishedError: if one was stopped, or did not write a whole object.
            OSError: if something cannot be written.
        """
        started = list(early)
        entries: dict[str, CachedObject] = {}
        try:
            for unit in units:
                started.append(self.start(unit))
            for each in started:
                entries |= each.cache._finished(each)
        finally:
            for each in started:
                each.stop()
        self.compiled.drop_old()
        return entries

    def move(self, error: OSError) -> None:
        """Use a temporary directory for objects built from now on, after a warning; a new one if
        the last has been removed.

        Args:
            error: The reason why this directory cannot be used.

        Raises:
            OSError: if there is no temporary directory.
        """
        self._spare = DiskCache(self.compiled.replacement(error), self._compiler)

    def _finished(self, building: Building) -> dict[str, CachedObject]:
        """Return the object of the kernels of a compiled file, after recording it on disk."""
        directory, source = building.directory, f"{_name(building.unit)}.c"
        objects = self.compiled.objects
        try:
            building.compilation.finish(objects.path / source)
        except CompileError:
            objects.write(source, building.unit.text.encode())
            raise
        objects.write(source, building.unit.text.encode())
        content = directory.read_unfinished(building.compilation.target.name)
        missing = "there is none" if content is None else defect_of(content)
        if content is None or missing:
            raise UnfinishedError(
                building.compilation.command, f"it wrote no whole shared object: {missing}"
            )
        found = self.compiled.add(building.unit.keys, content)
        return dict.fromkeys(building.unit.keys, found)


def _name(unit: TranslationUnit) -> str:
    return hashlib.sha256("\n".join(unit.keys).encode()).hexdigest()[:32]


def open_cache(compiler: Compiler) -> DiskCache:
    """Return the cache in the user's cache directory, or a temporary one after a warning.

    Raises:
        OSError: if no temporary one can be made either.
    """
    identity = compiler.identity[:32]
    return DiskCache(object_cache(settings.cache_directory(), "cpu_c", identity, ".so"), compiler)
