"""Random loop programs, as a strategy of Hypothesis.

The programs are well-formed and defined: every access is inside its node, every cell and variable
is written before it is read, and only operations occur whose results are the same on every backend.
So two backends, or a program before and after a pass, must give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.indexing import (
    AxisIndex,
    IndexVar,
    LoopVar,
    StaticExtent,
    StaticIndex,
    VarIndex,
    affine,
    as_affine,
    fresh_var,
)
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.node import Margin, NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import DType, Kind, bool_, float32, float64, int8, int32, uint32
from ocannl_core.ir.numbers.primitives import COMPARISONS, BinaryOp, Op, TernaryOp, UnaryOp, neutral
from ocannl_core.testing.compare import Array
from ocannl_core.testing.primitive_tables import accumulators, exact_primitives, special_values
from ocannl_core.testing.programs import Example


def random_cells(info: NodeInfo, seed: int) -> Array:
    """Return cells of a node, margins included: special values and ordinary numbers, mixed."""
    random = np.random.default_rng(seed)
    special = np.array(special_values(info.dtype), info.dtype.numpy)
    cells = special[random.integers(0, len(special), info.size)]
    if info.dtype.kind is not Kind.WORD:
        scale = 3.0 if info.dtype.is_float else 20.0
        ordinary = random.normal(0, scale, info.size)
        if info.dtype.kind is Kind.UNSIGNED:
            ordinary = abs(ordinary)
        elif info.dtype.kind is Kind.BOOL:
            ordinary = np.maximum(ordinary, 0)
        is_ordinary = random.random(info.size) < 0.7
        cells = np.where(is_ordinary, ordinary.astype(info.dtype.numpy), cells)
    return cells.reshape(info.buffer_dims)


Bounds = dict[IndexVar, int]
"""The variables in scope, each with its extent; values start at 0."""


class _Result(NamedTuple):
    """A new node, and the position along each of its axes that an iteration writes."""

    node: TensorNode
    dtype: DType
    indices: tuple[AxisIndex, ...]


@dataclass
class Author:
    """Author of one program: draws choices, and tracks the readable nodes and variables."""

    draw: st.DrawFn
    dtypes: tuple[DType, ...]
    """The formats to use."""
    kinds: tuple[ir.AxisKind, ...]
    """The kinds of independent loops to use."""
    nodes: dict[TensorNode, NodeInfo] = field(default_factory=dict)
    params: list[TensorNode] = field(default_factory=list)
    statics: list[StaticIndex] = field(default_factory=list)
    arrays: dict[TensorNode, Array] = field(default_factory=dict)
    readable: list[TensorNode] = field(default_factory=list)
    """Nodes all of whose cells are written."""
    locals: list[ir.Local] = field(default_factory=list)
    """Variables that are set at the place of the next expression."""
    local_count: int = 0

    def choose(self, options: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def count(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def nest(self, depth: int) -> list[ir.Stmt]:
        """Return statements that write one new node, which can be read afterwards."""
        loops: list[tuple[LoopVar, int]] = [
            (fresh_var("i"), self.count(1, 4)) for _ in range(self.count(0, 3))
        ]
        bounds: Bounds = dict(loops)
        indices, dims = self._result_axes(loops)
        dtype = self.choose(self.dtypes)
        padding = tuple(Margin(self.count(0, 1), self.count(0, 1)) for _ in dims)
        info = NodeInfo(dtype, dims, padding if self.count(0, 3) == 0 else ())
        if info.padding:
            indices = [
                _shifted(index, margin.left)
                for index, margin in zip(indices, info.padding, strict=True)
            ]
        result = self._new_node("r", info)
        stmts: list[ir.Stmt] = []
        if self.count(0, 2) == 0:
            stmts.append(ir.Allocate(result, ir.Scope.ROUTINE))
        else:
            self.params.append(result)
            self.arrays[result] = random_cells(info, self.count(0, 2**16))
        form = self.choose(
            [self._pointwise, self._accumulation, self._reduction_in_variable, self._scatter]
        )
        order = self.draw(st.permutations(loops))
        stmts += form(_Result(result, dtype, tuple(indices)), order, bounds, depth)
        self.readable.append(result)
        return stmts

    def _result_axes(
        self, loops: Sequence[tuple[LoopVar, int]]
    ) -> tuple[list[AxisIndex], tuple[int, ...]]:
        """Return one position for each loop, so that no cell is written twice, and the extents."""
        indices: list[AxisIndex] = []
        dims = []
        for var, extent in loops:
            stride, offset = self.count(1, 2), self.count(0, 1)
            is_reversed = self.draw(st.booleans())
            dims.append(stride * (extent - 1) + offset + 1)
            last = stride * (extent - 1) + offset
            indices.append(
                affine([(-stride, var)], last) if is_reversed else affine([(stride, var)], offset)
            )
        return indices, tuple(dims)

    def _pointwise(
        self, new: _Result, loops: Sequence[tuple[LoopVar, int]], bounds: Bounds, depth: int
    ) -> list[ir.Stmt]:
        store = ir.Store(new.node, new.indices, self.expr(new.dtype, bounds, depth))
        return [
            ir.Fill(new.node, float(self.count(0, 3))),
            self._looped(loops, [store], self.kinds),
        ]

    def _accumulation(
        self, new: _Result, loops: Sequence[tuple[LoopVar, int]], bounds: Bounds, depth: int
    ) -> list[ir.Stmt]:
        """Return `result = result combine value` in place, under an extra loop anywhere."""
        node, dtype, indices = new.node, new.dtype, new.indices
        op = self.choose(accumulators(dtype))
        reduced, extent = fresh_var("k"), self.count(0, 3)
        value = self.expr(dtype, bounds | {reduced: max(extent, 1)}, depth)
        update = ir.Store(node, indices, ir.Binary(op, ir.Load(node, indices, dtype), value, dtype))
        order = self.draw(st.permutations([*loops, (reduced, extent)]))
        nest = self._looped(order, [update], (ir.AxisKind.SERIAL,))
        return [ir.Fill(node, neutral(op)), nest]

    def _scatter(
        self, new: _Result, loops: Sequence[tuple[LoopVar, int]], bounds: Bounds, depth: int
    ) -> list[ir.Stmt]:
        """Return stores to cells of `result` at computed positions, plain ones or accumulations."""
        dtype, indices = new.dtype, new.indices
        if not indices:
            return self._pointwise(new, loops, bounds, depth)
        axis = self.count(0, len(indices) - 1)
        kept = (*indices[:axis], affine([], 0), *indices[axis + 1 :])
        position = self.expr(self.choose(self.dtypes), bounds, depth - 1)
        value = self.expr(dtype, bounds, depth - 1)
        scatter = ir.Scatter(new.node, kept, axis, position, value)
        if self.draw(st.booleans()):
            op = self.choose(accumulators(dtype))
            scatter = replace(scatter, value=ir.Binary(op, scatter.own, value, dtype))
        nest = self._looped(loops, [scatter], (ir.AxisKind.SERIAL,))
        return [ir.Fill(new.node, float(self.count(0, 3))), nest]

    def _reduction_in_variable(
        self, new: _Result, loops: Sequence[tuple[LoopVar, int]], bounds: Bounds, depth: int
    ) -> list[ir.Stmt]:
        """Return a reduction into a variable, and an expression of it stored."""
        total, body = self._reduction(new.dtype, bounds, depth - 1)
        self.locals.append(total)
        store = ir.Store(new.node, new.indices, self.expr(new.dtype, bounds, depth - 1))
        self.locals.pop()
        stmts: list[ir.Stmt] = [ir.DeclareLocal(total), *body, store]
        return [ir.Fill(new.node, 0.0), self._looped(loops, stmts, self.kinds)]

    def _reduction(
        self, dtype: DType, bounds: Bounds, depth: int
    ) -> tuple[ir.Local, list[ir.Stmt]]:
        """Return a new variable, and statements that reduce into it."""
        op = self.choose(accumulators(dtype))
        total = ir.Local(self.local_count, dtype)
        self.local_count += 1
        var, extent = fresh_var("k"), self.count(0, 3)
        value = self.expr(dtype, bounds | {var: max(extent, 1)}, depth)
        update = ir.SetLocal(total, ir.Binary(op, ir.LocalRead(total), value, dtype))
        bound = ir.LoopBound(VarIndex(var), self._size()) if self.count(0, 5) == 0 else None
        loop = ir.For(var, 0, extent, ir.Block((update,)), ir.AxisKind.SERIAL, bound=bound)
        return total, [ir.SetLocal(total, ir.Const(neutral(op), dtype)), loop]

    def _size(self) -> StaticExtent:
        """Return a new extent at run time."""
        size = StaticExtent(f"s{len(self.statics)}", self.count(1, 3) + 1)
        self.statics.append(size)
        return size

    def _looped(
        self,
        loops: Sequence[tuple[LoopVar, int]],
        body: Sequence[ir.Stmt],
        kinds: Sequence[ir.AxisKind],
    ) -> ir.Stmt:
        nested = ir.Block(tuple(body))
        for var, extent in reversed(loops):
            nested = ir.Block((ir.For(var, 0, extent, nested, self.choose(kinds)),))
        return nested.stmts[0] if len(nested.stmts) == 1 else nested

    def _new_node(self, label: str, info: NodeInfo) -> TensorNode:
        node = TensorNode(len(self.nodes), (label,))
        self.nodes[node] = info
        return node

    def _position(self, bounds: Bounds) -> tuple[AxisIndex, int]:
        """Return a position along an axis that is never negative, and its largest value."""
        terms, low, high = [], 0, 0
        if self.count(0, 9) == 0:
            static = StaticIndex(f"s{len(self.statics)}", self.count(1, 3))
            self.statics.append(static)
            bounds = bounds | {static: static.extent or 1}
        variables = list(bounds)
        for _ in range(self.count(0, 2) if variables else 0):
            var, coefficient = self.choose(variables), self.choose([1, 1, 1, 2, 3, -1])
            reach = coefficient * (bounds[var] - 1)
            terms.append((coefficient, var))
            low, high = low + min(reach, 0), high + max(reach, 0)
        offset = self.count(0, 1) - low
        return affine(terms, offset), high + offset

    def _access(self, dtype: DType, bounds: Bounds) -> tuple[TensorNode, tuple[AxisIndex, ...]]:
        """Return a cell of a node that is written already, or of a new parameter."""
        positions = [self._position(bounds) for _ in range(self.count(0, 3))]
        needed = tuple(largest + 1 for _, largest in positions)
        indices = tuple(index for index, _ in positions)
        fitting = [node for node in self.readable if self._fits(node, dtype, needed)]
        if fitting and self.count(0, 3):
            return self.choose(fitting), indices
        node = self._new_node("x", NodeInfo(dtype, tuple(n + self.count(0, 1) for n in needed)))
        self.params.append(node)
        self.arrays[node] = random_cells(self.nodes[node], self.count(0, 2**16))
        self.readable.append(node)
        return node, indices

    def _fits(self, node: TensorNode, dtype: DType, needed: tuple[int, ...]) -> bool:
        dims = self.nodes[node].buffer_dims
        return (
            self.nodes[node].dtype is dtype
            and len(dims) == len(needed)
            and all(n <= extent for n, extent in zip(needed, dims, strict=True))
        )

    def expr(self, dtype: DType, bounds: Bounds, depth: int) -> ir.Expr:
        """Return an expression of a format over the variables in scope."""
        if depth <= 0 or self.count(0, 5) == 0:
            return self._leaf(dtype, bounds)
        make = self.choose([self._operation] * 4 + [self._conversion, self._scoped, self._gather])
        made: ir.Expr = make(dtype, bounds, depth - 1)
        return made

    def _leaf(self, dtype: DType, bounds: Bounds) -> ir.Expr:
        variables = [local for local in self.locals if local.dtype is dtype]
        if variables and self.count(0, 1):
            return ir.LocalRead(self.choose(variables))
        match self.count(0, 5):
            case 0:
                return ir.Const(self.choose(special_values(dtype)), dtype)
            case 1:
                return ir.IndexValue(self._position(bounds)[0], dtype)
            case _:
                node, indices = self._access(dtype, bounds)
                return ir.Load(node, indices, dtype)

    def _operation(self, dtype: DType, bounds: Bounds, depth: int) -> ir.Expr:
        op: Op = self.choose(exact_primitives(dtype))
        # operands of comparisons and conditions may have another format
        deciding = self.choose(self.dtypes)
        if isinstance(op, UnaryOp):
            return ir.Unary(op, self.expr(dtype, bounds, depth), dtype)
        if isinstance(op, BinaryOp):
            of = deciding if op in COMPARISONS else dtype
            left, right = self.expr(of, bounds, depth), self.expr(of, bounds, depth)
            return ir.Binary(op, left, right, dtype)
        first = self.expr(deciding if op is TernaryOp.WHERE else dtype, bounds, depth)
        second, third = self.expr(dtype, bounds, depth), self.expr(dtype, bounds, depth)
        return ir.Ternary(op, first, second, third, dtype)

    def _conversion(self, dtype: DType, bounds: Bounds, depth: int) -> ir.Expr:
        return ir.Unary(UnaryOp.IDENTITY, self.expr(self.choose(self.dtypes), bounds, depth), dtype)

    def _scoped(self, dtype: DType, bounds: Bounds, depth: int) -> ir.Expr:
        total, body = self._reduction(dtype, bounds, depth)
        return ir.Scoped(total, ir.Block(tuple(body)))

    def _gather(self, dtype: DType, bounds: Bounds, depth: int) -> ir.Expr:
        node, indices = self._access(dtype, bounds)
        if not indices:
            return ir.Load(node, indices, dtype)
        axis = self.count(0, len(indices) - 1)
        position = self.expr(self.choose(self.dtypes), bounds, depth)
        kept = (*indices[:axis], affine([], 0), *indices[axis + 1 :])
        beyond = self.choose([0.0, *special_values(dtype)])
        return ir.Gather(node, kept, axis, position, dtype, beyond)


def _shifted(index: AxisIndex, offset: int) -> AxisIndex:
    """Return an index moved along its axis."""
    terms, start = as_affine(index)
    return affine(terms, start + offset)


SOME_DTYPES = (float32, float64, int32, uint32, int8, bool_)
INDEPENDENT_KINDS = (
    ir.AxisKind.SERIAL,
    ir.AxisKind.PARALLEL,
    ir.AxisKind.VECTOR,
    ir.AxisKind.UNROLLED,
)


@st.composite
def random_programs(
    draw: st.DrawFn,
    dtypes: Sequence[DType] = SOME_DTYPES,
    kinds: Sequence[ir.AxisKind] = INDEPENDENT_KINDS,
    depth: int = 3,
    max_nests: int = 3,
) -> Example:
    """Return programs over numbers of these formats, with the cells that they start from.

    Args:
        dtypes: The formats of nodes and intermediate values.
        kinds: The kinds of loops whose iterations do not depend on each other.
        depth: The largest depth of expressions.
        max_nests: The largest number of top-level loop nests.
    """
    author = Author(draw, tuple(dtypes), tuple(kinds))
    stmts: list[ir.Stmt] = []
    for _ in range(draw(st.integers(1, max_nests))):
        stmts += author.nest(depth)
    return example_of(draw, author, stmts)


def example_of(draw: st.DrawFn, author: Author, stmts: Sequence[ir.Stmt]) -> Example:
    """Return the program of an author, with the cells and the indices that it starts from."""
    program = ir.LoopProgram(
        "random", tuple(author.params), tuple(author.statics), author.nodes, ir.Block(tuple(stmts))
    )
    indices = [draw(st.integers(0, (each.extent or 1) - 1)) for each in author.statics]
    return Example(program, author.arrays, indices)
