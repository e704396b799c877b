"""Apply AMX tiles: blocks of rows, columns and terms that one instruction multiplies and adds.

    split i 16; split j 16; split k 32; split k1 2; order i0 j0 k0 i1 j1 k10 k11; tile i1 j1 k10

        -->  for k0, i1 in tile(16), j1 in tile(16), k10 in tile(16), k11 in dot(2):
                 sums[i1, j1] = fma(a[i0, k0, 0, i1, 2 * k10 + k11],
                                    b[j0, k0, 0, k10, j1, k11], sums[i1, j1])

Tiles are whole for all extents: the buffers of both operands are padded with zeros.
Results of rows and columns beyond the last one are computed and not stored.

A factor of float32 is the sum of three numbers of bfloat16, each the nearest to the remainder of
those before it: the buffers hold a tile of each, one after the other, and products of parts are
added one after the other as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.rounding import round_up
from ocannl_core.ir.indexing import (
    AxisIndex,
    FixedIndex,
    LoopVar,
    VarIndex,
    affine,
    affine_sum,
    as_affine,
    fresh_var,
    variables,
)
from ocannl_core.ir.kernels.nest import Reduction, with_factors
from ocannl_core.ir.kernels.transforms import (
    Pack,
    TileMatrix,
    inner_of,
    parent_of,
    root_of,
    schedule_text,
)
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.conversions import as_format, unwidened
from ocannl_core.ir.loops.traverse import substitute_in_expr
from ocannl_core.ir.matrix_units import PART_PRODUCTS, TILE_FORMATS
from ocannl_core.ir.numbers.dtypes import DType, float32
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.schedule.apply.accumulators import Accumulators
from ocannl_core.schedule.apply.axis_tree import AxisTree, Region
from ocannl_core.schedule.apply.emission import Emission
from ocannl_core.schedule.apply.nest_state import NestState
from ocannl_core.schedule.apply.operand_buffers import FilledBuffer
from ocannl_core.schedule.apply.packing import packing_order
from ocannl_core.schedule.apply.reduction_strategy import Accumulation, Conditions


@dataclass(frozen=True, slots=True)
class AmxTiling:
    """The axes of tiles."""

    tree: AxisTree
    tile: TileMatrix

    @property
    def steps(self) -> str:
        """The part of an axis whose iterations are the terms of a tile."""
        return parent_of(self.tile.terms)

    @property
    def pair(self) -> str:
        """The loop over the terms of a pair."""
        return inner_of(self.steps)

    @property
    def leaves(self) -> tuple[str, ...]:
        """The loops of a tile, outermost first."""
        return (self.tile.rows, self.tile.lanes, self.tile.terms, self.pair)

    @property
    def products(self) -> tuple[tuple[int, int], ...]:
        """The parts of the row and column operand that are multiplied, in order."""
        return PART_PRODUCTS[self.tile.parts]

    def _tile_extent(self, name: str) -> int:
        """Return the iterations of an axis, or of a part of it, in a tile."""
        axes = map(root_of, (self.tile.rows, self.tile.lanes, self.tile.terms))
        return dict(zip(axes, self.tile.shape, strict=True)).get(root_of(name), 1)

    def pad(self, region: Region) -> Region:
        """Return a region in which all tiles are whole."""
        extents = {
            name: round_up(extent, self._tile_extent(name))
            for name, extent in region.extents.items()
        }
        return replace(region, extents=extents)

    def remainder(self, region: Region, name: str) -> int:
        """Return the iterations of the last tile along an axis of a region; 0 if it is whole."""
        known = max((each for each in region.extents if root_of(each) == root_of(name)), key=len)
        return region.extents[known] % self._tile_extent(name)

    def is_row_operand(self, factor: ir.Expr) -> bool:
        """Return True for the operand that depends on the rows."""
        return root_of(self.tile.rows) in self.tree.axes_of(factor)

    def inner_axes(self, factor: ir.Expr) -> tuple[str, ...]:
        """Return the axes of a tile of an operand, innermost last."""
        if self.is_row_operand(factor):
            return (self.tile.rows, self.steps)
        return (self.tile.terms, self.tile.lanes, self.pair)

    def are_innermost(self, order: Sequence[str], kinds: Mapping[str, ir.AxisKind]) -> bool:
        tile, splits, (rows, columns, terms) = self.tile, self.tree.splits, self.tile.shape
        roots = [root_of(each) for each in (tile.rows, tile.lanes, tile.terms)]
        pairs = splits.get(self.steps)
        if pairs is None or (pairs.size, pairs.evenly) != (2, False) or len(set(roots)) < 3:
            return False
        others = [
            each for name, each in splits.items() if root_of(name) in roots and each is not pairs
        ]
        whole = self.pad(self.tree.full_region)
        return (
            tuple(order[-4:]) == self.leaves
            and kinds[self.pair] is ir.AxisKind.DOT
            and ir.AxisKind.VECTOR not in kinds.values()
            and all(
                each.size % self._tile_extent(each.axis) == 0 and not each.evenly for each in others
            )
            and tuple(map(whole.max_extent, self.leaves)) == (rows, columns, terms // 2, 2)
            and [self.tree.is_reduced(each) for each in roots] == [False, False, True]
            and not self.tree.axes[roots[2]].is_shifting
        )

    def multiplies(self, reduction: Reduction) -> bool:
        is_sum = reduction.op is BinaryOp.ADD and reduction.dtype is float32
        if not is_sum or len(reduction.factors) != 2:
            return False
        formats = set(map(self.cell_format, reduction.factors))
        if len(formats) > 1 or None in formats:
            return False
        output_axes = {self.tile.rows[0], self.tile.lanes[0]}
        found = []
        for factor in reduction.factors:
            roots = set(self.tree.axes_of(factor))
            if self.tile.terms[0] not in roots:
                return False
            found.append(roots & output_axes)
        return sorted(map(len, found)) == [1, 1] and found[0] != found[1]

    def packed_expr(self, factor: ir.Expr) -> ir.Expr:
        """Return the packed expression of a factor; without parts, numbers stay narrow."""
        return unwidened(factor) if self.tile.parts == 1 else factor

    def cell_format(self, factor: ir.Expr) -> DType | None:
        """Return the format of the numbers of a factor in tiles; None if tiles hold none."""
        return TILE_FORMATS.get((self.packed_expr(factor).dtype, self.tile.parts))


def _tiling(state: NestState) -> AmxTiling:
    assert state.tile is not None
    return AmxTiling(state.tree, state.tile)


class AmxBuffer(FilledBuffer):
    """The buffer of an operand, tile by tile."""

    def __init__(self, emission: Emission, pack: Pack, operand: ir.Expr) -> None:
        super().__init__(emission, pack, operand)
        self.tiling = _tiling(self.state)
        self.factor = self.tiling.packed_expr(operand)
        """The packed expression."""
        self.dtype = TILE_FORMATS[self.factor.dtype, self.tiling.tile.parts]
        """The format of the numbers in tiles."""
        inner = self.tiling.inner_axes(self.factor)
        if self.pack.axes[-len(inner) :] != inner:
            raise UsageError(
                f"The innermost axes of this buffer are the axes of its tiles, {' '.join(inner)}.",
                found=schedule_text((self.pack,)),
            )
        whole = self.tiling.pad(self.tree.full_region)
        outer = [whole.max_extent(axis) for axis in self._outer]
        rows, columns, terms = self.tiling.tile.shape
        shape = (rows, terms) if self.is_row_operand else (terms // 2, columns, 2)
        wide = (rows, terms) if self.is_row_operand else (terms, columns)
        dims = (*outer, self.tiling.tile.parts, *shape)
        self.node = emission.new_array(f"packed{self.pack.operand}", self.dtype, dims)
        self.wide = emission.new_array(f"wide{self.pack.operand}", float32, wide)
        """A buffer of one tile in float32."""

    @property
    def is_row_operand(self) -> bool:
        """True for the operand with the rows of tiles, False for that with the columns."""
        return self.tiling.is_row_operand(self.factor)

    @property
    def _outer(self) -> tuple[str, ...]:
        """The axes of the buffer outside of tiles."""
        return self.pack.axes[: -len(self.tiling.inner_axes(self.factor))]

    @property
    def cell_axis(self) -> str:
        """The loop over the rows or columns of a tile."""
        return self.tiling.tile.rows if self.is_row_operand else self.tiling.tile.lanes

    def cell(self, region: Region, part: int = 0) -> ir.Expr:
        """Return the value of one part of the operand at a point."""
        inner = self.tiling.inner_axes(self.factor)
        load = self.cell_inside(region, part, [region.position(each) for each in inner])
        return ir.Unary(UnaryOp.IDENTITY, load, float32)

    def cell_inside(self, region: Region, part: int, inside: Iterable[AxisIndex]) -> ir.Load:
        """Return the load of one part of a factor, by its indices inside of the tile."""
        outer = (region.position(axis) for axis in self._outer)
        return ir.Load(self.node, (*outer, FixedIndex(part), *inside), self.dtype)

    def fill(self, region: Region) -> tuple[ir.Stmt, ...]:
        leaves = packing_order(self.tree, self.pack)
        outer = [leaf for leaf in leaves if leaf not in self.tiling.leaves]
        zeros = [
            each
            for axis in (self.cell_axis, self.tiling.steps)
            for each in self._clear_remainder(axis, outer, region)
        ]
        tiles = self.emission.loops(outer, region, self._fill_tile, unrolls=False)
        return (ir.Allocate(self.node, ir.Scope.KERNEL), *zeros, *tiles)

    def _clear_remainder(
        self, axis: str, outer: Sequence[str], region: Region
    ) -> tuple[ir.Stmt, ...]:
        """Return the statements that clear the padding of the last tile along an axis."""
        remainder = self.tiling.remainder(region, axis)
        if not remainder:
            return ()
        others = [leaf for leaf in outer if root_of(leaf) != root_of(axis)]
        numbers = [leaf for leaf in outer if root_of(leaf) == root_of(axis)]

        def tile(inner: Region) -> tuple[ir.Stmt, ...]:
            for leaf in numbers:
                run = inner.ranges(leaf)[-1]
                inner = inner.bind(leaf, run, FixedIndex(run.count - 1))
            starts = {self.cell_axis: 0, self.tiling.steps: 0, axis: remainder}
            first, terms = starts[self.cell_axis], starts[self.tiling.steps]
            cell, term, pair = (fresh_var(name) for name in ("x", "k", "p"))
            ends: tuple[tuple[LoopVar, int, int], ...]
            rows, columns, depth = self.tiling.tile.shape
            if self.is_row_operand:
                ends = ((cell, first, rows), (term, terms, depth))
            else:
                ends = ((term, terms // 2, depth // 2), (cell, first, columns), (pair, 0, 2))
            inside = [VarIndex(var) for var, _, _ in ends]
            stmts: tuple[ir.Stmt, ...] = tuple(
                ir.Store(self.node, each.indices, ir.Const(0.0, self.dtype))
                for each in (
                    self.cell_inside(inner, part, inside) for part in range(self.tiling.tile.parts)
                )
            )
            for var, start, stop in reversed(ends):
                stmts = (ir.For(var, start, stop, ir.Block(stmts)),)
            return stmts

        return self.emission.loops(others, self.tiling.pad(region), tile, unrolls=False)

    def _fill_tile(self, region: Region) -> tuple[ir.Stmt, ...]:
        """Return the statements that fill the tiles of one block."""
        source = _TileSource(self, region)
        is_narrow = self.factor.dtype is self.dtype
        has_cell_rows = self._is_contiguous_along(self.cell_axis)
        has_term_rows = self._is_contiguous_along(self.tiling.steps)
        if self.is_row_operand:
            if is_narrow and has_term_rows:
                return source.loop_over_rows(source.cells, source.terms, source.copy_element)
            is_transposed, parts = has_cell_rows, source.parts
            outer, inner = source.cells, source.terms
        else:
            if is_narrow and has_cell_rows:
                return source.loop_over_pairs(source.copy_pair)
            if is_narrow and has_term_rows:
                squares = source.transpose_squares(
                    source.terms // 2, source.cells, source.copy_pair
                )
                if squares and source.terms == self.tiling.tile.shape[2]:
                    return squares
            is_transposed, parts = has_term_rows, source.parts
            outer, inner = source.terms, source.cells
        transposed = source.transpose_squares(outer, inner, source.widen) if is_transposed else ()
        filling = (*transposed, *parts(is_widened=bool(transposed)))
        return (ir.Block((ir.Allocate(self.wide, ir.Scope.KERNEL), *filling)),)

    def _is_contiguous_along(self, axis: str) -> bool:
        """Return True if the operand is loaded from memory and contiguous along an axis."""
        match self.factor:
            case ir.Load(_, indices) | ir.Unary(UnaryOp.IDENTITY, ir.Load(_, indices)):
                pass
            case _:
                return False
        var = self.tiling.tree.axes[root_of(axis)].var
        if not indices or any(var in variables(index) for index in indices[:-1]):
            return False
        return (1, var) in as_affine(indices[-1])[0]


class _TileSource:
    """The operand of a buffer inside of one tile."""

    def __init__(self, buffer: AmxBuffer, region: Region) -> None:
        self._buffer = buffer
        self._region = region
        (self._run,) = region.ranges(buffer.cell_axis)
        self.cells = self._run.count
        self.terms = region.extents[buffer.tiling.steps]
        _, self._lanes, _ = buffer.tiling.tile.shape

    def loop_over_rows(self, outer: int, inner: int, body: _Body) -> tuple[ir.Stmt, ...]:
        """Return loops over rows and, inside, over lanes."""
        if not outer:
            return ()
        var = fresh_var("x")
        inside = self._loop_over_lanes(inner, lambda lane: body(VarIndex(var), lane))
        return (ir.For(var, 0, outer, ir.Block(inside)),)

    def _loop_over_lanes(
        self, count: int, body: Callable[[AxisIndex], tuple[ir.Stmt, ...]]
    ) -> tuple[ir.Stmt, ...]:
        """Return a loop in vectors, the last of which has the remainder."""
        stmts: list[ir.Stmt] = []
        for start in range(0, count, self._lanes):
            lane, lanes = fresh_var("l"), min(self._lanes, count - start)
            inside = ir.Block(body(affine([(1, lane)], start)))
            stmts.append(ir.For(lane, 0, lanes, inside, ir.AxisKind.VECTOR))
        return tuple(stmts)

    def transpose_squares(self, outer: int, inner: int, body: _Body) -> tuple[ir.Stmt, ...]:
        """Return loops over transposed squares of vectors; none if there is a remainder."""
        side = self._lanes
        if outer % side or inner % side:
            return ()
        stmts: list[ir.Stmt] = []
        for start, column in product(range(0, outer, side), range(0, inner, side)):
            row, lane = fresh_var("x"), fresh_var("l")
            inside = ir.Block(body(affine([(1, row)], start), affine([(1, lane)], column)))
            across = ir.For(lane, 0, side, inside, ir.AxisKind.VECTOR)
            stmts.append(ir.For(row, 0, side, ir.Block((across,)), ir.AxisKind.VECTOR))
        return tuple(stmts)

    def _factor(self, cell: AxisIndex, term: AxisIndex) -> ir.Expr:
        tiling = self._buffer.tiling
        point = self._region.bind(self._buffer.cell_axis, self._run, cell)
        nothing = FixedIndex(0)
        counted = {tiling.steps: term, tiling.tile.terms: nothing, tiling.pair: nothing}
        point = replace(point, numbers={**point.numbers, **counted})
        return substitute_in_expr(self._buffer.factor, point.substitution())

    def _store(self, value: ir.Expr, part: int, *inside: AxisIndex) -> ir.Store:
        cell = self._buffer.cell_inside(self._region, part, inside)
        return ir.Store(cell.node, cell.indices, value)

    def copy_element(self, row: AxisIndex, term: AxisIndex) -> tuple[ir.Stmt, ...]:
        return (self._store(self._factor(row, term), 0, row, term),)

    def copy_pair(self, number: AxisIndex, lane: AxisIndex, count: int = 2) -> tuple[ir.Stmt, ...]:
        """Return the copy of a pair of numbers of a tile of columns."""
        return self._pair(
            lambda term: self._store(
                self._factor(lane, affine_sum((2, number), (1, term))), 0, number, lane, term
            ),
            count,
        )

    def _pair(self, stored: Callable[[AxisIndex], ir.Store], count: int) -> tuple[ir.Stmt, ...]:
        if count == 1:
            return (stored(FixedIndex(0)),)
        pair = fresh_var("p")
        return (ir.For(pair, 0, 2, ir.Block((stored(VarIndex(pair)),)), ir.AxisKind.DOT),)

    def loop_over_pairs(self, body: Callable[..., tuple[ir.Stmt, ...]]) -> tuple[ir.Stmt, ...]:
        """Return loops over pairs and, inside, over lanes."""
        whole = self.loop_over_rows(self.terms // 2, self.cells, body)
        if self.terms % 2 == 0:
            return whole
        last = FixedIndex(self.terms // 2)
        return (*whole, *self._loop_over_lanes(self.cells, lambda lane: body(last, lane, 1)))

    def widen(self, outer: AxisIndex, inner: AxisIndex) -> tuple[ir.Stmt, ...]:
        """Return the copy of one number into the buffer of one tile."""
        is_row_operand = self._buffer.is_row_operand
        value = self._factor(outer, inner) if is_row_operand else self._factor(inner, outer)
        return (ir.Store(self._buffer.wide, (outer, inner), as_format(value, float32)),)

    def parts(self, *, is_widened: bool) -> tuple[ir.Stmt, ...]:
        """Return the statements that round numbers to narrow parts, each of the remainder of those
        before.

        Args:
            is_widened: True if the numbers are in the buffer of one tile already.
        """
        count = self._buffer.tiling.tile.parts

        def row(row: AxisIndex, term: AxisIndex) -> tuple[ir.Stmt, ...]:
            stmts = () if is_widened else self.widen(row, term)
            for part in range(count):
                value = self._round(ir.Load(self._buffer.wide, (row, term), float32))
                stmts += (self._store(value, part, row, term),)
                stmts += self._subtract_rounded(row, term) if part + 1 < count else ()
            return stmts

        def pair(number: AxisIndex, lane: AxisIndex, both: int = 2) -> tuple[ir.Stmt, ...]:
            terms = [affine_sum((2, number), (1, FixedIndex(at))) for at in range(both)]
            stmts: tuple[ir.Stmt, ...] = ()
            if not is_widened:
                stmts = tuple(each for term in terms for each in self.widen(term, lane))

            def stored(own: AxisIndex, part: int) -> ir.Store:
                term = affine_sum((2, number), (1, own))
                value = self._round(ir.Load(self._buffer.wide, (term, lane), float32))
                return self._store(value, part, number, lane, own)

            for part in range(count):
                stmts += self._pair(partial(stored, part=part), both)
                if part + 1 < count:
                    stmts += tuple(
                        each for term in terms for each in self._subtract_rounded(term, lane)
                    )
            return stmts

        return (
            self.loop_over_rows(self.cells, self.terms, row)
            if self._buffer.is_row_operand
            else self.loop_over_pairs(pair)
        )

    def _round(self, expr: ir.Expr) -> ir.Expr:
        return ir.Unary(UnaryOp.IDENTITY, expr, self._buffer.dtype)

    def _subtract_rounded(self, *indices: AxisIndex) -> tuple[ir.Stmt, ...]:
        """Return the statement that subtracts the nearest narrow number."""
        cell = ir.Load(self._buffer.wide, indices, float32)
        remainder = ir.Binary(BinaryOp.SUB, cell, as_format(self._round(cell), float32), float32)
        return (ir.Store(self._buffer.wide, indices, remainder),)


_Body = Callable[[AxisIndex, AxisIndex], tuple[ir.Stmt, ...]]
"""Return the statements inside of two loops."""


class TileProducts(Accumulation):
    """Products of tile registers: for each step of the reduction, one of each pair of parts."""

    outlines_epilogue = True

    @classmethod
    def conditions(cls, state: NestState) -> Conditions:
        reduction, tile = state.nest.reduction, state.tile
        assert tile is not None
        yield "Tiles need a reduction.", reduction is not None
        assert reduction is not None
        tiling = _tiling(state)
        yield (
            "Rows, columns and pairs of terms of whole tiles are the innermost loops.",
            tiling.are_innermost(state.order, state.kinds),
        )
        yield (
            "A tile multiplies an operand with rows and one with columns, into float32.",
            tiling.multiplies(reduction),
        )
        early = [each for each in state.packs if each.inside not in state.inside]
        yield (
            "Tiles need both operands packed outside of the reduction, which has fused "
            "products and runs around all rows and columns of a tile.",
            len(early) >= 2 and state.is_fused and state.sum_loop not in tiling.leaves[1:],
        )

    def whole(self, region: Region) -> Region:
        return _tiling(self.state).pad(region)

    def sums(self, registers: Accumulators, region: Region) -> tuple[ir.Stmt, ...]:
        inside, loops = self.state.inside, self.emission.loops
        at = next(k for k, name in enumerate(inside) if name in registers.axes)

        def product(point: Region, parts: tuple[int, int]) -> tuple[ir.Stmt, ...]:
            return (registers.update(point, self._term(point, *parts)),)

        def products(inner: Region) -> tuple[ir.Stmt, ...]:
            bodies = (partial(product, parts=each) for each in _tiling(self.state).products)
            return tuple(stmt for body in bodies for stmt in loops(inside[at:], inner, body))

        return loops(inside[:at], registers.region, products)

    def _term(self, region: Region, row_part: int, column_part: int) -> ir.Expr:
        """Return the product of a part of each operand."""
        factors: dict[int, ir.Expr] = {}
        for operand, buffer in self.buffers.items():
            assert isinstance(buffer, AmxBuffer)
            part = row_part if buffer.is_row_operand else column_part
            factors[operand] = buffer.cell(region, part)
        return with_factors(self.reduction.term, factors)
