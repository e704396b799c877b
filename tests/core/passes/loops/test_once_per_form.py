"""Local passes run once for statements that are equal up to names, and their results are the same."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import FunctionType, ModuleType

import pytest
from hypothesis import HealthCheck, given, settings

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.base.origin import Origin
from ocannl_core.ir.indexing import fresh_var
from ocannl_core.ir.loops.nodes import (
    Allocate,
    Binary,
    Block,
    CallExternal,
    Const,
    Expr,
    Load,
    LoopProgram,
    Remark,
    Scope,
    Stmt,
    Store,
    Unary,
)
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.ir.loops.verify import verify
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import float32, float64
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.ir.templates import separate_forms
from ocannl_core.passes.loops import once_per_form
from ocannl_core.passes.loops.decisions import Decisions
from ocannl_core.passes.loops.licm import hoist_invariants
from ocannl_core.passes.loops.once_per_form import LocalPass, run_local
from ocannl_core.passes.loops.pipeline import NamedPass, core_passes, join_local, run_passes
from ocannl_core.passes.loops.simplify import simplify
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.programs import Example, RunningSum
from tests.support.example_count import example_count
from tests.support.repeated_programs import repeated_programs


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once_per_form, "_results", once_per_form._Results())


def passes(program: LoopProgram) -> tuple[NamedPass, ...]:
    return core_passes(Decisions(dict.fromkeys(program.params)))


def test_random_programs_with_equal_parts_are_those_of_passes_over_whole_programs() -> None:
    @settings(
        max_examples=example_count(30),
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(repeated_programs())
    def check(example: Example) -> None:
        program = example.program
        joined = run_passes(program, join_local(passes(program)))
        verify(joined)
        single = run_passes(program, passes(program))
        with separate_forms():
            separate = run_passes(program, join_local(passes(program)))
        whole = run_passes(
            program,
            [
                NamedPass(each.name, each.local[0].run if each.local else each.run)
                for each in passes(program)
            ],
        )
        assert len({to_text(found) for found in (joined, single, separate, whole)}) == 1
        assert list(joined.nodes) == list(whole.nodes)
        assert joined.params == whole.params

    check()


Layer = Callable[[Draft, TensorNode, TensorNode], Stmt]


def scaled(draft: Draft, x: TensorNode, y: TensorNode) -> Stmt:
    """Return `y[i] = x[i] * 1 / exp(s)`, of which a pass removes the factor and hoists the last."""
    i = fresh_var()
    one = Const(1.0, draft.nodes[x].dtype)
    dtype = one.dtype
    value: Expr = Binary(BinaryOp.MUL, draft.load(x, i), one, dtype)
    divisor = Unary(UnaryOp.EXP, Load(draft.params[0], (), dtype), dtype)
    return loop(
        i, 4, Store(y, draft.load(y, i).indices, Binary(BinaryOp.DIV, value, divisor, dtype))
    )


def layers(count: int, layer: Layer = scaled) -> LoopProgram:
    """Return layers one after the other, each with a remark."""
    draft = Draft("layers")
    draft.node("s", float32)
    nodes = [draft.node(f"x{n}", float32, 4) for n in range(count + 1)]
    stmts: list[Stmt] = []
    for n in range(count):
        stmts.append(Remark(f"layer {n}", Origin(f"line {n}")))
        stmts.append(layer(draft, nodes[n], nodes[n + 1]))
    return draft.program(*stmts)


class Counted:
    """A pass that counts its runs."""

    def __init__(self, run: Callable[[LoopProgram], LoopProgram]) -> None:
        self.run, self.runs = run, 0

    def __call__(self, program: LoopProgram) -> LoopProgram:
        self.runs += 1
        return self.run(program)


@pytest.mark.parametrize("count", [2, 3, 12, 48])
def test_runs_do_not_depend_on_the_number_of_layers(count: int) -> None:
    simpler, hoisted = Counted(simplify), Counted(hoist_invariants)
    program = layers(count)
    found = run_local(program, [LocalPass("simplify", simpler), LocalPass("hoist", hoisted)])
    assert simpler.runs == hoisted.runs == 2  # the last statement of a program is another form
    assert to_text(found) == to_text(hoist_invariants(simplify(program)))
    again = run_local(layers(count), [LocalPass("simplify", simpler), LocalPass("hoist", hoisted)])
    assert simpler.runs == 2
    assert to_text(again) == to_text(found)


def test_each_layer_keeps_its_remark_and_has_scalars_of_its_own() -> None:
    found = run_local(layers(5), [LocalPass("hoist", hoist_invariants)])
    remarks = [stmt for stmt in found.body.stmts if isinstance(stmt, Remark)]
    assert [(each.text, str(each.origin)) for each in remarks] == [
        (f"layer {n}", f"line {n}") for n in range(5)
    ]
    scalars = [stmt.local for stmt in found.body.stmts if type(stmt).__name__ == "DeclareLocal"]
    assert len({each.id for each in scalars}) == 5
    verify(found)


def test_a_pass_that_removes_remarks_keeps_the_statements_beside_them() -> None:
    def without_remarks(program: LoopProgram) -> LoopProgram:
        kept = (stmt for stmt in program.body.stmts if not isinstance(stmt, Remark))
        return replace(program, body=Block(tuple(kept)))

    found = run_local(layers(3), [LocalPass("remove remarks", without_remarks)])
    assert to_text(found) == to_text(without_remarks(layers(3)))


def test_a_program_without_changes_is_returned_itself() -> None:
    program = simplify(layers(3))
    assert run_local(program, [LocalPass("simplify", simplify)]) is program


def test_facts_options_and_formats_are_part_of_a_form() -> None:
    runs = Counted(lambda program: program)
    program = layers(4)
    run_local(program, [LocalPass("look", runs)])
    assert runs.runs == 2
    run_local(program, [LocalPass("look", runs, options=1)])
    assert runs.runs == 4
    first = program.params[1]
    run_local(program, [LocalPass("look", runs, fact=lambda node: node is first)])
    assert runs.runs == 7  # the first layer is another form
    wide = {n: replace(info, dtype=float64) for n, info in program.nodes.items()}
    run_local(replace(program, nodes=wide), [LocalPass("look", runs)])
    assert runs.runs == 9


def test_statements_that_share_a_variable_are_passed_on_together() -> None:
    draft = Draft("shared")
    x, i = draft.node("x", float32, 4), fresh_var()
    store = Store(x, draft.load(x, i).indices, Const(0.0, float32))
    program = draft.program(loop(i, 4, store), loop(i, 3, store))
    seen: list[int] = []

    def look(found: LoopProgram) -> LoopProgram:
        seen.append(len(found.body.stmts))
        return found

    run_local(program, [LocalPass("look", look)])
    assert seen == [2]


def test_scalar_statements_are_one_group_with_the_next_loop() -> None:
    draft = Draft("scalars")
    a, b, c = (draft.node(name, float32) for name in "abc")
    x = draft.node("x", float32, 4)
    value = Unary(UnaryOp.EXP, Load(a, (), float32), float32)
    i = fresh_var()
    nest = loop(i, 4, Store(x, draft.load(x, i).indices, value))
    program = draft.program(Store(b, (), value), Store(c, (), value), nest)
    with_sharing = run_passes(program, join_local(passes(program)))
    exponentials = [n for n in walk(with_sharing.body) if isinstance(n, Unary)]
    assert len(exponentials) == 1  # stored once for the three of them


def test_memory_of_the_routine_stays_allocated() -> None:
    draft = Draft("allocated")
    x, y = draft.node("x", float32, 4), draft.node("y", float32, 4)
    program = draft.program(
        Remark("memory"), Allocate(y, Scope.ROUTINE), scaled(draft, x, y), scaled(draft, y, x)
    )
    program = replace(program, params=(x,))
    found = run_local(program, [LocalPass("simplify", simplify)])
    assert to_text(found) == to_text(simplify(program))
    assert Allocate(y, Scope.ROUTINE) in found.body.stmts


def test_calls_between_equal_layers_stay_in_place() -> None:
    draft = Draft("called")
    s, x, y = draft.node("s", float32), draft.node("x", float32, 4), draft.node("y", float32, 4)
    call = CallExternal(RunningSum(), (y,), (x,))
    program = draft.program(*(each for _ in range(4) for each in (scaled(draft, x, y), call)))
    runs = Counted(hoist_invariants)
    found = run_local(program, [LocalPass("hoist", runs)])
    assert runs.runs == 1
    assert to_text(found) == to_text(hoist_invariants(program))
    assert found.params == (s, x, y)


def test_the_size_of_known_forms_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once_per_form, "_MOST_TOKENS", 200)
    for extent in range(1, 20):
        draft = Draft("sizes")
        x, i = draft.node("x", float32, extent), fresh_var()
        store = Store(x, draft.load(x, i).indices, Const(0.0, float32))
        run_local(draft.program(loop(i, extent, store)), [LocalPass("simplify", simplify)])
        known = once_per_form._results._known
        assert 0 < sum(len(form) for _, form in known) <= 200


def test_an_empty_program_stays_empty() -> None:
    program = Draft("empty").program()
    assert run_local(program, [LocalPass("simplify", simplify)]).body == Block()


def test_known_results_keep_no_name_of_a_program_alive() -> None:
    draft = Draft("gone")
    i = fresh_var()
    x = draft.node("x", float32, 4)
    remark = Remark("gone", Origin("gone"))
    once = Binary(BinaryOp.MUL, draft.load(x, i), Const(1.0, float32), float32)
    store = Store(x, draft.load(x, i).indices, once)
    program = draft.program(remark, loop(i, 4, store))
    run_local(program, [LocalPass("simplify", simplify)])
    known = {id(each) for each in reachable(once_per_form._results._known)}
    assert len(known) > 10
    assert known.isdisjoint(map(id, (x, i, remark, remark.origin)))


def reachable(root: object) -> list[object]:
    found: dict[int, object] = {}
    pending = [root]
    while pending:
        each = pending.pop()
        if id(each) not in found and not isinstance(each, type | FunctionType | ModuleType):
            found[id(each)] = each
            pending += gc.get_referents(each)
    return list(found.values())
