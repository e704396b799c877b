"""Canonical texts of whole nests and programs: equal if they are equal up to names.

They are the printed notation with numbers for names, without labels, hints, titles and remarks.
They are stable and readable, so caches on disk and schedules that a user states find code by them.
The ranges of variables of loops around a nest are no part of them. Passes find equal code by
`ir.templates`, an order of magnitude faster. Parts of a program, which have free names, are
compared by `ir.loops.equivalence`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from ocannl_core.ir.indexing import AffineIndex, AxisIndex, LoopVar, affine_text
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.kernels.printer import nest_lines
from ocannl_core.ir.loops.nodes import Block, LoopProgram, Remark, Stmt
from ocannl_core.ir.loops.printer import TextPrinter
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.text import RESERVED_NAMES, PrintedNames


def canonical_text(nest: Nest, nodes: NodeInfos) -> str:
    """Return the canonical text of a nest and of the arrays that it accesses."""
    used = {access.node: nodes[access.node] for access in nest.accesses}
    printer = _CanonicalPrinter(LoopProgram("", (), (), used, Block(())), _NumberedNames())
    return "\n".join([*nest_lines(printer, nest), *map(printer.array, used)])


def canonical_program(
    program: LoopProgram, facts_about: Callable[[TensorNode], Sequence[str]]
) -> str:
    """Return the canonical text of a program and of its nodes, private nodes of iterations
    included, each with further facts.
    """
    printer = _CanonicalPrinter(program, _NumberedNames())
    lines = [f"routine({printer.signature()}):", *printer.body()]
    for node, info in program.all_nodes.items():
        facts = [f"margins {margin.left}+{margin.right}" for margin in info.padding]
        facts += [
            "extent " + ("constant" if each is None else printer.names.variable(each))
            for each in info.extents
        ]
        lines.append(" ".join([printer.array(node), *facts, *facts_about(node)]))
    return "\n".join(lines)


class _NumberedNames(PrintedNames):
    """Names that are numbers in the order of requests."""

    def __init__(self) -> None:
        super().__init__(RESERVED_NAMES)

    def node(self, node: TensorNode) -> str:
        return self.of(node, "x")

    def index(self, index: AxisIndex) -> str:
        if isinstance(index, AffineIndex):
            named = sorted((self.variable(var), factor) for factor, var in index.terms)
            return affine_text([(factor, name) for name, factor in named], index.offset)
        return super().index(index)

    def of(self, thing: Hashable, hint: str) -> str:
        return super().of(thing, "v" if isinstance(thing, LoopVar) else "x")


class _CanonicalPrinter(TextPrinter):
    """The notation of user code with numbers for names, without remarks."""

    __slots__ = ()

    def lines(self, stmt: Stmt) -> list[str]:
        return [] if isinstance(stmt, Remark) else super().lines(stmt)

    def array(self, node: TensorNode) -> str:
        info = self.program.nodes.get(node)
        return self.names.node(node) if info is None else super().array(node)
