"""Lines of a kernel in the making: indentation, and the helpers that they use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ocannl_core.codegen.names import Names


class Writer:
    """Collects the lines of one kernel.

    Args:
        names: What the kernel's names come from.

    Attributes:
        helpers: Names of the prelude's helpers that the lines mention.
        known: Variables of the text by the expressions whose values they hold here.
        is_written_out: True where copies of the same statements are written, one per iteration.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self.helpers: set[str] = set()
        self.known: dict[str, str] = {}
        self.is_written_out = False
        self._pointers: list[dict[tuple[str, str], str]] = [{}]
        self._lines: list[str] = []
        self._depth = 1
        self._undefined: tuple[str, int] | None = None

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self._lines)

    def line(self, code: str) -> None:
        """Writes one statement, or several lines at the current depth."""
        if "\n" not in code:
            self._lines.append("  " * self._depth + code if code else "")
            return
        for each in code.splitlines():
            self._lines.append("  " * self._depth + each if each else "")

    def first(self, code: str) -> None:
        """Writes one statement before all others."""
        self._lines.insert(0, f"  {code}")

    def forget(self) -> None:
        """Notes that memory or the scope changes: values are read again."""
        self.known.clear()

    def declare(self, type_name: str, name: str) -> None:
        """Declares a scalar variable; a value that is set at once joins the declaration."""
        self._undefined = (name, len(self._lines))
        self.line(f"{type_name} {name};")

    def assign(self, name: str, code: str) -> None:
        """Sets a scalar variable.

        float v0; v0 = x;  -->  float v0 = x;
        """
        if self._undefined == (name, len(self._lines) - 1):
            self._undefined = None
            self._lines[-1] = f"{self._lines[-1][:-1]} = {code};"
        else:
            self.line(f"{name} = {code};")

    def pointer(self, array: str, index: str) -> str:
        """Returns a variable that points to a cell, from here to the end of the scope."""
        for scope in reversed(self._pointers):
            if (array, index) in scope:
                return scope[array, index]
        name = self._names.place()
        self.line(f"__auto_type {name} = &{array}[{index}];")
        self._pointers[-1][array, index] = name
        return name

    @contextmanager
    def written_out(self) -> Iterator[None]:
        """Notes that what is written inside are copies of the same statements."""
        outer, self.is_written_out = self.is_written_out, True
        yield
        self.is_written_out = outer

    @contextmanager
    def braces(self, head: str) -> Iterator[None]:
        """Writes `head { ... }` around what is written inside."""
        if head == "else":
            self._lines[-1] += " else {"
        else:
            self.line(f"{head} {{".lstrip())
        self._depth += 1
        self._pointers.append({})
        self.forget()
        yield
        self.forget()
        self._pointers.pop()
        self._depth -= 1
        self.line("}")
