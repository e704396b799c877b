"""The accumulators of a reduction: cleared, updated, combined, and read by the epilogue.

They are an array of scope THREAD with one axis for each loop inside `accumulate over` that is not a
serial reduced loop; code generation keeps it in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import product
from types import MappingProxyType

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir import indexing
from ocannl_core.ir.kernels.nest import Nest, Reduction, iterations
from ocannl_core.ir.kernels.transforms import root_of
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.traverse import map_expr, substitute_in_expr, substitute_in_stmt, walk
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType, int32, int64
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp
from ocannl_core.schedule.apply.axis_tree import AxisTree, Region
from ocannl_core.schedule.apply.nest_state import NestState
from ocannl_core.schedule.apply.packing import LoopBuilder
from ocannl_core.schedule.cost_model import cost
from ocannl_core.schedule.machine_model import (
    FUNCTION_COST,
    MAX_UNROLLED_EPILOGUE,
    MIN_OUTLINED_TERMS,
)


@dataclass(frozen=True, slots=True)
class Accumulators:
    """The accumulators of one region: an array with one axis for each loop that has its own
    accumulators, or a variable for a single cell of a thread.
    """

    node: TensorNode | None
    """The array; None for a variable."""
    local: ir.Local
    """The variable, which nothing else uses."""
    state: NestState
    axes: tuple[str, ...]
    """The loops of which every iteration has an accumulator of its own."""
    region: Region
    loops: LoopBuilder
    """Makes loops over cells."""
    is_fused: bool
    """True if products are added without rounding them first."""

    @property
    def reduction(self) -> Reduction:
        """The reduction of the nest."""
        return self.state.nest.required_reduction

    @property
    def declaration(self) -> ir.Stmt:
        if self.node is None:
            return ir.DeclareLocal(self.local)
        return ir.Allocate(self.node, ir.Scope.THREAD)

    @property
    def dims(self) -> tuple[int, ...]:
        """The extents of the array."""
        return tuple(map(self._extent, self.axes))

    def _extent(self, name: str) -> int:
        """Return the accumulators along a loop; one at least, even if nothing is reduced."""
        return max(1, self.region.max_extent(name))

    def _is_reduced(self, name: str) -> bool:
        return self.region.tree.is_reduced(name)

    @property
    def dtype(self) -> DType:
        return self.reduction.dtype

    @property
    def _first(self) -> dict[str, indexing.AxisIndex]:
        """The first of the accumulators of a result."""
        return {name: indexing.FixedIndex(0) for name in self.axes if self._is_reduced(name)}

    def value(
        self, region: Region, fixed: Mapping[str, indexing.AxisIndex] | None = None
    ) -> ir.Expr:
        """Return an accumulator of a result, the one of the point unless others are fixed."""
        if self.node is None:
            return ir.LocalRead(self.local)
        fixed = fixed or {}
        indices = tuple(
            fixed[name] if name in fixed else region.position(name) for name in self.axes
        )
        return ir.Load(self.node, indices, self.dtype)

    def store(
        self, region: Region, value: ir.Expr, fixed: Mapping[str, indexing.AxisIndex] | None = None
    ) -> ir.Stmt:
        """Return the statement that sets an accumulator."""
        match self.value(region, fixed):
            case ir.Load(node, indices):
                return ir.Store(node, indices, value)
            case _:
                return ir.SetLocal(self.local, value)

    def clear(self) -> tuple[ir.Stmt, ...]:
        """Return the statements that set every accumulator to the neutral element."""

        def clear(region: Region, fixed: Mapping[str, indexing.AxisIndex]) -> tuple[ir.Stmt, ...]:
            return (self.store(region, self.reduction.neutral, fixed),)

        return self._loop_over(self.axes, self.region, {}, clear)

    def _loop_over(
        self,
        names: Sequence[str],
        region: Region,
        fixed: Mapping[str, indexing.AxisIndex],
        body: Callable[[Region, Mapping[str, indexing.AxisIndex]], tuple[ir.Stmt, ...]],
    ) -> tuple[ir.Stmt, ...]:
        """Return loops over results in their order, and over all accumulators of each."""
        if not names:
            return body(region, fixed)
        name, rest = names[0], names[1:]
        if not self._is_reduced(name):
            return self.loops(
                (name,), region, lambda inner: self._loop_over(rest, inner, fixed, body)
            )
        extent = self._extent(name)
        if extent == 1:
            return self._loop_over(rest, region, {**fixed, name: indexing.FixedIndex(0)}, body)
        var = indexing.fresh_var(self.region.tree.hint(name))
        stmts = self._loop_over(rest, region, {**fixed, name: indexing.VarIndex(var)}, body)
        kind = self.state.kinds[name]
        return (ir.For(var, 0, extent, ir.Block(stmts), kind),) if stmts else ()

    def update(self, region: Region, term: ir.Expr, end: ir.LoopBound | None = None) -> ir.Stmt:
        """Return the statement that adds one term.

        Args:
            end: The end at run time of terms in lanes: those beyond are left out.
        """
        cell = self.value(region)
        total = self._add_term(cell, term)
        if end is not None:
            counter = int64 if self.dtype.nbytes == int64.nbytes else int32
            position, extent = (ir.IndexValue(index, counter) for index in (end.index, end.end))
            is_inside = ir.Binary(BinaryOp.LT, position, extent, counter)
            total = ir.Ternary(TernaryOp.WHERE, is_inside, total, cell, self.dtype)
        return self.store(region, total)

    def _add_term(self, cell: ir.Expr, term: ir.Expr) -> ir.Expr:
        match self.reduction.op, term:
            case BinaryOp.ADD, ir.Binary(BinaryOp.MUL, left, right, dtype) if (
                self.is_fused and dtype.is_float
            ):
                return ir.Ternary(TernaryOp.FMA, left, right, cell, dtype)
            case op, _:
                return ir.Binary(op, cell, term, self.dtype)

    def combine(self) -> tuple[ir.Stmt, ...]:
        """Return the statements that combine the accumulators of each result, but for lanes."""
        chains = [
            name
            for name in self.axes
            if self._is_reduced(name) and self.state.kinds[name] is not ir.AxisKind.VECTOR
        ]
        sizes = [range(self._extent(name)) for name in chains]
        first = {name: indexing.FixedIndex(0) for name in chains}
        others = [name for name in self.axes if name not in chains]
        stmts: list[ir.Stmt] = []
        for positions in list(product(*sizes))[1:]:
            indices: dict[str, indexing.AxisIndex] = {
                name: indexing.FixedIndex(at) for name, at in zip(chains, positions, strict=True)
            }

            def combine(
                region: Region,
                fixed: Mapping[str, indexing.AxisIndex],
                indices: Mapping[str, indexing.AxisIndex] = indices,
            ) -> tuple[ir.Stmt, ...]:
                total = {**first, **fixed}
                both = self.value(region, total), self.value(region, {**indices, **fixed})
                return (self.store(region, ir.Binary(self.reduction.op, *both, self.dtype), total),)

            stmts += self._loop_over(others, self.region, {}, combine)
        return tuple(stmts)

    def copy_from(self, other: Accumulators, region: Region) -> tuple[ir.Stmt, ...]:
        """Return the statement that copies one result's accumulator from others."""
        return (self.store(region, other.value(region, self._first), self._first),)

    def store_results(
        self, region: Region, value: Callable[[Region], ir.Expr] | None = None
    ) -> tuple[ir.Stmt, ...]:
        """Return the epilogue of one result, on its accumulators.

        Args:
            value: Returns the result where it is in none of the accumulators.
        """
        lanes = [
            name
            for name in self.axes
            if self._is_reduced(name) and self.state.kinds[name] is ir.AxisKind.VECTOR
        ]
        cell = self.value(region, self._first)
        total = cell if value is None else value(region)
        if lanes:
            (lane,) = lanes
            parts: list[ir.Expr] = [
                self.value(region, {**self._first, lane: indexing.FixedIndex(at)})
                for at in range(self._extent(lane))
            ]
            total = self._reduce_pairwise(parts)
        nest = self.state.nest
        if not self.reduction.starts_neutral:
            initial = substitute_in_expr(self.reduction.initial, region.substitution())
            total = ir.Binary(self.reduction.op, initial, total, self.dtype)
        result = ir.LocalRead(self.reduction.result)
        uses = sum(each == result for store in nest.epilogue for each in walk(store.value))
        if uses <= 1 or total == cell:
            return epilogue_stores(nest, region, {result: total})
        stored = self.store(region, total, self._first)
        return (stored, *epilogue_stores(nest, region, {result: cell}))

    def _reduce_pairwise(self, parts: Sequence[ir.Expr]) -> ir.Expr:
        """Return the parts combined in a balanced tree: few operations depend on each other."""
        level = list(parts)
        while len(level) > 1:
            pairs = [level[at : at + 2] for at in range(0, len(level), 2)]
            level = [
                reduce(lambda a, b: ir.Binary(self.reduction.op, a, b, self.dtype), pair)
                for pair in pairs
            ]
        return level[0]


def epilogue_stores(
    nest: Nest,
    region: Region,
    results: Mapping[ir.Expr, ir.Expr],
    copies: Mapping[ir.Expr, ir.Expr] = MappingProxyType({}),
) -> tuple[ir.Stmt, ...]:
    """Return the stores of one result, with the value of its reduction substituted.

    Args:
        copies: Cells of packed loads, by the loads.
    """
    values = region.substitution()
    stmts: list[ir.Stmt] = []
    for store in nest.epilogue:
        if copies:
            store = replace(store, value=map_expr(store.value, lambda e: copies.get(e, e)))
        # substitute in the store first: the value of the result has its indices substituted already
        for stmt in substitute_in_stmt(store, values).stmts:
            assert isinstance(stmt, ir.Store)
            value = map_expr(stmt.value, lambda e: results.get(e, e))
            stmts.append(replace(stmt, value=value))
    return tuple(stmts)


def epilogue_size(nest: Nest, lanes: Mapping[indexing.LoopVar, int]) -> int:
    """Return the number of operations in the text of an epilogue, for one vector of results.

    Args:
        lanes: The variables that are vectorized, with their lanes: strided elements are loaded and
            stored one by one.
    """
    total = 0
    for store in nest.epilogue:
        for part in walk(store):
            indices = part.indices if isinstance(part, ir.Load | ir.Store) else ()
            scattered = [count for var, count in lanes.items() if _is_scattered(indices, var)]
            total += max(scattered, default=1)
    return total


def _is_scattered(indices: Sequence[indexing.AxisIndex], var: indexing.LoopVar) -> bool:
    """Return True if neighboring elements along a variable are neither equal nor contiguous."""
    factors = [
        factor for index in indices for factor, v in indexing.as_affine(index)[0] if v == var
    ]
    return bool(factors) and (factors != [1] or var not in indexing.variables(indices[-1]))


def has_expensive_epilogue(nest: Nest) -> bool:
    """Return True if an epilogue needs many registers."""
    return any(cost(store.value) >= FUNCTION_COST for store in nest.epilogue)


def has_long_epilogue(nest: Nest, tree: AxisTree, kinds: Mapping[str, ir.AxisKind]) -> bool:
    """Return True if an epilogue is long, unrolled for all results of a register tile."""
    vectors = [name for name, kind in kinds.items() if kind is ir.AxisKind.VECTOR]
    lanes = {tree.axes[root_of(name)].var: tree.max_extent(name) for name in vectors}
    terms = iterations(nest.reduced)
    return terms >= MIN_OUTLINED_TERMS and epilogue_size(nest, lanes) >= MAX_UNROLLED_EPILOGUE
