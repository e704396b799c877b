"""Compiling the kernels of a routine: those that the cache has not, in a few translation units."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from ocannl_core.backend_api import CompileError, settings
from ocannl_core.backend_api.files import CachedObject, ObjectCache, object_cache
from ocannl_core.backend_api.launches import CODEGEN_VERSION, KernelText
from ocannl_cuda.compiler import CudaCompiler, RejectedError
from ocannl_cuda.dialect import DIALECT, PREAMBLE

_FEWEST = 4
"""The least number of kernels that are worth a translation unit of their own."""
_SHOWN_LINES = 12
_ERROR = re.compile(r"^[^\n:(]*[(:](\d+)[):][^\n]*\berror\b", re.MULTILINE)
"""A message about an error: `name(3): error`, as NVRTC and nvcc write, or `name:3:7: error`."""


def build(
    kernels: Sequence[KernelText],
    compiler: CudaCompiler,
    architecture: str,
    titles: Mapping[str, str],
) -> dict[str, CachedObject]:
    """Return the compiled code of kernels by symbol.

    Args:
        compiler: The compiler of kernels that the cache lacks.
        architecture: The architecture of the device.
        titles: Descriptions of kernels for messages, by symbol.

    Raises:
        CompileError: if the compiler rejects a kernel.
    """
    identity = _identity(compiler, architecture)
    cache = object_cache(settings.cache_directory(), "cuda", identity, ".cubin")
    found: dict[str, CachedObject] = {}
    missing: list[KernelText] = []
    for kernel in kernels:
        cubin = cache.find(kernel.symbol)
        if cubin is None:
            missing.append(kernel)
        else:
            found[kernel.symbol] = cubin
    if not missing:
        return found
    count = max(1, min(os.cpu_count() or 1, len(missing) // _FEWEST))
    groups = [missing[start::count] for start in range(count)]

    def compiled(group: list[KernelText]) -> CachedObject:
        symbols = [kernel.symbol for kernel in group]
        name = f"{symbols[0]}.cu"
        try:
            return cache.add(symbols, compiler.compile(DIALECT.unit(group), architecture, name))
        except RejectedError as error:
            raise _rejection(group, error, compiler, architecture, cache, titles) from error

    if count == 1:
        results = [compiled(groups[0])]
    else:
        with ThreadPoolExecutor(count) as pool:
            results = list(pool.map(compiled, groups))
    cache.drop_old()
    for group, cubin in zip(groups, results, strict=True):
        found |= {kernel.symbol: cubin for kernel in group}
    return found


def _identity(compiler: CudaCompiler, architecture: str) -> str:
    """Return the name of the cache of code that depends on these."""
    parts = (compiler.identity, architecture, PREAMBLE, str(CODEGEN_VERSION))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _rejection(
    group: Sequence[KernelText],
    error: RejectedError,
    compiler: CudaCompiler,
    architecture: str,
    cache: ObjectCache,
    titles: Mapping[str, str],
) -> CompileError:
    """Return the error of the first kernel that is rejected alone."""
    for kernel in group:
        text = DIALECT.unit([kernel])
        try:
            compiler.compile(text, architecture, f"{kernel.symbol}.cu")
        except RejectedError as own:
            return _error_of(kernel, text, str(own), compiler, cache, titles)
    return _error_of(group[0], DIALECT.unit(group), str(error), compiler, cache, titles)


def _error_of(
    kernel: KernelText,
    text: str,
    log: str,
    compiler: CudaCompiler,
    cache: ObjectCache,
    titles: Mapping[str, str],
) -> CompileError:
    source = f"{kernel.symbol}.cu"
    cache.objects.write(source, text.encode())
    path = cache.objects.path / source
    match = _ERROR.search(log)
    lines, number = text.splitlines(), int(match[1]) if match else 0
    line = f", line {number}: {lines[number - 1].strip()}" if 0 < number <= len(lines) else ""
    title = titles.get(kernel.symbol, "")
    about = f" ({title})" if title else ""
    found = "\n".join([compiler.name, *log.splitlines()[:_SHOWN_LINES]])
    if kernel.author:
        return CompileError(
            "The CUDA code of an operation must compile.",
            found=found,
            where=f"{kernel.author}{line}\n{path}",
            fix="correct the operation's `cuda_code` or `cuda_support`",
        )
    return CompileError(
        "A CUDA compiler accepts all generated kernels.",
        found=found,
        where=f"kernel {kernel.symbol}{about}{line}\n{path}",
        fix="this is a defect of ocannl-cuda: report it with this file",
    )
