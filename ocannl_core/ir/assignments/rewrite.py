"""Rewrites of assignments: maps over leaves, renaming of nodes, substitution of indices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.assignments.nodes import (
    Accumulate,
    Assignment,
    EmbedIndex,
    ExternalCall,
    Fetch,
    Merge,
    NodeOperand,
    Operand,
    RepeatedAssignments,
    Scalar,
    Section,
    Sequence,
    SetVector,
)
from ocannl_core.ir.assignments.traverse import Leaf
from ocannl_core.ir.indexing import AxisIndex, IndexMap, IndexVar, Projections, substitute
from ocannl_core.ir.node import TensorNode

LeafRule = Callable[[Leaf], Iterable[Leaf]]
"""A function that returns the leaves in place of one."""


def map_leaves(body: Iterable[Assignment], change: LeafRule) -> Iterator[Assignment]:
    """Yield assignments with their leaves replaced."""
    for each in body:
        match each:
            case Section(title, inner):
                yield Section(title, tuple(map_leaves(inner, change)))
            case Sequence(inner):
                yield Sequence(tuple(map_leaves(inner, change)))
            case _:
                yield from change(each)


def rename_nodes(leaf: Leaf, final: Callable[[TensorNode], TensorNode]) -> Leaf:
    """Return an assignment over other nodes."""

    def operand(each: Operand) -> Operand:
        match each:
            case NodeOperand(node):
                return NodeOperand(final(node))
            case Merge(node):
                return Merge(final(node))
            case Scalar():
                return each

    match leaf:
        case Accumulate(target=target, args=args):
            return replace(leaf, target=final(target), args=tuple(map(operand, args)))
        case SetVector(target=target, arg=arg):
            return replace(leaf, target=final(target), arg=operand(arg))
        case Fetch(target=target):
            return replace(leaf, target=final(target))
        case ExternalCall():
            return replace(
                leaf,
                inputs=tuple(map(final, leaf.inputs)),
                targets=tuple(map(final, leaf.targets)),
                destroyed=tuple(map(final, leaf.destroyed)),
                shared=tuple((final(t), final(s)) for t, s in leaf.shared),
                views=tuple((final(t), final(s)) for t, s in leaf.views),
            )
        case RepeatedAssignments(body=body, private=private):
            renamed = map_leaves(body, lambda each: (rename_nodes(each, final),))
            return replace(leaf, body=tuple(renamed), private=frozenset(map(final, private)))


def substitute_indices(leaf: Leaf, values: Mapping[IndexVar, AxisIndex]) -> Leaf:
    """Return an assignment with indices in place of index variables of its own."""

    def placed(index_map: IndexMap) -> IndexMap:
        return tuple(substitute(index, values) for index in index_map)

    def substituted(projections: Projections) -> Projections:
        rhs = tuple(map(placed, projections.rhs))
        return replace(projections, lhs=placed(projections.lhs), rhs=rhs)

    match leaf:
        case Accumulate(projections=projections) | SetVector(projections=projections):
            return replace(leaf, projections=substituted(projections))
        case Fetch(source=EmbedIndex(index, factors)):
            return replace(leaf, source=EmbedIndex(substitute(index, values), placed(factors)))
        case RepeatedAssignments(body=body):
            found = map_leaves(body, lambda each: (substitute_indices(each, values),))
            return replace(leaf, body=tuple(found))
        case Fetch() | ExternalCall():
            return leaf
