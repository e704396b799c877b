"""The lines of a text, nested by their indentation, and the names that it has defined."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from itertools import count, takewhile
from keyword import iskeyword
from typing import TypeVar

from ocannl_core.base.errors import ParseError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import IndexVar
from ocannl_core.ir.loops.nodes import Local
from ocannl_core.ir.loops.printer import INDENT
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import ALL, PACKED, DType


@dataclass(slots=True)
class SourceLine:
    """A line without its indentation, and the lines that are indented below it."""

    number: int
    text: str
    inside: list[SourceLine] = field(default_factory=list)

    def error(self, found: str) -> ParseError:
        """Return the error that the line does not follow the notation."""
        return ParseError(
            "A program's text follows the notation of the loop language.",
            found=found,
            where=f"line {self.number}: {self.text}",
            fix="compare with the notation in docs/reference/printing.md",
        )


def nested_lines(text: str) -> Sequence[SourceLine]:
    """Return the outermost lines of a text, all of which may be indented; empty lines are skipped.

    Raises:
        ParseError: if a line is indented by no level of the lines above it.
    """
    lines = [
        (len(line) - len(line.lstrip(" ")), SourceLine(number, line.lstrip(" ")))
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip()
    ]
    blocks: list[list[SourceLine]] = [[]]  # the lines of each block around the next line
    for indent, line in lines:
        depth, rest = divmod(indent - lines[0][0], len(INDENT))
        if rest or not 0 <= depth < len(blocks):
            raise line.error(f"an indentation by {indent} spaces")
        blocks[depth].append(line)
        blocks[depth + 1 :] = [line.inside]
    return blocks[0]


def leading(
    lines: Sequence[SourceLine], mark: str
) -> tuple[list[SourceLine], Sequence[SourceLine]]:
    """Return the first lines as far as they begin with a mark, without it, and the lines below."""
    marked = list(takewhile(lambda line: line.text.startswith(mark), lines))
    rest = lines[len(marked) :]
    return [SourceLine(each.number, each.text.removeprefix(mark)) for each in marked], rest


FORMATS = {str(dtype): dtype for dtype in (*ALL, *PACKED)}
_ARRAY = re.compile(r"(\w+): (\w+)\[([\d, ]*)\]")

Symbol = TensorNode | Local | IndexVar
_Symbol = TypeVar("_Symbol", bound=Symbol)


def python_name(name: str) -> str:
    """Return a name that stands for another one in Python's syntax; most names for themselves.

    Python reserves its keywords, and normalizes names that are not in ASCII.
    """
    return name if name.isascii() and not iskeyword(name) else f"_{name.encode().hex()}"


class Symbols:
    """The arrays, scalar variables and index variables that a text has defined so far."""

    def __init__(self) -> None:
        self.line = SourceLine(1, "")
        """The line that is read now."""
        self.infos: dict[TensorNode, NodeInfo] = {}
        """The formats and extents of the arrays."""
        self._symbols: dict[str, Symbol] = {}
        self._ids = count()

    def error(self, found: str) -> ParseError:
        return self.line.error(found)

    def get(self, name: str) -> Symbol | None:
        return self._symbols.get(python_name(name))

    def find(self, name: str, kind: type[_Symbol]) -> _Symbol:
        """Return the symbol of a name, which must be of a kind."""
        found = self.get(name)
        if not isinstance(found, kind):
            raise self.error(f"`{name}`, which names no {kind.__name__}")
        return found

    def arrays(self, names: str) -> tuple[TensorNode, ...]:
        """Return the arrays of a list of names."""
        return tuple([self.find(name, TensorNode) for name in re.findall(r"\w+", names)])

    def define(self, name: str, symbol: Symbol) -> None:
        if self.get(name) is not None:
            raise self.error(f"`{name}` for a second time")
        self._symbols[python_name(name)] = symbol

    @contextmanager
    def scope(self, name: str, variable: IndexVar) -> Iterator[None]:
        """Define the variable of a loop, until its end."""
        self.define(name, variable)
        yield
        del self._symbols[python_name(name)]

    def format(self, name: str) -> DType:
        if name not in FORMATS:
            raise self.error(f"`{name}` instead of a number format")
        return FORMATS[name]

    def array(self, declaration: str) -> TensorNode:
        """Return a declared array; several scopes may allocate one array."""
        found = _ARRAY.fullmatch(declaration)
        if found is None:
            raise self.error(f"`{declaration}` instead of an array, `a: float32[3]`")
        info = NodeInfo(self.format(found[2]), tuple(map(int, re.findall(r"\d+", found[3]))))
        node = self.get(found[1])
        if not isinstance(node, TensorNode):
            node = TensorNode(next(self._ids), (found[1],))
            self.define(found[1], node)
        if self.infos.setdefault(node, info) != info:
            raise self.error(f"`{found[1]}` with another format or extents")
        return node

    def scalar(self, name: str, dtype_name: str) -> Local:
        """Return a declared variable; several scopes may declare one variable."""
        dtype, local = self.format(dtype_name), self.get(name)
        if not isinstance(local, Local):
            number = next(self._ids)
            local = Local(number, dtype, None if name == "v" else TensorNode(-1 - number, (name,)))
            self.define(name, local)
        if local.dtype is not dtype:
            raise self.error(f"`{name}` with another format")
        return local
