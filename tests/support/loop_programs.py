"""Random loop programs for passes, whose nests reuse nodes and computations of earlier nests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from ocannl_core.ir.indexing import (
    AxisIndex,
    FixedIndex,
    LoopVar,
    VarIndex,
    affine,
    as_affine,
    fresh_var,
)
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.traverse import clone_expr, free_locals, free_variables
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import DType, int32
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp
from ocannl_core.testing.primitive_tables import accumulators
from ocannl_core.testing.programs import Example
from ocannl_core.testing.strategies import (
    INDEPENDENT_KINDS,
    SOME_DTYPES,
    Author,
    Bounds,
    example_of,
)

Loops = list[tuple[LoopVar, int]]


@dataclass
class SequelAuthor(Author):
    """Author of nests over new nodes, as its base, and of nests that reuse earlier ones.

    Follow-ups overwrite cells of nodes that exist (all, some, repeatedly), depend on what they
    wrote in earlier iterations, fill nodes again, repeat computations, guard loads that would leave
    their node, and select from tables by reductions.
    """

    remembered: list[tuple[ir.Expr, Bounds]] = field(default_factory=list)
    """Computations that may be repeated, with the extents of their variables."""

    def sequel(self, depth: int) -> list[ir.Stmt]:
        """Return a nest that may write any node."""
        if not self.readable:
            return self.nest(depth)
        make = self.choose(
            [self.nest, self._overwrite, self._selection] * 2
            + [self._refill, self._pointwise_reader, self._siblings]
        )
        made: list[ir.Stmt] = make(depth)
        return made

    def _overwrite(self, depth: int) -> list[ir.Stmt]:
        """Return a nest that writes cells of an existing node, once or repeatedly."""
        node = self.choose(self.readable)
        info = self.nodes[node]
        indices, loops = self._target(info.buffer_dims)
        if self.count(0, 3) == 0:
            loops = self.draw(st.permutations([*loops, (fresh_var("k"), self.count(1, 3))]))
        bounds: Bounds = dict(loops)
        value = self.expr(info.dtype, bounds, depth)
        if self.count(0, 1):
            op = self.choose(accumulators(info.dtype))
            cell = self.draw(st.booleans())
            own = indices if cell else self._neighbors(indices, bounds, info)
            value = ir.Binary(op, ir.Load(node, own, info.dtype), value, info.dtype)
        return [self._looped(loops, [ir.Store(node, indices, value)], (ir.AxisKind.SERIAL,))]

    def _refill(self, depth: int) -> list[ir.Stmt]:
        return [ir.Fill(self.choose(self.readable), float(self.count(0, 3)))]

    def _pointwise_reader(self, depth: int) -> list[ir.Stmt]:
        """Return a typical consumer: a nest that reads each cell that it writes."""
        source = self.choose(self.readable)
        info = self.nodes[source]
        loops = [(fresh_var("i"), dim) for dim in info.buffer_dims]
        indices = tuple(VarIndex(var) for var, _ in loops)
        result = self._new_parameter("r", NodeInfo(info.dtype, info.buffer_dims))
        cell: ir.Expr = ir.Load(source, indices, info.dtype)
        op = self.choose([BinaryOp.ADD, BinaryOp.MUL, BinaryOp.MAX])
        value = ir.Binary(op, cell, self.expr(info.dtype, dict(loops), depth - 1), info.dtype)
        nest = self._looped(loops, [ir.Store(result, indices, value)], self.kinds)
        self.readable.append(result)
        return [nest]

    def _siblings(self, depth: int) -> list[ir.Stmt]:
        """Return several statements under the same loops, which repeat computations."""
        loops: Loops = [(fresh_var("i"), self.count(1, 3)) for _ in range(self.count(0, 2))]
        bounds: Bounds = dict(loops)
        dims = tuple(extent for _, extent in loops)
        indices = tuple(VarIndex(var) for var, _ in loops)
        stmts: list[ir.Stmt] = []
        written: list[TensorNode] = []
        dtype = self.choose(self.dtypes)
        self._remember(self._scoped(dtype, bounds, depth - 1), bounds)
        for _ in range(self.count(2, 3)):
            written.append(self._new_parameter("r", NodeInfo(dtype, dims)))
            value = self.expr(dtype, bounds, depth)
            stmts.append(ir.Store(written[-1], indices, value))
        self.readable += written
        return [self._looped(loops, stmts, self.kinds)]

    def _selection(self, depth: int) -> list[ir.Stmt]:
        """Return a nest that selects from a table by a reduction, in a cell or in a variable."""
        loops: Loops = [(fresh_var("i"), self.count(1, 3)) for _ in range(self.count(0, 2))]
        bounds: Bounds = dict(loops)
        indices = tuple(VarIndex(var) for var, _ in loops)
        dtype = self.choose(self.dtypes)
        result = self._new_parameter("r", NodeInfo(dtype, tuple(extent for _, extent in loops)))
        table, cell = self._access(dtype, bounds)
        if not cell:
            return [ir.Fill(result, 1.0)]
        axis, k = self.count(0, len(cell) - 1), fresh_var("k")
        extent = self.nodes[table].buffer_dims[axis] - self.count(0, 1)
        chosen = ir.Load(table, (*cell[:axis], VarIndex(k), *cell[axis + 1 :]), dtype)
        term = self._one_hot_term(chosen, k, self._position_value(bounds, depth - 1), dtype)
        stmts: list[ir.Stmt]
        if self.count(0, 1):
            update = ir.Store(
                result,
                indices,
                ir.Binary(BinaryOp.ADD, ir.Load(result, indices, dtype), term, dtype),
            )
            reduction = ir.For(k, 0, extent, ir.Block((update,)))
            stmts = [ir.Fill(result, 0.0), self._looped(loops, [reduction], (ir.AxisKind.SERIAL,))]
        else:
            total = self._new_local(dtype)
            step = ir.SetLocal(total, ir.Binary(BinaryOp.ADD, ir.LocalRead(total), term, dtype))
            body = (
                ir.SetLocal(total, ir.Const(0.0, dtype)),
                ir.For(k, 0, extent, ir.Block((step,))),
            )
            if self.count(0, 1):
                stmts = [ir.Store(result, indices, ir.Scoped(total, ir.Block(body)))]
            else:
                stmts = [
                    ir.DeclareLocal(total),
                    *body,
                    ir.Store(result, indices, ir.LocalRead(total)),
                ]
            stmts = [self._looped(loops, stmts, (ir.AxisKind.SERIAL,))]
        self.readable.append(result)
        return stmts

    def _one_hot_term(
        self, chosen: ir.Load, k: LoopVar, position: ir.Expr, dtype: DType
    ) -> ir.Expr:
        counter = ir.IndexValue(VarIndex(k), position.dtype)
        left, right = (counter, position) if self.count(0, 1) else (position, counter)
        is_chosen = ir.Binary(BinaryOp.EQ, left, right, dtype)
        match self.count(0, 2):
            case 0:
                return ir.Binary(BinaryOp.MUL, is_chosen, chosen, dtype)
            case 1:
                return ir.Binary(BinaryOp.MUL, chosen, is_chosen, dtype)
            case _:
                return ir.Ternary(TernaryOp.WHERE, is_chosen, chosen, ir.Const(0.0, dtype), dtype)

    def _position_value(self, bounds: Bounds, depth: int) -> ir.Expr:
        dtype = self.choose(self.dtypes)
        if self.count(0, 1):
            return ir.IndexValue(self._position(bounds)[0], dtype)
        value = self.expr(dtype, bounds, depth)
        return ir.Unary(UnaryOp.TRUNC, value, dtype) if self.count(0, 1) else value

    def _target(self, dims: Sequence[int]) -> tuple[tuple[AxisIndex, ...], Loops]:
        """Return cells of a node: for each axis one position, some, or all, in either order."""
        indices: list[AxisIndex] = []
        loops: Loops = []
        for dim in dims:
            match self.count(0, 4):
                case 0:
                    indices.append(FixedIndex(self.count(0, dim - 1)))
                case 1 | 2:
                    extent = self.count(1, max(1, dim - 1))
                    offset = self.count(0, dim - extent)
                    loops.append((fresh_var("i"), extent))
                    indices.append(affine([(1, loops[-1][0])], offset))
                case _:
                    loops.append((fresh_var("i"), dim))
                    if self.count(0, 3):
                        indices.append(VarIndex(loops[-1][0]))
                    else:
                        indices.append(affine([(-1, loops[-1][0])], dim - 1))
        return tuple(indices), loops

    def _neighbors(
        self, indices: tuple[AxisIndex, ...], bounds: Bounds, info: NodeInfo
    ) -> tuple[AxisIndex, ...]:
        """Return the cell before or after along one axis, where that is inside for all loops."""
        if not indices:
            return indices
        axis, step = self.count(0, len(indices) - 1), self.choose([-1, 1])
        terms, offset = as_affine(indices[axis])
        ends = [offset + step, offset + step]
        for coefficient, var in terms:
            reach = coefficient * (bounds[var] - 1)
            ends[reach > 0] += reach
        if ends[0] < 0 or ends[1] >= info.buffer_dims[axis]:
            return indices
        return (*indices[:axis], affine(terms, offset + step), *indices[axis + 1 :])

    def _new_parameter(self, label: str, info: NodeInfo) -> TensorNode:
        node = self._new_node(label, info)
        self.params.append(node)
        return node

    def _new_local(self, dtype: DType) -> ir.Local:
        self.local_count += 1
        return ir.Local(self.local_count - 1, dtype)

    def expr(self, dtype: DType, bounds: Bounds, depth: int) -> ir.Expr:
        choice = self.count(0, 11) if depth > 0 else -1
        if choice == 0:
            return self._guarded(dtype, bounds, depth - 1)
        if choice in (1, 2):
            repeated = self._repeated(dtype, bounds)
            if repeated is not None:
                return repeated
        made = super().expr(dtype, bounds, depth)
        if choice > 7:
            self._remember(made, bounds)
        return made

    def _guarded(self, dtype: DType, bounds: Bounds, depth: int) -> ir.Expr:
        """Return a cell if a position is inside its node, and another expression otherwise."""
        node, indices = self._access(dtype, bounds)
        if not indices:
            return ir.Load(node, indices, dtype)
        axis, shift = self.count(0, len(indices) - 1), self.count(-2, 2)
        terms, offset = as_affine(indices[axis])
        moved = affine(terms, offset + shift)
        dim = self.nodes[node].buffer_dims[axis]
        value = ir.IndexValue(moved, int32)
        is_low = ir.Binary(BinaryOp.LE, ir.Const(0, int32), value, int32)
        is_high = ir.Binary(BinaryOp.LT, value, ir.Const(dim, int32), int32)
        load = ir.Load(node, (*indices[:axis], moved, *indices[axis + 1 :]), dtype)
        condition = ir.Binary(BinaryOp.AND, is_low, is_high, int32)
        return ir.Ternary(TernaryOp.WHERE, condition, load, self.expr(dtype, bounds, depth), dtype)

    def _remember(self, expr: ir.Expr, bounds: Bounds) -> None:
        if not free_locals(expr):
            self.remembered.append((expr, dict(bounds)))

    def _repeated(self, dtype: DType, bounds: Bounds) -> ir.Expr | None:
        """Return an earlier computation with new variables."""
        known = [
            expr
            for expr, then in self.remembered
            if expr.dtype is dtype
            and all(bounds.get(var, 0) == then.get(var) for var in free_variables(expr))
        ]
        if not known:
            return None
        return clone_expr(self.choose(known), lambda dtype, _: self._new_local(dtype))


@st.composite
def loop_programs(
    draw: st.DrawFn,
    dtypes: Sequence[DType] = SOME_DTYPES,
    kinds: Sequence[ir.AxisKind] = INDEPENDENT_KINDS,
    depth: int = 2,
    max_nests: int = 4,
) -> Example:
    """Return programs for passes: nests as in `random_programs`, and nests that depend on earlier
    ones.

    Nodes, parameters included, are overwritten in full, in part, repeatedly and by recurrences;
    some have margins; computations repeat in one statement, in siblings and in later nests; loads
    are guarded; reductions select one entry of a table. Arguments are as for `random_programs`.
    """
    author = SequelAuthor(draw, tuple(dtypes), tuple(kinds))
    stmts: list[ir.Stmt] = []
    for _ in range(draw(st.integers(1, max_nests))):
        stmts += author.sequel(depth)
    return example_of(draw, author, stmts)
