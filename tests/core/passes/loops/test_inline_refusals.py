"""Refusals of inlining: every reason, with a program that causes it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from ocannl_core.ir.indexing import affine, fresh_var
from ocannl_core.ir.loops.nodes import Const, Fill, Unary
from ocannl_core.ir.node import Reason, TensorNode
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.passes.loops.inline.decide import Policy
from ocannl_core.testing.drafts import Draft, loop
from tests.support.inlining import inlined, plus, times

Run = Callable[..., dict[TensorNode, np.ndarray[Any, Any]]]
I, J, K = (fresh_var(name) for name in "ijk")  # noqa: E741


def test_a_sum_is_not_read_in_the_loop_that_makes_it() -> None:
    d = Draft("p")
    x, t, c = (d.node(name, float32, 4) for name in "xtc")
    found = inlined(
        d,
        Fill(t, 0.0),
        loop(
            K,
            3,
            loop(
                I,
                4,
                d.accumulate(t, I, op=BinaryOp.ADD, value=d.load(x, I)),
                d.store(c, I, value=d.load(t, I)),
            ),
        ),
    )
    assert found.refused[t] is Reason.ESCAPING_STORE_SYMBOL


def test_work_is_not_repeated_in_an_inner_loop_of_the_definition() -> None:
    d = Draft("p")
    x, t, c = d.node("x", float32, 4), d.node("t", float32, 4), d.node("c", float32, 4, 3)
    inner = loop(J, 3, d.store(c, I, J, value=d.load(t, I)))
    sine = loop(I, 4, d.store(t, I, value=Unary(UnaryOp.SIN, d.load(x, I), float32)), inner)
    copy = loop(I, 4, d.store(t, I, value=d.load(x, I)), inner)
    assert inlined(d, sine).refused[t] is Reason.VISITED_TOO_OFTEN
    assert t in inlined(d, copy).virtual


def test_a_definition_does_not_move_past_a_write_that_only_a_transitive_operand_sees() -> None:
    d = Draft("p")
    x, s, t, c = (d.node(name, float32, 4) for name in ("x", "s", "t", "c"))
    found = inlined(
        d,
        loop(I, 4, d.store(s, I, value=times(d.load(x, I)))),
        loop(I, 4, d.store(t, I, value=plus(d.load(s, I), Const(1.0, float32)))),
        Fill(x, 7.0),
        loop(I, 4, d.store(c, I, value=d.load(t, I))),
    )
    assert s in found.virtual
    assert found.refused[t] is Reason.OPERAND_OVERWRITTEN


def test_a_reader_that_overwrites_other_cells_keeps_the_definition_in_memory() -> None:
    d = Draft("p")
    w, t = d.node("x", float32, 4), d.node("t", float32, 4)
    found = inlined(
        d,
        loop(I, 4, d.store(t, I, value=times(d.load(w, I)))),
        loop(J, 4, d.store(w, J, value=d.load(t, affine([(-1, J)], 3)))),
    )
    assert found.refused[t] is Reason.OPERAND_OVERWRITTEN


def test_a_node_found_to_need_memory_late_is_stored_everywhere(interpret: Run) -> None:
    d = Draft("p")
    x, t, c, e = (d.node(name, float32, 4) for name in ("x", "t", "c", "c2"))
    scatter = d.accumulate(t, affine([(1, I), (1, J)]), op=BinaryOp.ADD, value=d.load(x, I))
    stmts = (
        loop(I, 4, d.store(t, I, value=times(d.load(x, I)))),
        loop(I, 4, d.store(c, I, value=d.load(t, I))),
        loop(I, 3, loop(J, 2, scatter)),
        loop(I, 4, d.store(e, I, value=d.load(t, I))),
    )
    found = inlined(d, *stmts, policy=Policy(max_visits=2))
    assert found.refused[t] is Reason.NOT_INJECTIVE
    before, after = (interpret(p, {x: [1, 2, 3, 4]}) for p in (d.program(*stmts), found.program))
    assert all(before[node].tobytes() == after[node].tobytes() for node in (c, e))


def test_inlining_stops_at_a_depth_and_goes_on_from_there() -> None:
    d = Draft("p")
    nodes = [d.node("x", float32, 4), *(d.node(f"t{n}", float32, 4) for n in range(200))]
    nodes.append(d.node("c", float32, 4))
    found = inlined(
        d,
        *(loop(I, 4, d.store(new, I, value=times(d.load(old, I)))) for old, new in pairwise(nodes)),
    )
    stored = [node for node, reason in found.refused.items() if reason is Reason.TOO_LARGE]
    assert 2 <= len(stored) <= 10


@pytest.mark.parametrize(("windows", "is_stored"), [(4, False), (5, True)])
def test_a_read_searches_four_iterations_at_most_and_only_on_request(
    windows: int, is_stored: bool, interpret: Run
) -> None:
    """The gradient of pooling adds to windows; a read of a cell would try each of them."""
    d = Draft("p")
    x, t, c = (d.node(n, float32, windows * s) for n, s in (("x", 1), ("t", 2), ("c", 2)))
    scatter = d.accumulate(t, affine([(2, I), (1, J)]), op=BinaryOp.ADD, value=d.load(x, I))
    stmts = (
        Fill(t, 0.0),
        loop(I, windows, loop(J, 2, scatter)),
        loop(I, 2 * windows, d.store(c, I, value=times(d.load(t, I)))),
    )
    assert inlined(d, *stmts).refused.get(t) is Reason.TOO_LARGE
    found = inlined(d, *stmts, requested=[t])
    assert (t not in found.virtual) == is_stored
    assert found.refused.get(t) is (Reason.TOO_LARGE if is_stored else None)
    given = {x: list(range(windows))}
    before, after = (interpret(p, given)[c] for p in (d.program(*stmts), found.program))
    assert before.tobytes() == after.tobytes()
