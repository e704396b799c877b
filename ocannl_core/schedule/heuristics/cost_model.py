"""What a reduction asks of a processor: operands and their distances in memory, and a small model
of how many cycles a block of registers takes.

The model: two fused multiply-adds and two loads start in each cycle, and a result can be used again
four cycles later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from ocannl_core.fast_dataclass import dataclass
from ocannl_core.indexing import as_affine, row_major
from ocannl_core.kernels.nest import KernelNest, LoopAxis, Reduction
from ocannl_core.kernels.nodes import NodeInfos
from ocannl_core.loopir.nodes import Binary, Expr, Load, Store, Unary
from ocannl_core.loopir.traverse import free_variables, walk
from ocannl_core.machine_model import (
    ACCUMULATOR_CHAINS,
    GATHER_CYCLES,
    HORIZONTAL_CYCLES,
    LOAD_CYCLES,
    MAX_TILE_VECTORS,
    MIN_GATHER_REUSE,
    MIN_PACK_REUSE,
    MULTIPLY_ADD_LATENCY,
    OPERATIONS_PER_CYCLE,
    REMAINDER_FACTOR,
    SCATTERED_STORE_CYCLES,
    STEP_CYCLES,
    TRANSPOSE_CYCLES,
    MachineModel,
)
from ocannl_core.ops import BinaryOp, UnaryOp
from ocannl_core.schedule.apply.prefetch import epilogue_loads
from ocannl_core.schedule.heuristics.vectorisable import widest_lane_bytes
from ocannl_core.target import Target


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

    def slides_along(self, axis: str, other: str, extents: Mapping[str, int]) -> bool:
        """True if two axes run over the same cells, as those of windows and of their positions do:
        steps along one are as large as one or a few along the other.
        """
        fine, coarse = sorted((axis, other), key=self.stride)
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
        machine: The processor.
        lanes: Numbers in one vector register.
        extents: Iterations of each axis.
        cells: Axes of cells, outermost first.
        reduced: Reduced axes that may be anywhere.
        shifting: Reduced axes that move the cells.
        operands: The factors of the term.
        is_fused: True if products can be added without being rounded.
        has_pairs: True if an instruction can add two products.
    """

    def __init__(
        self, nest: KernelNest, reduction: Reduction, nodes: NodeInfos, target: Target
    ) -> None:
        self.nest = nest
        self.machine = MachineModel.of(target)
        self.lanes = self.machine.lanes(widest_lane_bytes(nest, nodes))
        self.extents = {axis.name: axis.extent for axis in nest.axes}
        self.output_axes = [axis.name for axis in nest.cells]
        self.reduced_axes = [axis.name for axis in nest.reduced if not axis.is_shifting]
        self.shifting_axes = [axis.name for axis in nest.axes if axis.is_shifting]
        self.operands = tuple(
            _operand(position, factor, nest.axes, nodes)
            for position, factor in enumerate(reduction.factors)
        )
        self._nodes = nodes
        self._stores = [strides(nest.axes, (store,), nodes) for store in nest.finish]
        is_product = isinstance(reduction.term, Binary) and reduction.term.op is BinaryOp.MUL
        is_sum = reduction.op is BinaryOp.ADD and reduction.dtype.is_float
        self.is_fused = self.machine.has_fma and is_sum and is_product
        self.has_pairs = (
            self.is_fused and reduction.may_pair and _has_pair_product(reduction, self.machine)
        )

    def iterations(self, names: Iterable[str]) -> int:
        """Returns the iterations of several axes together."""
        return prod(self.extents[name] for name in names)

    def nbytes(self, operand: ReductionOperand) -> int:
        """Returns about how much memory an operand is."""
        steps = (operand.stride(name) * (self.extents[name] - 1) for name in operand.axes)
        return min(1 + sum(steps), self.iterations(operand.axes)) * operand.nbytes

    def has_distant_epilogue(self, *, is_split: bool) -> bool:
        """True if the cells that results are combined with, or stored to, are too many for a near
        cache, so that each block of registers waits for them.

        Args:
            in_pieces: True if each piece of a sum comes back to them; they stay near for longer.
        """
        nodes = {load.node for load in epilogue_loads(self.nest)}
        near = self.machine.l2_working_set if is_split else self.machine.l2_strided
        return sum(self._nodes[node].nbytes for node in nodes) > near

    def vector_operands(self, vector_axis: str) -> list[ReductionOperand]:
        """Returns the operands whose cells differ from lane to lane."""
        return [operand for operand in self.operands if vector_axis in operand.axes]

    def reuse(self, operand: ReductionOperand) -> int:
        """Returns how often each cell of an operand is used."""
        names = (*self.output_axes, *self.shifting_axes)
        return self.iterations(name for name in names if name not in operand.axes)

    def is_worth_gathering(self, operand: ReductionOperand) -> bool:
        """True if an operand whose lanes are apart is copied so that they lie together: it is used
        often, and the copy stays in the second cache.
        """
        nbytes = self.iterations(operand.axes) * operand.nbytes
        return self.reuse(operand) >= MIN_PACK_REUSE and nbytes <= self.machine.l2_copy

    def row_axes(self, vector_axis: str) -> list[str]:
        """Returns the axes along which a vector operand is used again."""
        vectors = self.vector_operands(vector_axis)
        return [
            name
            for name in self.output_axes
            if name != vector_axis
            and self.extents[name] > 1
            and any(name not in operand.axes for operand in vectors)
        ]

    def outer_axes(self, vector_axis: str) -> list[str]:
        """Returns the axes of cells on which all vector operands depend."""
        rows = self.row_axes(vector_axis)
        vectors = self.vector_operands(vector_axis)
        return [
            name
            for name in self.output_axes
            if name != vector_axis
            and name not in rows
            and vectors
            and all(name in operand.axes for operand in vectors)
        ]

    def tile_row_axes(self, vector_axis: str) -> list[str]:
        """Returns the row axes of a block: the innermost, and more while they are short."""
        chosen: list[str] = []
        for name in reversed(self.row_axes(vector_axis)):
            if chosen and self.iterations((*chosen, name)) > self.machine.max_tile_rows:
                break
            chosen.insert(0, name)
        return chosen

    # ----- cycles ---------------------------------------------------------------------------

    def cycles(self, vector_axis: str) -> float:
        """Returns about how long the nest takes with its lanes along an axis."""
        stores = self.iterations(
            (*self.output_axes, *self.shifting_axes)
        )  # as often as each of them is stored
        if vector_axis in self.reduced_axes:
            steps = self.iterations(self.extents) / self.extents[vector_axis]
            vectors = self._vector_count(vector_axis) * (1.0 if self.row_axes(vector_axis) else 2.0)
            total = steps * vectors / OPERATIONS_PER_CYCLE + stores * HORIZONTAL_CYCLES * self.lanes
        else:
            total = self.register_tile(vector_axis).cycles
            scattered_stores = sum(strides.get(vector_axis, 0) != 1 for strides in self._stores)
            total += SCATTERED_STORE_CYCLES * stores * scattered_stores
        for operand in self.operands:
            if operand.is_contiguous(vector_axis):
                continue
            if vector_axis in self.reduced_axes and self.is_worth_gathering(operand):
                total += GATHER_CYCLES * self.iterations(operand.axes)
            elif vector_axis not in self.reduced_axes and self.reuse(operand) >= MIN_GATHER_REUSE:
                can_transpose = operand.is_load and any(
                    operand.stride(k) == 1 for k in self.reduced_axes
                )
                total += (TRANSPOSE_CYCLES if can_transpose else GATHER_CYCLES) * self.iterations(
                    operand.axes
                )
            else:
                total += GATHER_CYCLES * self.iterations(self.extents)
        return total

    def _vector_count(self, vector_axis: str) -> int:
        return -(-self.extents[vector_axis] // self.lanes)

    def register_tile(self, vector_axis: str) -> RegisterTile:
        """Returns the block of registers that takes the fewest cycles."""
        rows = self.iterations(self.tile_row_axes(vector_axis))
        steps = self.iterations(self.extents) / (rows * self.extents[vector_axis])
        tiles = []
        for vectors in range(1, min(MAX_TILE_VECTORS, self._vector_count(vector_axis)) + 1):
            height = tile_height(
                rows, max(1, self.machine.max_accumulators(vectors) // vectors), vectors
            )
            full, rest = divmod(self._vector_count(vector_axis), vectors)
            step_cycles = 0.0
            for count, number in _tile_heights(rows, height, vectors):
                cycles = full * _step_cycles(count, vectors)
                cycles += _step_cycles(count, rest) if rest else 0.0
                step_cycles += number * cycles
            # what is left over is code once more
            factor = REMAINDER_FACTOR if rest else 1.0
            tiles.append(RegisterTile(vectors, height, steps * step_cycles * factor))
        return min(tiles, key=lambda tile: tile.cycles)


def splits_evenly(rows: int, height: int, vectors: int) -> bool:
    """True if rows are cut evenly into blocks of at most a height, because what is left over by
    blocks of that height would wait for its results. Blocks of less than most are less code.
    """
    rest = rows % height
    return 0 < rest * vectors < ACCUMULATOR_CHAINS


def tile_height(rows: int, max_height: int, vectors: int) -> int:
    """Returns the rows of a block of registers, given the most that there may be."""
    max_height = min(rows, max_height)
    return (
        -(-rows // -(-rows // max_height))
        if splits_evenly(rows, max_height, vectors)
        else max_height
    )


def _tile_heights(rows: int, height: int, vectors: int) -> tuple[tuple[int, int], ...]:
    """Returns the heights of the blocks that rows are cut into, and how many there are of each."""
    if not splits_evenly(rows, height, vectors):
        return (height, rows // height), (rows % height, int(rows % height > 0))
    blocks = -(-rows // height)
    low, larger = divmod(rows, blocks)
    return (low + 1, larger), (low, blocks - larger)


def _step_cycles(rows: int, vectors: int) -> float:
    """Returns the cycles of one step of a block of registers."""
    registers = rows * vectors
    waiting = MULTIPLY_ADD_LATENCY if registers < ACCUMULATOR_CHAINS else 0.0
    loads = rows + vectors
    busy = max(registers, loads) / OPERATIONS_PER_CYCLE
    return max(busy, waiting) + STEP_CYCLES + LOAD_CYCLES * loads


def _has_pair_product(reduction: Reduction, machine: MachineModel) -> bool:
    """True if a processor multiplies pairs of a format that two operands have in memory."""
    formats = [
        factor.arg.dtype
        if isinstance(factor, Unary) and factor.op is UnaryOp.IDENTITY
        else factor.dtype
        for factor in reduction.factors
    ]
    return len(formats) == 2 and len(set(formats)) == 1 and formats[0] in machine.pair_products


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
