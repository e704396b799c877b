"""Memset-like fills: arrays and rows of them filled with a constant."""

from __future__ import annotations

from ocannl_core.codegen.rendering.expressions import Expressions
from ocannl_core.codegen.text.helper import STRING
from ocannl_core.codegen.text.scalar_replacement import stride_along
from ocannl_core.ir.indexing import FixedIndex, substitute
from ocannl_core.ir.loops.nodes import AxisKind, Block, Const, For, Store
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType, Kind, round_to, uint64


class MemsetRenderer:
    """Renders fills with a constant."""

    def __init__(self, expressions: Expressions) -> None:
        self._state = expressions.state
        self._writer = expressions.state.writer
        self._expressions = expressions

    def fill(self, node: TensorNode, value: float) -> bool:
        """Fill all cells of a node; return True if the fill is a loop."""
        info = self._state.info(node)
        name = self._state.names.array(node)
        if info.size == 0:
            return False
        if (
            info.size > 1
            and _is_zero(value, info.dtype)
            and self._write_memset(name, name, info.size)
        ):
            return False
        number = self._expressions.storage_value(Const(value, info.dtype))
        if info.size == 1:
            self._writer.line(f"{name}[0] = {number};")
            return False
        index_type = self._state.dialect.index_type
        with self._writer.braces(f"for ({index_type} x = 0; x < {info.size}; ++x)"):
            self._writer.line(f"{name}[x] = {number};")
        return True

    def fill_row(self, loop: For) -> TensorNode | None:
        """Write a loop that only zeroes contiguous cells as one statement.

        Returns:
            The node of the cells; None for any other loop, which leaves the text unchanged.
        """
        match loop:
            case For(var, start, stop, Block((Store(node, indices, Const(value, dtype)),))):
                pass
            case _:
                return None
        place = self._state.positions.position_of(node, indices)
        if (
            loop.kind is not AxisKind.SERIAL
            or node in self._state.names.registers
            or not _is_zero(value, dtype)
            or dtype is not self._state.info(node).dtype
            or stride_along(place, var) != 1
        ):
            return None
        first = tuple(substitute(index, {var: FixedIndex(start)}) for index in indices)
        cell = self._expressions.cell(node, first)
        array = self._state.names.array(node)
        return node if self._write_memset(f"&{cell}", array, stop - start) else None

    def _write_memset(self, cells: str, array: str, size: int) -> bool:
        """Write a statement that zeroes contiguous cells; return False if the dialect has none."""
        clear = self._state.dialect.zero_fill(cells, array, size)
        if clear is None:
            return False
        self._writer.helpers.add(STRING)
        self._writer.line(clear)
        self._writer.forget()
        return True


def _is_zero(value: float, dtype: DType) -> bool:
    """Return True if all bits of a number are zero, which -0.0's are not."""
    integers = uint64 if dtype.kind is Kind.WORD else dtype  # words are made of integers
    return Const(round_to(value, integers), integers) == Const(0.0, integers)
