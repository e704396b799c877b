"""The einsum notation, read by a parser of its own, and the sizes that formulas of axes imply."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
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
        """Return True if the window's length bears on the axis's size."""
        return self.kernel is not None and not self.padded

    def size(self, over: int, kernel: int | None) -> int:
        """Return the size of the axis."""
        if not self.coupled:
            return self.stride * over
        assert kernel is not None
        return self.stride * (over - 1) + 1 + (kernel - 1) * self.dilation

    def solve(self, size: int, kernel: int | None) -> int:
        """Return the size of `over`."""
        if not self.coupled:
            over, rest = divmod(size, self.stride)
        else:
            assert kernel is not None
            left = size - 1 - (kernel - 1) * self.dilation
            if left < 0:
                raise Invalid("the window is longer than the axis")
            over, rest = divmod(left, self.stride)
            over += 1
        if rest or (not over and (size or self.coupled)):
            raise Invalid("the stride does not divide the axis")
        return over

    def solve_kernel(self, size: int, over: int) -> int:
        """Return the size of the window."""
        span = size - self.stride * (over - 1)
        if span < 1 or (span - 1) % self.dilation:
            raise Invalid("no window fits")
        return (span - 1) // self.dilation + 1

    def left(self, kernel: int) -> int:
        """Return how many cells lie in front of the first window's center."""
        span = 1 + (kernel - 1) * self.dilation
        return span - (span + 1) // 2 if self.padded else 0


@dataclass(frozen=True)
class PartsAxis:
    """An axis of concatenated parts; a number is a part that is skipped."""

    parts: tuple[str | int, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(part for part in self.parts if isinstance(part, str))

    def sizes(self, known: Mapping[Hashable, int]) -> list[int | None]:
        """Return the size of each part; None if unknown."""
        return [part if isinstance(part, int) else known.get(part) for part in self.parts]

    def left(self, place: int, known: Mapping[Hashable, int]) -> int:
        """Return how many cells lie in front of a part."""
        return sum(size or 0 for size in self.sizes(known)[:place])


Axis = Name | Position | Unrelated | Formula | PartsAxis


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
    r"(?:(?P<stride>\w+)\*)?(?P<over>[a-z]\w*)(?P<mark>[<=])?"
    r"(?:\+(?P<offset>\d+)(?!\*|\w))?(?:\+(?:(?P<dilation>\w+)\*)?(?P<kernel>[a-z]\w*))?"
)


@dataclass(frozen=True)
class SpecContext:
    """Names, sizes and flags that accompany a spec.

    Attributes:
        padded: True if windows without a mark may leave their axis.
        values: Numbers for names: coefficients, and sizes of axes.
        rows: The numbers of cells of row variables.
    """

    padded: bool | None = None
    values: tuple[tuple[str, int], ...] = ()
    rows: tuple[tuple[str, int], ...] = ()

    def used_in(self, spec: str) -> set[str]:
        """Return the names with values that occur in a spec."""
        words = bool(re.search(r"[,*+^<]|=(?!>)", spec))
        return {
            name
            for name, _ in self.values
            if (re.search(rf"\b(?<!\.\.){name}\b", spec) if words else name in spec)
        }

    def number(self, text: str | None) -> int:
        """Return a coefficient."""
        if text is None or text.isdigit():
            return int(text or 1)
        if text not in dict(self.values):
            raise Invalid(f"{text} is no number")
        return dict(self.values)[text]


ALONE = SpecContext()
"""Nothing is stated."""


def parse(spec: str, context: SpecContext = ALONE) -> tuple[list[list[Pattern]], list[Pattern]]:
    """Return the rows of each operand and of the result, in buffer order."""
    reader = _Reader(bool(re.search(r"[,*+^<]|=(?!>)", spec)), context)
    left, right = spec.split("=>")
    return [reader.rows(part) for part in left.split(";")], reader.rows(right)


def axes_of(patterns: list[Pattern]) -> Iterator[Axis]:
    """Yield the axes of a shape."""
    for pattern in patterns:
        yield from (*pattern.leading, *pattern.trailing)


def names_of(axis: Axis) -> tuple[str, ...]:
    """Return the labels of an axis."""
    match axis:
        case Name(label):
            return (str(label),)
        case Formula(over=over, kernel=kernel):
            return (over,) if kernel is None else (over, kernel)
        case PartsAxis():
            return axis.labels
        case _:
            return ()


@dataclass(frozen=True)
class _Reader:
    words: bool
    context: SpecContext

    def rows(self, text: str) -> list[Pattern]:
        batch, bar, rest = text.rpartition("|")
        inputs, arrow, output = rest.rpartition("->")
        absent = Pattern((), None, (), is_written=False)
        return [
            self._pattern(batch, "batch") if bar else absent,
            self._pattern(output, "output"),
            self._pattern(inputs, "input") if arrow else absent,
        ]

    def _pattern(self, text: str, kind: str) -> Pattern:
        text = re.sub(r"\s+", " ", text).strip()
        match = re.search(r"\.\.\.|\.\.(\w+)\.\.", text)
        if match is None:
            return Pattern((), None, self._axes(text))
        return Pattern(
            self._axes(text[: match.start()]), match[1] or kind, self._axes(text[match.end() :])
        )

    def _axes(self, text: str) -> tuple[Axis, ...]:
        parts = text.split(",") if self.words else re.findall(r"\d+|[^\W\d]", text)
        return tuple(self._axis(part.replace(" ", "")) for part in parts if part.strip())

    def _axis(self, text: str) -> Axis:
        if text == "_":
            return Unrelated()
        if text.isdigit():
            return Position(int(text))
        if "^" in text:
            return PartsAxis(tuple(int(p) if p.isdigit() else p for p in text.split("^")))
        match = _FORMULA.fullmatch(text)
        assert match, text
        if match["stride"] is None and match["kernel"] is None:
            return Name(match["over"])
        mark = match["mark"]
        padded = self.context.padded if mark is None else mark == "="
        if match["kernel"] is not None and padded is None:
            raise Invalid(f"nothing says whether {text} may leave the axis")
        return Formula(
            stride=self.context.number(match["stride"]),
            over=match["over"],
            offset=int(match["offset"] or 0),
            kernel=match["kernel"],
            dilation=self.context.number(match["dilation"]),
            padded=bool(padded),
        )
