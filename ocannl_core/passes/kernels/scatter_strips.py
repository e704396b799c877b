"""Divide the columns of a scatter into strips that threads share.

    for t in range(4096):                      for t in range(4096):
      for o in range(256):                       for p in range(4):  # parallel
        scatter(c[ids[t], o]) += x[t, o]   -->     for o in range(64):
                                                     scatter(c[ids[t], 64 * p + o]) += ...

Iterations of the outer loop may write the same row, so that they run one after the other. Each
thread runs all of them for strips of its own: every cell gets its values in the order of the loops.
On one thread the order of all statements is the same as before.
"""

from __future__ import annotations

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.indexing import AxisIndex, IndexVar, affine, fresh_var
from ocannl_core.ir.kernels.dependence import AccessSet, iterations_are_independent
from ocannl_core.ir.kernels.nest import perfect_loops
from ocannl_core.ir.loops.nodes import AxisKind, Block, For, Scatter, Stmt
from ocannl_core.ir.loops.traverse import substitute_in_stmt, walk

_STRIPS = (64, 32, 16)
"""Columns of a strip: whole cache lines of float32, so that no two threads write to one."""
_FEWEST = 4
"""The least number of strips, for threads to have about as many each."""


def scatter_in_strips(stmt: For, touched: AccessSet) -> For | None:
    """Return loops around a scatter with the innermost one as parallel strips; None if its
    iterations are not independent, or too few.

    Args:
        stmt: The outermost loop.
    """
    loops, inner = perfect_loops(Block((stmt,)))
    columns = loops[-1]
    extent = columns.stop - columns.start
    strip = next((n for n in _STRIPS if extent % n == 0 and extent >= n * _FEWEST), None)
    if strip is None or len(loops) < 2 or any(loop.bound is not None for loop in loops):
        return None
    if any(loop.kind is not AxisKind.SERIAL for loop in loops):
        return None
    if not any(isinstance(each, Scatter) for part in inner for each in walk(part)):
        return None
    if not iterations_are_independent(columns, touched):
        return None
    part, column = fresh_var(columns.var.hint), fresh_var(columns.var.hint)
    place: dict[IndexVar, AxisIndex] = {
        columns.var: affine([(strip, part), (1, column)], columns.start)
    }
    body = For(column, 0, strip, substitute_in_stmt(Block(inner), place))
    found: Stmt = For(part, 0, extent // strip, Block((body,)), AxisKind.PARALLEL)
    for loop in reversed(loops[:-1]):
        found = replace(loop, body=Block((found,)))
    assert isinstance(found, For)
    return found
