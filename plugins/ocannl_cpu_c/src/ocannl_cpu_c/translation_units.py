"""Division of kernels into translation units of about equal cost, one for each processor.

Kernels that are rendered with vector types leave a compiler little to optimize, so they are
compiled in files of their own at a lower level of optimization, which takes half the time or less.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from math import ceil
from typing import assert_never

from ocannl_core.backend_api.launches import CODEGEN_VERSION, CompilerVectorization, KernelText
from ocannl_cpu_c.cache import TranslationUnit
from ocannl_cpu_c.linking import Libraries

_LEAST_SECONDS = 0.1
"""Kernels of less estimated time share one file: starting compiler and linker takes a quarter of
it.
"""

CHECK_VERSION = 2
"""Incremented when the kernels that check compilers change."""


def checked_loops(loops: CompilerVectorization) -> CompilerVectorization:
    """Return the kind of loops for which a compiler is checked before its code for a file runs.

    The check of mixed loops covers all kinds but plain ones. The defects that are known at the
    highest level of optimization are of sums, whose iterations depend on each other.
    """
    plain = CompilerVectorization.PLAIN
    return plain if loops is plain else CompilerVectorization.MIXED


def units(kernels: Sequence[KernelText], processors: int) -> list[TranslationUnit]:
    """Return the files that define these kernels, each of them once."""
    total = sum(map(estimated_seconds, kernels))
    if total < _LEAST_SECONDS:
        return [file_of(kernels)]
    share = max(total / processors, _LEAST_SECONDS)
    found: list[TranslationUnit] = []
    for loops in reversed(CompilerVectorization):
        alike = [each for each in kernels if each.vectorization is loops]
        count = ceil(sum(map(estimated_seconds, alike)) / share - 0.2)
        found += [file_of(part) for part in _divide(alike, max(1, count)) if part]
    return found


@lru_cache(maxsize=256)
def key(kernel: KernelText) -> str:
    """Return the key of a kernel: a hash of its text, its helpers and their definitions."""
    helpers = " ".join(kernel.helpers)
    content = f"{CODEGEN_VERSION}\n{kernel.definitions}\n{helpers}\n{kernel.text}"
    return hashlib.sha256(content.encode()).hexdigest()


def estimated_seconds(kernel: KernelText) -> float:
    """Return the estimated compile time in seconds; only the proportions matter."""
    size = len(kernel.text)
    match kernel.vectorization:
        case CompilerVectorization.VECTORS:
            return 0.002 + 2e-6 * size
        case CompilerVectorization.MIXED:
            return 0.004 + 3e-6 * size
        case CompilerVectorization.FUNCTIONS:
            return 0.006 + 3e-6 * size
        case CompilerVectorization.INDEPENDENT | CompilerVectorization.PLAIN:
            return 0.01 + 6e-6 * size
        case _:
            assert_never(kernel.vectorization)


def _divide(kernels: Sequence[KernelText], count: int) -> list[list[KernelText]]:
    """Return parts of about equal cost: the most expensive ones first, each to the least part."""
    parts: list[list[KernelText]] = [[] for _ in range(count)]
    costs = [0.0] * count
    for kernel in sorted(kernels, key=estimated_seconds, reverse=True):
        least = costs.index(min(costs))
        parts[least].append(kernel)
        costs[least] += estimated_seconds(kernel)
    return parts


def file_of(kernels: Sequence[KernelText]) -> TranslationUnit:
    """Return the file that defines some kernels, with a table of them and one of their keys."""
    from ocannl_core.backend_api.c_family import MATH, headers_of  # only where code is compiled
    from ocannl_cpu_c.dialect import DIALECT

    keys = tuple(map(key, kernels))
    table = ", ".join(kernel.symbol for kernel in kernels)
    exported = f"void (*const ocannl_kernels[])(void *const *) = {{{table}}};\n"
    text = "\n".join([DIALECT.unit(kernels), exported, keys_text(keys)])
    most = max((kernel.vectorization for kernel in kernels), key=list(CompilerVectorization).index)
    helpers = {helper for kernel in kernels for helper in kernel.helpers}
    calls_libraries = MATH in headers_of(helpers, DIALECT.words.files)
    libraries = Libraries.C if calls_libraries else Libraries.NONE
    return TranslationUnit(keys, text, most, libraries, has_doubles="double" in text)


def keys_text(keys: Sequence[str]) -> str:
    """Return the definition of the keys of an object, in the order of its table of kernels."""
    return f'const char ocannl_keys[] = "{" ".join(keys)}";\n'
