"""Rendering of statements other than loops, stores and assignments.

Reductions across neighboring threads:

    v0 = subgroup 4 add(v0)      -->      const float v1 = __shfl_xor_sync(0xfu, v0, 2);
                                          v0 += v1;
                                          const float v2 = __shfl_xor_sync(0xfu, v0, 1);
                                          v0 += v2;

Languages without shuffles exchange the values through memory that the threads of a block share. The
steps are the same, so the results have the same bits.
"""

from __future__ import annotations

import math

from ocannl_core.base.errors import CodegenError
from ocannl_core.codegen.rendering.expressions import Expressions
from ocannl_core.codegen.rendering.render_state import RenderState
from ocannl_core.codegen.text.helper import STRING
from ocannl_core.codegen.text.precedence import CExpr
from ocannl_core.codegen.text.scalar_replacement import stride_along
from ocannl_core.ir.indexing import FixedIndex, Margin, VarIndex, substitute
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType, Kind, float32, float64, round_to, uint4x32, uint64

FAILURE_FLAG = "failed"
"""The name of the integer that a failed check sets to 1."""


def render_fill(fill: ir.Fill, expressions: Expressions) -> bool:
    """Fill all cells of a node with a constant; return True if the fill is a loop."""
    state, info = expressions.state, expressions.state.info(fill.node)
    name = state.names.array(fill.node)
    if info.size == 0:
        return False
    is_cleared = info.size > 1 and _is_zero(fill.value, info.dtype)
    if is_cleared and _write_memset(name, name, info.size, state):
        return False
    number = expressions.storage_value(ir.Const(fill.value, info.dtype))
    if info.size == 1:
        state.writer.line(f"{name}[0] = {number};")
        return False
    with state.writer.braces(f"for ({state.dialect.index_type} x = 0; x < {info.size}; ++x)"):
        state.writer.line(f"{name}[x] = {number};")
    return True


def render_row_fill(loop: ir.For, expressions: Expressions) -> TensorNode | None:
    """Write a loop that only zeroes contiguous cells as one statement, and return their node.

    Return None for any other loop, which leaves the text unchanged.
    """
    match loop:
        case ir.For(var, start, stop, ir.Block((ir.Store(node, indices, ir.Const(value, dtype)),))):
            pass
        case _:
            return None
    state = expressions.state
    if (
        loop.kind is not ir.AxisKind.SERIAL
        or node in state.names.registers
        or not _is_zero(value, dtype)
        or dtype is not state.info(node).dtype
        or stride_along(state.positions.position_of(node, indices), var) != 1
    ):
        return None
    first = tuple(substitute(index, {var: FixedIndex(start)}) for index in indices)
    cell, array = expressions.cell(node, first), state.names.array(node)
    return node if _write_memset(f"&{cell}", array, stop - start, state) else None


def _write_memset(cells: str, array: str, size: int, state: RenderState) -> bool:
    """Write a statement that zeroes contiguous cells; return False if the dialect has none."""
    clear = state.dialect.zero_fill(cells, array, size)
    if clear is None:
        return False
    state.writer.helpers.add(STRING)
    state.writer.line(clear)
    state.writer.forget()
    return True


def _is_zero(value: float, dtype: DType) -> bool:
    """Return True if all bits of a number are zero, which -0.0's are not."""
    integers = uint64 if dtype.kind is Kind.WORD else dtype  # words are made of integers
    return ir.Const(round_to(value, integers), integers) == ir.Const(0.0, integers)


def render_vector_store(stmt: ir.StoreVector, expressions: Expressions) -> None:
    """Write the numbers in a 128-bit word to consecutive cells, lowest bits first.

    Raises:
        CodegenError: if the word holds too few numbers of the format of the cells.
    """
    state, dtype = expressions.state, expressions.state.info(stmt.node).dtype
    arg = expressions.value(stmt.arg)
    word = state.names.fresh()
    state.writer.line(f"const {state.dialect.value_type(uint4x32)} {word} = {arg};")
    parts = _split_word(word, dtype)
    if stmt.length > len(parts):
        raise CodegenError(
            f"A 128-bit word holds {len(parts)} numbers of {dtype}.",
            found=f"a store of {stmt.length}",
        )
    for shift, part in enumerate(parts[: stmt.length]):
        cell = expressions.cell(stmt.node, stmt.indices, shift)
        state.writer.line(f"{cell} = {_number_in(part, dtype, state)};")


def _split_word(word: str, dtype: DType) -> list[str]:
    """Return the bits of the numbers of a format in a variable of type `uint4x32`."""
    fields = [f"{word}.{lane}" for lane in "abcd"]
    match dtype.nbytes:
        case 16:
            return [word]
        case 8:
            pairs = (fields[:2], fields[2:])
            return [f"((uint64_t){high} << 32 | {low})" for low, high in pairs]
        case 4:
            return fields
        case nbytes:
            mask, shifts = f"{(1 << dtype.bits) - 1:#x}", range(0, 32, 8 * nbytes)
            every = [f"{each} >> {by}" if by else each for each in fields for by in shifts]
            return [f"{each} & {mask}" for each in every]


def _number_in(part: str, dtype: DType, state: RenderState) -> str | CExpr:
    """Return the cell that some bits of a word become.

    Floats of 16 bits and more are uniform in [0, 1], where only rounding reaches 1; narrower
    floats, integers and words are the bits themselves.
    """
    if dtype is float32:
        return state.helper("uniform_of", CExpr(part))
    if dtype is float64:
        return f"(double){part} * 0x1p-64"
    if dtype.is_float and dtype.nbytes == 2:
        # 16 bits are exact in float32, so they are rounded once
        return state.helper(f"{dtype}_bits", CExpr(f"(float)({part}) * 0x1p-16f"))
    return part if dtype is uint4x32 else f"({state.dialect.storage_type(dtype)})({part})"


def render_subgroup_reduce(stmt: ir.SubgroupReduce, threads: int, expressions: Expressions) -> None:
    """Write a reduction across threads.

    Raises:
        CodegenError: if the threads of a block are no multiple of the lanes, or for words.
    """
    local, dtype, state = stmt.local, stmt.local.dtype, expressions.state
    dialect, names, writer = state.dialect, state.names, state.writer
    if not threads or threads % stmt.lanes or dtype.kind is Kind.WORD:
        raise CodegenError(
            "The threads of a block, a multiple of the lanes, reduce numbers across lanes.",
            found=f"{stmt.lanes} lanes of {threads} threads, of {dtype}",
        )
    name = names.local(local)
    value = expressions.value(stmt.value)
    if value.code != name:
        writer.assign(name, value.code)
    other, computed = ir.Local(-1, dtype), float32 if dtype.is_narrow else dtype
    arrays: list[str] = []
    apart = stmt.lanes // 2
    while apart:
        given = dialect.shuffle_xor(name, apart, threads)
        if given is None:
            given = _exchange(name, apart, arrays, computed, threads, state)
        writer.line(f"const {dialect.value_type(dtype)} {names.declare(other)} = {given};")
        both = ir.Binary(stmt.op, ir.LocalRead(local), ir.LocalRead(other), dtype)
        writer.line(f"{name} = {expressions.value(both)};")
        apart //= 2
    if arrays:  # the last loads, before which no thread may store again
        _write_barrier(state)


def _exchange(
    name: str, apart: int, arrays: list[str], dtype: DType, threads: int, state: RenderState
) -> str:
    """Return the value of a variable in the thread whose number differs in one bit.

    Two arrays that threads share take turns, so that a thread stores its next value while others
    load the last one.
    """
    thread = state.dialect.thread_number
    while len(arrays) < 2:
        arrays.append(state.names.fresh())
        state.writer.group_arrays.append((arrays[-1], dtype, threads))
    array = arrays[0]
    arrays.reverse()
    state.writer.line(f"{array}[{thread}] = {name};")
    _write_barrier(state)
    return f"{array}[{thread} ^ {apart}]"


def _write_barrier(state: RenderState) -> None:
    for line in state.dialect.barrier(inside_block_axis=True):
        state.writer.line(line)


def render_scatter(stmt: ir.Scatter, expressions: Expressions) -> None:
    """Write a store to a computed position, under the condition that it is in bounds."""
    found = expressions.computed.locate(stmt, expressions.name_value(stmt.position))
    if found.cell is None:
        return
    with (
        expressions.state.writer.braces(f"if ({found.is_inside})"),
        expressions.computed.inside(stmt.own, found.cell),
    ):
        expressions.update_cell(found.cell, stmt.value, stmt.own)


def render_check(check: ir.CheckPositions, counts: tuple[int, int], state: RenderState) -> None:
    """Write a check, which sets a flag if a position is out of bounds.

    The loop has no exit, so that compilers vectorize it. Threads of a device share the positions
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
    # a negative number is a great one without its sign
    most = 2 ** (bits - (info.dtype.kind is Kind.SIGNED))
    unsigned, suffix = f"uint{bits}_t", "ULL" if bits == 64 else "u"
    if check.at_run_time is not None:
        end = str(state.positions.index(VarIndex(check.at_run_time)))
        limit = f"(uint64_t)({f'{end} < {most} ? {end} : {most}' if check.extent > most else end})"
    elif info.dtype.kind is Kind.UNSIGNED and check.extent >= most:
        return  # every number of the format is a position
    else:
        limit = f"({unsigned}){min(check.extent, most)}{suffix}"
    axes = [(info.size, 0, 1)]
    if info.padding or check.extents:
        margins = info.padding or [Margin(0, 0)] * len(info.dims)
        strides = [math.prod(info.buffer_dims[axis + 1 :]) for axis in range(len(info.dims))]
        axes = [
            (extent, margin.left, stride)
            for extent, margin, stride in zip(info.dims, margins, strides, strict=True)
        ]
    names = [f"n{axis}" for axis in range(len(axes))]
    offset = " + ".join(
        f"({name} + {left}) * {stride}" if left or stride != 1 else name
        for name, (_, left, stride) in zip(names, axes, strict=True)
    )
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
            block, thread = map(dialect.device_index, (ir.AxisKind.GRID, ir.AxisKind.BLOCK))
            start, step = f"{block} * {threads} + {thread}", f"{name} += {blocks * threads}"
        writer.line(f"for ({dialect.index_type} {name} = {start}; {name} < {end}; {step})")
    writer.line(f"  bad |= ({unsigned}){array}[{offset}] >= {limit};")
    writer.line(f"if (bad) *{FAILURE_FLAG} = 1;")
