"""Keys of random numbers as data.

An expression of random numbers has a key, the hash of its identity under the seed, from which the
words of all cells follow. Written into code, keys make kernels of equal shapes different. So they
are computed here, and become the cells of constant nodes: kernels that differ in nothing else are
equal up to names, whatever the seed and the identities, and are scheduled, rendered and compiled
once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

import numpy as np

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.assignments.nodes import (
    Accumulate,
    Assignment,
    AssignProgram,
    ConstantBits,
    Fetch,
    Formula,
    NodeOperand,
    RepeatedAssignments,
)
from ocannl_core.ir.assignments.traverse import Leaf, leaves, map_leaves, reads, targets
from ocannl_core.ir.host_arrays import Array
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import uint4x32
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.ir.numbers.threefry import Words

_MASK = 0xFFFFFFFF
_WORD = NodeInfo(uint4x32, ())
_HASHES = (BinaryOp.THREEFRY4X32, BinaryOp.THREEFRY4X32_12)


def keys_as_data(
    program: AssignProgram, kept: AbstractSet[TensorNode] = frozenset()
) -> tuple[AssignProgram, Mapping[TensorNode, Array]]:
    """Return a program that reads the hashes of constants from nodes, and the cells of these.

    The assignment of a hash becomes a copy of the cell, so that later routines find the definition
    of its target. Constants that nothing else reads are removed. Hashes that are only hashed
    with further constants stay as they are.

    Args:
        kept: Nodes that the program computes for others, beside its results.
    """
    every = tuple(_with_bodies(program.body))
    once = _assigned_once(every, program.nodes)
    words = {
        each.target: (each.source.bits & _MASK, each.source.bits >> 32, 0, 0)
        for each in every
        if isinstance(each, Fetch) and isinstance(each.source, ConstantBits) and each.target in once
    }
    hashes = _constant_hashes(every, once, words)
    read = {n for each in every if hashes.keys().isdisjoint(_targets(each)) for n in _reads(each)}
    keys: dict[Words, TensorNode] = {}
    copies: dict[TensorNode, Accumulate] = {}
    for target, each in hashes.items():
        operands = [None if node is None else words.get(node) for node in _operands(each)]
        if target in read and None not in operands:
            assert not isinstance(each.op, Formula), "a hash is a primitive"
            word: Words = each.op.value.meaning(*operands)
            key = keys.setdefault(word, TensorNode(target.id, ("key",)))
            copies[target] = _copy_of(key, each)
    if not keys:
        return program, {}
    read = {n for each in every if copies.keys().isdisjoint(_targets(each)) for n in _reads(each)}
    dropped = words.keys() - read - program.results - kept

    def change(leaf: Leaf) -> Iterable[Leaf]:
        match leaf:
            case RepeatedAssignments(body=body, private=private):
                inner = tuple(map_leaves(body, change))
                return (replace(leaf, body=inner, private=private - dropped),)
            case Fetch(target) if target in dropped:
                return ()
            case Accumulate(target) if target in copies:
                return (copies[target],)
            case _:
                return (leaf,)

    nodes = {node: info for node, info in program.nodes.items() if node not in dropped}
    nodes.update(dict.fromkeys(keys.values(), _WORD))
    body = tuple(map_leaves(program.body, change))
    changed = replace(program, body=body, nodes=nodes, embedded=program.embedded - dropped)
    return changed, {node: np.array(word, uint4x32.numpy) for word, node in keys.items()}


def _with_bodies(body: Iterable[Assignment]) -> Iterator[Leaf]:
    """Yield assignments, with the assignments in repetitions."""
    for each in leaves(body):
        yield each
        if isinstance(each, RepeatedAssignments):
            yield from _with_bodies(each.body)


def _assigned_once(every: Iterable[Leaf], nodes: Mapping[TensorNode, NodeInfo]) -> set[TensorNode]:
    """Return the nodes of one word that one assignment writes."""
    written = Counter(node for each in every for node in _targets(each))
    return {node for node, count in written.items() if count == 1 and nodes.get(node) == _WORD}


def _constant_hashes(
    every: Iterable[Leaf], once: AbstractSet[TensorNode], words: Mapping[TensorNode, Words]
) -> dict[TensorNode, Accumulate]:
    """Return the assignments of hashes of constants, and of hashes of these, by target."""
    found: dict[TensorNode, Accumulate] = {}
    for each in every:
        if (
            isinstance(each, Accumulate)
            and each.op in _HASHES
            and each.target in once
            and all(node in words or node in found for node in _operands(each))
        ):
            found[each.target] = each
    return found


def _operands(hashed: Accumulate) -> list[TensorNode | None]:
    """Return the nodes of the operands; None for operands that are no cells of a node."""
    return [arg.node if isinstance(arg, NodeOperand) else None for arg in hashed.args]


def _copy_of(key: TensorNode, hashed: Accumulate) -> Accumulate:
    """Return the assignment of a key to the target of a hash."""
    projections = replace(hashed.projections, rhs=((),), rhs_dims=((),))
    return replace(hashed, op=UnaryOp.IDENTITY, args=(NodeOperand(key),), projections=projections)


def _reads(assignment: Leaf) -> tuple[TensorNode, ...]:
    return () if isinstance(assignment, RepeatedAssignments) else reads(assignment)


def _targets(assignment: Leaf) -> tuple[TensorNode, ...]:
    """Return the nodes that an assignment itself writes."""
    return () if isinstance(assignment, RepeatedAssignments) else targets(assignment)
