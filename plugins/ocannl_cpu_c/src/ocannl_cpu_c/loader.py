"""From kernels as text to addresses of functions; only text that nobody compiled yet is compiled.

Every shared object holds a table of its kernels and the dispatcher, one fixed function that walks a
list of calls, so that a routine is one call from Python.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cffi import FFI

from ocannl_core.codegen.c_family import CODEGEN_VERSION, KernelText
from ocannl_core.errors import CompileError
from ocannl_cpu_c.cache import DiskCache, Entry, open_cache, temporary_cache
from ocannl_cpu_c.compiler import Compiler, find
from ocannl_cpu_c.source import unit

ffi = FFI()
ffi.cdef(
    """
    struct step { void (*kernel)(void *const *); void *const *args; };
    void ocannl_run(const struct step *steps, int64_t count);
    extern void (*const ocannl_kernels[])(void *const *);
    """
)

_DISPATCHER = """\
struct step {
  void (*kernel)(void *const *);
  void *const *args;
};

void ocannl_run(const struct step *steps, int64_t count) {
  for (int64_t i = 0; i < count; ++i) steps[i].kernel(steps[i].args);
}
"""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A kernel that can be called.

    Attributes:
        kernel: Its address.
        run: The dispatcher; that of any object will do.
    """

    kernel: Any
    run: Any


_lock = threading.Lock()
_loaded: dict[tuple[Compiler, str], Loaded] = {}
_libraries: dict[tuple[Path, str], Any] = {}


def load(kernels: Sequence[KernelText]) -> dict[str, Loaded]:
    """Returns the kernels by symbol, after compiling together those that are new.

    Raises:
        CompileError: if there is no compiler, or it rejects them.
    """
    if not kernels:
        return {}
    compiler = find()
    cache = open_cache(compiler)
    with _lock:
        missing = [each for each in kernels if not _load_cached(cache, compiler, each)]
        if missing:
            try:
                opened = _built(cache, missing)
            except OSError as error:  # a full disk, a file system that runs no code, odd entries
                opened = _built(temporary_cache(cache.root, compiler, error), missing)
            except CompileError as error:
                raise _with_authors(error, missing) from None
            for kernel, loaded in zip(missing, opened, strict=True):
                _loaded[compiler, kernel.symbol] = loaded
        return {each.symbol: _loaded[compiler, each.symbol] for each in kernels}


def _built(cache: DiskCache, kernels: Sequence[KernelText]) -> list[Loaded]:
    """Returns kernels compiled now."""
    entries = cache.build([_key(each) for each in kernels], _translation_unit(kernels))
    return [_open(entry) for entry in entries]


def _with_authors(error: CompileError, kernels: Sequence[KernelText]) -> CompileError:
    """Returns an error that names the operations whose own code was compiled."""
    authors = dict.fromkeys(kernel.author for kernel in kernels if kernel.author)
    where = "\n".join([*(f"code of {author}" for author in authors), error.where])
    return CompileError(error.rule, found=error.found, where=where, fix=error.fix)


def _load_cached(cache: DiskCache, compiler: Compiler, kernel: KernelText) -> bool:
    """True if the kernel is loaded now, without compiling."""
    if (compiler, kernel.symbol) in _loaded:
        return True
    entry = cache.find(_key(kernel))
    if entry is None:
        return False
    try:
        _loaded[compiler, kernel.symbol] = _open(entry)
    except OSError:  # intact, and still not loadable here: built again
        return False
    return True


def _open(entry: Entry) -> Loaded:
    library = _libraries.get((entry.path, entry.digest))
    if library is None:
        library = ffi.dlopen(str(entry.path))
        _libraries[entry.path, entry.digest] = library
    return Loaded(library.ocannl_kernels[entry.position], library.ocannl_run)


def _key(kernel: KernelText) -> str:
    """Returns what a kernel is found by: everything it consists of."""
    content = f"{CODEGEN_VERSION}\n{_DISPATCHER}\n{unit([kernel])}"
    return hashlib.sha256(content.encode()).hexdigest()


def _translation_unit(kernels: Sequence[KernelText]) -> str:
    table = ", ".join(kernel.symbol for kernel in kernels)
    exported = f"void (*const ocannl_kernels[])(void *const *) = {{{table}}};\n"
    return "\n".join([unit(kernels), exported, _DISPATCHER])
