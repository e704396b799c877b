"""Schedules of reductions with lanes along an axis of cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd, prod
from operator import itemgetter

from ocannl_core.fast_dataclass import replace
from ocannl_core.kernels.transforms import (
    AccumulateAt,
    Order,
    Pack,
    Pair,
    Schedule,
    Split,
    Transform,
)
from ocannl_core.schedule.heuristics.cost_model import (
    LATENCY,
    LEAST_GATHERED,
    PER_CYCLE,
    ReductionModel,
    ReductionOperand,
    RegisterTile,
    are_even,
)
from ocannl_core.schedule.heuristics.tiling_parameters import (
    BlockedAxis,
    PackedOperand,
    ThreadedAxis,
    TilingParameters,
    blocks_of,
    groups_of,
    kinds_of,
    lane_loops,
    needs_shares,
)

_LEAST_REUSE = 32
"""Operands of which a cell is used less often than this are not packed."""
_LEAST_GATHERING = 192
"""Vectors that are used less often than this are not copied only to lie closer together."""
_LEAST_CONVERTED = 3
"""Vectors in another format that fewer blocks of rows than this use are not copied."""
_LEAST_PAIRED = 8
"""Sums of fewer terms than these are not worth pairs."""
_LEAST_SUM = 64
"""Registers that collect fewer terms than this are stored too often."""
_STREAMED_SUM = 8
"""As many rows of memory are read side by side; registers collect as many terms then."""
_LEAST_BLOCKS = 2
"""Shares of rows have as many blocks of registers at least, or equal blocks would be too small."""
_LINE_BYTES = 64
_ALIASED_BYTES = 4096
"""Cells as far apart as this share a place of the nearest cache, which has room for a few lines."""


class VectorisedOutput:
    """The schedule of a nest whose lanes run along an axis of cells."""

    def __init__(self, model: ReductionModel, lane: str, form: TilingParameters) -> None:
        self._model = model
        self._form = form
        tile = model.tile(lane)
        tile = replace(tile, vectors=form.vectors or tile.vectors, rows=form.rows or tile.rows)
        self._height = tile.rows
        self._axis = lane
        width = min(model.lanes, model.extents[lane])
        self._block = min(width * tile.vectors, model.extents[lane])
        self._blocks = -(-model.extents[lane] // self._block)
        splits: list[Transform] = []
        self._reduced = self._reduced_order()
        self._sums = self._outer_sums()
        self._steps = model.size((*model.shifting, *self._reduced))
        self._cut = self._cut_reduction(splits)
        along: list[Transform] = []
        self._group = self._together()
        self._lanes = groups_of(along, model, lane, self._block, self._group)
        lanes = lane_loops(along, self._lanes.inner, self._block, width)
        self._sums_lead = self._leads_with_sums(tile)
        of_rows: list[Transform] = []
        self._share = self._shared_rows(of_rows, tile)
        self._rows = self._row_parts(of_rows, tile)
        is_cut = self._cut is not None or self._sums
        chains = None if is_cut else self._chains(splits, tile)
        self._has_chains = chains is not None
        self._fetches = model.has_far_cells(in_pieces=bool(self._pieces_of_sums()))
        if form.fetching is not None:
            self._fetches = form.fetching
        self._pair = self._paired(splits)
        kept = [part.inner for part in self._rows]
        self._kept = [*kept, *([chains] if chains is not None else []), *lanes]
        self._splits = (*along, *of_rows, *splits)

    def schedule(self) -> Schedule:
        """Returns the transforms, splits first."""
        over = (self._reduced or self._kept)[0]
        return (
            *self._splits,
            Order(self._order()),
            *kinds_of(self._model, self._kept),
            *([Pair(self._pair)] if self._pair is not None else []),
            *self._packs(),
            AccumulateAt(over, self._model.is_fused, self._fetches),
        )

    def _order(self) -> tuple[str, ...]:
        model, lanes = self._model, self._lanes
        rows = {part.axis[0]: part.number for part in self._rows}
        if self._share is not None:
            rows.setdefault(self._share.axis, self._share.inner)
        numbers = (
            None if self._lanes_lead() else lanes.outside,
            *(rows.get(name, name) for name in self._middle()),
            lanes.inside,
        )
        loops = [name for name in numbers if name is not None]
        pair = [self._pair] if self._pair is not None else []
        return (*self._around(), *loops, *model.shifting, *self._reduced, *self._kept, *pair)

    def _around(self) -> tuple[str, ...]:
        """Returns the loops outside of the blocks of rows, but for that over blocks of lanes where
        it is right outside of them.
        """
        outer = self._model.outer(self._axis)
        sums = self._pieces_of_sums()
        share = [self._share.number] if self._share is not None else []
        if self._sums_lead:
            loops = (*share, *sums, *outer)
        else:
            loops = (*outer[:1], *share, *outer[1:], *sums)
        outside = self._lanes.outside
        return (outside, *loops) if outside is not None and self._lanes_lead() else loops

    def _pieces_of_sums(self) -> tuple[str, ...]:
        """Returns the loops over pieces of the sums."""
        number = self._cut.number if self._cut is not None else None
        return (*self._sums, *([number] if number is not None else []))

    def _lanes_lead(self) -> bool:
        """True if blocks of lanes are outside of the pieces of sums: several threads can share
        them, and the partial results of a block stay in the cache.
        """
        return (
            self._lanes.outside is not None
            and bool(self._pieces_of_sums())
            and not self._model.outer(self._axis)
        )

    def _slides(self, outer: Sequence[str]) -> bool:
        """True if axes move vector operands over cells that sums run over anyway."""
        model = self._model
        return all(
            any(operand.slides(name, each, model.extents) for each in model.reduced)
            for operand in model.vector_operands(self._axis)
            for name in outer
            if model.extents[name] > 1
        )

    # ----- parts ----------------------------------------------------------------------------

    def _row_parts(self, splits: list[Transform], tile: RegisterTile) -> list[BlockedAxis]:
        """Returns the row axes, cut so that a block has as many rows as it has registers."""
        parts: list[BlockedAxis] = []
        for name, size in self._row_sizes(tile).items():
            share = self._share if self._share is not None and self._share.axis == name else None
            extent = self._model.extents[name] if share is None else share.size
            evenly = are_even(extent, size, tile.vectors * tile.rows // size)
            if share is None:
                parts.append(blocks_of(splits, self._model, name, size, evenly))
            elif size < share.size:
                splits.append(Split(share.inner, size, evenly))
                parts.append(BlockedAxis(share.inner, f"{share.inner}0", f"{share.inner}1"))
            else:
                parts.append(BlockedAxis(share.inner, None, share.inner))
        return parts

    def _row_sizes(self, tile: RegisterTile) -> dict[str, int]:
        """Returns the row axes of a block and how many iterations of each it has."""
        sizes: dict[str, int] = {}
        left = tile.rows
        for name in reversed(self._model.tile_rows(self._axis)):
            sizes[name] = min(left, self._model.extents[name])
            left = max(1, left // sizes[name])
        return dict(reversed(sizes.items()))

    # ----- shares of threads ----------------------------------------------------------------

    def _leads_with_sums(self, tile: RegisterTile) -> bool:
        """True if pieces of sums are outside of all axes of cells but for shares of threads: what
        slides stays in the cache then. Threads need something else to share.
        """
        model = self._model
        if not self._slides(model.outer(self._axis)):
            return False
        most = max(self._most_shares(tile).values(), default=1)
        return model.threads == 1 or most >= model.threads

    def _shared_rows(self, splits: list[Transform], tile: RegisterTile) -> ThreadedAxis | None:
        """Returns an axis of rows of which threads have equal shares, outside of pieces of sums, if
        what is outside of these cannot be dealt out equally.

        The sums of each cell are the same: bits do not depend on the number of threads.
        """
        model, outer = self._model, self._model.outer(self._axis)
        outside = () if self._sums_lead else tuple(model.extents[name] for name in outer)
        if self._lanes_lead():
            outside = (-(-self._blocks // self._group),)
        most = self._most_shares(tile)
        # loops right inside of the outermost ones are dealt out, too
        is_even = not needs_shares(prod(outside[:2]), model.threads)
        if is_even or not most or not self._pieces_of_sums():
            return None
        needed = model.threads // gcd(prod(outside[:1]), model.threads)
        # twice as many: nobody waits for long if a thread is late
        counts = (needed,) if self._repeats_copies() else (2 * needed, needed)
        fitting = [(name, count) for count in counts for name in most if most[name] >= count]
        fitting = fitting or [max(most.items(), key=itemgetter(1))]
        # equal shares have one code
        name, count = min(fitting, key=lambda each: model.extents[each[0]] % each[1] > 0)
        size = -(-model.extents[name] // count)
        splits.append(Split(name, size, evenly=True))
        return ThreadedAxis(name, size)

    def _repeats_copies(self) -> bool:
        """True if copies of vectors are made inside of pieces of sums, by every share again."""
        vectors = self._model.vector_operands(self._axis)
        return any(self._can_pack_vectors(each) and self._is_packed(each) for each in vectors)

    def _most_shares(self, tile: RegisterTile) -> dict[str, int]:
        """Returns the axes that can be outside of pieces of sums, and into how many shares of a few
        blocks of registers they can be cut.
        """
        model = self._model
        sizes = self._row_sizes(tile)
        most = {
            name: model.extents[name] // (_LEAST_BLOCKS * sizes[name])
            if name in sizes
            else model.extents[name]
            for name in self._middle()
        }
        return {name: count for name, count in most.items() if count > 1}

    def _middle(self) -> list[str]:
        """Returns the axes of cells that run over blocks of registers that share vectors."""
        outer = self._model.outer(self._axis)
        return [name for name in self._model.cells if name != self._axis and name not in outer]

    def _reduced_order(self) -> list[str]:
        """Returns the reduced axes with one inside along which spread operands are contiguous."""
        model = self._model
        names = list(model.reduced)
        spread = [each for each in model.operands if self._axis not in each.axes]
        for name in reversed(names):
            if model.extents[name] > 1 and any(each.stride(name) == 1 for each in spread):
                names.remove(name)
                return [*names, name]
        return names

    def _outer_sums(self) -> list[str]:
        """Returns the reduced axes outside of the cells: as many as it takes for what the vectors
        of a block run over to stay in the cache, if blocks of rows use it again.
        """
        model = self._model
        if not model.nest.holds_partial_results or model.shifting or not self._reduced:
            return []
        count = self._form.outside
        if count is None:
            count = 0
            while (
                self._reuses_vectors()
                and count + 1 < len(self._reduced)
                and model.size(self._reduced[count:]) > self._most_steps() * 3 // 2
                and 2 * model.size(self._reduced[count + 1 :]) > self._most_steps()
            ):
                count += 1
        sums, self._reduced = self._reduced[:count], self._reduced[count:]
        return sums

    def _reuses_vectors(self) -> bool:
        """True if blocks of rows use what the vectors run over so often that it is to stay in the
        cache.
        """
        vectors = self._model.vector_operands(self._axis)
        reuse = min((self._model.reuse(operand) for operand in vectors), default=1)
        return reuse >= _LEAST_GATHERING // 4

    def _cut_reduction(self, splits: list[Transform]) -> BlockedAxis | None:
        """Returns the first of the reduced axes, cut so that the vectors of a block stay in the
        cache.
        """
        model = self._model
        if not model.nest.holds_partial_results or not self._reduced:
            return None
        name, *rest = self._reduced
        if rest and (model.shifting or not self._reuses_vectors()):
            return None
        extent, steps = model.extents[name], model.size(rest)
        pieces = self._form.pieces
        if pieces is None and not rest:
            pieces = self._streamed_pieces(name)
        pieces = pieces or self._pieces(extent, steps)
        if pieces == 1:
            return None
        size = -(-extent // pieces)
        if model.has_pairs and not rest:
            size += size % 2
        part = blocks_of(splits, model, name, size, evenly=False)
        self._reduced = [part.inner, *rest]
        self._steps = size * steps
        return part

    def _streamed_pieces(self, name: str) -> int | None:
        """Returns into how many pieces an axis is cut for vectors that are used once to be read in
        the order of memory: all cells of a few rows at a time. None if that is not the point.
        """
        model, lane = self._model, self._axis
        if self._blocks == 1 or not model.outer(lane):
            return None
        vectors = model.vector_operands(lane)
        is_read_once = all(
            model.reuse(each) == 1 and each.stride(name) * each.nbytes >= _ALIASED_BYTES
            for each in vectors
        )
        nbytes = model.extents[lane] * max(each.nbytes for each in vectors)
        if not is_read_once or nbytes > model.cache(0):
            return None
        return -(-model.extents[name] // _STREAMED_SUM)

    def _most_steps(self) -> int:
        """Returns over how many steps of a sum the vectors of a block stay in the cache.

        In a copy they lie together; elsewhere they share its places unevenly.
        """
        nbytes = max(operand.nbytes for operand in self._model.operands)
        if self._model.has_pairs:
            nbytes //= 2
        part = 2 if self._has_copies() else 8
        return max(_LEAST_SUM, self._model.cache(1) // part // (self._block * nbytes))

    def _has_copies(self) -> bool:
        """True if all vector operands are read from copies, which all blocks of rows share."""
        model = self._model
        return not model.outer(self._axis) and all(
            self._can_pack_vectors(each) and self._is_packed(each)
            for each in model.vector_operands(self._axis)
        )

    def _pieces(self, extent: int, steps: int) -> int:
        """Returns into how many pieces the model cuts a reduced axis with so many steps in each of
        its iterations.
        """
        most = self._most_steps()
        if extent * steps <= most * 3 // 2:
            return 1
        return min(extent, _equally(extent, -(-extent * steps // most)))

    def _together(self) -> int:
        """Returns how many blocks of lanes run inside of a block of rows.

        What all blocks of lanes read comes from afar once for each group of them, and the vectors
        of a group stay in a cache that is large enough for them.
        """
        if self._form.together is not None:
            return max(1, min(self._form.together, self._blocks))
        model = self._model
        vectors = model.vector_operands(self._axis)
        if self._blocks == 1 or not self._has_copies():
            return 1
        shared = [each for each in model.operands if self._axis not in each.axes]
        if sum(map(model.nbytes, shared)) <= model.cache(1) // 2:
            return 1
        nbytes = sum(each.nbytes for each in vectors) * self._steps * self._block
        most = model.cache_of_groups() // nbytes
        if most < 2:
            return 1
        fewest = -(-self._blocks // most)
        return -(-self._blocks // _equally(self._blocks, fewest))

    def _chains(self, splits: list[Transform], tile: RegisterTile) -> str | None:
        """Returns the loop over accumulators of one cell, if a block would wait for its results."""
        model = self._model
        needed = int(LATENCY * PER_CYCLE) // (tile.vectors * tile.rows)
        if needed < 2 or not self._reduced or model.shifting:
            # what moves over the cells uses vectors again, which pays if they are packed
            return None
        name = max(self._reduced, key=lambda each: model.extents[each])
        if model.extents[name] < 4 * needed:
            return None
        splits.append(Split(name, needed))
        self._reduced = [f"{each}0" if each == name else each for each in self._reduced]
        return f"{name}1"

    def _paired(self, splits: list[Transform]) -> str | None:
        """Returns the loop over two steps of a sum that are one instruction, if there is one and
        both operands have their pairs together, in memory or in a copy.
        """
        model = self._model
        if not model.has_pairs or self._has_chains or not self._reduced or model.lanes < 4:
            return None
        name = self._reduced[-1]
        if model.extents[name[0]] < _LEAST_PAIRED:
            return None
        if not all(self._has_pairs(operand, name[0]) for operand in model.operands):
            return None
        splits.append(Split(name, 2))
        self._reduced[-1] = f"{name}0"
        return f"{name}1"

    def _has_pairs(self, operand: ReductionOperand, axis: str) -> bool:
        """True if neighbours along an axis lie together, in memory or in a copy that pays."""
        if self._axis in operand.axes:
            return self._can_pack_vectors(operand) and self._model.reuse(operand) >= _LEAST_REUSE
        if operand.is_load and operand.stride(axis) == 1:
            return True
        return len(self._rows) == 1 and self._can_pack_rows(operand, self._rows[0])

    # ----- packing --------------------------------------------------------------------------

    def _packs(self) -> Iterator[Transform]:
        if self._has_chains:
            return  # blocks with few rows do not use anything often
        for operand in self._model.operands:
            if self._axis in operand.axes:
                yield from self._packed_vectors(operand)
            elif len(self._rows) == 1 and (self._blocks > 1 or operand.is_converted):
                yield from self._packed_rows(operand, self._rows[0])

    def _packed_vectors(self, operand: ReductionOperand) -> Iterator[Transform]:
        """Yields the packing of the vectors that a block of lanes needs."""
        lanes, model = self._lanes, self._model
        around = (self._around() or (None,))[-1]
        inside = around if self._lanes_lead() else lanes.outside or around
        if not self._can_pack_vectors(operand):
            return
        loops = [*model.shifting, *self._reduced]
        used = [name for name in loops if name[0] in operand.axes]
        if self._pair is not None or self._is_packed(operand):
            panels = [lanes.inside] if lanes.inside is not None else []
            yield Pack(
                operand.position, inside, (*panels, *used, lanes.inner, *self._pairs_of(operand))
            )

    def _can_pack_vectors(self, operand: ReductionOperand) -> bool:
        """True if no loop between those over blocks of lanes and the sum moves an operand."""
        outer = self._model.outer(self._axis)
        return not any(
            name in operand.axes
            for name in self._model.cells
            if name != self._axis and name not in outer
        )

    def _pairs_of(self, operand: ReductionOperand) -> list[str]:
        """Returns the innermost axis of a copy of pairs."""
        is_used = self._pair is not None and self._pair[0] in operand.axes
        return [self._pair] if is_used and self._pair is not None else []

    def _widens(self, operand: ReductionOperand) -> bool:
        """True if a copy of an operand saves conversions."""
        return operand.is_converted and self._pair is None

    def _is_packed(self, operand: ReductionOperand) -> bool:
        """True if a vector operand is read better from a copy."""
        model = self._model
        decided = self._form.copy(operand.position)
        if decided is not None:
            return decided is not PackedOperand.NONE
        is_apart = operand.stride(self._axis) != 1
        if model.reuse(operand) < (LEAST_GATHERED if is_apart else _LEAST_REUSE):
            return False
        if operand.is_converted and model.reuse(operand) < _LEAST_CONVERTED * self._height:
            return is_apart
        if not operand.is_load or operand.is_converted or is_apart:
            return True
        steps = [operand.stride(name) for name in model.reduced if model.extents[name] > 1]
        farthest = max(steps, default=0)
        spread = farthest * operand.nbytes * model.size(model.reduced)
        is_spread = spread > model.cache(0) and min(steps, default=0) > self._block
        return is_spread and model.reuse(operand) >= _LEAST_GATHERING

    def _packed_rows(self, operand: ReductionOperand, row: BlockedAxis) -> Iterator[Transform]:
        """Yields the packing of an operand that is spread over lanes, if its rows are apart so that
        they compete for the same places in the cache.
        """
        if not self._can_pack_rows(operand, row):
            return
        if row.number is None and not (self._widens(operand) or self._pair is not None):
            return
        decided = self._form.copy(operand.position)
        copy = self._row_copy(operand, row) if decided is None else decided
        used = [name for name in self._reduced if name[0] in operand.axes]
        pairs = self._pairs_of(operand)
        needed = [name for name in self._around() if name[0] in operand.axes]
        # what all blocks of lanes use is copied for all of them
        is_early = self._lanes_lead() or not needed
        pieces, inside = (needed, None) if is_early else ([], needed[-1])
        if copy is PackedOperand.PANELS:
            if self._blocks > 1 and self._lanes.outside is None and row.number is not None:
                yield Pack(operand.position, row.number, (*used, row.inner, *pairs))
            else:
                numbers = [*pieces, *([row.number] if row.number is not None else [])]
                yield Pack(operand.position, inside, (*numbers, *used, row.inner, *pairs))
        elif copy is PackedOperand.ROWS:
            yield Pack(operand.position, inside, (*pieces, row.axis, *used, *pairs))

    def _can_pack_rows(self, operand: ReductionOperand, row: BlockedAxis) -> bool:
        """True if one axis of cells moves an operand."""
        model = self._model
        axis = row.axis[0]
        is_alone = all(name == axis for name in model.cells if name in operand.axes)
        is_still = not any(name in operand.axes for name in model.shifting)
        return axis in operand.axes and is_alone and is_still

    def _row_copy(self, operand: ReductionOperand, row: BlockedAxis) -> PackedOperand:
        """Returns how the model packs an operand that is spread over lanes."""
        model = self._model
        if self._pair is not None and (not operand.is_load or operand.stride(self._pair[0]) != 1):
            return PackedOperand.PANELS
        if self._widens(operand) and self._reduced:
            # one by one in the innermost loop, conversions take as long as products
            is_contiguous = operand.stride(self._reduced[-1][0]) == 1
            return PackedOperand.ROWS if is_contiguous else PackedOperand.PANELS
        if model.extents[row.axis[0]] < _LEAST_REUSE:
            return PackedOperand.NONE
        if model.extents[self._axis] < 4 * self._block:
            return PackedOperand.NONE
        if self._reduced and operand.stride(self._reduced[-1][0]) * operand.nbytes > _LINE_BYTES:
            # one line for each step of the sum, whose other cells the next rows need
            lines = model.size(name[0] for name in self._reduced) * _LINE_BYTES
            return PackedOperand.PANELS if lines > model.cache(1) // 4 else PackedOperand.NONE
        if not operand.is_load or self._rows_compete(operand, row):
            return PackedOperand.ROWS
        return PackedOperand.NONE

    def _rows_compete(self, operand: ReductionOperand, row: BlockedAxis) -> bool:
        """True if the rows of a block do not fit into the nearest cache together, because they are
        as far apart as the cells that share its places.
        """
        ways = max(4, self._model.cache(0) // _ALIASED_BYTES)
        apart = gcd(operand.stride(row.axis[0]) * operand.nbytes, _ALIASED_BYTES)
        return self._height * apart > (ways - 2) * _ALIASED_BYTES


def _equally(extent: int, fewest: int) -> int:
    """Returns into how many blocks an axis is cut: a few more than needed if they are equal then,
    since the code is there once.
    """
    return next((n for n in range(fewest, fewest + 3) if extent % n == 0), fewest)
