"""Rendering of stores to computed positions, and of checks of positions."""

from __future__ import annotations

import math

from ocannl_core.base.errors import CodegenError
from ocannl_core.codegen.rendering.expressions import Expressions
from ocannl_core.codegen.rendering.state import RenderState
from ocannl_core.ir.indexing import VarIndex
from ocannl_core.ir.loops.nodes import AxisKind, CheckPositions, Scatter
from ocannl_core.ir.numbers.dtypes import Kind

FAILURE_FLAG = "failed"
"""The name of the integer that a failed check sets to 1."""


def render_scatter(stmt: Scatter, expressions: Expressions) -> None:
    """Write a store to a computed position, under the condition that it is in bounds."""
    found = expressions.computed.locate(stmt, expressions.name_value(stmt.position))
    if found.cell is None:
        return
    with (
        expressions.state.writer.braces(f"if ({found.is_inside})"),
        expressions.computed.inside(stmt.own, found.cell),
    ):
        expressions.update_cell(found.cell, stmt.value, stmt.own)


def render_check(check: CheckPositions, counts: tuple[int, int], state: RenderState) -> None:
    """Write a check, which sets a flag if a position is out of bounds.

    The loop has no exit, so that compilers vectorise it. Threads of a device share the positions
    along the longest axis; all that find a failure store the same number.

    Args:
        counts: The number of thread blocks, and of the threads of each; 0 where one thread checks.

    Raises:
        CodegenError: if kernels of the dialect report no failures.
    """
    dialect, writer, info = state.dialect, state.writer, state.info(check.node)
    if not dialect.reports_failures:
        raise CodegenError(
            "Positions are checked by backends whose kernels report failures.",
            found=f"positions on {check.axis}",
            where=str(check.origin or ""),
            fix="switch the checks off with the setting check_positions",
        )
    bits = 8 * info.dtype.nbytes
    if info.dtype.kind is Kind.UNSIGNED and check.extent >= 2**bits:
        return  # every number of the format is a position
    strides = [math.prod(info.buffer_dims[axis + 1 :]) for axis in range(len(info.dims))]
    axes = [
        (extent, margin.left, stride)
        for extent, margin, stride in zip(info.dims, info.padding, strides, strict=False)
    ] or [(info.size, 0, 1)]
    names = [f"n{axis}" for axis in range(len(axes))]
    offset = " + ".join(
        f"({name} + {left}) * {stride}" if left or stride != 1 else name
        for name, (_, left, stride) in zip(names, axes, strict=True)
    )
    # a negative number is a great one without its sign
    limit = min(check.extent, 2 ** (bits - (info.dtype.kind is Kind.SIGNED)))
    unsigned, suffix = f"uint{bits}_t", "ULL" if bits == 64 else "u"
    array = state.names.array(check.node)
    writer.line(f"{unsigned} bad = 0;")
    ends = [str(extent) for extent, _, _ in axes]
    for axis, at_run_time in enumerate(check.extents):
        if at_run_time is not None:
            ends[axis] = str(state.positions.index(VarIndex(at_run_time)))
    blocks, threads = counts
    shared = names[max(range(len(axes)), key=lambda axis: axes[axis][0])] if threads else ""
    for name, end in zip(names, ends, strict=True):
        start, step = "0", f"++{name}"
        if name == shared:
            block, thread = map(dialect.device_index, (AxisKind.GRID, AxisKind.BLOCK))
            start, step = f"{block} * {threads} + {thread}", f"{name} += {blocks * threads}"
        writer.line(f"for ({dialect.index_type} {name} = {start}; {name} < {end}; {step})")
    writer.line(f"  bad |= ({unsigned}){array}[{offset}] >= ({unsigned}){limit}{suffix};")
    writer.line(f"if (bad) *{FAILURE_FLAG} = 1;")
