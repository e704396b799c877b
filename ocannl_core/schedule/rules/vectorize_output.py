"""Vectorize a reduction along an output axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd, prod
from operator import itemgetter

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.base.rounding import ceil_div
from ocannl_core.ir.kernels.transforms import (
    AccumulateAt,
    Order,
    Pack,
    Schedule,
    Splits,
    Transform,
    root_of,
    set_kinds,
)
from ocannl_core.ir.loops.axis_kinds import AxisKind
from ocannl_core.schedule.machine_model import (
    CACHE_LINE_BYTES,
    CACHE_WAY_BYTES,
    MEMORY_STREAMS,
    MIN_ACCUMULATED_TERMS,
    MIN_BLOCKING_REUSE,
    MIN_COMPACTION_REUSE,
    MIN_CONVERSION_REUSE,
    MIN_GATHER_REUSE,
    MIN_PACK_REUSE,
    OPERATIONS_PER_CYCLE,
    SECOND_CACHE_WAYS,
)
from ocannl_core.schedule.rules.reduction_model import (
    ReductionModel,
    ReductionOperand,
    RegisterTile,
    splits_evenly,
)
from ocannl_core.schedule.rules.tiling_parameters import (
    BlockedAxis,
    PackingLayout,
    ThreadedAxis,
    TilingParameters,
    is_unbalanced,
    split_axis,
    split_lanes,
    split_vector_axis,
    unroll_tile,
)

_MIN_TILES_PER_SHARE = 2
"""The register tiles of a thread's share of rows, at least: fewer could not be of equal heights."""


def vectorize_output(
    model: ReductionModel, vector_axis: str, parameters: TilingParameters
) -> Schedule:
    """Return a schedule in which neighboring results share a vector of accumulators."""
    return _OutputVectorizer(model, vector_axis, parameters).schedule()


class _OutputVectorizer:
    """The state of choosing the schedule of a reduction vectorized along an output axis."""

    def __init__(
        self, model: ReductionModel, vector_axis: str, parameters: TilingParameters
    ) -> None:
        self._model = model
        self._parameters = parameters
        tile = model.register_tile(vector_axis)
        tile = replace(
            tile, vectors=parameters.vectors or tile.vectors, rows=parameters.rows or tile.rows
        )
        self._vector_axis = vector_axis
        width = min(model.lanes, model.extents[vector_axis])
        self._block_size = min(width * tile.vectors, model.extents[vector_axis])
        self._block_count = ceil_div(model.extents[vector_axis], self._block_size)
        if not parameters.rows:
            tile = replace(tile, rows=self._rows_in_cache(tile.rows))
        self._tile_rows = tile.rows
        splits = Splits()
        self._reduced = model.ordered_reductions(vector_axis)
        self._outer_reductions = self._choose_outer_reductions()
        self._steps = model.iterations((*model.shifting_axes, *self._reduced))
        self._reduction = self._split_reduction(splits)
        vector_splits = Splits()
        self._vector_blocks = self._choose_vector_blocks()
        self._vector_loops = split_vector_axis(
            vector_splits, model, vector_axis, self._block_size, self._vector_blocks
        )
        lanes = split_lanes(vector_splits, self._vector_loops.inner, self._block_size, width)
        self._is_reduction_outermost = self._reduces_outermost(tile)
        row_splits = Splits()
        self._thread_axis = self._split_for_threads(row_splits, tile)
        self._rows = self._split_rows(row_splits, tile)
        is_split = self._reduction is not None or self._outer_reductions
        chains = None if is_split else self._split_chains(splits, tile)
        self._has_chains = chains is not None
        self._prefetches = (
            model.has_distant_epilogue(is_split=bool(self._reduction_block_loops()))
            or self._packs_distant_vectors()
        )
        if parameters.prefetches is not None:
            self._prefetches = parameters.prefetches
        self._dot = self._split_dot(splits)
        rows = [block.inner for block in self._rows]
        self._tile_loops = [*rows, *([chains] if chains is not None else []), *lanes]
        self._splits = (*vector_splits, *row_splits, *splits)

    def schedule(self) -> Schedule:
        """Return the transforms, splits first."""
        over = (self._reduced or self._tile_loops)[0]
        return (
            *self._splits,
            Order(self._order()),
            *unroll_tile(self._model, self._tile_loops),
            *set_kinds(AxisKind.DOT, () if self._dot is None else (self._dot,)),
            *self._packs(),
            AccumulateAt(over, self._model.is_fused, self._prefetches),
        )

    def _order(self) -> tuple[str, ...]:
        model, vector_loops = self._model, self._vector_loops
        rows = {root_of(block.axis): block.outer for block in self._rows}
        if self._thread_axis is not None:
            rows.setdefault(self._thread_axis.axis, self._thread_axis.inner)
        numbers = (
            None if self._has_outer_vector_loop() else vector_loops.outer,
            *(rows.get(name, name) for name in self._block_axes()),
            vector_loops.middle,
        )
        loops = [name for name in numbers if name is not None]
        dot = [self._dot] if self._dot is not None else []
        return (
            *self._outer_loops(),
            *loops,
            *model.shifting_axes,
            *self._reduced,
            *self._tile_loops,
            *dot,
        )

    def _outer_loops(self) -> tuple[str, ...]:
        """Return the loops outside of the blocks of rows, without the loop over blocks of the
        vector axis where it is right outside of them.
        """
        outer = self._model.outer_axes(self._vector_axis)
        reductions = self._reduction_block_loops()
        share = [self._thread_axis.outer] if self._thread_axis is not None else []
        if self._is_reduction_outermost:
            loops = (*share, *reductions, *outer)
        else:
            loops = (*outer[:1], *share, *outer[1:], *reductions)
        outside = self._vector_loops.outer
        return (outside, *loops) if outside is not None and self._has_outer_vector_loop() else loops

    def _reduction_block_loops(self) -> tuple[str, ...]:
        outer = self._reduction.outer if self._reduction is not None else None
        return (*self._outer_reductions, *([outer] if outer is not None else []))

    def _has_outer_vector_loop(self) -> bool:
        """Return True if blocks of the vector axis are outside of the blocks of the reduction:
        threads can share them, and the partial results of a block stay in the cache.
        """
        return (
            self._vector_loops.outer is not None
            and bool(self._reduction_block_loops())
            and not self._model.outer_axes(self._vector_axis)
        )

    def _slide_along_reduction(self, outer: Sequence[str]) -> bool:
        """Return True if axes move vector operands over elements that the reduction visits."""
        model = self._model
        return all(
            any(operand.slides_along(name, each, model.extents) for each in model.reduced_axes)
            for operand in model.vector_operands(self._vector_axis)
            for name in outer
            if model.extents[name] > 1
        )

    def _split_rows(self, splits: Splits, tile: RegisterTile) -> list[BlockedAxis]:
        """Return the row axes, split into the rows of a register tile."""
        blocks: list[BlockedAxis] = []
        for name, size in self._row_extents(tile).items():
            share = (
                self._thread_axis
                if self._thread_axis is not None and self._thread_axis.axis == name
                else None
            )
            extent = self._model.extents[name] if share is None else share.size
            evenly = splits_evenly(extent, size, tile.vectors * tile.rows // size)
            if share is None:
                blocks.append(split_axis(splits, self._model, name, size, evenly))
            elif size < share.size:
                parts = splits.cut(share.inner, size, evenly=evenly)
                blocks.append(BlockedAxis(share.inner, *parts))
            else:
                blocks.append(BlockedAxis(share.inner, None, share.inner))
        return blocks

    def _row_extents(self, tile: RegisterTile) -> dict[str, int]:
        """Return the row axes of a register tile with the iterations of each."""
        sizes: dict[str, int] = {}
        left = tile.rows
        for name in reversed(self._model.tile_row_axes(self._vector_axis)):
            sizes[name] = min(left, self._model.extents[name])
            left = max(1, left // sizes[name])
        return dict(reversed(sizes.items()))

    def _reduces_outermost(self, tile: RegisterTile) -> bool:
        """Return True if blocks of the reduction are outside of all output axes but for shares of
        threads: sliding windows stay in the cache then. Threads need another axis to share.
        """
        model = self._model
        if not self._slide_along_reduction(model.outer_axes(self._vector_axis)):
            return False
        max_shares = max(self._max_shares(tile).values(), default=1)
        return model.machine.threads == 1 or max_shares >= model.machine.threads

    def _split_for_threads(self, splits: Splits, tile: RegisterTile) -> ThreadedAxis | None:
        """Split an axis of rows into equal shares for threads, outside of the blocks of the
        reduction, if the loops outside of these cannot be dealt out equally.

        The terms of each result stay in the same order, so bits do not depend on the number of
        threads.
        """
        model, outer = self._model, self._model.outer_axes(self._vector_axis)
        outside = (
            () if self._is_reduction_outermost else tuple(model.extents[name] for name in outer)
        )
        if self._has_outer_vector_loop():
            outside = (ceil_div(self._block_count, self._vector_blocks),)
        max_shares = self._max_shares(tile)
        # the loops right inside of the outermost ones are dealt out, too
        is_even = not is_unbalanced(prod(outside[:2]), model.machine.threads)
        if is_even or not max_shares or not self._reduction_block_loops():
            return None
        needed = model.machine.threads // gcd(prod(outside[:1]), model.machine.threads)
        # twice as many, so that one late thread delays the others less
        counts = (needed,) if self._packs_in_every_share() else (2 * needed, needed)
        fitting = [
            (name, count) for count in counts for name in max_shares if max_shares[name] >= count
        ]
        fitting = fitting or [max(max_shares.items(), key=itemgetter(1))]
        # equal shares need no code for a remainder
        name, count = min(fitting, key=lambda each: model.extents[each[0]] % each[1] > 0)
        size = ceil_div(model.extents[name], count)
        return ThreadedAxis(name, size, *splits.cut(name, size, evenly=True))

    def _packs_in_every_share(self) -> bool:
        """Return True if every share packs vectors again, inside of blocks of the reduction."""
        model = self._model
        return any(
            each.runs == 1
            and model.can_pack_vectors(each, self._vector_axis)
            and self._should_pack(each)
            for each in model.vector_operands(self._vector_axis)
        )

    def _max_shares(self, tile: RegisterTile) -> dict[str, int]:
        """Return the axes that can be outside of blocks of the reduction, with the number of shares
        of at least `_MIN_TILES_PER_SHARE` register tiles that each can be split into.
        """
        model = self._model
        sizes = self._row_extents(tile)
        shares = {
            name: model.extents[name] // (_MIN_TILES_PER_SHARE * sizes[name])
            if name in sizes
            else model.extents[name]
            for name in self._block_axes()
        }
        return {name: count for name, count in shares.items() if count > 1}

    def _block_axes(self) -> list[str]:
        """Return the output axes that run over register tiles that share vectors."""
        outer = self._model.outer_axes(self._vector_axis)
        return [
            name
            for name in self._model.output_axes
            if name != self._vector_axis and name not in outer
        ]

    def _choose_outer_reductions(self) -> list[str]:
        """Return the reduced axes outside of the output axes: as many as it takes for the vectors
        of a block to stay in the cache, if blocks of rows reuse them.
        """
        model = self._model
        if not model.nest.holds_partial_results or model.shifting_axes or not self._reduced:
            return []
        count = self._parameters.outer_reductions
        if count is None:
            count = 0
            while (
                self._has_vector_reuse()
                and count + 1 < len(self._reduced)
                and model.iterations(self._reduced[count:]) > self._max_cached_steps() * 3 // 2
                and 2 * model.iterations(self._reduced[count + 1 :]) > self._max_cached_steps()
            ):
                count += 1
        reductions, self._reduced = self._reduced[:count], self._reduced[count:]
        return reductions

    def _has_vector_reuse(self) -> bool:
        """Return True if blocks of rows reuse vectors often enough to keep them in the cache."""
        vectors = self._model.vector_operands(self._vector_axis)
        reuse = min((self._model.reuse(operand) for operand in vectors), default=1)
        return reuse >= MIN_BLOCKING_REUSE

    def _split_reduction(self, splits: Splits) -> BlockedAxis | None:
        """Split the first of the reduced axes, so that the vectors of a block stay in the cache."""
        model = self._model
        if not model.nest.holds_partial_results or not self._reduced:
            return None
        name, *rest = self._reduced
        if rest and (model.shifting_axes or not self._has_vector_reuse()):
            return None
        extent, steps = model.extents[name], model.iterations(rest)
        blocks = self._parameters.reduction_blocks
        if blocks is None and not rest:
            blocks = self._streaming_blocks(name)
        blocks = blocks or self._count_reduction_blocks(extent, steps)
        if blocks == 1:
            return None
        size = ceil_div(extent, blocks)
        if model.dot_product is not None and not rest:
            size += -size % model.dot_product.terms
        block = split_axis(splits, model, name, size, evenly=False)
        self._reduced = [block.inner, *rest]
        self._steps = size * steps
        return block

    def _streaming_blocks(self, name: str) -> int | None:
        """Return the number of blocks of an axis such that vectors without reuse are read in the
        order of memory, a few rows at a time; None if they have reuse or are short.
        """
        model, vector_axis = self._model, self._vector_axis
        if self._block_count == 1 or not model.outer_axes(vector_axis):
            return None
        vectors = model.vector_operands(vector_axis)
        is_read_once = all(
            model.reuse(each) == 1 and each.stride(name) * each.nbytes >= CACHE_WAY_BYTES
            for each in vectors
        )
        nbytes = model.extents[vector_axis] * max(each.nbytes for each in vectors)
        if not is_read_once or nbytes > model.machine.l1_bytes:
            return None
        return ceil_div(model.extents[name], MEMORY_STREAMS)

    def _max_cached_steps(self) -> int:
        """Return the steps of a reduction over which the vectors of a block stay in the cache.

        Packed vectors are contiguous; others fill its sets unevenly.
        """
        nbytes = max(operand.nbytes for operand in self._model.operands)
        if self._model.dot_product is not None:
            nbytes = self._model.dot_product.dtype.nbytes
        machine = self._model.machine
        near = machine.l2_working_set if self._are_vectors_packed() else machine.l2_strided
        return max(MIN_ACCUMULATED_TERMS, near // (self._block_size * nbytes))

    def _are_vectors_packed(self) -> bool:
        """Return True if all vector operands are packed, and blocks of rows share the copies."""
        model = self._model
        return not model.outer_axes(self._vector_axis) and all(
            self._model.can_pack_vectors(each, self._vector_axis) and self._should_pack(each)
            for each in model.vector_operands(self._vector_axis)
        )

    def _count_reduction_blocks(self, extent: int, steps: int) -> int:
        """Return the number of blocks of a reduced axis, given the steps of an iteration."""
        limit = self._max_cached_steps()
        if extent * steps <= limit * 3 // 2:
            return 1
        return min(extent, _balance_blocks(extent, ceil_div(extent * steps, limit)))

    def _choose_vector_blocks(self) -> int:
        """Return the number of blocks of the vector axis that run inside of a block of rows.

        Broadcast operands are loaded from distant caches once for each such group, and the vectors
        of a group stay in a cache that has room for them.
        """
        if self._parameters.vector_blocks is not None:
            return max(1, min(self._parameters.vector_blocks, self._block_count))
        model = self._model
        vectors = model.vector_operands(self._vector_axis)
        if not vectors or self._block_count == 1 or not self._are_vectors_packed():
            return 1
        broadcast = [each for each in model.operands if self._vector_axis not in each.axes]
        if sum(map(model.nbytes, broadcast)) <= model.machine.l2_working_set:
            return 1
        nbytes = sum(each.nbytes for each in vectors) * self._steps * self._block_size
        limit = model.machine.sequential_bytes // nbytes
        if limit < 2:
            return 1
        fewest = ceil_div(self._block_count, limit)
        return ceil_div(self._block_count, _balance_blocks(self._block_count, fewest))

    def _split_chains(self, splits: Splits, tile: RegisterTile) -> str | None:
        """Split off a loop over several accumulators of one result, if a register tile would stall
        on the latency of additions; return its name.
        """
        accumulators = tile.vectors * tile.rows
        name = self._model.axis_of_chains(accumulators) if self._reduced else ""
        if not name:
            return None
        blocks, chains = splits.cut(name, self._model.chains(accumulators))
        self._reduced = [blocks if each == name else each for each in self._reduced]
        return chains

    def _split_dot(self, splits: Splits) -> str | None:
        """Split off a loop over the terms of one instruction, if any; return its name."""
        model, unit = self._model, self._model.dot_product
        if unit is None or self._has_chains or not self._reduced:
            return None
        name = self._reduced[-1]
        if not model.can_group_terms(self._vector_axis):
            return None
        self._reduced[-1], dot = splits.cut(name, unit.terms)
        return dot

    def _packs(self) -> Iterator[Transform]:
        if self._has_chains:
            return  # tiles with few rows have little reuse
        for operand in self._model.operands:
            if self._vector_axis in operand.axes:
                yield from self._pack_vectors(operand)
            elif len(self._rows) == 1:
                yield from self._pack_rows(operand, self._rows[0])

    def _uses_of_rows(self, operand: ReductionOperand) -> int:
        """Return how often register tiles use the same rows of a broadcast operand: for each block
        of the vector axis and each iteration outside that it does not depend on.
        """
        outer = self._model.outer_axes(self._vector_axis)
        return self._block_count * self._model.iterations(
            name for name in outer if name not in operand.axes
        )

    def _pack_vectors(self, operand: ReductionOperand) -> Iterator[Transform]:
        """Yield the packing of the vectors of a block of the vector axis."""
        vector_loops, model = self._vector_loops, self._model
        around = (self._outer_loops() or (None,))[-1]
        inside = around if self._has_outer_vector_loop() else vector_loops.outer or around
        if not self._model.can_pack_vectors(operand, self._vector_axis):
            return
        loops = [*model.shifting_axes, *self._reduced]
        used = [name for name in loops if root_of(name) in operand.axes]
        if self._dot is not None or self._should_pack(operand):
            panels = [vector_loops.middle] if vector_loops.middle is not None else []
            if operand.runs > 1 and inside is not None:  # one copy of all blocks serves all runs
                order = self._order()
                outer = order[: order.index(inside) + 1]
                panels = [each for each in outer if root_of(each) in operand.axes] + panels
                inside = None
            yield Pack(
                operand.position,
                inside,
                (*panels, *used, vector_loops.inner, *self._dot_axes(operand)),
            )

    def _packs_distant_vectors(self) -> bool:
        """Return True if blocks of vectors are packed that no near cache holds."""
        model = self._model
        return self._vector_loops.outer is not None and any(
            each.is_load
            and model.nbytes(each) > model.machine.l2_working_set
            and model.can_pack_vectors(each, self._vector_axis)
            and self._should_pack(each)
            for each in model.vector_operands(self._vector_axis)
        )

    def _dot_axes(self, operand: ReductionOperand) -> list[str]:
        """Return the innermost axis of a copy for dot products."""
        is_used = self._dot is not None and root_of(self._dot) in operand.axes
        return [self._dot] if is_used and self._dot is not None else []

    def _saves_conversions(self, operand: ReductionOperand) -> bool:
        return operand.is_converted and self._dot is None

    def _should_pack(self, operand: ReductionOperand) -> bool:
        """Return True if packing a vector operand pays."""
        model, uses = self._model, self._model.uses_of_copy(operand)
        decided = self._parameters.layout(operand.position)
        if decided is not None:
            return decided is not PackingLayout.NONE
        is_strided = operand.stride(self._vector_axis) != 1
        if uses < (MIN_GATHER_REUSE if is_strided else MIN_PACK_REUSE):
            return False
        if operand.is_converted and uses < MIN_CONVERSION_REUSE * self._tile_rows:
            return is_strided
        if not operand.is_load or operand.is_converted or is_strided:
            return True
        steps = [operand.stride(name) for name in model.reduced_axes if model.extents[name] > 1]
        farthest = max(steps, default=0)
        spread = farthest * operand.nbytes * model.iterations(model.reduced_axes)
        is_spread = spread > model.machine.l1_bytes and min(steps, default=0) > self._block_size
        machine, lines = model.machine, model.iterations(model.reduced_axes)
        way, distance = machine.l2_bytes // SECOND_CACHE_WAYS, farthest * operand.nbytes
        conflicts = len(steps) == 1 and _compete(lines, distance, way, machine.l2_bytes)
        needed = MIN_PACK_REUSE if conflicts else MIN_COMPACTION_REUSE
        return is_spread and uses >= needed

    def _pack_rows(self, operand: ReductionOperand, row: BlockedAxis) -> Iterator[Transform]:
        """Yield the packing of a broadcast operand, if its rows conflict in the cache."""
        if not self._model.can_pack_rows(operand, root_of(row.axis)):
            return
        if self._uses_of_rows(operand) == 1 and not operand.is_converted:
            return
        if row.outer is None and not (self._saves_conversions(operand) or self._dot is not None):
            return
        decided = self._parameters.layout(operand.position)
        copy = self._choose_row_layout(operand, row) if decided is None else decided
        used = [name for name in self._reduced if root_of(name) in operand.axes]
        dot = self._dot_axes(operand)
        needed = [name for name in self._outer_loops() if root_of(name) in operand.axes]
        # one copy serves all blocks of the vector axis
        is_early = self._has_outer_vector_loop() or not needed
        blocks, inside = (needed, None) if is_early else ([], needed[-1])
        if copy is PackingLayout.PANELS:
            if self._block_count > 1 and self._vector_loops.outer is None and row.outer is not None:
                yield Pack(operand.position, row.outer, (*used, row.inner, *dot))
            else:
                numbers = [*blocks, *([row.outer] if row.outer is not None else [])]
                yield Pack(operand.position, inside, (*numbers, *used, row.inner, *dot))
        elif copy is PackingLayout.ROWS:
            yield Pack(operand.position, inside, (*blocks, row.axis, *used, *dot))

    def _choose_row_layout(self, operand: ReductionOperand, row: BlockedAxis) -> PackingLayout:
        """Return the layout of a broadcast operand by the cost model."""
        model = self._model
        if self._dot is not None and (
            not operand.is_load or operand.stride(root_of(self._dot)) != 1
        ):
            return PackingLayout.PANELS
        if self._saves_conversions(operand) and self._reduced:
            # in the innermost loop, conversions of single numbers take as long as products
            is_contiguous = operand.stride(root_of(self._reduced[-1])) == 1
            return PackingLayout.ROWS if is_contiguous else PackingLayout.PANELS
        if model.extents[root_of(row.axis)] < MIN_PACK_REUSE:
            return PackingLayout.NONE
        if self._uses_of_rows(operand) < 4:
            return PackingLayout.NONE
        if (
            self._reduced
            and operand.stride(root_of(self._reduced[-1])) * operand.nbytes > CACHE_LINE_BYTES
        ):
            # one line for each step of the reduction; its other elements are those of the next rows
            lines = model.iterations(map(root_of, self._reduced)) * CACHE_LINE_BYTES
            is_far = lines > model.machine.l2_copy or self._waits_for_lines()
            return PackingLayout.PANELS if is_far else PackingLayout.NONE
        if not operand.is_load or self._rows_conflict(operand, root_of(row.axis), self._tile_rows):
            return PackingLayout.ROWS
        return PackingLayout.NONE

    def _waits_for_lines(self) -> bool:
        """Return True if a register tile that loads a cache line of broadcast numbers in each step
        waits for it: the lines leave the nearest cache before the next tile uses them, and the
        second cache needs more than half of a step for what it delivers.
        """
        machine, vectors = self._model.machine, ceil_div(self._block_size, self._model.lanes)
        vector_bytes = vectors * machine.vector_bytes
        if self._steps * (CACHE_LINE_BYTES + vector_bytes) < machine.l1_working_set:
            return False
        arrival = CACHE_LINE_BYTES / machine.vector_bytes + vectors
        return arrival > self._tile_rows * vectors / OPERATIONS_PER_CYCLE / 2

    def _rows_in_cache(self, rows: int) -> int:
        """Return the greatest number of rows of a register tile, up to a given one, that the
        nearest cache holds of each broadcast operand without a copy.

        An operand that one tile uses gets no copy. Each of its cache lines has the numbers of
        several steps of the reduction, and is loaded again for each if another row evicts it.
        """
        model, names = self._model, self._model.tile_row_axes(self._vector_axis)
        innermost = model.ordered_reductions(self._vector_axis)[-1:]
        if len(names) != 1 or not innermost:
            return rows
        for operand in model.operands:
            if (
                self._vector_axis not in operand.axes
                and names[0] in operand.axes
                and operand.is_load
                and not operand.is_converted
                and operand.stride(innermost[0]) == 1
                and self._uses_of_rows(operand) == 1
            ):
                while rows > 1 and self._rows_conflict(operand, names[0], rows):
                    rows -= 1
        return rows

    def _rows_conflict(self, operand: ReductionOperand, axis: str, rows: int) -> bool:
        """Return True if rows of a tile evict each other from the sets of the nearest cache."""
        distance = operand.stride(axis) * operand.nbytes
        room = (self._model.machine.l1_ways - 2) * CACHE_WAY_BYTES
        return _compete(rows, distance, CACHE_WAY_BYTES, room)


def _compete(lines: int, distance: int, way: int, room: int) -> bool:
    """Return True if cache lines at equal distances evict each other: where these are multiples of
    a power of two, most sets of the cache stay empty.

    Args:
        distance: Bytes from one line to the next one.
        way: Bytes of one way of the cache.
        room: Bytes of the cache that the lines may take.
    """
    return lines * max(gcd(distance, way), CACHE_LINE_BYTES) > room


def _balance_blocks(extent: int, fewest: int) -> int:
    """Return the number of blocks of an axis: a few more than needed if they are equal then, which
    saves the code of a remainder.
    """
    return next((n for n in range(fewest, fewest + 3) if extent % n == 0), fewest)
