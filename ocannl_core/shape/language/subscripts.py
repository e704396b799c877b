"""Subscripts: the axes that the keys of `x[keys]` address, and the axes that they leave.

Keys address axes from left to right in buffer order (batch, output, input), and keys after `...`
from right to left, as in NumPy. Axes without a key are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple, assert_never

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir import indexing
from ocannl_core.shape.language.shape_terms import BUFFER_ORDER, Row, RowKind, Shape, Size


@dataclass(frozen=True, slots=True)
class Position:
    """One position of an axis, which the result lacks.

    Attributes:
        index: A number, negative to count from the end, or an index made of static indices.
    """

    index: int | indexing.VarIndex | indexing.AffineIndex


@dataclass(frozen=True, slots=True)
class StaticSlice:
    """The positions of a slice with constant bounds, which are clipped as in Python."""

    start: int | None = None
    stop: int | None = None
    step: int = 1

    def positions(self, size: int) -> range:
        """Return the positions on an axis of a given size."""
        return range(*slice(self.start, self.stop, self.step).indices(size))

    @property
    def is_whole(self) -> bool:
        """Return True if the slice has every position of an axis of any size."""
        return self.start is None and self.stop is None and self.step in (1, -1)


@dataclass(frozen=True, slots=True)
class DynamicSlice:
    """`length` positions at a distance of `step`; static indices give the first one at run time.

    A position beyond the axis is an error, as a run-time bound is not clipped.
    """

    start: indexing.VarIndex | indexing.AffineIndex
    length: int
    step: int = 1

    @property
    def span(self) -> int:
        """The least size of an axis that has these positions."""
        return (self.length - 1) * abs(self.step) + 1 if self.length else 0


@dataclass(frozen=True, slots=True)
class NewAxis:
    """An axis of size 1 that the operand lacks."""


@dataclass(frozen=True, slots=True)
class Rest:
    """The key `...`: the axes between the keys before it and the keys after it."""


AxisKey = Position | StaticSlice | DynamicSlice
"""A key that addresses one axis."""
Key = AxisKey | NewAxis | Rest
Keys = tuple[Key, ...]


class AxisCount(NamedTuple):
    """The known numbers of axes of a row."""

    leading: int
    """Axes at the left end."""
    trailing: int
    """Axes at the right end; the axes of a closed row are counted here alone."""
    is_open: bool
    """True if there may be axes between them."""


@dataclass(slots=True)
class RowKeys:
    """The keys of one row, from either end; the axes between them are kept."""

    ahead: list[AxisKey | NewAxis] = field(default_factory=list)
    behind: list[AxisKey | NewAxis] = field(default_factory=list)

    @property
    def first(self) -> int:
        """The number of axes at the left end that have keys."""
        return _addressed(self.ahead)

    @property
    def last(self) -> int:
        """The number of axes at the right end that have keys."""
        return _addressed(self.behind)


class Blocked(NamedTuple):
    """The row whose number of axes has to be known first."""

    kind: RowKind


class TooMany(NamedTuple):
    """Numbers of keys and axes that do not fit."""

    keys: int
    """The number of keys that address an axis."""
    axes: int


def _addressed(keys: Sequence[Key]) -> int:
    return sum(not isinstance(key, NewAxis | Rest) for key in keys)


def address(
    keys: Keys, counts: Mapping[RowKind, AxisCount]
) -> dict[RowKind, RowKeys] | Blocked | TooMany:
    """Return the keys of each row.

    A new axis belongs to the row of the axis that follows it, at the end to the row of the last
    axis; without any axis it is an output axis.

    Args:
        keys: The keys, of which one at most is `Rest`.
        counts: The known numbers of axes.
    """
    return _Addressing(counts).run(keys)


class _Addressing:
    """One distribution of keys to rows."""

    def __init__(self, counts: Mapping[RowKind, AxisCount]) -> None:
        self._counts = [counts[kind] for kind in BUFFER_ORDER]
        self._rows = [RowKeys() for _ in BUFFER_ORDER]

    def run(self, keys: Keys) -> dict[RowKind, RowKeys] | Blocked | TooMany:
        cut = next((i for i, key in enumerate(keys) if isinstance(key, Rest)), len(keys))
        behind = tuple(reversed(keys[cut + 1 :]))
        found = self._distribute(keys[:cut], range(3), from_left=True)
        found = found or self._distribute(behind, range(2, -1, -1), from_left=False)
        if isinstance(found, Blocked):
            return found
        if found is not None:
            axes = sum(count.leading + count.trailing for count in self._counts)
            return TooMany(_addressed(keys), axes)
        return dict(zip(BUFFER_ORDER, self._rows, strict=True))

    def _distribute(
        self, keys: Sequence[Key], order: range, *, from_left: bool
    ) -> Blocked | TooMany | None:
        """Distribute keys from one end; return the obstacle, if any."""
        new: list[AxisKey | NewAxis] = []
        last: int | None = None
        rows = iter(order)
        row: int | None = next(rows)
        for key in keys:
            if isinstance(key, Rest):
                raise ValueError("`...` stands for the remaining axes once")
            if isinstance(key, NewAxis):
                if from_left or last is None:
                    new.append(key)
                else:
                    self._put(last, [key], from_left=False)
                continue
            while row is not None and not self._has_more(row, from_left=from_left):
                if self._counts[row].is_open:
                    return Blocked(BUFFER_ORDER[row])
                row = next(rows, None)
            if row is None:
                return TooMany(0, 0)
            self._put(row, [*new, key], from_left=from_left)
            new, last = [], row
        return self._insert(new, last, from_left=from_left) if new else None

    def _insert(
        self, new: list[AxisKey | NewAxis], last: int | None, *, from_left: bool
    ) -> Blocked | None:
        """Insert new axes beside the next remaining axis, else at the last one with a key."""
        for row in range(3) if from_left else range(2, -1, -1):
            if self._has_more(row, from_left=from_left):
                self._put(row, new, from_left=from_left)
                return None
            if self._counts[row].is_open:
                return Blocked(BUFFER_ORDER[row])
        taken = [i for i, row in enumerate(self._rows) if row.first + row.last]
        end = last if last is not None else taken[-1] if taken else BUFFER_ORDER.index(_ALONE)
        self._put(end, new, from_left=from_left)
        return None

    def _put(self, row: int, keys: list[AxisKey | NewAxis], *, from_left: bool) -> None:
        if from_left:
            self._rows[row].ahead += keys
        else:
            self._rows[row].behind[:0] = reversed(keys)

    def _has_more(self, row: int, *, from_left: bool) -> bool:
        """Return True if the row is known to have another axis at this end."""
        count, taken = self._counts[row], self._rows[row]
        if not count.is_open:
            return count.leading + count.trailing > taken.first + taken.last
        return count.leading > taken.first if from_left else count.trailing > taken.last


_ALONE = RowKind.OUTPUT
"""The row of a new axis of a tensor without axes."""


def _axes(keys: Keys, operand: Shape) -> Iterator[tuple[RowKind, AxisKey | NewAxis, Size | None]]:
    """Yield the keys with the axis of each, in buffer order; kept axes have a whole slice."""
    found = address(
        keys, {kind: AxisCount(0, len(row.trailing), False) for kind, row in operand.rows()}
    )
    assert isinstance(found, dict), "keys fit the shapes that inference closes"
    for kind, row in operand.rows():
        own = found[kind]
        kept = len(row.trailing) - own.first - own.last
        axes = iter(row.trailing)
        for key in (*own.ahead, *[StaticSlice()] * kept, *own.behind):
            size = None if isinstance(key, NewAxis) else next(axes)
            assert size is None or isinstance(size, Size)
            yield kind, key, size


def depends_on_size(keys: Keys, operand: Shape) -> Iterator[tuple[AxisKey, Size]]:
    """Yield the keys that depend on a size given at run time."""
    for _, key, size in _axes(keys, operand):
        if size is None or size.extent is None or isinstance(key, NewAxis):
            continue
        is_from_start = isinstance(key, Position) and not (
            isinstance(key.index, int) and key.index < 0
        )
        if not is_from_start and key != StaticSlice():
            yield key, size


def sliced_shape(keys: Keys, operand: Shape) -> Shape:
    """Return the closed shape of a subscripted tensor of a closed shape."""
    rows: dict[RowKind, list[Size]] = {kind: [] for kind in BUFFER_ORDER}
    for kind, key, size in _axes(keys, operand):
        match key, size:
            case (StaticSlice(), Size() as whole) if key == StaticSlice():
                rows[kind].append(whole)
            case (StaticSlice(), Size(n, basis)):
                rows[kind].append(Size(len(key.positions(n)), basis))
            case (DynamicSlice(length=length), Size(_, basis)):
                rows[kind].append(Size(length, basis))
            case (NewAxis(), _):
                rows[kind].append(Size(1))
    closed = {kind: Row(trailing=tuple(sizes)) for kind, sizes in rows.items()}
    return Shape(closed[RowKind.BATCH], closed[RowKind.INPUT], closed[RowKind.OUTPUT])


def operand_index(
    keys: Keys, operand: Shape, result: Sequence[indexing.AxisIndex]
) -> indexing.IndexMap:
    """Return the index map of a subscripted tensor from the index map of the subscript's result."""
    found: list[indexing.AxisIndex] = []
    axes = iter(result)
    for _, key, size in _axes(keys, operand):
        match key:
            case NewAxis():
                next(axes)
            case Position(index):
                assert size is not None
                found.append(
                    indexing.FixedIndex(index % size.n if index < 0 else index)
                    if isinstance(index, int)
                    else index
                )
            case StaticSlice(step=step):
                assert size is not None
                positions = key.positions(size.n)
                found.append(_along(indexing.FixedIndex(positions.start), step, next(axes)))
            case DynamicSlice(start, _, step):
                found.append(_along(start, step, next(axes)))
            case _:
                assert_never(key)
    return tuple(found)


def _along(start: indexing.AxisIndex, step: int, index: indexing.AxisIndex) -> indexing.AxisIndex:
    terms, offset = indexing.as_affine(start)
    scaled, distance = indexing.as_affine(index)
    return indexing.affine(
        [*terms, *((step * each, var) for each, var in scaled)], offset + step * distance
    )
