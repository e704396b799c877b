"""Traced accesses: order, coverage and cost, compared with running the loops."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from ocannl_core.ir.indexing import IndexVar, StaticIndex, affine, fresh_var, value_of
from ocannl_core.ir.loops.nodes import (
    Binary,
    Block,
    CallExternal,
    Const,
    Expr,
    Fill,
    IndexValue,
    Load,
    LoopProgram,
    Stmt,
    Store,
    StoreVector,
    Verbatim,
)
from ocannl_core.ir.node import Margin, TensorNode
from ocannl_core.ir.numbers.dtypes import float32, uint4x32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.passes.loops.access_counts import AccessCount
from ocannl_core.passes.loops.accesses import NodeAccesses, analyze_accesses
from ocannl_core.passes.loops.definite_assignment import DefiniteAssignment, count_writes
from ocannl_core.passes.loops.inline.zeros import nodes_without_negative_zero
from ocannl_core.passes.loops.statement_accesses import AccessSite, analyze_statements
from ocannl_core.testing.drafts import Draft, at, loop
from ocannl_core.testing.programs import Example
from tests.support.chains import chain_programs
from tests.support.external_calls import CopyCall

I, J, K, L = (fresh_var(name) for name in "ijkl")  # noqa: E741
ONE = Const(1.0, float32)


def writes_per_cell(found: NodeAccesses) -> np.ndarray:
    """Return the number of writes of each cell."""
    total = np.zeros(found.info.buffer_dims, dtype=np.int64)
    for _, site in found.writes:
        counts = count_writes(site, found.info)
        assert counts is not None
        total += counts
    return total


def facts(draft: Draft, name: str, *stmts: Stmt) -> NodeAccesses:
    """Return the accesses of a program to a node."""
    found = analyze_accesses(draft.program(*stmts))
    return next(each for node, each in found.nodes.items() if node.name == name)


def plus(left: Expr, right: Expr) -> Expr:
    return Binary(BinaryOp.ADD, left, right, float32)


def test_a_variable_in_no_index_multiplies_the_visits() -> None:
    d = Draft("p")
    x, c = d.node("x", float32, 4), d.node("c", float32, 4, 30)
    nest = loop(I, 4, loop(J, 30, d.store(c, I, J, value=d.load(x, I))))
    assert facts(d, "x", nest).count_reads(5) == AccessCount(30, 30)


def test_a_window_is_counted_exactly_however_large() -> None:
    d = Draft("p")
    x, c = d.node("x", float32, 300), d.node("c", float32, 298)
    value = d.load(x, affine([(1, I), (1, K)]))
    nest = loop(I, 298, loop(K, 3, d.accumulate(c, I, op=BinaryOp.ADD, value=value)))
    found = facts(d, "x", nest)
    assert found.count_reads(5) == AccessCount(1, 3)
    counted = found.count_reads_per_cell()
    assert counted is not None
    assert counted.tolist() == [1, 2, *[3] * 296, 2, 1]


def test_a_convolution_over_seven_loops_is_two_histograms() -> None:
    d = Draft("p")
    b, h, w, kh, kw, ci, co = (fresh_var() for _ in range(7))
    x = d.node("x", float32, 64, 114, 114, 32)
    c = d.node("c", float32, 64, 56, 56, 128)
    window = d.load(x, b, affine([(2, h), (1, kh)]), affine([(2, w), (1, kw)]), ci)
    body: Stmt = d.accumulate(c, b, h, w, co, op=BinaryOp.ADD, value=window)
    for var, extent in ((ci, 32), (kw, 3), (kh, 3), (co, 128), (w, 56), (h, 56), (b, 64)):
        body = loop(var, extent, body)
    assert facts(d, "x", body).count_reads(5) == AccessCount(0, 2 * 2 * 128)


def test_reads_of_different_cells_do_not_add_up() -> None:
    d = Draft("p")
    x, c = d.node("x", float32, 6), d.node("c", float32, 3)
    halves = plus(d.load(x, I), d.load(x, affine([(1, I)], 3)))
    assert facts(d, "x", loop(I, 3, d.store(c, I, value=halves))).count_reads(5) == AccessCount(
        1, 1
    )


def test_counting_that_would_take_too_long_is_an_estimate() -> None:
    d = Draft("p")
    x, c = d.node("x", float32, 4000), d.node("c", float32, 1)
    cell = affine([(1, I), (1, J), (1, K)])
    body = d.accumulate(c, 0, op=BinaryOp.ADD, value=d.load(x, cell))
    found = facts(d, "x", loop(I, 1300, loop(J, 1300, loop(K, 1300, body)))).count_reads(5)
    assert not found.is_exact
    assert found.most == 27  # (i, j, k) below 6 with the most frequent sum


def test_a_loop_that_is_not_to_be_traced_counts_once() -> None:
    d = Draft("p")
    x, c = d.node("x", float32, 4), d.node("c", float32, 4)
    nest = loop(I, 4, d.accumulate(c, I, op=BinaryOp.ADD, value=d.load(x, 0)))
    untraced = type(nest)(nest.var, 0, 4, nest.body, traced=False)
    assert facts(d, "x", nest).count_reads(5).most == 4
    assert facts(d, "x", untraced).count_reads(5).most == 1


def test_reading_the_cell_that_is_written_is_no_visit() -> None:
    d = Draft("p")
    x, c = d.node("x", float32, 4), d.node("c", float32, 4)
    nest = loop(I, 4, d.accumulate(c, I, op=BinaryOp.ADD, value=d.load(x, I)))
    assert facts(d, "c", nest).reads == ()
    assert not facts(d, "c", nest).is_read_only


def run_order(program: LoopProgram) -> list[tuple[AccessSite, tuple[int, ...]]]:
    """Return every access of a program with its cell, in order: the slow and certain way."""
    happened: list[tuple[AccessSite, tuple[int, ...]]] = []
    for unit in analyze_statements(program):
        sites = [*unit.reads, *unit.writes]
        loops = max((site.loops for site in sites), key=len, default=())
        assert all(site.loops == loops for site in sites)  # one chain of loops
        for values in product(*(range(each.start, each.stop) for each in loops)):
            env: dict[IndexVar, int] = {
                each.var: value for each, value in zip(loops, values, strict=True)
            }
            for site in sites:
                if site.indices is None:
                    every = product(*map(range, program.nodes[site.node].dims))
                    happened += [(site, cell) for cell in every]
                else:
                    happened.append((site, tuple(value_of(i, env) for i in site.indices)))
    return happened


@given(chain_programs())
@hypothesis_settings(max_examples=60, deadline=None)
def test_counts_agree_with_running_the_loops(example: Example) -> None:
    reads: Counter[tuple[TensorNode, tuple[int, ...]]] = Counter()
    written: set[tuple[TensorNode, tuple[int, ...]]] = set()
    read_first: set[TensorNode] = set()
    for site, cell in run_order(example.program):
        if isinstance(site.access, Store | Fill):
            written.add((site.node, cell))
            continue
        if (site.node, cell) not in written:
            read_first.add(site.node)
        if not site.is_own:
            reads[site.node, cell] += 1
    for node, found in analyze_accesses(example.program).nodes.items():
        counts = found.count_reads_per_cell()
        assert counts is not None
        cells = {cell: number for (each, cell), number in reads.items() if each is node}
        assert {cell: n for cell, n in np.ndenumerate(counts) if n} == cells
        assert found.count_reads(5).most == max(cells.values(), default=0)
        assert found.is_read_before_write >= (node in read_first)
        assert {cell for cell, n in np.ndenumerate(writes_per_cell(found)) if n} == {
            cell for each, cell in written if each is node
        }


@pytest.mark.parametrize("read", [0, 1])
def test_strided_writes_define_only_the_written_cells(read: int) -> None:
    d = Draft("p")
    t, c = d.node("t", float32, 8), d.node("c", float32, 4)
    found = facts(
        d,
        "t",
        loop(I, 4, d.store(t, affine([(2, I)]), value=ONE)),
        loop(J, 4, d.store(c, J, value=d.load(t, affine([(2, J)], read)))),
    )
    assert found.is_read_before_write is (read == 1)


def test_a_diagonal_covers_the_diagonal() -> None:
    d = Draft("p")
    t, c = d.node("t", float32, 3, 3), d.node("c", float32, 3)
    write = loop(I, 3, d.store(t, I, I, value=ONE))
    own = loop(J, 3, d.store(c, J, value=d.load(t, J, J)))
    other = loop(J, 3, d.store(c, J, value=d.load(t, J, 0)))
    assert not facts(d, "t", write, own).is_read_before_write
    assert facts(d, "t", write, other).is_read_before_write


def test_an_array_too_large_to_enumerate_counts_as_uncovered_unless_boxes_cover_it() -> None:
    d = Draft("p")
    n = 1 << 21
    t, c = d.node("t", float32, n), d.node("c", float32, 1)
    even = loop(I, n // 2, d.store(t, affine([(2, I)]), value=ONE))
    odd = loop(J, n // 2, d.store(t, affine([(2, J)], 1), value=ONE))
    halves = (
        loop(I, n // 2, d.store(t, I, value=ONE)),
        loop(J, n // 2, d.store(t, affine([(1, J)], n // 2), value=ONE)),
    )
    read = d.store(c, 0, value=d.load(t, 0))
    assert facts(d, "t", even, odd, read).is_read_before_write
    assert not facts(d, "t", *halves, read).is_read_before_write


def test_a_position_given_at_a_call_covers_nothing() -> None:
    d = Draft("p")
    step = StaticIndex("step", 1)
    t, c = d.node("t", float32, 1), d.node("c", float32, 1)
    stmts = d.store(t, step, value=ONE), d.store(c, 0, value=d.load(t, 0))
    coverage = DefiniteAssignment(d.nodes)
    for unit in analyze_statements(d.program(*stmts, indices=(step,))):
        coverage.run(unit)
    assert coverage.read_first == {t}


def test_constants_accesses_and_complexity_are_distinguished() -> None:
    d = Draft("p")
    x, c = d.node("x", float32, 4), d.node("c", float32, 4)
    number, total = d.node("number", float32), d.node("total", float32)
    stmts = (
        d.store(number, value=ONE),
        d.store(total, value=plus(d.load(number), ONE)),
        loop(I, 4, d.store(c, I, value=d.load(x, I))),
        loop(I, 4, d.store(x, I, value=plus(d.load(x, I), IndexValue(at(I)[0], float32)))),
    )

    def traits(name: str) -> tuple[bool, bool, bool]:
        found = facts(d, name, *stmts)
        return found.is_constant, found.depends_on_memory, found.is_complex

    assert traits("number") == (True, False, False)
    assert traits("total") == (True, True, True)
    assert traits("c") == (False, True, False)
    assert traits("x") == (False, False, False)


def test_an_accumulation_over_a_loop_is_complex() -> None:
    d = Draft("p")
    x, c = d.node("x", float32, 4), d.node("c", float32, 1)
    total = loop(I, 4, d.accumulate(c, 0, op=BinaryOp.ADD, value=d.load(x, I)))
    assert facts(d, "c", Fill(c, 0.0), total).is_complex


def test_whole_nodes_and_vectors_are_accesses_too() -> None:
    d = Draft("p")
    x, t = d.node("x", float32, 4), d.node("t", float32, 4, padding=(Margin(1, 1),))
    v, word = d.node("v", float32, 8), d.node("word", uint4x32)
    stmts = (
        CallExternal(CopyCall(), (x,), (t,)),
        Verbatim("c", "", Block((StoreVector(v, at(4), 4, Load(word, (), uint4x32)),))),
    )
    inside, vector = facts(d, "t", *stmts), facts(d, "v", *stmts)
    assert writes_per_cell(inside).tolist() == [0, 1, 1, 1, 1, 0]
    assert writes_per_cell(vector).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert vector.writes[0][1].is_verbatim
    assert [position for position, _ in facts(d, "x", *stmts).reads] == [0]


def test_sums_hold_no_negative_zero_unless_they_started_from_one() -> None:
    d = Draft("p")
    x, t = d.node("x", float32, 4), d.node("t", float32, 4)
    update = loop(I, 4, d.accumulate(t, I, op=BinaryOp.ADD, value=d.load(x, I)))
    for stmts, expected in (((Fill(t, 0.0), update), {t}), ((update,), set())):
        assert nodes_without_negative_zero(analyze_accesses(d.program(*stmts))) - {x} == expected
