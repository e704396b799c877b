"""Speculation: computations behind conditions that may run where their condition fails.

A choice evaluates one of its branches. A reduction in a branch is computed for every cell, so that
a schedule applies to it and the choice is an epilogue like others, if it is defined for every cell:
behind a condition on numbers always, behind one on positions where it loads no cell beyond a node.

    s[i, j] = where(j <= i, { sum over k of q[i, k] * t[j, k] }, -inf)      all q[i, k], t[j, k] are
    y[i] = where(i >= 1, { sum over k of x[i - 1, k] }, 0.0)                x[-1, k] is no cell
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.ranges import is_in_bounds, ranges_of, static_ranges
from ocannl_core.ir.loops.traverse import Node, children, contains, static_indices, walk
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.primitives import TernaryOp


def is_unconditional(
    store: ir.Store, loops: Iterable[ir.For], nodes: Mapping[TensorNode, NodeInfo] | None
) -> bool:
    """Return True if every inlined computation of a store is defined for all cells.

    Args:
        loops: The loops around it.
        nodes: Extents of its nodes; None if computations behind conditions on positions count as
            undefined elsewhere.
    """
    around = tuple(loops)
    pending: list[Node] = [store.value]
    while pending:
        node = pending.pop()
        match node:
            case ir.Ternary(TernaryOp.WHERE, first, second, third) if _is_guard(node):
                inside = [each for branch in (second, third) for each in walk(branch)]
                for each in inside:
                    if isinstance(each, ir.Scoped) and not _is_defined(each, around, nodes):
                        return False
                pending.append(first)
            case ir.Scoped():
                continue
            case _:
                pending.extend(children(node))
    return True


def _is_guard(choice: ir.Ternary) -> bool:
    branches = [each for branch in (choice.second, choice.third) for each in walk(branch)]
    return contains(choice.first, ir.IndexValue) or any(
        isinstance(each, ir.Gather) for each in branches
    )


def _is_defined(
    scoped: ir.Scoped, around: Iterable[ir.For], nodes: Mapping[TensorNode, NodeInfo] | None
) -> bool:
    """Return True if no iteration of the loops loads a cell beyond a node in a computation."""
    inside = list(walk(scoped))
    if nodes is None or any(isinstance(each, ir.Gather | ir.LoadMerge) for each in inside):
        return False
    loops = (*around, *(each for each in inside if isinstance(each, ir.For)))
    ranges = static_ranges(static_indices(scoped)) | ranges_of(loops)
    return all(
        is_in_bounds(each.indices, nodes[each.node].buffer_dims, ranges)
        for each in inside
        if isinstance(each, ir.Load)
    )
