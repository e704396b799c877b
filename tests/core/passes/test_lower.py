"""Lowering of assignments to loops: text, structure, and results."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from ocannl_core.ir.assignments.nodes import (
    Accumulate,
    Assignment,
    AssignProgram,
    AssignSequence,
    Constant,
    ConstantBits,
    ConstantFill,
    EmbedIndex,
    Fetch,
    Merge,
    NodeOperand,
    Operand,
    RangeOverOffsets,
    Scalar,
    Section,
    SetVector,
)
from ocannl_core.ir.indexing import (
    AxisIndex,
    ConcatIndex,
    FixedIndex,
    LoopVar,
    Projections,
    StaticIndex,
    SubAxis,
    VarIndex,
    affine,
    fresh_var,
    value_of,
)
from ocannl_core.ir.loops.nodes import Fill, For, Load, LoopProgram, Store
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.ir.loops.verify import verify
from ocannl_core.ir.node import Margin, NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import (
    DType,
    bfloat16,
    float8_e4m3fn,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint4x32,
    uint8,
    uint32,
    uint64,
)
from ocannl_core.ir.numbers.primitives import BinaryOp, Op, TernaryOp, UnaryOp, neutral
from ocannl_core.passes.lower import lower

Run = Callable[..., dict[TensorNode, np.ndarray[Any, Any]]]
B, O, I = fresh_var("b"), fresh_var("o"), fresh_var("i")  # noqa: E741


class Code:
    """An assignment program in the making."""

    def __init__(self) -> None:
        self.nodes: dict[TensorNode, NodeInfo] = {}
        self.body: list[Assignment] = []

    def node(
        self, label: str, *dims: int, dtype: DType = float32, padding: tuple[Margin, ...] = ()
    ) -> TensorNode:
        node = TensorNode(len(self.nodes), (label,))
        self.nodes[node] = NodeInfo(dtype, dims, padding)
        return node

    def projections(
        self, domain: dict[LoopVar, int], target: TensorNode, *maps: tuple[AxisIndex, ...]
    ) -> Projections:
        lhs, *rhs = maps
        dims = tuple((0,) * len(index_map) for index_map in rhs)
        return Projections(tuple(domain.items()), lhs, tuple(rhs), self.nodes[target].dims, dims)

    def accumulate(
        self,
        target: TensorNode,
        combine: BinaryOp,
        op: Op,
        args: tuple[TensorNode | float, ...],
        domain: dict[LoopVar, int],
        *maps: tuple[AxisIndex, ...],
        reset: bool = True,
        beyond: float | None = None,
    ) -> None:
        operands: list[Operand] = [
            NodeOperand(arg) if isinstance(arg, TensorNode) else Scalar(arg) for arg in args
        ]
        projections = self.projections(domain, target, *maps)
        self.body.append(
            Accumulate(target, combine, reset, op, tuple(operands), projections, None, beyond)
        )

    def lowered(self) -> LoopProgram:
        program = lower(AssignProgram(tuple(self.body), self.nodes))
        verify(program)
        return program


def at(*places: LoopVar | int | AxisIndex) -> tuple[AxisIndex, ...]:
    indices: list[AxisIndex] = []
    for place in places:
        match place:
            case int():
                indices.append(FixedIndex(place))
            case LoopVar():
                indices.append(VarIndex(place))
            case _:
                indices.append(place)
    return tuple(indices)


def _matmul(code: Code) -> tuple[TensorNode, TensorNode, TensorNode]:
    w, x, c = code.node("w", 8, 32), code.node("x", 64, 32), code.node("c", 64, 8)
    code.accumulate(
        c, BinaryOp.ADD, BinaryOp.MUL, (w, x), {B: 64, O: 8, I: 32}, at(B, O), at(O, I), at(B, I)
    )
    return w, x, c


def test_a_matrix_product_is_a_fill_and_three_loops() -> None:
    code = Code()
    w, x, c = _matmul(code)
    program = code.lowered()
    assert to_text(program) == snapshot("""\
routine routine(c: float32[64, 8], w: float32[8, 32], x: float32[64, 32]):
    c[:] = 0.0
    # c[neutral][b, o] += w[o, i] * x[b, i]
    for b in range(64):
        for o in range(8):
            for i in range(32):
                c[b, o] += w[o, i] * x[b, i]\
""")
    assert program.params == (c, w, x)


def test_a_reset_accumulation_that_writes_every_cell_once_is_a_plain_store() -> None:
    code = Code()
    x, y, c = code.node("x", 3), code.node("y", 3), code.node("c", 3)
    code.accumulate(c, BinaryOp.ADD, BinaryOp.MUL, (x, y), {I: 3}, at(I), at(I), at(I))
    assert to_text(code.lowered()) == snapshot("""\
routine routine(x: float32[3], y: float32[3], c: float32[3]):
    # c[neutral][i] += x[i] * y[i]
    for i in range(3):
        c[i] = x[i] * y[i]\
""")


def test_a_reset_accumulation_that_skips_cells_fills_and_stores_without_reading() -> None:
    code = Code()
    x, c = code.node("x", 3), code.node("c", 3, 3)
    code.accumulate(c, BinaryOp.MAX, UnaryOp.IDENTITY, (x,), {I: 3}, at(I, I), at(I))
    assert to_text(code.lowered()) == snapshot("""\
routine routine(c: float32[3, 3], x: float32[3]):
    c[:] = -inf
    # c[neutral][i, i] max= x[i]
    for i in range(3):
        c[i, i] = x[i]\
""")


def test_an_accumulation_without_reset_reads_its_target() -> None:
    code = Code()
    x, c = code.node("x", 3), code.node("c", 3)
    code.accumulate(c, BinaryOp.ADD, UnaryOp.EXP, (x,), {I: 3}, at(I), at(I), reset=False)
    assert to_text(code.lowered()) == snapshot("""\
routine routine(c: float32[3], x: float32[3]):
    # c[i] += exp(x[i])
    for i in range(3):
        c[i] += exp(x[i])\
""")


def test_a_reset_target_that_is_also_read_is_filled_first() -> None:
    code = Code()
    c = code.node("c", 3)
    code.accumulate(c, BinaryOp.ADD, UnaryOp.EXP, (c,), {I: 3}, at(I), at(I))
    assert isinstance(code.lowered().body.stmts[0], Fill)


def test_operands_are_converted_and_conditions_and_comparisons_keep_their_formats() -> None:
    code = Code()
    a, b = code.node("a", 3, dtype=uint8), code.node("b", 3, dtype=float16)
    m, c = code.node("m", 3, dtype=uint8), code.node("c", 3)
    code.accumulate(m, BinaryOp.SECOND, BinaryOp.LT, (a, b), {I: 3}, at(I), at(I), at(I))
    code.accumulate(
        c, BinaryOp.SECOND, TernaryOp.WHERE, (m, b, a), {I: 3}, at(I), at(I), at(I), at(I)
    )
    code.accumulate(c, BinaryOp.ADD, BinaryOp.AND, (a, m), {I: 3}, at(I), at(I), at(I), reset=False)
    assert to_text(code.lowered()) == snapshot("""\
routine routine(a: uint8[3], b: float16[3], m: uint8[3], c: float32[3]):
    # m[i] = a[i] < b[i]
    for i in range(3):
        m[i] = float16(a[i]) < b[i]
    # c[i] = where(m[i], b[i], a[i])
    for i in range(3):
        c[i] = where(m[i], float32(b[i]), float32(a[i]))
    # c[i] += a[i] && m[i]
    for i in range(3):
        c[i] += float32(a[i] && m[i])\
""")


@pytest.mark.parametrize(
    ("number", "text"), [(1027, "float32(1027:int32)"), (1027.0, "1027.0")], ids=str
)
@pytest.mark.parametrize("narrow", [bfloat16, float8_e4m3fn], ids=str)
def test_numbers_to_choose_among_have_the_format_of_the_other_operand(
    narrow: DType, number: float, text: str
) -> None:
    code = Code()
    m, a, c = code.node("m", 3, dtype=narrow), code.node("a", 3, dtype=int32), code.node("c", 3)
    code.accumulate(
        c, BinaryOp.SECOND, TernaryOp.WHERE, (m, number, a), {I: 3}, at(I), at(I), (), at(I)
    )
    assert f"c[i] = where(m[i], {text}, float32(a[i]))" in to_text(code.lowered())


def test_a_number_that_no_integer_equals_is_compared_as_a_float() -> None:
    code = Code()
    a, c = code.node("a", 3, dtype=uint8), code.node("c", 3)
    code.accumulate(c, BinaryOp.SECOND, BinaryOp.LT, (a, 300.0), {I: 3}, at(I), at(I), ())
    code.accumulate(c, BinaryOp.SECOND, BinaryOp.LT, (a, 3.0), {I: 3}, at(I), at(I), ())
    assert to_text(code.lowered()) == snapshot("""\
routine routine(a: uint8[3], c: float32[3]):
    # c[i] = a[i] < 300.0
    for i in range(3):
        c[i] = float64(a[i]) < 300.0
    # c[i] = a[i] < 3.0
    for i in range(3):
        c[i] = a[i] < 3\
""")


def test_fetches_fill_count_and_embed() -> None:
    code = Code()
    code.body += [
        Fetch(code.node("zero", 2, 3), Constant(0.0)),
        Fetch(code.node("key", dtype=uint4x32), ConstantBits(42)),
        Fetch(code.node("pair", 2, 2), ConstantFill((1.0, 2.0, 3.0))),
        Fetch(code.node("offsets", 2, 3, dtype=uint32), RangeOverOffsets()),
        Fetch(code.node("step"), EmbedIndex(VarIndex(StaticIndex("step", 10)))),
        Fetch(code.node("word", 4, dtype=uint4x32), RangeOverOffsets()),
    ]
    assert to_text(code.lowered()) == snapshot("""\
routine routine(zero: float32[2, 3], key: uint4x32[], pair: float32[2, 2], offsets: uint32[2, 3], step: float32[], word: uint4x32[4], static step1 < 10):
    # zero[:] = 0.0
    zero[:] = 0.0
    # key[:] = bits(0x2a)
    key = 0x2a
    # pair[:] = repeat(1.0, 2.0, 3.0)
    pair[0, 0] = 1.0
    pair[0, 1] = 2.0
    pair[1, 0] = 3.0
    pair[1, 1] = 1.0
    # offsets[:] = offsets()
    for i in range(2):
        for i1 in range(3):
            offsets[i, i1] = uint32(3*i + i1)
    # step[:] = step1
    step = float32(step1)
    # word[:] = offsets()
    for i in range(4):
        word[i] = word(uint64(i))\
""")


def test_random_words_are_stored_as_vectors() -> None:
    code = Code()
    words, c = code.node("words", 3, dtype=uint4x32), code.node("c", 2, 6)
    lhs = (SubAxis(), affine([(4, I)]))
    projections = code.projections({I: 3}, c, lhs, at(I))
    code.body.append(SetVector(c, NodeOperand(words), projections))
    assert to_text(code.lowered()) == snapshot("""\
routine routine(words: uint4x32[3], c: float32[2, 6]):
    # c[_, 4*i]... = lanes(words[i])
    for i in range(3):
        c[0, 4*i]...4 = lanes(words[i])\
""")


def test_sections_become_remarks_and_merge_buffers_are_read() -> None:
    code = Code()
    g = code.node("g", 3)
    accumulation = Accumulate(
        g,
        BinaryOp.ADD,
        False,
        UnaryOp.IDENTITY,
        (Merge(g),),
        code.projections({I: 3}, g, at(I), at(I)),
    )
    code.body.append(Section("average", (AssignSequence((accumulation,)), Section("again", ()))))
    assert to_text(code.lowered()) == snapshot("""\
routine routine(g: float32[3]):
    # average
    # g[i] += g.merge[i]
    for i in range(3):
        g[i] += g.merge[i]
    # again\
""")


def test_a_padded_operand_is_shifted_and_its_margins_are_filled_before_they_are_read() -> None:
    code = Code()
    x, k = code.node("x", 6, padding=(Margin(1, 2),)), code.node("k", 3)
    c = code.node("c", 3)
    code.accumulate(
        c,
        BinaryOp.ADD,
        BinaryOp.MUL,
        (x, k),
        {O: 3, I: 3},
        at(O),
        (affine([(2, O), (1, I)], -1),),
        at(I),
    )
    assert to_text(code.lowered()) == snapshot("""\
routine routine(c: float32[3], x: float32[9], k: float32[3]):
    c[:] = 0.0
    for i in range(1):
        x[i] = 0.0
    for i in range(7, 9):
        x[i] = 0.0
    # c[neutral][o] += x[2*o + i - 1] * k[i]
    for o in range(3):
        for i in range(3):
            c[o] += x[2*o + i] * k[i]\
""")


def test_a_concatenated_index_becomes_one_nest_for_each_component() -> None:
    code = Code()
    x, c = code.node("x", 2), code.node("c", 5)
    j = fresh_var("j")
    code.accumulate(
        c, BinaryOp.ADD, UnaryOp.IDENTITY, (x,), {I: 2, j: 3}, (ConcatIndex((I, j)),), at(I)
    )
    assert to_text(code.lowered()) == snapshot("""\
routine routine(c: float32[5], x: float32[2]):
    c[:] = 0.0
    # c[neutral][i^j] += x[i]
    for i in range(2):
        c[i] += x[i]\
""")


def test_loop_variables_are_fresh_even_if_assignments_share_a_domain() -> None:
    code = Code()
    _matmul(code)
    code.body *= 2
    program = code.lowered()
    bound = [node.var for node in walk(program.body) if isinstance(node, For)]
    assert len(set(bound)) == len(bound)
    assert {B, O, I}.isdisjoint(bound)
    assert [var.hint for var in bound[:3]] == ["b", "o", "i"]


def test_static_indices_come_in_order_of_first_appearance() -> None:
    first, second = StaticIndex("first", 3), StaticIndex("second", 3)
    code = Code()
    x, c = code.node("x", 3, 3), code.node("c")
    code.accumulate(
        c, BinaryOp.SECOND, UnaryOp.IDENTITY, (x,), {}, (), (VarIndex(second), VarIndex(first))
    )
    assert code.lowered().indices == (second, first)


def test_an_operand_that_is_not_selected_is_not_read() -> None:
    code = Code()
    x, shape_only, c = code.node("x", 3), code.node("shape_only", 3), code.node("c", 3)
    code.accumulate(
        c, BinaryOp.SECOND, BinaryOp.FIRST, (x, shape_only), {I: 3}, at(I), at(I), at(I)
    )
    program = code.lowered()
    assert shape_only not in program.nodes
    assert set(program.params) == {x, c}


@pytest.mark.parametrize(
    ("dtype", "op", "expected"),
    [
        (uint8, BinaryOp.MAX, 0),
        (int32, BinaryOp.MAX, -(2**31)),
        (uint64, BinaryOp.MIN, 2**64 - 1),
        (int64, BinaryOp.MIN, 2**63 - 1),
        (float16, BinaryOp.MIN, float("inf")),
    ],
)
def test_extrema_start_from_the_extremes_of_the_format(
    dtype: DType, op: BinaryOp, expected: float
) -> None:
    code = Code()
    x, c = code.node("x", 3, dtype=dtype), code.node("c", dtype=dtype)
    code.accumulate(c, op, UnaryOp.IDENTITY, (x,), {I: 3}, (), at(I))
    fill = code.lowered().body.stmts[0]
    assert fill == Fill(c, expected)


def test_margins_are_filled_again_only_when_they_hold_something_else() -> None:
    code = Code()
    x, c = code.node("x", 4, padding=(Margin(1, 1),)), code.node("c", 4)
    window = (affine([(1, O), (1, I)], -1),)
    for combine in (BinaryOp.ADD, BinaryOp.ADD, BinaryOp.MAX):
        code.accumulate(c, combine, UnaryOp.IDENTITY, (x,), {O: 4, I: 3}, at(O), window)
    stores = [node for node in walk(code.lowered().body) if isinstance(node, Store)]
    assert sum(store.node is x for store in stores) == 4  # left and right, for 0 and for -inf


def test_an_access_inside_the_interior_needs_no_margins() -> None:
    code = Code()
    x, c = code.node("x", 4, padding=(Margin(1, 1),)), code.node("c", 4)
    code.accumulate(c, BinaryOp.SECOND, UnaryOp.IDENTITY, (x,), {I: 4}, at(I), at(I))
    program = code.lowered()
    (load,) = [node for node in walk(program.body) if isinstance(node, Load)]
    assert len([s for s in walk(program.body) if isinstance(s, Store)]) == 1
    assert load.indices[0] != VarIndex(I)


@st.composite
def contractions(draw: st.DrawFn) -> tuple[Projections, tuple[tuple[int, ...], ...]]:
    """Two operands and a result over a random domain, all places inside their buffers."""
    extents = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    domain = tuple(zip((B, O, I), extents, strict=False))
    points = [dict(zip((B, O, I), p, strict=False)) for p in product(*map(range, extents))]
    variables = st.sampled_from([var for var, _ in domain])
    maps: list[tuple[AxisIndex, ...]] = []
    dims: list[tuple[int, ...]] = []
    for _ in range(3):
        index_map = []
        for _ in range(draw(st.integers(0, 2))):
            terms = draw(st.lists(st.tuples(st.integers(1, 2), variables), max_size=2))
            index_map.append(affine(terms, draw(st.integers(0, 1))))
        maps.append(tuple(index_map))
        reach = [max((value_of(i, env) for env in points), default=0) for i in index_map]
        dims.append(tuple(n + 1 + draw(st.integers(0, 1)) for n in reach))
    return Projections(domain, maps[0], tuple(maps[1:]), dims[0], tuple(dims[1:])), tuple(dims)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    contractions(),
    st.sampled_from([BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MAX, BinaryOp.SECOND, BinaryOp.AND]),
    st.sampled_from([BinaryOp.MUL, BinaryOp.ADD, BinaryOp.LT]),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_lowered_assignments_agree_with_assignments(
    interpret: Run,
    drawn: tuple[Projections, tuple[tuple[int, ...], ...]],
    combine: BinaryOp,
    op: BinaryOp,
    reset: bool,
    random: Any,
) -> None:
    projections, dims = drawn
    code = Code()
    c, a, b = (code.node(name, *d, dtype=float64) for name, d in zip("cab", dims, strict=True))
    code.body.append(
        Accumulate(c, combine, reset, op, (NodeOperand(a), NodeOperand(b)), projections)
    )
    arrays = {
        node: np.array([random.randint(-2, 2) for _ in range(info.size)], float).reshape(info.dims)
        for node, info in code.nodes.items()
    }
    expected = arrays[c].copy()
    if reset and combine is not BinaryOp.SECOND:
        expected[...] = neutral(combine)
    for point in product(*(range(extent) for _, extent in projections.domain)):
        env = {var: at for (var, _), at in zip(projections.domain, point, strict=True)}
        cell, left, right = (
            tuple(value_of(i, env) for i in index_map)
            for index_map in (projections.lhs, *projections.rhs)
        )
        value = op.value.meaning(float(arrays[a][left]), float(arrays[b][right]))
        expected[cell] = combine.value.meaning(float(expected[cell]), value)
    found = interpret(code.lowered(), arrays)
    if c in found:
        np.testing.assert_array_equal(found[c], expected)
    else:
        np.testing.assert_array_equal(arrays[c], expected)


def test_a_padded_window_sums_the_cells_inside(interpret: Run) -> None:
    code = Code()
    x = code.node("x", 3, padding=(Margin(1, 2),))
    total, peak = code.node("total", 3), code.node("peak", 3)
    window = (affine([(1, O), (1, I)], -1),)
    code.body.append(Fetch(x, RangeOverOffsets()))
    code.accumulate(total, BinaryOp.ADD, UnaryOp.IDENTITY, (x,), {O: 3, I: 3}, at(O), window)
    code.accumulate(peak, BinaryOp.MAX, UnaryOp.NEG, (x,), {O: 3, I: 3}, at(O), window)
    code.accumulate(peak, BinaryOp.MAX, UnaryOp.IDENTITY, (x,), {O: 3, I: 3}, at(O), window)
    found = interpret(code.lowered(), {x: 99.0})
    np.testing.assert_array_equal(found[total], [1.0, 3.0, 3.0])
    np.testing.assert_array_equal(found[peak], [1.0, 2.0, 2.0])


def test_margins_in_two_dimensions_are_filled_entirely_and_only_they(interpret: Run) -> None:
    code = Code()
    x = code.node("x", 2, 3, padding=(Margin(1, 2), Margin(2, 1)))
    c, j = code.node("c", 1), fresh_var("j")
    window = (affine([(1, I)], -1), affine([(1, j)], -2))
    code.accumulate(c, BinaryOp.MUL, UnaryOp.IDENTITY, (x,), {I: 5, j: 6}, at(0), window)
    found = interpret(code.lowered(), {x: 2.0})
    expected = np.ones((5, 6))
    expected[1:3, 2:5] = 2.0
    np.testing.assert_array_equal(found[x], expected)
    assert found[c] == [2.0**6]


def test_a_filled_pattern_repeats_in_row_major_order_for_every_size(interpret: Run) -> None:
    code = Code()
    values = (1.0, 2.0, 3.0)
    small, large = code.node("small", 2, 4), code.node("large", 3, 41)
    code.body += [Fetch(small, ConstantFill(values)), Fetch(large, ConstantFill(values))]
    found = interpret(code.lowered())
    np.testing.assert_array_equal(found[small], np.resize(values, (2, 4)))
    np.testing.assert_array_equal(found[large], np.resize(values, (3, 41)))


def test_concatenation_places_components_after_each_other(interpret: Run) -> None:
    code = Code()
    x, y, c = code.node("x", 2), code.node("y", 3), code.node("c", 5)
    j = fresh_var("j")
    both: tuple[AxisIndex, ...] = (ConcatIndex((I, j)),)
    code.accumulate(c, BinaryOp.ADD, UnaryOp.IDENTITY, (x,), {I: 2, j: 3}, both, at(I))
    code.accumulate(c, BinaryOp.ADD, UnaryOp.IDENTITY, (y,), {I: 2, j: 3}, both, at(j), reset=False)
    found = interpret(code.lowered(), {x: [1, 2], y: [3, 4, 5]})
    np.testing.assert_array_equal(found[c], [1, 2, 3, 4, 5])


def test_several_concatenated_axes_are_traversed_part_by_part(interpret: Run) -> None:
    code = Code()
    corner, c = code.node("corner", 2, 1), code.node("c", 5, 4)
    j, k, m = fresh_var("j"), fresh_var("k"), fresh_var("m")
    block = (ConcatIndex((I, j)), ConcatIndex((k, m)))
    domain = {I: 2, j: 3, k: 3, m: 1}
    code.accumulate(c, BinaryOp.ADD, UnaryOp.IDENTITY, (corner,), domain, block, at(I, m))
    code.accumulate(c, BinaryOp.ADD, UnaryOp.IDENTITY, (1.0,), domain, block, (), reset=False)
    found = interpret(code.lowered(), {corner: [[5], [6]]})
    expected = np.ones((5, 4))
    expected[:2, 3] = [6, 7]
    np.testing.assert_array_equal(found[c], expected)


def test_an_assignment_may_state_the_value_of_margins(interpret: Run) -> None:
    code = Code()
    x, c = code.node("x", 2, padding=(Margin(1, 2),)), code.node("c", 5)
    window = (affine([(1, I)], -1),)
    code.accumulate(c, BinaryOp.ADD, UnaryOp.NEG, (x,), {I: 5}, at(I), window, beyond=-7.0)
    code.accumulate(c, BinaryOp.ADD, UnaryOp.NEG, (x,), {I: 5}, at(I), window, reset=False)
    found = interpret(code.lowered(), {x: 2.0})
    np.testing.assert_array_equal(found[c], [7, -4, -4, 7, 7])


def test_static_indices_and_offsets_are_numbers(interpret: Run) -> None:
    step = StaticIndex("step", 10)
    code = Code()
    c, offsets = code.node("c", 2), code.node("offsets", 2, 3, padding=(Margin(1, 0), Margin()))
    code.body += [Fetch(c, EmbedIndex(affine([(2, step)], 1))), Fetch(offsets, RangeOverOffsets())]
    found = interpret(code.lowered(), {}, (4,))
    np.testing.assert_array_equal(found[c], [9.0, 9.0])
    np.testing.assert_array_equal(found[offsets][1:], [[0, 1, 2], [3, 4, 5]])
