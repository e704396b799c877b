"""Tokens of one line of printed text, and errors that point at them."""

from __future__ import annotations

import re

from ocannl_core.base.errors import ParseError
from ocannl_core.base.fast_dataclass import dataclass

_TOKEN = re.compile(
    r"(?P<number>0x[0-9a-f]+|(?:\d+\.\d+|\d+)(?:e[+-]?\d+)?)"
    r"|(?P<name>[^\W\d]\w*)"
    r"|(?P<symbol>\.\.\.|\*\*|<=|==|!=|&&|\|\||[-+*/%<=()\[\],:.^|&])"
    r"|(?P<other>\S)"
)


@dataclass(frozen=True, slots=True)
class TextLine:
    """One line of a text."""

    number: int
    text: str

    @property
    def indent(self) -> int:
        """The number of leading spaces."""
        return len(self.text) - len(self.text.lstrip(" "))

    def error(self, column: int, found: str, fix: str) -> ParseError:
        """Return an error at a column, counted from 0."""
        return ParseError(
            "A program's text follows the notation of the loop language.",
            found=found,
            where=f"line {self.number}, column {column + 1}\n{self.text}\n{' ' * column}^",
            fix=fix,
        )


@dataclass(frozen=True, slots=True)
class Token:
    """A number, a name, a symbol, or the end of a line.

    Attributes:
        kind: `number`, `name`, `symbol` or `end`.
    """

    kind: str
    text: str
    column: int

    def __str__(self) -> str:
        return f"`{self.text}`" if self.text else "the end of the line"


class Cursor:
    """A position among the tokens of a line."""

    def __init__(self, line: TextLine) -> None:
        self.line = line
        self.position = 0
        self._tokens = [
            Token(match.lastgroup or "other", match[0], match.start())
            for match in _TOKEN.finditer(line.text)
        ]
        self._end = Token("end", "", len(line.text))

    def peek(self, ahead: int = 0) -> Token:
        """Return a token without consuming it."""
        position = self.position + ahead
        return self._tokens[position] if position < len(self._tokens) else self._end

    def take(self) -> Token:
        """Consume a token."""
        token = self.peek()
        self.position += 1
        return token

    def accept(self, text: str) -> bool:
        """Consume the next token if it is this one; return True if so."""
        if self.peek().text != text:
            return False
        self.position += 1
        return True

    def expect(self, *texts: str) -> None:
        """Consume the next tokens, which must be these."""
        for text in texts:
            if not self.accept(text):
                raise self.error(f"`{text}`")

    def expect_range(self) -> tuple[int, int]:
        """Consume `(stop)` or `(start, stop)`."""
        self.expect("(")
        start, stop = 0, self.expect_integer()
        if self.accept(","):
            start, stop = stop, self.expect_integer()
        self.expect(")")
        return start, stop

    def expect_kind(self, kind: str, meaning: str) -> Token:
        """Consume the next token, which must be of this kind."""
        if self.peek().kind != kind:
            raise self.error(meaning)
        return self.take()

    def expect_integer(self) -> int:
        """Consume an integer, which may be negative."""
        sign = -1 if self.accept("-") else 1
        if not self.peek().text.isdecimal():
            raise self.error("an integer")
        return sign * int(self.take().text)

    def expect_end(self) -> None:
        if self.peek().kind != "end":
            raise self.error("the end of the line")

    def error(self, expected: str) -> ParseError:
        """Return the error that the next token is not the expected one."""
        token = self.peek()
        return self.line.error(
            token.column, f"{token} instead of {expected}", f"write {expected} there"
        )

    def error_at(self, token: Token, found: str, fix: str) -> ParseError:
        """Return an error at a token."""
        return self.line.error(token.column, found, fix)
