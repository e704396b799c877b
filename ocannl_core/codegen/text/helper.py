"""Helpers: functions and types that generated C mentions, and the files that define them.

The files lie in the folder `c` beside this module; a dialect may have others. A definition follows
a line with its name and the helpers that it needs:

    /// float16_bits needs half_bits
    INLINE uint16_t float16_bits(float x) {
      return half_bits(x, 13);
    }

A file is read on first use. A line may end with a remark, `/// where_FLOAT -- no branch`, which
generated C does not contain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.numbers.primitives import PRIMITIVES


@dataclass(frozen=True, slots=True)
class Helper:
    """A function or type of the prelude."""

    text: str
    """Its definition, with INLINE for the function specifiers of a dialect."""
    needs: tuple[str, ...] = ()
    is_instruction: bool = False
    """True if it stands for one or a few machine instructions."""


_MARKER = r"(?m)^/// (\w+)(?: needs ([\w ]+?))?(?: -- .*)?\n"


@cache
def read_helpers(file: str) -> Mapping[str, Helper]:
    """Read the definitions in a file, or in a file of templates, by name."""
    text = (Path(__file__).parents[1] / "c" / file).read_text("utf-8")
    _, *parts = re.split(_MARKER, text)
    return {
        name: Helper(text.strip("\n"), tuple((needs or "").split()))
        for name, needs, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }


def instantiate(
    template: Helper, name: str, words: Mapping[str, str], lanes: int, *keys: str
) -> Helper:
    """Return a template for vectors with words in place of its uppercase ones.

    A helper needs the vector types, and the functions on them, that its text mentions.

    Args:
        words: The replacements, wherever the words stand: `float32xLANES_load`.
        lanes: The number of lanes: `EACH(x[LANE])` lists them, LOWER and UPPER a half of them.
        keys: The keys of the sections that are chosen, by `choose_sections`.
    """

    def spell(text: str) -> str:
        return re.sub(_WORD, lambda found: words.get(found[0], found[0]), text)

    def over_lanes(found: re.Match[str]) -> str:
        half = lanes // 2
        each = {"EACH": range(lanes), "LOWER": range(half), "UPPER": range(half, lanes)}[found[1]]
        return ", ".join(found[2].replace("LANE", str(lane)) for lane in each)

    text = re.sub(_LIST, over_lanes, spell(choose_sections(template.text, keys)))
    mentioned = (each for each in re.findall(_VECTOR_NAME, text) if not each.endswith("_cells"))
    needs = dict.fromkeys((*map(spell, template.needs), *mentioned))
    needs.pop(name, None)
    return Helper(text, tuple(needs))


_WORD = "[A-Z]{4,}"
_LIST = r"\b(EACH|LOWER|UPPER)\(((?:[^()]|\([^()]*\))*)\)"
_VECTOR_NAME = r"\b[a-z]+\d+(?:x\d+)+(?:_\w+)?\b"
_BLOCK = r"(?ms)^@.*?^@end$"
_SECTION = r"(?m)^@(.*?)(?: -- .*)?\n"


def choose_sections(template: str, keys: Iterable[str]) -> str:
    """Return a template without the sections for other keys, and with one `#if` for the rest.

    @float32x8=__AVX__,256 float32x4=__SSE__,     #if defined(__AVX__)
    #if defined($1)                                 store256(p, x);
      store$2(p, x);                        -->   #else
    @else                                           *p = x;
      *p = x;                                     #endif
    @end

    A section without a condition is all that remains. `@*` is for all keys.
    """

    def choose(block: re.Match[str]) -> str:
        _, *parts = re.split(_SECTION, block[0].removesuffix("@end"))
        *special, _, plain = parts
        chosen: list[str] = []
        for head, body in zip(special[::2], special[1::2], strict=True):
            values = dict(each.partition("=")[::2] for each in head.split())
            for key in values.keys() & {*keys, "*"}:
                for number, value in enumerate(values[key].split(","), start=1):
                    body = body.replace(f"${number}", value)
                chosen.append(body)
        if not chosen or not chosen[0].startswith("#if"):
            return (chosen[0] if chosen else plain).removesuffix("\n")
        first, *others = chosen
        others = [each.replace("#if", "#elif", 1) for each in others]
        return "".join([first, *others, "#else\n", plain, "#endif"])

    return re.sub(_BLOCK, choose, template)


MATH, STRING = "<math.h>", "<string.h>"
"""Headers, included only where one of their names is mentioned: compiling <math.h> takes as long as
compiling a small kernel.
"""
_MATH_FUNCTIONS = {"copysign", "fmod"} | {op.value.function for op in PRIMITIVES} - {""}
_MENTIONS = {
    MATH: rf"\b(?:NAN|INFINITY|(?:{'|'.join(sorted(_MATH_FUNCTIONS))})f?\()",
    STRING: r"\bmem(?:cpy|set)\(",
}


def headers_for(text: str) -> Iterator[str]:
    """Yield the headers of the names that a text mentions."""
    for header, mention in _MENTIONS.items():
        if re.search(mention, text):
            yield header


HAS_FMA = "HAS_FMA"
"""Condition that the target has fused multiply-add, which `prelude` decides, never the compiler."""
UNFUSED = "unfused"
"""The helper of kernels for a target without fused multiply-add."""

EMULATED_TILES = "OCANNL_EMULATED_TILES"
"""The macro that enables the emulation of tile registers."""
