"""Loop programs with known results: statements, scopes and whole routines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.external import ExternalOp
from ocannl_core.ir.indexing import fresh_var
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.node import Margin, NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import (
    PACKED,
    DType,
    bfloat16,
    bool_,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int4,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from ocannl_core.ir.numbers.primitives import UnaryOp
from ocannl_core.testing.compare import EXACT, Array, Tolerance
from ocannl_core.testing.drafts import Draft, at, loop
from ocannl_core.testing.parser.loops import parse


@dataclass(frozen=True, slots=True)
class Example:
    """A program, its inputs, and its known results."""

    program: ir.LoopProgram
    arrays: Mapping[TensorNode, Array]
    """Cells of parameters before the run, margins included; the others are zero."""
    indices: Sequence[int] = ()
    """Values of the static indices."""
    expected: Mapping[TensorNode, Any] = field(default_factory=dict)
    """Cells of parameters after the run, computed without the loop language."""
    tolerance: Tolerance = EXACT
    """The accepted difference between them and a backend's."""

    def __repr__(self) -> str:
        """Return the program as text."""
        values = f"\nindices = {list(self.indices)}" if self.indices else ""
        return to_text(self.program) + values

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Make Hypothesis print the program instead of nested dataclasses."""
        printer.text(repr(self))


def example(
    text: str,
    arrays: Mapping[str, Array],
    expected: Mapping[str, Any],
    *indices: int,
    margins: Mapping[str, Sequence[Margin]] | None = None,
    externals: Mapping[str, ExternalOp] | None = None,
) -> Example:
    """Return the example of a printed program, with its arrays by their names.

    Args:
        margins: Those parts of the extents in the text that are margins.
    """
    program = parse(text, externals)
    named = {node.name: node for node in program.params}
    infos = dict(program.nodes)
    for name, padding in (margins or {}).items():
        info = infos[named[name]]
        dims = [n - each.left - each.right for n, each in zip(info.dims, padding, strict=True)]
        infos[named[name]] = NodeInfo(info.dtype, tuple(dims), tuple(padding))
    return Example(
        replace(program, nodes=infos),
        {named[name]: cells for name, cells in arrays.items()},
        indices,
        {named[name]: cells for name, cells in expected.items()},
    )


_random = np.random.default_rng(1)


def _small_integers(*dims: int) -> Array:
    """Return floats whose sums and products are exact in float32."""
    return _random.integers(-8, 9, dims).astype(np.float32)


def matrix_product() -> Example:
    text = """
routine matmul(a: float32[3, 4], b: float32[4, 5], c: float32[3, 5]):
    c[:] = 0.0
    for i in range(3):
        for j in range(5):
            for k in reduction(4):
                c[i, j] += a[i, k] * b[k, j]
"""
    a, b, c = _small_integers(3, 4), _small_integers(4, 5), _small_integers(3, 5)
    return example(text, {"a": a, "b": b, "c": c}, {"c": a @ b})


def einmax_over_a_broadcast_sum() -> Example:
    """`result[i] = max over j of (a[i, j] + b[j])`, also where a NaN or only infinities occur."""
    text = """
routine einmax(a: float32[4, 3], b: float32[3], result: float32[4]):
    result[:] = -inf
    for i in range(4):
        for j in range(3):
            result[i] max= a[i, j] + b[j]
"""
    a, b = _small_integers(4, 3), _small_integers(3)
    a[1, 1], a[2, :] = np.nan, -np.inf
    return example(text, {"a": a, "b": b}, {"result": (a + b).max(axis=1)})


def convolution_with_margins() -> Example:
    """A strided convolution that reads margins set by a fill."""
    text = """
routine convolution(image: float32[9], source: float32[6], kernel: float32[4], result: float32[3]):
    image[:] = 100.0
    for o in range(6):
        image[o + 1] = source[o]
    result[:] = 0.0
    for o in range(3):
        for w in range(4):
            result[o] += image[2*o + w] * kernel[w]
"""
    source, kernel = _small_integers(6), _small_integers(4)
    padded = np.concatenate([[100], source, [100, 100]])
    expected = [padded[2 * p : 2 * p + 4] @ kernel for p in range(3)]
    return example(
        text,
        {"source": source, "kernel": kernel},
        {"result": expected, "image": padded},
        margins={"image": [Margin(1, 2)]},
    )


def reversed_and_strided_cells() -> Example:
    text = """
routine strides(source: int32[4], result: int32[8]):
    for i in range(4):
        result[2*i + 1] = source[-i + 3]
"""
    arrays = {"source": np.arange(4, dtype=np.int32), "result": np.full(8, 9, np.int32)}
    return example(text, arrays, {"result": [9, 3, 9, 2, 9, 1, 9, 0]})


def cells_read_after_they_are_written() -> Example:
    """A prefix sum in place: each iteration reads the cell that the previous one has written."""
    text = """
routine running_sum(cells: int32[6]):
    for i in range(5):
        cells[i + 1] += cells[i]
"""
    cells = np.array([1, 2, 3, 4, 5, 6], np.int32)
    return example(text, {"cells": cells}, {"cells": [1, 3, 6, 10, 15, 21]})


def loops_that_do_not_start_at_zero_or_do_not_run() -> Example:
    text = """
routine bounds(cells: int32[5]):
    for i in range(2, 4):
        cells[i] = int32(10*i)
    for j in range(3, 3):
        cells[0] = -1
"""
    return example(text, {}, {"cells": [0, 0, 20, 30, 0]})


def variables_and_inlined_computations() -> Example:
    """A sum of squares in a variable, and the same computed inside an expression."""
    text = """
routine variables(a: float32[3, 4], result: float32[3, 2]):
    for i in range(3):
        v: float32
        v = 0.0
        for j in range(4):
            v += a[i, j] * a[i, j]
        result[i, 0] = v
        result[i, 1] = -v1
            where v1: float32
                v1 = 0.0
                for k in range(4):
                    v1 += a[i, k] * a[i, k]
"""
    a = _small_integers(3, 4)
    sums = (a**2).sum(axis=1)
    return example(text, {"a": a}, {"result": np.stack([sums, -sums], axis=1)})


def memory_of_every_scope() -> Example:
    """Rows reversed through memory of the routine, of the kernel and of an iteration."""
    text = """
routine scopes(source: int32[3, 4], result: int32[3, 4]):
    routine whole: int32[3, 4]
    for i in range(3):
        for j in range(4):
            whole[i, j] = source[i, j]
    for i in range(3):
        kernel row: int32[4]
        for j in range(4):
            row[j] = whole[i, j]
        for k in range(4):
            thread cell: int32[1]
            cell[0] = row[-k + 3]
            result[i, k] = cell[0]
"""
    cells = np.arange(12, dtype=np.int32).reshape(3, 4)
    return example(text, {"source": cells}, {"result": cells[:, ::-1]})


def gathered_cells() -> Example:
    """Rows of a table at computed positions; 0 or a stated number for a fraction, a NaN, or beyond
    the ends.
    """
    text = """
routine gather(table: float32[3, 2], position: float32[10], result: float32[10, 2], filled: float32[10, 2]):
    for i in range(10):
        for j in range(2):
            result[i, j] = gather(table[position[i], j])
            filled[i, j] = gather(table[position[i], j], -inf)
"""  # noqa: E501
    positions = [2.0, 0.0, 3.0, -1.0, 0.5, np.nan, np.inf, 1.0, -0.0, 1e30]
    cells = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    rows = [2, 0, None, None, None, None, None, 1, 0, None]
    expected = {
        name: np.array([[beyond] * 2 if row is None else cells[row] for row in rows])
        for name, beyond in (("result", 0.0), ("filled", -np.inf))
    }
    arrays = {"table": cells, "position": np.array(positions, np.float32)}
    return example(text, arrays, expected)


def gathered_cells_with_margins() -> Example:
    """Cells at computed positions, which count the cells in memory: margins included."""
    text = """
routine margins(table: float32[6], source: float32[3], position: int32[7], result: float32[7]):
    table[:] = 7.0
    for i in range(3):
        table[i + 1] = source[i]
    for p in range(7):
        result[p] = gather(table[position[p]])
"""
    positions = [1, 3, 0, 5, 6, -1, 4]
    source = _small_integers(3)
    padded = np.concatenate([[7], source, [7, 7]])
    expected = [padded[p] if 0 <= p < 6 else 0 for p in positions]
    return example(
        text,
        {"source": source, "position": np.array(positions, np.int32)},
        {"result": np.array(expected), "table": padded},
        margins={"table": [Margin(1, 2)]},
    )


def scattered_cells() -> Example:
    """Rows added and assigned at computed positions; none for a fraction, a NaN, or beyond."""
    text = """
routine scatter(rows: float32[10, 2], position: float32[10], sums: float32[3, 2], last: float32[3, 2]):
    sums[:] = 1.0
    last[:] = 7.0
    for i in range(10):
        for j in range(2):
            scatter(sums[position[i], j]) += rows[i, j]
    for i in range(10):
        for j in range(2):
            scatter(last[position[i], j]) = rows[i, j]
"""  # noqa: E501
    positions = np.array([2.0, 0.0, 3.0, -1.0, 0.5, np.nan, np.inf, 2.0, -0.0, 1e30], np.float32)
    rows = _small_integers(len(positions), 2)
    sums, last = np.full((3, 2), 1, np.float32), np.full((3, 2), 7, np.float32)
    for number in (0, 1, 7, 8):
        sums[int(positions[number])] += rows[number]
        last[int(positions[number])] = rows[number]
    return example(text, {"rows": rows, "position": positions}, {"sums": sums, "last": last})


POSITION_FORMATS = (uint8, int8, uint16, int16, int32, uint32, int64, uint64)
"""The formats of positions."""


def checked_positions(formats: Sequence[DType] = POSITION_FORMATS) -> Example:
    """Checks of positions that are in bounds, in each format, among margins that are not."""
    draft, i = Draft("checks"), fresh_var("i")
    result = draft.node("result", int32, 3)
    table = np.array([0, 4, 2])
    arrays: dict[TensorNode, Array] = {}
    checks = []
    for dtype in formats:
        node = draft.node(str(dtype), dtype, 3, padding=(Margin(1, 2),))
        arrays[node] = np.pad(table.astype(dtype.numpy), (1, 2), constant_values=99)
        checks.append(ir.CheckPositions(node, 5, "an axis"))
    store = draft.store(result, i, value=ir.IndexValue(at(i)[0], int32))
    return Example(draft.program(*checks, loop(i, 3, store)), arrays, (), {result: [0, 1, 2]})


def check_before_a_store() -> tuple[ir.LoopProgram, TensorNode, TensorNode]:
    """Return a check of three positions on an axis of three cells, and a fill after it; and the
    nodes of the positions and of the filled cells.
    """
    program = parse("""
routine check(positions: int32[3], result: int32[2]):
    check positions in range(3) for an axis
    result[:] = 1
""")
    positions, result = program.params
    return program, positions, result


def check_up_to_an_extent() -> tuple[ir.LoopProgram, TensorNode]:
    """Return a check of three positions on an axis with an extent at run time, and the node of the
    positions.
    """
    program = parse("""
routine check(positions: int32[3], result: int32[2], static n <= 8):
    check positions in range(n) for an axis
    result[:] = 1
""")
    return program, program.params[0]


def packed_cells(formats: Sequence[DType] = PACKED) -> Example:
    """Loads of cells of four bits at every place of rows with an odd number of cells."""
    draft = Draft("packed")
    i, j = fresh_var("i"), fresh_var("j")
    arrays: dict[TensorNode, Array] = {}
    expected: dict[TensorNode, Any] = {}
    stores = []
    for dtype in formats:
        low = -8 if dtype is int4 else 0
        cells = (np.arange(35) * 3 % 16 + low).reshape(5, 7).astype(dtype.numpy)
        node = draft.node(str(dtype), dtype, 5, 7)
        arrays[node] = cells
        copied = draft.node(f"{dtype}_copied", dtype.unpacked, 5, 7)
        turned = draft.node(f"{dtype}_turned", int32, 7, 5)
        value = draft.load(node, i, j)
        stores.append(
            draft.store(copied, i, j, value=ir.Unary(UnaryOp.IDENTITY, value, dtype.unpacked))
        )
        stores.append(draft.store(turned, j, i, value=ir.Unary(UnaryOp.IDENTITY, value, int32)))
        expected |= {copied: cells, turned: cells.T.astype(np.int32)}
    return Example(draft.program(loop(i, 5, loop(j, 7, *stores))), arrays, (), expected)


def fills_of_every_format() -> Example:
    draft, expected = Draft("fills"), {}
    floats = (float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2)
    for dtype in (*floats, int32, int8, bool_):
        node = draft.node(str(dtype), dtype, 2, 3, padding=(Margin(1, 1), Margin(0, 2)))
        expected[node] = np.full((4, 5), 3.0).astype(dtype.numpy)
    return Example(draft.program(*(ir.Fill(node, 3.0) for node in expected)), {}, (), expected)


def verbatim_code_of_another_language() -> Example:
    """Verbatim code in another language, for which backends run the body."""
    text = """
routine verbatim(cell: int32[1]):
    verbatim no language:
        | this is no code !
        cell[0] = 7
"""
    return example(text, {}, {"cell": [7]})


def loops_of_every_kind() -> Example:
    """A product table under each kind of loop, with extents that no vector width divides."""
    kinds = (
        ("range", "range"),
        ("parallel", "range"),
        ("parallel", "vector"),
        ("range", "vector"),
        ("range", "unrolled"),
        ("grid", "range"),
        ("grid", "block"),
    )
    names = [f"{outer}_{inner}".replace("range", "serial") for outer, inner in kinds]
    lines = [f"routine kinds({', '.join([f'{name}: int32[5, 7]' for name in names])}):"]
    for name, (outer, inner) in zip(names, kinds, strict=True):
        lines.append(f"    for i in {outer}(5):")
        lines.append(f"        for j in {inner}(7):")
        lines.append(f"            {name}[i, j] = int32(i) * int32(j)")
    table = np.outer(np.arange(5), np.arange(7))
    return example("\n".join(lines), {}, dict.fromkeys(names, table))


def parallel_iterations_with_variables_of_their_own() -> Example:
    text = """
routine parallel(a: float32[6, 4], result: float32[6]):
    for i in parallel(6):
        v: float32
        v = 0.0
        for k in unrolled(4):
            v += a[i, k]
        result[i] = v
"""
    a = _small_integers(6, 4)
    return example(text, {"a": a}, {"result": a.sum(axis=1)})


def guarded_load() -> Example:
    """A window that sticks out of its node, read under a condition: in the operand itself, and in
    the statements of an inlined computation.
    """
    text = """
routine guard(source: int32[4], result: int32[4], inlined: int32[4]):
    for i in range(4):
        result[i] = where(int32(i + 16777216) < 4, source[i + 16777216], 5)
        inlined[i] = where(int32(i + 16777216) < 4, v, 6)
            where v: int32
                v = source[i + 16777216]
"""
    expected = {"result": [5, 5, 5, 5], "inlined": [6, 6, 6, 6]}
    return example(text, {"source": np.arange(4, dtype=np.int32)}, expected)


def awkward_names() -> Example:
    """Labels that are keywords, repeat, or are no identifiers, and remarks that end comments."""
    draft, once = Draft("int main(void) { */"), fresh_var("once")
    labels = ["int", "int", "for", '*/ "', "über", "__global__", "i0", "printf", "", "NULL", "n"]
    nodes = [draft.node(label, int32, 1) for label in labels]
    remarks = [ir.Remark(text) for text in ("*/ error", "line\nanother # \\", "%s \\", "// /* ??/")]
    stores = [draft.store(n, 0, value=ir.Const(k, int32)) for k, n in enumerate(nodes)]
    expected = {node: [k] for k, node in enumerate(nodes)}
    # in front of a kernel remarks are its title, inside of a loop they are part of its code
    return Example(draft.program(*remarks, loop(once, 1, *remarks, *stores)), {}, (), expected)


def row_of() -> tuple[ir.LoopProgram, TensorNode, TensorNode]:
    """Return a program that copies part of a row, its source and its destination.

    Its two static indices are the row and the first column; the last cell receives a number made of
    both.
    """
    program = parse("""
routine row(source: float32[3, 4], result: float32[4], static row < 3, static offset < 2):
    for i in range(3):
        result[i] = source[row, i + offset]
    result[3] = float32(10*row + offset)
""")
    source, result = program.params
    return program, source, result


@dataclass(frozen=True, slots=True)
class RunningSum:
    """An external operation: sums along the last axis, and the total of all cells."""

    name: str = "running_sum"
    line_axis: int | None = None

    def perform(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = np.cumsum(inputs[0], axis=-1)
        outputs[1][...] = inputs[0].sum()


def sum_with_merge_buffer() -> tuple[ir.LoopProgram, TensorNode]:
    """Return a program that adds the merge buffer of its parameter, and the parameter."""
    program = parse("""
routine merge(cell: float32[2]):
    for i in range(2):
        cell[i] += cell.merge[i]
""")
    return program, program.params[0]


def external_call() -> Example:
    """An external operation between two kernels, over nodes with margins and of the routine."""
    text = """
routine external(source: float32[3, 5], total: float32[], result: float32[2, 3]):
    routine sums: float32[2, 3]
    for i in range(2):
        for j in range(3):
            source[i, j + 1] *= 2.0
    sums, total = call running_sum(source)
    for i in range(2):
        for j in range(3):
            result[i, j] = sums[i, j]
"""
    cells = np.full((3, 5), 1000, np.float32)
    cells[:2, 1:4] = [[1, 2, 3], [4, 5, 6]]
    return example(
        text,
        {"source": cells},
        {"total": np.array(42.0), "result": np.array([[2, 6, 12], [8, 18, 30]])},
        margins={"source": [Margin(0, 1), Margin(1, 1)]},
        externals={"running_sum": RunningSum()},
    )


@dataclass(frozen=True, slots=True)
class Call:
    """An external operation that calls a function."""

    function: Callable[[], None]
    name: str = "call"
    line_axis: int | None = None

    def perform(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self.function()
        outputs[0][...] = inputs[0]


def external_call_of(function: Callable[[], None]) -> ir.LoopProgram:
    """Return a program that calls a function in the middle, between two copies."""
    text = """
routine calls(source: int32[1], result: int32[1]):
    result = call call(source)
"""
    return parse(text, {"call": Call(function)})


def repeated_statements() -> Example:
    """A repetition inside another, in both orders, with a node that is private to an iteration."""
    text = """
routine repeated(source: float32[2, 3], carry: float32[4], kept: float32[2, 3, 4], result: float32[2, 4]):
    repeat outer in range(2):
        inputs carry, source
        outputs kept, carry, result
        complete kept, carry, result
        repeat inner in range(3) reversed:
            inputs carry, source
            outputs kept, carry
            complete carry
            private own: float32[4]
            for i in range(4):
                own[i] = carry[i] + source[outer, inner]
            for i in range(4):
                kept[outer, inner, i] = own[i]
            for i in range(4):
                carry[i] = own[i]
        for i in range(4):
            result[outer, i] = carry[i]
        for i in range(4):
            carry[i] *= 2.0
    repeat never in range(0):
        inputs carry, source
        outputs kept, carry, result
"""  # noqa: E501
    source = np.arange(6, dtype=np.float32).reshape(2, 3)
    start = np.array([0, 10, 20, 30], np.float32)
    kept, result = np.zeros((2, 3, 4), np.float32), np.zeros((2, 4), np.float32)
    carry = start.copy()
    for row in range(2):
        for step in (2, 1, 0):
            carry += source[row, step]
            kept[row, step] = carry
        result[row] = carry
        carry *= 2
    expected = {"kept": kept, "result": result, "carry": carry}
    return example(text, {"source": source, "carry": start}, expected)


def ends_at_run_time() -> Example:
    """Loops that end at an extent: in blocks, around a reduction, and for a single iteration."""
    text = """
routine ends(source: int32[8], cells: int32[8], total: int32[8], last: int32[8], static n <= 8):
    for i in range(2) while 4*i < n:
        for j in range(4) while 4*i + j < n:
            cells[4*i + j] = source[4*i + j] + source[4*i + j]
    for k in range(2, 8) while k < n:
        total[0] += source[k]
    for once in range(1) while once + 4 < n:
        last[4] = int32(n)
    for once in range(1) while once + 5 < n:
        last[5] = int32(n)
"""
    expected = {
        "cells": [0, 2, 4, 6, 8, 0, 0, 0],
        "total": [2 + 3 + 4, 0, 0, 0, 0, 0, 0, 0],
        "last": [0, 0, 0, 0, 5, 0, 0, 0],
    }
    return example(text, {"source": np.arange(8, dtype=np.int32)}, expected, 5)


HAND_MADE: tuple[Callable[[], Example], ...] = (
    matrix_product,
    einmax_over_a_broadcast_sum,
    convolution_with_margins,
    reversed_and_strided_cells,
    cells_read_after_they_are_written,
    repeated_statements,
    loops_that_do_not_start_at_zero_or_do_not_run,
    variables_and_inlined_computations,
    memory_of_every_scope,
    gathered_cells,
    gathered_cells_with_margins,
    scattered_cells,
    fills_of_every_format,
    verbatim_code_of_another_language,
    loops_of_every_kind,
    parallel_iterations_with_variables_of_their_own,
    ends_at_run_time,
)
