"""Syntax tree of the einsum notation.

A spec names the axes of the operands and of the result: `ij;jk=>ik`. Each shape has up to three
rows, `batch|input->output`; a row is axes, optionally around one row variable: `i..v..jk`, `...`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from functools import cached_property

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.shape.language.shape_terms import RowKind


@dataclass(frozen=True, slots=True)
class Label:
    """An axis with a name; equal names are the same axis. `at` is its position in the text."""

    name: str
    at: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Fixed:
    """One position of an axis."""

    index: int
    at: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return str(self.index)


@dataclass(frozen=True, slots=True)
class Anything:
    """An axis without a name; two of them are unrelated."""

    at: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return "_"


Coefficient = int | str
"""A number, or the name of one."""


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """The window part of an affine axis."""

    kernel: str
    """The name of the window's axis."""
    dilation: Coefficient = 1
    padded: bool | None = None
    """True for `=`, False for `<`, None if the spec leaves it open."""


@dataclass(frozen=True, slots=True)
class Affine:
    """An axis indexed at `stride * over + offset + dilation * kernel`."""

    stride: Coefficient
    over: str
    offset: int = 0
    window: WindowSpec | None = None
    at: int = field(default=0, compare=False)

    def __str__(self) -> str:
        window = self.window
        text = (
            self.over
            if self.stride == 1 and window and not self.offset
            else f"{self.stride}*{self.over}"
        )
        if window and window.padded is not None:
            text += "=" if window.padded else "<"
        if self.offset:
            text += f"+{self.offset}"
        if window:
            text += "+" if window.dilation == 1 else f"+{window.dilation}*"
            text += window.kernel
        return text


@dataclass(frozen=True, slots=True)
class Concat:
    """A concatenation of named parts; a number is the length of a skipped part."""

    parts: tuple[str | int, ...]
    at: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return "^".join(map(str, self.parts))


AxisSpec = Label | Fixed | Anything | Affine | Concat


def axis_names(axis: AxisSpec) -> tuple[str, ...]:
    """Return the axis names in an axis."""
    match axis:
        case Label(name):
            return (name,)
        case Affine(over=over, window=window):
            return (over,) if window is None else (over, window.kernel)
        case Concat(parts):
            return tuple(part for part in parts if isinstance(part, str))
        case Fixed() | Anything():
            return ()


@dataclass(frozen=True)
class RowSpec:
    """One row of a shape."""

    leading: tuple[AxisSpec, ...] = ()
    """The axes to the left of the row variable."""
    variable: str | None = None
    """The name of the row variable, of `...` the row's kind; None without one."""
    trailing: tuple[AxisSpec, ...] = ()
    """The other axes."""
    ellipsis: bool = field(default=False, compare=False)
    """True if the variable is written `...`."""

    @cached_property
    def axes(self) -> tuple[AxisSpec, ...]:
        """All axes, left to right."""
        return self.leading + self.trailing


@dataclass(frozen=True)
class ShapeSpec:
    """The rows of one operand or of the result; a row that is None is not mentioned."""

    batch: RowSpec | None
    input: RowSpec | None
    output: RowSpec

    def row(self, kind: RowKind) -> RowSpec | None:
        found: RowSpec | None = getattr(self, kind._value_)
        return found

    @cached_property
    def rows(self) -> tuple[RowSpec, ...]:
        """The rows mentioned, in the order of the notation."""
        return tuple(row for row in (self.batch, self.input, self.output) if row is not None)

    @cached_property
    def axes(self) -> tuple[AxisSpec, ...]:
        """Every axis, left to right."""
        return tuple(axis for row in self.rows for axis in row.axes)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names in its axes, in order."""
        return tuple(name for axis in self.axes for name in axis_names(axis))


@dataclass(frozen=True)
class Spec:
    """An einsum specification; one object for each text, so that facts are found once."""

    operands: tuple[ShapeSpec, ...]
    result: ShapeSpec
    text: str = field(default="", compare=False)

    @cached_property
    def shapes(self) -> tuple[ShapeSpec, ...]:
        """The operands, then the result."""
        return (*self.operands, self.result)

    @cached_property
    def axes(self) -> tuple[AxisSpec, ...]:
        """Every axis, left to right."""
        return tuple(axis for shape in self.shapes for axis in shape.axes)

    @cached_property
    def aligned(self) -> frozenset[str]:
        """The names in windows and concatenations."""
        return frozenset(
            name
            for axis in self.axes
            if isinstance(axis, Concat) or (isinstance(axis, Affine) and axis.window is not None)
            for name in axis_names(axis)
        )

    @cached_property
    def optional_parts(self) -> tuple[str, ...]:
        """The parts of concatenated axes that may be empty.

        Such a part occurs nowhere else, and every shape on the other side has an axis made of the
        other parts alone: `b` in `a^b => a`, but not in `a; b => a^b`.
        """
        plain = {n for a in self.axes if not isinstance(a, Concat) for n in axis_names(a)}
        sides = ((self.operands, (self.result,)), ((self.result,), self.operands))
        return tuple(
            part
            for shapes, others in sides
            for axis in (axis for shape in shapes for axis in shape.axes)
            if isinstance(axis, Concat)
            for part in axis.parts
            if isinstance(part, str) and part not in plain
            if all(_has_axis_of(other, {*axis.parts} - {part}) for other in others)
        )

    @cached_property
    def reduces(self) -> bool:
        """True if the result lacks an axis or a row variable of an operand. The parts of
        concatenated axes are read one at a time.
        """
        kept = set(_names_of(self.result, has_parts=True))
        read = (name for shape in self.operands for name in _names_of(shape, has_parts=False))
        has_unnamed = any(
            isinstance(axis, Anything) for shape in self.operands for axis in shape.axes
        )
        return has_unnamed or not kept.issuperset(read)

    def __str__(self) -> str:
        return self._shown

    @cached_property
    def _shown(self) -> str:
        plain = all(
            isinstance(axis, Fixed | Anything) or (isinstance(axis, Label) and len(axis.name) == 1)
            for axis in self.axes
        )
        text = self._render(", ", "")
        if plain:
            return self._render("", "")
        return text if any(mark in text for mark in ",*+^<") else self._render(", ", ",")

    def _render(self, separator: str, end: str) -> str:
        operands = "; ".join(_shape_text(shape, separator, end) for shape in self.operands)
        return f"{operands} => {_shape_text(self.result, separator, end)}"


def _names_of(shape: ShapeSpec, *, has_parts: bool) -> Iterator[tuple[str, str]]:
    """Yield the axes and row variables of a shape, with or without the parts of others."""
    for row in shape.rows:
        axes = (axis for axis in row.axes if has_parts or not isinstance(axis, Concat))
        yield from (("axis", name) for axis in axes for name in axis_names(axis))
        if row.variable is not None:
            yield "row", row.variable


def _has_axis_of(shape: ShapeSpec, parts: set[str | int]) -> bool:
    return any(
        bool(axis_names(axis)) and parts.issuperset(axis_names(axis))
        for axis in shape.axes
        if isinstance(axis, Label | Concat)
    )


def _shape_text(shape: ShapeSpec, separator: str, end: str) -> str:
    text = _row_text(shape.output, separator, end)
    if shape.input is not None:
        text = f"{_row_text(shape.input, separator, end)}->{text}"
    if shape.batch is not None:
        text = f"{_row_text(shape.batch, separator, end)}|{text}"
    return text


def _row_text(row: RowSpec, separator: str, end: str) -> str:
    parts = [str(axis) for axis in row.axes]
    if row.variable is not None:
        parts.insert(len(row.leading), "..." if row.ellipsis else f"..{row.variable}..")
    if separator:
        return separator.join(parts) + (end if row.axes else "")
    text = ""
    for part in parts:
        text += " " + part if text[-1:].isdigit() and part.isdigit() else part
    return text
