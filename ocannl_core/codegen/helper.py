"""A function or type that generated C mentions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ocannl_core.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Helper:
    """A function or type of the prelude.

    Attributes:
        text: Its definition, with INLINE where a dialect's keywords go.
        needs: The helpers that it mentions.
        is_instruction: True if it stands for an instruction of processors, or a few.
    """

    text: str
    needs: tuple[str, ...] = ()
    is_instruction: bool = False


def chosen(special: Iterable[tuple[str, str]], plain: str) -> str:
    """Returns the first text whose condition the compiler finds true, and else the plain one."""
    lines: list[str] = []
    for condition, text in special:
        lines += [f"#{'elif' if lines else 'if'} {condition}", text]
    return "\n".join([*lines, "#else", plain, "#endif"]) if lines else plain


MATH, STRING = "<math.h>", "<string.h>"
"""Header files, which are included where something of them is mentioned: that of functions takes a
compiler as long as a small kernel.
"""
_MENTIONS = {
    MATH: re.compile(
        r"\b(?:NAN|INFINITY|(?:copysign|cos|exp|exp2|fabs|fma|fmod|log|log2|pow|sin|sqrt|tanh|trunc)f?\()"
    ),
    STRING: re.compile(r"\bmem(?:cpy|set)\("),
}


def headers_for(text: str) -> Iterator[str]:
    """Yields the headers of which something is mentioned."""
    for header, mention in _MENTIONS.items():
        if mention.search(text):
            yield header


FUSES = "defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(FP_FAST_FMAF)"
"""Where an instruction multiplies and adds with one rounding."""
