"""Helpers: functions and types that generated C mentions, and the files that define them.

The files lie in the folder `c` beside this module. A definition follows a line with its name and
the helpers that it needs:

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


@dataclass(frozen=True, slots=True)
class Helper:
    """A function or type of the prelude.

    Attributes:
        text: Its definition, with INLINE for the function specifiers of a dialect.
        needs: The helpers that it mentions.
        is_instruction: True if it stands for one or a few machine instructions.
    """

    text: str
    needs: tuple[str, ...] = ()
    is_instruction: bool = False


_MARKER = re.compile(r"^/// (\w+)(?: needs ([\w ]+?))?(?: -- .*)?\n", re.MULTILINE)


@cache
def read_helpers(file: str) -> Mapping[str, Helper]:
    """Read the definitions in a file, or in a file of templates, by name."""
    text = (Path(__file__).parents[1] / "c" / file).read_text("utf-8")
    _, *parts = _MARKER.split(text)
    return {
        name: Helper(text.strip("\n"), tuple((needs or "").split()))
        for name, needs, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }


def select_by_macro(special: Iterable[tuple[str, str]], plain: str) -> str:
    """Select by the preprocessor the first text whose condition holds, else the plain one."""
    lines: list[str] = []
    for condition, text in special:
        lines += [f"#{'elif' if lines else 'if'} {condition}", text]
    return "\n".join([*lines, "#else", plain, "#endif"]) if lines else plain


MATH, STRING = "<math.h>", "<string.h>"
"""Headers, included only where one of their names is mentioned: compiling <math.h> takes as long as
compiling a small kernel.
"""
_MENTIONS = {
    MATH: re.compile(
        r"\b(?:NAN|INFINITY|(?:acos|asin|atan|atan2|ceil|copysign|cos|cosh|erf|exp|exp2|expm1|fabs|floor"
        r"|fma|fmod|log|log1p|log2|pow|rint|sin|sinh|sqrt|tan|tanh|trunc)f?\()"
    ),
    STRING: re.compile(r"\bmem(?:cpy|set)\("),
}


def headers_for(text: str) -> Iterator[str]:
    """Yield the headers of the names that a text mentions."""
    for header, mention in _MENTIONS.items():
        if mention.search(text):
            yield header


HAS_FMA = "HAS_FMA"
"""Condition that the target has fused multiply-add, which `prelude` decides, never the compiler."""
UNFUSED = "unfused"
"""The helper of kernels for a target without fused multiply-add."""

EMULATED_TILES = "OCANNL_EMULATED_TILES"
"""The macro that enables the emulation of tile registers."""
