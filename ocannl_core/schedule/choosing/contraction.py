"""The schedule of reductions on processors with vector registers: one rule for matrix products,
convolutions, sums, maxima, and the gradients of all of them.

What the operands' index maps say about the axes decides everything:

- the *lanes* run along an axis on which most operands and the result are contiguous, or do not
  depend; the *vector operands* are those that depend on it;
- the *rows* are axes on which some vector operand does not depend, so that a loaded vector serves
  several accumulators; they and a few vectors of lanes make a block of registers;
- *outer* axes, on which the vector operands depend as well, run outside of everything;
- an operand that is read again and again, and not in the order of the loops, is packed;
- of a long sum, pieces run outside, so that what they read stays in the cache.

The axis and the block that need the fewest cycles by a model of the processor win.

    c[i, j] += a[i, k] * b[k, j]  -->  split j 32; split j1 16; split i 12 evenly;
                                       order j0 i0 k i1 j10 j11; unroll i1; unroll j10;
                                       vectorise j11; pack 1 inside j0 as k j1;
                                       accumulate over k fused
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import Enum
from math import gcd, prod

from ocannl_core.records import dataclass
from ocannl_core.schedule.cells import CellNest
from ocannl_core.schedule.choosing.lanes import has_lanes
from ocannl_core.schedule.choosing.model import (
    LATENCY,
    LEAST_GATHERED,
    PER_CYCLE,
    Model,
    Operand,
    Tile,
)
from ocannl_core.schedule.plan import Infos
from ocannl_core.schedule.transforms import (
    Accumulate,
    Order,
    Pack,
    Pair,
    Schedule,
    Split,
    Transform,
    Unroll,
    Vectorise,
)
from ocannl_core.target import Target

_LEAST_WORK = 64
"""Fewer steps than these are not worth a schedule."""
_LEAST_REUSE = 32
"""Operands of which a cell is used less often than this are not packed."""
_LEAST_BLOCKS = 16
"""Vectors that fewer blocks of rows than this use are not copied only to lie closer together."""
_LEAST_CONVERTED = 3
"""The same for vectors that are in another format in memory."""
_LEAST_PAIRED = 8
"""Sums of fewer terms than these are not worth pairs."""
_LEAST_SUM = 64
"""Registers that collect fewer terms than this are stored too often."""
_STREAMED_SUM = 8
"""As many rows of memory are read side by side; registers collect as many terms then."""
_LINE_BYTES = 64
_ALIASED_BYTES = 4096
"""Cells as far apart as this share a place of the nearest cache, which has room for a few lines."""


@dataclass(frozen=True, slots=True)
class Part:
    """An axis of which blocks are inside.

    Attributes:
        axis: The whole axis.
        number: The loop over blocks; None if one block is all.
        inner: The inside of a block.
    """

    axis: str
    number: str | None
    inner: str


class Copy(Enum):
    """How an operand lies in its buffer."""

    NONE = "not at all"
    PANELS = "in the order in which blocks of registers read it"
    ROWS = "row by row"


@dataclass(frozen=True, slots=True)
class Form:
    """What is decided about the schedule of a reduction; None leaves it to the model.

    Attributes:
        lane: The axis of the lanes.
        vectors: Vectors of lanes in a block of registers; with lanes along a reduced axis, the
            vectors of accumulators of each cell.
        rows: Rows of a block of registers; with lanes along a reduced axis, the most along an axis.
        outside: How many reduced axes run outside of the cells, which hold partial results then.
        pieces: Into how many pieces the last reduced axis is cut, likewise.
        copies: How operands are packed, by position.
        rows_outside: True if the loop over blocks of rows is outside of that over blocks of lanes.
        fetching: True if cells come near while sums run that are combined with them.
    """

    lane: str | None = None
    vectors: int | None = None
    rows: int | None = None
    outside: int | None = None
    pieces: int | None = None
    copies: tuple[tuple[int, Copy], ...] = ()
    rows_outside: bool = False
    fetching: bool | None = None

    def copy(self, position: int) -> Copy | None:
        """Returns how an operand is packed, if that is decided."""
        return dict(self.copies).get(position)


BY_MODEL = Form()


def modelled(nest: CellNest, nodes: Infos, target: Target) -> Model | None:
    """Returns a reduction as a processor sees it, or None where plain loops do as well."""
    if nest.reduction is None or not has_lanes(nest, nodes):
        return None
    model = Model(nest, nest.reduction, nodes, target)
    is_long = model.size(model.extents) >= _LEAST_WORK
    return model if is_long and lane_candidates(model) else None


def lane_candidates(model: Model) -> list[str]:
    """Returns the axes that lanes may run along, the one of the fewest cycles first."""
    names = [name for name in (*model.cells, *model.reduced) if model.extents[name] > 1]
    return sorted(names, key=model.cycles)


def contraction_schedule(
    nest: CellNest, nodes: Infos, target: Target, form: Form = BY_MODEL
) -> Schedule | None:
    """Returns the schedule of a reduction, or None where plain loops do as well.

    Args:
        nest: The nest.
        nodes: Extents and formats of its nodes.
        target: The processor.
        form: What is not left to the model.
    """
    model = modelled(nest, nodes, target)
    return schedule_of(model, form) if model is not None else None


def schedule_of(model: Model, form: Form) -> Schedule:
    """Returns the schedule of a form; what does not fit the nest is left out."""
    lane = form.lane or lane_candidates(model)[0]
    if lane in model.reduced:
        return _along_reduced(model, lane, form)
    return _AlongCells(model, lane, form).schedule()


def _blocks(splits: list[Transform], model: Model, axis: str, size: int, evenly: bool) -> Part:
    """Returns an axis cut into blocks of a size; adds the split if it needs one."""
    if size >= model.extents[axis]:
        return Part(axis, None, axis)
    splits.append(Split(axis, size, evenly))
    return Part(axis, f"{axis}0", f"{axis}1")


def _lane_loops(splits: list[Transform], name: str, block: int, width: int) -> list[str]:
    """Returns the loops over the vectors of a block and over the lanes of each."""
    if width in (1, block):
        return [name]
    splits.append(Split(name, width))
    return [f"{name}0", f"{name}1"]


def _kinds(model: Model, kept: Sequence[str]) -> Iterator[Transform]:
    """Yields how the loops of a block of registers run."""
    yield from (Unroll(name) for name in kept[:-1])
    yield Vectorise(kept[-1]) if model.lanes > 1 else Unroll(kept[-1])


# ----- lanes along an axis of cells ---------------------------------------------------------------


class _AlongCells:
    """The schedule of a nest whose lanes run along an axis of cells."""

    def __init__(self, model: Model, lane: str, form: Form) -> None:
        self._model = model
        self._form = form
        tile = model.tile(lane)
        tile = replace(tile, vectors=form.vectors or tile.vectors, rows=form.rows or tile.rows)
        self._height = tile.rows
        splits: list[Transform] = []
        width = min(model.lanes, model.extents[lane])
        self._block = min(width * tile.vectors, model.extents[lane])
        self._lane = _blocks(splits, model, lane, self._block, evenly=False)
        lanes = _lane_loops(splits, self._lane.inner, self._block, width)
        self._rows = self._row_parts(splits, tile)
        self._reduced = self._reduced_order()
        self._sums = self._outer_sums()
        self._cut = self._cut_reduction(splits)
        is_cut = self._cut is not None or self._sums
        chains = None if is_cut else self._chains(splits, tile)
        self._has_chains = chains is not None
        self._fetches = model.has_far_cells() if form.fetching is None else form.fetching
        self._pair = self._paired(splits)
        kept = [part.inner for part in self._rows]
        self._kept = [*kept, *([chains] if chains is not None else []), *lanes]
        self._splits = tuple(splits)

    def schedule(self) -> Schedule:
        """Returns the transforms, splits first."""
        over = (self._reduced or self._kept)[0]
        return (
            *self._splits,
            Order(self._order()),
            *_kinds(self._model, self._kept),
            *([Pair(self._pair)] if self._pair is not None else []),
            *self._packs(),
            Accumulate(over, self._model.is_fused, self._fetches),
        )

    def _order(self) -> tuple[str, ...]:
        model, lane = self._model, self._lane.axis
        outer = model.outer(lane)
        rows = {part.axis: part.number for part in self._rows}
        middle = [name for name in model.cells if name != lane and name not in outer]
        inner = [rows.get(name, name) for name in middle]
        numbers = (
            *(inner if self._form.rows_outside else ()),
            *(() if self._lane_leads() else (self._lane.number,)),
            *(() if self._form.rows_outside else inner),
        )
        loops = [name for name in numbers if name is not None]
        pair = [self._pair] if self._pair is not None else []
        return (*self._around(), *loops, *model.shifting, *self._reduced, *self._kept, *pair)

    def _around(self) -> tuple[str, ...]:
        """Returns the loops outside of the blocks of rows, but for that over blocks of lanes where
        it is right outside of them.
        """
        outer = self._model.outer(self._lane.axis)
        sums = self._pieces_of_sums()
        loops = (*sums, *outer) if self._slides(outer) else (*outer, *sums)
        number = self._lane.number
        return (number, *loops) if number is not None and self._lane_leads() else loops

    def _pieces_of_sums(self) -> tuple[str, ...]:
        """Returns the loops over pieces of the sums."""
        number = self._cut.number if self._cut is not None else None
        return (*self._sums, *([number] if number is not None else []))

    def _lane_leads(self) -> bool:
        """True if blocks of lanes are outside of the pieces of sums: several threads can share
        them, and the partial results of a block stay in the cache.
        """
        return (
            self._lane.number is not None
            and not self._form.rows_outside
            and bool(self._pieces_of_sums())
            and not self._model.outer(self._lane.axis)
        )

    def _slides(self, outer: Sequence[str]) -> bool:
        """True if axes move vector operands over cells that sums run over anyway."""
        model = self._model
        return all(
            any(operand.stride(name) == operand.stride(each) for each in model.reduced)
            for operand in model.vector_operands(self._lane.axis)
            for name in outer
        )

    # ----- parts ----------------------------------------------------------------------------

    def _row_parts(self, splits: list[Transform], tile: Tile) -> list[Part]:
        """Returns the row axes, cut so that a block has as many rows as it has registers."""
        parts: list[Part] = []
        left = tile.rows
        for name in reversed(self._model.tile_rows(self._lane.axis)):
            size = min(left, self._model.extents[name])
            left = max(1, left // size)
            parts.insert(0, _blocks(splits, self._model, name, size, evenly=True))
        return parts

    def _reduced_order(self) -> list[str]:
        """Returns the reduced axes with one inside along which spread operands are contiguous."""
        model = self._model
        names = list(model.reduced)
        spread = [each for each in model.operands if self._lane.axis not in each.axes]
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
            vectors = model.vector_operands(self._lane.axis)
            reuse = min((model.reuse(operand) for operand in vectors), default=1)
            while (
                reuse >= _LEAST_BLOCKS * self._height // 4
                and count + 1 < len(self._reduced)
                and model.size(self._reduced[count:]) > self._most_steps() * 3 // 2
                and model.size(self._reduced[count + 1 :]) >= _LEAST_SUM
            ):
                count += 1
        sums, self._reduced = self._reduced[:count], self._reduced[count:]
        return sums

    def _cut_reduction(self, splits: list[Transform]) -> Part | None:
        """Returns a long reduced axis, cut so that the vectors of a block stay in the cache."""
        model = self._model
        if not model.nest.holds_partial_results or len(self._reduced) != 1:
            return None
        (name,) = self._reduced
        extent = model.extents[name]
        pieces = self._form.pieces or self._streamed_pieces(name) or self._pieces(extent)
        if pieces == 1:
            return None
        size = -(-extent // pieces)
        if model.has_pairs:
            size += size % 2
        part = _blocks(splits, model, name, size, evenly=False)
        self._reduced = [part.inner]
        return part

    def _streamed_pieces(self, name: str) -> int | None:
        """Returns into how many pieces an axis is cut for vectors that are used once to be read in
        the order of memory: all cells of a few rows at a time. None if that is not the point.
        """
        model, lane = self._model, self._lane
        if lane.number is None or not model.outer(lane.axis):
            return None
        vectors = model.vector_operands(lane.axis)
        is_read_once = all(
            model.reuse(each) == 1 and each.stride(name) * each.nbytes >= _ALIASED_BYTES
            for each in vectors
        )
        nbytes = model.extents[lane.axis] * max(each.nbytes for each in vectors)
        if not is_read_once or nbytes > model.cache(0):
            return None
        return -(-model.extents[name] // _STREAMED_SUM)

    def _most_steps(self) -> int:
        """Returns over how many steps of a sum the vectors of a block stay in the cache."""
        nbytes = max(operand.nbytes for operand in self._model.operands)
        if self._model.has_pairs:
            nbytes //= 2
        return max(_LEAST_SUM, self._model.cache(1) // 8 // (self._block * nbytes))

    def _pieces(self, extent: int) -> int:
        """Returns into how many pieces the model cuts a reduced axis."""
        most = self._most_steps()
        if extent <= most * 3 // 2:
            return 1
        fewest = -(-extent // most)
        # a few more blocks if they are equal then: the code is there once
        return next((n for n in range(fewest, fewest + 3) if extent % n == 0), fewest)

    def _chains(self, splits: list[Transform], tile: Tile) -> str | None:
        """Returns the loop over accumulators of one cell, if a block would wait for its results."""
        model = self._model
        needed = int(LATENCY * PER_CYCLE) // (tile.vectors * tile.rows)
        if needed < 2 or not self._reduced or model.shifting:
            return (
                None  # what moves over the cells uses vectors again, which pays if they are packed
            )
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

    def _has_pairs(self, operand: Operand, axis: str) -> bool:
        """True if neighbours along an axis lie together, in memory or in a copy that pays."""
        if self._lane.axis in operand.axes:
            return self._can_pack_vectors(operand) and self._model.reuse(operand) >= _LEAST_REUSE
        if operand.is_load and operand.stride(axis) == 1:
            return True
        return len(self._rows) == 1 and self._can_pack_rows(operand, self._rows[0])

    # ----- packing --------------------------------------------------------------------------

    def _packs(self) -> Iterator[Transform]:
        if self._has_chains:
            return  # blocks with few rows do not use anything often
        for operand in self._model.operands:
            if self._lane.axis in operand.axes:
                yield from self._packed_vectors(operand)
            elif len(self._rows) == 1 and (self._lane.number is not None or operand.is_converted):
                yield from self._packed_rows(operand, self._rows[0])

    def _packed_vectors(self, operand: Operand) -> Iterator[Transform]:
        """Yields the packing of the vectors that a block of lanes needs."""
        lane, model = self._lane, self._model
        around = (self._around() or (None,))[-1]
        is_whole = self._form.rows_outside and lane.number is not None
        inside = around if is_whole or self._lane_leads() else lane.number or around
        if not self._can_pack_vectors(operand):
            return
        loops = [*model.shifting, *self._reduced]
        used = [name for name in loops if name[0] in operand.axes]
        if self._pair is not None or self._is_packed(operand, used):
            panels = [lane.number] if is_whole and lane.number is not None else []
            yield Pack(
                operand.position, inside, (*panels, *used, lane.inner, *self._pairs_of(operand))
            )

    def _can_pack_vectors(self, operand: Operand) -> bool:
        """True if no loop between those over blocks of lanes and the sum moves an operand."""
        model, lane = self._model, self._lane
        outer = model.outer(lane.axis)
        return not any(
            name in operand.axes for name in model.cells if name != lane.axis and name not in outer
        )

    def _pairs_of(self, operand: Operand) -> list[str]:
        """Returns the innermost axis of a copy of pairs."""
        is_used = self._pair is not None and self._pair[0] in operand.axes
        return [self._pair] if is_used and self._pair is not None else []

    def _widens(self, operand: Operand) -> bool:
        """True if a copy of an operand saves conversions."""
        return operand.is_converted and self._pair is None

    def _is_packed(self, operand: Operand, used: Sequence[str]) -> bool:
        """True if a vector operand is read better from a copy."""
        model = self._model
        decided = self._form.copy(operand.position)
        if decided is not None:
            return decided is not Copy.NONE
        is_apart = operand.stride(self._lane.axis) != 1
        if model.reuse(operand) < (LEAST_GATHERED if is_apart else _LEAST_REUSE):
            return False
        blocks = _LEAST_CONVERTED if operand.is_converted else _LEAST_BLOCKS
        if operand.is_load and model.reuse(operand) < blocks * self._height:
            return operand.stride(self._lane.axis) != 1
        if not operand.is_load or operand.is_converted or operand.stride(self._lane.axis) != 1:
            return True
        steps = [operand.stride(name) for name in model.reduced if model.extents[name] > 1]
        farthest = max(steps, default=0)
        spread = farthest * operand.nbytes * model.size(model.reduced)
        size = model.size(name[0] for name in used) * self._block * operand.nbytes
        is_spread = spread > model.cache(0) and farthest > self._block
        return is_spread and size <= model.cache(1) // 2

    def _packed_rows(self, operand: Operand, row: Part) -> Iterator[Transform]:
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
        is_early = self._lane_leads() or not needed
        pieces, inside = (needed, None) if is_early else ([], needed[-1])
        if copy is Copy.PANELS:
            if self._form.rows_outside and row.number is not None:
                yield Pack(operand.position, row.number, (*used, row.inner, *pairs))
            else:
                numbers = [*pieces, *([row.number] if row.number is not None else [])]
                yield Pack(operand.position, inside, (*numbers, *used, row.inner, *pairs))
        elif copy is Copy.ROWS:
            yield Pack(operand.position, inside, (*pieces, row.axis, *used, *pairs))

    def _can_pack_rows(self, operand: Operand, row: Part) -> bool:
        """True if one axis of cells moves an operand."""
        model = self._model
        is_alone = all(name == row.axis for name in model.cells if name in operand.axes)
        is_still = not any(name in operand.axes for name in model.shifting)
        return row.axis in operand.axes and is_alone and is_still

    def _row_copy(self, operand: Operand, row: Part) -> Copy:
        """Returns how the model packs an operand that is spread over lanes."""
        model = self._model
        if self._pair is not None and (not operand.is_load or operand.stride(self._pair[0]) != 1):
            return Copy.PANELS
        if self._widens(operand) and self._reduced:
            # one by one in the innermost loop, conversions take as long as products
            is_contiguous = operand.stride(self._reduced[-1][0]) == 1
            return Copy.ROWS if is_contiguous else Copy.PANELS
        if model.extents[row.axis] < _LEAST_REUSE:
            return Copy.NONE
        if model.extents[self._lane.axis] < 4 * self._block:
            return Copy.NONE
        if self._reduced and operand.stride(self._reduced[-1][0]) * operand.nbytes > _LINE_BYTES:
            # one line for each step of the sum, whose other cells the next rows need
            lines = model.size(name[0] for name in self._reduced) * _LINE_BYTES
            return Copy.PANELS if lines > model.cache(1) // 4 else Copy.NONE
        if not operand.is_load or self._rows_compete(operand, row):
            return Copy.ROWS
        return Copy.NONE

    def _rows_compete(self, operand: Operand, row: Part) -> bool:
        """True if the rows of a block do not fit into the nearest cache together, because they are
        as far apart as the cells that share its places.
        """
        ways = max(4, self._model.cache(0) // _ALIASED_BYTES)
        apart = gcd(operand.stride(row.axis) * operand.nbytes, _ALIASED_BYTES)
        return self._height * apart > (ways - 2) * _ALIASED_BYTES


# ----- lanes along a reduced axis -----------------------------------------------------------------


def _along_reduced(model: Model, lane: str, form: Form) -> Schedule:
    """Returns a schedule in which every cell has a vector of accumulators."""
    splits: list[Transform] = []
    sizes = _shared_rows(model, form.rows)
    rows = {name: _blocks(splits, model, name, size, evenly=False) for name, size in sizes.items()}
    width = min(model.lanes, model.extents[lane])
    made = prod(sizes.values())
    wanted = form.vectors or int(LATENCY * PER_CYCLE) // made
    chains = max(1, min(wanted, model.extents[lane] // (2 * width)))
    along = _blocks(splits, model, lane, width * chains, evenly=False)
    lanes = _lane_loops(splits, along.inner, min(width * chains, model.extents[lane]), width)
    kept = [*(rows[name].inner for name in model.cells if name in rows), *lanes]
    cells = [rows[name].number if name in rows else name for name in model.cells]
    reduced = [name for name in model.reduced if name != lane]
    reduced += [along.number] if along.number is not None else []
    order = (*(n for n in cells if n is not None), *model.shifting, *reduced, *kept)
    return (
        *splits,
        Order(order),
        *_kinds(model, kept),
        *_packs_along_reduced(model, lane, order, form),
        Accumulate((reduced or kept)[0], model.is_fused),
    )


def _packs_along_reduced(
    model: Model, lane: str, order: Sequence[str], form: Form
) -> Iterator[Transform]:
    """Yields the packing of operands that are used often and not contiguous along the lanes."""
    for operand in model.operands:
        decided = form.copy(operand.position)
        is_spread = lane in operand.axes and operand.stride(lane) != 1
        is_packed = is_spread and model.is_gathered_once(operand)
        if is_packed if decided is None else decided is not Copy.NONE:
            leaves = [name for name in order if name[0] in operand.axes]
            yield Pack(
                operand.position, None, tuple(sorted(leaves, key=lambda name: name[0] == lane))
            )


def _shared_rows(model: Model, rows: int | None) -> dict[str, int]:
    """Returns the axes of cells that share loads, one for each operand, and the rows of a block."""
    chosen: dict[str, int] = {}
    most = rows or (4 if model.registers >= 32 else 3)
    for operand in model.operands[:2]:
        shared = [
            name
            for name in model.cells
            if model.extents[name] > 1 and name not in operand.axes and name not in chosen
        ]
        if shared:
            chosen[shared[-1]] = min(most, model.extents[shared[-1]])
    return chosen
