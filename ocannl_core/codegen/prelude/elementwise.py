"""Elementwise functions in C, for numbers and for vectors of any width.

Each function of float32 is written once, in `c/float32_math.c.in`, and some functions of float64 in
`c/float64_math.c.in`, over types that stand for a number or for a vector: FLOAT, INT (32 bits),
DOUBLE, LONG and WORD (64 bits). `FLOAT_below(x, y)` calls a function on them: `below_float32` for
numbers, `float32x8_below` for vectors. `FLOAT_splat(1.0f)` is a constant; `FLOAT_bits`,
`INT_float`, `INT_unsigned`, `DOUBLE_bits` and `WORD_double` reinterpret the bits as another type;
LANES is the number of lanes. So numbers and lanes get the same bits.

The functions of vectors of 128-bit words, such as the hash of random numbers, are in
`c/word_vectors.c.in`, over WORDS and UINT: `uint4x32x16_threefry4x32`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.codegen.prelude.vector_types import ELEMENTS, Vector
from ocannl_core.codegen.text.helper import Helper, choose_sections, read_helpers
from ocannl_core.ir.numbers.primitives import PRIMITIVES

_FLOAT64 = "float64_math.c.in"
_KINDS = {
    "FLOAT": "float32",
    "INT": "int32",
    "DOUBLE": "float64",
    "LONG": "int64",
    "WORD": "uint64",
    "UINT": "uint32",
    "WORDS": "uint4x32",
}
_KIND_OF = {dtype: kind for kind, dtype in _KINDS.items()}
_VIEWS: dict[str, tuple[str, str | None, str]] = {
    "FLOAT_bits": ("(int32_t)bits_of", "bits_of", "INT"),
    "INT_float": ("float_of", "float_of", "FLOAT"),
    "INT_unsigned": ("(uint32_t)", None, "UINT"),
    "DOUBLE_bits": ("float64_bits", "float64_bits", "WORD"),
    "WORD_double": ("float64_of", "float64_of", "DOUBLE"),
}
"""Bit casts: for a number, a call and the helper that it needs, if any; for a vector, a cast."""

_CONSTANT = re.compile(r"\b[A-Z]+_splat\(([^()]*)\)")
_TOKEN = re.compile(rf"\b({'|'.join(_KINDS)})(?:_(\w+))?\b")

_WORD_VECTOR = re.compile(r"uint4x32x(?P<lanes>\d+)(?P<function>(?:_\w+)?)")

_Spelling = Callable[[str, str | None], tuple[str, str | None]]
"""Maps a type, and a function on it if given, to C and the helper that it needs, if any."""

_WITH_DOUBLES = {
    "near_sin": ("sine", ("x",)),
    "near_cos": ("cosine", ("x",)),
    "near_tan": ("tangent", ("x",)),
    "near_pow": ("power", ("x", "y")),
    "mod": ("remainder", ("a", "b")),
    "floor_div": ("floored", ("a", "b")),
}
"""Functions that compute with doubles: core function, and parameters."""

REPLACED_FUNCTIONS = frozenset(
    op.value.function for op in PRIMITIVES if op.value.has_vector_code and op.value.function
)
"""Functions of the C library that are replaced by helpers for float32."""


def math_helper(name: str, dtype: str) -> str | None:
    """Return the helper that replaces a function of the C library for a format, if any."""
    if dtype == "float64":
        return f"{name}_float64" if f"DOUBLE_{name}" in read_helpers(_FLOAT64) else None
    return f"{name}_float32" if name in REPLACED_FUNCTIONS else None


def number_function_names() -> Iterator[str]:
    """Yield the names of the elementary functions of one number, and of their parts."""
    for name in _templates():
        kind, _, function = name.partition("_")
        yield f"{function}_{_KINDS[kind]}"


def number_function(name: str, dtype: str) -> Helper | None:
    """Return an elementary function of one number, or a part of one, by its name and format."""
    template = _templates().get(f"{_KIND_OF.get(dtype)}_{name}")
    if template is None:
        return None
    constants = replace(template, text=_CONSTANT.sub(r"\1", template.text))
    return _instantiate(constants, f"{name}_{dtype}", 1, _spell_for_numbers)


def vector_function(name: str, vector: Vector) -> Helper | None:
    """Return an elementary function of vectors, or a part of one, by its name without the type."""
    template = _templates().get(f"{_KIND_OF.get(vector.dtype)}_{name}")
    if template is not None:
        return _instantiate_for_vectors(template, f"{vector.name}_{name}", vector.lanes)
    has_halves = vector.dtype == "float32" and name in _WITH_DOUBLES and vector.lanes > 1
    return _compute_by_halves(name, vector) if has_halves else None


@cache
def word_vector_helper(name: str) -> Helper | None:
    """Return the vector of words, or the function on them, of this name; None if there is none."""
    found = _WORD_VECTOR.fullmatch(name)
    template = found and read_helpers("word_vectors.c.in").get(f"WORDS{found['function']}")
    if not found or not template:
        return None
    helper = _instantiate_for_vectors(template, name, int(found["lanes"]))
    return replace(helper, is_instruction=found["function"] != "")


@cache
def _templates() -> Mapping[str, Helper]:
    return {**read_helpers("float32_math.c.in"), **read_helpers(_FLOAT64)}


def _instantiate_for_vectors(template: Helper, name: str, lanes: int) -> Helper:
    def spell(kind: str, function: str | None) -> tuple[str, str | None]:
        view = _VIEWS.get(f"{kind}_{function}")
        type_name = f"{_KINDS[kind if view is None else view[2]]}x{lanes}"
        if view is not None:
            return f"({type_name})", type_name
        found = type_name if function is None else f"{type_name}_{function}"
        return found, found

    return _instantiate(template, name, lanes, spell)


def _instantiate(template: Helper, name: str, lanes: int, spell: _Spelling) -> Helper:
    """Spell the types of a template, and the functions on them, for numbers or vectors."""
    all_needs = dict.fromkeys(template.needs)

    def spell_token(token: re.Match[str]) -> str:
        code, helper = spell(token[1], token[2])
        if helper is not None and helper != name:
            all_needs.setdefault(helper)
        return code

    chosen = choose_sections(template.text, (str(lanes),))
    if "__has_builtin" in chosen:
        all_needs.setdefault("has_builtin")
    return Helper(_TOKEN.sub(spell_token, chosen).replace("LANES", str(lanes)), tuple(all_needs))


def _spell_for_numbers(kind: str, function: str | None) -> tuple[str, str | None]:
    if function is None:
        return ELEMENTS[_KINDS[kind]][0], None
    view = _VIEWS.get(f"{kind}_{function}")
    if view is not None:
        return view[0], view[1]
    name = f"{function}_{_KINDS[kind]}"
    return name, name


def _compute_by_halves(name: str, vector: Vector) -> Helper:
    """Return a function that computes with doubles, half of the lanes at a time."""
    core, parameters = _WITH_DOUBLES[name]
    doubles = Vector("float64", vector.lanes // 2)
    function = f"{doubles.name}_{core}" if doubles.lanes > 1 else f"{core}_float64"
    needs = [function, *(f"{vector.name}_{part}" for part in ("low", "high", "joined"))]
    halves = []
    for part in ("low", "high"):
        given = [f"{vector.name}_{part}({each})" for each in parameters]
        halves.append(f"{function}({', '.join(given)})")
    head = f"{vector.name}_{name}({', '.join(f'{vector.name} {each}' for each in parameters)})"
    body = f"  return {vector.name}_joined(\n      {halves[0]},\n      {halves[1]});"
    return Helper(f"INLINE {vector.name} {head} {{\n{body}\n}}", (vector.name, *needs))
