"""Formulas of assignments as several assignments of one primitive each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.assignments.nodes import (
    Accumulate,
    Assignment,
    AssignProgram,
    AssignSequence,
    Formula,
    NodeOperand,
    Operand,
    RepeatedAssignments,
    Section,
)
from ocannl_core.ir.indexing import IndexMap, LoopVar, Projections, StaticExtent, VarIndex
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.primitives import BinaryOp


def split_formulas(program: AssignProgram) -> AssignProgram:
    """Return a program in which each assignment applies one primitive.

    The value of each formula inside of another one is stored in a node of its own, with an axis for
    each variable of the domain.
    """
    splitter = _Splitter()
    body = tuple(splitter.of(program.body))
    nodes = {**program.nodes, **splitter.made}
    return replace(program, body=body, nodes=nodes, embedded=program.embedded | splitter.outer)


class _Splitter:
    def __init__(self) -> None:
        self.made: dict[TensorNode, NodeInfo] = {}
        self.outer: set[TensorNode] = set()
        """The new nodes that no iteration of a repetition writes."""

    def of(self, body: Iterable[Assignment]) -> Iterator[Assignment]:
        for each in body:
            match each:
                case Section() | AssignSequence():
                    yield replace(each, body=tuple(self.of(each.body)))
                case RepeatedAssignments():
                    outer, self.outer = self.outer, set()
                    inner = tuple(self.of(each.body))
                    private = each.private | self.outer
                    self.outer = outer
                    yield replace(each, body=inner, private=private)
                case Accumulate(op=Formula() as formula):
                    yield from self._split(each, formula)
                case _:
                    yield each

    def _split(self, assignment: Accumulate, formula: Formula) -> Iterator[Accumulate]:
        given = assignment.projections
        cells = tuple(VarIndex(var) for var, _ in given.domain)
        dims = tuple(extent for _, extent in given.domain)
        sizes: tuple[StaticExtent | None, ...] = tuple(
            var.size if isinstance(var, LoopVar) else None for var, _ in given.domain
        )
        emitted: list[Accumulate] = []
        operands: list[tuple[Operand, IndexMap, tuple[int, ...]]] = list(
            zip(assignment.args, given.rhs, given.rhs_dims, strict=True)
        )

        def applied(part: Formula, target: Accumulate) -> Accumulate:
            own = [operands[arg] if isinstance(arg, int) else stored(arg) for arg in part.args]
            args, maps, extents = (tuple(column) for column in zip(*own, strict=True))
            projections = replace(target.projections, rhs=maps, rhs_dims=extents)
            return replace(target, op=part.op, args=args, projections=projections)

        def stored(part: Formula) -> tuple[Operand, IndexMap, tuple[int, ...]]:
            node = TensorNode(assignment.target.id, (part.op.value.name, *assignment.target.label))
            self.made[node] = NodeInfo(part.dtype, dims, (), sizes if any(sizes) else ())
            self.outer.add(node)
            projections = Projections(given.domain, cells, (), dims, ())
            assigned = replace(
                assignment,
                target=node,
                combine=BinaryOp.SECOND,
                reset=False,
                projections=projections,
                beyond=None,
            )
            emitted.append(applied(part, assigned))
            return NodeOperand(node), cells, dims

        whole = applied(formula, assignment)
        yield from (*emitted, whole)
