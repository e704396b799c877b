"""C to WebAssembly, by the compiler in the wheel of Zig.

A module is position-independent: it imports the memory, the address of its data and the stack
pointer, so that any number of modules share one linear memory. It contains the functions of the C
library that it calls.
"""

from __future__ import annotations

import hashlib
import os
import subprocess

from ocannl_core.backend_api import CompileError, settings
from ocannl_core.backend_api.files import (
    PackagedCompiler,
    cache_variables,
    object_cache,
    packaged_compiler,
    unfinished_directory,
)

FLAGS = (
    "-target wasm32-wasi -std=gnu11 -O2 -msimd128 -ffp-contract=off -fPIC -shared",
    "-mexec-model=reactor -Wl,--import-memory -Wl,--strip-all",
)


def compile_module(text: str, exports: list[str]) -> bytes:
    """Return the module of a C file that exports these functions.

    Raises:
        CompileError: with the command and its output.
    """
    compiler = packaged_compiler()
    assert compiler is not None, "ocannl_targets has found it"
    identity = hashlib.sha256(repr((compiler.version, FLAGS)).encode()).hexdigest()[:32]
    cache = object_cache(settings.cache_directory(), "wasm", identity, ".wasm")
    key = hashlib.sha256(text.encode()).hexdigest()
    known = cache.find(key)
    if known is None:
        known = cache.add([key], _compiled(compiler, text, exports))
        cache.drop_old()
    return known.content


def _compiled(compiler: PackagedCompiler, text: str, exports: list[str]) -> bytes:
    with unfinished_directory(settings.cache_directory(), "wasm") as folder:
        folder.create("code.c", text.encode())
        command = [
            *compiler.command,
            *" ".join(FLAGS).split(),
            *(f"-Wl,--export={each}" for each in exports),
        ]
        command += ["-o", "code.wasm", "code.c", "-lm"]
        done = subprocess.run(
            command,
            cwd=folder.path,
            env={**os.environ, **cache_variables(str(folder.path / "zig"), keep_libraries=True)},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise CompileError(
                "The compiler accepts generated code.",
                found=done.stderr,
                where=f"{' '.join(command)}\n{text}",
            )
        return (folder.path / "code.wasm").read_bytes()
