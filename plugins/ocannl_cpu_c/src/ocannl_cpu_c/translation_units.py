"""Which kernels are compiled together: files of about equal cost, one for each processor.

Kernels that are written in vectors leave a compiler little to find out, so they are compiled apart,
at a lower level of optimisation, which takes half the time or less.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from math import ceil
from typing import assert_never

from ocannl_core.codegen.c_family import CODEGEN_VERSION
from ocannl_core.codegen.helper import MATH
from ocannl_core.codegen.kernel_text import CompilerVectorisation, KernelText
from ocannl_core.codegen.prelude import headers_of
from ocannl_cpu_c.cache import TranslationUnit
from ocannl_cpu_c.source import unit

_LEAST_SECONDS = 0.1
"""What is compiled sooner is one file: starting a compiler and a linker takes a quarter of it."""


def units(kernels: Sequence[KernelText], processors: int) -> list[TranslationUnit]:
    """Returns the files that define these kernels, each of them once."""
    total = sum(map(seconds, kernels))
    if total < _LEAST_SECONDS:
        return [file_of(kernels)]
    share = max(total / processors, _LEAST_SECONDS)
    found: list[TranslationUnit] = []
    for loops in reversed(CompilerVectorisation):
        alike = [each for each in kernels if each.vectorisation is loops]
        count = ceil(sum(map(seconds, alike)) / share - 0.2)
        found += [file_of(part) for part in _divided(alike, max(1, count)) if part]
    return found


@lru_cache(maxsize=256)
def key(kernel: KernelText) -> str:
    """Returns what a kernel is found by: everything it consists of."""
    content = f"{CODEGEN_VERSION}\n{unit([kernel])}"
    return hashlib.sha256(content.encode()).hexdigest()


def seconds(kernel: KernelText) -> float:
    """Returns about how long a compiler takes; only the proportions matter."""
    size = len(kernel.text)
    match kernel.vectorisation:
        case CompilerVectorisation.VECTORS:
            return 0.002 + 2e-6 * size
        case CompilerVectorisation.MIXED:
            return 0.004 + 3e-6 * size
        case CompilerVectorisation.FUNCTIONS:
            return 0.006 + 3e-6 * size
        case CompilerVectorisation.PLAIN:
            return 0.01 + 6e-6 * size
        case _:
            assert_never(kernel.vectorisation)


def _divided(kernels: Sequence[KernelText], count: int) -> list[list[KernelText]]:
    """Returns parts of about equal cost: the most expensive ones first, each to the least part."""
    parts: list[list[KernelText]] = [[] for _ in range(count)]
    costs = [0.0] * count
    for kernel in sorted(kernels, key=seconds, reverse=True):
        least = costs.index(min(costs))
        parts[least].append(kernel)
        costs[least] += seconds(kernel)
    return parts


def file_of(kernels: Sequence[KernelText]) -> TranslationUnit:
    """Returns the file that defines some kernels, with a table of them and one of their keys."""
    keys = tuple(map(key, kernels))
    table = ", ".join(kernel.symbol for kernel in kernels)
    exported = f"void (*const ocannl_kernels[])(void *const *) = {{{table}}};\n"
    text = "\n".join([unit(kernels), exported, keys_text(keys)])
    most = max((kernel.vectorisation for kernel in kernels), key=list(CompilerVectorisation).index)
    libraries = MATH in headers_of(helper for kernel in kernels for helper in kernel.helpers)
    return TranslationUnit(keys, text, most, libraries)


def keys_text(keys: Sequence[str]) -> str:
    """Returns the definition of the keys of an object, in the order of its table of kernels."""
    return f'const char ocannl_keys[] = "{" ".join(keys)}";\n'
