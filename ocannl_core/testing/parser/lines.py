"""Lines of a text, nested by their indentation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from itertools import takewhile

from ocannl_core.base.errors import ParseError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.loops.printer import INDENT


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
