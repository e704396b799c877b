"""Cost model of a reduction: its operands, their strides, and the register tile of least cost.

A tile is limited by the throughput of multiply-adds and loads and by the latency of a multiply-add;
`machine_model` has the constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.rounding import ceil_div
from ocannl_core.ir.kernels.nest import Nest, Reduction
from ocannl_core.ir.kernels.nest_accesses import epilogue_loads, strides
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.loops.nodes import Binary, Expr, Load, Unary
from ocannl_core.ir.loops.traverse import free_variables, nodes_of, walk
from ocannl_core.ir.matrix_units import DotProduct
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.ir.target import Target
from ocannl_core.schedule import machine_model
from ocannl_core.schedule.rules.unit_choice import find_unit
from ocannl_core.schedule.rules.vectorizable import has_vectorizable_epilogue, widest_lane_bytes


@dataclass(frozen=True, slots=True)
class ReductionOperand:
    """One factor of the reduced term."""

    position: int
    axes: frozenset[str]
    strides: Mapping[str, int]
    """Per axis, the largest distance in memory that one step along it makes, in elements."""
    is_load: bool
    """True if it is loaded from memory, maybe converted, and not computed."""
    is_converted: bool
    """True if it is loaded from memory in another format."""
    nbytes: int
    runs: int
    """The runs of the nest that one copy of it serves: iterations of a repetition, or of the shared
    rows, around it.
    """

    def stride(self, axis: str) -> int:
        return self.strides.get(axis, 0)

    def is_contiguous(self, axis: str) -> bool:
        """Return True if the stride along an axis is 1, or 0 for an operand that is broadcast."""
        return self.stride(axis) in (0, 1)

    def slides_along(self, axis: str, other: str, extents: Mapping[str, int]) -> bool:
        """Return True if two axes run over overlapping elements, as the axes of a window and of its
        positions do: the stride of one is a multiple of the other's that is smaller than its range.
        """
        fine, coarse = sorted((axis, other), key=self.stride)
        step = self.stride(fine)
        if step == 0 or self.stride(coarse) % step:
            return False
        return step <= self.stride(coarse) < step * extents[fine]


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """The accumulators of one innermost kernel, a block of vector registers."""

    vectors: int
    """Registers along the vector axis."""
    rows: int
    """Registers along the row axes."""
    cycles: float
    """Estimated cycles of the whole nest."""


class ReductionModel:
    """A nest with a reduction, and its cost on a processor.

    Attributes:
        has_vector_epilogue: True if neighboring results can be computed in vector lanes; others
            are computed one by one, after the terms of each were combined in lanes.
        output_axes: Axes of the results, outermost first.
        reduced_axes: Reduced axes that may run anywhere.
        shifting_axes: Reduced axes that move the results.
        is_fused: True if products may be added without being rounded.
        dot_product: The instruction that adds the products of some terms; None if none does.
    """

    def __init__(self, nest: Nest, reduction: Reduction, nodes: NodeInfos, target: Target) -> None:
        self.nest = nest
        self.machine = machine_model.MachineModel.of(target)
        self.has_vector_epilogue = has_vectorizable_epilogue(nest, nodes)
        widest = widest_lane_bytes(nest, nodes, has_epilogue=self.has_vector_epilogue)
        self.lanes = self.machine.lanes(widest)
        self.extents = {axis.name: axis.extent for axis in nest.axes}
        self.output_axes = [axis.name for axis in nest.output_axes]
        self.reduced_axes = [axis.name for axis in nest.reduced if not axis.is_shifting]
        self.shifting_axes = [axis.name for axis in nest.axes if axis.is_shifting]
        self.operands = tuple(
            _operand(position, factor, nest, nodes)
            for position, factor in enumerate(reduction.factors)
        )
        self._nodes = nodes
        self._stores = [strides(nest.axes, (store,), nodes) for store in nest.epilogue]
        is_product = isinstance(reduction.term, Binary) and reduction.term.op is BinaryOp.MUL
        is_sum = reduction.op is BinaryOp.ADD and is_product
        self.is_fused = self.machine.has_fma and is_sum and reduction.dtype.is_float
        unit = find_unit(DotProduct, reduction, target)
        is_exact = is_sum and reduction.dtype.is_integer
        is_whole = all(axis.bound is None for axis in nest.reduced)
        can_group = is_whole and (self.is_fused or is_exact)
        self.dot_product = unit if isinstance(unit, DotProduct) and can_group else None

    def iterations(self, names: Iterable[str]) -> int:
        """Return the iterations of several axes together."""
        return prod(self.extents[name] for name in names)

    def nbytes(self, operand: ReductionOperand) -> int:
        """Return an estimate of the memory that an operand spans."""
        steps = (operand.stride(name) * (self.extents[name] - 1) for name in operand.axes)
        return min(1 + sum(steps), self.iterations(operand.axes)) * operand.nbytes

    def has_distant_epilogue(self, *, is_split: bool) -> bool:
        """Return True if the arrays that the epilogue loads and stores exceed the second cache, so
        that every register tile waits for them.

        Args:
            is_split: True if the reduction runs in blocks, each of which loads and stores the
                results: they stay in the cache longer.
        """
        nodes = {load.node for load in epilogue_loads(self.nest)}
        near = self.machine.l2_working_set if is_split else self.machine.l2_strided
        return sum(self._nodes[node].nbytes for node in nodes) > near

    def vector_operands(self, vector_axis: str) -> list[ReductionOperand]:
        """Return the operands that depend on the vector axis."""
        return [operand for operand in self.operands if vector_axis in operand.axes]

    def reuse(self, operand: ReductionOperand) -> int:
        """Return how often each element of an operand is used."""
        names = (*self.output_axes, *self.shifting_axes)
        return self.iterations(name for name in names if name not in operand.axes)

    def uses_of_copy(self, operand: ReductionOperand) -> int:
        """Return how often each element of a copy of an operand is used."""
        return self.reuse(operand) * operand.runs

    def is_worth_gathering(self, operand: ReductionOperand) -> bool:
        """Return True if packing an operand with a stride along the vector axis pays: it is reused
        often, and its copy fits into the second cache.
        """
        nbytes = self.iterations(operand.axes) * operand.nbytes
        is_reused = self.uses_of_copy(operand) >= machine_model.MIN_PACK_REUSE
        return is_reused and nbytes <= self.machine.l2_copy

    def ordered_reductions(self, vector_axis: str) -> list[str]:
        """Return the reduced axes, one along which broadcast operands are contiguous innermost."""
        names = list(self.reduced_axes)
        spread = [each for each in self.operands if vector_axis not in each.axes]
        for name in reversed(names):
            if self.extents[name] > 1 and any(each.stride(name) == 1 for each in spread):
                names.remove(name)
                return [*names, name]
        return names

    def can_group_terms(self, vector_axis: str) -> bool:
        """Return True if there is a dot-product instruction, and both operands have groups of terms
        contiguous, in memory or in a copy that pays.
        """
        unit, names = self.dot_product, self.ordered_reductions(vector_axis)
        if unit is None or not names or self.lanes < 4:
            return False
        if self.extents[names[-1]] < unit.least_terms:
            return False
        return all(self._can_group(each, vector_axis, names[-1]) for each in self.operands)

    def _can_group(self, operand: ReductionOperand, vector_axis: str, axis: str) -> bool:
        if vector_axis in operand.axes:
            is_reused = self.uses_of_copy(operand) >= machine_model.MIN_PACK_REUSE
            return is_reused and self.can_pack_vectors(operand, vector_axis)
        if operand.is_load and operand.stride(axis) == 1:
            return True
        rows = self.tile_row_axes(vector_axis)
        return len(rows) == 1 and self.can_pack_rows(operand, rows[0])

    def can_pack_vectors(self, operand: ReductionOperand, vector_axis: str) -> bool:
        """Return True if some operand is invariant between blocks of vectors and the reduction."""
        outer = self.outer_axes(vector_axis)
        return not any(
            name in operand.axes
            for name in self.output_axes
            if name != vector_axis and name not in outer
        )

    def can_pack_rows(self, operand: ReductionOperand, axis: str) -> bool:
        """Return True if an operand depends on one output axis alone."""
        is_alone = all(name == axis for name in self.output_axes if name in operand.axes)
        is_still = not any(name in operand.axes for name in self.shifting_axes)
        return axis in operand.axes and is_alone and is_still

    def row_axes(self, vector_axis: str) -> list[str]:
        """Return the output axes along which a vector operand is reused; without any, the innermost
        one if windows slide along it whose sums are so short that nothing else hides the latency of
        their additions.
        """
        vectors = self.vector_operands(vector_axis)
        others = [
            name for name in self.output_axes if name != vector_axis and self.extents[name] > 1
        ]
        rows = [name for name in others if any(name not in each.axes for each in vectors)]
        if rows or not others or not self._waits_for_additions(vector_axis):
            return rows
        slides = any(
            each.slides_along(others[-1], name, self.extents)
            for each in vectors
            for name in self.reduced_axes
        )
        return others[-1:] if slides else []

    def _waits_for_additions(self, vector_axis: str) -> bool:
        """Return True if the vectors of a cell's neighbors are too few accumulators, and there are
        too few terms for more of them.
        """
        if vector_axis in self.reduced_axes or not self.reduced_axes or self.shifting_axes:
            return False
        vectors = min(self._vector_count(vector_axis), machine_model.MAX_TILE_VECTORS)
        return self.chains(vectors) > 2 and not self.axis_of_chains(vectors)

    def chains(self, accumulators: int) -> int:
        """Return the accumulators per result with which no addition waits for another."""
        return machine_model.ACCUMULATOR_CHAINS // accumulators

    def axis_of_chains(self, accumulators: int) -> str:
        """Return the reduced axis whose terms several accumulators of each result share; "" if
        none is long, no addition waits, or shifting axes reuse vectors, which pays if packed.
        """
        chains = self.chains(accumulators)
        if chains < 2 or not self.reduced_axes or self.shifting_axes:
            return ""
        name = max(self.reduced_axes, key=lambda each: self.extents[each])
        return name if self.extents[name] >= 4 * chains else ""

    def outer_axes(self, vector_axis: str) -> list[str]:
        """Return the output axes on which all vector operands depend."""
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
        """Return a register tile's row axes: the innermost, and more while they are short."""
        chosen: list[str] = []
        for name in reversed(self.row_axes(vector_axis)):
            if chosen and self.iterations((*chosen, name)) > self.machine.max_tile_rows:
                break
            chosen.insert(0, name)
        return chosen

    def cycles(self, vector_axis: str) -> float:
        """Return an estimate of the nest's cycles, vectorized along an axis."""
        # every result is stored once for each iteration of a shifting axis
        stores = self.iterations((*self.output_axes, *self.shifting_axes))
        has_chains = False
        if vector_axis in self.reduced_axes:
            steps = self.iterations(self.extents) / self.extents[vector_axis]
            vectors = self._vector_count(vector_axis) * (1.0 if self.row_axes(vector_axis) else 2.0)
            busy = steps * vectors / machine_model.OPERATIONS_PER_CYCLE
            combining = stores * machine_model.HORIZONTAL_CYCLES * self.lanes
            total = max(busy, self._repeated_load_cycles()) + combining
        else:
            tile = self.register_tile(vector_axis)
            has_chains = bool(self.axis_of_chains(tile.vectors * tile.rows))
            total = tile.cycles
            if self.dot_product is not None and self.can_group_terms(vector_axis):
                total /= self.dot_product.terms
            scattered_stores = sum(strides.get(vector_axis, 0) != 1 for strides in self._stores)
            total += machine_model.SCATTERED_STORE_CYCLES * stores * scattered_stores
        for operand in self.operands:
            if operand.is_contiguous(vector_axis):
                continue
            gather_cycles = machine_model.GATHER_CYCLES
            if operand.is_load and operand.stride(vector_axis) == 2 and not operand.is_converted:
                gather_cycles = machine_model.SHUFFLE_CYCLES
            if vector_axis in self.reduced_axes and self.is_worth_gathering(operand):
                total += gather_cycles * self.iterations(operand.axes) / operand.runs
                continue
            runs = 1 if has_chains else operand.runs  # tiles with chains pack nothing
            is_packed = (
                vector_axis not in self.reduced_axes
                and self.reuse(operand) * runs >= machine_model.MIN_GATHER_REUSE
                and self.can_pack_vectors(operand, vector_axis)
            )
            if is_packed:
                can_transpose = operand.is_load and any(
                    operand.stride(k) == 1 for k in self.reduced_axes
                )
                if can_transpose:
                    gather_cycles = min(gather_cycles, machine_model.TRANSPOSE_CYCLES)
                total += gather_cycles * self.iterations(operand.axes) / runs
            else:
                total += gather_cycles * self.iterations(self.extents)
        return total

    def reduction_tile(self, rows: int | None = None) -> dict[str, int]:
        """Return the output axes and extents of a register tile with vectors along a reduced axis,
        one axis along which each operand is reused.

        Args:
            rows: The most results along an axis; by default `MachineModel.reduction_tile_extent`.
        """
        extents: dict[str, int] = {}
        limit = rows or self.machine.reduction_tile_extent
        for operand in self.operands[:2]:
            sharing = [
                name
                for name in self.output_axes
                if self.extents[name] > 1 and name not in operand.axes and name not in extents
            ]
            if sharing:
                extents[sharing[-1]] = min(limit, self.extents[sharing[-1]])
        return extents

    def _repeated_load_cycles(self) -> float:
        """Return the cycles in which operands arrive that tiles with vectors along a reduced axis
        load once more, each from the cache that has room for the terms of a tile.
        """
        tile, machine, cycles = self.reduction_tile(), self.machine, 0.0
        for operand in self.operands:
            rows = prod(size for name, size in tile.items() if name in operand.axes)
            uses = prod(size for name, size in tile.items() if name not in operand.axes)
            terms = self.iterations(operand.axes.intersection(self.reduced_axes))
            span = rows * terms * operand.nbytes
            if span <= machine.l1_working_set:
                continue
            loaded = self.iterations(self.extents) / uses * operand.nbytes
            repeated = loaded - self.iterations(operand.axes) * operand.nbytes
            is_near = span <= machine.l2_working_set
            rate = machine_model.SECOND_CACHE_BYTES if is_near else machine_model.LAST_CACHE_BYTES
            cycles += repeated / rate
        return cycles

    def _vector_count(self, vector_axis: str) -> int:
        return ceil_div(self.extents[vector_axis], self.lanes)

    def _max_tile_vectors(self, vector_axis: str) -> int:
        """Return the most vectors of a register tile along the vector axis: where no block of the
        reduction can end with partial results, packed vectors of all terms stay in the second
        cache, unless broadcast operands would come from far away more often.
        """
        most, near = machine_model.MAX_TILE_VECTORS, self.machine.l2_working_set
        broadcast = [each for each in self.operands if vector_axis not in each.axes]
        if self.nest.holds_partial_results or sum(map(self.nbytes, broadcast)) > near:
            return most
        nbytes = self._vector_bytes(vector_axis)
        return max(1, min(most, near // nbytes)) if nbytes else most

    def _vector_bytes(self, vector_axis: str) -> int:
        """Return the bytes of packed vectors of all terms, for each vector of a register tile."""
        return sum(
            self.lanes * each.nbytes * self.iterations(each.axes.intersection(self.reduced_axes))
            for each in self.vector_operands(vector_axis)
            if not each.is_contiguous(vector_axis)
            and self.reuse(each) >= machine_model.MIN_BLOCKING_REUSE
            and self.can_pack_vectors(each, vector_axis)
        )

    def register_tile(self, vector_axis: str) -> RegisterTile:
        """Return the register tile of the fewest cycles."""
        rows = self.iterations(self.tile_row_axes(vector_axis))
        steps = self.iterations(self.extents) / (rows * self.extents[vector_axis])
        tiles = []
        most = min(self._max_tile_vectors(vector_axis), self._vector_count(vector_axis))
        nbytes = self._vector_bytes(vector_axis)
        for vectors in range(1, most + 1):
            is_near = vectors * nbytes <= self.machine.l1_working_set
            far = 0.0 if is_near else self.machine.vector_bytes / machine_model.SECOND_CACHE_BYTES
            height = tile_height(
                rows, max(1, self.machine.max_accumulators(vectors) // vectors), vectors
            )
            full, rest = divmod(self._vector_count(vector_axis), vectors)
            step_cycles = 0.0
            for count, number in _tile_heights(rows, height, vectors):
                cycles = full * _step_cycles(count, vectors, far)
                cycles += _step_cycles(count, rest, far) if rest else 0.0
                step_cycles += number * cycles
            # the remainder is a second copy of the code
            factor = machine_model.REMAINDER_FACTOR if rest else 1.0
            tiles.append(RegisterTile(vectors, height, steps * step_cycles * factor))
        return min(tiles, key=lambda tile: tile.cycles)


def splits_evenly(rows: int, height: int, vectors: int) -> bool:
    """Return True if rows are split into tiles of equal heights, up to one row: a remainder of full
    tiles would stall on the latency of its additions, or as many equal tiles need no code for one.
    """
    rest = rows % height
    is_short = rest * vectors < machine_model.ACCUMULATOR_CHAINS
    return rest > 0 and (is_short or rows % ceil_div(rows, height) == 0)


def tile_height(rows: int, max_height: int, vectors: int) -> int:
    """Return the rows of a register tile, given their maximum."""
    max_height = min(rows, max_height)
    return (
        ceil_div(rows, ceil_div(rows, max_height))
        if splits_evenly(rows, max_height, vectors)
        else max_height
    )


def _tile_heights(rows: int, height: int, vectors: int) -> tuple[tuple[int, int], ...]:
    """Return the heights of the tiles that rows are split into, and the number of each."""
    if not splits_evenly(rows, height, vectors):
        return (height, rows // height), (rows % height, int(rows % height > 0))
    blocks = ceil_div(rows, height)
    low, larger = divmod(rows, blocks)
    return (low + 1, larger), (low, blocks - larger)


def _step_cycles(rows: int, vectors: int, vector_cycles: float) -> float:
    """Return the cycles of one step of a register tile.

    Args:
        vector_cycles: The cycles until a vector arrives from the second cache; 0 if none does.
    """
    registers = rows * vectors
    waiting = (
        machine_model.MULTIPLY_ADD_LATENCY if registers < machine_model.ACCUMULATOR_CHAINS else 0.0
    )
    loads = rows + vectors
    busy = max(registers, loads) / machine_model.OPERATIONS_PER_CYCLE
    busy = max(busy, waiting, vectors * vector_cycles)
    return busy + machine_model.STEP_CYCLES + machine_model.LOAD_CYCLES * loads


def _operand(position: int, factor: Expr, nest: Nest, nodes: NodeInfos) -> ReductionOperand:
    used = set(free_variables(factor))
    loads = [each for each in walk(factor) if isinstance(each, Load)]
    is_converted = converted_load(factor) is not None
    repetition = nest.repetition
    is_constant = repetition is not None and {*repetition.constants}.issuperset(nodes_of(factor))
    return ReductionOperand(
        position,
        frozenset(axis.name for axis in nest.axes if axis.var in used),
        strides(nest.axes, loads, nodes),
        isinstance(factor, Load) or is_converted,
        is_converted,
        factor.dtype.nbytes,
        repetition.count if repetition is not None and is_constant else 1,
    )


def converted_load(expr: Expr) -> Load | None:
    """Return the load that an expression converts; None if it is something else."""
    match expr:
        case Unary(UnaryOp.IDENTITY, Load() as load):
            return load
        case _:
            return None
