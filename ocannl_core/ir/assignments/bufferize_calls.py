"""Bufferization of external calls that destroy inputs or share memory with them.

`bufferize_calls` orders the calls behind the other readers of the inputs that they destroy, and
renames nodes so that the memory is really shared:

    y[:] = increment_in_place(x)          z[:] = f(y)
    z[:] = f(x)                     -->   y[:] = increment_in_place(y)    # y is where x was

A value is the contents of one node between two assignments to it. Views of a value, and views of
these, are its aliases; a call that destroys one of them runs after every other reader of any of
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.base.identity import IdentityMap
from ocannl_core.ir.assignments.nodes import (
    Accumulate,
    AssignProgram,
    ExternalCall,
    NodeOperand,
    RepeatedAssignments,
)
from ocannl_core.ir.assignments.traverse import (
    Leaf,
    leaves,
    map_leaves,
    nodes_of,
    rename_nodes,
    targets,
)
from ocannl_core.ir.indexing import IndexMap, Projections, VarIndex, fresh_var
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp


def bufferize_calls(
    program: AssignProgram, persistent: AbstractSet[TensorNode], kept: Mapping[TensorNode, str]
) -> AssignProgram:
    """Order destroying calls, merge nodes that share memory, and remove margins from calls.

    Args:
        persistent: Nodes that keep their cells between runs and that a call may update in place.
        kept: Nodes that must not be destroyed, with the noun for error messages.

    Raises:
        OpError: if two calls destroy one value, or a destroyed value is read afterwards.
    """
    program = _bufferize_repetitions(program)
    calls = [leaf for leaf in leaves(program.body) if isinstance(leaf, ExternalCall)]
    if not calls:
        return program
    if any(call.destroyed for call in calls):
        from ocannl_core.ir.assignments.order import reorder_assignments

        program = _merge_shared(reorder_assignments(program, persistent, kept), persistent)
    return _remove_margins(program)


def _bufferize_repetitions(program: AssignProgram) -> AssignProgram:
    """Return a program after `bufferize_calls` of the body of each repetition.

    A call inside destroys no node that is not private to an iteration.
    """
    repeats = [leaf for leaf in leaves(program.body) if isinstance(leaf, RepeatedAssignments)]
    nodes = dict(program.nodes)
    done: IdentityMap[Leaf, Leaf] = IdentityMap()
    for each in repeats:
        every = frozenset(node for leaf in leaves(each.body) for node in nodes_of(leaf))
        kept = dict.fromkeys(every - each.private, "value from outside a loop")
        inside = replace(program, body=each.body, embedded=each.private, results=frozenset())
        inside = bufferize_calls(inside, frozenset(), kept)
        if inside.body is not each.body:
            nodes |= inside.nodes
            done[each] = replace(each, body=inside.body, private=inside.embedded)
    if not done:
        return program
    body = tuple(map_leaves(program.body, lambda leaf: (done.get(leaf, leaf),)))
    return replace(program, body=body, nodes=nodes)


def _merge_shared(program: AssignProgram, persistent: AbstractSet[TensorNode]) -> AssignProgram:
    """Merge each destroyed input with the target that takes over its memory.

    The merged node is the input if it outlives the program, else the target. Nodes of different
    layouts are not merged: the target gets a copy. A destroyed input without a target is renamed to
    a new node, so that no later code reads it.
    """
    order = list(leaves(program.body))
    last_write = {node: k for k, leaf in enumerate(order) for node in targets(leaf)}
    renamed: dict[TensorNode, TensorNode] = {}

    def final(node: TensorNode) -> TensorNode:
        while node in renamed:
            node = renamed[node]
        return node

    for position, call in enumerate(order):
        if not isinstance(call, ExternalCall):
            continue
        takers = {source: target for target, source in call.shared}
        for source in call.destroyed:
            memory, target = final(source), takers.get(source)
            if target is not None and program.nodes[source] != program.nodes[target]:
                target = None
            if memory in persistent:
                if target is not None:
                    renamed[target] = memory
            elif source in program.embedded and last_write.get(source, position) < position:
                renamed[memory] = target or TensorNode(source.id, source.label)
    if not renamed:
        return program
    return replace(
        program,
        body=tuple(map_leaves(program.body, lambda leaf: (rename_nodes(leaf, final),))),
        nodes={final(node): info for node, info in program.nodes.items()},
        embedded=frozenset(map(final, program.embedded)),
        results=frozenset(map(final, program.results)),
    )


def _remove_margins(program: AssignProgram) -> AssignProgram:
    """Replace nodes with margins by unpadded copies in calls.

    Destroyed inputs become targets.
    """
    added: dict[TensorNode, NodeInfo] = {}

    def plain(leaf: Leaf) -> Iterator[Leaf]:
        if not isinstance(leaf, ExternalCall):
            yield leaf
            return
        lost = tuple(node for node in leaf.destroyed if node not in leaf.targets)
        leaf = replace(leaf, targets=(*leaf.targets, *lost))
        copies: dict[TensorNode, TensorNode] = {}
        for node in dict.fromkeys((*leaf.inputs, *leaf.targets)):
            info = program.nodes[node]
            if info.padding:
                copies[node] = TensorNode(node.id, ("unpadded", *node.label))
                added[copies[node]] = NodeInfo(info.dtype, info.dims)
        for node in dict.fromkeys(leaf.inputs):
            if node in copies:
                yield _copy(copies[node], node, program.nodes[node], leaf)
        yield rename_nodes(leaf, lambda node: copies.get(node, node))
        for node in leaf.targets:
            if node in copies:
                yield _copy(node, copies[node], program.nodes[node], leaf)

    body = tuple(map_leaves(program.body, plain))
    return replace(
        program,
        body=body,
        nodes={**program.nodes, **added},
        embedded=program.embedded | added.keys(),
    )


def _copy(target: TensorNode, source: TensorNode, info: NodeInfo, call: ExternalCall) -> Accumulate:
    domain = tuple((fresh_var(), extent) for extent in info.dims)
    cell: IndexMap = tuple(VarIndex(var) for var, _ in domain)
    projections = Projections(domain, cell, (cell,), info.dims, (info.dims,))
    return Accumulate(
        target,
        BinaryOp.SECOND,
        False,
        UnaryOp.IDENTITY,
        (NodeOperand(source),),
        projections,
        call.origin,
    )
