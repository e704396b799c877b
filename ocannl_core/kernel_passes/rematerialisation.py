"""Large nodes that several kernels read are computed in each of them where memory takes longer.

    for i, j: d[i, j] = x[i, j] - m[j]                          (nothing)
    for i, j: v[j] += d[i, j] * d[i, j]             -->         v[j] += the square of x[i, j] - m[j]
    for i, j: y[i, j] = d[i, j] * s[j]                          y[i, j] = (x[i, j] - m[j]) * s[j]

Storing a node that no near cache holds and loading it again costs more than a few additions; what
the readers load instead must be less. Of kernels that run together row by row the same is decided
later, for nodes that are in a near cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from ocannl_core.fast_dataclass import replace
from ocannl_core.kernel_passes.analysed_kernel import AnalysedKernel
from ocannl_core.kernel_passes.row_fusion.inline_nodes import inline_node
from ocannl_core.kernels.nest import KernelNest
from ocannl_core.kernels.nodes import NodeInfos
from ocannl_core.loopir.traverse import nodes_of
from ocannl_core.node import TensorNode


def rematerialise(
    parts: Sequence[AnalysedKernel], nodes: NodeInfos, scratch: Sequence[TensorNode], cache: int
) -> tuple[AnalysedKernel, ...]:
    """Returns the kernels, those that read a large node of the routine computing it themselves.

    Args:
        parts: All kernels, in order.
        nodes: Extents and formats of their nodes.
        scratch: The nodes whose memory belongs to the routine.
        cache: Bytes; nodes that fit are stored.
    """
    result = list(parts)
    for node in scratch:
        if nodes[node].nbytes > cache and not nodes[node].padding:
            result = _without(result, node, nodes)
    return tuple(result)


def _without(
    parts: list[AnalysedKernel], node: TensorNode, nodes: NodeInfos
) -> list[AnalysedKernel]:
    """Returns the kernels without a node; the same ones if that is not possible, or no gain."""
    uses = [at for at, part in enumerate(parts) if node in part.mentioned]
    if len(uses) < 2:
        return parts
    between = range(uses[0], uses[-1] + 1)
    nests = [nest for at in between if (nest := parts[at].cells) is not None]
    if len(nests) < len(between) or not _is_less(nests, node, nodes):
        return parts
    found = inline_node(nests, node, nodes[node])
    if found is None:
        return parts
    changed = [
        replace(parts[at], cells=nest, is_changed=True) if nest != parts[at].cells else parts[at]
        for at, nest in zip(between, found, strict=True)
    ]
    left = [part for part in changed if part.cells is None or part.cells.finish]
    return [*parts[: uses[0]], *left, *parts[uses[-1] + 1 :]]


def _is_less(nests: Sequence[KernelNest], node: TensorNode, nodes: NodeInfos) -> bool:
    """True if what readers load in place of a node is less than what storing and loading it is."""
    stores = [store for nest in nests for store in nest.finish if store.node is node]
    if len(stores) != 1:
        return False
    needed = set(nodes_of(stores[0].value))
    readers = [nest for nest in nests if node in nest.mentioned and stores[0] not in nest.finish]
    more = sum(nodes[each].nbytes for nest in readers for each in needed - nest.mentioned)
    return more < (len(readers) + 1) * nodes[node].nbytes
