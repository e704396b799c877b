"""Random loop programs for inlining: most nodes are computed from earlier ones.

Definitions are pointwise, reversed, shifted, in slices, partial over a fill, diagonal, sums of loop
variables, reductions, and accumulations in several nests; readers use as many index maps. Inputs
and earlier nodes are sometimes overwritten, and definitions must not move past that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from ocannl_core.ir.indexing import AxisIndex, FixedIndex, LoopVar, VarIndex, affine, fresh_var
from ocannl_core.ir.loops.nodes import (
    Binary,
    Block,
    Const,
    Expr,
    Fill,
    For,
    IndexValue,
    Load,
    LoopProgram,
    Stmt,
    Store,
    Ternary,
    Unary,
)
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import DType, bfloat16, float32, int32
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp
from ocannl_core.testing.compare import Array
from ocannl_core.testing.programs import Example
from ocannl_core.testing.strategies import random_cells

_SHAPES = ((), (4,), (4,), (7,), (3, 4), (4, 4), (1, 4))
_OPS = (BinaryOp.ADD, BinaryOp.MUL, BinaryOp.SUB, BinaryOp.MAX)
Loops = list[tuple[LoopVar, int]]


@st.composite
def chain_programs(
    draw: st.DrawFn, dtypes: Sequence[DType] = (float32, int32, bfloat16), max_steps: int = 8
) -> Example:
    """Return programs whose nodes are mostly computed from one another.

    Args:
        draw: Hypothesis's.
        dtypes: The formats of nodes.
        max_steps: The largest number of definitions.
    """
    author = _ChainAuthor(draw, tuple(dtypes))
    for shape in ((4,), (3, 4)):
        author.new_node("x", shape)
    stmts: list[Stmt] = []
    for _ in range(draw(st.integers(2, max_steps))):
        stmts += author.step()
    program = LoopProgram("chain", tuple(author.nodes), (), author.nodes, Block(tuple(stmts)))
    return Example(program, author.arrays, [])


@dataclass
class _ChainAuthor:
    """Author of one program."""

    draw: st.DrawFn
    dtypes: tuple[DType, ...]
    nodes: dict[TensorNode, NodeInfo] = field(default_factory=dict)
    arrays: dict[TensorNode, Array] = field(default_factory=dict)

    def choose(self, options: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def often(self, times: int) -> bool:
        """Return True with a probability of one in `times`."""
        return self.draw(st.integers(1, times)) == 1

    def new_node(self, label: str, shape: tuple[int, ...]) -> TensorNode:
        node = TensorNode(len(self.nodes), (label,))
        self.nodes[node] = NodeInfo(self.choose(self.dtypes), shape)
        self.arrays[node] = random_cells(self.nodes[node], len(self.nodes))
        return node

    def step(self) -> list[Stmt]:
        """Return statements that define a new node, or now and then change an old one."""
        if self.often(5):
            return [self.change(self.choose(list(self.nodes)))]
        shape = self.choose(_SHAPES)
        form = self.choose(
            [self.pointwise, self.parts, self.partial, self.accumulated, self.reduced]
        )
        earlier = list(self.nodes)
        stmts: list[Stmt] = form(self.new_node("r", shape), earlier)
        return stmts

    def change(self, node: TensorNode) -> Stmt:
        """Return a nest that overwrites some cells of a node, or combines something with them."""
        if self.often(4):
            return Fill(node, 2.0)
        loops, indices = self.target(self.nodes[node].dims)
        value = self.value(self.nodes[node].dtype, loops, list(self.nodes))
        if self.often(2):
            dtype = self.nodes[node].dtype
            value = Binary(self.choose(_OPS), Load(node, indices, dtype), value, dtype)
        return nest(loops, Store(node, indices, value))

    def pointwise(self, node: TensorNode, earlier: Sequence[TensorNode]) -> list[Stmt]:
        loops = [(fresh_var(), dim) for dim in self.nodes[node].dims]
        indices: tuple[AxisIndex, ...] = tuple(VarIndex(var) for var, _ in loops)
        if self.often(3):
            indices = tuple(affine([(-1, var)], extent - 1) for var, extent in loops)
        value = self.value(self.nodes[node].dtype, loops, earlier)
        return [nest(loops, Store(node, indices, value))]

    def parts(self, node: TensorNode, earlier: Sequence[TensorNode]) -> list[Stmt]:
        """Return nests that write slices of a node along its first axis; one may be empty."""
        dims = self.nodes[node].dims
        cut = self.choose(range(dims[0] + 1)) if dims else 0
        stmts: list[Stmt] = []
        for start, stop in ((0, cut), (cut, dims[0] if dims else 0)):
            loops = [(fresh_var(), dim) for dim in dims]
            value = self.value(self.nodes[node].dtype, loops, earlier)
            store: Stmt = Store(node, tuple(VarIndex(var) for var, _ in loops), value)
            inner = nest(loops[1:], store)
            stmts.append(For(loops[0][0], start, stop, Block((inner,))) if loops else inner)
        return stmts

    def partial(self, node: TensorNode, earlier: Sequence[TensorNode]) -> list[Stmt]:
        """Return a fill, and a nest that writes some of the cells."""
        loops, indices = self.target(self.nodes[node].dims)
        value = self.value(self.nodes[node].dtype, loops, earlier)
        return [Fill(node, 1.0), nest(loops, Store(node, indices, value))]

    def accumulated(self, node: TensorNode, earlier: Sequence[TensorNode]) -> list[Stmt]:
        """Return a fill, and nests that add to the cells."""
        stmts: list[Stmt] = [Fill(node, 0.0)]
        for _ in range(self.choose([1, 2])):
            stmts += self.addition(node, earlier, [])
        return stmts

    def reduced(self, node: TensorNode, earlier: Sequence[TensorNode]) -> list[Stmt]:
        """Return a reduction over a loop that is anywhere in the nest."""
        return [Fill(node, 0.0), *self.addition(node, earlier, [(fresh_var("k"), 3)])]

    def addition(
        self, node: TensorNode, earlier: Sequence[TensorNode], reduced: Loops
    ) -> list[Stmt]:
        dtype = self.nodes[node].dtype
        loops = [(fresh_var(), dim) for dim in self.nodes[node].dims]
        indices = tuple(VarIndex(var) for var, _ in loops)
        everything = self.draw(st.permutations([*loops, *reduced]))
        value = self.value(dtype, everything, earlier)
        total = Binary(self.choose(_OPS), Load(node, indices, dtype), value, dtype)
        return [nest(everything, Store(node, indices, total))]

    def target(self, dims: tuple[int, ...]) -> tuple[Loops, tuple[AxisIndex, ...]]:
        """Return loops, and positions inside a node that need not be all of it."""
        loops: Loops = []
        indices: list[AxisIndex] = []
        for dim in dims:
            match self.choose(["part", "fixed", "strided", "sum", "repeated"]):
                case "repeated" if loops and loops[-1][1] <= dim:
                    indices.append(VarIndex(loops[-1][0]))
                case "fixed":
                    indices.append(FixedIndex(dim - 1))
                case "strided" if dim > 2:
                    loops.append((fresh_var(), (dim + 1) // 2))
                    indices.append(affine([(2, loops[-1][0])]))
                case "sum" if dim >= 4:
                    loops += [(fresh_var(), 2), (fresh_var(), 2)]
                    outer, inner = loops[-2][0], loops[-1][0]
                    indices.append(affine([(self.choose([1, 2]), outer), (1, inner)]))
                case _:
                    extent = self.choose(range(1, dim + 1))
                    loops.append((fresh_var(), extent))
                    indices.append(affine([(1, loops[-1][0])], dim - extent))
        return loops, tuple(indices)

    def value(self, dtype: DType, loops: Loops, nodes: Sequence[TensorNode]) -> Expr:
        """Return a value computed from at least one of the nodes, mostly late ones."""
        value = self.load(dtype, loops, nodes)
        match self.choose(["copy", "constant", "index", "load", "guard"]):
            case "constant":
                return Binary(self.choose(_OPS), value, Const(3.0, dtype), dtype)
            case "index" if loops:
                number = IndexValue(VarIndex(loops[0][0]), dtype)
                return Binary(self.choose(_OPS), value, number, dtype)
            case "load":
                return Binary(self.choose(_OPS), value, self.load(dtype, loops, nodes), dtype)
            case "guard":
                other = self.load(dtype, loops, nodes)
                return Ternary(TernaryOp.WHERE, other, value, Const(1.0, dtype), dtype)
            case _:
                return value

    def load(self, dtype: DType, loops: Loops, nodes: Sequence[TensorNode]) -> Expr:
        node = self.choose([*nodes, *nodes[-2:], *nodes[-2:]])
        info = self.nodes[node]
        cell = Load(node, tuple(self.position(dim, loops) for dim in info.dims), info.dtype)
        return cell if info.dtype is dtype else Unary(UnaryOp.IDENTITY, cell, dtype)

    def position(self, dim: int, loops: Loops) -> AxisIndex:
        """Return a position along an axis."""
        options: list[AxisIndex] = [FixedIndex(self.choose(range(dim)))]
        for var, extent in loops:
            if extent <= dim:
                plain = [VarIndex(var)] * 6
                options += [*plain, affine([(-1, var)], dim - 1), affine([(1, var)], dim - extent)]
            if 2 * extent - 1 <= dim:
                options.append(affine([(2, var)]))
            for other, more in loops:
                if other != var and extent + more - 1 <= dim:
                    options.append(affine([(1, var), (1, other)]))
        index: AxisIndex = self.choose(options)
        return index


def nest(loops: Sequence[tuple[LoopVar, int]], store: Stmt) -> Stmt:
    """Return a statement under loops, outermost first."""
    for var, extent in reversed(list(loops)):
        store = For(var, 0, extent, Block((store,)))
    return store
