"""A spec applied to operands of known shapes, by enumeration of all values of its labels.

Nothing here uses the project: a spec is evaluated from its text.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any

import numpy as np

from .grid import Grid, addressed
from .notation import (
    Axis,
    Formula,
    Invalid,
    Name,
    PartsAxis,
    Pattern,
    Position,
    Row,
    Rows,
    SpecContext,
    Unrelated,
    axes_of,
    names_of,
    parse,
)
from .parts import Choice, choices, parted

Array = np.ndarray[Any, Any]

LARGEST_DOMAIN = 20_000


class Undetermined(Exception):
    """The sizes of labels do not follow from those of the operands and the result."""


class Freedom(Enum):
    """Changes that uses of a result can make to an axis."""

    NONE = "none"
    FIRST = "first"
    """The axis has position 0 and no other one."""
    STRETCH = "stretch"
    """An axis that is 1 like the operands may become longer."""
    GROW = "grow"
    """The size is a lower bound."""


@dataclass(frozen=True)
class ExpectedRow:
    """A row of a result: sizes, and the freedom of each axis."""

    sizes: Row
    freedoms: tuple[Freedom, ...]
    open_at: int | None = None
    """The position of further axes, under a row variable that no operand has."""
    longer_at: int = 0
    """The position of axes that uses require."""

    def admits(
        self, row: Row, *, may_lengthen: bool = False, may_stretch_first: bool = False
    ) -> bool:
        """Return True if a result may have this row.

        Args:
            may_lengthen: True when uses can require further axes.
            may_stretch_first: True to let axes of position 0 become longer.
        """
        stretching = {Freedom.STRETCH, Freedom.FIRST} if may_stretch_first else {Freedom.STRETCH}
        if not row and self.sizes == (1,) and self.freedoms[0] is not Freedom.NONE:
            return True  # a scalar
        more = len(row) - len(self.sizes)
        if more < 0 or (more and not may_lengthen and self.open_at is None):
            return False
        stretching.add(Freedom.GROW)
        gaps = (0, self.longer_at) if self.open_at is None else (self.open_at,)
        return any(self._fits(row, gap, more, stretching) for gap in gaps)

    def _fits(self, row: Row, gap: int, more: int, stretching: set[Freedom]) -> bool:
        """Return True for a row without the axes in a gap."""
        return all(
            n == m or (n > m and freedom is Freedom.GROW) or (m == 1 and freedom in stretching)
            for n, m, freedom in zip(
                row[:gap] + row[gap + more :], self.sizes, self.freedoms, strict=True
            )
        )

    @property
    def is_certain(self) -> bool:
        return Freedom.GROW not in self.freedoms and self.open_at is None


def certain(row: Row) -> ExpectedRow:
    return ExpectedRow(row, (Freedom.STRETCH,) * len(row))


@dataclass(frozen=True)
class Read:
    """The cells of an operand in products.

    Attributes:
        operand: The number of the operand.
        at: The cells, flat; arbitrary where the operand has none.
        inside: True where the operand has cells.
    """

    operand: int
    at: Array
    inside: Array

    def values(self, cells: Array, beyond: float) -> Array:
        """Return the operand's cells, and `beyond` outside them."""
        if not cells.size:
            return np.full(self.at.shape, beyond)
        return np.where(self.inside, cells.reshape(-1)[self.at], beyond)


@dataclass(frozen=True)
class Points:
    """Products: all values of some labels.

    Attributes:
        target: The cell of the result of each product, flat.
        reads: The operands' cells.
    """

    target: Array
    reads: tuple[Read, ...]


class Contraction:
    """A spec applied to operands of known shapes."""

    def __init__(self, spec: str, operands: Sequence[Rows], context: SpecContext) -> None:
        patterns, self._result = parse(spec, context)
        if len(patterns) != len(operands):
            raise Invalid(f"{len(patterns)} operands in the spec, {len(operands)} given")
        self._patterns = patterns
        axes = [axis for rows in (*patterns, self._result) for axis in axes_of(rows)]
        self._parted = parted(axes)
        self._aligned = self._parted | {
            name
            for axis in axes
            if isinstance(axis, Formula) and axis.kernel is not None
            for name in names_of(axis)
        }
        self._lengths: dict[str, int] = {}
        self._infer_lengths(patterns, operands)
        self.operands = [
            [
                (axis, size, self._is_exact(pattern, kind) or _skips_first(axis))
                for kind, (pattern, row) in enumerate(zip(rows, operand, strict=True))
                for axis, size in self._paired(pattern, row)
            ]
            for rows, operand in zip(patterns, operands, strict=True)
        ]
        named = {name for axis in axes for name in names_of(axis)}
        self.sizes: dict[Hashable, int] = {k: n for k, n in context.values if k in named}
        if context.used_in(spec) != {name for name, _ in context.values}:
            raise Invalid("a value is for nothing")
        self._row_cells = dict(context.rows)
        self._exact: set[Hashable] = set()
        for pairs in self.operands:
            for axis, size, is_exact in pairs:
                if is_exact and isinstance(axis, Name):
                    self._set(axis.label, size)
                    self._exact.add(axis.label)
        # whether a part without cells is refused depends on the source of its size
        is_told = all(
            self.sizes[label] or self._may_be_empty(str(label))
            for label in self._parted & self._exact
        )
        self._infer_names()
        self._infer_formulas(self._operand_axes())
        for pairs in self.operands:
            for axis, _, _ in pairs:
                if isinstance(axis, Name):
                    self.sizes.setdefault(axis.label, 1)
        windows = [axis for axis in axes_of(self._result) if isinstance(axis, Formula)]
        is_known = all(
            axis.kernel is None or axis.coupled or axis.kernel in self.sizes for axis in windows
        )
        self.is_determined = self._infer_formulas(self._operand_axes()) and is_known and is_told

    def cells_of(self, name: str) -> int:
        """Return the size of a label, or the number of cells that operands have in a row."""
        if name in self._lengths:
            axes = range(1, self._lengths[name] + 1)
            return prod(self.sizes.get((name, -axis), 1) for axis in axes)
        return self.sizes.get(name, 1)

    def _repeated_rows(self) -> Iterator[tuple[str, int]]:
        """Yield the row variables that the result lacks, and how often operands are repeated."""
        kept = {pattern.variable for pattern in self._result}
        for name, cells in self._row_cells.items():
            own = self.cells_of(name)
            if cells % own if own else cells:
                raise Invalid(f"{name} has {cells} cells, where operands have {own}")
            if name not in kept:
                yield name, cells // own if own else 1
            elif cells != own:
                raise Undetermined  # nothing here determines axes that operands do not have

    def expected(self) -> tuple[ExpectedRow, ExpectedRow, ExpectedRow]:
        """Return the rows that the result must have."""
        batch, output, inputs = (
            self._expected(pattern, kind) for kind, pattern in enumerate(self._result)
        )
        return batch, output, inputs

    def _is_exact(self, pattern: Pattern, kind: int) -> bool:
        """True for rows that must have their axes, at their sizes: nothing is repeated there.

        In specs with windows or `^` these are input and output rows, and batch rows with such axes
        or their labels; not rows of positions and unrelated axes alone.
        """
        axes = (*pattern.leading, *pattern.trailing)
        if not self._aligned or not pattern.is_written:
            return False
        if axes and all(isinstance(axis, Position | Unrelated) for axis in axes):
            return False
        names = {name for axis in axes for name in names_of(axis)}
        return kind != 0 or not self._aligned.isdisjoint(names)

    def _infer_lengths(
        self, patterns: Sequence[Sequence[Pattern]], operands: Sequence[Rows]
    ) -> None:
        lengths = self._lengths
        wanted: list[tuple[str, int]] = []
        for rows, operand in zip(patterns, operands, strict=True):
            for kind, (pattern, row) in enumerate(zip(rows, operand, strict=True)):
                more = len(row) - pattern.known
                if self._is_exact(pattern, kind):
                    if more < 0:
                        raise Invalid(f"{row} has too few axes for {pattern}")
                    if pattern.variable is not None:
                        wanted.append((pattern.variable, more))
                if pattern.variable is not None:
                    lengths[pattern.variable] = max(more, lengths.get(pattern.variable, 0))
        for variable, length in wanted:
            if lengths[variable] != length:
                raise Invalid(f"{variable} has {length} and {lengths[variable]} axes")

    def _expected(self, pattern: Pattern, kind: int) -> ExpectedRow:
        is_exact = self._is_exact(pattern, kind)
        sizes: list[int] = []
        freedoms: list[Freedom] = []
        for axis in self._flat(pattern, pattern.known):
            match axis:
                case Name(label):
                    sizes.append(self.sizes.get(label, 1))
                    freedoms.append(self._freedom(label, is_exact=is_exact))
                case Position(index):
                    sizes.append(index + 1)
                    freedoms.append(Freedom.GROW if index else Freedom.FIRST)
                case Unrelated():
                    sizes.append(1)
                    freedoms.append(Freedom.GROW)
                case Formula() | PartsAxis():
                    size = self._computed(axis)
                    sizes.append(1 if size is None else size)
                    freedoms.append(Freedom.GROW if size is None else Freedom.NONE)
        is_open = pattern.variable is not None and (
            pattern.variable not in self._lengths or pattern.variable in self._row_cells
        )
        open_at = len(pattern.leading) if is_open else None
        longer_at = len(pattern.leading) if pattern.variable is not None else 0
        return ExpectedRow(tuple(sizes), tuple(freedoms), open_at, longer_at)

    def _computed(self, axis: Formula | PartsAxis) -> int | None:
        """Return the size of an axis that follows from labels; None if they are unknown."""
        if isinstance(axis, PartsAxis):
            found = [n for n in axis.sizes(self.sizes) if n is not None]
            return sum(found) if len(found) == len(axis.parts) else None
        if axis.over not in self.sizes or (axis.coupled and axis.kernel not in self.sizes):
            return None
        return axis.size(self.sizes[axis.over], self.sizes.get(axis.kernel))

    def _freedom(self, label: Hashable, *, is_exact: bool) -> Freedom:
        if is_exact and label in self._exact:
            return Freedom.NONE
        return Freedom.STRETCH if label in self.sizes else Freedom.GROW

    def _flat(self, pattern: Pattern, rank: int) -> list[Axis]:
        """Return the axes of a pattern; rows without a variable are open to their left."""
        if pattern.variable is None:
            more = max(0, rank - pattern.known)
            middle: list[Axis] = [Unrelated()] * more
        else:
            length = self._lengths.get(pattern.variable, 0)
            middle = [Name((pattern.variable, -axis)) for axis in range(length, 0, -1)]
        return [*pattern.leading, *middle, *pattern.trailing]

    def _paired(self, pattern: Pattern, row: Row) -> list[tuple[Axis, int]]:
        """Return the axes of an operand, with their sizes.

        Named axes come first; a row variable has the remaining axes of the operand, at the right.
        """
        axes = self._flat(pattern, len(row))
        more = len(row) - pattern.known
        if more < 0:
            named = (*pattern.leading, *pattern.trailing)
            if any(map(_skips_first, named[: -len(row) or None])):
                raise Invalid(f"{row} lacks an axis of which a position is read")
            return list(zip(named[len(named) - len(row) :], row, strict=True))
        first = len(pattern.leading)
        kept = [*axes[:first], *axes[len(axes) - (len(row) - first) :]]
        return list(zip(kept, row, strict=True))

    def _infer_names(self) -> None:
        for pairs in self.operands:
            for axis, size, is_exact in pairs:
                match axis:
                    case Name(label) if size != 1:
                        self._set(label, size)
                    case Position(index) if (size != 1 or is_exact) and index >= size:
                        raise Invalid(f"position {index} of {size}")

    def _operand_axes(self) -> list[tuple[Axis, int]]:
        """Return the axes that determine sizes: those that are not repeated."""
        return [
            (axis, size)
            for pairs in self.operands
            for axis, size, is_exact in pairs
            if is_exact or size != 1
        ]

    def _set(self, label: Hashable, size: int) -> None:
        if self.sizes.setdefault(label, size) != size:
            raise Invalid(f"{label} is {self.sizes[label]} and {size}")

    def _infer_formulas(self, pairs: Iterable[tuple[Axis, int]]) -> bool:
        """Find the labels in formulas; return whether all were found."""
        pending = [(axis, n) for axis, n in pairs if isinstance(axis, Formula | PartsAxis)]
        progress = True
        while progress:
            progress = False
            for axis, size in list(pending):
                is_known = (
                    self._learn_parts(axis, size)
                    if isinstance(axis, PartsAxis)
                    else self._learn_formula(axis, size)
                )
                if is_known:
                    self._exact.update(names_of(axis))
                    pending.remove((axis, size))
                    progress = True
        return not pending

    def _learn_formula(self, axis: Formula, size: int) -> bool:
        over, kernel = axis.over, axis.kernel
        if axis.coupled and kernel not in self.sizes:
            if over not in self.sizes:
                return False
            self._set(kernel, axis.solve_kernel(size, self.sizes[over]))
            return True
        self._set(over, axis.solve(size, self.sizes.get(kernel)))
        return kernel is None or kernel in self.sizes  # no length of a padded window follows

    def _learn_parts(self, axis: PartsAxis, size: int) -> bool:
        unknown = [label for label in axis.labels if label not in self.sizes]
        if len(set(unknown)) > 1:
            return False
        rest = size - sum(n or 0 for n in axis.sizes(self.sizes))
        if rest < 0 or (rest and not unknown) or (unknown and rest % len(unknown)):
            raise Invalid(f"the parts {axis.parts} are more or fewer than {size}")
        if unknown:
            self._set(unknown[0], rest // len(unknown))
            if not rest and not self._may_be_empty(unknown[0]):
                raise Invalid(f"nothing is left for {unknown[0]}")
        return True

    def _may_be_empty(self, part: str) -> bool:
        """True for parts that stand nowhere else, where the other side has the rest of the axis."""
        sides = [self._patterns, [self._result]]
        axes = [axis for side in sides for rows in side for axis in axes_of(rows)]
        if any(part in names_of(axis) for axis in axes if not isinstance(axis, PartsAxis)):
            return False
        for side, other in (sides, sides[::-1]):
            for axis in (axis for rows in side for axis in axes_of(rows)):
                if isinstance(axis, PartsAxis) and part in axis.labels:
                    rest = set(axis.labels) - {part}
                    if all(any(_made_of(each, rest) for each in axes_of(rows)) for rows in other):
                        return True
        return False

    def points(
        self,
        operands: Sequence[Rows],
        result: Rows,
        *,
        apart: bool = False,
        most: int = LARGEST_DOMAIN,
    ) -> Iterator[Points]:
        """Yield products, and their cells in a result of the given shape.

        Args:
            operands: The shapes of the operands.
            result: The sizes of the result's axes.
            apart: True for every operand by itself instead of products.
            most: The largest number of products to enumerate at once.
        """
        list(self._repeated_rows())
        for kind, (pattern, row) in enumerate(zip(self._result, result, strict=True)):
            if pattern.variable in self._lengths and self._is_exact(pattern, kind):
                # axes that uses require lie in the row variable: there must be no others
                more = len(row) - pattern.known
                self._lengths[pattern.variable] = max(more, self._lengths[pattern.variable])
        targets = [
            pair
            for pattern, row in zip(self._result, result, strict=True)
            for pair in self._targets(pattern, row)
        ]
        self._learn_from_result(targets)
        everything = range(len(operands))
        for group in [[each] for each in everything] if apart else [list(everything)]:
            axes = [axis for axis, _ in targets]
            axes += [axis for each in group for axis, _, _ in self.operands[each]]
            for choice in choices(axes, self._parted):
                yield self._points(group, targets, choice, most)

    def _points(
        self, group: Sequence[int], targets: list[tuple[Axis, int]], choice: Choice, most: int
    ) -> Points:
        grid = Grid()
        written = [self._position(grid, choice, axis, size) for axis, size in targets]
        reads = [
            [
                self._position(grid, choice, axis, size, is_repeated=size == 1 and not is_exact)
                for axis, size, is_exact in self.operands[each]
            ]
            for each in group
        ]
        for each in group:
            for axis in axes_of(self._patterns[each]):
                if not isinstance(axis, PartsAxis):  # also where the operand is repeated
                    for label in names_of(axis):
                        grid.variable(label, self._size(label))
        for name, count in self._repeated_rows():
            grid.variable(("cells", name), count)
        indices = grid.indices(most)
        target, is_kept = addressed(
            grid, [position(indices) for position in written], [size for _, size in targets]
        )
        found = []
        for each, positions in zip(group, reads, strict=True):
            sizes = [size for _, size, _ in self.operands[each]]
            at, inside = addressed(grid, [position(indices) for position in positions], sizes)
            found.append(Read(each, at[is_kept], inside[is_kept]))
        return Points(target[is_kept], tuple(found))

    def _targets(self, pattern: Pattern, row: Row) -> list[tuple[Axis, int]]:
        if pattern.variable is not None and pattern.variable not in self._lengths:
            self._lengths[pattern.variable] = max(0, len(row) - pattern.known)
        axes = self._flat(pattern, pattern.known)
        if not row and len(axes) == 1:
            return []  # a scalar
        more = len(row) - len(axes)
        if more < 0:
            raise Invalid("the result has too few axes")
        gaps = [len(pattern.leading), 0] if pattern.variable is not None else [0]
        found = [
            list(zip([*axes[:gap], *[Unrelated()] * more, *axes[gap:]], row, strict=True))
            for gap in gaps
        ]
        return next((pairs for pairs in found if all(map(self._may_be, pairs))), found[-1])

    def _may_be(self, pair: tuple[Axis, int]) -> bool:
        """Return False for a size that an axis does not have."""
        match pair:
            case Name(label), size:
                return self.sizes.get(label, 1) in (1, size)
            case Position(index), size:
                return index < size
            case _:
                return True

    def _learn_from_result(self, targets: list[tuple[Axis, int]]) -> None:
        """A label that no operand has takes its size from the result."""
        found: dict[Hashable, set[int]] = {}
        for axis, size in targets:
            if isinstance(axis, Name) and axis.label not in self.sizes:
                found.setdefault(axis.label, set()).add(size)
        for label, sizes in found.items():
            self.sizes[label] = sizes.pop() if len(sizes) == 1 else 1
        if not self._infer_formulas([*self._operand_axes(), *targets]):
            raise Undetermined

    def _size(self, label: Hashable) -> int:
        return self.sizes.setdefault(label, 1)

    def _position(
        self, grid: Grid, choice: Choice, axis: Axis, size: int, *, is_repeated: bool | None = None
    ) -> Callable[[dict[Hashable, Array]], Array]:
        """Return which position of an axis each point of the grid touches.

        Args:
            grid: Where the variables are.
            choice: The parts of concatenated axes that are visited.
            axis: The axis of the spec.
            size: The size of the axis.
            is_repeated: None for axes of the result, else whether the operand is repeated there.
        """
        if is_repeated and not isinstance(axis, Unrelated):
            return lambda _: np.zeros((), dtype=int)
        match axis:
            case Name(label):
                own = self._size(label)
                if own == 1 and is_repeated is None:
                    return grid.pick(object(), size)
                if own != size:
                    raise Invalid(f"{label} is {own} and {size}")
                return grid.pick(label, own)
            case Position(index):
                if index >= size:
                    raise Invalid(f"position {index} of {size}")
                return lambda _: np.full((), index)
            case Unrelated():
                return grid.pick(object(), size)
            case PartsAxis(parts):
                part = parts[choice[axis]]
                left = axis.left(choice[axis], self.sizes)
                within = grid.pick(part, self._size(part))
                return lambda at: left + within(at)
            case Formula(stride, over, offset, kernel, dilation):
                base = grid.pick(over, self._size(over))
                if kernel is None:
                    return lambda at: stride * base(at) + offset
                length = self._size(kernel)
                window = grid.pick(kernel, length)
                shift = offset - axis.left(length)
                return lambda at: stride * base(at) + dilation * window(at) + shift


def _skips_first(axis: Axis) -> bool:
    """Return True for an axis that is read at another position than 0: it is not repeated."""
    match axis:
        case Position(index):
            return index > 0
        case Formula(kernel=None, offset=offset):
            return offset > 0
        case _:
            return False


def _made_of(axis: Axis, labels: set[str]) -> bool:
    """Return True if an axis consists of some labels, or of concatenations of them."""
    names = names_of(axis)
    return isinstance(axis, Name | PartsAxis) and bool(names) and labels.issuperset(names)
