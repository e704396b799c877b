"""Vector types and functions of the prelude, by name.

A type has a name such as `float32x16`; a helper `float32x16_load`. Machine instructions are used
through compiler builtins where available; the portable fallback gives the same bits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.codegen.prelude import vector_memory
from ocannl_core.codegen.prelude.float32_math import vector_function
from ocannl_core.codegen.prelude.horizontal_operations import (
    HORIZONTAL_REDUCTIONS,
    compute_reciprocal,
    divide_by_number,
    reduce_lanes,
)
from ocannl_core.codegen.prelude.narrow_vectors import CELLS, narrow_helper
from ocannl_core.codegen.prelude.short_integers import SHORT_INTEGERS, short_integer_helper
from ocannl_core.codegen.prelude.vector_types import TYPES, Vector, instruction
from ocannl_core.codegen.text.helper import HAS_FMA, Helper, read_helpers, select_by_macro

_NAME = re.compile(r"(?P<dtype>[a-z]+\d+)x(?P<lanes>\d+)(_(?P<function>\w+))?")

_Instruction = tuple[str, str, str]
"""The feature macro of an instruction, the name of its builtin, and the arguments."""

_FMA_INSTRUCTIONS: dict[tuple[str, int], tuple[_Instruction, ...]] = {
    ("float32", 16): (("__AVX512F__", "ia32_vfmaddps512_mask", "a, b, c, (unsigned short)-1, 4"),),
    ("float64", 8): (("__AVX512F__", "ia32_vfmaddpd512_mask", "a, b, c, (unsigned char)-1, 4"),),
    ("float32", 8): (("__FMA__", "ia32_vfmaddps256", "a, b, c"),),
    ("float64", 4): (("__FMA__", "ia32_vfmaddpd256", "a, b, c"),),
    ("float32", 4): (
        ("__FMA__", "ia32_vfmaddps", "a, b, c"),
        ("__aarch64__", "aarch64_fmav4sf", "a, b, c"),
    ),
    ("float64", 2): (
        ("__FMA__", "ia32_vfmaddpd", "a, b, c"),
        ("__aarch64__", "aarch64_fmav2df", "a, b, c"),
    ),
}
_BLENDS = {("float32", 8): ("__AVX__", "ps256"), ("float32", 4): ("__SSE4_1__", "ps")}
_BLENDS |= {("float64", 4): ("__AVX__", "pd256"), ("float64", 2): ("__SSE4_1__", "pd")}
_SIGNS = {("float32", 8): ("__AVX__", "ps256"), ("float32", 4): ("__SSE__", "ps")}
_SIGNS |= {("float64", 4): ("__AVX__", "pd256"), ("float64", 2): ("__SSE2__", "pd")}
_FLOAT_EXTREMA = {("float32", 8): ("__AVX__", "ps256"), ("float32", 4): ("__SSE__", "ps")}
_FLOAT_EXTREMA |= {("float64", 4): ("__AVX__", "pd256"), ("float64", 2): ("__SSE2__", "pd")}
_INTEGER_EXTREMA = {
    16: ("__AVX512F__", "512_mask", "a, b, a, (unsigned short)-1"),
    8: ("__AVX2__", "256", "a, b"),
    4: ("__SSE4_1__", "128", "a, b"),
}
"""By lanes: the instructions for minimum and maximum of signed integers of 32 bits."""
_COMPARISONS = {"eq": ("==", 0), "lt": ("<", 1), "le": ("<=", 2), "ne": ("!=", 4)}
"""Comparisons: the operator of C, and its code in instructions."""
_MASK_COMPARISONS = {
    ("float32", 16): ("ps", "(unsigned short)-1, 4"),
    ("float64", 8): ("pd", "(unsigned char)-1, 4"),
    ("int32", 16): ("d", "(unsigned short)-1"),
}
"""Vectors that AVX-512 compares into masks: the builtin's suffix and constant arguments."""
_SCALINGS = {
    ("float32", 16): ("__AVX512F__", "ia32_scalefps512_mask", "(unsigned short)-1, 4"),
    ("float32", 8): ("__AVX512VL__", "ia32_scalefps256_mask", "(unsigned char)-1"),
    ("float32", 4): ("__AVX512VL__", "ia32_scalefps128_mask", "(unsigned char)-1"),
}
_LOOKUPS: dict[int, tuple[_Instruction, ...]] = {
    16: (
        ("__AVX512F__", "ia32_permvarsf512", "FIRST, i"),
        ("__AVX512F__", "ia32_permvarsf512_mask", "FIRST, i, FIRST, (unsigned short)-1"),
    ),
    8: (
        ("__AVX512VL__", "ia32_vpermi2varps256", "FIRST, i, SECOND"),
        ("__AVX512VL__", "ia32_vpermt2varps256_mask", "i, FIRST, SECOND, (unsigned char)-1"),
    ),
}
"""By lanes: the instructions that look up numbers in one or two registers."""
_SHUFFLES = "__has_builtin(__builtin_shufflevector)"
_HAS_AVX512_IN_GCC = "defined(__AVX512F__) && !defined(__clang__)"
"""Condition for AVX-512 instructions that GCC does not generate from its vectors."""
_ALL = "(unsigned short)-1"
_EXTREMUM_OPERATORS = {"max": ">=", "min": "<="}


@cache
def vector_helper(name: str) -> Helper | None:
    """Return the vector type or function of this name; None if there is none."""
    found = _NAME.fullmatch(name)
    if found is None or found["dtype"] not in TYPES:
        return read_helpers("vectors.h").get(name)
    vector = Vector(found["dtype"], int(found["lanes"]))
    function = found["function"]
    if function is None:
        return vector.definition
    made = _function(vector, function)
    is_long = function.startswith(("transpose", "map_")) or vector_function(function, vector)
    return made if made is None or is_long else replace(made, is_instruction=True)


def _function(vector: Vector, function: str) -> Helper | None:
    needs = ("has_builtin", *dict.fromkeys((vector.name, vector.mask)))
    match function:
        case "load":
            return Helper(vector_memory.load(vector), needs)
        case "store":
            return Helper(vector_memory.store(vector), needs)
        case "stream":
            return Helper(vector_memory.stream(vector), needs)
        case "transpose":
            return Helper(vector_memory.transpose(vector), needs)
        case "splat":
            cells = ", ".join(["x"] * vector.lanes)
            head = f"INLINE {vector.name} {vector.name}_splat({vector.element} x)"
            return Helper(f"{head} {{\n  return ({vector.name}){{{cells}}};\n}}", needs)
        case "over":
            return divide_by_number(vector)
        case "factor":
            return compute_reciprocal(vector)
        case "select":
            return Helper(_select(vector), needs)
        case _ if function in HORIZONTAL_REDUCTIONS.values():
            return reduce_lanes(vector, function)
        case "fma":
            return Helper(_fma(vector), needs)
        case _ if function.startswith("where_"):
            return _where(vector, function, needs)
        case "max" | "min":
            return Helper(_extremum(vector, function), (*needs, f"{vector.name}_select"))
        case "below" | "above":
            return Helper(_clamp(vector, function), (*needs, f"{vector.name}_select"))
        case "madd":
            return Helper(_madd(vector), (*needs, f"{vector.name}_fma"))
        case "of":
            return Helper(_of(vector), needs)
        case "lookup" if vector.dtype == "float32":
            return Helper(_lookup(vector), (*needs, f"{vector.name}_select"))
        case "any":
            return _any(vector, needs)
        case "low" | "high" | "joined":
            return _convert_half(vector, function)
        case "scaled" if (vector.dtype, vector.lanes) in _SCALINGS:
            return _scale(vector)
        case "transpose_pairs":
            return Helper(vector_memory.transpose(vector, "pairs"), needs)
        case _ if vector.dtype == "float32" and function.startswith("transpose_"):
            source = function.removeprefix("transpose_")
            text = vector_memory.transpose(vector, source)
            return Helper(text, (*needs, f"{vector.name}_load_{source}"))
        case _ if vector.dtype == "int32" and function.endswith(tuple(SHORT_INTEGERS)):
            return short_integer_helper(vector.lanes, function)
        case _ if vector.dtype == "float32" and function.endswith(tuple(CELLS)):
            return narrow_helper(vector.lanes, function)
        case _ if function.startswith("map_"):
            return Helper(_map(vector, function.removeprefix("map_")), needs)
        case _:
            return vector_function(function, vector)


def _select(vector: Vector) -> str:
    """Return a selection between the lanes of two vectors."""
    name, mask = vector.name, vector.mask
    special = []
    if (vector.dtype, vector.lanes) in _BLENDS:
        macro, kind = _BLENDS[vector.dtype, vector.lanes]
        blend = f"ia32_blendv{kind}"
        text = f"  return __builtin_{blend}(b, a, ({name})m);"
        special.append((f"!defined(__clang__) && {instruction(macro, blend)}", text))
    plain = f"  return ({name})((m & ({mask})a) | (~m & ({mask})b));"
    body = select_by_macro(special, plain)
    return f"INLINE {name} {name}_select({mask} m, {name} a, {name} b) {{\n{body}\n}}"


def _where(vector: Vector, function: str, needs: tuple[str, ...]) -> Helper:
    """Return a selection by a comparison of numbers of the same size."""
    _, *kind, compared = function.split("_")
    of = Vector(kind[0] if kind else vector.dtype, vector.lanes)
    symbol, code = _COMPARISONS[compared]
    special = []
    masked, blended = (_MASK_COMPARISONS.get((each.dtype, each.lanes)) for each in (of, vector))
    if masked is not None and blended is not None:
        compare = f"__builtin_ia32_cmp{masked[0]}512_mask(a, b, {code}, {masked[1]})"
        blend = f"__builtin_ia32_blendm{blended[0]}_512_mask(y, x, {compare})"
        special.append((_HAS_AVX512_IN_GCC, f"  return {blend};"))
    body = select_by_macro(special, f"  return {vector.name}_select(a {symbol} b, x, y);")
    arguments = f"{of.name} a, {of.name} b, {vector.name} x, {vector.name} y"
    text = f"INLINE {vector.name} {vector.name}_{function}({arguments}) {{\n{body}\n}}"
    return Helper(text, tuple(dict.fromkeys((*needs, of.name, f"{vector.name}_select"))))


def _fma(vector: Vector) -> str:
    """Return a multiply-add with one rounding."""
    name, lanes = vector.name, vector.lanes
    scalar = "__builtin_fmaf" if vector.dtype == "float32" else "__builtin_fma"
    # no loop: compilers keep it as one at low optimisation levels
    cells = (f"{scalar}(a[{lane}], b[{lane}], c[{lane}])" for lane in range(lanes))
    plain = f"  return ({name}){{{', '.join(cells)}}};"
    special = [
        (instruction(macro, fused), f"  return __builtin_{fused}({given});")
        for macro, fused, given in _FMA_INSTRUCTIONS.get((vector.dtype, lanes), ())
    ]
    fused = "elementwise_fma"
    special.append((f"__has_builtin(__builtin_{fused})", f"  return __builtin_{fused}(a, b, c);"))
    body = select_by_macro(special, plain)
    return f"INLINE {name} {name}_fma({name} a, {name} b, {name} c) {{\n{body}\n}}"


def _madd(vector: Vector) -> str:
    """Return a multiply-add, with one rounding if an instruction exists."""
    name = vector.name
    body = select_by_macro([(HAS_FMA, f"  return {name}_fma(a, b, c);")], "  return a * b + c;")
    return f"INLINE {name} {name}_madd({name} a, {name} b, {name} c) {{\n{body}\n}}"


def _of(vector: Vector) -> str:
    """Return a conversion of integers of the same size."""
    name = vector.name
    text = f"  return __builtin_convertvector(x, {name});"
    return f"INLINE {name} {name}_of({vector.mask} x) {{\n{text}\n}}"


def _any(vector: Vector, needs: tuple[str, ...]) -> Helper:
    """Return a test that a condition holds in any lane."""
    lanes = " | ".join(f"x[{lane}]" for lane in range(vector.lanes))
    special = []
    if vector.nbytes == 64:
        wide = Vector("int32", 16).name
        text = f"  return __builtin_ia32_ptestmd512(({wide})x, ({wide})x, {_ALL}) != 0;"
        special.append((_HAS_AVX512_IN_GCC, text))
        needs = tuple(dict.fromkeys((*needs, wide)))
    elif (vector.dtype, vector.lanes) in _SIGNS:
        macro, kind = _SIGNS[vector.dtype, vector.lanes]
        signs = f"ia32_movmsk{kind}"
        text = f"  return __builtin_{signs}(({vector.name})x) != 0;"
        special.append((instruction(macro, signs), text))
    body = select_by_macro(special, f"  return ({lanes}) != 0;")
    return Helper(f"INLINE int {vector.name}_any({vector.mask} x) {{\n{body}\n}}", needs)


def _lookup(vector: Vector) -> str:
    """Return a lookup in a table of sixteen numbers by the last four bits of integers."""
    name, lanes = vector.name, vector.lanes
    first, second = (f"*(const {vector.cells} *){place}" for place in ("cells", "(cells + 8)"))
    special = []
    for macro, permuted, given in _LOOKUPS.get(lanes, ()):
        given = given.replace("FIRST", first).replace("SECOND", second)
        special.append((instruction(macro, permuted), f"  return __builtin_{permuted}({given});"))
    if lanes == 8:
        permuted = "__builtin_ia32_permvarsf256"
        text = (
            f"  const {name} a = {permuted}({first}, i), b = {permuted}({second}, i);\n"
            f"  return {name}_select((i & 8) != 0, b, a);"
        )
        special.append((instruction("__AVX2__", "ia32_permvarsf256"), text))
    each = ", ".join(f"cells[i[{lane}] & 15]" for lane in range(lanes))
    body = select_by_macro(special, f"  return ({name}){{{each}}};")
    return f"INLINE {name} {name}_lookup(const float *cells, {vector.mask} i) {{\n{body}\n}}"


def _convert_half(vector: Vector, function: str) -> Helper:
    """Return the conversion of a half of a float32 vector to float64, or of both halves back."""
    name, count = vector.name, vector.lanes // 2
    half, wide = Vector("float32", count), Vector("float64", count)
    if count == 1:
        first = {"low": 0, "high": 1}
        if function == "joined":
            text = f"INLINE {name} {name}_joined(double a, double b) {{\n"
            return Helper(f"{text}  return ({name}){{(float)a, (float)b}};\n}}", (name,))
        text = f"INLINE double {name}_{function}({name} x) {{\n  return x[{first[function]}];\n}}"
        return Helper(text, (name,))
    needs = ("has_builtin", name, half.name, wide.name)
    if function == "joined":
        lanes = ", ".join(map(str, range(vector.lanes)))
        cells = ", ".join(f"{part}[{lane}]" for part in "xy" for lane in range(count))
        whole = select_by_macro(
            [(_SHUFFLES, f"  return __builtin_shufflevector(x, y, {lanes});")],
            f"  return ({name}){{{cells}}};",
        )
        text = (
            f"INLINE {name} {name}_joined({wide.name} a, {wide.name} b) {{\n"
            f"  const {half.name} x = __builtin_convertvector(a, {half.name});\n"
            f"  const {half.name} y = __builtin_convertvector(b, {half.name});\n{whole}\n}}"
        )
        return Helper(text, needs)
    places = range(count) if function == "low" else range(count, vector.lanes)
    part = select_by_macro(
        [
            (
                _SHUFFLES,
                f"  const {half.name} y = __builtin_shufflevector(x, x, {_join_numbers(places)});",
            )
        ],
        f"  const {half.name} y = {{{', '.join(f'x[{lane}]' for lane in places)}}};",
    )
    special = []
    if vector.lanes == 16:  # GCC converts twice, half of the lanes each
        widened = f"ia32_cvtps2pd512_mask(y, ({wide.name}){{}}, (unsigned char)-1, 4)"
        special.append((_HAS_AVX512_IN_GCC, f"  return __builtin_{widened};"))
    text = select_by_macro(special, f"  return __builtin_convertvector(y, {wide.name});")
    return Helper(f"INLINE {wide.name} {name}_{function}({name} x) {{\n{part}\n{text}\n}}", needs)


def _join_numbers(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _extremum(vector: Vector, function: str) -> str:
    """Return the maximum or minimum of two vectors: NaN, if any, and of equal numbers the first."""
    name, place = vector.name, (vector.dtype, vector.lanes)
    is_float = vector.dtype.startswith("float")
    compared = f"a {_EXTREMUM_OPERATORS[function]} b"
    plain = f"  return {name}_select({f'(a != a) | ({compared})' if is_float else compared}, a, b);"
    special = []
    if place == ("float32", 16):
        # the instruction returns its second operand if one is NaN
        text = (
            f"  const {name} x = __builtin_ia32_{function}ps512_mask(b, a, a, {_ALL}, 4);\n"
            f"  return __builtin_ia32_blendmps_512_mask(\n"
            f"      x, b, __builtin_ia32_cmpps512_mask(b, b, 3, {_ALL}, 4));"
        )
        special.append((_HAS_AVX512_IN_GCC, text))
    elif place in _FLOAT_EXTREMA:
        macro, kind = _FLOAT_EXTREMA[place]
        text = f"  return {name}_select(b != b, b, __builtin_ia32_{function}{kind}(b, a));"
        special.append((instruction(macro, f"ia32_{function}{kind}"), text))
    elif vector.dtype == "int32" and vector.lanes in _INTEGER_EXTREMA:
        macro, size, given = _INTEGER_EXTREMA[vector.lanes]
        limit = f"ia32_p{function}sd{size}"
        special.append((instruction(macro, limit), f"  return __builtin_{limit}({given});"))
    body = select_by_macro(special, plain)
    return f"INLINE {name} {name}_{function}({name} a, {name} b) {{\n{body}\n}}"


def _clamp(vector: Vector, function: str) -> str:
    """Return a clamp from above or below; NaN stays."""
    name, place = vector.name, (vector.dtype, vector.lanes)
    short, compared = ("min", "<") if function == "below" else ("max", ">")
    plain = f"  return {name}_select(limit {compared} x, limit, x);"
    special = []
    # the instructions return their second operand if one is NaN
    if place == ("float32", 16):
        text = f"  return __builtin_ia32_{short}ps512_mask(limit, x, x, {_ALL}, 4);"
        special.append((_HAS_AVX512_IN_GCC, text))
    elif place in _FLOAT_EXTREMA:
        macro, kind = _FLOAT_EXTREMA[place]
        text = f"  return __builtin_ia32_{short}{kind}(limit, x);"
        special.append((instruction(macro, f"ia32_{short}{kind}"), text))
    body = select_by_macro(special, plain)
    return f"INLINE {name} {name}_{function}({name} x, {name} limit) {{\n{body}\n}}"


def _scale(vector: Vector) -> Helper:
    """Return a multiplication by a power of two, one instruction of AVX-512."""
    macro, name, mask = _SCALINGS[vector.dtype, vector.lanes]
    shift = f"{vector.name}_splat(0x1.8p23f)"
    text = (
        f"INLINE {vector.name} {vector.name}_scaled({vector.name} x, {vector.name} shifted) {{\n"
        f"  return __builtin_{name}(x, shifted - {shift}, x, {mask});\n}}"
    )
    plain = vector_function("scaled", vector)
    assert plain is not None
    needs = dict.fromkeys(("has_builtin", f"{vector.name}_splat", *plain.needs))
    return Helper(select_by_macro([(instruction(macro, name), text)], plain.text), tuple(needs))


def _map(vector: Vector, function: str) -> str:
    """Return a function that calls another one for each lane, in a loop that may be vectorised."""
    name, lanes = vector.name, vector.lanes
    return (
        f"INLINE {name} {name}_map_{function}({name} x) {{\n"
        f"  {vector.element} cells[{lanes}];\n"
        f"  __builtin_memcpy(cells, &x, sizeof x);\n"
        f"  for (int l = 0; l < {lanes}; ++l) cells[l] = {function}(cells[l]);\n"
        f"  __builtin_memcpy(&x, cells, sizeof x);\n"
        f"  return x;\n}}"
    )
