"""Index maps as operators: an operand becomes a view, with one axis for each loop variable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ocannl_core.assignments import (
    AxisIndex,
    ComputedIndex,
    FixedIndex,
    IndexMap,
    LoopVar,
    StaticIndex,
    SubAxis,
    as_affine,
    joint_extents,
)
from ocannl_onnx.formats import Format
from ocannl_onnx.writing.emitter import Emitter, Size

Refuse = Callable[[str], Exception]
"""A function that returns an error about the current assignment, for a reason."""

Terms = tuple[tuple[int, LoopVar], ...]


@dataclass(frozen=True)
class View:
    """A value whose axes are loop variables; the variables may repeat, until `diagonal`."""

    name: str
    axes: tuple[LoopVar, ...]


@dataclass(frozen=True)
class AffinePosition:
    """An axis index, taken apart.

    Attributes:
        terms: The multiples of loop variables.
        indices: The multiples of indices that a call or an iteration gives.
    """

    terms: Terms
    indices: tuple[tuple[int, StaticIndex], ...]
    offset: int

    @staticmethod
    def of(index: AxisIndex) -> AffinePosition:
        terms, offset = as_affine(index)
        loops = tuple((c, v) for c, v in terms if isinstance(v, LoopVar))
        indices = tuple((c, v) for c, v in terms if isinstance(v, StaticIndex))
        return AffinePosition(loops, indices, offset)

    def bounds(self, extents: Mapping[LoopVar, int]) -> tuple[int, int]:
        """Return the least and the greatest position, apart from indices."""
        ends = [c * (extents[v] - 1) for c, v in self.terms]
        low = sum(min(0, each) for each in ends) + self.offset
        return low, sum(max(0, each) for each in ends) + self.offset


def digits(
    affine: AffinePosition, extents: Mapping[LoopVar, int], size: int
) -> tuple[LoopVar, ...] | None:
    """Return the variables of which a position is a number in mixed radix that covers an axis, the
    first digit first; None for other positions.

    8*p + q over q<8, p<3, of 24 cells  -->  p, q
    """
    if affine.indices or affine.offset or len(affine.terms) < 2:
        return None
    ordered = sorted(affine.terms, key=lambda term: term[0], reverse=True)
    weight = 1
    for coefficient, var in reversed(ordered):
        if coefficient != weight:
            return None
        weight *= extents[var]
    return tuple(var for _, var in ordered) if weight == size else None


class Views:
    """The views of one assignment.

    Attributes:
        extents: The extents of the loop variables.
        refuse: The error about this assignment.
        ones: The variables of axes of size 1 of the result.
    """

    def __init__(
        self,
        emit: Emitter,
        extents: Mapping[LoopVar, int],
        refuse: Refuse,
        ones: frozenset[LoopVar] = frozenset(),
    ) -> None:
        self.emit = emit
        self.extents = extents
        self.refuse = refuse
        self.ones = ones

    def size(self, var: LoopVar) -> Size:
        return self.extents[var] if var.size is None else var.size

    def of(
        self,
        name: str,
        index_map: IndexMap,
        sizes: Sequence[Size],
        format: Format,
        fill: float,
        position: Callable[[ComputedIndex], View],
    ) -> View:
        """Return the cells of a value at an index map.

        Args:
            sizes: The sizes of its axes.
            fill: The number in cells beyond the axes.
            position: A function that returns the view of computed positions.
        """
        name, indices, sizes = self._without_sub_axes(name, index_map, sizes)
        name, offsets = self._padded(name, indices, sizes, format, fill)
        ones = [
            k
            for k, (index, size, around) in enumerate(zip(indices, sizes, offsets, strict=True))
            if isinstance(index, FixedIndex) and size == 1 and around == (0, 0)
        ]
        name = self.emit.squeeze(name, ones, len(sizes))
        axes: list[LoopVar] = []
        for k, (index, size, (before, after)) in enumerate(
            zip(indices, sizes, offsets, strict=True)
        ):
            if k in ones:
                continue
            at = len(axes)
            if isinstance(index, ComputedIndex):
                found = position(index)
                name = self.emit("Gather", name, found.name, axis=at)
                axes += found.axes
                continue
            affine = AffinePosition.of(index)
            affine = AffinePosition(affine.terms, affine.indices, affine.offset + before)
            padded = size + before + after if isinstance(size, int) else size
            name, own = self._along(name, at, affine, padded)
            axes += own
        return self._diagonal(View(name, tuple(axes)))

    def _without_sub_axes(
        self, name: str, index_map: IndexMap, sizes: Sequence[Size]
    ) -> tuple[str, IndexMap, Sequence[Size]]:
        """Join each sub-axis with the next axis."""
        if not any(isinstance(index, SubAxis) for index in index_map):
            return name, index_map, sizes
        known = self.known(sizes)
        joint = joint_extents(index_map, known)
        kept = [k for k, index in enumerate(index_map) if not isinstance(index, SubAxis)]
        name = self.emit.reshape(name, [joint[k] for k in kept])
        return name, tuple(index_map[k] for k in kept), [joint[k] for k in kept]

    def known(self, sizes: Sequence[Size]) -> list[int]:
        """Return sizes that are numbers.

        Raises:
            NoCounterpartError: if one of them is an extent.
        """
        found = [each for each in sizes if isinstance(each, int)]
        if len(found) < len(sizes):
            extents = ", ".join(str(each) for each in sizes if not isinstance(each, int))
            raise self.refuse(
                f"positions across axes are counted in constant sizes, and {extents} is an extent"
            )
        return found

    def _padded(
        self, name: str, indices: IndexMap, sizes: Sequence[Size], format: Format, fill: float
    ) -> tuple[str, list[tuple[int, int]]]:
        """Return the value with the cells that windows need around it, and their numbers."""
        around: list[tuple[int, int]] = []
        for index, size in zip(indices, sizes, strict=True):
            most = size if isinstance(size, int) else size.maximum
            if isinstance(index, ComputedIndex) or AffinePosition.of(index).indices:
                around.append((0, 0))
                continue
            low, high = AffinePosition.of(index).bounds(self.extents)
            around.append((max(0, -low), max(0, high - most + 1)))
        before, after = zip(*around, strict=True) if around else ((), ())
        return self.emit.pad(name, before, after, fill, format), around

    def _along(
        self, name: str, at: int, affine: AffinePosition, size: Size
    ) -> tuple[str, tuple[LoopVar, ...]]:
        """Return a value with the positions of one axis chosen."""
        emit = self.emit
        if not affine.terms and not affine.indices:
            if size == 1:
                return emit("Squeeze", name, emit.constant([at])), ()
            return emit("Gather", name, emit.constant(affine.offset), axis=at), ()
        if not affine.indices:
            if len(affine.terms) == 1:
                return self._section(name, at, affine, size)
            found = digits(affine, self.extents, size) if isinstance(size, int) else None
            if found is not None:
                return self._split(name, at, found), found
        positions = self.positions(affine)
        return emit("Gather", name, positions.name, axis=at), positions.axes

    def _section(
        self, name: str, at: int, affine: AffinePosition, size: Size
    ) -> tuple[str, tuple[LoopVar, ...]]:
        """Return the cells at multiples of one variable."""
        ((step, var),) = affine.terms
        extent, start = self.extents[var], affine.offset
        own = self.size(var)
        if step == 1 and start == 0 and own == size:
            return name, (var,)
        if not isinstance(own, int):
            if step != 1:
                positions = self.positions(affine)
                return self.emit("Gather", name, positions.name, axis=at), (var,)
            stop = self.emit("Add", self.emit.size(own), self.emit.constant([start]))
            first, axis = self.emit.constant([start]), self.emit.constant([at])
            return self.emit("Slice", name, first, stop, axis), (var,)
        last = start + step * (extent - 1)
        end = last + 1 if step > 0 else last - 1
        return self.emit.slice(name, at, start, end, step), (var,)

    def _split(self, name: str, at: int, parts: Sequence[LoopVar]) -> str:
        """Return a value with an axis taken apart."""
        rank_before = [0] * at  # 0 keeps the size of an axis
        sizes = [*rank_before, *(self.extents[each] for each in parts)]
        shape = self.emit.constant(sizes)
        rest = self.emit("Shape", name, start=at + 1)
        return self.emit("Reshape", name, self.emit("Concat", shape, rest, axis=0))

    def positions(self, affine: AffinePosition) -> View:
        """Return positions as numbers, with an axis for each loop variable."""
        emit = self.emit
        axes = tuple(var for _, var in affine.terms)
        rank = len(axes)
        indices = list(affine.indices)
        if not axes and affine.offset == 0 and indices[0][0] == 1:
            name = emit.index(indices.pop(0)[1])
        elif all(var.size is None for var in axes):
            grids = np.indices([self.extents[var] for var in axes])
            total = sum((c * grids[k] for k, (c, _) in enumerate(affine.terms)), start=0)
            name = emit.constant(np.asarray(total + affine.offset, np.int64))
        else:
            name = emit.constant(affine.offset)
            for k, (coefficient, var) in enumerate(affine.terms):
                count = emit("Squeeze", emit.size(self.size(var)))
                steps = emit("Range", emit.constant(0), count, emit.constant(1))
                steps = emit("Mul", steps, emit.constant(coefficient))
                steps = emit.unsqueeze(steps, [j for j in range(rank) if j != k], 1)
                name = emit("Add", name, steps)
        for coefficient, index in indices:
            value = emit.index(index)
            if coefficient != 1:
                value = emit("Mul", value, emit.constant(coefficient))
            name = emit("Add", name, value)
        return View(name, axes)

    def _diagonal(self, view: View) -> View:
        """Return a view in which no variable repeats."""
        for k, var in enumerate(view.axes):
            if var in view.axes[k + 1 :]:
                other = view.axes.index(var, k + 1)
                rest = [j for j in range(len(view.axes)) if j not in (k, other)]
                (extent,) = self.known([self.size(var)])
                name = self.emit.transpose(view.name, [*rest, k, other])
                kept = tuple(view.axes[j] for j in rest)
                name = self.emit.reshape(name, [*map(self.size, kept), extent * extent])
                cells = self.emit.constant(np.arange(extent) * (extent + 1))
                name = self.emit("Gather", name, cells, axis=len(kept))
                return self._diagonal(View(name, (*kept, var)))
        return view

    def without(self, view: View, kept: Sequence[LoopVar]) -> View:
        """Return a view without the axes of single positions, but for those to keep."""
        single = [k for k, v in enumerate(view.axes) if v not in kept and self.size(v) == 1]
        if not single:
            return view
        name = self.emit.squeeze(view.name, single, len(view.axes))
        return View(name, tuple(v for k, v in enumerate(view.axes) if k not in single))

    def ordered(self, view: View, axes: Sequence[LoopVar]) -> str:
        """Return a view with its axes in the order of others, of size 1 where it has none."""
        own = [var for var in axes if var in view.axes]
        name = self.emit.transpose(view.name, [view.axes.index(var) for var in own])
        first = axes.index(own[0]) if own else len(axes)
        # missing axes in front are added by broadcasting
        missing = [k - first for k in range(first, len(axes)) if axes[k] not in view.axes]
        return self.emit.unsqueeze(name, missing, len(own))

    def expanded(self, name: str, axes: Sequence[LoopVar], present: Sequence[LoopVar]) -> str:
        """Return a value with all cells along axes, of which some are missing or of size 1."""
        if all(var in present for var in axes):
            return name
        return self.emit("Expand", name, self.emit.shape([self.size(var) for var in axes]))
