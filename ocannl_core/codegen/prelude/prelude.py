"""Prelude of generated C: helpers for operations that C has no exact operator or function for.

A kernel lists the helpers that it uses; `prelude` returns their definitions in dependency order. In
a definition, `INLINE`, `TABLE` and `CELLS` stand for words of a dialect (`PreludeWords`). The
helpers also tell the work on a kernel that is left for the C compiler.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import cache, lru_cache

from ocannl_core.base.errors import CodegenError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.codegen.prelude.elementwise import (
    REPLACED_FUNCTIONS,
    number_function,
    number_function_names,
    word_vector_helper,
)
from ocannl_core.codegen.prelude.vector_types import PARTIAL_VECTORS
from ocannl_core.codegen.prelude.vectors import vector_helper
from ocannl_core.codegen.text.helper import HAS_FMA, UNFUSED, Helper, headers_for, read_helpers
from ocannl_core.codegen.text.kernel_text import CompilerVectorization

_FLOATS = {"float32": ("float", "f"), "float64": ("double", "")}
_BOOL = {"bool": ("uint8_t", "")}
_UNSIGNED = {f"uint{bits}": (f"uint{max(bits, 8)}_t", "") for bits in (4, 8, 16, 32, 64)}
_SIGNED = {f"int{bits}": (f"int{max(bits, 8)}_t", "") for bits in (4, 8, 16, 32, 64)}
_FORMATS = {
    "FLOAT": _FLOATS,
    "UNSIGNED": _UNSIGNED,
    "SIGNED": _SIGNED,
    "INTEGER": _UNSIGNED | _SIGNED,
    "BOOL": _BOOL,
    "NATURAL": _UNSIGNED | _BOOL,
    "WHOLE": _UNSIGNED | _SIGNED | _BOOL,
    "NUMBER": _FLOATS | _UNSIGNED | _SIGNED | _BOOL,
}
"""The formats of a kind: their types in C, and the suffixes of library functions."""
_TOKEN = re.compile(r"\w+")
_WORD = re.compile(r"\b(?:INLINE|HASH|TABLE|CELLS)\b")
_FUSED = re.compile(rf"^#if {HAS_FMA}\n(.*\n)#else\n(.*\n)#endif\n", re.MULTILINE)
"""The two forms of a multiply-add: fused, and as two operations."""
_FILES = ("scalars.h", "float32_math.h", "words.h")


def helper_names(files: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the names of all helpers but vector types and functions of vectors.

    Args:
        files: The files of a dialect, as in `PreludeWords`.
    """
    for file in (*_FILES, *files):
        yield from read_helpers(file)
    for name in read_helpers("per_format.c.in"):
        function, _, kind = name.rpartition("_")
        yield from (f"{function}_{dtype}" for dtype in _FORMATS[kind])
    yield from number_function_names()


@cache
def has_helper(name: str) -> bool:
    """Return True if the prelude has a function of numbers of this name."""
    return _scalar_helper(name, ()) is not None


@cache
def _helper(name: str, files: tuple[str, ...]) -> Helper:
    found = _scalar_helper(name, files) or vector_helper(name) or word_vector_helper(name)
    if found is None:
        raise CodegenError(
            "A dialect names helpers of the core, or of the files in its words.",
            found=f"{name}, and its files are {', '.join(files) or 'none'}",
            fix=f"begin its definition in a file of PreludeWords(files=) by the line `/// {name}`",
        )
    return found


def _scalar_helper(name: str, files: tuple[str, ...]) -> Helper | None:
    for file in (*_FILES, *files):
        if name in read_helpers(file):
            return read_helpers(file)[name]
    function, _, dtype = name.rpartition("_")
    for kind, formats in _FORMATS.items():
        template = read_helpers("per_format.c.in").get(f"{function}_{kind}")
        if template is not None and dtype in formats:
            return _instantiate(template.text, f"{function}_{kind}", name, *formats[dtype])
    return number_function(function, dtype)


def _instantiate(template: str, generic: str, name: str, type_name: str, suffix: str) -> Helper:
    bits = "uint32_t" if suffix else "uint64_t"
    words = {"T": type_name, "UT": f"u{type_name}", "BITS": bits, generic: name}
    text = _TOKEN.sub(lambda token: words.get(token[0], token[0]), template)
    return Helper(text.replace("SUFFIX", suffix))


_ALWAYS = " __attribute__((always_inline))"
"""Helpers that stand for instructions are inlined at every optimization level."""


def closure(names: Iterable[str], files: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the transitive dependencies of helpers, themselves included, in dependency order.

    Headers are included under their own names, such as `<math.h>`.

    Args:
        files: The files of a dialect, as in `PreludeWords`.
    """
    ordered = tuple(sorted(names))
    return _closure(ordered, UNFUSED not in ordered, files)


@lru_cache(maxsize=1024)
def _closure(names: tuple[str, ...], is_fused: bool, files: tuple[str, ...]) -> tuple[str, ...]:
    ordered: dict[str, None] = {}
    for name in names:
        for needed in _closure(tuple(sorted(_needs(name, is_fused, files))), is_fused, files):
            ordered.setdefault(needed)
        ordered.setdefault(name)
    return tuple(ordered)


def _needs(name: str, is_fused: bool, files: tuple[str, ...]) -> tuple[str, ...]:
    if _is_header(name):
        return ()
    helper = _helper(name, files)
    text = _text_of(helper, is_fused)
    needs = helper.needs
    if text != helper.text:  # one of its two forms, which may need less
        words = set(_TOKEN.findall(text))
        needs = tuple(each for each in needs if each in words)
    return (*headers_for(text), *needs)


def _text_of(helper: Helper, is_fused: bool) -> str:
    """Return the definition of a helper in one of its two forms."""
    return _FUSED.sub(r"\1" if is_fused else r"\2", helper.text)


def _is_header(name: str) -> bool:
    return name.startswith("<")


def headers_of(names: Iterable[str], files: tuple[str, ...] = ()) -> frozenset[str]:
    """Return the headers that these helpers need.

    Args:
        files: The files of a dialect, as in `PreludeWords`.
    """
    return frozenset(filter(_is_header, closure(names, files)))


@dataclass(frozen=True, slots=True)
class PreludeWords:
    """The words of a dialect in helpers.

    Attributes:
        inline: The specifiers of functions, `INLINE` in definitions.
        hash: The specifiers of functions for a hash of words, `HASH`; empty for the same ones.
        table: The specifiers of tables of numbers, `TABLE`.
        cells: The qualifiers of the numbers that a pointer into a table points to, `CELLS`.
        own: Definitions that replace definitions of the core, by name; `ORIGINAL` in one stands for
            the core's. They use the helpers of the replaced definition, and no others.
        files: The paths of files with further helpers: each definition follows a line
            `/// NAME needs OTHER NAMES`, where `needs` and the helpers that it mentions may be
            left out if there are none.
    """

    inline: str = "static inline"
    hash: str = ""
    table: str = "static const"
    cells: str = "const"
    own: tuple[tuple[str, str], ...] = ()
    files: tuple[str, ...] = ()


C_WORDS = PreludeWords(hash=f"static inline{_ALWAYS}")
"""In loops of unknown length GCC would not inline a hash, and hash one word at a time."""


def prelude(names: Iterable[str], words: PreludeWords = C_WORDS) -> str:
    """Return the definitions of helpers and their dependencies, separated by blank lines."""
    return _prelude(closure(names, words.files), words)


@lru_cache(maxsize=1024)
def _prelude(ordered: tuple[str, ...], words: PreludeWords) -> str:
    own = dict(words.own)
    for name in own:
        _helper(name, words.files)
    is_fused = UNFUSED not in ordered

    def definition(name: str) -> str:
        helper = _helper(name, words.files)
        inline = f"{words.inline}{_ALWAYS * helper.is_instruction}"
        spelled = {
            "INLINE": inline,
            "HASH": words.hash or words.inline,
            "TABLE": words.table,
            "CELLS": words.cells,
        }
        text = own.get(name, "ORIGINAL").replace("ORIGINAL", _text_of(helper, is_fused))
        return _WORD.sub(lambda word: spelled[word[0]], text)

    return "\n\n".join(definition(name) for name in ordered if not _is_header(name))


_VECTORS_PER_PLAIN = 16
"""The least number of vector loops per plain loop in a kernel that counts as vector code."""


def remaining_vectorization(
    helpers: Collection[str], plain_loops: int, vector_loops: int, *, is_pointwise: bool
) -> CompilerVectorization:
    """Classify the work that is left in a kernel that is rendered with vectors.

    That is to vectorize loops, also loops over lanes; to keep the constants of elementary functions
    in registers, and those of all helpers in pointwise code, whose loads take as long as all else;
    to select instructions for vectors that are smaller than a register; and to keep the parts of
    words in registers. Loops are counted where they are innermost.
    """
    functions = [each.partition("_")[2] for each in helpers]
    is_rare = plain_loops * _VECTORS_PER_PLAIN <= vector_loops
    is_mapped = any(each.startswith("map_") for each in functions)
    has_parts = not PARTIAL_VECTORS.isdisjoint(helpers)
    has_words = any(each.startswith("uint4x32x") for each in helpers)
    if is_mapped or has_parts or has_words or not is_rare:
        return CompilerVectorization.PLAIN
    if (is_pointwise and any(functions)) or not REPLACED_FUNCTIONS.isdisjoint(functions):
        return CompilerVectorization.FUNCTIONS
    return CompilerVectorization.MIXED if plain_loops else CompilerVectorization.VECTORS
