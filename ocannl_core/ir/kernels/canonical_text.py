"""Canonical text: the printed notation with numbers for names, equal for code that is equal up to
names. The ranges of variables of loops around a nest are no part of it.
"""

from __future__ import annotations

from collections.abc import Hashable

from ocannl_core.ir.indexing import AffineIndex, AxisIndex, LoopVar, affine_text
from ocannl_core.ir.kernels.nest import KernelNest
from ocannl_core.ir.kernels.nest_plan import NestKernel
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.kernels.printer import nest_lines
from ocannl_core.ir.loops.nodes import Block, LoopProgram, Remark, Stmt
from ocannl_core.ir.loops.printer import TextPrinter
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.text import RESERVED_NAMES, PrintedNames


class NumberedNames(PrintedNames):
    """Names that are numbers in the order of requests."""

    def node(self, node: TensorNode) -> str:
        return self.of(node, "x")

    def index(self, index: AxisIndex) -> str:
        if isinstance(index, AffineIndex):
            named = sorted((self.variable(var), factor) for factor, var in index.terms)
            return affine_text([(factor, name) for name, factor in named], index.offset)
        return super().index(index)

    def of(self, thing: Hashable, hint: str) -> str:
        return super().of(thing, "v" if isinstance(thing, LoopVar) else "x")


class CanonicalPrinter(TextPrinter):
    """The notation of user code with numbers for names, without remarks."""

    __slots__ = ()

    def lines(self, stmt: Stmt) -> list[str]:
        return [] if isinstance(stmt, Remark) else super().lines(stmt)

    def array(self, node: TensorNode) -> str:
        info = self.program.nodes.get(node)
        return self.names.node(node) if info is None else super().array(node)


def canonical_text(nest: KernelNest, nodes: NodeInfos) -> str:
    """Return the canonical text of a nest and of the arrays that it accesses."""
    used = {access.node: nodes[access.node] for access in nest.accesses}
    program = LoopProgram("", (), (), used, Block(()))
    printer = CanonicalPrinter(program, NumberedNames(RESERVED_NAMES))
    return "\n".join([*nest_lines(printer, NestKernel(nest)), *map(printer.array, used)])
