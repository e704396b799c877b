"""Python functions of a frame, compiled from text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from ctypes import c_float
from typing import Any

from ocannl_core.backend_api import dataclass
from ocannl_core.backend_api.arithmetic import Number

Frame = list[Any]
Action = Callable[[Frame], None]
Value = Callable[[Frame], Number]

_FILE = "<interpreted kernel>"
_DEEPEST = 24
"""The levels of an expression in one text: Python's parser has a limit."""


@dataclass(frozen=True, slots=True)
class PythonCode:
    """The text of a Python expression in which the frame is `f`, and the levels that it has."""

    text: str
    depth: int = 0


class Functions:
    """The functions of one routine, and the objects that they refer to by name."""

    def __init__(self) -> None:
        self._objects: dict[str, Any] = {"single": c_float}

    def name(self, value: object) -> str:
        """Return a new name for an object."""
        name = f"n{len(self._objects)}"
        self._objects[name] = value
        return name

    def number(self, value: Number) -> PythonCode:
        """Return the code of a constant."""
        if type(value) is int or (type(value) is float and math.isfinite(value)):
            text = repr(value)
            return PythonCode(f"({text})" if text.startswith("-") else text)
        return PythonCode(self.name(value))

    def result(self, function: Value) -> PythonCode:
        """Return the code of a call of a function of a frame."""
        return PythonCode(f"{self.name(function)}(f)")

    def nested(self, text: str, parts: Iterable[PythonCode]) -> PythonCode:
        """Return the code of an expression over others, as the call of a function where it is
        deep.
        """
        depth = 1 + max([part.depth for part in parts], default=0)
        if depth < _DEEPEST:
            return PythonCode(text, depth)
        return self.result(self.value(PythonCode(text)))

    def value(self, code: PythonCode) -> Value:
        """Return the function that computes an expression."""
        function: Value = eval(compile(f"lambda f: {code.text}", _FILE, "eval"), self._objects)
        return function

    def action(self, lines: Sequence[str]) -> Action:
        """Return the function that runs statements, indented by at least one space."""
        found: dict[str, Action] = {}
        text = "\n".join(["def run(f):", *(lines or [" pass"])])
        exec(compile(text, _FILE, "exec"), self._objects, found)
        return found["run"]
