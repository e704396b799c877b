"""Side effects of statements and expressions."""

from __future__ import annotations

from ocannl_core.base.identity import IdentityMap
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.equivalence import Storage
from ocannl_core.ir.loops.traverse import Node, fold, walk

_NOTHING: frozenset[Storage] = frozenset()


def assigned_memory(root: ir.Stmt) -> IdentityMap[Node, frozenset[Storage]]:
    """Return the memory that each statement of a tree assigns, itself or inside.

    Inlined computations count with the statement that contains them.
    """
    found: IdentityMap[Node, frozenset[Storage]] = IdentityMap()

    def combine(node: Node, inside: tuple[frozenset[Storage], ...]) -> frozenset[Storage]:
        changed = assigned_by_node(node)
        kinds = [each for each in (changed, *inside) if each]
        union = kinds[0] if len(kinds) == 1 else _NOTHING.union(*kinds)
        if isinstance(node, ir.Stmt):
            found[node] = union
        return union

    fold(root, combine)
    return found


def assigned_by_node(node: Node) -> frozenset[Storage]:
    """Return the memory and scalars that a node itself assigns, without its children."""
    match node:
        case (
            ir.Store(array)
            | ir.StoreVector(array)
            | ir.Fill(array)
            | ir.Allocate(array)
            | ir.Scatter(array)
        ):
            return frozenset((array,))
        case (
            ir.SetLocal(local)
            | ir.DeclareLocal(local)
            | ir.Scoped(local)
            | ir.SubgroupReduce(local)
        ):
            return frozenset((local,))
        case ir.CallExternal(outputs=outputs) | ir.Repeat(outputs=outputs):
            return frozenset(outputs)
        case _:
            return _NOTHING


def is_pure(expr: ir.Expr) -> bool:
    """Return True if computing an expression changes only scalars of its own."""
    writing = ir.Store | ir.StoreVector | ir.Scatter | ir.Fill | ir.Allocate
    impure = (
        writing
        | ir.CheckPositions
        | ir.CallExternal
        | ir.Repeat
        | ir.Barrier
        | ir.Verbatim
        | ir.SubgroupReduce
    )
    own = {node.local for node in walk(expr) if isinstance(node, ir.Scoped | ir.DeclareLocal)}
    return not any(
        isinstance(node, impure) or (isinstance(node, ir.SetLocal) and node.local not in own)
        for node in walk(expr)
    )
