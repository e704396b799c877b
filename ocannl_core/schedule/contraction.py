"""The schedule of reductions on processors with vector registers: one rule for matrix products,
convolutions, sums, maxima, and the gradients of all of them.

What the operands' index maps say about the axes decides everything:

- the *lanes* run along an axis on which most operands and the result are contiguous, or do not
  depend; the *vector operands* are those that depend on it;
- the *rows* are axes on which some vector operand does not depend, so that a loaded vector serves
  several accumulators; they and a few vectors of lanes make a block of registers;
- *outer* axes, on which the vector operands depend as well, run outside of everything;
- an operand that is read again and again, and not in the order of the loops, is packed.

The block that needs the fewest cycles by a small model of the processor wins: two fused
multiply-adds and two loads in each cycle, four cycles until a result can be used again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ocannl_core.indexing import as_affine, row_major
from ocannl_core.loopir.nodes import Binary, Expr, Load, Store
from ocannl_core.loopir.traverse import free_variables, walk
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.ops import BinaryOp
from ocannl_core.schedule.cells import Axis, CellNest, Reduction
from ocannl_core.schedule.lanes import has_lanes, widest
from ocannl_core.schedule.transforms import (
    Accumulate,
    Order,
    Pack,
    Schedule,
    Split,
    Transform,
    Unroll,
    Vectorise,
)
from ocannl_core.target import Target

_LATENCY = 4.0
"""Cycles until the result of an addition can be added to."""
_PER_CYCLE = 2.0
"""Multiply-adds, and loads, that start in one cycle."""
_MOST_VECTORS = 4
_LEAST_WORK = 64
"""Fewer steps than these are not worth a schedule."""

Infos = Mapping[TensorNode, NodeInfo]


@dataclass(frozen=True, slots=True)
class Operand:
    """One factor of the reduced term.

    Attributes:
        position: Its number among the factors.
        axes: The axes on which it depends.
        strides: Per axis, the largest distance in memory that one step along it makes, in cells.
        is_load: True if it is a cell of memory, and not computed.
        nbytes: The size of a cell.
    """

    position: int
    axes: frozenset[str]
    strides: Mapping[str, int]
    is_load: bool
    nbytes: int

    def stride(self, axis: str) -> int:
        return self.strides.get(axis, 0)

    def is_contiguous(self, axis: str) -> bool:
        return self.stride(axis) in (0, 1)


@dataclass(frozen=True, slots=True)
class Tile:
    """A block of registers.

    Attributes:
        vectors: How many registers along the lanes.
        rows: How many along the row axes.
        cycles: What the model says about the whole nest.
    """

    vectors: int
    rows: int
    cycles: float


def contraction_schedule(nest: CellNest, nodes: Infos, target: Target) -> Schedule | None:
    """Returns the schedule of a reduction, or None where plain loops do as well.

    Args:
        nest: The nest.
        nodes: Extents and formats of its nodes.
        target: The processor.
    """
    reduction = nest.reduction
    if reduction is None or not _is_worthwhile(nest) or not has_lanes(nest, nodes):
        return None
    return _Chooser(nest, reduction, nodes, target).schedule()


def _is_worthwhile(nest: CellNest) -> bool:
    return prod(axis.extent for axis in nest.axes) >= _LEAST_WORK


class _Chooser:
    """The choices for one nest."""

    def __init__(self, nest: CellNest, reduction: Reduction, nodes: Infos, target: Target) -> None:
        self._nest = nest
        self._nodes = nodes
        self._target = target
        self._lanes = max(1, target.vector_bytes // widest(nest, nodes))
        self._registers = max(target.vector_registers, 8)
        self._extents = {axis.name: axis.extent for axis in nest.axes}
        self._cells = [axis.name for axis in nest.cells]
        self._reduced = [axis.name for axis in nest.reduced if not axis.is_shifting]
        self._shifting = [axis.name for axis in nest.axes if axis.is_shifting]
        self._operands = tuple(
            _operand(position, factor, nest.axes, nodes)
            for position, factor in enumerate(reduction.factors)
        )
        self._stores = [_strides(nest.axes, (store,), nodes) for store in nest.finish]
        is_product = isinstance(reduction.term, Binary) and reduction.term.op is BinaryOp.MUL
        self._fused = (
            target.has_fma
            and reduction.op is BinaryOp.ADD
            and is_product
            and reduction.dtype.is_float
        )

    def schedule(self) -> Schedule | None:
        candidates = [name for name in (*self._cells, *self._reduced) if self._extents[name] > 1]
        if not candidates:
            return None
        lane = min(candidates, key=self._cycles)
        return tuple(self._along_reduced(lane) if lane in self._reduced else self._along(lane))

    # ----- the model ------------------------------------------------------------------------

    def _cycles(self, lane: str) -> float:
        """Returns about how long the nest takes with its lanes along an axis."""
        cells = prod(self._extents[name] for name in self._cells)
        if lane in self._reduced:
            steps = prod(self._extents.values()) / self._extents[lane]
            vectors = self._vectors(lane) * (1.0 if self._rows(lane) else 2.0)
            total = steps * vectors / _PER_CYCLE + cells * 1.5 * self._lanes
        else:
            total = self._tile(lane).cycles
            apart = sum(strides.get(lane, 0) != 1 for strides in self._stores)
            total += 2.0 * cells * apart
        for operand in self._operands:
            if operand.is_contiguous(lane):
                continue
            if lane not in self._reduced and self._reuse(operand) >= 8:
                turns = operand.is_load and any(operand.stride(k) == 1 for k in self._reduced)
                total += (0.5 if turns else 1.5) * self._cells_of(operand)
            else:
                total += 1.5 * prod(self._extents.values())
        return total

    def _vectors(self, lane: str) -> int:
        return -(-self._extents[lane] // self._lanes)

    def _reuse(self, operand: Operand) -> int:
        """Returns how often each cell of an operand is used."""
        return prod(self._extents[name] for name in self._cells if name not in operand.axes)

    def _cells_of(self, operand: Operand) -> int:
        return prod(self._extents[name] for name in operand.axes)

    def _rows(self, lane: str) -> list[str]:
        """Returns the axes along which a vector operand is used again, innermost last."""
        vectors = [operand for operand in self._operands if lane in operand.axes]
        return [
            name
            for name in self._cells
            if name != lane
            and self._extents[name] > 1
            and any(name not in operand.axes for operand in vectors)
        ]

    def _tile(self, lane: str) -> Tile:
        """Returns the block of registers that takes the fewest cycles."""
        rows = self._tile_rows(lane, self._registers)
        total_rows = prod(self._extents[name] for name in rows)
        steps = prod(self._extents.values()) / (total_rows * self._extents[lane])
        best: Tile | None = None
        for vectors in range(1, min(_MOST_VECTORS, self._vectors(lane)) + 1):
            most = max(1, (self._registers - vectors - 1) // vectors)
            blocks = -(-total_rows // most)
            count = -(-total_rows // blocks)
            full, rest = divmod(self._vectors(lane), vectors)
            once = full * _block_cycles(count, vectors)
            once += _block_cycles(count, rest) if rest else 0.0
            tile = Tile(vectors, count, steps * blocks * once)
            if best is None or tile.cycles < best.cycles * 0.99:
                best = tile
        assert best is not None
        return best

    def _tile_rows(self, lane: str, most: int) -> list[str]:
        """Returns the row axes of a block: the innermost, and more while they are short."""
        chosen: list[str] = []
        for name in reversed(self._rows(lane)):
            if chosen and prod(self._extents[each] for each in (*chosen, name)) > most // 2:
                break
            chosen.insert(0, name)
        return chosen

    # ----- lanes along an axis of the result ------------------------------------------------

    def _along(self, lane: str) -> Iterator[Transform]:
        tile = self._tile(lane)
        width = min(self._lanes, self._extents[lane])
        block = min(width * tile.vectors, self._extents[lane])
        inner_lanes = yield from self._split_lanes(lane, block, width)
        rows = self._tile_rows(lane, self._registers)
        row_parts: list[tuple[str, str | None, str]] = []
        left = tile.rows
        for name in reversed(rows):
            size = min(left, self._extents[name])
            left = max(1, left // max(size, 1))
            if size < self._extents[name]:
                yield Split(name, size, evenly=True)
                row_parts.insert(0, (name, f"{name}0", f"{name}1"))
            else:
                row_parts.insert(0, (name, None, name))
        reduced = self._reduced_order(lane)
        blocked = self._blocked(reduced, block)
        if blocked is not None:
            name, size = blocked
            yield Split(name, size)
            reduced = [f"{name}1" if each == name else each for each in reduced]
        chains = self._chains(tile, self._reduced, blocked)
        unrolled: list[str] = []
        if chains is not None:
            yield Split(chains[0], chains[1])
            reduced = [f"{each}0" if each == chains[0] else each for each in reduced]
            unrolled = [f"{chains[0]}1"]
        outer = self._outer(lane)
        number = {name: numbered for name, numbered, _ in row_parts}
        middle = [
            number.get(name, name)
            for name in self._cells
            if name != lane and name not in outer and number.get(name, name) is not None
        ]
        lane_number = f"{lane}0" if block < self._extents[lane] else None
        block_number = f"{blocked[0]}0" if blocked is not None else None
        inner = [*(part for _, _, part in row_parts), *unrolled, *inner_lanes]
        order = [
            *outer,
            *([block_number] if block_number else []),
            *([lane_number] if lane_number else []),
            *(name for name in middle if name is not None),
            *self._shifting,
            *reduced,
            *inner,
        ]
        yield Order(tuple(order))
        yield from (Unroll(name) for name in inner[:-1])
        if self._lanes > 1 and width > 1:
            yield Vectorise(inner[-1])
        yield from self._packs(lane, order, reduced, row_parts, block, lane_number, block_number)
        yield Accumulate((reduced or inner)[0], self._fused)

    def _split_lanes(
        self, lane: str, block: int, width: int
    ) -> Generator[Transform, None, list[str]]:
        """Splits the axis of the lanes into blocks of registers and registers of lanes.

        Returns the parts that are inside of a block.
        """
        name = lane
        if block < self._extents[lane]:
            yield Split(lane, block)
            name = f"{lane}1"
        if width < block:
            yield Split(name, width)
            return [f"{name}0", f"{name}1"]
        return [name]

    def _outer(self, lane: str) -> list[str]:
        """Returns the axes on which every vector operand depends."""
        vectors = [operand for operand in self._operands if lane in operand.axes]
        rows = self._rows(lane)
        return [
            name
            for name in self._cells
            if name != lane
            and name not in rows
            and (vectors and all(name in operand.axes for operand in vectors))
        ]

    def _reduced_order(self, lane: str) -> list[str]:
        """Returns the reduced axes with one inside along which spread operands are contiguous."""
        names = list(self._reduced)
        spread = [operand for operand in self._operands if lane not in operand.axes]
        for name in reversed(names):
            if self._extents[name] > 1 and any(operand.stride(name) == 1 for operand in spread):
                names.remove(name)
                return [*names, name]
        return names

    def _blocked(self, reduced: Sequence[str], block: int) -> tuple[str, int] | None:
        """Returns a reduced axis to cut so that the vectors of a block stay in the cache."""
        if not self._nest.is_resumable or len(reduced) != 1:
            return None
        nbytes = max(operand.nbytes for operand in self._operands)
        most = max(64, self._cache(1) // 8 // (block * nbytes))
        extent = self._extents[reduced[0]]
        if extent <= most * 3 // 2:
            return None
        blocks = -(-extent // most)
        for count in range(blocks, blocks + 3):
            if extent % count == 0:
                return reduced[0], extent // count
        return reduced[0], -(-extent // blocks)

    def _cache(self, level: int) -> int:
        sizes = self._target.cache_bytes
        return sizes[level] if level < len(sizes) else (32 << 10, 512 << 10)[min(level, 1)]

    def _chains(
        self, tile: Tile, reduced: Sequence[str], blocked: tuple[str, int] | None
    ) -> tuple[str, int] | None:
        """Returns a reduced axis to unroll into accumulators of its own, and how far.

        A block of few registers waits for its own results otherwise.
        """
        needed = int(_LATENCY * _PER_CYCLE) // (tile.vectors * tile.rows)
        if needed < 2 or blocked is not None or not reduced:
            return None
        name = max(reduced, key=lambda each: self._extents[each])
        if self._extents[name] < 4 * needed:
            return None
        return name, needed

    # ----- packing --------------------------------------------------------------------------

    def _packs(
        self,
        lane: str,
        order: Sequence[str],
        reduced: Sequence[str],
        row_parts: Sequence[tuple[str, str | None, str]],
        block: int,
        lane_number: str | None,
        block_number: str | None,
    ) -> Iterator[Transform]:
        if any(name.endswith("0") and name != block_number for name in reduced):
            return  # accumulators of their own: nothing is used often
        rows = prod(self._extents[name] for name, _, _ in row_parts)
        for operand in self._operands:
            if lane in operand.axes:
                used = [n for n in (*self._shifting, *reduced) if n[0] in operand.axes]
                outer = self._outer(lane)
                inside = lane_number or block_number or (outer[-1] if outer else None)
                fixed = set(order[: order.index(inside) + 1]) if inside else set()
                if any(n in operand.axes for n in self._middle_axes(order, fixed, lane)):
                    continue
                if self._packs_vectors(operand, lane, block, used, rows):
                    part = f"{lane}1" if lane_number else lane
                    yield Pack(operand.position, inside, (*used, part))
            elif len(row_parts) == 1 and lane_number and rows >= 32:
                yield from self._packed_rows(
                    operand, reduced, row_parts[0], lane, block, block_number
                )

    def _middle_axes(self, order: Sequence[str], fixed: Iterable[str], lane: str) -> list[str]:
        """Returns the axes of cells, but the lanes, whose loops are inside of a packed buffer's."""
        return [
            name[0]
            for name in order
            if name not in fixed and name[0] in self._cells and name[0] != lane
        ]

    def _packs_vectors(
        self, operand: Operand, lane: str, block: int, used: Sequence[str], rows: int
    ) -> bool:
        """True if a vector operand is read better from a copy."""
        del rows
        reuse = self._reuse(operand)
        if reuse < 32:
            return False
        if not operand.is_load or operand.stride(lane) != 1:
            return True
        steps = [operand.stride(name) for name in self._reduced if self._extents[name] > 1]
        spread = max((step * operand.nbytes for step in steps), default=0)
        total = prod(self._extents[name] for name in self._reduced)
        size = prod(self._extents[name[0]] for name in used) * block * operand.nbytes
        is_spread = spread * total > self._cache(0) and spread > block * operand.nbytes
        return is_spread and size <= self._cache(1) // 2

    def _packed_rows(
        self,
        operand: Operand,
        reduced: Sequence[str],
        row: tuple[str, str | None, str],
        lane: str,
        block: int,
        block_number: str | None,
    ) -> Iterator[Transform]:
        """Yields the packing of an operand that is spread over lanes, where its rows are apart."""
        name, number, part = row
        if name not in operand.axes or self._extents[lane] < 4 * block or number is None:
            return
        if any(cell in operand.axes for cell in self._cells if cell != name):
            return
        inner = reduced[-1]
        steps = operand.stride(name) * operand.nbytes, operand.stride(inner[0]) * operand.nbytes
        if any(shift in operand.axes for shift in self._shifting):
            return
        used = [each for each in reduced if each[0] in operand.axes]
        if steps[1] > 512:
            yield Pack(operand.position, block_number, (number, *used, part))
        elif not operand.is_load or steps[0] % 1024 == 0:
            yield Pack(operand.position, block_number, (name, *used))

    # ----- lanes along a reduced axis -------------------------------------------------------

    def _along_reduced(self, lane: str) -> Iterator[Transform]:
        """Yields a schedule in which every cell has a vector of accumulators."""
        width = min(self._lanes, self._extents[lane])
        rows = self._dot_rows(lane)
        made = prod(size for _, size in rows)
        chains = max(1, min(8 // made, self._extents[lane] // (2 * width)))
        parts: list[str] = []
        numbers: dict[str, str | None] = {}
        for name, size in rows:
            if size < self._extents[name]:
                yield Split(name, size)
                numbers[name] = f"{name}0"
                parts.append(f"{name}1")
            else:
                numbers[name] = None
                parts.append(name)
        block = width * chains
        inner = yield from self._split_lanes(lane, block, width)
        lane_number = [f"{lane}0"] if block < self._extents[lane] else []
        others = [name for name in self._reduced if name != lane]
        outer = [numbers.get(name, name) for name in self._cells]
        reduced = [*others, *lane_number]
        kept = [*parts, *inner]
        cells = [name for name in outer if name is not None]
        yield Order((*cells, *self._shifting, *reduced, *kept))
        yield from (Unroll(name) for name in kept[:-1])
        if width > 1:
            yield Vectorise(kept[-1])
        yield Accumulate((reduced or kept)[0], self._fused)

    def _dot_rows(self, lane: str) -> list[tuple[str, int]]:
        """Returns the axes of cells that share loads, and how many of each a block has."""
        del lane
        chosen: list[tuple[str, int]] = []
        most = 4 if self._registers >= 32 else 3
        for operand in self._operands:
            shared = [
                name
                for name in self._cells
                if self._extents[name] > 1
                and name not in operand.axes
                and name not in (each for each, _ in chosen)
            ]
            if shared and len(chosen) < 2:
                name = shared[-1]
                chosen.append((name, min(most, self._extents[name])))
        return sorted(chosen, key=lambda each: self._cells.index(each[0]))


def _block_cycles(rows: int, vectors: int) -> float:
    """Returns the cycles of one step of a block of registers."""
    loads = (rows + vectors) / _PER_CYCLE
    return max(rows * vectors / _PER_CYCLE, loads, _LATENCY if rows * vectors < 8 else 0.0) + 0.1


def _operand(position: int, factor: Expr, axes: Iterable[Axis], nodes: Infos) -> Operand:
    used = set(free_variables(factor))
    loads = [each for each in walk(factor) if isinstance(each, Load)]
    return Operand(
        position,
        frozenset(axis.name for axis in axes if axis.var in used),
        _strides(axes, loads, nodes),
        isinstance(factor, Load),
        factor.dtype.nbytes,
    )


def _strides(
    axes: Iterable[Axis], accesses: Iterable[Load | Store], nodes: Infos
) -> dict[str, int]:
    """Returns how far apart the cells of two neighbouring iterations are, per axis."""
    found: dict[str, int] = {}
    for access in accesses:
        terms, _ = as_affine(row_major(access.indices, nodes[access.node].buffer_dims))
        steps = {var: abs(coefficient) for coefficient, var in terms}
        backwards = {var for coefficient, var in terms if coefficient < 0}
        for axis in axes:
            step = steps.get(axis.var, 0)
            step = max(step, 2) if axis.var in backwards else step
            found[axis.name] = max(found.get(axis.name, 0), step)
    return found
