"""Loop programs with known results: statements, scopes and whole routines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.indexing import (
    AffineIndex,
    StaticExtent,
    StaticIndex,
    VarIndex,
    affine,
    fresh_var,
)
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.node import Margin, TensorNode
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
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp
from ocannl_core.testing.compare import EXACT, Array, Tolerance
from ocannl_core.testing.drafts import Draft, at, loop


@dataclass(frozen=True, slots=True)
class Example:
    """A program, its inputs, and its known results.

    Attributes:
        arrays: Cells of parameters before the run, margins included; the others are zero.
        indices: Values of the static indices.
        expected: Cells of parameters after the run, computed without the loop language.
        tolerance: The accepted difference between them and a backend's.
    """

    program: ir.LoopProgram
    arrays: Mapping[TensorNode, Array]
    indices: Sequence[int] = ()
    expected: Mapping[TensorNode, Any] = field(default_factory=dict)
    tolerance: Tolerance = EXACT

    def __repr__(self) -> str:
        """Return the program as text."""
        values = f"\nindices = {list(self.indices)}" if self.indices else ""
        return to_text(self.program) + values

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Make Hypothesis print the program instead of nested dataclasses."""
        printer.text(repr(self))


_random = np.random.default_rng(1)


def _small_integers(*dims: int) -> Array:
    """Return floats whose sums and products are exact in float32."""
    return _random.integers(-8, 9, dims).astype(np.float32)


def matrix_product() -> Example:
    draft = Draft("matmul")
    a, b, c = (
        draft.node("a", float32, 3, 4),
        draft.node("b", float32, 4, 5),
        draft.node("c", float32, 3, 5),
    )
    i, j, k = fresh_var("i"), fresh_var("j"), fresh_var("k")
    product = ir.Binary(BinaryOp.MUL, draft.load(a, i, k), draft.load(b, k, j), float32)
    update = draft.accumulate(c, i, j, op=BinaryOp.ADD, value=product)
    body = loop(i, 3, loop(j, 5, loop(k, 4, update, kind=ir.AxisKind.REDUCTION)))
    arrays = {a: _small_integers(3, 4), b: _small_integers(4, 5), c: _small_integers(3, 5)}
    return Example(draft.program(ir.Fill(c, 0.0), body), arrays, (), {c: arrays[a] @ arrays[b]})


def einmax_over_a_broadcast_sum() -> Example:
    """`result[i] = max over j of (a[i, j] + b[j])`, also where a NaN or only infinities occur."""
    draft, i, j = Draft("einmax"), fresh_var("i"), fresh_var("j")
    a, b = draft.node("a", float32, 4, 3), draft.node("b", float32, 3)
    result = draft.node("result", float32, 4)
    total = ir.Binary(BinaryOp.ADD, draft.load(a, i, j), draft.load(b, j), float32)
    update = draft.accumulate(result, i, op=BinaryOp.MAX, value=total)
    arrays = {a: _small_integers(4, 3), b: _small_integers(3)}
    arrays[a][1, 1], arrays[a][2, :] = np.nan, -np.inf
    expected = (arrays[a] + arrays[b]).max(axis=1)
    program = draft.program(ir.Fill(result, -np.inf), loop(i, 4, loop(j, 3, update)))
    return Example(program, arrays, (), {result: expected})


def convolution_with_margins() -> Example:
    """A strided convolution that reads margins set by a fill."""
    draft, o, w = Draft("convolution"), fresh_var("o"), fresh_var("w")
    image = draft.node("image", float32, 6, padding=(Margin(1, 2),))
    source, kernel = draft.node("source", float32, 6), draft.node("kernel", float32, 4)
    result = draft.node("result", float32, 3)
    copy = draft.store(image, affine([(1, o)], 1), value=draft.load(source, o))
    term = ir.Binary(
        BinaryOp.MUL, draft.load(image, affine([(2, o), (1, w)])), draft.load(kernel, w), float32
    )
    update = draft.accumulate(result, o, op=BinaryOp.ADD, value=term)
    arrays = {source: _small_integers(6), kernel: _small_integers(4)}
    padded = np.concatenate([[100], arrays[source], [100, 100]])
    expected = [padded[2 * p : 2 * p + 4] @ arrays[kernel] for p in range(3)]
    program = draft.program(
        ir.Fill(image, 100.0),
        loop(o, 6, copy),
        ir.Fill(result, 0.0),
        loop(o, 3, loop(w, 4, update)),
    )
    return Example(program, arrays, (), {result: expected, image: padded})


def reversed_and_strided_cells() -> Example:
    draft, i = Draft("strides"), fresh_var("i")
    source, result = draft.node("source", int32, 4), draft.node("result", int32, 8)
    store = draft.store(result, affine([(2, i)], 1), value=draft.load(source, affine([(-1, i)], 3)))
    arrays = {source: np.arange(4, dtype=np.int32), result: np.full(8, 9, np.int32)}
    program = draft.program(loop(i, 4, store))
    return Example(program, arrays, (), {result: [9, 3, 9, 2, 9, 1, 9, 0]})


def cells_read_after_they_are_written() -> Example:
    """A prefix sum in place: each iteration reads the cell that the previous one has written."""
    draft, i = Draft("running_sum"), fresh_var("i")
    cells = draft.node("cells", int32, 6)
    previous = draft.load(cells, affine([(1, i)]))
    update = draft.accumulate(cells, affine([(1, i)], 1), op=BinaryOp.ADD, value=previous)
    arrays = {cells: np.array([1, 2, 3, 4, 5, 6], np.int32)}
    return Example(draft.program(loop(i, 5, update)), arrays, (), {cells: [1, 3, 6, 10, 15, 21]})


def loops_that_do_not_start_at_zero_or_do_not_run() -> Example:
    draft, i, j = Draft("bounds"), fresh_var("i"), fresh_var("j")
    cells = draft.node("cells", int32, 5)
    store = draft.store(cells, i, value=ir.IndexValue(affine([(10, i)]), int32))
    never = draft.store(cells, 0, value=ir.Const(-1, int32))
    program = draft.program(
        ir.For(i, 2, 4, ir.Block((store,))), ir.For(j, 3, 3, ir.Block((never,)))
    )
    return Example(program, {}, (), {cells: [0, 0, 20, 30, 0]})


def variables_and_inlined_computations() -> Example:
    """A sum of squares in a variable, and the same computed inside an expression."""
    draft, i, j, k = Draft("variables"), fresh_var("i"), fresh_var("j"), fresh_var("k")
    a = draft.node("a", float32, 3, 4)
    result = draft.node("result", float32, 3, 2)
    outer, inner = ir.Local(0, float32), ir.Local(1, float32)

    def square(at_axis: Any) -> ir.Expr:
        return ir.Binary(
            BinaryOp.MUL, draft.load(a, i, at_axis), draft.load(a, i, at_axis), float32
        )

    def add_to(local: ir.Local, value: ir.Expr) -> ir.SetLocal:
        return ir.SetLocal(local, ir.Binary(BinaryOp.ADD, ir.LocalRead(local), value, float32))

    zero = ir.Const(0.0, float32)
    inlined = ir.Block((ir.SetLocal(inner, zero), loop(k, 4, add_to(inner, square(k)))))
    body = loop(
        i,
        3,
        ir.DeclareLocal(outer),
        ir.SetLocal(outer, zero),
        loop(j, 4, add_to(outer, square(j))),
        draft.store(result, i, 0, value=ir.LocalRead(outer)),
        draft.store(result, i, 1, value=ir.Unary(UnaryOp.NEG, ir.Scoped(inner, inlined), float32)),
    )
    arrays = {a: _small_integers(3, 4)}
    sums = (arrays[a] ** 2).sum(axis=1)
    return Example(draft.program(body), arrays, (), {result: np.stack([sums, -sums], axis=1)})


def memory_of_every_scope() -> Example:
    """Rows reversed through memory of the routine, of the kernel and of an iteration."""
    draft, i, j, k = Draft("scopes"), fresh_var("i"), fresh_var("j"), fresh_var("k")
    source, result = draft.node("source", int32, 3, 4), draft.node("result", int32, 3, 4)
    whole, row = draft.scratch("whole", int32, 3, 4), draft.scratch("row", int32, 4)
    cell = draft.scratch("cell", int32, 1)
    backwards = affine([(-1, k)], 3)
    body = (
        ir.Allocate(whole, ir.Scope.ROUTINE),
        loop(i, 3, loop(j, 4, draft.store(whole, i, j, value=draft.load(source, i, j)))),
        loop(
            i,
            3,
            ir.Allocate(row, ir.Scope.KERNEL),
            loop(j, 4, draft.store(row, j, value=draft.load(whole, i, j))),
            loop(
                k,
                4,
                ir.Allocate(cell, ir.Scope.THREAD),
                draft.store(cell, 0, value=draft.load(row, backwards)),
                draft.store(result, i, k, value=draft.load(cell, 0)),
            ),
        ),
    )
    cells = np.arange(12, dtype=np.int32).reshape(3, 4)
    return Example(draft.program(*body), {source: cells}, (), {result: cells[:, ::-1]})


def gathered_cells() -> Example:
    """Rows of a table at computed positions; none for a fraction, a NaN, or beyond the ends."""
    positions = [2.0, 0.0, 3.0, -1.0, 0.5, np.nan, np.inf, 1.0, -0.0, 1e30]
    draft, i, j = Draft("gather"), fresh_var("i"), fresh_var("j")
    table = draft.node("table", float32, 3, 2)
    position = draft.node("position", float32, len(positions))
    result = draft.node("result", float32, len(positions), 2)
    read = ir.Gather(table, at(0, j), 0, draft.load(position, i), float32)
    body = loop(i, len(positions), loop(j, 2, draft.store(result, i, j, value=read)))
    cells = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    zero = [0, 0]
    expected = [cells[2], cells[0], zero, zero, zero, zero, zero, cells[1], cells[0], zero]
    arrays = {table: cells, position: np.array(positions, np.float32)}
    return Example(draft.program(body), arrays, (), {result: np.array(expected)})


def gathered_cells_with_margins() -> Example:
    """Cells at computed positions, which count the cells in memory: margins included."""
    positions = [1, 3, 0, 5, 6, -1, 4]
    draft, i = Draft("margins"), fresh_var("i")
    table = draft.node("table", float32, 3, padding=(Margin(1, 2),))
    source = draft.node("source", float32, 3)
    position = draft.node("position", int32, len(positions))
    result = draft.node("result", float32, len(positions))
    copy = draft.store(table, affine([(1, i)], 1), value=draft.load(source, i))
    at_positions = fresh_var("p")
    read = ir.Gather(table, at(0), 0, draft.load(position, at_positions), float32)
    body = draft.store(result, at_positions, value=read)
    arrays = {source: _small_integers(3), position: np.array(positions, np.int32)}
    padded = np.concatenate([[7], arrays[source], [7, 7]])
    expected = [padded[p] if 0 <= p < 6 else 0 for p in positions]
    program = draft.program(ir.Fill(table, 7.0), loop(i, 3, copy), loop(at_positions, 7, body))
    return Example(program, arrays, (), {result: np.array(expected), table: padded})


def scattered_cells() -> Example:
    """Rows added and assigned at computed positions; none for a fraction, a NaN, or beyond."""
    positions = np.array([2.0, 0.0, 3.0, -1.0, 0.5, np.nan, np.inf, 2.0, -0.0, 1e30], np.float32)
    count, valid = len(positions), [0, 1, 7, 8]
    draft, i, j = Draft("scatter"), fresh_var("i"), fresh_var("j")
    rows = draft.node("rows", float32, count, 2)
    position = draft.node("position", float32, count)
    sums, last = draft.node("sums", float32, 3, 2), draft.node("last", float32, 3, 2)
    row, place = draft.load(rows, i, j), draft.load(position, i)
    plain = ir.Scatter(sums, at(0, j), 0, place, row)
    added = replace(plain, value=ir.Binary(BinaryOp.ADD, plain.own, row, float32))
    assigned = ir.Scatter(last, at(0, j), 0, place, row)
    nests = (loop(i, count, loop(j, 2, each)) for each in (added, assigned))
    cells = _small_integers(count, 2)
    expected = np.full((3, 2), 1, np.float32), np.full((3, 2), 7, np.float32)
    for number in valid:
        expected[0][int(positions[number])] += cells[number]
        expected[1][int(positions[number])] = cells[number]
    program = draft.program(ir.Fill(sums, 1.0), ir.Fill(last, 7.0), *nests)
    arrays = {rows: cells, position: positions}
    return Example(program, arrays, (), {sums: expected[0], last: expected[1]})


def checked_positions() -> Example:
    """Checks of positions that are in bounds, in every format, among margins that are not."""
    draft, i = Draft("checks"), fresh_var("i")
    result = draft.node("result", int32, 3)
    table = np.array([0, 4, 2])
    arrays: dict[TensorNode, Array] = {}
    checks = []
    for dtype in (uint8, int8, uint16, int16, int32, uint32, int64, uint64):
        node = draft.node(str(dtype), dtype, 3, padding=(Margin(1, 2),))
        arrays[node] = np.pad(table.astype(dtype.numpy), (1, 2), constant_values=99)
        checks.append(ir.CheckPositions(node, 5, "an axis"))
    store = draft.store(result, i, value=ir.IndexValue(at(i)[0], int32))
    return Example(draft.program(*checks, loop(i, 3, store)), arrays, (), {result: [0, 1, 2]})


def check_before_a_store() -> tuple[ir.LoopProgram, TensorNode, TensorNode]:
    """Return a check of three positions on an axis of three cells, and a fill after it; and the
    nodes of the positions and of the filled cells.
    """
    draft = Draft("check")
    positions, result = draft.node("positions", int32, 3), draft.node("result", int32, 2)
    check = ir.CheckPositions(positions, 3, "an axis")
    return draft.program(check, ir.Fill(result, 1.0)), positions, result


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


def staged_code_of_another_language() -> Example:
    """Staged code in another language, for which backends run the body."""
    draft = Draft("staged")
    cell = draft.node("cell", int32, 1)
    meaning = ir.Block((draft.store(cell, 0, value=ir.Const(7, int32)),))
    program = draft.program(ir.Staged("no language", "this is no code !", meaning))
    return Example(program, {}, (), {cell: [7]})


def loops_of_every_kind() -> Example:
    """A product table under each kind of loop, with extents that no vector width divides."""
    draft, expected, body = Draft("kinds"), {}, []
    kinds = (
        (ir.AxisKind.SERIAL, ir.AxisKind.SERIAL),
        (ir.AxisKind.PARALLEL, ir.AxisKind.SERIAL),
        (ir.AxisKind.PARALLEL, ir.AxisKind.VECTOR),
        (ir.AxisKind.SERIAL, ir.AxisKind.VECTOR),
        (ir.AxisKind.SERIAL, ir.AxisKind.UNROLLED),
        (ir.AxisKind.GRID, ir.AxisKind.SERIAL),
        (ir.AxisKind.GRID, ir.AxisKind.BLOCK),
    )
    for outer, inner in kinds:
        i, j = fresh_var("i"), fresh_var("j")
        table = draft.node(f"{outer.value}_{inner.value}", int32, 5, 7)
        row, column = ir.IndexValue(at(i)[0], int32), ir.IndexValue(at(j)[0], int32)
        store = draft.store(table, i, j, value=ir.Binary(BinaryOp.MUL, row, column, int32))
        body.append(loop(i, 5, loop(j, 7, store, kind=inner), kind=outer))
        expected[table] = np.outer(np.arange(5), np.arange(7))
    return Example(draft.program(*body), {}, (), expected)


def parallel_iterations_with_variables_of_their_own() -> Example:
    draft, i, k = Draft("parallel"), fresh_var("i"), fresh_var("k")
    a, result = draft.node("a", float32, 6, 4), draft.node("result", float32, 6)
    total = ir.Local(0, float32)
    summed = ir.Binary(BinaryOp.ADD, ir.LocalRead(total), draft.load(a, i, k), float32)
    body = loop(
        i,
        6,
        ir.DeclareLocal(total),
        ir.SetLocal(total, ir.Const(0.0, float32)),
        loop(k, 4, ir.SetLocal(total, summed), kind=ir.AxisKind.UNROLLED),
        draft.store(result, i, value=ir.LocalRead(total)),
        kind=ir.AxisKind.PARALLEL,
    )
    arrays = {a: _small_integers(6, 4)}
    return Example(draft.program(body), arrays, (), {result: arrays[a].sum(axis=1)})


def guarded_load() -> Example:
    """A window that sticks out of its node, read under a condition."""
    draft, i = Draft("guard"), fresh_var("i")
    source, result = draft.node("source", int32, 4), draft.node("result", int32, 4)
    shifted = affine([(1, i)], 1 << 24)
    inside = ir.Binary(BinaryOp.LT, ir.IndexValue(shifted, int32), ir.Const(4, int32), int32)
    value = ir.Ternary(
        TernaryOp.WHERE, inside, draft.load(source, shifted), ir.Const(5, int32), int32
    )
    arrays = {source: np.arange(4, dtype=np.int32)}
    program = draft.program(loop(i, 4, draft.store(result, i, value=value)))
    return Example(program, arrays, (), {result: [5, 5, 5, 5]})


def awkward_names() -> Example:
    """Labels that are keywords, repeat, or are no identifiers, and remarks that end comments."""
    draft = Draft("int main(void) { */")
    labels = ["int", "int", "for", '*/ "', "über", "__global__", "i0", "printf", "", "NULL", "n"]
    nodes = [draft.node(label, int32, 1) for label in labels]
    remarks = [ir.Remark(text) for text in ("*/ error", "line\nanother # \\", "%s \\", "// /* ??/")]
    stores = [draft.store(n, 0, value=ir.Const(k, int32)) for k, n in enumerate(nodes)]
    expected = {node: [k] for k, node in enumerate(nodes)}
    return Example(draft.program(*remarks, *stores), {}, (), expected)


def row_of() -> tuple[ir.LoopProgram, TensorNode, TensorNode]:
    """Return a program that copies part of a row, its source and its destination.

    Its two static indices are the row and the first column; the last cell receives a number made of
    both.
    """
    draft, i = Draft("row"), fresh_var("i")
    row, offset = StaticIndex("row", 3), StaticIndex("offset", 2)
    source, result = draft.node("source", float32, 3, 4), draft.node("result", float32, 4)
    value = draft.load(source, row, affine([(1, i), (1, offset)]))
    number = ir.IndexValue(AffineIndex(((10, row), (1, offset))), float32)
    program = draft.program(
        loop(i, 3, draft.store(result, i, value=value)),
        draft.store(result, 3, value=number),
        indices=(row, offset),
    )
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
    draft, i = Draft("merge"), fresh_var("i")
    cell = draft.node("cell", float32, 2)
    sent = ir.LoadMerge(cell, at(i), float32)
    return draft.program(loop(i, 2, draft.accumulate(cell, i, op=BinaryOp.ADD, value=sent))), cell


def external_call() -> Example:
    """An external operation between two kernels, over nodes with margins and of the routine."""
    draft, i, j = Draft("external"), fresh_var("i"), fresh_var("j")
    source = draft.node("source", float32, 2, 3, padding=(Margin(0, 1), Margin(1, 1)))
    total, result = draft.node("total", float32), draft.node("result", float32, 2, 3)
    sums = draft.scratch("sums", float32, 2, 3)
    doubled = affine([(1, j)], 1)
    double = draft.accumulate(source, i, doubled, op=BinaryOp.MUL, value=ir.Const(2.0, float32))
    body = (
        ir.Allocate(sums, ir.Scope.ROUTINE),
        loop(i, 2, loop(j, 3, double)),
        ir.CallExternal(RunningSum(), (source,), (sums, total)),
        loop(i, 2, loop(j, 3, draft.store(result, i, j, value=draft.load(sums, i, j)))),
    )
    cells = np.full((3, 5), 1000, np.float32)
    cells[:2, 1:4] = [[1, 2, 3], [4, 5, 6]]
    expected = {total: np.array(42.0), result: np.array([[2, 6, 12], [8, 18, 30]])}
    return Example(draft.program(*body), {source: cells}, (), expected)


def repeated_statements() -> Example:
    """A repetition inside another, in both orders, with a node that is private to an iteration."""
    draft, i = Draft("repeated"), fresh_var("i")
    outer, inner = StaticIndex("outer", 2), StaticIndex("inner", 3)
    source, carry = draft.node("source", float32, 2, 3), draft.node("carry", float32, 4)
    kept, result = draft.node("kept", float32, 2, 3, 4), draft.node("result", float32, 2, 4)
    own = draft.scratch("own", float32, 4)
    entry = ir.Binary(BinaryOp.ADD, draft.load(carry, i), draft.load(source, outer, inner), float32)
    step = (
        loop(i, 4, draft.store(own, i, value=entry)),
        loop(i, 4, draft.store(kept, outer, inner, i, value=draft.load(own, i))),
        loop(i, 4, draft.store(carry, i, value=draft.load(own, i))),
    )
    info = draft.nodes.pop(own)
    steps = ir.Repeat(
        inner, 3, True, ir.Block(step), (carry, source), (kept, carry), (carry,), ((own, info),)
    )
    finish = loop(i, 4, draft.store(result, outer, i, value=draft.load(carry, i)))
    double = draft.accumulate(carry, i, op=BinaryOp.MUL, value=ir.Const(2.0, float32))
    body = ir.Block((steps, finish, loop(i, 4, double)))
    written = (kept, carry, result)
    rows = ir.Repeat(outer, 2, False, body, (carry, source), written, written)
    never = replace(rows, index=StaticIndex("never", 0), count=0, body=ir.Block(), complete=())
    cells = np.arange(6, dtype=np.float32).reshape(2, 3)
    start = np.array([0, 10, 20, 30], np.float32)
    expected = {
        kept: np.zeros((2, 3, 4), np.float32),
        result: np.zeros((2, 4), np.float32),
        carry: start.copy(),
    }
    for row in range(2):
        for step_number in (2, 1, 0):
            expected[carry] += cells[row, step_number]
            expected[kept][row, step_number] = expected[carry]
        expected[result][row] = expected[carry]
        expected[carry] *= 2
    program = draft.program(rows, never)
    return Example(program, {source: cells, carry: start}, (), expected)


def ends_at_run_time() -> Example:
    """Loops that end at an extent: in blocks, around a reduction, and for a single iteration."""
    draft, n = Draft("ends"), StaticExtent("n", 9)
    i, j, k, once = fresh_var("i"), fresh_var("j"), fresh_var("k"), fresh_var("once")
    source = draft.node("source", int32, 8)
    cells, total, last = (draft.node(each, int32, 8) for each in ("cells", "total", "last"))
    position = affine([(4, i), (1, j)])
    doubled = ir.Binary(BinaryOp.ADD, *(draft.load(source, position),) * 2, int32)
    store = draft.store(cells, position, value=doubled)
    block = ir.For(j, 0, 4, ir.Block((store,)), bound=ir.LoopBound(position, n))
    add = draft.accumulate(total, 0, op=BinaryOp.ADD, value=draft.load(source, k))
    number = ir.IndexValue(VarIndex(n), int32)
    guarded = (
        ir.For(
            once,
            0,
            1,
            ir.Block((draft.store(last, at, value=number),)),
            bound=ir.LoopBound(affine([(1, once)], at), n),
        )
        for at in (4, 5)
    )
    program = draft.program(
        ir.For(i, 0, 2, ir.Block((block,)), bound=ir.LoopBound(affine([(4, i)]), n)),
        ir.For(k, 2, 8, ir.Block((add,)), bound=ir.LoopBound(VarIndex(k), n)),
        *guarded,
        indices=(n,),
    )
    expected = {
        cells: [0, 2, 4, 6, 8, 0, 0, 0],
        total: [2 + 3 + 4, 0, 0, 0, 0, 0, 0, 0],
        last: [0, 0, 0, 0, 5, 0, 0, 0],
    }
    return Example(program, {source: np.arange(8, dtype=np.int32)}, (5,), expected)


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
    staged_code_of_another_language,
    loops_of_every_kind,
    parallel_iterations_with_variables_of_their_own,
    ends_at_run_time,
)
