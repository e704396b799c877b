"""Builders for loop programs written by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

from ocannl_core.ir.indexing import AxisIndex, FixedIndex, LoopVar, StaticIndex, VarIndex
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.node import Margin, NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.ir.numbers.primitives import BinaryOp

Place = AxisIndex | LoopVar | StaticIndex | int
"""A position along an axis, abbreviated."""


def at(*places: Place) -> tuple[AxisIndex, ...]:
    """Return the axis indices of abbreviated positions."""
    indices: list[AxisIndex] = []
    for place in places:
        match place:
            case int():
                indices.append(FixedIndex(place))
            case LoopVar() | StaticIndex():
                indices.append(VarIndex(place))
            case _:
                indices.append(place)
    return tuple(indices)


def loop(
    var: LoopVar, extent: int, *body: ir.Stmt, kind: ir.AxisKind = ir.AxisKind.SERIAL
) -> ir.For:
    """Return the loop of a variable over `range(extent)`."""
    return ir.For(var, 0, extent, ir.Block(body), kind)


@dataclass
class Draft:
    """Builder of a loop program."""

    name: str
    nodes: dict[TensorNode, NodeInfo] = field(default_factory=dict)
    params: list[TensorNode] = field(default_factory=list)
    """The nodes whose memory the caller provides."""

    def node(
        self, label: str, dtype: DType, *dims: int, padding: tuple[Margin, ...] = ()
    ) -> TensorNode:
        """Return a new parameter."""
        node = self.scratch(label, dtype, *dims, padding=padding)
        self.params.append(node)
        return node

    def scratch(
        self, label: str, dtype: DType, *dims: int, padding: tuple[Margin, ...] = ()
    ) -> TensorNode:
        """Return a new node that the program allocates."""
        node = TensorNode(len(self.nodes), (label,))
        self.nodes[node] = NodeInfo(dtype, dims, padding)
        return node

    def load(self, node: TensorNode, *places: Place) -> ir.Load:
        """Return the value of a cell."""
        return ir.Load(node, at(*places), self.nodes[node].dtype)

    def store(self, node: TensorNode, *places: Place, value: ir.Expr) -> ir.Store:
        """Return a statement that writes a cell."""
        return ir.Store(node, at(*places), value)

    def accumulate(
        self, node: TensorNode, *places: Place, op: BinaryOp, value: ir.Expr
    ) -> ir.Store:
        """Return a statement that combines a value into a cell."""
        dtype = self.nodes[node].dtype
        return ir.Store(node, at(*places), ir.Binary(op, self.load(node, *places), value, dtype))

    def program(self, *body: ir.Stmt, indices: tuple[StaticIndex, ...] = ()) -> ir.LoopProgram:
        """Return the program."""
        return ir.LoopProgram(self.name, tuple(self.params), indices, self.nodes, ir.Block(body))
