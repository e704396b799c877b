"""Canonical forms of code under other names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ocannl_core.ir.canonical import canonical_form, canonical_program
from ocannl_core.ir.indexing import StaticIndex, fresh_var
from ocannl_core.ir.loops.nodes import (
    Block,
    CallExternal,
    Const,
    LoopProgram,
    Remark,
    Repeat,
    Stmt,
    Store,
)
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import float32, float64
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.ir.serialization.forms import NotDataError
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.programs import RunningSum


def row_sum(prefix: str, extent: int = 8) -> tuple[Draft, Stmt]:
    draft = Draft(f"{prefix}routine")
    x, total = draft.node(f"{prefix}x", float32, 4, 8), draft.node(f"{prefix}total", float32, 4)
    i, k = fresh_var(f"{prefix}i"), fresh_var(f"{prefix}k")
    update = draft.accumulate(total, i, op=BinaryOp.ADD, value=draft.load(x, i, k))
    return draft, loop(i, 4, loop(k, extent, update))


def test_forms_differ_in_the_things_behind_the_numbers_only() -> None:
    one, other = row_sum("a"), row_sum("b")
    form, renamed = (canonical_form(stmt, draft.nodes) for draft, stmt in (one, other))
    assert form.content == renamed.content
    assert [type(each) for each in form.things] == [type(each) for each in renamed.things]
    assert set(one[0].nodes) <= set(form.things)
    assert set(form.things).isdisjoint(renamed.things)


def test_formats_and_extents_are_part_of_a_form() -> None:
    draft, stmt = row_sum("a")
    wide = {node: replace(info, dtype=float64) for node, info in draft.nodes.items()}
    forms = {
        canonical_form(*found).content
        for found in (
            (stmt, draft.nodes),
            (stmt, wide),
            ((stmt, True), draft.nodes),
            (row_sum("a", 7)[1], draft.nodes),
            (draft.load(draft.params[0], StaticIndex("n", 4), 0), draft.nodes),
        )
    }
    assert len(forms) == 5


def test_operations_in_python_have_no_form_but_a_text() -> None:
    draft, _ = row_sum("a")
    x, total = draft.nodes
    call = CallExternal(RunningSum(), (x,), (total,))
    with pytest.raises(NotDataError):
        canonical_form(call, draft.nodes)
    assert "running_sum" in canonical_program(draft.program(call), lambda node: [])


def test_programs_have_one_text_under_any_names_and_remarks() -> None:
    def program(prefix: str, size: int = 4) -> LoopProgram:
        draft, stmt = row_sum(prefix)
        _, total = draft.nodes
        private = TensorNode(9, (f"{prefix}private",)), NodeInfo(float32, (size,))
        step = StaticIndex(f"{prefix}step", 3)
        body = Block((Store(private[0], (), Const(0.0, float32)), stmt))
        repeat = Repeat(step, 3, False, body, (), (total,), (total,), (private,))
        return draft.program(Remark(f"{prefix} begins"), repeat)

    def text(found: LoopProgram) -> str:
        return canonical_program(found, lambda node: ["stored"] if node in found.params else [])

    assert text(program("a")) == text(program("b"))
    assert text(program("a")) != text(program("a", 5))
    found = program("a")
    assert [*found.all_nodes][:2] == [*found.nodes]
    assert [info.dims for info in found.all_nodes.values()] == [(4, 8), (4,), (4,)]
