"""The schedule of products of matrices on processors with tile registers.

An instruction multiplies 16 rows of 32 terms by 16 columns, so a sum of products qualifies if one
operand has an axis of cells that the other one has not, and the other way round, and both share a
reduced axis. Four registers of sums, two tiles of rows by two of columns, use each tile of operands
twice:

    c[i, j] += a[i, k] * b[k, j]  -->  split j 512; split j1 32; split j11 16; split i 32; ...;
                                       tile i11 j111 k10; pair k11

The columns of a block and their terms stay in the second cache, which all rows go past. Numbers of
float32 are tiles of three parts, of which six products are needed; that and the copies have to pay,
which a model of cycles decides. Its numbers follow from products of matrices of 64 to 2048 rows
that were written by hand and timed on a processor with tiles; schedules have not been timed on one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from ocannl_core.dtypes import DType, bfloat16, float32
from ocannl_core.fast_dataclass import dataclass
from ocannl_core.kernels.nest import KernelNest
from ocannl_core.kernels.nodes import NodeInfos
from ocannl_core.kernels.transforms import (
    AccumulateAt,
    Order,
    Pack,
    Pair,
    Schedule,
    Split,
    TileMatrix,
    Transform,
    Unroll,
)
from ocannl_core.loopir.nodes import Expr, Load, Unary
from ocannl_core.loopir.traverse import walk
from ocannl_core.ops import UnaryOp
from ocannl_core.schedule.apply.matrix_tiles import LANES, ROWS, TERMS
from ocannl_core.schedule.heuristics.contraction import lane_candidates, model_reduction
from ocannl_core.schedule.heuristics.cost_model import ReductionModel, ReductionOperand, strides
from ocannl_core.target import Target

_PARTS = {bfloat16: 1, float32: 3}
"""Of how many numbers of bfloat16 those of a format are the sum."""
_PRODUCTS = {1: 1, 3: 6}
_MOST_TERMS = {1: 1024, 3: 512}
"""Longer sums run in pieces, so that the tiles of a block of rows and of columns stay near."""
_REGISTERS = 4
"""Tiles of sums; the others hold those of operands."""
_BLOCK_ROWS = 256
"""Rows of which cells hold partial results together."""
_REPLICATED = 2
"""Operands of which cells are in a copy more often than this are copied piece by piece."""

# cycles
_CALL = 400.0
_PRODUCT = 21.0
"""Of two tiles, which the processor starts every 16 cycles; the rest waits for memory."""
_COPIED = {1: 0.5, 3: 1.0}
"""For each number of an operand, by the number of its parts."""
_TURNED = 0.3
_STORED = 1.0
_SCATTERED = 6.0


@dataclass(frozen=True, slots=True)
class _TileAxes:
    """What a tile runs along.

    Attributes:
        rows: The operand with the rows.
        lanes: The operand with the columns.
        row: The axis of the rows.
        lane: The axis of the columns.
        term: The axis of the terms.
    """

    rows: ReductionOperand
    lanes: ReductionOperand
    row: str
    lane: str
    term: str


def tile_schedule(nest: KernelNest, nodes: NodeInfos, target: Target) -> Schedule | None:
    """Returns a schedule with tiles, or None where there are none or they do not pay.

    Args:
        nest: The nest.
        nodes: Extents and formats of its nodes.
        target: The processor.
    """
    tiled = _tiled(nest, nodes, target)
    axes = None if tiled is None else tiled.fastest()
    if tiled is None or axes is None or not tiled.pays(axes):
        return None
    return tiled.schedule(axes)


def tile_schedules(nest: KernelNest, nodes: NodeInfos, target: Target) -> Iterator[Schedule]:
    """Yields the schedules with tiles along whichever axes, whether they pay or not."""
    tiled = _tiled(nest, nodes, target)
    if tiled is not None:
        yield from map(tiled.schedule, tiled.candidates())


def _tiled(nest: KernelNest, nodes: NodeInfos, target: Target) -> _Tiled | None:
    """Returns tiles for a nest, if a processor has tiles that compute it."""
    reduction = nest.reduction
    if reduction is None or not reduction.may_pair or bfloat16 not in target.tile_products:
        return None
    model = model_reduction(nest, nodes, target)
    parts = None if model is None else _parts(nest)
    if model is None or parts is None or not model.is_fused or model.shifting:
        return None
    return _Tiled(model, nodes, parts)


def _parts(nest: KernelNest) -> int | None:
    """Returns into how many parts the factors are cut; None if tiles do not multiply them."""
    assert nest.reduction is not None
    if nest.reduction.dtype is not float32 or len(nest.reduction.factors) != 2:
        return None
    formats = {_format(factor) for factor in nest.reduction.factors}
    return _PARTS.get(formats.pop()) if len(formats) == 1 else None


def _format(factor: Expr) -> DType:
    """Returns the format of a factor before it is widened."""
    match factor:
        case Unary(UnaryOp.IDENTITY, arg) if arg.dtype.is_narrow:
            return arg.dtype
        case _:
            return factor.dtype


class _Tiled:
    """Tiles for one nest.

    Args:
        model: The nest as a processor sees it.
        nodes: Extents and formats of its nodes.
        parts: Into how many parts factors are cut.
    """

    def __init__(self, model: ReductionModel, nodes: NodeInfos, parts: int) -> None:
        self._model = model
        self._nodes = nodes
        self._parts = parts
        nest = model.nest
        self._stores = [strides(nest.axes, (store,), nodes) for store in nest.finish]

    def candidates(self) -> Iterator[_TileAxes]:
        """Yields the axes that tiles may run along."""
        model = self._model
        used = [name for name in model.extents if model.extents[name] > 1]
        cells = [name for name in used if name in model.cells]
        first, second = model.operands
        if any(name not in first.axes | second.axes for name in cells):
            return  # cells that are equal
        terms = [name for name in used if name in model.reduced]
        terms = [name for name in terms if name in first.axes & second.axes]
        for rows, lanes in ((first, second), (second, first)):
            of_rows = [name for name in cells if name in rows.axes - lanes.axes]
            of_lanes = [name for name in cells if name in lanes.axes - rows.axes]
            for row, lane, term in product(of_rows, of_lanes, terms):
                yield _TileAxes(rows, lanes, row, lane, term)

    def fastest(self) -> _TileAxes | None:
        """Returns the axes for which tiles take the fewest cycles, if there are any."""
        return min(self.candidates(), key=self.cycles, default=None)

    def pays(self, axes: _TileAxes) -> bool:
        """True if vectors take longer than tiles."""
        return self.cycles(axes) < self._model.cycles(lane_candidates(self._model)[0])

    def cycles(self, axes: _TileAxes) -> float:
        """Returns about how long the nest takes with tiles."""
        model = self._model
        sizes = {axes.row: ROWS, axes.lane: LANES, axes.term: TERMS}
        tiles = prod(-(-extent // sizes.get(name, 1)) for name, extent in model.extents.items())
        total = _CALL + _PRODUCT * _PRODUCTS[self._parts] * tiles
        for operand, along in ((axes.rows, axes.term), (axes.lanes, axes.lane)):
            each = _COPIED[self._parts] + (0.0 if operand.is_contiguous(along) else _TURNED)
            total += each * model.size(operand.axes)
        apart = sum(strides.get(axes.lane, 0) != 1 for strides in self._stores)
        cells = model.size(model.cells)
        return total + cells * (_STORED * self._pieces(axes) + _SCATTERED * apart)

    def _others(self, axes: _TileAxes) -> list[str]:
        """Returns the reduced axes beside that of the terms."""
        return [name for name in self._model.reduced if name != axes.term]

    def _pieces(self, axes: _TileAxes) -> int:
        """Returns into how many pieces the terms are cut."""
        model = self._model
        if not model.nest.holds_partial_results or model.size(self._others(axes)) > 1:
            return 1
        extent, most = model.extents[axes.term], _MOST_TERMS[self._parts]
        return 1 if extent <= most * 3 // 2 else -(-extent // most)

    # ----- the schedule ---------------------------------------------------------------------

    def schedule(self, axes: _TileAxes) -> Schedule:
        """Returns the transforms."""
        model, extents, cuts = self._model, self._model.extents, _Cuts([])
        rows, lanes = (_whole(extents[name], ROWS) for name in (axes.row, axes.lane))
        # what a block has less of along one axis, it has more of along the other one
        high, wide = min(2, rows // ROWS), min(2, lanes // LANES)
        high, wide = min(_REGISTERS // wide, rows // ROWS), min(_REGISTERS // high, lanes // LANES)
        size = _whole(-(-extents[axes.term] // self._pieces(axes)), TERMS)
        piece, term = cuts.cut(axes.term, _whole(extents[axes.term], TERMS), size)
        steps, term = cuts.cut(term, size, TERMS)
        splits = [Split(term, 2)]
        panel, lane = cuts.cut(axes.lane, lanes, self._columns(axes, size, wide * LANES))
        beside, lane = cuts.cut(lane, cuts.size, wide * LANES)
        column, lane = cuts.cut(lane, cuts.size, LANES)
        block, row = cuts.cut(axes.row, rows, _BLOCK_ROWS if piece else rows)
        above, row = cuts.cut(row, cuts.size, high * ROWS)
        line, row = cuts.cut(row, cuts.size, ROWS)

        used = [name for name in model.cells if extents[name] > 1]
        both = [name for name in used if name in axes.rows.axes & axes.lanes.axes]
        of_rows = [name for name in used if name in axes.rows.axes - {*both, axes.row}]
        of_lanes = [name for name in used if name in axes.lanes.axes - {*both, axes.lane}]
        ones = [name for name in model.cells if extents[name] == 1]
        sums = [*self._others(axes), *steps, *line, *column, row]
        blocks = [*of_rows, *block, *piece, *above]
        tile = (lane, f"{term}0", f"{term}1")
        order = (*ones, *both, *of_lanes, *panel, *blocks, *beside, *sums, *tile)
        is_repeated = bool(of_lanes or panel) and not self._is_replicated(axes.rows)
        packs = (
            _pack(axes.rows, order, [*both, *([] if is_repeated else blocks)], (row, term)),
            _pack(axes.lanes, order, [*both, *of_lanes, *panel], (tile[1], lane, tile[2])),
        )
        return (
            *cuts.splits,
            *splits,
            Order(order),
            *(Unroll(name) for name in (*line, *column)),
            TileMatrix(row, lane, tile[1], self._parts),
            Pair(tile[2]),
            *sorted(packs, key=lambda pack: pack.operand),
            AccumulateAt(sums[0], fused=True),
        )

    def _columns(self, axes: _TileAxes, terms: int, least: int) -> int:
        """Returns how many columns of so many terms stay in the second cache."""
        model = self._model
        nbytes = bfloat16.nbytes * self._parts * terms * model.size(self._others(axes))
        return max(1, model.cache(1) // 2 // (nbytes * least)) * least

    def _is_replicated(self, operand: ReductionOperand) -> bool:
        """True if a copy of an operand would be much larger than what is copied, as that of all
        windows of an image is.
        """
        assert self._model.nest.reduction is not None
        factor = self._model.nest.reduction.factors[operand.position]
        loads = [each for each in walk(factor) if isinstance(each, Load)]
        cells = sum(self._nodes[each.node].size for each in loads)
        return self._model.size(operand.axes) > _REPLICATED * cells


class _Cuts:
    """Splits of axes into blocks of whole tiles, as far as there are several of them.

    Attributes:
        splits: The transforms.
        size: The iterations of the part that was cut last, of whole tiles.
    """

    def __init__(self, splits: list[Transform]) -> None:
        self.splits = splits
        self.size = 0

    def cut(self, name: str, extent: int, size: int) -> tuple[list[str], str]:
        """Returns the loop over blocks of a part, if any, and what is inside of them."""
        self.size = min(extent, size)
        if size >= extent:
            return [], name
        self.splits.append(Split(name, size))
        return [f"{name}0"], f"{name}1"


def _pack(
    operand: ReductionOperand, order: Sequence[str], around: Sequence[str], tile: tuple[str, ...]
) -> Pack:
    """Returns the copy of an operand for each iteration of the last of some loops, in the order in
    which the others inside need it.
    """
    inside = around[-1] if around else None
    loops = order if inside is None else order[order.index(inside) + 1 :]
    leaves = [leaf for leaf in loops[:-4] if leaf[0] in operand.axes]
    return Pack(operand.position, inside, (*leaves, *tile))


def _whole(extent: int, size: int) -> int:
    """Returns an extent filled up to whole tiles."""
    return -(-extent // size) * size
