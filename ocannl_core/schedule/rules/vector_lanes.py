"""Choose the neighbouring iterations that a thread loads and stores at once."""

from __future__ import annotations

from types import MappingProxyType

from ocannl_core.ir.indexing import variables
from ocannl_core.ir.kernels.nest import KernelNest, LoopAxis
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.target import ThreadBlocks
from ocannl_core.schedule.apply.vector_accesses import Ranges, find_vectors


def vector_lanes(
    nest: KernelNest,
    axis: LoopAxis,
    nodes: NodeInfos,
    blocks: ThreadBlocks,
    around: Ranges = MappingProxyType({}),
) -> int:
    """Return the number of iterations of an axis whose accesses are vectors; 1 if some are not.

    The widest numbers fill the vectors of the device, narrower ones a part of them.

    Args:
        nodes: Extents and formats.
        around: The values of the variables of loops around the nest.
    """
    if axis.bound is not None or axis.is_shifting or not blocks.vector_bytes:
        return 1
    sizes = [
        nodes[access.node].dtype.nbytes
        for access in nest.accesses
        if any(axis.var in variables(index) for index in access.indices or ())
    ]
    lanes = blocks.vector_bytes // max(sizes, default=blocks.vector_bytes)
    if lanes < 2 or axis.extent < lanes:
        return 1
    return lanes if find_vectors(nest, axis, lanes, nodes, around).is_complete else 1
