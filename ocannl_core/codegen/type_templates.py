"""C text over types that stand for a number, or for a vector of so many numbers.

In such a text, FLOAT, INT, DOUBLE, LONG and WORD are types, and `FLOAT_below(x, y)` calls a
function of them: `below_float32` of numbers, `float32x8_below` of vectors. `FLOAT_splat(1.0f)` is
a constant, `FLOAT_bits`, `INT_float`, `DOUBLE_bits` and `WORD_double` are the same bits as another
type, and LANES is how many numbers there are.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ocannl_core.codegen.helper import Helper
from ocannl_core.codegen.vector_types import ELEMENTS
from ocannl_core.fast_dataclass import dataclass

_KINDS = {
    "FLOAT": "float32",
    "INT": "int32",
    "DOUBLE": "float64",
    "LONG": "int64",
    "WORD": "uint64",
}
_VIEWS = {
    "FLOAT_bits": ("(int32_t)bits_of", "bits_of", "INT"),
    "INT_float": ("float_of", "float_of", "FLOAT"),
    "DOUBLE_bits": ("float64_bits", "float64_bits", "WORD"),
    "WORD_double": ("float64_of", "float64_of", "DOUBLE"),
}
"""The same bits as another type: of a number, a call and what it needs; of a vector, a cast."""

_CONSTANT = re.compile(r"\b[A-Z]+_splat\(([^()]*)\)")
_TOKEN = re.compile(rf"\b({'|'.join(_KINDS)})(?:_(\w+))?\b")

Spelling = Callable[[str, str | None], tuple[str, str | None]]
"""From a type and perhaps a function of it to C and the helper that it needs, if any."""


@dataclass(frozen=True, slots=True)
class FunctionTemplate:
    """A function over types that stand for a number or for a vector.

    Attributes:
        name: What it is called in texts, such as `FLOAT_exp`.
        text: Its definition.
        needs: The helpers that it mentions by their names.
    """

    name: str
    text: str
    needs: tuple[str, ...] = ()

    @property
    def dtype(self) -> str:
        """The format of its numbers."""
        return _KINDS[self.name.partition("_")[0]]

    @property
    def function(self) -> str:
        """Its name without the type."""
        return self.name.partition("_")[2]

    def of_numbers(self) -> Helper:
        """Returns the function of numbers."""
        return self._made(_CONSTANT.sub(r"\1", self.text), 1, _of_numbers)

    def of_vectors(self, lanes: int) -> Helper:
        """Returns the function of vectors."""

        def spelled(kind: str, function: str | None) -> tuple[str, str | None]:
            view = _VIEWS.get(f"{kind}_{function}")
            vector = f"{_KINDS[kind if view is None else view[2]]}x{lanes}"
            if view is not None:
                return f"({vector})", vector
            name = vector if function is None else f"{vector}_{function}"
            return name, name

        return self._made(self.text, lanes, spelled)

    def _made(self, text: str, lanes: int, spelled: Spelling) -> Helper:
        kind, _, function = self.name.partition("_")
        own, _ = spelled(kind, function)
        needs = dict.fromkeys(self.needs)

        def replaced(token: re.Match[str]) -> str:
            code, helper = spelled(token[1], token[2])
            if helper is not None and helper != own:
                needs.setdefault(helper)
            return code

        made = _TOKEN.sub(replaced, text).replace("LANES", str(lanes))
        return Helper(made, tuple(needs))


def _of_numbers(kind: str, function: str | None) -> tuple[str, str | None]:
    if function is None:
        return ELEMENTS[_KINDS[kind]][0], None
    view = _VIEWS.get(f"{kind}_{function}")
    if view is not None:
        return view[0], view[1]
    name = f"{function}_{_KINDS[kind]}"
    return name, name
