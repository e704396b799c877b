"""Side effects of statements and expressions."""

from __future__ import annotations

from ocannl_core.base.identity import IdentityMap
from ocannl_core.ir.loops.equivalence import Storage
from ocannl_core.ir.loops.nodes import (
    Allocate,
    Barrier,
    CallExternal,
    CheckPositions,
    DeclareLocal,
    Expr,
    Fill,
    Repeat,
    Scatter,
    Scoped,
    SetLocal,
    Staged,
    Stmt,
    Store,
    StoreVector,
    SubgroupReduce,
)
from ocannl_core.ir.loops.traverse import Node, fold, walk

_NOTHING: frozenset[Storage] = frozenset()


def assigned_memory(root: Stmt) -> IdentityMap[Node, frozenset[Storage]]:
    """Return the memory that each statement of a tree assigns, itself or inside.

    Inlined computations count with the statement that contains them.
    """
    found: IdentityMap[Node, frozenset[Storage]] = IdentityMap()

    def combine(node: Node, inside: tuple[frozenset[Storage], ...]) -> frozenset[Storage]:
        changed = assigned_by_node(node)
        kinds = [each for each in (changed, *inside) if each]
        union = kinds[0] if len(kinds) == 1 else _NOTHING.union(*kinds)
        if isinstance(node, Stmt):
            found[node] = union
        return union

    fold(root, combine)
    return found


def assigned_by_node(node: Node) -> frozenset[Storage]:
    """Return the memory and scalars that a node itself assigns, without its children."""
    match node:
        case Store(array) | StoreVector(array) | Fill(array) | Allocate(array) | Scatter(array):
            return frozenset((array,))
        case SetLocal(local) | DeclareLocal(local) | Scoped(local) | SubgroupReduce(local):
            return frozenset((local,))
        case CallExternal(outputs=outputs) | Repeat(outputs=outputs):
            return frozenset(outputs)
        case _:
            return _NOTHING


def is_pure(expr: Expr) -> bool:
    """Return True if computing an expression changes only scalars of its own."""
    writing = Store | StoreVector | Scatter | Fill | Allocate
    impure = writing | CheckPositions | CallExternal | Repeat | Barrier | Staged | SubgroupReduce
    own = {node.local for node in walk(expr) if isinstance(node, Scoped | DeclareLocal)}
    return not any(
        isinstance(node, impure) or (isinstance(node, SetLocal) and node.local not in own)
        for node in walk(expr)
    )
