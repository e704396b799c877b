"""Vectors of 128-bit words in C: four vectors of 32-bit lanes, and the hash of random numbers.

A helper has a name such as `uint4x32x16_threefry4x32`. The functions are written once, in
`c/word_vectors.c.in`, over types that stand for vectors of any width: WORDS, and UINTS, INTS and
FLOATS of as many lanes.
"""

from __future__ import annotations

import re
from functools import cache

from ocannl_core.codegen.prelude.vector_types import Vector
from ocannl_core.codegen.text.helper import Helper, read_helpers

_NAME = re.compile(r"uint4x32x(?P<lanes>\d+)(?P<function>_\w+)?")
_TOKEN = re.compile(r"\b(WORDS|UINTS|INTS|FLOATS)(_\w+)?\b")
_FORMATS = {"UINTS": "uint32", "INTS": "int32", "FLOATS": "float32"}


def is_word_vector(helper: str) -> bool:
    """Return True of the name of a vector of words, or of a function on them."""
    return _NAME.fullmatch(helper) is not None


@cache
def word_vector_helper(name: str) -> Helper | None:
    """Return the vector of words, or the function on them, of this name; None if there is none."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    template = read_helpers("word_vectors.c.in").get(f"WORDS{found['function'] or ''}")
    if template is None:
        return None
    lanes = int(found["lanes"])
    needs = dict.fromkeys(template.needs)

    def spell(token: re.Match[str]) -> str:
        kind, function = token[1], token[2] or ""
        vector = f"uint4x32x{lanes}" if kind == "WORDS" else Vector(_FORMATS[kind], lanes).name
        if f"{vector}{function}" != name:
            needs.setdefault(f"{vector}{function}")
        return f"{vector}{function}"

    text = _TOKEN.sub(spell, template.text)
    return Helper(text, tuple(needs), is_instruction=found["function"] is not None)
