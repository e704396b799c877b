"""What a program means, computed from its texts and the concrete shapes alone.

Nothing here uses the project: the notation is parsed anew, rows broadcast by rules written down
here, and values come from NumPy. A shape is a triple of rows in buffer order: batch, output, input.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any

import numpy as np

from .notation import Axis, Formula, Invalid, Name, Pattern, Position, Row, Rows, Unrelated, parse

Array = np.ndarray[Any, Any]

LARGEST_CELL = 2.0**15
"""Sums of products of three such integers are exact in float64 over any domain met here."""
LARGEST_DOMAIN = 20_000


class TooLarge(Exception):
    """The values may be inexact, or there is too much to enumerate."""


class Undetermined(Exception):
    """The sizes of labels do not follow from those of the operands and the result."""


@dataclass(frozen=True)
class Value:
    """Cells, and which of their axes belong to which row."""

    cells: Array
    rows: Rows


class Freedom(Enum):
    """What uses of a result can make of an axis."""

    NONE = "none"
    FIRST = "first"
    """The axis has position 0 and no other one."""
    STRETCH = "stretch"
    """An axis that is 1 like the operands may become longer."""
    GROW = "grow"
    """The size is a lower bound."""


@dataclass(frozen=True)
class Expected:
    """A row of a result: sizes, and what uses can make of them."""

    sizes: Row
    freedoms: tuple[Freedom, ...]

    def admits(
        self, row: Row, *, may_lengthen: bool = False, may_stretch_first: bool = False
    ) -> bool:
        """True if a result may have this row.

        Args:
            row: The row.
            may_lengthen: True when uses can ask for further axes.
            may_stretch_first: True to let axes of position 0 become longer.
        """
        stretching = {Freedom.STRETCH, Freedom.FIRST} if may_stretch_first else {Freedom.STRETCH}
        more = len(row) - len(self.sizes)
        if more < 0 or (more and not may_lengthen):
            return False
        return all(
            n == m or (n > m and (freedom is Freedom.GROW or (freedom in stretching and m == 1)))
            for n, m, freedom in zip(row[more:], self.sizes, self.freedoms, strict=True)
        )

    @property
    def is_certain(self) -> bool:
        return Freedom.GROW not in self.freedoms


def certain(row: Row) -> Expected:
    return Expected(row, (Freedom.STRETCH,) * len(row))


# ----- broadcasting -------------------------------------------------------------------------------


def broadcast(rows: Sequence[Row]) -> Row:
    """Returns the row of a pointwise result: aligned at the right, 1 and missing axes stretch."""
    sizes = []
    for axis in range(max(map(len, rows), default=0)):
        here = {row[-1 - axis] for row in rows if axis < len(row)} - {1}
        if len(here) > 1:
            raise Invalid(f"sizes {here} meet")
        sizes.append(here.pop() if here else 1)
    return tuple(reversed(sizes))


def stretched(value: Value, rows: Rows) -> Array:
    """Returns the cells repeated along what the rows have more."""
    dims = [
        n
        for own, wanted in zip(value.rows, rows, strict=True)
        for n in (1,) * (len(wanted) - len(own)) + own
    ]
    return np.broadcast_to(value.cells.reshape(dims), [n for row in rows for n in row])


# ----- pointwise operations -----------------------------------------------------------------------

POINTWISE: dict[str, Callable[..., Array]] = {
    "neg": lambda a: -a,
    "relu": lambda a: np.where(a < 0, 0.0, a),
    "sat01": lambda a: np.where(a <= 0, 0.0, np.where(a >= 1, 1.0, a)),
    "trunc": np.trunc,
    "logical_not": lambda a: np.where(a == 0, 1.0, 0.0),
    "clamp": lambda a: np.minimum(np.maximum(a, -3.0), 3.0),
    "twice": lambda a: a * 2.0,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "less": lambda a, b: np.where(a < b, 1.0, 0.0),
    "less_equal": lambda a, b: np.where(a <= b, 1.0, 0.0),
    "equal": lambda a, b: np.where(a == b, 1.0, 0.0),
    "not_equal": lambda a, b: np.where(a != b, 1.0, 0.0),
    "logical_and": lambda a, b: np.where((a != 0) & (b != 0), 1.0, 0.0),
    "logical_or": lambda a, b: np.where((a != 0) | (b != 0), 1.0, 0.0),
    "relu_gate": lambda a, b: np.where(a > 0, b, 0.0),
    "sat01_gate": lambda a, b: np.where((a > 0) & (a < 1), b, 0.0),
    "where": lambda a, b, c: np.asarray(np.where(a != 0, b, c)),
}


# ----- einsum -------------------------------------------------------------------------------------


def _names(axes: Iterable[Axis]) -> set[Hashable]:
    found: set[Hashable] = set()
    for axis in axes:
        match axis:
            case Name(label):
                found.add(label)
            case Formula(over=over, kernel=kernel):
                found |= {over, kernel}
    return found - {None}


class Contraction:
    """A spec applied to operands of known shapes."""

    def __init__(self, spec: str, operands: Sequence[Rows]) -> None:
        patterns, self._result = parse(spec)
        if len(patterns) != len(operands):
            raise Invalid(f"{len(patterns)} operands in the spec, {len(operands)} given")
        self._aligned = {
            name
            for rows in (*patterns, self._result)
            for pattern in rows
            for axis in (*pattern.leading, *pattern.trailing)
            if isinstance(axis, Formula) and axis.kernel is not None
            for name in (axis.over, axis.kernel)
        }
        self._lengths: dict[str, int] = {}
        self._infer_lengths(patterns, operands)
        self.operands = [
            [
                (axis, size, self._is_exact(pattern, kind))
                for kind, (pattern, row) in enumerate(zip(rows, operand, strict=True))
                for axis, size in self._paired(pattern, row)
            ]
            for rows, operand in zip(patterns, operands, strict=True)
        ]
        self.sizes: dict[Hashable, int] = {}
        self._exact: set[Hashable] = set()
        for rows, operand in zip(patterns, operands, strict=True):
            for kind, (pattern, row) in enumerate(zip(rows, operand, strict=True)):
                if self._is_exact(pattern, kind):
                    for axis, size in self._paired(pattern, row):
                        if isinstance(axis, Name):
                            self._set(axis.label, size)
                            self._exact.add(axis.label)
        self._infer_names()
        self._infer_formulas(self._operand_axes())
        for pairs in self.operands:
            for axis, _, _ in pairs:
                if isinstance(axis, Name):
                    self.sizes.setdefault(axis.label, 1)
        self.is_determined = self._infer_formulas(self._operand_axes())

    def expected(self) -> tuple[Expected, Expected, Expected]:
        """Returns the rows that the result must have."""
        batch, output, inputs = (
            self._expected(pattern, kind) for kind, pattern in enumerate(self._result)
        )
        return batch, output, inputs

    # ----- equations ------------------------------------------------------------------------------

    def _is_exact(self, pattern: Pattern, kind: int) -> bool:
        """True for rows that must have their axes, at their sizes: nothing is repeated there.

        In specs with windows these are input and output rows, and batch rows with windows or their
        parts; not rows of positions and unrelated axes alone.
        """
        axes = (*pattern.leading, *pattern.trailing)
        if not self._aligned or not pattern.is_written:
            return False
        if axes and all(isinstance(axis, Position | Unrelated) for axis in axes):
            return False
        return kind != 0 or not self._aligned.isdisjoint(_names(axes))

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

    def _expected(self, pattern: Pattern, kind: int) -> Expected:
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
                case Formula(over=over, kernel=kernel):
                    known = over in self.sizes and (not axis.coupled or kernel in self.sizes)
                    sizes.append(
                        axis.size(self.sizes[over], self.sizes.get(kernel)) if known else 1
                    )
                    freedoms.append(Freedom.NONE if known else Freedom.GROW)
        return Expected(tuple(sizes), tuple(freedoms))

    def _freedom(self, label: Hashable, *, is_exact: bool) -> Freedom:
        if is_exact and label in self._exact:
            return Freedom.NONE
        return Freedom.STRETCH if label in self.sizes else Freedom.GROW

    # ----- rows and sizes -------------------------------------------------------------------------

    def _flat(self, pattern: Pattern, rank: int) -> list[Axis]:
        """Returns the axes of a pattern; rows without a variable are open to their left."""
        if pattern.variable is None:
            more = max(0, rank - pattern.known)
            middle: list[Axis] = [Unrelated()] * more
        else:
            length = self._lengths.get(pattern.variable, 0)
            middle = [Name((pattern.variable, -axis)) for axis in range(length, 0, -1)]
        return [*pattern.leading, *middle, *pattern.trailing]

    def _paired(self, pattern: Pattern, row: Row) -> list[tuple[Axis, int]]:
        """Returns the axes that an operand has, with their sizes."""
        axes = self._flat(pattern, len(row))
        return list(zip(axes[len(axes) - len(row) :], row, strict=True))

    def _infer_names(self) -> None:
        for pairs in self.operands:
            for axis, size, _ in pairs:
                match axis:
                    case Name(label) if size != 1:
                        self._set(label, size)
                    case Position(index) if size != 1 and index >= size:
                        raise Invalid(f"position {index} of {size}")

    def _operand_axes(self) -> list[tuple[Axis, int]]:
        """Returns the axes that say something about sizes: those that are not repeated."""
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
        """Finds the labels in formulas; returns whether all were found."""
        pending = [(axis, size) for axis, size in pairs if isinstance(axis, Formula)]
        progress = True
        while progress:
            progress = False
            for axis, size in list(pending):
                over, kernel = axis.over, axis.kernel
                if axis.coupled and kernel not in self.sizes:
                    if over not in self.sizes:
                        continue
                    self._set(kernel, axis.solve_kernel(size, self.sizes[over]))
                else:
                    self._set(over, axis.solve(size, self.sizes.get(kernel)))
                    if kernel is not None and kernel not in self.sizes:
                        continue  # no length of the window follows
                self._exact |= {over, kernel}
                pending.remove((axis, size))
                progress = True
        return not pending

    # ----- values ---------------------------------------------------------------------------------

    def evaluate(
        self,
        operands: Sequence[Value],
        result: Rows,
        combine: Any,
        neutral: float,
    ) -> Array:
        """Returns the cells of a result with the given rows.

        Args:
            operands: The operands.
            result: The sizes of the result's axes.
            combine: The NumPy function that accumulates the products.
            neutral: What cells hold that no product reaches.
        """
        targets = [
            pair
            for pattern, row in zip(self._result, result, strict=True)
            for pair in self._targets(pattern, row)
        ]
        self._learn_from_result(targets)
        grid = _Grid()
        written = [self._position(grid, axis, size) for axis, size in targets]
        reads = [
            [
                self._position(grid, axis, size, is_repeated=size == 1 and not is_exact)
                for axis, size, is_exact in pairs
            ]
            for pairs in self.operands
        ]
        for pairs in self.operands:
            for axis, _, _ in pairs:
                if isinstance(axis, Formula):
                    grid.variable(axis.over, self._size(axis.over))
                    if axis.kernel is not None:
                        grid.variable(axis.kernel, self._size(axis.kernel))
        indices = grid.indices()
        inside = np.ones(grid.shape, dtype=bool)
        product = np.ones(grid.shape)
        for operand, positions in zip(operands, reads, strict=True):
            touched = [position(indices) for position in positions]
            for where, size in zip(touched, operand.cells.shape, strict=True):
                inside &= (where >= 0) & (where < size)
            clipped = [
                np.clip(where, 0, size - 1)
                for where, size in zip(touched, operand.cells.shape, strict=True)
            ]
            product = product * operand.cells[tuple(clipped)]
        dims = [n for row in result for n in row]
        cells = np.full(prod(dims), neutral)
        at = np.zeros(grid.shape, dtype=int)
        for position, size in zip(written, dims, strict=True):
            at = at * size + position(indices)
        combine.at(cells, at[inside], product[inside])
        return cells.reshape(dims)

    def _targets(self, pattern: Pattern, row: Row) -> list[tuple[Axis, int]]:
        axes = self._flat(pattern, pattern.known)
        more = len(row) - len(axes)
        if more < 0:
            raise Invalid("the result has too few axes")
        return list(zip([*[Unrelated()] * more, *axes], row, strict=True))

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
        self, grid: _Grid, axis: Axis, size: int, *, is_repeated: bool | None = None
    ) -> Callable[[dict[Hashable, Array]], Array]:
        """Returns which position of an axis each point of the grid touches.

        Args:
            grid: Where the variables are.
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
            case Formula(stride, over, offset, kernel, dilation):
                base = grid.pick(over, self._size(over))
                if kernel is None:
                    return lambda at: stride * base(at) + offset
                length = self._size(kernel)
                window = grid.pick(kernel, length)
                shift = offset - axis.left(length)
                return lambda at: stride * base(at) + dilation * window(at) + shift


class _Grid:
    """All combinations of the values of some variables."""

    def __init__(self) -> None:
        self._sizes: dict[Hashable, int] = {}

    def variable(self, key: Hashable, size: int) -> None:
        if self._sizes.setdefault(key, size) != size:
            raise Invalid(f"{key} is {self._sizes[key]} and {size}")

    def pick(self, key: Hashable, size: int) -> Callable[[dict[Hashable, Array]], Array]:
        self.variable(key, size)
        return lambda at: at[key]

    @property
    def shape(self) -> Row:
        return tuple(self._sizes.values())

    def indices(self) -> dict[Hashable, Array]:
        if prod(self.shape) > LARGEST_DOMAIN or len(self.shape) > 30:
            raise TooLarge
        return dict(zip(self._sizes, np.indices(self.shape, sparse=True), strict=True))


# ----- operations ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slice:
    """One index: its value, and the size it demands of the axis (None: any)."""

    value: int
    extent: int | None = None


def expected_rows(
    operation: str, operands: Sequence[Rows], spec: str, slices: Sequence[Slice]
) -> tuple[Expected, Expected, Expected]:
    """Returns the shape that a result has; raises Invalid if the operation is impossible."""
    match operation:
        case "einsum" | "einmax":
            contraction = Contraction(spec, operands)
            if not contraction.is_determined:
                raise Undetermined
            return contraction.expected()
        case "matmul" | "fma":
            rows = _composed(operands[0], operands[1])
            if operation == "fma":
                rows = _pointwise_rows([rows, operands[2]])
        case "transpose":
            batch, output, inputs = operands[0]
            rows = (batch, inputs, output)
        case "slice":
            batch, output, inputs = operands[0]
            if len(batch) < len(slices):
                raise Invalid("too few batch axes")
            for size, index in zip(batch, slices, strict=False):
                if index.value >= size or index.extent not in (None, size):
                    raise Invalid(f"index {index} of {size}")
            rows = (batch[len(slices) :], output, inputs)
        case _:
            rows = _pointwise_rows(operands)
    batch, output, inputs = rows
    return certain(batch), certain(output), certain(inputs)


def _pointwise_rows(operands: Sequence[Rows]) -> Rows:
    batch, output, inputs = (broadcast(rows) for rows in zip(*operands, strict=True))
    return batch, output, inputs


def _composed(left: Rows, right: Rows) -> Rows:
    """Returns the rows of `left @ right`: the outputs of the right one go into the left one."""
    meeting, arriving = left[2], right[1]
    if (meeting, arriving) != ((), (1,)) and broadcast([meeting, arriving]) != meeting:
        raise Invalid(f"{arriving} goes into {meeting}")
    return broadcast([left[0], right[0]]), left[1], right[2]


def evaluate(
    operation: str, operands: Sequence[Value], result: Rows, spec: str, slices: Sequence[Slice]
) -> Value:
    """Returns the value of an operation whose result has the given rows."""
    if prod(n for row in result for n in row) > LARGEST_DOMAIN:
        raise TooLarge
    with np.errstate(all="ignore"):
        match operation:
            case "einsum" | "einmax":
                contraction = Contraction(spec, [operand.rows for operand in operands])
                how: tuple[Any, float] = (
                    (np.add, 0.0) if operation == "einsum" else (np.maximum, -np.inf)
                )
                cells = contraction.evaluate(operands, result, *how)
            case "matmul":
                cells = stretched(_product(operands[0], operands[1]), result)
            case "fma":
                product = _product(operands[0], operands[1])
                cells = stretched(product, result) + stretched(operands[2], result)
            case "transpose":
                batch, output, _ = (len(row) for row in operands[0].rows)
                axes = list(range(operands[0].cells.ndim))
                order = axes[:batch] + axes[batch + output :] + axes[batch : batch + output]
                (own,) = [operands[0].rows]
                turned = Value(operands[0].cells.transpose(order), (own[0], own[2], own[1]))
                cells = stretched(turned, result)
            case "slice":
                own = operands[0].rows
                part = operands[0].cells[tuple(index.value for index in slices)]
                cells = stretched(
                    Value(np.asarray(part), (own[0][len(slices) :], own[1], own[2])), result
                )
            case _:
                cells = POINTWISE[operation](*(stretched(operand, result) for operand in operands))
    finite = cells[np.isfinite(cells)]
    if finite.size and np.abs(finite).max() > LARGEST_CELL:
        raise TooLarge
    return Value(np.array(cells), result)


def _product(left: Value, right: Value) -> Value:
    batch = broadcast([left.rows[0], right.rows[0]])
    meeting = left.rows[2]
    if meeting == ():
        right = Value(
            right.cells.reshape([n for r in (right.rows[0], right.rows[2]) for n in r]),
            (right.rows[0], (), right.rows[2]),
        )
    one = stretched(left, (batch, left.rows[1], meeting))
    other = stretched(right, (batch, meeting, right.rows[2]))
    one = one.reshape(*batch, prod(left.rows[1]), prod(meeting))
    other = other.reshape(*batch, prod(meeting), prod(right.rows[2]))
    rows = (batch, left.rows[1], right.rows[2])
    return Value((one @ other).reshape([n for row in rows for n in row]), rows)
