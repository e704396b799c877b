"""Loading of kernels: from text to addresses of functions, compiled if the cache has none.

Every shared object holds a table of its kernels. Their caller is an object of its own, compiled
once for all routines: `runtime.c`, which has the thread pool.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from ocannl_core.backend_api import CompileError, replace
from ocannl_core.backend_api.files import CachedObject
from ocannl_core.backend_api.launches import CODEGEN_VERSION, CompilerVectorization, KernelText
from ocannl_core.backend_api.queues import process_lock
from ocannl_cpu_c import background_compilation, devices, object_files, own_settings
from ocannl_cpu_c.background_compilation import BackgroundCompilation
from ocannl_cpu_c.bindings import ffi
from ocannl_cpu_c.cache import Building, DiskCache, TranslationUnit, open_cache
from ocannl_cpu_c.calling import set_python_functions
from ocannl_cpu_c.compiler import Compiler, UnfinishedError, find
from ocannl_cpu_c.linking import Libraries
from ocannl_cpu_c.loaded_objects import LoadedKernel, LoadedObject, RecentObjects
from ocannl_cpu_c.translation_units import CHECK_VERSION, checked_loops, key, keys_text, units

_RUNTIME = Path(__file__).with_name("runtime.c")
_ATTEMPTS = 3
_UNRESOLVED = "undefined symbol|symbol not found"
"""Messages of dynamic linkers about code that was linked with too few libraries."""
_CHECKED = tuple(dict.fromkeys(map(checked_loops, CompilerVectorization)))
_SHOWN = 5
"""Kernels that an error names."""


class ForeignObjectError(OSError):
    """An object is complete, and is not the one that was compiled."""


_lock = process_lock()
_loaded: WeakValueDictionary[tuple[Compiler, str], LoadedKernel] = WeakValueDictionary()
_libraries: WeakValueDictionary[str, LoadedObject] = WeakValueDictionary()
_recent = RecentObjects()
_pools: dict[tuple[int, int], Any] = {}


def load(kernels: Sequence[KernelText], *, and_runtime: bool = False) -> dict[str, LoadedKernel]:
    """Return kernels by symbol, after compiling the new ones together.

    Args:
        and_runtime: True to compile the runtime library beside them, if that is new, too.

    Raises:
        CompileError: if there is no compiler, or it rejects them.
    """
    if not kernels:
        return {}
    compiler = find()
    cache = _cache(compiler)
    with _lock:
        _check_compiler(cache, {checked_loops(each.vectorization) for each in kernels})
        found = {each.symbol: _load_cached(cache, compiler, each) for each in kernels}
        missing = [each for each in kernels if found[each.symbol] is None]
        if missing:
            try:
                entries = _build(cache, missing, and_runtime=and_runtime)
            except CompileError as error:
                raise _with_authors(error, missing) from None
            for kernel in missing:
                made = found[kernel.symbol] = _open(key(kernel), entries[key(kernel)])
                _loaded[compiler, kernel.symbol] = made
        loaded = {symbol: each for symbol, each in found.items() if each is not None}
        for each in loaded.values():
            _recent.use(each.mapped)
        return loaded


def begin_compilation() -> BackgroundCompilation | None:
    """Return a background compilation for kernels that will be loaded; None without a compiler, or
    without a second processor for it.
    """
    compiler = _background_compiler()
    if compiler is None:
        return None
    try:
        cache = _cache(compiler)
    except CompileError:  # told when kernels are loaded
        return None

    def is_compiled(kernel: KernelText) -> bool:
        return (compiler, kernel.symbol) in _loaded or cache.find(key(kernel)) is not None

    return BackgroundCompilation(
        cache, devices.processors(), is_compiled, partial(_begin_check, cache)
    )


def prepare() -> None:
    """Start to compile what every use of a device needs, unless it is cached: the runtime library,
    and the check of the compiler for the loops that it has.
    """
    compiler = _background_compiler()
    if compiler is not None:
        with suppress(CompileError):  # told when kernels are loaded
            cache = _cache(compiler)
            background_compilation.start(cache, _missing_runtime(cache))
            _begin_check(cache, checked_loops(_runtime_unit().loops))


def _begin_check(cache: DiskCache, loops: CompilerVectorization) -> None:
    """Start to compile the kernels that check the compiler for a kind of loops, unless it has
    passed.
    """
    if _needs_check(cache, loops):
        from ocannl_cpu_c.compiler_check import check_unit  # which renders its kernels

        background_compilation.start(cache, [check_unit(loops)])


def _cache(compiler: Compiler) -> DiskCache:
    """Return the cache of compiled code.

    Raises:
        CompileError: if there is no directory for it.
    """
    try:
        return open_cache(compiler)
    except OSError as error:
        raise CompileError(
            "Compiled code needs a directory that only the user can change.",
            found=str(error),
            fix="set OCANNL_CACHE_DIR to a directory of your own",
        ) from None


def _background_compiler() -> Compiler | None:
    """Return a compiler that can run beside this thread; None on one processor or without one."""
    try:
        return find() if devices.processors() > 1 else None
    except CompileError:  # told when kernels are loaded
        return None


def runtime() -> Any:
    """Return the library that runs routines: one for the process, since it has the thread pool.

    Raises:
        CompileError: if it is not compiled yet, and there is no compiler.
    """
    with _lock:
        return _runtime()


def pool(device: int, threads: int) -> Any:
    """Return the thread pool of a device."""
    with _lock:
        if (device, threads) not in _pools:
            _pools[device, threads] = _runtime().ocannl_pool(threads)
        return _pools[device, threads]


_found_runtime: list[LoadedObject] = []
"""The runtime library, which stays mapped: its threads wait in its code."""


def _runtime() -> Any:
    if not _found_runtime:
        cache, file = _cache(find()), _runtime_unit()
        entry = cache.find(file.keys[0])
        try:
            library = None if entry is None else _library(file.keys[0], entry)
        except OSError:  # intact, and still not loadable here: built again
            library = None
        if library is None:
            _check_compiler(cache, {checked_loops(file.loops)})
            early = background_compilation.take_running(cache, file.keys)
            entries = _compile(cache, [] if early else [file], early)
            library = _library(file.keys[0], entries[file.keys[0]])
        set_python_functions(library.code)
        _found_runtime.append(library)
    return _found_runtime[0].code


_passed: set[tuple[Path, CompilerVectorization]] = set()
"""The directories of compilers, and the kinds of loops for which they have passed the check."""


def _needs_check(cache: DiskCache, loops: CompilerVectorization) -> bool:
    """Return True if the compiler has to be checked before its code for such loops runs."""
    place = cache.compiled.objects.path, loops
    if place not in _passed and cache.find(_passed_key(loops)) is not None:
        _passed.add(place)
    return place not in _passed and own_settings.current().check_compiler


def _passed_key(loops: CompilerVectorization) -> str:
    """Return the key that the kernels of a check have in the cache if their results were right."""
    content = f"passed {CHECK_VERSION} {CODEGEN_VERSION} {loops.value}"
    return hashlib.sha256(content.encode()).hexdigest()


def _check_compiler(cache: DiskCache, kinds: Collection[CompilerVectorization]) -> None:
    """Check that the compiler gets kernels with known results right, before the first routine with
    some kind of loops runs: once for each compiler and its flags.

    Args:
        kinds: The kinds of loops.

    Raises:
        CompileError: if it gets one wrong.
    """
    needed = [each for each in CompilerVectorization if each in kinds and _needs_check(cache, each)]
    if not needed:
        return
    from ocannl_cpu_c.compiler_check import check_kernels, check_unit, failures

    files = {check_unit(each).keys[0]: check_unit(each) for each in needed}
    early = background_compilation.take_running(cache, files.keys())
    begun = {each.unit.keys for each in early}
    new = [each for each in files.values() if each.keys not in begun]
    entries = _compile(cache, new, early)
    wrong: list[str] = []
    for file_key, file in files.items():
        found = failures(_library(file_key, entries[file_key]), file.loops)
        wrong += [f"{each} ({file.loops.name.lower()} loops)" for each in found]
        if not found:
            _passed.add((cache.compiled.objects.path, file.loops))
            with suppress(OSError):  # then the next process checks it, too
                cache.add_key(_passed_key(file.loops), entries[file_key])
    if not wrong:
        return
    compiler = find()
    command = shlex.join(compiler.command)
    more = f"\nand {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    count = sum(len(check_kernels(file.loops)) for file in files.values())
    raise CompileError(
        "The C compiler must compile kernels with known results right.",
        found=f"{command}, {compiler.version}, gets {len(wrong)} of {count} wrong:\n"
        + "\n".join(wrong[:_SHOWN])
        + more,
        where=" ".join(compiler.flags),
        fix="choose another compiler with OCANNL_CPU_C__CC=..., or less optimization:\n"
        f"OCANNL_CPU_C__CC='{command} -fno-tree-vectorize -fno-tree-loop-vectorize "
        "-fno-tree-slp-vectorize'",
    )


def check_state() -> str:
    """Return a remark for reports on the check of the compiler."""
    if not own_settings.current().check_compiler:
        return "compiler not checked (check_compiler=false)"
    with suppress(CompileError):
        cache = _cache(find())
        left = [loops for loops in _CHECKED if _needs_check(cache, loops)]
        if not left:
            return "compiler checked: it gets kernels with known results right"
        if len(left) < len(_CHECKED):
            return (
                "compiler checked: it gets kernels with known results right; to be checked for "
                f"{left[0].name.lower()} loops before the first of them"
            )
    return "compiler to be checked before its first routine"


def _missing_runtime(cache: DiskCache) -> list[TranslationUnit]:
    """Return the file of the runtime library, unless it is compiled."""
    if _found_runtime or cache.find(_runtime_unit().keys[0]) is not None:
        return []
    return [_runtime_unit()]


@lru_cache(maxsize=1)
def _runtime_unit() -> TranslationUnit:
    """Return the file of the runtime library."""
    text = _RUNTIME.read_text(encoding="utf-8")
    keys = (hashlib.sha256(text.encode()).hexdigest(),)
    return TranslationUnit(keys, f"{text}\n{keys_text(keys)}", CompilerVectorization.VECTORS)


def _build(
    cache: DiskCache, kernels: Sequence[KernelText], *, and_runtime: bool
) -> dict[str, CachedObject]:
    """Return the locations of kernels, after compiling all that are not in compilation."""
    keys = {key(each) for each in kernels}
    files = _missing_runtime(cache) if and_runtime else []
    early = background_compilation.take_running(
        cache, {*keys, *(each for file in files for each in file.keys)}
    )
    begun = {each for building in early for each in building.unit.keys}
    files = [each for each in files if begun.isdisjoint(each.keys)]
    rest = [each for each in kernels if key(each) not in begun]
    if rest:
        files += units(rest, devices.processors())
    return _compile(cache, files, early)


def _compile(
    cache: DiskCache, files: Sequence[TranslationUnit], early: Sequence[Building] = ()
) -> dict[str, CachedObject]:
    """Compile files, and return the locations of their kernels, which can be loaded.

    A file whose compiler was killed or wrote an incomplete object is compiled again, and one that
    calls other functions than those of its libraries is linked with all of them. If an object
    cannot be written or loaded, it is compiled in a temporary directory.

    Raises:
        CompileError: if the compiler rejects it, or none of this helps.
    """
    every = [*files, *(each.unit for each in early)]
    problem = ""
    for _ in range(_ATTEMPTS):
        try:
            entries = cache.build(files, early)
            for each, entry in entries.items():
                _library(each, entry)
            return entries
        except (UnfinishedError, ForeignObjectError) as error:
            problem = str(error)
        except OSError as error:  # a full disk, a file system that runs no code, odd entries
            problem = str(error)
            if re.search(_UNRESOLVED, problem):
                every = [replace(each, libraries=Libraries.DEFAULT) for each in every]
            else:
                try:
                    cache.move(error)
                except OSError as other:
                    problem = str(other)
                    break
        except (KeyboardInterrupt, SystemExit):  # no caller waits for the others either
            background_compilation.stop()
            raise
        files, early = every, ()
    raise CompileError(
        "The C compiler must write shared objects that can be loaded.",
        found=problem,
        fix="see whether the disk is full, and set OCANNL_CACHE_DIR to a directory with "
        "space; check the compiler with OCANNL_CPU_C__CC=...",
    )


def _with_authors(error: CompileError, kernels: Sequence[KernelText]) -> CompileError:
    """Return an error that names the operations whose own code was compiled."""
    authors = dict.fromkeys(kernel.author for kernel in kernels if kernel.author)
    where = "\n".join([*(f"code of {author}" for author in authors), error.where])
    return CompileError(error.rule, found=error.found, where=where, fix=error.fix)


def _load_cached(cache: DiskCache, compiler: Compiler, kernel: KernelText) -> LoadedKernel | None:
    """Return the kernel if it can be loaded without compiling."""
    loaded = _loaded.get((compiler, kernel.symbol))
    if loaded is not None:
        return loaded
    entry = cache.find(key(kernel))
    if entry is None:
        return None
    try:
        loaded = _loaded[compiler, kernel.symbol] = _open(key(kernel), entry)
    except OSError:  # intact, and still not loadable here: built again
        return None
    return loaded


def _open(kernel_key: str, entry: CachedObject) -> LoadedKernel:
    library = _library(kernel_key, entry)
    return LoadedKernel(library.code.ocannl_kernels[library.positions[kernel_key]], library)


def _library(kernel_key: str, entry: CachedObject) -> LoadedObject:
    """Return the object of a kernel, mapped once.

    Raises:
        OSError: if it cannot be loaded, or does not have the kernel.
    """
    library = _libraries.get(entry.name)
    if library is None:
        code = object_files.load(entry.path, entry.content)
        library = _libraries[entry.name] = LoadedObject(code, _positions(code))
        _recent.use(library)
    if kernel_key not in library.positions:
        raise ForeignObjectError(f"{entry.name} does not have the kernel {kernel_key}")
    return library


def _positions(code: Any) -> dict[str, int]:
    """Return the position of each kernel in the table of an object."""
    try:
        keys = ffi.string(code.ocannl_keys).decode()
    except (ffi.error, UnicodeDecodeError):  # not from this loader
        return {}
    return {key: position for position, key in enumerate(keys.split())}
