"""Canonical forms of code under other names, and copies under other names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from ocannl_core.ir.canonical import canonical_program
from ocannl_core.ir.indexing import FixedIndex, LoopVar, StaticIndex, VarIndex, affine, fresh_var
from ocannl_core.ir.loops.nodes import (
    Binary,
    Block,
    CallExternal,
    Const,
    For,
    Load,
    Local,
    LocalRead,
    LoopProgram,
    SetLocal,
    Stmt,
    Store,
    Unary,
)
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import float32, float64
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.ir.serialization.forms import NotDataError
from ocannl_core.ir.templates import Key, Template, canonical_form
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.programs import Example, RunningSum
from tests.support.loop_programs import loop_programs


def scaled(prefix: str, extent: int = 4, local: int = 0, factor: int = 1) -> For:
    """Return `t = x[factor * i + s]; y[i] = t + t` in a loop."""
    i, s = fresh_var(prefix + "i"), StaticIndex(prefix + "s", 8)
    x, y = TensorNode(0, (prefix, "x")), TensorNode(1, (prefix, "y"))
    t = Local(local, float32, x)
    read = Load(x, (affine([(factor, i), (1, s)]),), float32)
    twice = Binary(BinaryOp.ADD, LocalRead(t), LocalRead(t), float32)
    return For(i, 0, extent, Block((SetLocal(t, read), Store(y, (VarIndex(i),), twice))))


def anonymous(value: object) -> Key:
    return canonical_form(value, {}).key


def test_names_make_no_difference_to_numbers() -> None:
    assert anonymous(scaled("a")) == anonymous(scaled("b"))
    assert anonymous(TensorNode(4, ("g",), TensorNode(5))) == anonymous(TensorNode(4))


def test_ids_of_variables_make_no_difference_to_numbers() -> None:
    assert anonymous(scaled("a", local=3)) == anonymous(scaled("a", local=7))


def test_everything_else_does() -> None:
    texts = {anonymous(scaled("a")), anonymous(scaled("a", 5)), anonymous(scaled("a", factor=2))}
    assert len(texts) == 3


def test_two_nodes_are_not_one() -> None:
    x, y = TensorNode(0), TensorNode(1)
    assert anonymous((x, y)) == anonymous((y, x))
    assert anonymous((x, y)) != anonymous((x, x))


def test_a_loop_variable_is_not_a_static_index() -> None:
    assert anonymous(VarIndex(fresh_var())) != anonymous(VarIndex(StaticIndex("i")))


def row_sum(prefix: str, extent: int = 8) -> tuple[Draft, Stmt]:
    draft = Draft(f"{prefix}routine")
    x, total = draft.node(f"{prefix}x", float32, 4, 8), draft.node(f"{prefix}total", float32, 4)
    i, k = fresh_var(f"{prefix}i"), fresh_var(f"{prefix}k")
    update = draft.accumulate(total, i, op=BinaryOp.ADD, value=draft.load(x, i, k))
    return draft, loop(i, 4, loop(k, extent, update))


def test_forms_differ_in_the_names_only() -> None:
    one, other = row_sum("a"), row_sum("b")
    form, renamed = (canonical_form(stmt, draft.nodes) for draft, stmt in (one, other))
    assert form.key == renamed.key
    assert [type(each) for each in form.names] == [type(each) for each in renamed.names]
    assert set(one[0].nodes) <= set(form.names)
    assert set(form.names).isdisjoint(renamed.names)


def test_formats_and_extents_are_part_of_a_form() -> None:
    draft, stmt = row_sum("a")
    wide = {node: replace(info, dtype=float64) for node, info in draft.nodes.items()}
    forms = {
        canonical_form(*found).key
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


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(loop_programs())
def test_a_template_with_its_own_names_is_the_program(example: Example) -> None:
    program = example.program
    key, names, _ = canonical_form(program, program.nodes)
    template = Template(program, names)
    assert template.bind(names) == program
    assert to_text(template.bind(names, first_scalar=100)) == to_text(program)
    others = [replaced(name) for name in names]
    copy: LoopProgram = template.bind(others, first_scalar=7)
    assert canonical_form(copy, copy.nodes) == (
        key,
        tuple(others),
        tuple(range(7, 7 + template.scalars)),
    )


def replaced(name: Any) -> Any:
    """Return another name of the same facts."""
    match name:
        case TensorNode():
            return TensorNode(name.id, ("other", *name.label))
        case LoopVar():
            return fresh_var("other", name.size)
        case _:
            return type(name)("other", name.extent)


def test_names_that_are_not_replaced_are_new() -> None:
    stmt = scaled("a")
    _, names, _ = canonical_form(stmt, {})
    kept = tuple(name for name in names if isinstance(name, StaticIndex))
    template = Template(stmt, kept)
    copies = [template.bind(kept, lambda label: ("b", *label[1:])) for _ in range(2)]
    found = [canonical_form(each, {}) for each in (stmt, *copies)]
    assert {each.key for each in found} == {found[0].key}
    assert len({name for each in found for name in each.names}) == 3 * len(names) - 2 * len(kept)
    labels = [name.label for name in found[1].names if isinstance(name, TensorNode)]
    assert labels == [("b", "x"), ("b", "y")]


def test_copies_share_kept_loop_variables_and_parts_without_other_names() -> None:
    stmt = scaled("a")
    names = [name for name in canonical_form(stmt, {}).names if name is not stmt.var]
    copy: Any = Template(stmt, names, shares_loops=True).bind([replaced(each) for each in names])
    assert copy != stmt
    assert canonical_form(copy, {}).key == canonical_form(stmt, {}).key
    assert copy.var is stmt.var
    (_, store), (_, copied) = stmt.body.stmts, copy.body.stmts
    assert isinstance(store, Store)
    assert copied.indices is store.indices


def test_scalars_keep_their_numbers_or_get_new_ones() -> None:
    stmt = scaled("a", local=5)
    template = Template(stmt, canonical_form(stmt, {}).names)
    names = canonical_form(scaled("b"), {}).names
    assert template.scalars == 1
    assert [
        template.bind(names, first_scalar=first).body.stmts[0].local.id for first in (None, 9)
    ] == [5, 9]


def test_parts_without_names_and_shared_parts_are_shared() -> None:
    y = TensorNode(0, ("y",))
    one = Const(1.0, float32)
    cell = Load(y, (FixedIndex(0),), float32)
    store = Store(
        y,
        (FixedIndex(0),),
        Binary(BinaryOp.ADD, Binary(BinaryOp.MUL, cell, cell, float32), one, float32),
    )
    copy: Any = Template(store, (y,)).bind((TensorNode(1, ("z",)),))
    assert copy.value.right is one
    assert copy.value.left.left is copy.value.left.right
    assert copy.value.left.left.node is copy.node


def test_long_expressions_need_no_stack() -> None:
    x = TensorNode(0, ("x",))
    value: Any = Load(x, (), float32)
    for _ in range(5000):
        value = Unary(UnaryOp.NEG, value, float32)
    store = Store(x, (), value)
    form = canonical_form(store, {})
    other = (TensorNode(1, ("z",)),)
    assert canonical_form(Template(store, form.names).bind(other), {}) == (form.key, other, ())


@pytest.mark.parametrize(
    ("one", "other"),
    [(0.0, -0.0), (1, 1.0), (1, True), ((), None), ((1,), 1), (2.0, "0x1.0000000000000p+1")],
)
def test_values_of_different_kinds_have_different_forms(one: object, other: object) -> None:
    assert anonymous((one,)) != anonymous((other,))


def test_a_nan_has_one_form() -> None:
    assert anonymous((float("nan"),)) == anonymous((-float("nan"),))


def test_a_template_takes_a_name_for_each_of_its_own() -> None:
    x = TensorNode(0, ("x",))
    with pytest.raises(ValueError, match="2 names for a template of 1"):
        Template(Load(x, (), float32), (x,)).bind((x, x))
