"""Compilation of an exported C file to WebAssembly, by the compiler in the wheel `ziglang`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ocannl_core.base import packaged_compiler
from ocannl_core.base.errors import CompileError

_FREESTANDING = ("-target", "wasm32-freestanding")
_WITH_LIBRARY = ("-target", "wasm32-wasi", "-mexec-model=reactor", "-lm")
_FLAGS = (
    "-std=gnu11",
    "-O2",
    "-s",
    "-w",
    "-msimd128",
    "-mbulk-memory",
    "-fno-math-errno",
    "-Wl,--no-entry",
)


def compile_wasm(
    source: bytes, header: bytes, stem: str, symbols: Sequence[str], *, needs_library: bool
) -> bytes:
    """Return a C file, compiled to a module without imports.

    Args:
        stem: The name of the C file and of its header.
        symbols: The names that the module exports.
        needs_library: True for code that calls elementary functions of the C library, which become
            a part of the module.

    Raises:
        CompileError: if the compiler is not installed, or the code needs functions of a library.
    """
    compiler = packaged_compiler.find()
    if compiler is None:
        raise CompileError(
            "WebAssembly is compiled by the package ziglang.",
            found="it is not installed",
            fix="pip install 'ocannl-core[compiler]', or export to a `.c` file for another one",
        )
    exports = [f"-Wl,--export={each}" for each in symbols]
    system = _WITH_LIBRARY if needs_library else _FREESTANDING
    flags = [*system, *_FLAGS, *exports]
    with TemporaryDirectory(prefix="ocannl-") as name:
        folder = Path(name)
        (folder / f"{stem}.c").write_bytes(source)
        (folder / f"{stem}.h").write_bytes(header)
        files = ["-o", str(folder / "module"), str(folder / f"{stem}.c")]
        result = packaged_compiler.run(compiler, [*flags, *files], name, keep_libraries=True)
        if result.returncode:
            raise CompileError(
                "Exported code compiles for WebAssembly if it needs elementary functions alone.",
                found=result.stderr.strip()[-2000:],
                where=f"{stem}.c",
                fix="leave out operations with C code of their own that includes other headers",
            )
        return (folder / "module").read_bytes()
