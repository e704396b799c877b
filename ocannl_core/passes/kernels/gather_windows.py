"""Gather the terms of overlapping windows at each cell, for the thread blocks of a device.

    for k in range(3):                       for p in range(11):
        for i in range(9):             -->       for k in range(3):
            c[i + k] += a[i] * b[k]                  c[p] += where(0 <= p - k < 9, a[p - k], 0)
                                                             * where(0 <= p - k < 9, b[k], 0)

Threads must not add to windows that overlap at the same time. Here each cell belongs to one thread,
which adds its terms in the order that they had: the gradient of a convolution is one kernel.
Outside of the windows both factors are zero, so that no infinity is multiplied, and tiles of
products still apply: along other axes than the windows', conditions hold for a whole tile.

Windows that move by more than a cell, and long sums that have tiles along the axes of windows
alone, become a kernel for each position of the windows, at which all cells are distinct. They run
one after the other, in the order of the axis, so that each cell gets its terms in the same order:

    for k in range(3):                        for i in range(9): c[i] += a[i] * b[0]
        for i in range(9):             -->    for i in range(9): c[i + 1] += a[i] * b[1]
            c[i + k] += a[i] * b[k]           for i in range(9): c[i + 2] += a[i] * b[2]
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import copysign
from types import MappingProxyType

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir import indexing
from ocannl_core.ir.kernels.nest import (
    LoopAxis,
    Nest,
    Reduction,
    is_independent,
    iterations,
    substitute_in_nest,
    with_letters,
)
from ocannl_core.ir.kernels.nest_plan import (
    NestKernel,
    NestPlan,
    NestReplacement,
    NestStep,
    replace_nests,
    with_steps,
    written,
)
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.loops.loop_nests import conjunction
from ocannl_core.ir.loops.nodes import Binary, Const, Expr, IndexValue, Load, Ternary
from ocannl_core.ir.loops.traverse import substitute_in_expr
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import int32
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp
from ocannl_core.passes.kernels.inline_nodes import fill_of
from ocannl_core.schedule import machine_model


def gather_windows(plan: NestPlan) -> NestPlan:
    """Replace nests with shifting axes by nests in which each cell gathers its terms."""
    steps: list[NestStep] = []
    zeros: set[TensorNode] = set()
    for step in plan.steps:
        fill = fill_of(step)
        if isinstance(step, NestKernel):
            found = gathered(step.nest, {node: plan.nodes[node] for node in zeros})
            steps.append(step if found is None else step.with_nest(found))
        else:
            steps.append(step)
        zeros -= written(step)
        if fill is not None and fill.value == 0 and copysign(1, fill.value) > 0:
            zeros.add(fill.node)
    return with_steps(plan, steps)


@dataclass(frozen=True, slots=True)
class _Window:
    """A position of the result that a window shifts."""

    at: int
    """The axis of the result."""
    moved: LoopAxis
    """The axis of cells, `i` of `i + 2 * k + 1`."""
    shift: LoopAxis
    """The shifting axis, `k`."""
    step: int
    offset: int
    cell: indexing.LoopVar
    most: int
    """The number of all positions of a result that is zero before; 0 if it may not be."""

    @property
    def axis(self) -> LoopAxis:
        """The axis of all positions that windows reach; of all cells where those beyond are zero,
        so that the sum starts from zero without having to load it.
        """
        if self.most:
            return replace(self.moved, var=self.cell, start=0, extent=self.most)
        start = self.moved.start + self.step * self.shift.start + self.offset
        extent = self.moved.extent + self.step * (self.shift.extent - 1)
        return replace(self.moved, var=self.cell, start=start, extent=extent)

    @property
    def iteration(self) -> indexing.AxisIndex:
        """The iteration of the axis of cells that adds to a position."""
        return indexing.affine([(1, self.cell), (-self.step, self.shift.var)], -self.offset)

    @property
    def conditions(self) -> tuple[Expr, Expr]:
        """The conditions that there is such an iteration."""
        iteration = IndexValue(self.iteration, int32)
        before = IndexValue(indexing.FixedIndex(self.moved.start - 1), int32)
        end = IndexValue(indexing.FixedIndex(self.moved.start + self.moved.extent), int32)
        return (
            Binary(BinaryOp.LT, before, iteration, int32),
            Binary(BinaryOp.LT, iteration, end, int32),
        )


def gathered(nest: Nest, zeros: NodeInfos = MappingProxyType({})) -> Nest | None:
    """Return a nest whose cells gather; None without shifts, or if a kernel per shift is faster."""
    shifting = [axis for axis in nest.axes if axis.is_shifting]
    reduction = nest.reduction
    if not shifting or reduction is None or not nest.is_resumable:
        return None
    windows = [_window(nest, axis, zeros) for axis in shifting]
    found = [window for window in windows if window is not None]
    if len(found) < len(shifting) or len({window.moved.var for window in found}) < len(found):
        return None
    moved = {window.moved.var: window.axis for window in found}
    if not _is_fast(nest, frozenset(moved)):
        return None
    (store,) = nest.epilogue
    cells = {window.at: indexing.VarIndex(window.cell) for window in found}
    indices = tuple(cells.get(at, index) for at, index in enumerate(store.indices))
    values: dict[indexing.IndexVar, indexing.AxisIndex] = {
        window.moved.var: window.iteration for window in found
    }
    condition = conjunction(each for window in found for each in window.conditions)
    assert condition is not None
    term = _guarded(reduction, condition, substitute_in_expr(reduction.term, values))
    initial = Load(store.node, indices, reduction.dtype)
    axes = (
        *(moved.get(axis.var, axis) for axis in nest.output_axes),
        *(replace(axis, is_shifting=False) for axis in shifting),
        *(axis for axis in nest.reduced if not axis.is_shifting),
    )
    new = Nest(
        with_letters(axes),
        replace(reduction, term=term, initial=initial),
        (replace(store, indices=indices),),
    )
    return new if is_independent(new) else None


def _guarded(reduction: Reduction, condition: Expr, term: Expr) -> Expr:
    def guarded(expr: Expr, other: Expr) -> Expr:
        return Ternary(TernaryOp.WHERE, condition, expr, other, expr.dtype)

    match term:
        case Binary(BinaryOp.MUL, left, right, dtype) if reduction.op is BinaryOp.ADD:
            first, second = (guarded(each, Const(0.0, each.dtype)) for each in (left, right))
            return Binary(BinaryOp.MUL, first, second, dtype)
        case _:
            return guarded(term, reduction.neutral)


def _is_fast(nest: Nest, moved: frozenset[indexing.LoopVar]) -> bool:
    """Return True for few terms, or if a product has tiles along axes that windows do not move."""
    if iterations(nest.axes) <= machine_model.MAX_GATHERED_STEPS:
        return True
    return all(
        any(
            axis.var in used - moved and axis.extent >= machine_model.MIN_BLOCK_TILE
            for axis in nest.output_axes
            if sum(axis.var in each for each in nest.factor_variables) == 1
        )
        for used in nest.factor_variables
    )


def _window(nest: Nest, shift: LoopAxis, zeros: NodeInfos) -> _Window | None:
    """Return the position that an axis shifts; None if it is not `i + c * k`, for positive `c`."""
    (store,) = nest.epilogue
    dims = [at for at, index in enumerate(store.indices) if shift.var in indexing.variables(index)]
    if len(dims) != 1 or shift.bound is not None or shift.extent < 1:
        return None
    terms, offset = indexing.as_affine(store.indices[dims[0]])
    steps = {var: step for step, var in terms}
    step = steps.pop(shift.var)
    moved = next((axis for axis in nest.output_axes if steps == {axis.var: 1}), None)
    if moved is None or moved.bound is not None or moved.extent < 1 or step < 1:
        return None
    if sum(moved.var in indexing.variables(index) for index in store.indices) > 1:
        return None
    cell = indexing.fresh_var(moved.var.hint)
    most = zeros[store.node].buffer_dims[dims[0]] if store.node in zeros else 0
    return _Window(dims[0], moved, shift, step, offset, cell, most)


def unroll_shifts(plan: NestPlan) -> NestPlan:
    """Replace nests with shifting axes by one nest for each position of their windows."""

    def unrolled(nest: Nest) -> NestReplacement | None:
        nests = tuple(_unrolled(nest))
        return NestReplacement(nests, {}) if nests and all(map(is_independent, nests)) else None

    return replace_nests(plan, unrolled)


def _unrolled(nest: Nest) -> Iterator[Nest]:
    """Yield the nests of all positions, in order; none without shifting axes, or for too many."""
    shifting = [axis for axis in nest.axes if axis.is_shifting]
    count = iterations(shifting)
    if not shifting or count > machine_model.MAX_UNROLLED_SHIFTS:
        return
    if any(axis.bound is not None for axis in shifting):
        return
    kept = with_letters(axis for axis in nest.axes if not axis.is_shifting)
    ranges = (range(axis.start, axis.start + axis.extent) for axis in shifting)
    for positions in product(*ranges):
        values: dict[indexing.IndexVar, indexing.AxisIndex] = {
            axis.var: indexing.FixedIndex(at) for axis, at in zip(shifting, positions, strict=True)
        }
        yield replace(substitute_in_nest(nest, values), axes=kept)
