"""Inlined definitions replace reads, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from ocannl_core.ir.indexing import VarIndex, affine, fresh_var
from ocannl_core.ir.loops.nodes import Binary, Const, Fill, IndexValue, Unary
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.loops.traverse import allocated_nodes, writes
from ocannl_core.ir.loops.verify import verify
from ocannl_core.ir.node import Margin, MemoryMode, Placement, Reason, TensorNode
from ocannl_core.ir.numbers.dtypes import bfloat16, float32
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.passes.loops.inline.decide import InliningResult, Policy, inline
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.programs import Example
from tests.support.chains import chain_programs
from tests.support.example_count import example_count
from tests.support.inlining import KEPT, inlined, plus, times
from tests.support.loop_programs import loop_programs

Run = Callable[..., dict[TensorNode, np.ndarray[Any, Any]]]
I, J, K, A, B = (fresh_var(name) for name in "ijkab")  # noqa: E741


def body(found: InliningResult) -> str:
    lines = to_text(found.program).splitlines()[1:]
    return "\n".join(["", *lines, ""])


def test_a_pointwise_definition_goes_into_its_reader() -> None:
    d = Draft("p")
    x, t, c = (d.node(name, float32, 4) for name in "xtc")
    found = inlined(
        d,
        loop(I, 4, d.store(t, I, value=times(d.load(x, I)))),
        loop(J, 4, d.store(c, J, value=plus(d.load(t, J), Const(1.0, float32)))),
    )
    assert body(found) == snapshot("""\

    for j in range(4):
        c[j] = x[j] * 2.0 + 1.0
""")
    assert found.virtual[t] == Placement(MemoryMode.VIRTUAL, Reason.INLINED)


def test_two_definitions_go_into_the_reader_in_their_own_loop(interpret: Run) -> None:
    d = Draft("p")
    x, s, t, c = (d.node(name, float32, 4) for name in ("x", "s", "t", "c"))
    unit = loop(
        I,
        4,
        d.store(s, I, value=plus(d.load(x, I), Const(1.0, float32))),
        d.store(t, I, value=plus(d.load(s, I), d.load(x, I))),
        d.store(c, I, value=plus(d.load(s, I), d.load(t, I))),
    )
    found = inlined(d, unit, policy=Policy(max_visits=2))
    assert {s, t} <= found.virtual.keys()
    before, after = (interpret(p, {x: [1, 2, 3, 4]}) for p in (d.program(unit), found.program))
    assert before[c].tobytes() == after[c].tobytes()


@pytest.mark.parametrize("is_transitive", [False, True])
def test_a_definition_stays_in_its_loop_when_something_in_it_changes_before_a_read(
    is_transitive: bool,
) -> None:
    d = Draft("p")
    x, s, t, c = (d.node(name, float32, 4) for name in ("x", "s", "t", "c"))
    source = s if is_transitive else x
    unit = loop(
        I,
        4,
        d.store(s, I, value=times(d.load(x, I))),
        d.store(t, I, value=plus(d.load(source, I), Const(1.0, float32))),
        d.store(x, I, value=Const(0.0, float32)),
        d.store(c, I, value=d.load(t, I)),
    )
    assert inlined(d, unit).refused[t] is Reason.OPERAND_OVERWRITTEN


def test_a_copy_is_inlined_however_often_it_is_read() -> None:
    d = Draft("p")
    x, t, c = (d.node(name, float32, 4) for name in "xtc")
    folded = plus(d.load(t, J), d.load(t, affine([(-1, J)], 3)))
    stmts = loop(I, 4, d.store(t, I, value=d.load(x, I))), loop(J, 4, d.store(c, J, value=folded))
    assert body(inlined(d, *stmts)) == snapshot("""\

    for j in range(4):
        c[j] = x[j] + x[-j + 3]
""")
    off = inlined(d, *stmts, policy=Policy(inline_simple_computations=False))
    assert off.refused[t] is Reason.VISITED_TOO_OFTEN


def test_an_index_is_substituted_in_affine_positions() -> None:
    d = Draft("p")
    x, c = d.node("x", float32, 20), d.node("c", float32, 3)
    t = d.node("t", float32, 8)
    value = d.load(x, affine([(2, I)], 1))
    found = inlined(
        d,
        loop(I, 8, d.store(t, I, value=value)),
        loop(J, 3, d.store(c, J, value=d.load(t, affine([(3, J)], 1)))),
    )
    assert body(found) == snapshot("""\

    for j in range(3):
        c[j] = x[6*j + 3]
""")


def test_the_accumulations_of_a_gradient_follow_one_another() -> None:
    d = Draft("p")
    x, y, t, c = (d.node(name, float32, 4) for name in ("x", "x2", "t", "c"))
    found = inlined(
        d,
        Fill(t, 0.0),
        loop(I, 4, d.accumulate(t, I, op=BinaryOp.ADD, value=times(d.load(x, I)))),
        loop(J, 4, d.accumulate(t, J, op=BinaryOp.SUB, value=d.load(y, J))),
        loop(K, 4, d.store(c, K, value=d.load(t, K))),
    )
    assert body(found) == snapshot("""\

    for k in range(4):
        c[k] = t
            where t: float32
                t = 0.0
                t += x[k] * 2.0
                t -= x2[k]
""")


def test_a_later_definition_replaces_an_earlier_one() -> None:
    d = Draft("p")
    x, t, c = (d.node(name, float32, 4) for name in "xtc")
    e = d.node("c2", float32, 4)
    found = inlined(
        d,
        loop(I, 4, d.store(t, I, value=d.load(x, I))),
        loop(I, 4, d.store(c, I, value=d.load(t, I))),
        loop(I, 4, d.store(t, I, value=times(d.load(x, I)))),
        loop(I, 4, d.store(e, I, value=d.load(t, I))),
    )
    assert body(found) == snapshot("""\

    for i in range(4):
        c[i] = x[i]
    for i in range(4):
        c2[i] = x[i] * 2.0
""")


def test_a_definition_in_an_empty_loop_replaces_nothing() -> None:
    d = Draft("p")
    x, t, c = (d.node(name, float32, 4) for name in "xtc")
    found = inlined(
        d,
        loop(I, 4, d.store(t, I, value=d.load(x, I))),
        loop(I, 4, loop(K, 0, d.store(t, I, value=Const(7.0, float32)))),
        loop(J, 4, d.store(c, J, value=d.load(t, J))),
    )
    assert body(found) == snapshot("""\

    for j in range(4):
        c[j] = t
            where t: float32
                t = x[j]
                for k in range(0):
                    t = 7.0
""")


def test_a_reduction_is_inlined_into_a_nest_that_visits_the_same_cells() -> None:
    d = Draft("p")
    x, w, bias = d.node("x", float32, 3), d.node("x_w", float32, 4, 3), d.node("x_b", float32, 4)
    t, c = d.node("t", float32, 4), d.node("c", float32, 4)
    product = Binary(BinaryOp.MUL, d.load(w, I, K), d.load(x, K), float32)
    found = inlined(
        d,
        Fill(t, 0.0),
        loop(I, 4, loop(K, 3, d.accumulate(t, I, op=BinaryOp.ADD, value=product))),
        loop(J, 4, d.store(c, J, value=plus(d.load(t, J), d.load(bias, J)))),
    )
    assert body(found) == snapshot("""\

    for j in range(4):
        c[j] = t + x_b[j]
            where t: float32
                t = 0.0
                for k in range(3):
                    t += x_w[j, k] * x[k]
""")


def test_a_diagonal_gets_a_condition() -> None:
    d = Draft("p")
    t, c = d.node("t", float32, 3, 3), d.node("c", float32, 3, 3)
    found = inlined(
        d,
        Fill(t, 0.0),
        loop(I, 3, d.store(t, I, I, value=Const(4.0, float32))),
        loop(A, 3, loop(B, 3, d.store(c, A, B, value=d.load(t, A, B)))),
    )
    assert body(found) == snapshot("""\

    for a in range(3):
        for b in range(3):
            c[a, b] = t
                where t: float32
                    t = 0.0
                    t = where(int64(b - a) == 0, 4.0, t)
""")


def test_a_sum_of_loop_variables_is_solved_for_the_innermost_one() -> None:
    d = Draft("p")
    x, t, c = d.node("x", float32, 3, 2), d.node("t", float32, 6), d.node("c", float32, 6)
    found = inlined(
        d,
        loop(I, 3, loop(J, 2, d.store(t, affine([(2, I), (1, J)]), value=d.load(x, I, J)))),
        loop(K, 6, d.store(c, K, value=d.load(t, K))),
        requested=[t],
    )
    assert body(found) == snapshot("""\

    for k in range(6):
        c[k] = t
            where t: float32
                t = 0.0
                for i in range(3):
                    t = where(0 <= int64(k - 2*i) && int64(k - 2*i) <= 1, x[i, k - 2*i], t)
""")


def test_equal_sums_are_matched_variable_by_variable() -> None:
    d = Draft("p")
    x, t, c = d.node("x", float32, 3, 2), d.node("t", float32, 6), d.node("c", float32, 3, 2)
    cell = affine([(2, A), (1, B)])
    found = inlined(
        d,
        loop(I, 3, loop(J, 2, d.store(t, affine([(2, I), (1, J)]), value=d.load(x, I, J)))),
        loop(A, 3, loop(B, 2, d.store(c, A, B, value=d.load(t, cell)))),
    )
    assert body(found) == snapshot("""\

    for a in range(3):
        for b in range(2):
            c[a, b] = x[a, b]
""")


def test_a_convolution_goes_into_its_activation() -> None:
    d = Draft("p")
    x, w = d.node("x", float32, 9), d.node("x_w", float32, 3)
    t, c = d.node("t", float32, 4), d.node("c", float32, 4)
    window = d.load(x, affine([(2, I), (1, K)]))
    product = Binary(BinaryOp.MUL, window, d.load(w, K), float32)
    found = inlined(
        d,
        Fill(t, 0.0),
        loop(I, 4, loop(K, 3, d.accumulate(t, I, op=BinaryOp.ADD, value=product))),
        loop(J, 4, d.store(c, J, value=Unary(UnaryOp.RELU, d.load(t, J), float32))),
    )
    assert body(found) == snapshot("""\

    for j in range(4):
        c[j] = relu(t)
            where t: float32
                t = 0.0
                for k in range(3):
                    t += x[2*j + k] * x_w[k]
""")


@pytest.mark.parametrize("start", [0.0, -0.0])
def test_adding_to_zero_is_left_out_only_if_nothing_is_negative_zero(
    start: float, interpret: Run
) -> None:
    d = Draft("p")
    x, s, t, c = (d.node(name, float32, 2) for name in ("x", "s", "t", "c"))
    stmts = (
        Fill(s, start),
        loop(I, 2, d.accumulate(s, I, op=BinaryOp.ADD, value=d.load(x, I))),
        Fill(t, 0.0),
        loop(I, 2, d.accumulate(t, I, op=BinaryOp.ADD, value=d.load(s, I))),
        loop(I, 2, d.store(c, I, value=d.load(t, I))),
    )
    found = inlined(d, *stmts, keep="xsc")
    assert ("0.0" in body(found).split("c[i]")[1]) is (str(start) == "-0.0")
    for program in (d.program(*stmts), found.program):
        cells = interpret(program, {x: [-0.0, 1.0]})[c]
        assert [str(cell) for cell in cells] == ["0.0", "1.0"]


def test_margins_are_computations_like_others() -> None:
    d = Draft("p")
    x, c = d.node("x", float32, 4), d.node("c", float32, 5)
    t = d.node("t", float32, 4, padding=(Margin(1, 0),))
    found = inlined(
        d,
        d.store(t, 0, value=Const(-1.0, float32)),
        loop(I, 4, d.store(t, affine([(1, I)], 1), value=times(d.load(x, I)))),
        loop(J, 5, d.store(c, J, value=d.load(t, J))),
    )
    assert body(found) == snapshot("""\

    for j in range(5):
        c[j] = t
            where t: float32
                t = 0.0
                t = where(int64(j) <= 0, -1.0, t)
                t = where(0 <= int64(j - 1), x[j - 1] * 2.0, t)
""")


def test_an_inlined_node_still_rounds_to_its_own_format() -> None:
    d = Draft("p")
    x, c = d.node("x", float32, 4), d.node("c", float32, 4)
    t = d.node("t", bfloat16, 4)
    found = inlined(
        d,
        loop(I, 4, d.store(t, I, value=Unary(UnaryOp.IDENTITY, times(d.load(x, I)), bfloat16))),
        loop(J, 4, d.store(c, J, value=Unary(UnaryOp.IDENTITY, d.load(t, J), float32))),
    )
    assert body(found) == snapshot("""\

    for j in range(4):
        c[j] = float32(bfloat16(x[j] * 2.0))
""")


def test_one_loop_may_compute_several_nodes() -> None:
    d = Draft("p")
    x, s, t, c = (d.node(name, float32, 4) for name in ("x", "s", "t", "c"))
    found = inlined(
        d,
        loop(
            I,
            4,
            d.store(t, I, value=times(d.load(x, I))),
            d.store(s, I, value=plus(d.load(t, I), d.load(x, I))),
            d.store(c, I, value=times(d.load(x, I), 5.0)),
        ),
        loop(J, 4, d.accumulate(c, J, op=BinaryOp.ADD, value=d.load(s, J))),
    )
    assert body(found) == snapshot("""\

    for i in range(4):
        c[i] = x[i] * 5.0
    for j in range(4):
        c[j] += x[j] * 2.0 + x[j]
""")
    assert set(found.virtual) == {s, t}


def test_constants_vanish_however_often_they_are_read() -> None:
    d = Draft("p")
    one, third, c = d.node("t", float32, 1), d.node("u", float32), d.node("c", float32, 4)
    divided = Binary(BinaryOp.DIV, d.load(one, 0), Const(3.0, float32), float32)
    stmts = (
        d.store(one, 0, value=Const(1.0, float32)),
        d.store(third, value=divided),
        loop(I, 4, d.store(c, I, value=plus(d.load(third), d.load(third)))),
    )
    found = inlined(d, *stmts)
    assert body(found) == snapshot("""\

    for i in range(4):
        c[i] = 1.0 / 3.0 + 1.0 / 3.0
""")
    assert found.virtual[third].reason is Reason.CONSTANT_SCALAR
    kept = inlined(d, *stmts, policy=Policy(inline_scalar_constexprs=False))
    assert kept.refused[third] is Reason.VISITED_TOO_OFTEN


def test_a_constant_stays_one_behind_the_variables_that_compute_it() -> None:
    d = Draft("p")
    one, t, c = d.node("one", float32, 1), d.node("t", float32, 4), d.node("c", float32, 4)
    half = Binary(BinaryOp.MUL, d.load(one, 0), Const(0.5, float32), float32)
    found = inlined(
        d,
        Fill(one, 0.0),
        d.accumulate(one, 0, op=BinaryOp.ADD, value=Const(1.0, float32)),
        Fill(t, 0.0),
        loop(I, 4, d.accumulate(t, I, op=BinaryOp.ADD, value=half)),
        loop(J, 4, d.store(c, J, value=plus(d.load(t, J), d.load(t, J)))),
    )
    assert found.virtual.keys() == {one, t}


def test_comparing_a_position_with_a_load_is_no_dearer_than_a_load() -> None:
    d = Draft("p")
    x, t, c = d.node("x", float32), d.node("t", float32, 4), d.node("c", float32, 4)
    position = IndexValue(VarIndex(I), float32)
    for other, reason in ((d.load(x), None), (times(d.load(x)), Reason.VISITED_TOO_OFTEN)):
        flag = Binary(BinaryOp.EQ, position, other, float32)
        folded = plus(d.load(t, J), d.load(t, affine([(-1, J)], 3)))
        found = inlined(
            d, loop(I, 4, d.store(t, I, value=flag)), loop(J, 4, d.store(c, J, value=folded))
        )
        assert found.refused.get(t) is reason


def test_a_filled_node_is_its_number() -> None:
    d = Draft("p")
    t, c = d.node("t", float32, 4), d.node("c", float32, 4)
    found = inlined(d, Fill(t, 3.0), loop(I, 4, d.store(c, I, value=d.load(t, I))))
    assert found.virtual[t].reason is Reason.INLINED_FILL


def test_chains_without_stored_uses_are_dropped() -> None:
    d = Draft("p")
    x, s, t, c = (d.node(name, float32, 4) for name in ("x", "s", "t", "c"))
    found = inlined(
        d,
        loop(I, 4, d.store(s, I, value=d.load(x, I))),
        loop(I, 4, d.store(t, I, value=d.load(s, I))),
        loop(I, 4, d.store(c, I, value=d.load(x, I))),
    )
    assert {found.virtual[s].reason, found.virtual[t].reason} == {Reason.NEVER_READ}
    assert writes(found.program.body) == (c,)


def test_a_reader_may_overwrite_the_cell_that_a_definition_reads() -> None:
    d = Draft("p")
    w, t = d.node("x", float32, 4), d.node("t", float32, 4)
    found = inlined(
        d,
        loop(I, 4, d.store(t, I, value=times(d.load(w, I), 0.5))),
        loop(J, 4, d.accumulate(w, J, op=BinaryOp.SUB, value=d.load(t, J))),
    )
    assert body(found) == snapshot("""\

    for j in range(4):
        x[j] -= x[j] * 0.5
""")


def test_max_visits_and_complex_computations_are_settings() -> None:
    d = Draft("p")
    x, t, c = (d.node(name, float32, 4) for name in "xtc")
    folded = plus(d.load(t, J), d.load(t, affine([(-1, J)], 3)))
    stmts = (
        loop(I, 4, d.store(t, I, value=times(d.load(x, I)))),
        loop(J, 4, d.store(c, J, value=folded)),
    )
    assert inlined(d, *stmts).refused[t] is Reason.VISITED_TOO_OFTEN
    for policy in (Policy(max_visits=2), Policy(inline_complex_computations=True)):
        assert t in inlined(d, *stmts, policy=policy).virtual
    assert inlined(d, *stmts, policy=Policy(max_visits=0)).refused[t] is Reason.INLINING_DISABLED
    requested = inline(d.program(*stmts), {c: KEPT}, Policy(max_visits=0), [t])
    assert requested.virtual[t].reason is Reason.INLINING_REQUESTED


def test_a_requested_reduction_is_computed_for_every_cell_that_needs_it() -> None:
    d = Draft("p")
    x, t, c = d.node("x", float32, 4), d.node("t", float32), d.node("c", float32, 3)
    stmts = (
        Fill(t, 0.0),
        loop(I, 4, d.accumulate(t, op=BinaryOp.ADD, value=d.load(x, I))),
        loop(J, 3, d.store(c, J, value=times(d.load(t)))),
    )
    found = inline(d.program(*stmts), {c: KEPT}, Policy(), [t])
    verify(found.program)
    assert body(found) == snapshot("""\

    for j in range(3):
        c[j] = t * 2.0
            where t: float32
                t = 0.0
                for i in range(4):
                    t += x[i]
""")


POLICIES = st.sampled_from(
    [Policy(), Policy(max_visits=100), Policy(inline_complex_computations=True)]
)


def check(
    example: Example, policy: Policy, data: st.DataObject, interpret: Run, *, request: bool = False
) -> None:
    """Raise AssertionError unless inlining leaves the cells of some stored nodes as they are."""
    program = example.program
    written = [node for node in writes(program.body) if node in program.params]
    kept = {*written[-1:], *data.draw(st.lists(st.sampled_from(written or [None]), max_size=1))}
    requested = program.nodes if request else ()
    found = inline(program, {node: KEPT for node in kept if node is not None}, policy, requested)
    verify(found.program)
    assert not set(allocated_nodes(found.program.body)) & set(found.virtual)
    before = interpret(program, example.arrays, example.indices)
    after = interpret(found.program, example.arrays, example.indices)
    for node in kept & after.keys():
        assert before[node].tobytes() == after[node].tobytes(), f"{node} after inlining"


@given(chain_programs(), POLICIES, st.data())
@hypothesis_settings(max_examples=example_count(75), deadline=None)
def test_inlining_preserves_every_bit_of_chains(
    interpret: Run, example: Example, policy: Policy, data: st.DataObject
) -> None:
    check(example, policy, data, interpret)


@given(loop_programs(), POLICIES, st.data())
@hypothesis_settings(max_examples=60, deadline=None)
def test_inlining_preserves_every_bit_of_random_programs(
    interpret: Run, example: Example, policy: Policy, data: st.DataObject
) -> None:
    check(example, policy, data, interpret)


@given(chain_programs() | loop_programs(), st.data())
@hypothesis_settings(max_examples=example_count(50), deadline=None)
def test_inlining_on_request_preserves_every_bit(
    interpret: Run, example: Example, data: st.DataObject
) -> None:
    check(example, Policy(max_visits=data.draw(st.integers(0, 1))), data, interpret, request=True)
