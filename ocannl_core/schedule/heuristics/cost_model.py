"""What a reduction asks of a processor: operands and their distances in memory, and a small model
of how many cycles a block of registers takes.

The model: two fused multiply-adds and two loads start in each cycle, and a result can be used again
four cycles later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from ocannl_core import settings
from ocannl_core.fast_dataclass import dataclass
from ocannl_core.indexing import as_affine, row_major
from ocannl_core.kernels.nest import KernelNest, LoopAxis, Reduction
from ocannl_core.kernels.nodes import NodeInfos
from ocannl_core.loopir.nodes import Binary, Expr, Load, Store, Unary
from ocannl_core.loopir.traverse import free_variables, walk
from ocannl_core.ops import BinaryOp, UnaryOp
from ocannl_core.schedule.apply.prefetch import epilogue_cells
from ocannl_core.schedule.heuristics.vectorisable import widest_number
from ocannl_core.target import Target

LATENCY = 4.0
"""Cycles until the result of an addition can be added to."""
PER_CYCLE = 2.0
"""Multiply-adds, and loads, that start in one cycle."""
_MOST_VECTORS = 4

# cycles for each cell, beside those of the block of registers; scattered stores take fewer, but
# much code
_SCATTERED = 6.0
_GATHERED = 1.5
_TURNED = 0.5
_COMBINED = 2.5  # for each lane

_LOAD = 0.02
"""Cycles of a step for each number or vector that is loaded: some of them come from afar."""

LEAST_GATHERED = 8
"""Operands of which a cell is used as often as this are copied, if their lanes are apart."""
_LEAST_COPIED = 32
"""The same, if the lanes are along a reduced axis."""

_CACHES = (32 << 10, 512 << 10)
"""Sizes of the caches where a target does not tell them."""


@dataclass(frozen=True, slots=True)
class ReductionOperand:
    """One factor of the reduced term.

    Attributes:
        position: Its number among the factors.
        axes: The axes on which it depends.
        strides: Per axis, the largest distance in memory that one step along it makes, in cells.
        is_load: True if it is a cell of memory, maybe converted, and not computed.
        is_converted: True if it is a cell of memory in another format.
        nbytes: The size of a cell.
    """

    position: int
    axes: frozenset[str]
    strides: Mapping[str, int]
    is_load: bool
    is_converted: bool
    nbytes: int

    def stride(self, axis: str) -> int:
        return self.strides.get(axis, 0)

    def is_contiguous(self, axis: str) -> bool:
        """True if neighbours along an axis are neighbours in memory, or one cell."""
        return self.stride(axis) in (0, 1)

    def slides(self, axis: str, along: str, extents: Mapping[str, int]) -> bool:
        """True if two axes run over the same cells, as those of windows and of their positions do:
        steps along one are as large as one or a few along the other.
        """
        fine, coarse = sorted((axis, along), key=self.stride)
        step = self.stride(fine)
        if step == 0 or self.stride(coarse) % step:
            return False
        return step <= self.stride(coarse) < step * extents[fine]


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """A block of registers.

    Attributes:
        vectors: How many registers along the lanes.
        rows: How many along the row axes.
        cycles: What the model says about the whole nest.
    """

    vectors: int
    rows: int
    cycles: float


class ReductionModel:
    """A nest with a reduction as a processor sees it.

    Attributes:
        nest: The nest.
        lanes: Numbers in one vector register.
        registers: How many vector registers there are.
        extents: Iterations of each axis.
        cells: Axes of cells, outermost first.
        reduced: Reduced axes that may be anywhere.
        shifting: Reduced axes that move the cells.
        operands: The factors of the term.
        threads: How many threads may share the nest.
        is_fused: True if products can be added without being rounded.
        has_pairs: True if an instruction can add two products.
    """

    def __init__(
        self, nest: KernelNest, reduction: Reduction, nodes: NodeInfos, target: Target
    ) -> None:
        self.nest = nest
        self.lanes = max(1, target.vector_bytes // widest_number(nest, nodes))
        self.registers = max(target.vector_registers, 8)
        self.extents = {axis.name: axis.extent for axis in nest.axes}
        self.cells = [axis.name for axis in nest.cells]
        self.reduced = [axis.name for axis in nest.reduced if not axis.is_shifting]
        self.shifting = [axis.name for axis in nest.axes if axis.is_shifting]
        self.operands = tuple(
            _operand(position, factor, nest.axes, nodes)
            for position, factor in enumerate(reduction.factors)
        )
        self._nodes = nodes
        self._stores = [strides(nest.axes, (store,), nodes) for store in nest.finish]
        self._caches = target.cache_bytes
        self.threads = settings.current().threads or target.cores
        is_product = isinstance(reduction.term, Binary) and reduction.term.op is BinaryOp.MUL
        is_sum = reduction.op is BinaryOp.ADD and reduction.dtype.is_float
        self.is_fused = target.has_fma and is_sum and is_product
        self.has_pairs = self.is_fused and reduction.may_pair and _are_pairs(reduction, target)

    def size(self, names: Iterable[str]) -> int:
        """Returns the iterations of several axes together."""
        return prod(self.extents[name] for name in names)

    def cache(self, level: int) -> int:
        """Returns the size of a cache, 0 being the nearest."""
        known = self._caches if level < len(self._caches) else _CACHES
        return known[min(level, len(known) - 1)]

    def cache_of_groups(self) -> int:
        """Returns how much of the caches groups of blocks may fill, whose cells are read in order,
        so that it does not matter how far away they are.
        """
        return max(self.cache(1) // 2, min(4 * self.cache(1), self.cache(2) // 8))

    def nbytes(self, operand: ReductionOperand) -> int:
        """Returns about how much memory an operand is."""
        steps = (operand.stride(name) * (self.extents[name] - 1) for name in operand.axes)
        return min(1 + sum(steps), self.size(operand.axes)) * operand.nbytes

    def has_far_cells(self, *, in_pieces: bool) -> bool:
        """True if the cells that results are combined with, or stored to, are too many for a near
        cache, so that each block of registers waits for them.

        Args:
            in_pieces: True if each piece of a sum comes back to them; they stay near for longer.
        """
        nodes = {load.node for load in epilogue_cells(self.nest)}
        part = 2 if in_pieces else 8
        return sum(self._nodes[node].nbytes for node in nodes) > self.cache(1) // part

    def vector_operands(self, lane: str) -> list[ReductionOperand]:
        """Returns the operands whose cells differ from lane to lane."""
        return [operand for operand in self.operands if lane in operand.axes]

    def reuse(self, operand: ReductionOperand) -> int:
        """Returns how often each cell of an operand is used."""
        names = (*self.cells, *self.shifting)
        return self.size(name for name in names if name not in operand.axes)

    def is_gathered_once(self, operand: ReductionOperand) -> bool:
        """True if an operand whose lanes are apart is copied so that they lie together: it is used
        often, and the copy stays in the second cache.
        """
        nbytes = self.size(operand.axes) * operand.nbytes
        return self.reuse(operand) >= _LEAST_COPIED and nbytes <= self.cache(1) // 4

    def rows(self, lane: str) -> list[str]:
        """Returns the axes along which a vector operand is used again."""
        vectors = self.vector_operands(lane)
        return [
            name
            for name in self.cells
            if name != lane
            and self.extents[name] > 1
            and any(name not in operand.axes for operand in vectors)
        ]

    def outer(self, lane: str) -> list[str]:
        """Returns the axes of cells on which all vector operands depend."""
        rows = self.rows(lane)
        vectors = self.vector_operands(lane)
        return [
            name
            for name in self.cells
            if name != lane
            and name not in rows
            and vectors
            and all(name in operand.axes for operand in vectors)
        ]

    def tile_rows(self, lane: str) -> list[str]:
        """Returns the row axes of a block: the innermost, and more while they are short."""
        chosen: list[str] = []
        for name in reversed(self.rows(lane)):
            if chosen and self.size((*chosen, name)) > self.registers // 2:
                break
            chosen.insert(0, name)
        return chosen

    # ----- cycles ---------------------------------------------------------------------------

    def cycles(self, lane: str) -> float:
        """Returns about how long the nest takes with its lanes along an axis."""
        cells = self.size((*self.cells, *self.shifting))  # as often as each of them is stored
        if lane in self.reduced:
            steps = self.size(self.extents) / self.extents[lane]
            vectors = self._vectors(lane) * (1.0 if self.rows(lane) else 2.0)
            total = steps * vectors / PER_CYCLE + cells * _COMBINED * self.lanes
        else:
            total = self.tile(lane).cycles
            apart = sum(strides.get(lane, 0) != 1 for strides in self._stores)
            total += _SCATTERED * cells * apart
        for operand in self.operands:
            if operand.is_contiguous(lane):
                continue
            if lane in self.reduced and self.is_gathered_once(operand):
                total += _GATHERED * self.size(operand.axes)
            elif lane not in self.reduced and self.reuse(operand) >= LEAST_GATHERED:
                turns = operand.is_load and any(operand.stride(k) == 1 for k in self.reduced)
                total += (_TURNED if turns else _GATHERED) * self.size(operand.axes)
            else:
                total += _GATHERED * self.size(self.extents)
        return total

    def _accumulators(self, vectors: int) -> int:
        """Returns the most registers that accumulate: the others hold the vectors of a step and one
        spread number, or an accumulator would wait in memory for each step; and what the finish
        needs, which would wait there for the end of the sums.
        """
        return min(self.registers * 3 // 4, self.registers - vectors - 1)

    def _vectors(self, lane: str) -> int:
        return -(-self.extents[lane] // self.lanes)

    def tile(self, lane: str) -> RegisterTile:
        """Returns the block of registers that takes the fewest cycles."""
        rows = self.size(self.tile_rows(lane))
        steps = self.size(self.extents) / (rows * self.extents[lane])
        tiles = []
        for vectors in range(1, min(_MOST_VECTORS, self._vectors(lane)) + 1):
            height = height_of(rows, max(1, self._accumulators(vectors) // vectors), vectors)
            full, rest = divmod(self._vectors(lane), vectors)
            once = 0.0
            for count, number in _heights(rows, height, vectors):
                cycles = full * _block_cycles(count, vectors)
                cycles += _block_cycles(count, rest) if rest else 0.0
                once += number * cycles
            # what is left over is code once more
            copies = 1.02 if rest else 1.0
            tiles.append(RegisterTile(vectors, height, steps * once * copies))
        return min(tiles, key=lambda tile: tile.cycles)


def are_even(rows: int, height: int, vectors: int) -> bool:
    """True if rows are cut evenly into blocks of at most a height, because what is left over by
    blocks of that height would wait for its results. Blocks of less than most are less code.
    """
    rest = rows % height
    return 0 < rest * vectors < LATENCY * PER_CYCLE


def height_of(rows: int, most: int, vectors: int) -> int:
    """Returns the rows of a block of registers, given the most that there may be."""
    most = min(rows, most)
    return -(-rows // -(-rows // most)) if are_even(rows, most, vectors) else most


def _heights(rows: int, height: int, vectors: int) -> tuple[tuple[int, int], ...]:
    """Returns the heights of the blocks that rows are cut into, and how many there are of each."""
    if not are_even(rows, height, vectors):
        return (height, rows // height), (rows % height, int(rows % height > 0))
    blocks = -(-rows // height)
    low, larger = divmod(rows, blocks)
    return (low + 1, larger), (low, blocks - larger)


def _block_cycles(rows: int, vectors: int) -> float:
    """Returns the cycles of one step of a block of registers."""
    registers = rows * vectors
    waiting = LATENCY if registers < LATENCY * PER_CYCLE else 0.0
    loads = rows + vectors
    return max(registers / PER_CYCLE, loads / PER_CYCLE, waiting) + 0.1 + _LOAD * loads


def _are_pairs(reduction: Reduction, target: Target) -> bool:
    """True if a processor multiplies pairs of a format that two operands have in memory."""
    formats = [
        factor.arg.dtype
        if isinstance(factor, Unary) and factor.op is UnaryOp.IDENTITY
        else factor.dtype
        for factor in reduction.factors
    ]
    return len(formats) == 2 and len(set(formats)) == 1 and formats[0] in target.pair_products


def _operand(
    position: int, factor: Expr, axes: Iterable[LoopAxis], nodes: NodeInfos
) -> ReductionOperand:
    used = set(free_variables(factor))
    loads = [each for each in walk(factor) if isinstance(each, Load)]
    is_converted = converted_load(factor) is not None
    return ReductionOperand(
        position,
        frozenset(axis.name for axis in axes if axis.var in used),
        strides(axes, loads, nodes),
        isinstance(factor, Load) or is_converted,
        is_converted,
        factor.dtype.nbytes,
    )


def converted_load(expr: Expr) -> Load | None:
    """Returns the cell of memory that an expression converts; None if it is something else."""
    match expr:
        case Unary(UnaryOp.IDENTITY, Load() as load):
            return load
        case _:
            return None


def strides(
    axes: Iterable[LoopAxis], accesses: Iterable[Load | Store], nodes: NodeInfos
) -> dict[str, int]:
    """Returns how far apart the cells of two neighbouring iterations are, per axis.

    Neighbours in descending order are no closer than 2: vectors run upwards.
    """
    found: dict[str, int] = {}
    for access in accesses:
        terms, _ = as_affine(row_major(access.indices, nodes[access.node].buffer_dims))
        steps = {
            var: max(-coefficient, 2) if coefficient < 0 else coefficient
            for coefficient, var in terms
        }
        for axis in axes:
            found[axis.name] = max(found.get(axis.name, 0), steps.get(axis.var, 0))
    return found
