"""The axes of rows, columns and terms of a product, of any number of axes."""

from __future__ import annotations

from collections.abc import Mapping

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.kernels.nest import KernelNest, LoopAxis
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.schedule.rules.cost_model import strides


@dataclass(frozen=True, slots=True)
class ProductAxes:
    """The axes along which a product of two factors is cut into tiles.

    Attributes:
        row: The longest axis of cells on which the second of the operands does not depend.
        column: The longest one on which the first of them does not depend.
        term: The longest reduced axis of both.
        row_operand: The position of the operand with the rows among the factors.
    """

    row: LoopAxis
    column: LoopAxis
    term: LoopAxis
    row_operand: int


def product_axes(nest: KernelNest, nodes: NodeInfos | None = None) -> ProductAxes | None:
    """Return the axes of a product; None if both factors depend on all cells, or share no terms.

    Args:
        nest: A nest with a reduction of two factors.
        nodes: Extents, so that columns are contiguous in the results, as far as one of the axes
            is; None where rows and columns are alike.
    """
    first, second = nest.factor_variables
    rows = [axis for axis in nest.cells if axis.var in first and axis.var not in second]
    columns = [axis for axis in nest.cells if axis.var in second and axis.var not in first]
    terms = [axis for axis in nest.reduced if axis.var in first and axis.var in second]
    if not rows or not columns or not terms:
        return None
    row, column, term = (
        max(axes, key=lambda axis: (axis.extent, axis.name)) for axes in (rows, columns, terms)
    )
    steps: Mapping[str, int] = {}
    if nodes is not None:
        steps = strides(nest.axes, nest.epilogue, nodes)
    if steps.get(row.name) == 1 and steps.get(column.name) != 1:
        return ProductAxes(column, row, term, 1)  # neighbouring threads store neighbouring cells
    return ProductAxes(row, column, term, 0)
