"""Rendering of vector stores: the numbers in a 128-bit word, lowest bits first."""

from __future__ import annotations

from ocannl_core.base.errors import CodegenError
from ocannl_core.codegen.rendering.expressions import Expressions
from ocannl_core.ir.loops.nodes import StoreVector
from ocannl_core.ir.numbers.dtypes import DType, float32, float64, uint4x32

Lane = tuple[str, tuple[str, ...]]
"""An expression for a stored cell, and the helpers that it needs."""


def render_vector_store(stmt: StoreVector, expressions: Expressions) -> None:
    """Write the numbers in a word to consecutive cells.

    Raises:
        CodegenError: if the word holds too few numbers of the format of the cells.
    """
    state, dtype = expressions.state, expressions.state.info(stmt.node).dtype
    dialect, writer = state.dialect, state.writer
    arg = expressions.value(stmt.arg)
    word = state.names.fresh()
    writer.line(f"const {dialect.value_type(uint4x32)} {word} = {arg};")
    values = split_word(word, dtype, dialect.storage_type(dtype))
    if stmt.length > len(values):
        raise CodegenError(
            f"A 128-bit word holds {len(values)} numbers of {dtype}.",
            found=f"a store of {stmt.length}",
        )
    for shift, (value, helpers) in enumerate(values[: stmt.length]):
        cell = expressions.cell(stmt.node, stmt.indices, shift)
        writer.helpers.update(helpers)
        writer.line(f"{cell} = {value};")


def split_word(word: str, dtype: DType, storage_type: str) -> list[Lane]:
    """Return one cell after the other.

    Floats of 16 bits and more are uniform in [0, 1], where only rounding reaches 1; narrower
    floats, integers and words are the bits themselves.

    Args:
        word: The name of a variable of type `uint4x32`.
        dtype: The format of the cells.
        storage_type: The name of the type in which they are stored.
    """
    fields = [f"{word}.{lane}" for lane in "abcd"]
    if dtype.nbytes == 16:
        return [(word, ())]
    if dtype.nbytes == 8:
        parts = [f"((uint64_t){high} << 32 | {low})" for low, high in (fields[:2], fields[2:])]
    else:
        parts = [_part(each, shift, dtype) for each in fields for shift in _shifts(dtype)]
    if dtype is float32:
        return [(f"uniform_of({part})", ("uniform_of",)) for part in parts]
    if dtype is float64:
        return [(f"(double){part} * 0x1p-64", ()) for part in parts]
    if dtype.is_float and dtype.nbytes == 2:
        # 16 bits are exact in float32, so they are rounded once
        return [(f"{dtype}_bits((float)({part}) * 0x1p-16f)", (f"{dtype}_bits",)) for part in parts]
    return [(f"({storage_type})({part})", ()) for part in parts]


def _shifts(dtype: DType) -> range:
    return range(0, 32, 8 * dtype.nbytes)


def _part(field: str, shift: int, dtype: DType) -> str:
    if dtype.nbytes == 4:
        return field
    shifted = f"{field} >> {shift}" if shift else field
    return f"{shifted} & {(1 << dtype.bits) - 1:#x}"
