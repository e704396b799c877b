"""Vector loads and stores: partial, streaming, and transposing."""

from __future__ import annotations

from collections.abc import Iterator

from ocannl_core.codegen.prelude.narrow_vectors import CELLS
from ocannl_core.codegen.prelude.vector_types import Vector, instruction
from ocannl_core.codegen.text.helper import select_by_macro

_MASKED = {("float32", 16): "ps512", ("float32", 8): "ps256", ("float32", 4): "ps128"}
_MASKED |= {("float64", 8): "pd512", ("float64", 4): "pd256", ("float64", 2): "pd128"}
_SHORT = {("uint16", 16): "hi256", ("uint16", 8): "hi128"}
_BY_SIGN = {("float32", 8): "ps256", ("float32", 4): "ps"}
_BY_SIGN |= {("float64", 4): "pd256", ("float64", 2): "pd"}


def load(vector: Vector) -> str:
    """Return a function that loads the first n cells of a vector; the other lanes are zero."""
    head = f"INLINE {vector.name} {vector.name}_load(const {vector.element} *p, int n) {{"
    return f"{head}\n{select_by_macro(_masked_loads(vector), _load_lanes(vector))}\n}}"


def _masked_loads(vector: Vector) -> Iterator[tuple[str, str]]:
    """Yield masked loads with their conditions; AVX has them without AVX-512."""
    place = (vector.dtype, vector.lanes)
    if place in _MASKED:
        name = f"ia32_loadu{_MASKED[place]}_mask"
        given = f"(const void *)p, ({vector.name}){{0}}, {_bits(vector)}"
        yield instruction("__AVX512VL__", name), f"  return __builtin_{name}({given});"
    if place in _SHORT:
        name = f"ia32_loaddqu{_SHORT[place]}_mask"
        given = f"(const void *)p, ({vector.mask}){{0}}, {_bits(vector)}"
        condition = f"defined(__AVX512BW__) && {instruction('__AVX512VL__', name)}"
        yield condition, f"  return ({vector.name})__builtin_{name}({given});"
    if place in _BY_SIGN:
        name = f"ia32_maskload{_BY_SIGN[place]}"
        given = f"(const void *)p, {_first_lanes(vector)}"
        yield instruction("__AVX__", name), f"  return __builtin_{name}({given});"


def _load_lanes(vector: Vector) -> str:
    """Return a load cell by cell: a copy to a part of a vector would stall on store forwarding."""
    cells = ["p[0]", *(f"n > {lane} ? p[{lane}] : 0" for lane in range(1, vector.lanes))]
    return f"  return ({vector.name}){{{', '.join(cells)}}};"


def store(vector: Vector) -> str:
    """Return a function that stores the first n lanes of a vector."""
    head = f"INLINE void {vector.name}_store({vector.element} *p, {vector.name} x, int n) {{"
    plain = "  __builtin_memcpy(p, &x, n * sizeof *p);"
    special = []
    if (vector.dtype, vector.lanes) in _MASKED:
        name = f"ia32_storeu{_MASKED[vector.dtype, vector.lanes]}_mask"
        text = f"  __builtin_{name}((void *)p, x, {_bits(vector)});"
        special.append((instruction("__AVX512VL__", name), text))
    if (vector.dtype, vector.lanes) in _SHORT:
        name = f"ia32_storedqu{_SHORT[vector.dtype, vector.lanes]}_mask"
        text = f"  __builtin_{name}((void *)p, ({vector.mask})x, {_bits(vector)});"
        condition = f"defined(__AVX512BW__) && {instruction('__AVX512VL__', name)}"
        special.append((condition, text))
    return f"{head}\n{select_by_macro(special, plain)}\n}}"


def _bits(vector: Vector) -> str:
    """Return a bit mask of the first n lanes."""
    return f"(unsigned {'short' if vector.lanes > 8 else 'char'})((1u << n) - 1)"


def _first_lanes(vector: Vector) -> str:
    """Return a vector mask of the first n lanes."""
    numbers = ", ".join(map(str, range(vector.lanes)))
    # the builtins take `long long`, another type than int64_t
    size = vector.nbytes // vector.lanes
    lanes = f"__attribute__((vector_size({vector.nbytes}))) {'long long' if size == 8 else 'int'}"
    return f"({lanes})(({vector.mask}){{{numbers}}} < n)"


_STREAMED = {
    64: ("__AVX512F__", "ia32_movntps512"),
    32: ("__AVX__", "ia32_movntps256"),
    16: ("__SSE__", "ia32_movntps"),
}


def stream(vector: Vector) -> str:
    """Return a function that stores a vector past the caches if it is aligned."""
    size = vector.nbytes
    lines = [f"  *({vector.cells} *)p = x;"]
    if size in _STREAMED:
        macro, name = _STREAMED[size]
        floats = f"__attribute__((vector_size({size}))) float"
        past = [
            ("__has_builtin(__builtin_nontemporal_store)", f"({vector.name} *)p"),
            (instruction(macro, name), f"(float *)p, ({floats})x"),
        ]
        past[0] = (past[0][0], f"    __builtin_nontemporal_store(x, {past[0][1]});")
        past[1] = (past[1][0], f"    __builtin_{name}({past[1][1]});")
        lines = [
            f"  if ((uintptr_t)p % {size} == 0)",
            select_by_macro(past, f"  {lines[0]}"),
            "  else",
            *(f"  {line}" for line in lines),
        ]
    body = "\n".join(lines)
    head = f"INLINE void {vector.name}_stream({vector.element} *p, {vector.name} x) {{"
    return f"{head}\n{body}\n}}"


def transpose(vector: Vector, source: str = "") -> str:
    """Return a function that transposes a square of cells.

    The cells may be of a narrow format, which are widened, or pairs of cells. Each stage
    interleaves the first half of the rows with the second one.

    The function is never inlined, since its constants take registers: a compiler would load them
    ahead of all loops, and spill the accumulators of an inner loop.
    """
    lanes, half = vector.lanes, vector.lanes // 2
    low = ", ".join(f"{i}, {lanes + i}" for i in range(half))
    high = ", ".join(f"{half + i}, {lanes + half + i}" for i in range(half))
    rows = [f"x{row}" for row in range(lanes)]
    given, function = vector.element, "transpose"
    if source:
        given, function = f"{CELLS.get(source, 'uint16')}_t", f"transpose_{source}"
    element = given if source == "pairs" else vector.element
    loads = [
        f"{vector.name}_load_{source}(p + {row} * stride, {lanes})"
        if source in CELLS
        else f"*(const {vector.cells} *)(p + {row} * stride)"
        for row in range(lanes)
    ]
    lines = [f"  {vector.name} {name} = {load};" for name, load in zip(rows, loads, strict=True)]
    for stage in range(lanes.bit_length() - 1):
        new = [f"{'yz'[stage % 2]}{stage}_{row}" for row in range(lanes)]
        for pair in range(half):
            for name, order in ((new[2 * pair], low), (new[2 * pair + 1], high)):
                a, b = rows[pair], rows[pair + half]
                lines.append(f"  const {vector.name} {name} = SHUFFLE({a}, {b}, {order});")
        rows = new
    lines += [f"  *({vector.cells} *)(q + {row} * step) = {name};" for row, name in enumerate(rows)]
    head = (
        f"__attribute__((noinline)) static void {vector.name}_{function}(\n"
        f"    const {given} *p, int64_t stride, {element} *q, int64_t step) {{"
    )
    gnu = f"#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, ({vector.mask}){{__VA_ARGS__}})"
    clang = "#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)"
    shuffle = select_by_macro([("defined(__clang__)", clang)], gnu)
    return "\n".join([shuffle, head, *lines, "}", "#undef SHUFFLE"])
