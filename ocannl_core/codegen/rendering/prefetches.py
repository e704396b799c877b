"""Rendering of prefetches."""

from __future__ import annotations

from ocannl_core.codegen.dialect import Dialect
from ocannl_core.codegen.rendering.expressions import Expressions
from ocannl_core.codegen.text.writer import KernelWriter
from ocannl_core.ir.loops.nodes import Prefetch


def render_prefetch(
    stmt: Prefetch, dialect: Dialect, writer: KernelWriter, expressions: Expressions
) -> None:
    """Write the prefetch of a cache line, whose address may exceed the bounds of its array."""
    line = dialect.prefetch(expressions.cell(stmt.node, stmt.indices))
    if line is not None:
        writer.line(line)
