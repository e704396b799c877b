"""The width of the integers in which a kernel computes positions.

A GPU has no 64-bit arithmetic for addresses: each operation is several instructions, and each
number takes two registers.
"""

from __future__ import annotations

from collections.abc import Mapping

from ocannl_core.indexing import AxisIndex, IndexVar, as_affine
from ocannl_core.kernels.nodes import Kernel, NodeInfos
from ocannl_core.loopir.nodes import For, IndexValue
from ocannl_core.loopir.ranges import Range
from ocannl_core.loopir.traverse import nodes_of, walk

_LIMIT = 1 << 30
"""Half of the range of 32 bits, so that sums on the way to a position fit, too."""


def fits_in_32_bits(kernel: Kernel, nodes: NodeInfos) -> bool:
    """Return True if all positions of a kernel fit into signed integers of 32 bits.

    Static indices do not count: they are parameters of 64 bits, which widen what they occur in.
    """
    if any(nodes[node].size >= _LIMIT for node in nodes_of(kernel.body)):
        return False
    ranges: dict[IndexVar, Range] = {}
    positions: list[AxisIndex] = []
    for part in walk(kernel.body):
        if isinstance(part, For):
            ranges[part.var] = Range(part.start, part.stop - 1)
            if part.bound is not None:
                positions += [part.bound.index, part.bound.end]
        elif isinstance(part, IndexValue):
            positions.append(part.index)
    sizes = [max(abs(each.low), abs(each.high)) for each in ranges.values()]
    return all(size < _LIMIT for size in (*sizes, *(_size(each, ranges) for each in positions)))


def _size(index: AxisIndex, ranges: Mapping[IndexVar, Range]) -> int:
    """Return a limit of the magnitude of an index, and of every sum in it."""
    terms, offset = as_affine(index)
    reach = [(factor, ranges[var]) for factor, var in terms if var in ranges]
    sizes = (abs(factor) * max(abs(each.low), abs(each.high)) for factor, each in reach)
    return abs(offset) + sum(sizes)
