"""What is not inlined, and why: every reason, with a program that brings it about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from ocannl_core.dtypes import float32, uint4x32
from ocannl_core.indexing import AxisIndex, ConcatIndex, affine, fresh_var
from ocannl_core.loopir.nodes import (
    Binary,
    Block,
    CallExternal,
    Const,
    DeclareLocal,
    Expr,
    Fill,
    Gather,
    IndexValue,
    Load,
    Local,
    LocalRead,
    SetLocal,
    Staged,
    Stmt,
    Store,
    StoreVector,
    Unary,
)
from ocannl_core.loopir.verify import verify
from ocannl_core.node import MemoryMode, Placement, Reason, TensorNode
from ocannl_core.ops import BinaryOp, UnaryOp
from ocannl_core.passes.inline.computation import MOST_DEPTH
from ocannl_core.passes.inline.decide import Inlined, Policy, inline
from ocannl_core.testing.drafts import Draft, at, loop

Run = Callable[..., dict[TensorNode, np.ndarray[Any, Any]]]
KEPT = Placement(MemoryMode.ON_DEVICE, Reason.KEPT)
I, J, K = (fresh_var(name) for name in "ijk")  # noqa: E741


def times(value: Expr, number: float = 2.0) -> Expr:
    return Binary(BinaryOp.MUL, value, Const(number, value.dtype), value.dtype)


def plus(left: Expr, right: Expr) -> Expr:
    return Binary(BinaryOp.ADD, left, right, left.dtype)


def inlined(draft: Draft, *stmts: Stmt, keep: str = "xc", policy: Policy | None = None) -> Inlined:
    """Returns a program after inlining; nodes whose names begin with these letters are kept."""
    program = draft.program(*stmts)
    verify(program)
    stored = {node: KEPT for node in draft.nodes if node.name[0] in keep}
    found = inline(program, stored, policy)
    verify(found.program)
    return found


class _Copy:
    name = "copy"

    def perform(self, inputs: Any, outputs: Any) -> None:
        outputs[0][...] = inputs[0]


def _refusals() -> Mapping[Reason, Callable[[Draft], list[Stmt]]]:
    """Returns, for every reason, statements after which node `t` needs memory for it.

    Node `x` has four cells and `c` keeps four; `t` has four unless the statements make another.
    """

    def nodes(d: Draft, *dims: int) -> tuple[TensorNode, TensorNode, TensorNode]:
        x, c = d.node("x", float32, 4), d.node("c", float32, 4)
        return x, d.node("t", float32, *(dims or (4,))), c

    def read(d: Draft, t: TensorNode, c: TensorNode, *places: Any) -> Stmt:
        return loop(J, 4, d.store(c, J, value=d.load(t, *(places or (J,)))))

    def visited_too_often(d: Draft) -> list[Stmt]:
        x, t, c = nodes(d)
        square = Binary(BinaryOp.MUL, d.load(t, J), d.load(t, J), float32)
        return [
            loop(I, 4, d.store(t, I, value=times(d.load(x, I)))),
            loop(J, 4, d.store(c, J, value=square)),
        ]

    def inconsistent_indices(d: Draft) -> list[Stmt]:
        x, t, c = nodes(d)
        before = d.load(t, I)
        recurrence = d.store(t, affine([(1, I)], 1), value=plus(before, d.load(x, I)))
        return [Fill(t, 0.0), loop(I, 3, recurrence), read(d, t, c)]

    def unsolvable_index(d: Draft) -> list[Stmt]:
        _, t, c = nodes(d, 6)
        store = d.store(t, affine([(2, I), (3, J)]), value=IndexValue(affine([(1, I)]), float32))
        return [Fill(t, 0.0), loop(I, 2, loop(J, 2, store)), read(d, t, c)]

    def untraced_loop(d: Draft) -> list[Stmt]:
        x, t, c = nodes(d)
        nest = loop(I, 4, d.store(t, I, value=times(d.load(x, I))))
        return [replace(nest, traced=False), read(d, t, c)]

    def escaping(value: Callable[[Draft, TensorNode], Expr], t_at: AxisIndex) -> Any:
        """A node computed and read in one loop, at different cells."""

        def stmts(d: Draft) -> list[Stmt]:
            x, t, c = nodes(d)
            inner = loop(J, 4, d.store(t, t_at if t_at != at(K)[0] else J, value=value(d, x)))
            return [
                Fill(t, 0.0),
                loop(I, 4, inner, loop(K, 4, d.store(c, K, value=d.load(t, K)))),
            ]

        return stmts

    def staged_code(d: Draft) -> list[Stmt]:
        x, t, c = nodes(d)
        nest = loop(I, 4, d.store(t, I, value=d.load(x, I)))
        return [Staged("c", "", Block((nest,))), read(d, t, c)]

    def already_stored(d: Draft) -> list[Stmt]:
        x, t, c = nodes(d)
        d.node("unused", float32)
        return [loop(I, 4, d.store(c, I, value=d.load(x, I))), Fill(t, 0.0), read(d, t, c)]

    def index_mismatch(d: Draft) -> list[Stmt]:
        x, t, c = nodes(d, 7)
        even = d.store(t, affine([(2, I)]), value=d.load(x, I))
        return [Fill(t, 0.0), loop(I, 4, even), read(d, t, c)]

    def no_computation(d: Draft) -> list[Stmt]:
        x, t, c = nodes(d)
        never = loop(J, 0, d.store(c, J, value=d.load(t, J)))
        return [never, loop(I, 4, d.store(t, I, value=d.load(x, I))), read(d, t, c)]

    def operand_overwritten(d: Draft) -> list[Stmt]:
        x, t, c = nodes(d)
        return [
            loop(I, 4, d.store(t, I, value=times(d.load(x, I)))),
            loop(I, 4, d.accumulate(x, I, op=BinaryOp.SUB, value=Const(1.0, float32))),
            read(d, t, c),
        ]

    def surviving_read(d: Draft) -> list[Stmt]:
        x, t, c = nodes(d)
        gather = Gather(t, at(0), 0, d.load(x, J), float32)
        return [
            loop(I, 4, d.store(t, I, value=d.load(x, I))),
            loop(J, 4, d.store(c, J, value=gather)),
        ]

    def declared_variable(d: Draft) -> list[Stmt]:
        x, t, c = nodes(d)
        local = Local(0, float32)
        setting = SetLocal(local, times(d.load(x, I)))
        store = d.store(t, I, value=LocalRead(local))
        return [loop(I, 4, DeclareLocal(local), setting, store), read(d, t, c)]

    def read_before_write(d: Draft) -> list[Stmt]:
        x, t, c = nodes(d)
        nest = loop(I, 4, d.accumulate(t, I, op=BinaryOp.ADD, value=d.load(x, I)))
        return [nest, read(d, t, c)]

    def not_injective(d: Draft) -> list[Stmt]:
        x, t, c = nodes(d, 5)
        store = d.accumulate(t, affine([(1, I), (1, J)]), op=BinaryOp.ADD, value=d.load(x, I))
        return [Fill(t, 0.0), loop(I, 4, loop(J, 2, store)), read(d, t, c)]

    def vector_store(d: Draft) -> list[Stmt]:
        _, t, c = nodes(d)
        word = d.node("x_word", uint4x32)
        return [StoreVector(t, at(0), 4, Load(word, (), uint4x32)), read(d, t, c)]

    def reduction_for_other_cells(d: Draft) -> list[Stmt]:
        x, t, _ = nodes(d)
        total = d.node("c_total", float32)
        product = Binary(BinaryOp.MUL, d.load(x, I), d.load(x, K), float32)
        return [
            Fill(t, 0.0),
            loop(I, 4, loop(K, 4, d.accumulate(t, I, op=BinaryOp.ADD, value=product))),
            Fill(total, 0.0),
            loop(J, 4, d.accumulate(total, op=BinaryOp.ADD, value=d.load(t, J))),
        ]

    def strided_reduction(d: Draft) -> list[Stmt]:
        x, t, c = nodes(d)
        w = d.node("x_w", float32, 3, 4)
        product = Binary(BinaryOp.MUL, d.load(w, K, I), d.load(x, I), float32)
        return [
            Fill(t, 0.0),
            loop(I, 4, loop(K, 3, d.accumulate(t, I, op=BinaryOp.ADD, value=product))),
            read(d, t, c),
        ]

    def too_large(d: Draft) -> list[Stmt]:
        x, t, c = nodes(d)
        value: Expr = d.load(x, I)
        for _ in range(MOST_DEPTH):
            value = Unary(UnaryOp.SIN, value, float32)
        return [loop(I, 4, d.store(t, I, value=value)), read(d, t, c)]

    def external_call(d: Draft) -> list[Stmt]:
        x, t, c = nodes(d)
        return [CallExternal(_Copy(), (x,), (t,)), read(d, t, c)]

    def read_within_definition(d: Draft) -> list[Stmt]:
        x, t, c = nodes(d)
        return [
            Fill(t, 0.0),
            loop(
                I,
                4,
                loop(J, 4, d.store(t, J, value=d.load(x, J))),
                loop(K, 4, d.store(c, K, value=d.load(t, K))),
            ),
        ]

    return {
        Reason.VISITED_TOO_OFTEN: visited_too_often,
        Reason.INCONSISTENT_INDICES: inconsistent_indices,
        Reason.UNSOLVABLE_INDEX: unsolvable_index,
        Reason.UNTRACED_LOOP: untraced_loop,
        Reason.ESCAPING_STORE_SYMBOL: escaping(lambda d, x: d.load(x, 0), at(I)[0]),
        Reason.STAGED_CODE: staged_code,
        Reason.ESCAPING_LOAD_SYMBOL: escaping(lambda d, x: d.load(x, I), at(K)[0]),
        Reason.ESCAPING_INDEX_SYMBOL: escaping(
            lambda d, x: IndexValue(at(I)[0], float32), at(K)[0]
        ),
        Reason.ALREADY_STORED: already_stored,
        Reason.INDEX_MISMATCH: index_mismatch,
        Reason.NO_COMPUTATION: no_computation,
        Reason.OPERAND_OVERWRITTEN: operand_overwritten,
        Reason.SURVIVING_READ: surviving_read,
        Reason.DECLARED_VARIABLE: declared_variable,
        Reason.READ_BEFORE_WRITE: read_before_write,
        Reason.NOT_INJECTIVE: not_injective,
        Reason.VECTOR_STORE: vector_store,
        Reason.REDUCTION_FOR_OTHER_CELLS: reduction_for_other_cells,
        Reason.STRIDED_REDUCTION: strided_reduction,
        Reason.TOO_LARGE: too_large,
        Reason.EXTERNAL_CALL: external_call,
        Reason.READ_WITHIN_DEFINITION: read_within_definition,
    }


REFUSALS = _refusals()


@pytest.mark.parametrize("reason", REFUSALS, ids=lambda reason: reason.name)
def test_a_refusal_has_its_reason_and_leaves_the_result(reason: Reason, interpret: Run) -> None:
    d = Draft("p")
    stmts = REFUSALS[reason](d)
    t = next(node for node in d.nodes if node.name == "t")
    found = inlined(d, *stmts, keep="xct" if reason is Reason.ALREADY_STORED else "xc")
    assert found.refused[t] is reason
    assert t in found.program.nodes
    kept = [node for node in found.program.params if node.name[0] == "c"]
    x = next((node for node in d.nodes if node.name == "x"), None)
    arrays = {} if x is None else {x: [0, 1, 2, 3]}
    before = interpret(d.program(*stmts), arrays)
    after = interpret(found.program, arrays)
    assert all(before[node].tobytes() == after[node].tobytes() for node in kept)


def test_a_read_only_node_has_no_setter() -> None:
    d = Draft("p")
    t, c = d.node("t", float32, 4), d.node("c", float32, 4)
    stmts = (loop(I, 4, d.store(c, I, value=d.load(t, I))),)
    assert inlined(d, *stmts).refused[t] is Reason.NO_SETTER
    assert inlined(d, *stmts, keep="tc").refused[t] is Reason.READ_ONLY_KNOWN_STORED


def test_axes_in_sequence_are_refused_although_lowering_removes_them() -> None:
    d = Draft("p")
    t, c = d.node("t", float32, 4), d.node("c", float32, 4)
    store = Store(t, (ConcatIndex((I, J)),), Const(1.0, float32))
    whole = d.program(
        Fill(t, 0.0),
        loop(I, 2, loop(J, 2, store)),
        loop(K, 4, d.store(c, K, value=d.load(t, K))),
    )
    assert inline(whole, {c: KEPT}).refused[t] is Reason.CONCATENATED_INDEX


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_a_sentence(reason: Reason) -> None:
    assert len(reason.text.split()) > 3
    assert not reason.text.endswith(".")


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
