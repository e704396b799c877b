"""The cells that one instruction copies from memory to shared memory."""

from __future__ import annotations

from collections.abc import Sequence

from ocannl_core.ir.indexing import as_affine, row_major
from ocannl_core.ir.kernels.nest import LoopAxis
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.loops.nodes import Expr, Load


def copy_width(
    expr: Expr,
    axes: Sequence[LoopAxis],
    inner: str,
    nodes: NodeInfos,
    sizes: Sequence[int],
) -> int:
    """Return the neighbouring cells that one instruction copies from memory to shared memory; 0 if
    none copies them.

    They are aligned in memory if every step along another axis is a multiple of their number.

    Args:
        axes: The axes of the nest.
        inner: The axis along which cells are neighbours in shared memory.
        nodes: Extents and formats.
        sizes: The bytes that one instruction copies.
    """
    if not isinstance(expr, Load):
        return 0
    terms, offset = as_affine(row_major(expr.indices, nodes[expr.node].buffer_dims))
    found = {var: coefficient for coefficient, var in terms}
    offset += sum(found.get(axis.var, 0) * axis.start for axis in axes)
    (var,) = (axis.var for axis in axes if axis.name == inner)
    step = found.pop(var, 0)
    for nbytes in sorted(sizes, reverse=True):
        width, rest = divmod(nbytes, expr.dtype.nbytes)
        if rest or not width:
            continue
        if width == 1 or (
            step == 1 and offset % width == 0 and all(each % width == 0 for each in found.values())
        ):
            return width
    return 0
