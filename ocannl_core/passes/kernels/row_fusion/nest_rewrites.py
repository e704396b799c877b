"""Nodes that a nest reads, and nests with other expressions and stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.kernels.nest import KernelNest
from ocannl_core.ir.loops.nodes import Expr, Store
from ocannl_core.ir.loops.traverse import map_expr, nodes_of
from ocannl_core.ir.node import TensorNode


def nodes_read(nest: KernelNest) -> frozenset[TensorNode]:
    """Return the nodes that a nest reads."""
    roots = [each.value if isinstance(each, Store) else each for each in nest.roots]
    return frozenset(node for root in roots for node in nodes_of(root))


def map_nest(
    nest: KernelNest, function: Callable[[Expr], Expr], buffers: Mapping[TensorNode, TensorNode]
) -> KernelNest:
    """Return a nest with its expressions mapped and its stores redirected."""
    reduction = nest.reduction
    if reduction is not None:
        term, initial = map_expr(reduction.term, function), map_expr(reduction.initial, function)
        reduction = replace(reduction, term=term, initial=initial)
    epilogue = tuple(
        replace(each, node=buffers.get(each.node, each.node), value=map_expr(each.value, function))
        for each in nest.epilogue
    )
    return replace(nest, reduction=reduction, epilogue=epilogue)
