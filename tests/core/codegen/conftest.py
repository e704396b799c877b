"""A builder of nests, as the scheduler would hand them to the renderer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ocannl_core.codegen.c_family import render_kernel
from ocannl_core.codegen.dialect import Dialect
from ocannl_core.codegen.text.kernel_text import KernelText
from ocannl_core.ir.indexing import AxisIndex, FixedIndex, LoopVar, StaticIndex, fresh_var
from ocannl_core.ir.kernels.nodes import Kernel
from ocannl_core.ir.loops.nodes import Block, Expr, For, Load, LoopProgram, Stmt, Store
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.loops.traverse import nodes_of
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import DType, float32
from ocannl_core.testing.parser.loops import parse


class Builder:
    """Builder of nodes, loops and the C code of kernels.

    Args:
        prefix: A prefix of labels and hints; canonical text must not depend on it.
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.table: dict[TensorNode, NodeInfo] = {}

    def node(self, label: str, *dims: int, dtype: DType = float32) -> TensorNode:
        node = TensorNode(len(self.table), (self.prefix + label,))
        self.table[node] = NodeInfo(dtype, dims)
        return node

    def load(self, node: TensorNode, *indices: AxisIndex) -> Load:
        return Load(node, indices, self.table[node].dtype)

    def vars(self, count: int) -> list[LoopVar]:
        return [fresh_var(self.prefix + "x") for _ in range(count)]

    @staticmethod
    def loop(axes: list[tuple[LoopVar, int]], *stmts: Stmt) -> Stmt:
        """Return the statements inside loops over these axes, the first one outermost."""
        body = Block(stmts)
        for var, extent in reversed(axes):
            body = Block((For(var, 0, extent, body),))
        return body.stmts[0]

    def kernel(
        self, *stmts: Stmt, indices: tuple[StaticIndex, ...] = (), dialect: Dialect | None = None
    ) -> KernelText:
        body = Block(stmts)
        nest = Kernel(body, nodes_of(body), indices, self.prefix + "title")
        return render_kernel(nest, self.table, dialect or Dialect())

    def file(self, *stmts: Stmt, indices: tuple[StaticIndex, ...] = ()) -> str:
        """Return a C file with the one kernel of these statements, whose text can be parsed."""
        program = LoopProgram("nest", tuple(self.table), indices, self.table, Block(stmts))
        assert to_text(parse(to_text(program))) == to_text(program)
        kernel = self.kernel(*stmts, indices=indices)
        return f"{Dialect().prelude(kernel.helpers)}\n{kernel.text}"

    def body(self, *stmts: Stmt, indices: tuple[StaticIndex, ...] = ()) -> str:
        """Return the body of the generated kernel."""
        lines = self.kernel(*stmts, indices=indices).text.partition("\n}\n")[0].splitlines()
        return "\n".join(line.removeprefix("  ") for line in lines[1:])

    def written(self, expr: Expr) -> str:
        """Return the right-hand side that stores an expression."""
        out = self.node("out", 1, dtype=expr.dtype)
        line = self.body(Store(out, (FixedIndex(0),), expr)).splitlines()[-1]
        return line.partition(" = ")[2].removesuffix(";")


@pytest.fixture
def build() -> Builder:
    return Builder()


@pytest.fixture
def builder() -> Callable[[str], Builder]:
    """The class itself, for tests with several builders."""
    return Builder
