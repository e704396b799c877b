"""Left sides of assignments: all cells of a tensor, a block of cells, rows, or single cells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ocannl_core.assignments import (
    Accumulate,
    BinaryOp,
    ComputedIndex,
    ConcatIndex,
    FixedIndex,
    IndexMap,
    LoopVar,
    SubAxis,
    TensorNode,
    VarIndex,
    neutral,
    row_major,
    saturate,
)
from ocannl_onnx.formats import Format
from ocannl_onnx.writing import primitives
from ocannl_onnx.writing.emitter import Array, Emitter, Size, WrittenValue
from ocannl_onnx.writing.primitives import Calculation
from ocannl_onnx.writing.terms import Terms
from ocannl_onnx.writing.values import Cells, Stretches, Values
from ocannl_onnx.writing.views import AffinePosition, View, Views, digits


@dataclass(frozen=True)
class Writes:
    """The left side of an assignment over one domain."""

    terms: Terms
    lhs: IndexMap

    @property
    def graph(self) -> Values:
        return self.terms.graph

    @property
    def emit(self) -> Emitter:
        return self.terms.emit

    @property
    def leaf(self) -> Accumulate:
        return self.terms.leaf

    @property
    def views(self) -> Views:
        return self.terms.views

    @property
    def kept(self) -> Sequence[LoopVar]:
        return self.terms.kept

    def write(self, view: View, format: Format) -> None:
        """Combine the cells of the target at its index map with a value of a format."""
        kept, lhs = self.kept, self.lhs
        target = self.leaf.target
        sizes = self.graph.sizes(target)
        wanted = self.graph.format(target)
        name = self.views.emit.transpose(
            view.name, [view.axes.index(v) for v in kept if v in view.axes]
        )
        present = [v for v in kept if v in view.axes]
        whole = self._as_whole(lhs, sizes)
        if whole is not None:
            self._combine_whole(self._whole(name, present, format, whole, sizes))
            return
        name = self._with_missing(name, kept, present)
        box = self._as_box(sizes)
        if box is not None:
            self._write_box(name, format, box)
            return
        name = self.emit.cast(name, format, wanted)
        row = self._as_rows(sizes)
        if row is not None:
            self._write_rows(name, row)
            return
        self._write_cells(name)

    def _with_missing(self, name: str, kept: Sequence[LoopVar], present: Sequence[LoopVar]) -> str:
        """Return a value with all cells along the kept variables."""
        if list(kept) == list(present):
            return name
        missing = [k for k, v in enumerate(kept) if v not in present]
        return self.views.expanded(self.emit.unsqueeze(name, missing, len(present)), kept, present)

    def _as_whole(self, lhs: IndexMap, sizes: Sequence[Size]) -> list[tuple[LoopVar, ...]] | None:
        """Return the variables that each axis of a target consists of, if all cells are written."""
        found: list[tuple[LoopVar, ...]] = []
        for index, size in zip(lhs, sizes, strict=True):
            if index == FixedIndex(0) and size == 1:
                found.append(())
            elif isinstance(index, VarIndex) and isinstance(index.var, LoopVar):
                if self.views.size(index.var) != size:
                    return None
                found.append((index.var,))
            elif isinstance(index, SubAxis | ComputedIndex | ConcatIndex | FixedIndex | VarIndex):
                return None
            else:
                parts = (
                    digits(AffinePosition.of(index), self.views.extents, size)
                    if isinstance(size, int)
                    else None
                )
                if parts is None:
                    return None
                found.append(parts)
        flat = [v for group in found for v in group]
        return found if len(set(flat)) == len(flat) else None

    def row(self, view: View, format: Format, axis: int) -> str:
        """Return the row along an axis that one iteration of a loop writes."""
        lhs, sizes = self.lhs, self.graph.sizes(self.leaf.target)
        rest = [k for k in range(len(lhs)) if k != axis]
        row = [sizes[k] for k in rest]
        groups = self._as_whole(tuple(lhs[k] for k in rest), row)
        assert groups is not None
        made = self._whole(view.name, view.axes, format, groups, row)
        wanted = self.graph.format(self.leaf.target)
        return self.emit.cast(self.emit.materialized(made), format, wanted)

    def _whole(
        self,
        name: str,
        present: Sequence[LoopVar],
        format: Format,
        groups: Sequence[tuple[LoopVar, ...]],
        sizes: Sequence[Size],
    ) -> WrittenValue:
        """Return all cells of a tensor whose axes consist of variables, of which some may be
        missing in a value.
        """
        emit = self.emit
        order = [v for group in groups for v in group]
        has_digits = any(len(group) > 1 for group in groups)
        if not present and sizes and not has_digits:
            return WrittenValue(name, format, tuple(sizes), is_spread=True)
        name = emit.transpose(name, [list(present).index(v) for v in order if v in present])
        if has_digits:
            name = self._with_missing(name, order, [v for v in order if v in present])
            return WrittenValue(emit.reshape(name, sizes), format, tuple(sizes))
        gaps = [k for k, g in enumerate(groups) if not g or g[0] not in present]
        name = emit.unsqueeze(name, gaps, len(groups) - len(gaps))
        if any(groups[k] and self.views.extents[groups[k][0]] != 1 for k in gaps):
            name = emit("Expand", name, emit.shape(sizes))
        return WrittenValue(name, format, tuple(sizes))

    def _combine_whole(self, made: WrittenValue) -> None:
        """Combine all cells of a target with a value."""
        target, combine = self.leaf.target, self.leaf.combine
        wanted = self.graph.format(target)
        if combine is not BinaryOp.SECOND:
            before = self.graph.value(target)
            name = self._combined(before, made.name, made.format)
            spread = made.is_spread and (before.is_spread or name == made.name)
            made = WrittenValue(name, made.format, made.sizes, is_spread=spread)
        name = self.emit.cast(made.name, made.format, wanted)
        self.graph.values[target] = replace(made, name=name, format=wanted)

    def _combined(self, before: WrittenValue, name: str, format: Format) -> str:
        """Return the combination of earlier cells with a value of a format."""
        combine, dtype = self.leaf.combine, self.graph.info(self.leaf.target).dtype
        is_neutral = before.number == saturate(neutral(combine), dtype)
        if is_neutral and combine.value.keeps_first:
            return name
        rule = primitives.RULES.get(combine)
        if rule is None:
            raise self.graph.refuse(f"ONNX accumulates by no {combine.value.name}")
        earlier = self.emit.cast(before.name, before.format, format)
        return rule(Calculation(self.emit, format), earlier, name)

    def _as_box(self, sizes: Sequence[Size]) -> list[tuple[int, int]] | None:
        """Return the first and the last position of each axis, if one block of cells is written."""
        found: list[tuple[int, int]] = []
        axes: list[LoopVar] = []
        for index, size in zip(self.lhs, sizes, strict=True):
            if isinstance(index, SubAxis | ComputedIndex | ConcatIndex):
                return None
            affine = AffinePosition.of(index)
            if affine.indices or len(affine.terms) > 1:
                return None
            if any(c != 1 or v in axes for c, v in affine.terms):
                return None
            axes += [v for _, v in affine.terms]
            low, high = affine.bounds(self.views.extents)
            if low < 0 or (isinstance(size, int) and high >= size):
                return None
            if not isinstance(size, int):
                if affine.offset or [self.views.size(v) for _, v in affine.terms] != [size]:
                    return None
                high = size.maximum - 1
            found.append((low, high))
        return found

    def _write_box(self, name: str, format: Format, box: Sequence[tuple[int, int]]) -> None:
        """Write one block of cells, with the axes of the target."""
        emit, target, combine = self.emit, self.leaf.target, self.leaf.combine
        sizes, wanted = self.graph.sizes(target), self.graph.format(target)
        single = [k for k, index in enumerate(self.lhs) if isinstance(index, FixedIndex)]
        name = emit.unsqueeze(name, single, len(self.lhs) - len(single))
        most = [n if isinstance(n, int) else n.maximum for n in sizes]
        partial = [k for k, (low, high) in enumerate(box) if (low, high) != (0, most[k] - 1)]
        before = self.graph.written(target) or self.graph.value(target)
        if combine is not BinaryOp.SECOND:
            cells = self.graph.value(target) if isinstance(before, Stretches) else before
            part = cells.name
            for k in partial if not cells.is_spread else ():
                part = emit.slice(part, k, box[k][0], box[k][1] + 1)
            name = self._combined(replace(cells, name=part), name, format)
        name = emit.cast(name, format, wanted)
        if len(partial) == 1:
            self._write_stretch(target, before, partial[0], box[partial[0]], name)
            return
        cells = self.graph.value(target) if isinstance(before, Stretches) else before
        if cells.is_spread and cells.number is not None:
            low = [each for each, _ in box]
            high = [n - 1 - last for n, (_, last) in zip(most, box, strict=True)]
            name = emit.pad(name, low, high, cells.number, wanted)
            self.graph.values[target] = WrittenValue(name, wanted, sizes)
            return
        axis, rest = partial[0], partial[1:]
        row = emit.materialized(cells)
        row = emit.slice(row, axis, box[axis][0], box[axis][1] + 1)
        sliced = [box[k][1] - box[k][0] + 1 if k == axis else n for k, n in enumerate(sizes)]
        inner = WrittenValue(row, wanted, tuple(sliced))
        if len(rest) > 1:
            raise self.graph.refuse("it writes a part of a tensor along more than two axes")
        start, last = box[rest[0]]
        joined = self.graph.joined(Stretches(inner, rest[0], {start: (name, last + 1)}))
        self._write_stretch(target, cells, axis, box[axis], joined.name)

    def _write_stretch(
        self, target: TensorNode, before: Cells, axis: int, ends: tuple[int, int], name: str
    ) -> None:
        """Write the cells from one position of an axis to another one."""
        start, stop = ends[0], ends[1] + 1
        if isinstance(before, Stretches) and before.axis == axis:
            free = all(e <= start or s >= stop for s, (_, e) in before.parts.items())
            if free:
                parts = {**before.parts, start: (name, stop)}
                self.graph.values[target] = Stretches(before.before, axis, parts)
                return
        cells = self.graph.joined(before) if isinstance(before, Stretches) else before
        self.graph.values[target] = Stretches(cells, axis, {start: (name, stop)})

    def _as_rows(self, sizes: Sequence[Size]) -> int | None:
        """Return the axis with positions that are known at run time, if all others are whole."""
        axis = None
        axes: list[LoopVar] = []
        for k, (index, size) in enumerate(zip(self.lhs, sizes, strict=True)):
            if isinstance(index, ComputedIndex) or (
                not isinstance(index, SubAxis | ConcatIndex) and AffinePosition.of(index).indices
            ):
                if axis is not None:
                    raise self.graph.refuse("it writes at two positions that are known at run time")
                axis = k
            elif index == FixedIndex(0) and size == 1:
                continue
            elif isinstance(index, VarIndex) and isinstance(index.var, LoopVar):
                if self.views.size(index.var) != size or index.var in axes:
                    return None
                axes.append(index.var)
            else:
                return None
        return axis

    def _write_rows(self, name: str, axis: int) -> None:
        """Write rows at positions along one axis that are known at run time."""
        lhs, kept = self.lhs, self.kept
        emit, target = self.emit, self.leaf.target
        sizes, wanted = self.graph.sizes(target), self.graph.format(target)
        index = lhs[axis]
        if isinstance(index, ComputedIndex):
            at = self.terms.positions(index)
        else:
            at = self.views.positions(AffinePosition.of(index))
        others = [
            i.var
            for k, i in enumerate(lhs)
            if k != axis and isinstance(i, VarIndex) and isinstance(i.var, LoopVar)
        ]
        if any(v in others for v in at.axes) or any(v not in kept for v in at.axes):
            raise self.graph.refuse("its positions differ along an axis that it writes as a whole")
        order = [axis, *(k for k in range(len(lhs)) if k != axis)]
        cells = emit.transpose(emit.materialized(self.graph.value(target)), order)
        rows = (*at.axes, *others)
        name = emit.transpose(name, [kept.index(v) for v in rows])
        ones = [
            len(at.axes) + k
            for k, position in enumerate(order[1:])
            if isinstance(lhs[position], FixedIndex)
        ]
        name = emit.unsqueeze(name, ones, len(rows))
        places = emit("Unsqueeze", at.name, emit.constant([-1]))
        made = emit("ScatterND", cells, places, name, **self._reduction())
        back = sorted(range(len(order)), key=lambda k: order[k])
        made = emit.transpose(made, back)
        self.graph.values[target] = WrittenValue(made, wanted, sizes)

    def _reduction(self) -> dict[str, str]:
        """Return the attribute of scatters for an accumulation."""
        names = {BinaryOp.ADD: "add", BinaryOp.MUL: "mul", BinaryOp.MAX: "max", BinaryOp.MIN: "min"}
        if self.leaf.combine is BinaryOp.SECOND:
            return {}
        if self.leaf.combine not in names:
            raise self.graph.refuse(f"ONNX scatters by no {self.leaf.combine.value.name}")
        return {"reduction": names[self.leaf.combine]}

    def _write_cells(self, name: str) -> None:
        """Write cells at known positions; those beyond the axes are dropped."""
        lhs, kept = self.lhs, self.kept
        emit, target = self.emit, self.leaf.target
        wanted = self.graph.format(target)
        sizes = self.views.known(self.graph.sizes(target))
        self.views.known([self.views.size(v) for v in kept])
        if any(
            isinstance(i, ComputedIndex | ConcatIndex) or AffinePosition.of(i).indices for i in lhs
        ):
            raise self.graph.refuse("it writes at positions that are known at run time and overlap")
        grids = dict(zip(kept, np.indices([self.views.extents[v] for v in kept]), strict=True))
        total: Array = np.zeros([self.views.extents[v] for v in kept], np.int64)
        inside = np.ones(total.shape, bool)
        joint = row_major(lhs, sizes)
        for index, size in zip(lhs, sizes, strict=True):
            place = _places(AffinePosition.of(index), grids)
            if not any(isinstance(each, SubAxis) for each in lhs):
                inside &= (place >= 0) & (place < size)
        total = total + _places(AffinePosition.of(joint), grids)
        cells = math.prod(sizes)
        places = np.where(inside, total, cells)
        flat = emit.reshape(emit.materialized(self.graph.value(target)), [cells])
        flat = emit.pad(flat, [0], [1], 0.0, wanted)
        at = emit.constant(places.reshape(-1, 1))
        values = emit.reshape(name, [total.size])
        made = emit("ScatterND", flat, at, values, **self._reduction())
        made = emit.reshape(emit.slice(made, 0, 0, cells), sizes)
        self.graph.values[target] = WrittenValue(made, wanted, tuple(sizes))


def _places(affine: AffinePosition, grids: Mapping[LoopVar, Array]) -> Array:
    """Return the positions at all values of loop variables."""
    terms = [c * grids[v] for c, v in affine.terms]
    total: Array = sum(terms, start=np.array(affine.offset, np.int64))
    return total
