"""Lines of a kernel in the making: indentation, the helpers that they use, pointers to cells."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ocannl_core.codegen.address_strength_reduction import ReducedAddressLoop
from ocannl_core.codegen.names import KernelNames
from ocannl_core.node import TensorNode


class KernelWriter:
    """Collects the lines of one kernel.

    Args:
        names: What the kernel's names come from.

    Attributes:
        helpers: Names of the prelude's helpers that the lines mention.
        known: Variables of the text by the expressions whose values they hold here.
        stepping: The loop around this point whose cells are found from pointers set before it.
        is_written_out: True where copies of the same statements are written, one per iteration.
    """

    def __init__(self, names: KernelNames) -> None:
        self._names = names
        self.helpers: set[str] = set()
        self.known: dict[str, str] = {}
        self.stepping: ReducedAddressLoop | None = None
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
        name, declaration = self._pointer(array, index, len(self._pointers) - 1)
        if declaration:
            self.line(declaration)
        return name

    def pointer_before(self, loop: ReducedAddressLoop, array: str, index: str) -> str:
        """Returns a variable that points to a cell and is set before a loop."""
        name, declaration = self._pointer(array, index, loop.scope)
        if declaration:
            loop.opening.append(declaration)
        return name

    def value_before(self, loop: ReducedAddressLoop, type_name: str, code: str) -> str:
        """Returns a variable that holds what is the same in all iterations of a loop."""
        name = loop.same.get(code)
        if name is None:
            name = loop.same[code] = self._names.fresh()
            loop.opening.append(f"const {type_name} {name} = {code};")
        return name

    @contextmanager
    def before(self) -> Iterator[None]:
        """Notes that what is rendered inside stands before the loop around this point."""
        outer = self.stepping, self.is_written_out
        self.stepping, self.is_written_out = None, False
        yield
        self.stepping, self.is_written_out = outer

    def _pointer(self, array: str, index: str, number: int) -> tuple[str, str]:
        """Returns a pointer of a scope or of one around it; with its declaration if it is new."""
        for scope in reversed(self._pointers[: number + 1]):
            if (array, index) in scope:
                return scope[array, index], ""
        name = self._pointers[number][array, index] = self._names.place()
        return name, f"__auto_type {name} = &{array}[{index}];"

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

    @contextmanager
    def stepping_loop(
        self,
        index_type: str,
        variable: str,
        limits: tuple[str, str],
        depth: int,
        written: frozenset[TensorNode],
    ) -> Iterator[None]:
        """Writes a loop around what is written inside, with pointers to its cells before it.

        Args:
            index_type: The type of its variable.
            variable: The variable.
            limits: The first value and the one after the last.
            depth: How many loops are around it.
            written: The nodes of which it changes cells.
        """
        loop = ReducedAddressLoop(variable, depth, {variable}, len(self._pointers) - 1, written)
        start = len(self._lines)
        self.stepping = loop
        with self.braces("for (...)"):
            yield
        self.stepping = None
        indent = "  " * self._depth
        self._lines[start] = f"{indent}{loop.head(index_type, *limits)} {{"
        self._lines[start:start] = [indent + line for line in loop.opening]
