"""Rendering of cells at computed positions.

x = gather(a[p, j], nan)   -->   const int v1 = p >= 0 && p < 9;
                                 const int64_t v2 = v1 ? p : 0;
                                 x = v1 ? a[4 * v2 + j] : NAN;

A load is unconditional, from a cell that exists, so that compilers can vectorize it; a store is
conditional. Neither touches memory outside of the array.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.codegen.rendering.render_state import RenderState
from ocannl_core.codegen.text.precedence import CExpr, cast, conditional, infix
from ocannl_core.ir.indexing import row_major
from ocannl_core.ir.loops.nodes import Gather, Scatter
from ocannl_core.ir.numbers.dtypes import DType, Kind, float32, int64, round_to

_ZERO = CExpr("0")


@dataclass(frozen=True, slots=True)
class ComputedCell:
    """A cell at a computed position."""

    is_inside: CExpr
    """A variable that is 1 if the position is in bounds, else 0."""
    cell: CExpr | None
    """The cell; out of bounds the one at position 0; None if the axis has no cells."""


class ComputedPositions:
    """Renders computed positions at the current point of a kernel."""

    def __init__(self, state: RenderState) -> None:
        self._state = state
        self._known: dict[Gather, CExpr] = {}

    def known_cell(self, gather: Gather) -> CExpr | None:
        """Return the cell of a gather that is certain to be in bounds here; None for others."""
        return self._known.get(gather)

    @contextmanager
    def inside(self, gather: Gather, cell: CExpr) -> Iterator[None]:
        """Render code that runs only if the position of a gather is in bounds."""
        self._known[gather] = cell
        yield
        del self._known[gather]

    def locate(self, access: Gather | Scatter, position: CExpr) -> ComputedCell:
        """Return the cell of an access, after writing the test of its bounds.

        Args:
            position: Its position, as an atom.
        """
        state, dtype = self._state, access.position.dtype
        dims = state.info(access.node).buffer_dims
        extent = dims[access.axis]
        if extent == 0:
            return ComputedCell(_ZERO, None)
        is_integer = dtype is int64
        integer = position if is_integer else cast(state.dialect.index_type, position)
        test = infix(position, "<", self._limit(extent, dtype))
        if dtype.kind is not Kind.UNSIGNED:
            test = infix(infix(position, ">=", _ZERO), "&&", test)
        if dtype.is_float:
            test = infix(
                test, "&&", infix(position, "==", state.c_library("trunc", dtype, position))
            )
        is_inside, chosen = CExpr(state.names.fresh()), CExpr(state.names.fresh())
        state.writer.line(f"const int {is_inside} = {test};")
        choice = conditional(is_inside, integer, _ZERO)
        state.writer.line(f"const {state.dialect.index_type} {chosen} = {choice};")
        stride = math.prod(dims[access.axis + 1 :])
        moved = chosen if stride == 1 else infix(CExpr(str(stride)), "*", chosen)
        base = state.positions.index(row_major(access.indices, dims))
        offset = moved if base.code == "0" else infix(moved, "+", base)
        return ComputedCell(is_inside, CExpr(f"{state.names.array(access.node)}[{offset}]"))

    def _limit(self, extent: int, dtype: DType) -> CExpr:
        """Return the constant that bounds the same numbers of the format as `extent` does."""
        if not dtype.is_float:
            return CExpr(str(extent))
        wide = float32 if dtype.is_narrow else dtype
        limit = round_to(extent, wide)
        if limit < extent:
            limit = float(np.nextafter(wide.numpy.type(limit), wide.numpy.type(math.inf)))
        return self._state.dialect.constant(limit, wide)
