"""Rendering of loops that copy neighboring cells as vector accesses of memory.

    for l in vector(4):               -->   copy_vector<uint4>(&t0[0], &a0[4 * i]);
      t0[l] = a0[4 * i + l]

A loop is a vector access if both addresses are multiples of its length for all values of the
variables; otherwise it stays a loop.
"""

from __future__ import annotations

from collections.abc import Callable

from ocannl_core.codegen.dialect import AddressSpace, BlockDialect
from ocannl_core.codegen.rendering.expressions import Expressions
from ocannl_core.codegen.rendering.render_state import RenderState
from ocannl_core.codegen.text.scalar_replacement import Position, stride_along
from ocannl_core.ir.loops.nodes import Block, For, Load, Store
from ocannl_core.ir.node import TensorNode


def render_vector_copies(
    loop: For, expressions: Expressions, space_of: Callable[[TensorNode], AddressSpace]
) -> bool:
    """Write a loop as vector copies and return True; return False, and write nothing, for any
    other loop.

    Args:
        space_of: Returns the memory of a node.
    """
    state, dialect = expressions.state, expressions.state.dialect
    if not isinstance(dialect, BlockDialect) or loop.bound is not None:
        return False
    match loop.body:
        case Block((Store(node, indices, Load(source, sources, dtype)),)):
            pass
        case _:
            return False
    if state.info(node).dtype is not dtype or state.info(source).dtype is not dtype:
        return False
    count = loop.stop - loop.start
    if dtype.is_packed or not dialect.vector_bytes:
        return False
    most = max(1, dialect.vector_bytes // dtype.nbytes)
    cells = next((n for n in (16, 8, 4, 2) if n <= most and count % n == 0), 0)
    if not cells:
        return False
    ends = [state.positions.position_of(*each) for each in ((node, indices), (source, sources))]
    if not all(_is_aligned(loop, each, cells, state) for each in ends):
        return False
    for first in range(loop.start, loop.stop, cells):
        with state.names.bind(loop.var, first):
            to = f"&{expressions.cell(node, indices)}", space_of(node)
            of = f"&{expressions.cell(source, sources)}", space_of(source)
        state.writer.line(dialect.vector_copy(to, of, cells * dtype.nbytes))
    state.writer.forget()
    state.written.add(node)
    return True


def _is_aligned(loop: For, position: Position, cells: int, state: RenderState) -> bool:
    """Return True if a loop accesses neighboring cells, from a multiple of `cells` on."""
    terms, offset = position
    for step, var in terms:
        value = loop.start if var is loop.var else state.names.index(var)
        if isinstance(value, int):
            offset += step * value
        elif step % cells:
            return False
    return stride_along(position, loop.var) == 1 and offset % cells == 0
