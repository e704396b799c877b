"""Writer of the lines of a kernel: indentation, used helpers, and pointers to cells."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ocannl_core.codegen.text.address_strength_reduction import ReducedAddressLoop
from ocannl_core.codegen.text.names import KernelNames
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType


class KernelWriter:
    """Collects the lines of one kernel.

    Attributes:
        helpers: Names of the prelude's helpers that the lines mention.
        cached: Variables by the expressions whose values they hold here.
        reduced_loop: The innermost loop with strength-reduced addresses around this point.
        group_arrays: The arrays that the threads of a block share: name, format and cells.
    """

    def __init__(self, names: KernelNames) -> None:
        self._names = names
        self.helpers: set[str] = set()
        self.cached: dict[str, str] = {}
        self.reduced_loop: ReducedAddressLoop | None = None
        self.is_unrolled = False
        self.group_arrays: list[tuple[str, DType, int]] = []
        self._pointers: list[dict[tuple[str, str], str]] = [{}]
        self._lines: list[str] = []
        self._depth = 1
        self._undefined: tuple[str, int] | None = None

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self._lines)

    def line(self, code: str) -> None:
        """Write one statement, or several lines at the current depth."""
        if "\n" not in code:
            self._lines.append("  " * self._depth + code if code else "")
            return
        for each in code.splitlines():
            self._lines.append("  " * self._depth + each if each else "")

    def insert_first(self, code: str) -> None:
        """Write one statement before all others."""
        self._lines.insert(0, f"  {code}")

    def forget(self) -> None:
        """Drop the values loaded so far, since memory or the scope changes."""
        self.cached.clear()

    def declare(self, type_name: str, name: str) -> None:
        """Declare a scalar; `assign` merges an immediate assignment into the declaration."""
        self._undefined = (name, len(self._lines))
        self.line(f"{type_name} {name};")

    def assign(self, name: str, code: str) -> None:
        """Assign a scalar.

        float v0; v0 = x;  -->  float v0 = x;
        """
        if self._undefined == (name, len(self._lines) - 1):
            self._undefined = None
            self._lines[-1] = f"{self._lines[-1][:-1]} = {code};"
        else:
            self.line(f"{name} = {code};")

    def pointer(self, array: str, index: str) -> str:
        """Return a pointer to a cell, declared in the current scope."""
        name, declaration = self._pointer(array, index, len(self._pointers) - 1)
        if declaration:
            self.line(declaration)
        return name

    def hoist_pointer(self, loop: ReducedAddressLoop, array: str, index: str) -> str:
        """Return a pointer to a cell, declared before a loop."""
        name, declaration = self._pointer(array, index, loop.scope)
        if declaration:
            loop.opening.append(declaration)
        return name

    def hoist_value(self, loop: ReducedAddressLoop, type_name: str, code: str) -> str:
        """Return a variable for a loop-invariant value, set before the loop."""
        name = loop.invariants.get(code)
        if name is None:
            name = loop.invariants[code] = self._names.fresh()
            loop.opening.append(f"const {type_name} {name} = {code};")
        return name

    @contextmanager
    def hoisting(self) -> Iterator[None]:
        """Render code to stand before the current innermost loop."""
        outer = self.reduced_loop, self.is_unrolled
        self.reduced_loop, self.is_unrolled = None, False
        yield
        self.reduced_loop, self.is_unrolled = outer

    def _pointer(self, array: str, index: str, number: int) -> tuple[str, str]:
        """Return a pointer in a scope or one around it, and its declaration if it is new."""
        for scope in reversed(self._pointers[: number + 1]):
            if (array, index) in scope:
                return scope[array, index], ""
        name = self._pointers[number][array, index] = self._names.fresh_pointer()
        return name, f"__auto_type {name} = &{array}[{index}];"

    @contextmanager
    def unrolled(self) -> Iterator[None]:
        """Render unrolled copies of the same statements."""
        outer, self.is_unrolled = self.is_unrolled, True
        yield
        self.is_unrolled = outer

    @contextmanager
    def braces(self, head: str) -> Iterator[None]:
        """Write `head { ... }` around the lines written inside."""
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
    def reduce_addresses(
        self,
        index_type: str,
        variable: str,
        limits: tuple[str, str],
        depth: int,
        written: frozenset[TensorNode],
    ) -> Iterator[None]:
        """Write a loop with strength-reduced addresses around the lines written inside.

        Args:
            limits: The first value and the one after the last.
        """
        loop = ReducedAddressLoop(variable, depth, {variable}, len(self._pointers) - 1, written)
        start = len(self._lines)
        self.reduced_loop = loop
        with self.braces("for (...)"):
            yield
        self.reduced_loop = None
        indent = "  " * self._depth
        self._lines[start] = f"{indent}{loop.head(index_type, *limits)} {{"
        self._lines[start:start] = [indent + line for line in loop.opening]
