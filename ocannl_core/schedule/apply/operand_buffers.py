"""The buffers of packed operands: their cells, and the statements that fill them.

Each kind of buffers (`BufferKind`) has a class. The memory of a thread is filled by its own loops,
and memory that the threads of a block share by all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial

from ocannl_core.ir.indexing import AxisIndex, IndexVar, affine, as_affine
from ocannl_core.ir.kernels.transforms import Pack, root_of
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.conversions import as_format, unwidened
from ocannl_core.ir.loops.loop_nests import condition, conjunction, guarded_by
from ocannl_core.ir.loops.traverse import substitute_in_expr
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.ir.numbers.primitives import TernaryOp
from ocannl_core.schedule.apply.axis_tree import AxisTree, Region
from ocannl_core.schedule.apply.emission import Emission
from ocannl_core.schedule.apply.nest_state import NestState
from ocannl_core.schedule.apply.packing import Packer
from ocannl_core.schedule.apply.shared_fill import ThreadCells, distribute_cyclically, least_rank
from ocannl_core.schedule.apply.vector_accesses import vector_iterations
from ocannl_core.schedule.machine_model import (
    BANK_BYTES,
    CACHE_LINE_BYTES,
    PADDED_STRIDE_BYTES,
    PADDING_CELLS,
)


class FilledBuffer(ABC):
    """The buffer of an operand.

    Attributes:
        operand: The expression that it holds the values of: a factor of the term, or a load of
            cells without a reduction.
    """

    def __init__(self, emission: Emission, pack: Pack, operand: ir.Expr) -> None:
        self.emission = emission
        self.pack = pack
        self.operand = operand

    @property
    def state(self) -> NestState:
        return self.emission.state

    @property
    def tree(self) -> AxisTree:
        return self.emission.state.tree

    @abstractmethod
    def fill(self, region: Region) -> tuple[ir.Stmt, ...]:
        """Return the statements that fill the buffer for the loops inside of a region."""

    @abstractmethod
    def cell(self, region: Region) -> ir.Expr:
        """Return the value of the operand at a point."""


class PackedBuffer(FilledBuffer):
    """Memory of the thread that fills it. Terms of dot products stay in their narrow format."""

    def __init__(self, emission: Emission, pack: Pack, operand: ir.Expr) -> None:
        super().__init__(emission, pack, operand)
        kinds, order = self.state.kinds, self.state.order
        is_dot = kinds[order[-1]] is ir.AxisKind.DOT
        self._packed = unwidened(operand) if is_dot else operand
        dims = [self.tree.max_extent(axis) for axis in self.pack.axes]
        nbytes = self._packed.dtype.nbytes
        if kinds.get(self.pack.axes[-1]) is not ir.AxisKind.DOT:
            if len(dims) > 1 and dims[-1] * nbytes % PADDED_STRIDE_BYTES == 0:
                dims[-1] += CACHE_LINE_BYTES // nbytes
        elif len(dims) > 2 and dims[-2] * dims[-1] * nbytes % PADDED_STRIDE_BYTES == 0:
            dims[-2] += CACHE_LINE_BYTES // (dims[-1] * nbytes)
        self.node = emission.new_array(
            f"packed{self.pack.operand}", self._packed.dtype, tuple(dims)
        )

    def _indices(self, region: Region) -> tuple[AxisIndex, ...]:
        return tuple(map(region.position, self.pack.axes))

    def fill(self, region: Region) -> tuple[ir.Stmt, ...]:
        def copy(inner: Region) -> tuple[ir.Stmt, ...]:
            value = substitute_in_expr(self._packed, inner.substitution())
            return (ir.Store(self.node, self._indices(inner), value),)

        emission = self.emission
        dims = emission.nodes[self.node].dims
        packer = Packer(
            self.tree, self.state.kinds, emission.loops, self.pack, dims, emission.operands
        )
        filling = packer.fill(self._packed, region, copy)
        return (ir.Allocate(self.node, ir.Scope.KERNEL), *filling)

    def cell(self, region: Region) -> ir.Expr:
        cell = ir.Load(self.node, self._indices(region), self._packed.dtype)
        return as_format(cell, self.operand.dtype)


class SharedBuffer(FilledBuffer):
    """Memory that the threads of a block share, which fill it together."""

    def __init__(self, emission: Emission, pack: Pack, operand: ir.Expr) -> None:
        super().__init__(emission, pack, operand)
        dims = self._dims()
        self.node = emission.new_array(self._label, self._dtype, dims, ir.Scope.GROUP)

    _label = "packed"

    @property
    def _dtype(self) -> DType:
        return self.operand.dtype

    def _dims(self) -> tuple[int, ...]:
        dims = [self.tree.max_extent(name) for name in self.pack.axes]
        if self._fill_order()[-1] != self.pack.axes[-1]:
            dims[-1] += self._padding()  # neighboring threads fill different rows
        return tuple(dims)

    def _padding(self) -> int:
        """Return the cells between rows of a packed operand that threads write across: a word where
        each thread reads single cells.
        """
        if self.state.nest.reduction:
            return PADDING_CELLS
        return max(1, BANK_BYTES // self.operand.dtype.nbytes)

    def _fill_order(self) -> list[str]:
        """Return the axes of the operand in the order of memory, the contiguous one last."""
        axes = self.tree.axes
        return sorted(
            self.pack.axes, key=lambda name: least_rank(self.operand, axes[root_of(name)].var)
        )

    def cell(self, region: Region) -> ir.Expr:
        return ir.Load(self.node, tuple(map(region.position, self.pack.axes)), self._dtype)

    def fill(self, region: Region) -> tuple[ir.Stmt, ...]:
        order, pack = self._fill_order(), self.pack
        row = None if order[-1] == pack.axes[-1] else self._padding()
        leaf = self.emission.vectors
        vectors = None if leaf is None else leaf.of_operand(self.tree, self.operand, order[-1])
        if leaf is None or vectors is None:
            copied = self.distributed(region, order, 1, row)
            value = self.padded(self.operand, region.at(copied.positions))
            indices = tuple(copied.positions[name] for name in pack.axes)
            return copied.around((ir.Store(self.node, indices, value),))
        lanes = self.tree.max_extent(leaf.name)
        copied = self.distributed(region, order, lanes, row)
        lane, inner = copied.lane, region.at(copied.positions)
        values: dict[IndexVar, AxisIndex] = {}
        ends: list[ir.LoopBound] = []
        for root in self.tree.axes_of(self.operand):
            axis = self.tree.axes[root]
            values |= inner.values((root,))
            if self.tree.exceeds(root):
                terms, offset = as_affine(inner.position(root))
                first = affine([term for term in terms if term[1] is not lane], offset)
                ends.append(axis.bound_at(first) or ir.LoopBound(first, axis.extent))

        indices = tuple(copied.positions[name] for name in pack.axes)
        cells = [*vectors.at(values), *([(self.node, indices)] if row is None else [])]
        store = ir.Store(self.node, indices, substitute_in_expr(self.operand, values))
        copies = vector_iterations(
            cells,
            lane,
            lanes,
            (store,),
            {**leaf.nodes, **self.emission.nodes},
            self.emission.new_vector,
            partial(guarded_by, ends) if ends else None,
        )
        return copied.around(copies)

    def distributed(
        self, region: Region, order: Sequence[str], lanes: int, padding: int | None
    ) -> ThreadCells:
        """Distribute the cells of the buffer, in an order of its axes, among the threads."""
        extent = self.tree.max_extent
        threads = [(region.numbers[name], extent(name)) for name in self.state.block]
        return distribute_cyclically(threads, {n: extent(n) for n in order}, lanes, padding)

    def padded(self, factor: ir.Expr, region: Region) -> ir.Expr:
        """Return an expression at the positions of a copy, zero beyond the axes."""
        roots = self.tree.axes_of(factor)
        value = substitute_in_expr(factor, region.values(roots))
        padded = [root for root in roots if self._has_padding(root)]
        joint = conjunction(map(condition, map(region.end, padded)))
        if joint is None:
            return value
        return ir.Ternary(TernaryOp.WHERE, joint, value, ir.Const(0.0, value.dtype), value.dtype)

    def _has_padding(self, root: str) -> bool:
        """Return True if the buffer has cells beyond an axis."""
        return self.tree.exceeds(root)
