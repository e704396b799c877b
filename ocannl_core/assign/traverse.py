"""Iterative walks over assignments, and liveness of the nodes that they access."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet

from ocannl_core.assign.nodes import (
    Accumulate,
    Assignment,
    AssignProgram,
    Cells,
    EmbedIndex,
    ExternalCall,
    Fetch,
    Merge,
    Operand,
    Section,
    Sequence,
    SetVector,
)
from ocannl_core.indexing import AxisIndex, StaticExtent, StaticIndex, is_surjective, variables
from ocannl_core.node import TensorNode
from ocannl_core.ops import BinaryOp

Leaf = Accumulate | SetVector | Fetch | ExternalCall
"""An assignment that contains no other."""


def leaves(body: Iterable[Assignment]) -> Iterator[Leaf]:
    """Yield the assignments inside sequences and sections, in program order."""
    pending = [iter(body)]
    while pending:
        for each in pending[-1]:
            if isinstance(each, Sequence | Section):
                pending.append(iter(each.body))
                break
            yield each
        else:
            pending.pop()


def operands(assignment: Leaf) -> tuple[Operand, ...]:
    """Return the operands in order."""
    match assignment:
        case Accumulate(args=args):
            return args
        case SetVector(arg=arg):
            return (arg,)
        case ExternalCall(inputs=inputs):
            return tuple(map(Cells, inputs))
        case Fetch():
            return ()


def targets(assignment: Leaf) -> tuple[TensorNode, ...]:
    """Return the nodes that an assignment writes."""
    return assignment.targets if isinstance(assignment, ExternalCall) else (assignment.target,)


def reads(assignment: Leaf) -> tuple[TensorNode, ...]:
    """Return the nodes whose own cells an assignment reads; an accumulation reads its target."""
    found = [arg.node for arg in operands(assignment) if isinstance(arg, Cells)]
    match assignment:
        case Accumulate(target, combine, reset=False) if combine is not BinaryOp.SECOND:
            found.append(target)
    return tuple(dict.fromkeys(found))


def merge_reads(assignment: Leaf) -> tuple[TensorNode, ...]:
    """Return the nodes whose merge buffers an assignment reads, each once."""
    found = [arg.node for arg in operands(assignment) if isinstance(arg, Merge)]
    return tuple(dict.fromkeys(found))


def nodes_of(assignment: Leaf) -> tuple[TensorNode, ...]:
    """Return every node that an assignment mentions, operands first, each once."""
    found = (*reads(assignment), *merge_reads(assignment), *targets(assignment))
    return tuple(dict.fromkeys(found))


def indices_of(assignment: Leaf) -> tuple[AxisIndex, ...]:
    """Return every axis index of an assignment: of its operands, then of its target."""
    match assignment:
        case Accumulate(projections=projections) | SetVector(projections=projections):
            return (*(i for index_map in projections.rhs for i in index_map), *projections.lhs)
        case Fetch(source=EmbedIndex(index, factors)):
            return (index, *factors)
        case Fetch() | ExternalCall():
            return ()


def _extents_of(assignment: Leaf) -> Iterator[StaticExtent]:
    """Yield the extents at run time of the loops of an assignment."""
    match assignment:
        case Accumulate(projections=projections) | SetVector(projections=projections):
            yield from (var.size for var, _ in projections.domain if var.size is not None)
        case Fetch() | ExternalCall():
            return


def static_indices(program: AssignProgram) -> tuple[StaticIndex, ...]:
    """Return the static indices of a program, in order of first appearance."""
    found: dict[StaticIndex, None] = {}
    for assignment in leaves(program.body):
        for index in indices_of(assignment):
            for var in variables(index):
                if isinstance(var, StaticIndex):
                    found[var] = None
        found.update(dict.fromkeys(_extents_of(assignment)))
    return tuple(found)


def dead_on_entry(body: Iterable[Assignment], nodes: AbstractSet[TensorNode]) -> set[TensorNode]:
    """Return the nodes that are completely written before any of their cells is read."""
    found: set[TensorNode] = set()
    pending = set(nodes)
    for each in leaves(body):
        pending.difference_update(reads(each))
        for target in targets(each):
            if target in pending:
                pending.discard(target)
                if _writes_all(each):
                    found.add(target)
    return found


def _writes_all(assignment: Leaf) -> bool:
    """Return True if an assignment writes every cell of its target."""
    if isinstance(assignment, Fetch | ExternalCall):
        return True
    is_reset = isinstance(assignment, Accumulate) and assignment.reset
    return is_reset or is_surjective(assignment.projections)
