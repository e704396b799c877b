"""The C compiler: its choice, its flags for a processor, and its runs."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from ocannl_core.backend_api import (
    CompileError,
    DotProduct,
    MatrixUnit,
    TileProduct,
    dataclass,
    settings,
)
from ocannl_core.backend_api.files import PrivateDirectory, cache_variables, unfinished_directory
from ocannl_core.backend_api.launches import EMULATED_TILES, CompilerVectorization
from ocannl_cpu_c import amx_permission, own_settings
from ocannl_cpu_c.compiler_command import WITHOUT_COMPILER, CompilerCommand, choose
from ocannl_cpu_c.linking import Libraries, Linking, linking
from ocannl_cpu_c.matrix_units import TILE_PRODUCTS, units_of
from ocannl_cpu_c.processes import Process

_ARITHMETIC = (
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-builtin-pow",  # or pow(x, 0.5) becomes sqrt, which differs at -inf and -0
    "-fno-builtin-powf",
    "-fno-trapping-math",
    "-fwrapv",
)
"""Every operation rounds on its own; errno and floating-point traps are unused. Integers
wrap around: sums that change between signed and unsigned numbers GCC 12.2 vectorizes wrongly.
"""
_BASE = ("-std=gnu11", *_ARITHMETIC, "-fPIC", "-shared", "-w")
_LEVELS_OF_CLANG = (
    ("-O2", "-fno-slp-vectorize", "-fno-vectorize", "-fno-unroll-loops"),
    ("-O2", "-fno-slp-vectorize"),
    ("-O2", "-fno-slp-vectorize"),
    ("-O3",),
    ("-O3",),
)
"""As `_LEVELS_OF_GCC`. Superword-level parallelism, which clang 22 finds beside explicit vectors,
makes convolutions half as fast.
"""
_VECTORS_OF_GCC = (
    "-fira-region=one",
    "-fno-aggressive-loop-optimizations",
    "-fno-dse",
    "-fno-if-conversion",
    "-fno-ipa-modref",
    "-fno-ipa-pure-const",
    "-fno-ssa-backprop",
    "-fno-ssa-phiopt",
    "-fno-tree-ccp",
    "-fno-tree-copy-prop",
    "-fno-tree-forwprop",
)
"""Register allocation has one region per kernel: with a region per loop, GCC 12.2 spills some of
the vectors of an innermost loop. The disabled passes improve nothing in vector code, and take a
quarter of the time.
"""
_WITH_PLAIN_LOOPS = ("-ftree-loop-vectorize", "-fvect-cost-model=dynamic")
_LEVELS_OF_GCC = (
    ("-Og", *_VECTORS_OF_GCC, "-fno-ivopts"),
    ("-O1", *_VECTORS_OF_GCC, "-fno-ivopts", *_WITH_PLAIN_LOOPS),
    ("-O1", *_VECTORS_OF_GCC, "-fgcse", *_WITH_PLAIN_LOOPS),
    ("-O3",),
    ("-O3",),
)
"""Optimization levels for each kind of loops: where most of the text is vectors, the higher levels
take twice as long and improve nothing but the plain loops. Address strength reduction is done by
the renderer where the text is vectors: in the compiler it takes a third of the time.
Common-subexpression elimination moves constants of functions out of loops.
"""
_OF_ZIG = ("-g0",)
"""Debug information, which Zig adds by default."""
_NO_SPACE = "No space left on device|Disk quota exceeded|NoSpaceLeft"
_STOPPED = (
    "signal terminated program|terminated with signal|failed due to signal|[Cc]ommand: Killed"
)
"""Messages of GCC, linkers and clang about a subprocess that was killed."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler that works.

    Attributes:
        command: The program and its first arguments. flags: The arguments before the files, the
            same for all files. levels: The flags of the optimization level for each kind of loops.
        linking: The arguments for libraries.
        version: Its name and version. origin: The place where it was chosen or found.
        vector_bytes: Width of the vector registers it may use.
        vector_registers: The number of vector registers.
        has_fma: True if it may use instructions that multiply and add.
        matrix_units: The instructions for several products that it may use, or emulate.
        tiles: A remark about tile registers for reports; empty if the processor has none.
        identity: A hash of everything that its output depends on: the flags, the version, and the
            macros that they predefine on this machine.
        for_doubles: The flags beside `flags` for files that may convert numbers to float64.
    """

    command: tuple[str, ...]
    flags: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...]
    linking: Linking
    version: str
    origin: str
    vector_bytes: int
    vector_registers: int
    has_fma: bool
    matrix_units: tuple[MatrixUnit, ...]
    tiles: str
    identity: str
    for_doubles: tuple[str, ...] = ()

    def start(
        self,
        source: Path,
        target: Path,
        loops: CompilerVectorization = CompilerVectorization.PLAIN,
        *,
        libraries: Libraries = Libraries.DEFAULT,
        has_doubles: bool = False,
        directory: PrivateDirectory | None = None,
    ) -> Compilation:
        """Start to compile a C file into a shared object.

        Args:
            source: The file.
            target: The path of the object.
            loops: The loops to vectorize; fewer compile faster.
            libraries: The libraries to link it with.
            has_doubles: True for a file that may convert numbers to float64 and back.
            directory: The directory of both and of the compiler's temporary files, which it reaches
                by its descriptor, so that no other path can be substituted; None for files
                anywhere.

        Raises:
            OSError: if it cannot be started.
        """
        level = self.levels[list(CompilerVectorization).index(loops)]
        # flags of the user that switch something off win
        level = tuple(each for each in level if f"-fno-{each[2:]}" not in self.command)
        variables, descriptors = {}, []
        if directory is not None:
            source, target = directory.place / source, directory.place / target
            descriptors = [directory.descriptor]
            is_default = self.linking[libraries] == self.linking[Libraries.DEFAULT]
            variables = _variables(self.command, directory, keep_libraries=is_default)
        files = ("-o", str(target), str(source))
        flags = (*self.flags, *self.for_doubles) if has_doubles else self.flags
        command = (*self.command, *level, *flags, *files, *self.linking[libraries])
        return Compilation(command, source, target, Process(command, variables, descriptors))


class UnfinishedError(Exception):
    """A compiler was killed, or its output is incomplete.

    Args:
        command: The compiler.
        found: Its behavior or its output, for the message.
    """

    def __init__(self, command: Sequence[str], found: str) -> None:
        self.command = tuple(command)
        self.found = found
        super().__init__(f"{shlex.join(command)}: {found}")


@dataclass(frozen=True, slots=True)
class Compilation:
    """A running compiler.

    Attributes:
        command: The program and its arguments. source: The file.
        target: The object.
        process: The running process.
    """

    command: Sequence[str]
    source: Path
    target: Path
    process: Process

    def finish(self, kept: Path | None = None) -> None:
        """Wait for the compiler to succeed.

        Args:
            kept: The path of the file for messages; None for its own path.

        Raises:
            CompileError: with the command and the compiler's output, if it rejects the file.
            UnfinishedError: if it was killed.
            OSError: if there was no space for its output.
        """
        status, output = self.process.finish()
        if kept is not None:
            output = output.replace(str(self.source), str(kept))
        if status == 0 and self.target.exists():
            return
        if re.search(_NO_SPACE, output):
            raise OSError(
                errno.ENOSPC, os.strerror(errno.ENOSPC), str((kept or self.target).parent)
            )
        if status < 0 or re.search(_STOPPED, output):
            by = f"signal {-status}" if status < 0 else output
            raise UnfinishedError(self.command, f"it was stopped: {by}")
        made = "" if status else ", but no shared object"
        said = f"exit status {status}{made}\n{output}"
        raise CompileError(
            "The C compiler must accept generated code.",
            found=said.rstrip(),
            where=f"{self._shown(kept)}\nthe source is kept there",
            fix="check the compiler with OCANNL_CPU_C__CC=...; OCANNL_BACKEND=interp runs without "
            "one",
        )

    def _shown(self, kept: Path | None) -> str:
        """Return the command that compiles the kept file."""
        command = list(self.command)
        if kept is not None:
            at = command.index(str(self.target))
            command[at : at + 2] = str(kept.with_suffix(".so")), str(kept)
        return shlex.join(command)

    def stop(self) -> None:
        """Stop the compiler if it still runs."""
        self.process.stop()


def find() -> Compiler:
    """Return the compiler of the settings, or else the first one on the path.

    Detection runs the compiler once per process and choice.

    Raises:
        CompileError: if there is none, or it does not work.
    """
    own = own_settings.current()
    found = _find(own.cc, os.environ.get("CC"), os.environ.get("PATH", ""), own.arch)
    if isinstance(found, CompileError):
        raise found
    return found


@cache
def _find(
    setting: str | None, variable: str | None, path: str, arch: str
) -> Compiler | CompileError:
    """Return a compiler or the error that explains its absence; either is cached."""
    try:
        return _probe(choose(setting, variable), arch)
    except CompileError as error:
        return error


def _probe(chosen: CompilerCommand, arch: str) -> Compiler:
    """Return the compiler with the flags for a processor, after reading the macros they
    predefine.
    """
    command = chosen.words
    # Zig takes the names of LLVM with other punctuation
    arch_flags: tuple[str, ...] = (f"-march={arch.replace('-', '_') if chosen.is_zig else arch}",)
    macros = _macros(command, arch_flags)
    if isinstance(macros, str) and arch == "native":
        # some compilers cannot detect the processor
        arch_flags = ()
        macros = _macros(command, arch_flags)
    if not macros:
        macros = "no version: is it a C compiler?"
    if isinstance(macros, str):
        raise CompileError(
            "The C compiler must work.",
            found=macros,
            where=shlex.join((*command, *_BASE, *arch_flags, "-dM", "-E", "-x", "c", os.devnull)),
            fix=f"choose another one with OCANNL_CPU_C__CC=..., or {WITHOUT_COMPILER}"
            if arch == "native"
            else f"unset OCANNL_CPU_C__ARCH={arch}, the setting arch, if the processor is unknown",
        )
    vector_bytes = _vector_bytes(macros)
    flags: tuple[str, ...] = (*_BASE, *arch_flags)
    is_gcc = "__GNUC__" in macros and "__clang__" not in macros
    if is_gcc:
        # GCC 12.2 takes masked vector stores, which it makes of short loops, for stores of whole
        # vectors, and so removes stores before them that are not dead
        flags += ("-fno-tree-dse",)
        # it forwards a store to the load of a later iteration at the same address, although vector
        # stores in between overlap it, as in a[i : i + 2] += b[i] for i = 0, 1, ...
        flags += ("-fno-predictive-commoning",)
        # it moves loads behind a condition that another one decides, and of the masked loads that
        # it makes of these, copies of one unrolled loop get the masks of others
        flags += ("-fno-thread-jumps",)
    if "__x86_64__" in macros and vector_bytes >= 32:
        flags += (f"-mprefer-vector-width={8 * vector_bytes}",)
    units = units_of(macros.keys())
    dot_products = [each for each in units if isinstance(each, DotProduct) and is_gcc]
    tile_products, tiles = _tiles(macros, units)
    meaning = "\n".join(f"{name} {value}" for name, value in sorted(macros.items()))
    levels = _LEVELS_OF_GCC if is_gcc else _LEVELS_OF_CLANG
    if chosen.is_zig:
        flags += _OF_ZIG
    linked = linking(chosen, macros, is_gcc=is_gcc)
    # the vectorizer of GCC 12.2 drops conversions of two float64 at a time to float32 and back
    for_doubles = ("-fno-tree-slp-vectorize",) if is_gcc else ()
    arguments = [*(flag for level in levels for flag in level), *flags, *for_doubles]
    arguments += [flag for each in linked for flag in each]
    content = [*chosen.identity, *arguments, tiles, meaning]
    identity = hashlib.sha256("\n".join(content).encode()).hexdigest()
    return Compiler(
        command,
        flags,
        levels,
        linked,
        _version(macros),
        chosen.origin,
        vector_bytes,
        vector_registers=32 if {"__AVX512F__", "__ARM_NEON"} & macros.keys() else 16,
        has_fma=bool({"__FMA__", "__ARM_FEATURE_FMA", "__FP_FAST_FMAF"} & macros.keys()),
        matrix_units=(*dot_products, *tile_products),
        tiles=tiles,
        identity=identity,
        for_doubles=for_doubles,
    )


def _macros(command: tuple[str, ...], flags: tuple[str, ...]) -> dict[str, str] | str:
    """Return the macros that a compiler predefines, or its error message."""
    status, output = _query([*command, *_BASE, *flags, "-dM", "-E", "-x", "c", os.devnull])
    if status < 0:  # amid its answer, such as for want of memory
        return f"it was stopped: signal {-status}"
    if status != 0:  # Zig lists all processors before the error
        errors = "\n".join(line for line in output.splitlines() if "error:" in line)
        return f"exit status {status}\n{errors or output}".rstrip()
    macros: dict[str, str] = {}
    for line in output.splitlines():
        _, _, definition = line.partition("#define ")
        name, _, value = definition.partition(" ")
        if name:
            macros[name] = value
    return macros


def _variables(
    command: Sequence[str], directory: PrivateDirectory, *, keep_libraries: bool
) -> dict[str, str]:
    """Return the environment variables that keep the files of a compiler private.

    Others could exchange its assembly in a TMPDIR that is open to them.
    """
    place = str(directory.place)
    if not any("zig" in part for part in command):
        return {"TMPDIR": place}
    return {"TMPDIR": place, **cache_variables(place, keep_libraries=keep_libraries)}


def _query(command: list[str]) -> tuple[int, str]:
    """Return the exit status of a compiler and its output."""
    with unfinished_directory(settings.cache_directory(), "cpu_c") as directory:
        variables = _variables(command, directory, keep_libraries=False)
        descriptors = [directory.descriptor]
        try:
            process = Process(command, variables, descriptors, is_watched=False)
        except OSError as error:  # not executable, or for another machine
            return 127, str(error)
        try:
            return process.finish()
        finally:
            process.stop()


def _tiles(
    macros: dict[str, str], units: Iterable[MatrixUnit]
) -> tuple[tuple[TileProduct, ...], str]:
    """Return the products of tiles, with a remark about them for reports."""
    if EMULATED_TILES in macros:
        return TILE_PRODUCTS, "emulated tiles of bfloat16"
    found = tuple(each for each in units if isinstance(each, TileProduct))
    if not found:
        return (), ""
    reason = amx_permission.request_tiles()
    formats = " and ".join(str(each.dtype) for each in found if each.parts == 1)
    return ((), f"no tiles ({reason})") if reason else (found, f"tiles of {formats}")


def _vector_bytes(macros: dict[str, str]) -> int:
    for macro, width in (
        ("__AVX512F__", 64),
        ("__AVX__", 32),
        ("__SSE2__", 16),
        ("__ARM_NEON", 16),
    ):
        if macro in macros:
            return width
    return 0


def _version(macros: dict[str, str]) -> str:
    name = "clang" if "__clang__" in macros else "gcc" if "__GNUC__" in macros else "cc"
    version = macros.get("__VERSION__", "").strip('"')
    return version if version.lower().startswith(name) else f"{name} {version}".strip()
