"""Walks over assignments and rewrites of them, and liveness of the nodes that they access."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import assert_never

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir import indexing
from ocannl_core.ir.assignments import nodes as assign
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.primitives import BinaryOp

Leaf = (
    assign.Accumulate
    | assign.SetVector
    | assign.Fetch
    | assign.ExternalCall
    | assign.RepeatedAssignments
)
"""An assignment that contains no other of the same program; the body of a repetition is a program
of its own.
"""


def leaves(body: Iterable[assign.Assignment]) -> Iterator[Leaf]:
    """Yield the assignments inside sequences and sections, in program order."""
    pending = [iter(body)]
    while pending:
        for each in pending[-1]:
            if isinstance(each, (assign.AssignSequence, assign.Section)):
                pending.append(iter(each.body))
                break
            yield each
        else:
            pending.pop()


def operands(assignment: Leaf) -> tuple[assign.Operand, ...]:
    """Return the operands in order."""
    match assignment:
        case assign.Accumulate(args=args):
            return args
        case assign.SetVector(arg=arg):
            return (arg,)
        case assign.ExternalCall(inputs=inputs):
            return tuple(map(assign.NodeOperand, inputs))
        case assign.RepeatedAssignments():
            return tuple(map(assign.NodeOperand, repeat_inputs(assignment)))
        case assign.Fetch():
            return ()


def targets(assignment: Leaf) -> tuple[TensorNode, ...]:
    """Return the nodes that an assignment writes."""
    match assignment:
        case assign.ExternalCall(targets=written):
            return written
        case assign.RepeatedAssignments(body=body, private=private):
            written = tuple(node for each in leaves(body) for node in targets(each))
            return tuple(dict.fromkeys(node for node in written if node not in private))
        case assign.Accumulate(target) | assign.SetVector(target) | assign.Fetch(target):
            return (target,)
        case _:
            assert_never(assignment)


def repeat_inputs(repeat: assign.RepeatedAssignments) -> tuple[TensorNode, ...]:
    """Return the nodes that an iteration may read before it has written all of their cells."""
    found: dict[TensorNode, None] = {}
    written: set[TensorNode] = set()
    for each in leaves(repeat.body):
        found.update((node, None) for node in reads(each) if node not in written)
        written.update(node for node in targets(each) if _writes_all(each, node))
    return tuple(node for node in found if node not in repeat.private)


def complete_targets(repeat: assign.RepeatedAssignments) -> tuple[TensorNode, ...]:
    """Return the nodes of which the iterations together write all cells."""
    if repeat.count == 0:
        return ()
    every = leaves(repeat.body)
    found = {n: None for each in every for n in targets(each) if _is_filled(each, n, repeat)}
    return tuple(node for node in found if node not in repeat.private)


def _is_filled(assignment: Leaf, target: TensorNode, repeat: assign.RepeatedAssignments) -> bool:
    """Return True if an assignment writes all cells of a target in the course of a repetition."""
    if _writes_all(assignment, target):
        return True
    if not isinstance(assignment, (assign.Accumulate, assign.SetVector)):
        return False
    position = indexing.fresh_var()
    p = assignment.projections
    lhs = tuple(
        indexing.substitute(index, {repeat.index: indexing.VarIndex(position)}) for index in p.lhs
    )
    domain = (*p.domain, (position, repeat.count))
    return indexing.is_surjective(replace(p, domain=domain, lhs=lhs))


def reads(assignment: Leaf) -> tuple[TensorNode, ...]:
    """Return the nodes whose own cells an assignment reads; an accumulation reads its target."""
    found = [arg.node for arg in operands(assignment) if isinstance(arg, assign.NodeOperand)]
    match assignment:
        case assign.Accumulate(target, combine, reset=False) if combine is not BinaryOp.SECOND:
            found.append(target)
    return tuple(dict.fromkeys(found))


def merge_reads(assignment: Leaf) -> tuple[TensorNode, ...]:
    """Return the nodes whose merge buffers an assignment reads, each once."""
    found = [arg.node for arg in operands(assignment) if isinstance(arg, assign.Merge)]
    return tuple(dict.fromkeys(found))


def nodes_of(assignment: Leaf) -> tuple[TensorNode, ...]:
    """Return every node that an assignment mentions, operands first, each once."""
    found = (*reads(assignment), *merge_reads(assignment), *targets(assignment))
    return tuple(dict.fromkeys(found))


def indices_of(assignment: Leaf) -> tuple[indexing.AxisIndex, ...]:
    """Return every axis index of an assignment: of its operands, then of its target."""
    match assignment:
        case assign.Accumulate(projections=projections) | assign.SetVector(projections=projections):
            return (*(i for index_map in projections.rhs for i in index_map), *projections.lhs)
        case assign.Fetch(source=assign.EmbedIndex(index, factors)):
            return (index, *factors)
        case assign.RepeatedAssignments(body=body):
            return tuple(each for leaf in leaves(body) for each in indices_of(leaf))
        case assign.Fetch() | assign.ExternalCall():
            return ()


def _extents_of(
    assignment: Leaf, nodes: Mapping[TensorNode, NodeInfo]
) -> Iterator[indexing.StaticExtent]:
    """Yield the extents at run time of the loops of an assignment, and of the axes on which it
    computes positions, which are checked.
    """
    match assignment:
        case assign.Accumulate(target, projections=p) | assign.SetVector(target, projections=p):
            yield from (var.size for var, _ in p.domain if var.size is not None)
            own = [(target, p.lhs)]
            for arg, index_map in zip(operands(assignment), p.rhs, strict=True):
                if isinstance(arg, assign.NodeOperand):
                    own.append((arg.node, index_map))
            for node, index_map in own:
                for extent, index in zip(nodes[node].extents, index_map, strict=False):
                    if extent is not None and isinstance(index, indexing.ComputedIndex):
                        yield extent
        case assign.RepeatedAssignments(body=body):
            yield from (extent for leaf in leaves(body) for extent in _extents_of(leaf, nodes))
        case assign.Fetch() | assign.ExternalCall():
            return


def static_indices(program: assign.AssignProgram) -> tuple[indexing.StaticIndex, ...]:
    """Return the static indices that a program takes, in order of first appearance."""
    found: dict[indexing.StaticIndex, None] = {}
    for assignment in leaves(program.body):
        indices = indices_of(assignment)
        if indexing.has_static(indices):
            every = [var for index in indices for var in indexing.variables(index)]
            found.update(dict.fromkeys(v for v in every if isinstance(v, indexing.StaticIndex)))
        found.update(dict.fromkeys(_extents_of(assignment, program.nodes)))
    own = set(_repeat_indices(program.body))
    return tuple(index for index in found if index not in own)


def _repeat_indices(body: Iterable[assign.Assignment]) -> Iterator[indexing.StaticIndex]:
    for each in leaves(body):
        if isinstance(each, assign.RepeatedAssignments):
            yield each.index
            yield from _repeat_indices(each.body)


def dead_on_entry(
    body: Iterable[assign.Assignment], nodes: AbstractSet[TensorNode]
) -> set[TensorNode]:
    """Return the nodes that are completely written before any of their cells is read."""
    found: set[TensorNode] = set()
    pending = set(nodes)
    for each in leaves(body):
        pending.difference_update(reads(each))
        for target in targets(each):
            if target in pending:
                pending.discard(target)
                if _writes_all(each, target):
                    found.add(target)
    return found


def partial_targets(body: Iterable[assign.Assignment]) -> list[TensorNode]:
    """Return the nodes of which some assignment may write only a part, in order."""
    found = [
        target for each in leaves(body) for target in targets(each) if not _writes_all(each, target)
    ]
    return list(dict.fromkeys(found))


def _writes_all(assignment: Leaf, target: TensorNode) -> bool:
    """Return True if an assignment writes every cell of one of its targets."""
    if isinstance(assignment, assign.RepeatedAssignments):
        return target in complete_targets(assignment)
    if isinstance(assignment, assign.Fetch | assign.ExternalCall):
        return True
    is_reset = isinstance(assignment, assign.Accumulate) and assignment.reset
    return is_reset or indexing.is_surjective(assignment.projections)


LeafRule = Callable[[Leaf], Iterable[Leaf]]
"""A function that returns the leaves in place of one."""


def map_leaves(body: Iterable[assign.Assignment], change: LeafRule) -> Iterator[assign.Assignment]:
    """Yield assignments with their leaves replaced."""
    for each in body:
        match each:
            case assign.Section(title, inner):
                yield assign.Section(title, tuple(map_leaves(inner, change)))
            case assign.AssignSequence(inner):
                yield assign.AssignSequence(tuple(map_leaves(inner, change)))
            case _:
                yield from change(each)


def rename_nodes(leaf: Leaf, final: Callable[[TensorNode], TensorNode]) -> Leaf:
    """Return an assignment over other nodes."""

    def operand(each: assign.Operand) -> assign.Operand:
        match each:
            case assign.NodeOperand(node):
                return assign.NodeOperand(final(node))
            case assign.Merge(node):
                return assign.Merge(final(node))
            case assign.Scalar():
                return each

    match leaf:
        case assign.Accumulate(target=target, args=args):
            return replace(leaf, target=final(target), args=tuple(map(operand, args)))
        case assign.SetVector(target=target, arg=arg):
            return replace(leaf, target=final(target), arg=operand(arg))
        case assign.Fetch(target=target):
            return replace(leaf, target=final(target))
        case assign.ExternalCall():
            return replace(
                leaf,
                inputs=tuple(map(final, leaf.inputs)),
                targets=tuple(map(final, leaf.targets)),
                destroyed=tuple(map(final, leaf.destroyed)),
                shared=tuple((final(t), final(s)) for t, s in leaf.shared),
                views=tuple((final(t), final(s)) for t, s in leaf.views),
            )
        case assign.RepeatedAssignments(body=body, private=private):
            renamed = map_leaves(body, lambda each: (rename_nodes(each, final),))
            return replace(leaf, body=tuple(renamed), private=frozenset(map(final, private)))


def substitute_indices(leaf: Leaf, values: Mapping[indexing.IndexVar, indexing.AxisIndex]) -> Leaf:
    """Return an assignment with indices in place of index variables of its own."""

    def placed(index_map: indexing.IndexMap) -> indexing.IndexMap:
        return tuple(indexing.substitute(index, values) for index in index_map)

    def substituted(projections: indexing.Projections) -> indexing.Projections:
        rhs = tuple(map(placed, projections.rhs))
        return replace(projections, lhs=placed(projections.lhs), rhs=rhs)

    match leaf:
        case assign.Accumulate(projections=projections) | assign.SetVector(projections=projections):
            return replace(leaf, projections=substituted(projections))
        case assign.Fetch(source=assign.EmbedIndex(index, factors)):
            return replace(
                leaf, source=assign.EmbedIndex(indexing.substitute(index, values), placed(factors))
            )
        case assign.RepeatedAssignments(body=body):
            found = map_leaves(body, lambda each: (substitute_indices(each, values),))
            return replace(leaf, body=tuple(found))
        case assign.Fetch() | assign.ExternalCall():
            return leaf
