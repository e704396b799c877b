"""Hypothesis strategies for programs whose kernels iterate over the rows of the same arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from ocannl_core.ir.indexing import AxisIndex, LoopVar, VarIndex, affine, fresh_var
from ocannl_core.ir.loops.nodes import Allocate, Binary, Const, Expr, Fill, Scope, Stmt, Unary
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType, float32, int32
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.testing.compare import Array
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.programs import Example

_DOMAINS = ((1,), (3,), (4,), (6,), (2, 3), (4, 2))
_LENGTHS = (1, 2, 5, 16, 19, 33)
_LIMIT = 3.0


@st.composite
def random_row_programs(draw: st.DrawFn, most_steps: int = 8) -> Example:
    """Return a program of kernels over rows: pointwise work, reductions of rows and over rows, and
    now and then one that reads other rows or cells than its own.

    All numbers are small integers, whose sums are exact in every order.
    """
    dtype = draw(st.sampled_from([int32, float32]))
    writer = _RowWriter(
        draw, dtype, draw(st.sampled_from(_DOMAINS)), draw(st.sampled_from(_LENGTHS))
    )
    for _ in range(draw(st.integers(2, most_steps))):
        writer.step()
    return writer.example()


@dataclass
class _RowWriter:
    """Builder of a program, with nodes grouped by their shape."""

    draw: st.DrawFn
    dtype: DType
    rows: tuple[int, ...]
    length: int
    draft: Draft = field(default_factory=lambda: Draft("rows"))
    arrays: dict[TensorNode, Array] = field(default_factory=dict)
    stmts: list[Stmt] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.numbers = np.random.default_rng(self.draw(st.integers(0, 99)))
        self.cells = [self.given("x", *self.rows, self.length) for _ in range(2)]
        self.scalars = [self.given("r", *self.rows, 1)]
        self.columns = [self.given("g", self.length)]
        self.sums: list[TensorNode] = []

    def given(self, label: str, *dims: int) -> TensorNode:
        node = self.draft.node(label, self.dtype, *dims)
        self.arrays[node] = self.numbers.integers(-2, 3, dims).astype(self.dtype.numpy)
        return node

    def new(self, label: str, *dims: int) -> TensorNode:
        if self.draw(st.booleans()):
            return self.draft.node(label, self.dtype, *dims)
        node = self.draft.scratch(label, self.dtype, *dims)
        self.stmts.append(Allocate(node, Scope.ROUTINE))
        return node

    def example(self) -> Example:
        return Example(self.draft.program(*self.stmts), self.arrays)

    def step(self) -> None:
        kind = self.draw(
            st.sampled_from(
                ["point", "point", "again", "scalar", "reduce", "reduce", "sum", "apart", "rows"]
            )
        )
        row = [fresh_var("i") for _ in self.rows]
        j = fresh_var("j")
        match kind:
            case "point":
                value = self.limited(self.combined(row, j))
                node = self.new("t", *self.rows, self.length)
                self.cells.append(node)
                self.write(row, j, self.draft.store(node, *row, j, value=value))
            case "again":
                node = self.draw(st.sampled_from(self.cells))
                value = self.limited(self.binary(self.load(node, row, j), self.combined(row, j)))
                self.write(row, j, self.draft.store(node, *row, j, value=value))
            case "scalar":
                a, b = (self.draw(st.sampled_from(self.scalars)) for _ in range(2))
                value = self.limited(
                    self.binary(self.draft.load(a, *row, 0), self.draft.load(b, *row, 0))
                )
                node = self.new("s", *self.rows, 1)
                self.scalars.append(node)
                self.write(row, None, self.draft.store(node, *row, 0, value=value))
            case "reduce":
                self.reduction(self.scalars, (*self.rows, 1), [*row, 0], row, j)
            case "sum":
                self.reduction(self.sums, (self.length,), [j], row, j)
            case _:
                self.elsewhere(row, j, other_rows=kind == "rows")

    def reduction(
        self,
        kept: list[TensorNode],
        dims: Sequence[int],
        cell: Sequence[LoopVar | int],
        row: Sequence[LoopVar],
        j: LoopVar,
    ) -> None:
        """Add the sum or maximum of products of cells."""
        op = self.draw(st.sampled_from([BinaryOp.ADD, BinaryOp.ADD, BinaryOp.MAX]))
        factors = [self.load(self.draw(st.sampled_from(self.cells)), row, j)]
        if self.draw(st.booleans()):
            factors.append(self.load(self.draw(st.sampled_from(self.cells)), row, j))
        term = factors[0]
        for factor in factors[1:]:
            term = Binary(BinaryOp.MUL, term, factor, self.dtype)
        node = self.new("s", *dims)
        kept.append(node)
        self.stmts.append(Fill(node, 0.0 if op is BinaryOp.ADD else -99.0))
        update = self.draft.accumulate(node, *cell, op=op, value=term)
        self.write(row, j, update, is_column=len(dims) == 1)

    def elsewhere(self, row: Sequence[LoopVar], j: LoopVar, *, other_rows: bool) -> None:
        """Add a copy that reads cells in descending order."""
        source = self.draw(st.sampled_from(self.cells))
        node = self.new("t", *self.rows, self.length)
        self.cells.append(node)
        places: list[AxisIndex] = [VarIndex(var) for var in (*row, j)]
        at = 0 if other_rows else -1
        extent = (*self.rows, self.length)[at]
        places[at] = affine([(-1, (*row, j)[at])], extent - 1)
        value = self.draft.load(source, *places)
        self.write(row, j, self.draft.store(node, *row, j, value=value))

    def write(
        self, row: Sequence[LoopVar], j: LoopVar | None, stmt: Stmt, *, is_column: bool = False
    ) -> None:
        """Add a statement in its loops; sometimes the rows are inside."""
        loops = list(zip(row, self.rows, strict=True))
        if j is not None:
            is_turned = is_column or self.draw(st.integers(0, 5)) == 0
            loops = [(j, self.length), *loops] if is_turned else [*loops, (j, self.length)]
        for var, extent in reversed(loops):
            stmt = loop(var, extent, stmt)
        self.stmts.append(stmt)

    def load(self, node: TensorNode, row: Sequence[LoopVar], j: LoopVar) -> Expr:
        return self.draft.load(node, *row, j)

    def operand(self, row: Sequence[LoopVar], j: LoopVar) -> Expr:
        """Return the value of a node that is defined where a cell is computed."""
        node = self.draw(st.sampled_from([*self.cells, *self.scalars, *self.columns, *self.sums]))
        if node in self.cells:
            return self.load(node, row, j)
        if node in self.scalars:
            return self.draft.load(node, *row, 0)
        return self.draft.load(node, j)

    def combined(self, row: Sequence[LoopVar], j: LoopVar) -> Expr:
        first = self.operand(row, j)
        return self.binary(first, self.operand(row, j)) if self.draw(st.booleans()) else first

    def binary(self, left: Expr, right: Expr) -> Expr:
        op = self.draw(st.sampled_from([BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.MAX]))
        return Binary(op, left, right, self.dtype)

    def limited(self, value: Expr) -> Expr:
        """Return a value whose products with others stay small."""
        if self.draw(st.integers(0, 3)) == 0:
            value = Unary(UnaryOp.NEG, value, self.dtype)
        top = Binary(BinaryOp.MIN, value, Const(_LIMIT, self.dtype), self.dtype)
        return Binary(BinaryOp.MAX, top, Const(-_LIMIT, self.dtype), self.dtype)
