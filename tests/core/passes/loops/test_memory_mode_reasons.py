"""Reasons for memory modes: each has a program that causes it, a sentence and an advice.

A reason without such a program fails here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.ir.indexing import AxisIndex, ConcatIndex, StaticIndex, VarIndex, affine, fresh_var
from ocannl_core.ir.loops.nodes import (
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
    Repeat,
    Scatter,
    SetLocal,
    Stmt,
    Store,
    StoreVector,
    Unary,
    Verbatim,
)
from ocannl_core.ir.loops.verify import verify
from ocannl_core.ir.node import MemoryMode, Placement, Reason, TensorNode
from ocannl_core.ir.numbers.dtypes import float32, uint4x32
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.passes.loops.decisions import Decisions
from ocannl_core.passes.loops.inline.decide import InliningResult, inline
from ocannl_core.passes.loops.pipeline import core_passes, run_passes
from ocannl_core.schedule.machine_model import MAX_EXPRESSION_DEPTH
from ocannl_core.testing.drafts import Draft, at, loop
from tests.support.external_calls import CopyCall

Run = Callable[..., dict[TensorNode, np.ndarray[Any, Any]]]
KEPT = Placement(MemoryMode.ON_DEVICE, Reason.KEPT)
I, J, K = (fresh_var(name) for name in "ijk")  # noqa: E741


def times(value: Expr, number: float = 2.0) -> Expr:
    return Binary(BinaryOp.MUL, value, Const(number, value.dtype), value.dtype)


def plus(left: Expr, right: Expr) -> Expr:
    return Binary(BinaryOp.ADD, left, right, left.dtype)


def folded(read: Load) -> Expr:
    """Return a cell plus the one that mirrors it."""
    return plus(read, replace(read, indices=(affine([(-1, J)], 3),)))


def inlined(draft: Draft, *stmts: Stmt, keep: str = "xc") -> InliningResult:
    """Return a program after inlining; nodes whose names begin with these letters are kept."""
    program = draft.program(*stmts)
    verify(program)
    stored = {node: KEPT for node in draft.nodes if node.name[0] in keep}
    found = inline(program, stored)
    verify(found.program)
    return found


def _refusals() -> Mapping[Reason, Callable[[Draft], list[Stmt]]]:
    """Return, for every reason, statements after which node `t` needs memory for it.

    Node `x` has four cells and `c` keeps four; `t` has four unless the statements make another.
    """

    def nodes(d: Draft, *dims: int) -> tuple[TensorNode, TensorNode, TensorNode]:
        x, c = d.node("x", float32, 4), d.node("c", float32, 4)
        return x, d.node("t", float32, *(dims or (4,))), c

    def read(d: Draft, t: TensorNode, c: TensorNode, *places: Any) -> Stmt:
        return loop(J, 4, d.store(c, J, value=d.load(t, *(places or (J,)))))

    def visited_too_often(d: Draft) -> list[Stmt]:
        x, t, c = nodes(d)
        return [
            loop(I, 4, d.store(t, I, value=times(d.load(x, I)))),
            loop(J, 4, d.store(c, J, value=folded(d.load(t, J)))),
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
            return [Fill(t, 0.0), loop(I, 4, inner, loop(K, 4, d.store(c, K, value=d.load(t, K))))]

        return stmts

    def staged_code(d: Draft) -> list[Stmt]:
        x, t, c = nodes(d)
        nest = loop(I, 4, d.store(t, I, value=d.load(x, I)))
        return [Verbatim("c", "", Block((nest,))), read(d, t, c)]

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

    def too_large(d: Draft) -> list[Stmt]:
        x, t, c = nodes(d)
        value: Expr = d.load(x, I)
        for _ in range(MAX_EXPRESSION_DEPTH):
            value = Unary(UnaryOp.SIN, value, float32)
        return [loop(I, 4, d.store(t, I, value=value)), read(d, t, c)]

    def external_call(d: Draft) -> list[Stmt]:
        x, t, c = nodes(d)
        return [CallExternal(CopyCall(), (x,), (t,)), read(d, t, c)]

    def written_by_loop(d: Draft) -> list[Stmt]:
        x, t, c = nodes(d)
        step = StaticIndex("step", 4)
        cell = VarIndex(step)
        body = Block((Store(t, (cell,), Load(x, (cell,), float32)),))
        return [Repeat(step, 4, False, body, (x,), (t,), (t,)), read(d, t, c)]

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

    def computed_position(d: Draft) -> list[Stmt]:
        x, t, c = nodes(d)
        store = Scatter(t, at(0), 0, Load(x, at(I), float32), IndexValue(at(I)[0], float32))
        return [Fill(t, 0.0), loop(I, 4, store), read(d, t, c)]

    def parts_in_reduction(d: Draft) -> list[Stmt]:
        x, t, c = nodes(d)
        return [
            loop(I, 2, d.store(t, I, value=d.load(x, I))),
            loop(J, 2, d.store(t, affine([(1, J)], 2), value=d.load(x, J))),
            Fill(c, 0.0),
            loop(K, 4, d.accumulate(c, 0, op=BinaryOp.ADD, value=d.load(t, K))),
        ]

    return {
        Reason.VISITED_TOO_OFTEN: visited_too_often,
        Reason.PARTS_IN_REDUCTION: parts_in_reduction,
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
        Reason.COMPUTED_POSITION: computed_position,
        Reason.REDUCTION_FOR_OTHER_CELLS: reduction_for_other_cells,
        Reason.TOO_LARGE: too_large,
        Reason.EXTERNAL_CALL: external_call,
        Reason.WRITTEN_BY_LOOP: written_by_loop,
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


def read_only(keep: str) -> Reason:
    d = Draft("p")
    t, c = d.node("t", float32, 4), d.node("c", float32, 4)
    copy = loop(I, 4, d.store(c, I, value=d.load(t, I)))
    return inlined(d, copy, keep=keep).refused[t]


def concatenated_index() -> Reason:
    """Axes in sequence; lowering splits each part into a nest, so this program is not verified."""
    d = Draft("p")
    t, c = d.node("t", float32, 4), d.node("c", float32, 4)
    store = Store(t, (ConcatIndex((I, J)),), Const(1.0, float32))
    whole = d.program(
        Fill(t, 0.0), loop(I, 2, loop(J, 2, store)), loop(K, 4, d.store(c, K, value=d.load(t, K)))
    )
    return inline(whole, {c: KEPT}).refused[t]


def _place(
    definition: Callable[[Draft, TensorNode, TensorNode], list[Stmt]],
    value: Callable[[Load], Expr] = lambda read: read,
    **keywords: Any,
) -> Reason | None:
    """Return the reason for the placement of node `t` after all passes.

    Args:
        definition: A function from a draft, `x` and `t` to the statements that compute `t`.
        value: An expression of it.
        keywords: Options of the passes.
    """
    d = Draft("p")
    x, t, c = (d.node(name, float32, 4) for name in "xtc")
    whole = d.program(*definition(d, x, t), loop(J, 4, d.store(c, J, value=value(d.load(t, J)))))
    decisions = Decisions({x: KEPT, c: KEPT}, **keywords)
    result = run_passes(whole, core_passes(decisions))
    return decisions.placements(whole.nodes, result)[t].reason


def _sine(d: Draft, x: TensorNode, t: TensorNode) -> list[Stmt]:
    return [loop(I, 4, d.store(t, I, value=Unary(UnaryOp.SIN, d.load(x, I), float32)))]


def measured_fastest() -> Reason | None:
    d = Draft("p")
    x, t, c = (d.node(name, float32, 4) for name in "xtc")
    whole = d.program(*_sine(d, x, t), loop(J, 4, d.store(c, J, value=d.load(t, J))))
    tuned = {t: Placement(MemoryMode.LOCAL, Reason.MEASURED_FASTEST)}
    decisions = Decisions({x: KEPT, c: KEPT}, tuned=tuned)
    result = run_passes(whole, core_passes(decisions))
    return decisions.placements(whole.nodes, result)[t].reason


def inlining_disabled() -> Reason | None:
    with settings.overrides(max_visits=0):
        return _place(_sine)


def strided_reduction() -> Reason | None:
    def definition(d: Draft, x: TensorNode, t: TensorNode) -> list[Stmt]:
        w = d.node("w", float32, 3, 4)
        column = d.accumulate(t, I, op=BinaryOp.ADD, value=d.load(w, K, I))
        return [Fill(t, 0.0), loop(I, 4, loop(K, 3, column))]

    return _place(definition)


def local_memory_disabled() -> Reason | None:
    with settings.overrides(enable_device_only=False):
        return _place(_sine, folded)


def never_read() -> Reason | None:
    return _place(_sine, lambda read: Const(1.0, float32))


def _compiled(code: oc.Computation, tensor: oc.Tensor, **keywords: Any) -> Reason | None:
    routine = oc.Context("interp").compile(code, **keywords)
    (found,) = (p for node, p in routine.placements.items() if node is tensor.node)
    return found.reason


def parameter() -> Reason | None:
    w = oc.param("w", output=[2])
    return _compiled(oc.train.forward(w * 2.0), w)


def kept() -> Reason | None:
    y = oc.placeholder("x", output=[2]) * 2.0
    return _compiled(oc.train.forward(y + 1.0), y, keep=[y])


def host_data() -> Reason | None:
    x = oc.placeholder("x", output=[2])
    return _compiled(oc.train.forward(x * 2.0), x)


def inlined_somewhere() -> Reason | None:
    y = oc.placeholder("x", output=[2]) * 2.0
    return _compiled(oc.train.forward(y + 1.0), y)


def inlining_requested() -> Reason | None:
    y = oc.exp(oc.placeholder("x", output=[2]))
    return _compiled(oc.train.forward(y * y + y), y, inline=[y])


def constant_scalar() -> Reason | None:
    number = oc.exp(oc.number(2.0))
    return _compiled(oc.train.forward(oc.placeholder("x", output=[2]) * number), number)


def declared() -> Reason | None:
    count = oc.declare("count")

    @oc.cd
    def code(count: oc.Tensor) -> None:
        count += 1.0

    return _compiled(code(count), count)


def used_elsewhere() -> Reason | None:
    y = oc.placeholder("x", output=[2]) * 2.0
    ctx = oc.Context("interp")
    ctx.compile(oc.train.forward(y))
    return ctx.compile(oc.train.forward(y + 1.0)).placements[y.node].reason


def read_only_in_a_routine() -> Reason | None:
    d = Draft("p")
    t, c = d.node("t", float32, 4), d.node("c", float32, 4)
    whole = d.program(loop(I, 4, d.store(c, I, value=d.load(t, I))))
    decisions = Decisions({c: KEPT})
    result = run_passes(whole, core_passes(decisions))
    return decisions.placements(whole.nodes, result)[t].reason


PRODUCERS: dict[Reason, Callable[[], Reason | None]] = {
    Reason.NO_SETTER: lambda: read_only("c"),
    Reason.READ_ONLY_KNOWN_STORED: lambda: read_only("tc"),
    Reason.CONCATENATED_INDEX: concatenated_index,
    Reason.INLINED_FILL: lambda: _place(lambda d, x, t: [Fill(t, 3.0)]),
    Reason.INLINING_DISABLED: inlining_disabled,
    Reason.MEASURED_FASTEST: measured_fastest,
    Reason.STRIDED_REDUCTION: strided_reduction,
    Reason.LOCAL_MEMORY_DISABLED: local_memory_disabled,
    Reason.BACKEND_CHOICE: lambda: _place(
        _sine,
        folded,
        choose_mode=lambda node, info, modes: Placement(modes[-1], Reason.BACKEND_CHOICE),
    ),
    Reason.NEVER_READ: never_read,
    Reason.READ_ONLY: read_only_in_a_routine,
    Reason.PARAMETER: parameter,
    Reason.KEPT: kept,
    Reason.HOST_DATA: host_data,
    Reason.INLINED: inlined_somewhere,
    Reason.INLINING_REQUESTED: inlining_requested,
    Reason.CONSTANT_SCALAR: constant_scalar,
    Reason.DECLARED: declared,
    Reason.USED_ELSEWHERE: used_elsewhere,
}


@pytest.fixture
def session() -> Iterator[oc.Session]:
    with oc.Session(seed=42) as session:
        yield session


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("reason", PRODUCERS, ids=lambda reason: reason.name)
def test_a_program_brings_about_a_decision_with_its_reason(reason: Reason) -> None:
    assert PRODUCERS[reason]() is reason


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.name)
def test_every_reason_has_a_program_that_brings_it_about(reason: Reason) -> None:
    assert (reason in REFUSALS) is not (reason in PRODUCERS)


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.name)
def test_every_reason_is_a_sentence_with_advice(reason: Reason) -> None:
    for text in (reason.text, reason.advice):
        assert len(text.split()) > 3
        assert text[0].islower()
        assert not text.endswith(".")


def test_two_reasons_do_not_have_the_same_sentence() -> None:
    assert len({reason.text for reason in Reason}) == len(Reason)
