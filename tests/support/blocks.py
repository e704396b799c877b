"""Hypothesis strategies for programs of contractions whose results are used row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from ocannl_core.ir.indexing import LoopVar, fresh_var
from ocannl_core.ir.loops.nodes import (
    Allocate,
    Binary,
    Block,
    Const,
    Expr,
    Fill,
    Load,
    Local,
    LocalRead,
    Scope,
    Scoped,
    SetLocal,
    Stmt,
    Ternary,
)
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import float32, uint8
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp
from ocannl_core.testing.compare import Array
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.programs import Example

GRADIENTS = ("values", "queries", "keys")
_DEPTHS = (1, 3)
_KEYS = (3, 8)
_ROWS = (1, 7, 48, 58, 64)
_BATCHES = ((1, 2), (2, 4), (1, 8))


@st.composite
def random_block_programs(draw: st.DrawFn) -> Example:
    """Return a program that weighs values by products of queries and keys less their maximum, with
    or without a mask, and computes the gradients of a part of its operands.

    All numbers are small integers, whose sums are exact in every order.
    """
    wanted = draw(st.permutations(GRADIENTS))[: draw(st.integers(0, 3))]
    return block_program(
        draw(st.sampled_from(_BATCHES)),
        draw(st.sampled_from(_ROWS)),
        draw(st.sampled_from(_KEYS)),
        draw(st.sampled_from(_DEPTHS)),
        gradients=wanted,
        is_masked=draw(st.booleans()),
        are_weights_kept=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
    )


def block_program(
    batch: tuple[int, int],
    rows: int,
    keys: int,
    depth: int,
    *,
    gradients: Sequence[str] = GRADIENTS,
    is_masked: bool = False,
    are_weights_kept: bool = False,
    seed: int = 0,
) -> Example:
    """Return such a program.

    Args:
        batch: How many examples, and how many heads.
        rows: How many queries.
        keys: How many keys and values.
        depth: How long they are.
        gradients: The operands whose gradients are computed.
        is_masked: True for scores that a mask of bytes chooses.
        are_weights_kept: True if the weights are a parameter, which others may read.
        seed: Of the numbers.
    """
    numbers = np.random.default_rng(seed)
    writer = _BlockWriter(batch, rows, keys, depth, numbers, are_weights_kept)
    writer.forward(is_masked=is_masked)
    for name in gradients:
        writer.gradient(name)
    return writer.example()


@dataclass
class _BlockWriter:
    """A program in the making."""

    batch: tuple[int, int]
    rows: int
    keys: int
    depth: int
    numbers: np.random.Generator
    are_weights_kept: bool
    draft: Draft = field(default_factory=lambda: Draft("blocks"))
    arrays: dict[TensorNode, Array] = field(default_factory=dict)
    stmts: list[Stmt] = field(default_factory=list)
    nodes: dict[str, TensorNode] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.b, self.s, self.h, self.t, self.d = (fresh_var(name) for name in "bshtd")
        examples, heads = self.batch
        for name, length in (("queries", self.rows), ("keys", self.keys), ("values", self.keys)):
            self.given(name, examples, length, heads, self.depth)

    def given(self, name: str, *dims: int) -> TensorNode:
        node = self.nodes[name] = self.draft.node(name, float32, *dims)
        self.arrays[node] = self.numbers.integers(-2, 3, dims).astype(np.float32)
        return node

    def extent(self, var: LoopVar) -> int:
        extents = (*self.batch, self.rows, self.keys, self.depth)
        return dict(zip((self.b, self.h, self.s, self.t, self.d), extents, strict=True))[var]

    def over(self, stmt: Stmt, *variables: LoopVar) -> None:
        for var in reversed(variables):
            stmt = loop(var, self.extent(var), stmt)
        self.stmts.append(stmt)

    def scratch(self, name: str, length: int, *, is_kept: bool = False) -> TensorNode:
        new = self.draft.node if is_kept else self.draft.scratch
        node = self.nodes[name] = new(
            name, float32, self.batch[0], self.rows, self.batch[1], length
        )
        if not is_kept:
            self.stmts.append(Allocate(node, Scope.ROUTINE))
        return node

    def load(self, name: str, position: LoopVar, last: LoopVar | int) -> Load:
        return self.draft.load(self.nodes[name], self.b, position, self.h, last)

    def summed(
        self, node: TensorNode, position: LoopVar, last: LoopVar, over: LoopVar, *factors: Expr
    ) -> None:
        """Add products to cells of a node that start at 0."""
        place = (self.b, position, self.h, last)
        left, right = factors
        term = Binary(BinaryOp.MUL, left, right, float32)
        self.stmts.append(Fill(node, 0.0))
        added = self.draft.accumulate(node, *place, op=BinaryOp.ADD, value=term)
        self.over(added, *place, over)

    def forward(self, *, is_masked: bool) -> None:
        scores = self.scratch("scores", self.keys)
        limits = self.scratch("limits", 1)
        weights = self.scratch("weights", self.keys, is_kept=self.are_weights_kept)
        self.out = self.draft.node(
            "out", float32, self.batch[0], self.rows, self.batch[1], self.depth
        )
        place = (self.b, self.s, self.h, self.t)
        factors = self.load("queries", self.s, self.d), self.load("keys", self.t, self.d)
        if is_masked:
            total = Local(0, float32)
            term = Binary(BinaryOp.MUL, *factors, float32)
            added = Binary(BinaryOp.ADD, LocalRead(total), term, float32)
            step = loop(self.d, self.depth, SetLocal(total, added))
            summed = Scoped(total, Block((SetLocal(total, Const(0.0, float32)), step)))
            mask = self.draft.node("mask", uint8, self.rows, self.keys)
            self.arrays[mask] = self.numbers.integers(0, 3, (self.rows, self.keys)).astype(np.uint8)
            shown = self.draft.load(mask, self.s, self.t)
            value = Ternary(TernaryOp.WHERE, shown, summed, Const(-9.0, float32), float32)
            self.over(self.draft.store(scores, *place, value=value), *place)
        else:
            self.summed(scores, self.s, self.t, self.d, *factors)
        cell = self.load("scores", self.s, self.t)
        self.stmts.append(Fill(limits, -100.0))
        limit = (self.b, self.s, self.h, 0)
        self.over(self.draft.accumulate(limits, *limit, op=BinaryOp.MAX, value=cell), *place)
        rest = Binary(BinaryOp.SUB, cell, self.load("limits", self.s, 0), float32)
        self.over(self.draft.store(weights, *place, value=rest), *place)
        factors = self.load("weights", self.s, self.t), self.load("values", self.t, self.d)
        self.summed(self.out, self.s, self.d, self.t, *factors)

    def gradient(self, name: str) -> None:
        """Add the nests of a gradient; before the first one, those of shared intermediate nodes."""
        if "pull" not in self.nodes:
            self.given("pull", self.batch[0], self.rows, self.batch[1], self.depth)
            pulled = self.scratch("pulled", self.keys)
            factors = self.load("pull", self.s, self.d), self.load("values", self.t, self.d)
            self.summed(pulled, self.s, self.t, self.d, *factors)
            steps = self.scratch("steps", self.keys)
            cells = self.load("pulled", self.s, self.t), self.load("weights", self.s, self.t)
            place = (self.b, self.s, self.h, self.t)
            difference = Binary(BinaryOp.SUB, *cells, float32)
            self.over(self.draft.store(steps, *place, value=difference), *place)
        dims = self.draft.nodes[self.nodes[name]].dims
        node = self.draft.node(f"{name}_grad", float32, *dims)
        step = self.load("steps", self.s, self.t)
        match name:
            case "queries":
                factors = step, self.load("keys", self.t, self.d)
                self.summed(node, self.s, self.d, self.t, *factors)
            case "keys":
                factors = step, self.load("queries", self.s, self.d)
                self.summed(node, self.t, self.d, self.s, *factors)
            case _:
                factors = self.load("pull", self.s, self.d), self.load("weights", self.s, self.t)
                self.summed(node, self.t, self.d, self.s, *factors)

    def example(self) -> Example:
        return Example(self.draft.program(*self.stmts), self.arrays)
