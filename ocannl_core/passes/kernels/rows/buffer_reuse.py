"""Buffer reuse among nests that run one after the other.

    for j: e[j] = exp(x[j] - m)           for j: x[j] = exp(x[j] - m)
    for j: y[j] = e[j] / s         -->    for j: x[j] = x[j] / s

A node takes the buffer of another one whose live range ends in the nest that computes it, if each
element is computed from the same element of the other node alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.loops.nodes import Load, Store
from ocannl_core.ir.loops.traverse import nodes_of, walk
from ocannl_core.ir.node import NodeInfo, TensorNode


def reuse_buffers(
    nests: Sequence[Nest], candidates: Collection[TensorNode], nodes: NodeInfos
) -> dict[TensorNode, TensorNode]:
    """Return, for each candidate that can be in the buffer of others, the first of those."""
    uses = {
        node: [at for at, nest in enumerate(nests) if node in nest.mentioned] for node in candidates
    }
    found: dict[TensorNode, TensorNode] = {}
    for at, nest in enumerate(nests):
        expiring = [node for node, positions in uses.items() if positions and positions[-1] == at]
        for store in nest.epilogue:
            new = store.node
            if new not in uses or uses[new][0] != at or new in expiring:
                continue
            for old in expiring:
                if _have_same_layout(nodes[old], nodes[new]) and _can_overwrite(nest, store, old):
                    found[new] = found.get(old, old)
                    expiring.remove(old)
                    break
    return found


def _have_same_layout(first: NodeInfo, second: NodeInfo) -> bool:
    return first.dtype is second.dtype and first.buffer_dims == second.buffer_dims


def _can_overwrite(nest: Nest, store: Store, old: TensorNode) -> bool:
    """Return True if a store writes each element of a node after the last read of the older one."""
    if nest.reduction is not None or sum(s.node is store.node for s in nest.epilogue) > 1:
        return False
    at = nest.epilogue.index(store)
    if any(old in nodes_of(each) for each in nest.epilogue[at + 1 :]):
        return False
    if any(each.node is old for each in nest.epilogue):
        return False
    return all(
        isinstance(each, Load) and each.indices == store.indices
        for earlier in nest.epilogue[: at + 1]
        for each in walk(earlier.value)
        if getattr(each, "node", None) is old
    )
