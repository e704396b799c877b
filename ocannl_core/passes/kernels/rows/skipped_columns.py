"""Columns that no row of a block of rows needs: those behind the diagonal of a causal mask.

    for t: score[q, t] = where(t <= q, ..., -inf)    for t up to the last row: score[q, t] = ...
    for t: e[q, t] = exp(score[q, t] - m[q])    -->  for t up to the last row: e[q, t] = ...
    for t: y[q, d] += e[q, t] * v[t, d]              for t up to the last row: y[q, d] += ...

Behind the diagonal, scores are minus infinity and weights zero, so that a reduction over columns
leaves them out: they are neutral if the other factor is finite. A nest that computes such columns
leaves them out, too, where it writes folded nodes only and no other nest needs the cells. If
another one does, it computes all columns, by the mask and not by cells that were left out.

A sum over the rows adds to cells of memory for each block of rows. Its register tiles reach beyond
the last column, so the nests that compute its operands go on to the end of such a tile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from enum import Enum, auto
from functools import partial

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import (
    AxisIndex,
    FixedIndex,
    IndexVar,
    LoopVar,
    VarIndex,
    affine_sum,
    as_affine,
)
from ocannl_core.ir.kernels.nest import LoopAxis, Nest
from ocannl_core.ir.kernels.row_fusion import Member, RowFusion
from ocannl_core.ir.kernels.transforms import Schedule
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.ranges import visible_difference
from ocannl_core.ir.loops.traverse import substitute_in_expr, walk
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.primitives import TernaryOp
from ocannl_core.passes.kernels.rows.masks import hidden_value
from ocannl_core.schedule.apply.nest_state import apply_transforms


class _Part(Enum):
    ALL = auto()
    ALL_BY_MASK = auto()
    VISIBLE = auto()


@dataclass(frozen=True, slots=True)
class SkippedColumns:
    """The nests of a fusion, some of which leave out columns."""

    members: tuple[Member, ...]
    """The nests, with masks where they need them."""
    columns: Mapping[int, LoopVar] = field(default_factory=dict)
    """The variable of the columns of which a nest leaves out some, by its position."""
    offset: int = 0
    """The distance of the last column that a row needs behind the position of the row."""
    reach: int = 0
    """The hidden columns that register tiles of sums over rows add, at most."""

    @property
    def sums(self) -> frozenset[int]:
        """The positions of sums over rows, which add to cells of columns."""
        return frozenset(at for at in self.columns if self.members[at].reduces_rows)

    def with_tiles(self, sums: Iterable[tuple[Nest, Schedule, LoopVar]]) -> SkippedColumns:
        """Return the columns with the reach of the tiles of sums, given with their columns."""
        tiles = (
            apply_transforms(nest, schedule).whole_block(axis.name)
            for nest, schedule, column in sums
            for axis in nest.axes
            if axis.var == column
        )
        return replace(self, reach=max(tiles, default=1) - 1)

    def end_columns(
        self, position: int, axes: Sequence[LoopAxis], last_row: AxisIndex
    ) -> tuple[LoopAxis, ...]:
        """Return the axes of a nest; its axis of columns ends behind the last row of a block."""
        column = self.columns.get(position)
        more = FixedIndex(self.offset + (0 if position in self.sums else self.reach))

        def ended(axis: LoopAxis) -> LoopAxis:
            index = affine_sum((1, VarIndex(axis.var)), (-1, last_row), (-1, more))
            return replace(axis, bound=ir.LoopBound(index, 1))

        return tuple(ended(axis) if axis.var == column else axis for axis in axes)


def skip_columns(fusion: RowFusion) -> SkippedColumns:
    """Return the nests of a fusion, without the columns that no row of a block needs."""
    unchanged = SkippedColumns(fusion.members)
    blocks = fusion.members[0].axes[-1].extent // fusion.size if fusion.members[0].axes else 0
    if fusion.size == 1 or blocks == 1 or fusion.threads:
        return unchanged
    mask = next((each for member in fusion.members for each in _masks(member)), None)
    return unchanged if mask is None else _Analysis(fusion, mask).result()


def without_ends(stmts: Sequence[ir.Stmt], shared: frozenset[LoopVar]) -> tuple[ir.Stmt, ...]:
    """Return copies without the ends of columns that the loops over blocks, `shared`, state."""

    def whole(stmt: ir.Stmt) -> ir.Stmt:
        match stmt:
            case ir.For(body=body, bound=bound):
                found = bound is not None and any(
                    var in shared for _, var in as_affine(bound.index)[0]
                )
                inside = ir.Block(without_ends(body.stmts, shared))
                return replace(stmt, body=inside, bound=None if found else bound)
            case _:
                return stmt

    return tuple(map(whole, stmts))


@dataclass(frozen=True, slots=True)
class _Mask:
    """A comparison of the positions of a column and of a row."""

    condition: ir.Expr
    column: LoopVar
    row: LoopVar
    offset: int


def _masks(member: Member) -> Iterator[_Mask]:
    """Yield the masks of a nest by its innermost shared axis."""
    columns = {axis.var for axis in member.nest.axes if axis.name not in member.rows}
    row = member.vars[-1]
    for root in member.nest.roots:
        for part in walk(root):
            if not isinstance(part, ir.Binary) or (found := visible_difference(part)) is None:
                continue
            terms, constant = as_affine(found)
            steps = {var: step for step, var in terms}
            for column in columns & steps.keys():
                if steps == {column: 1, row: -1}:
                    yield _Mask(part, column, row, -constant)


@dataclass(slots=True)
class _Analysis:
    """The columns of nests, and what is known of those that a mask hides."""

    fusion: RowFusion
    mask: _Mask
    columns: dict[int, LoopVar] = field(default_factory=dict)
    """The variable of the columns of each nest that has such an axis."""
    dims: dict[TensorNode, int] = field(default_factory=dict)
    """The axis of the columns in each folded node that has one."""
    hidden: dict[TensorNode, float | None] = field(default_factory=dict)
    """The number in all hidden cells of each node, None where it is unknown."""

    def result(self) -> SkippedColumns:
        """Return the nests without hidden columns."""
        self._find_columns()
        for at, member in enumerate(self.fusion.members):
            for store in member.nest.epilogue:
                self._note_hidden(at, store)
        parts = self._parts()
        return SkippedColumns(
            tuple(
                self._by_mask(at, member) if parts[at] is _Part.ALL_BY_MASK else member
                for at, member in enumerate(self.fusion.members)
            ),
            {at: self.columns[at] for at, part in parts.items() if part is _Part.VISIBLE},
            self.mask.offset,
        )

    def _find_columns(self) -> None:
        excluded: set[int] = set()
        pending = True
        while pending:
            pending = False
            for at, member in enumerate(self.fusion.members):
                if at in excluded or at in self.columns:
                    continue
                found = self._columns_of(member)
                if len(found) > 1:
                    excluded.add(at)
                elif found:
                    (self.columns[at],) = found
                    pending = True
                    self._note_dims(member, self.columns[at])

    def _columns_of(self, member: Member) -> set[LoopVar]:
        """Return the axes of a nest that are known to be columns."""
        free = {axis.var for axis in member.nest.axes if axis.name not in member.rows}
        found = {each.column for each in _masks(member) if each.offset == self.mask.offset}
        for access in member.nest.accesses:
            dim = self.dims.get(access.node)
            if dim is not None and access.indices is not None:
                index = access.indices[dim]
                if isinstance(index, VarIndex) and isinstance(index.var, LoopVar):
                    found |= {index.var} & free
        return found

    def _note_dims(self, member: Member, column: LoopVar) -> None:
        for access in member.nest.accesses:
            if access.node in self.fusion.folded and access.indices is not None:
                dims = [at for at, index in enumerate(access.indices) if index == VarIndex(column)]
                if len(dims) == 1:
                    self.dims.setdefault(access.node, dims[0])

    def _note_hidden(self, at: int, store: ir.Store) -> None:
        """Note the number that a store leaves in hidden cells: one for all stores to a node."""
        value = self._value(at, store.value) if self._is_own_cell(at, store) else None
        if self.hidden.setdefault(store.node, value) != value:
            self.hidden[store.node] = None

    def _is_own_cell(self, at: int, access: ir.Store | ir.Load) -> bool:
        """Return True if a nest accesses a folded node in its own row and its own column."""
        dim, column = self.dims.get(access.node), self.columns.get(at)
        row = VarIndex(self.fusion.members[at].vars[-1])
        return (
            dim is not None
            and column is not None
            and access.indices[dim] == VarIndex(column)
            and row in access.indices
        )

    def _value(self, at: int, expr: ir.Expr, *, reads: bool = True) -> float | None:
        """Return the constant value of an expression in hidden columns; None for other expressions.

        Args:
            reads: True to take the values of hidden cells for loads.
        """

        def loaded(load: ir.Load) -> float | None:
            return self.hidden.get(load.node) if reads and self._is_own_cell(at, load) else None

        return hidden_value(expr, partial(self._is_mask, at), loaded)

    def _is_mask(self, at: int, condition: ir.Expr) -> bool:
        """Return True if a condition holds in no hidden column."""
        difference = visible_difference(condition)
        column, row = self.columns.get(at), self.fusion.members[at].vars[-1]
        if difference is None or column is None:
            return False
        terms, constant = as_affine(difference)
        steps = {var: step for step, var in terms}
        return steps == {column: 1, row: -1} and constant >= -self.mask.offset

    def _parts(self) -> dict[int, _Part]:
        members = list(enumerate(self.fusion.members))
        parts = {at: self._least_part(at, member) for at, member in members}
        while True:
            left_out = {
                store.node: at
                for at, member in members
                if parts[at] is _Part.VISIBLE and not self._is_reduced(at)
                for store in member.nest.epilogue
            }
            needed = {
                left_out[load.node]
                for at, member in members
                for load in self._loads(member)
                if load.node in left_out
                and (parts[at] is _Part.ALL or not self._is_own_cell(at, load))
            }
            if not needed:
                return parts
            for at in needed:
                parts[at] = _Part.ALL_BY_MASK if self._is_known(at) else _Part.ALL

    def _least_part(self, at: int, member: Member) -> _Part:
        """Return the columns that a nest needs if no other one needs more."""
        axis = next((axis for axis in member.nest.axes if axis.var == self.columns.get(at)), None)
        if axis is None or axis.bound is not None or axis.is_shifting:
            return _Part.ALL
        if axis.is_reduced or member.reduces_rows:
            reduction = member.nest.required_reduction
            is_neutral = self._value(at, reduction.term) == reduction.neutral.value
            return _Part.VISIBLE if is_neutral else _Part.ALL
        if all(self._is_own_cell(at, store) for store in member.nest.epilogue):
            return _Part.VISIBLE
        return _Part.ALL

    def _is_reduced(self, at: int) -> bool:
        return any(axis.var == self.columns[at] for axis in self.fusion.members[at].nest.reduced)

    def _is_known(self, at: int) -> bool:
        """Return True if hidden cells of all nodes that a nest writes have known numbers."""
        stores = self.fusion.members[at].nest.epilogue
        return all(self._value(at, store.value) is not None for store in stores)

    def _loads(self, member: Member) -> Iterator[ir.Load]:
        for root in member.nest.roots:
            for part in walk(root.value if isinstance(root, ir.Store) else root):
                if isinstance(part, ir.Load):
                    yield part

    def _by_mask(self, at: int, member: Member) -> Member:
        """Return a nest that writes known numbers to hidden cells, whatever it reads there."""
        positions: dict[IndexVar, AxisIndex] = {
            self.mask.column: VarIndex(self.columns[at]),
            self.mask.row: VarIndex(member.vars[-1]),
        }
        condition = substitute_in_expr(self.mask.condition, positions)

        def masked(store: ir.Store) -> ir.Store:
            if self._value(at, store.value, reads=False) is not None:
                return store
            hidden = self._value(at, store.value)
            assert hidden is not None
            dtype = store.value.dtype
            value = ir.Ternary(
                TernaryOp.WHERE, condition, store.value, ir.Const(hidden, dtype), dtype
            )
            return replace(store, value=value)

        nest = replace(member.nest, epilogue=tuple(map(masked, member.nest.epilogue)))
        return replace(member, nest=nest)
