"""The einsum notation, read by a parser of its own, and the sizes that formulas of axes imply."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass

Row = tuple[int, ...]
Rows = tuple[Row, Row, Row]
"""The sizes of the batch, output and input axes: buffer order."""


class Invalid(Exception):
    """The operation does not fit its operands."""


@dataclass(frozen=True)
class Name:
    label: Hashable


@dataclass(frozen=True)
class Position:
    index: int


@dataclass(frozen=True)
class Unrelated:
    pass


@dataclass(frozen=True)
class Formula:
    """An axis addressed at `stride * over + offset + dilation * kernel`."""

    stride: int
    over: str
    offset: int = 0
    kernel: str | None = None
    dilation: int = 1
    padded: bool = False

    @property
    def coupled(self) -> bool:
        """True if the window's length bears on the axis's size."""
        return self.kernel is not None and not self.padded

    def size(self, over: int, kernel: int | None) -> int:
        """Returns the size of the axis."""
        if not self.coupled:
            return self.stride * over
        assert kernel is not None
        return self.stride * (over - 1) + 1 + (kernel - 1) * self.dilation

    def solve(self, size: int, kernel: int | None) -> int:
        """Returns the size of `over`."""
        if not self.coupled:
            over, rest = divmod(size, self.stride)
        else:
            assert kernel is not None
            left = size - 1 - (kernel - 1) * self.dilation
            if left < 0:
                raise Invalid("the window is longer than the axis")
            over, rest = divmod(left, self.stride)
            over += 1
        if rest or not over:
            raise Invalid("the stride does not divide the axis")
        return over

    def solve_kernel(self, size: int, over: int) -> int:
        """Returns the size of the window."""
        span = size - self.stride * (over - 1)
        if span < 1 or (span - 1) % self.dilation:
            raise Invalid("no window fits")
        return (span - 1) // self.dilation + 1

    def left(self, kernel: int) -> int:
        """Returns how many cells lie in front of the first window's centre."""
        span = 1 + (kernel - 1) * self.dilation
        return span - (span + 1) // 2 if self.padded else 0


Axis = Name | Position | Unrelated | Formula


@dataclass(frozen=True)
class Pattern:
    """A row of a spec; a variable that is None has no name."""

    leading: tuple[Axis, ...]
    variable: str | None
    trailing: tuple[Axis, ...]
    is_written: bool = True

    @property
    def known(self) -> int:
        return len(self.leading) + len(self.trailing)


_KINDS = ("batch", "output", "input")
_FORMULA = re.compile(
    r"(?:(?P<stride>\d+)\*)?(?P<over>[a-z]\w*)(?P<mark>[<=])?"
    r"(?:\+(?P<offset>\d+)(?!\*|\w))?(?:\+(?:(?P<dilation>\d+)\*)?(?P<kernel>[a-z]\w*))?"
)


def parse(spec: str) -> tuple[list[list[Pattern]], list[Pattern]]:
    """Returns the rows of each operand and of the result, in buffer order."""
    words = bool(re.search(r"[,*+^<]|=(?!>)", spec))
    left, right = spec.split("=>")
    return [_rows(part, words) for part in left.split(";")], _rows(right, words)


def _rows(text: str, words: bool) -> list[Pattern]:
    batch, bar, rest = text.rpartition("|")
    inputs, arrow, output = rest.rpartition("->")
    absent = Pattern((), None, (), is_written=False)
    return [
        _pattern(batch, "batch", words) if bar else absent,
        _pattern(output, "output", words),
        _pattern(inputs, "input", words) if arrow else absent,
    ]


def _pattern(text: str, kind: str, words: bool) -> Pattern:
    text = re.sub(r"\s+", " ", text).strip()
    match = re.search(r"\.\.\.|\.\.(\w+)\.\.", text)
    if match is None:
        return Pattern((), None, _axes(text, words))
    return Pattern(
        _axes(text[: match.start()], words),
        match[1] or kind,
        _axes(text[match.end() :], words),
    )


def _axes(text: str, words: bool) -> tuple[Axis, ...]:
    parts = text.split(",") if words else re.findall(r"\d+|[^\W\d]", text)
    return tuple(_axis(part.replace(" ", "")) for part in parts if part.strip())


def _axis(text: str) -> Axis:
    if text == "_":
        return Unrelated()
    if text.isdigit():
        return Position(int(text))
    match = _FORMULA.fullmatch(text)
    assert match, text
    if match["stride"] is None and match["kernel"] is None:
        return Name(match["over"])
    return Formula(
        stride=int(match["stride"] or 1),
        over=match["over"],
        offset=int(match["offset"] or 0),
        kernel=match["kernel"],
        dilation=int(match["dilation"] or 1),
        padded=match["mark"] == "=",
    )
