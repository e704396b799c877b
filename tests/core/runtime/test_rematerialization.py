"""Virtual nodes of an earlier routine are recomputed, or the reason is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from inline_snapshot import snapshot

from ocannl_core.base.errors import LinkError
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.node import MemoryMode, Reason
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.runtime.context import Context

if TYPE_CHECKING:
    from conftest import Toy, ToyComputation

X = np.array([1.0, 2.0, 3.0], np.float32)


class VirtualModel:
    """`t = x * w` and `y = exp(t)` in one routine; `z = relu(t)` in another."""

    def __init__(self, toy: Toy) -> None:
        self.toy = toy
        self.x, self.w = toy.placeholder("x", 3), toy.parameter("w", 3, value=0.5)
        self.t, self.y, self.z = (toy.tensor(name, 3, needs=[self.w]) for name in "tyz")

    def first(self, *, updates: bool = False, name: str = "first") -> ToyComputation:
        """Return the code of `t` and `y`; with an update of `w` at its end on request."""
        toy = self.toy
        statements = [
            toy.statement("i,i->i", self.t, BinaryOp.MUL, self.x, self.w),
            toy.statement("i->i", self.y, UnaryOp.EXP, self.t),
        ]
        if updates:
            statements.append(self._update())
        return toy.code(
            *statements,
            uses=[self.x, self.w],
            defines=[self.t, self.y],
            results=[self.y],
            name=name,
        )

    def _update(self) -> object:
        return self.toy.statement("->i", self.w, UnaryOp.IDENTITY, 1.0, combine=BinaryOp.SUB)

    def update(self) -> ToyComputation:
        return self.toy.code(self._update(), uses=[self.w], name="update")

    def second(self) -> ToyComputation:
        """Return code that reads `t` and does not compute it."""
        statement = self.toy.statement("i->i", self.z, UnaryOp.NEG, self.t)
        return self.toy.code(statement, uses=[self.t], defines=[self.z], name="second")


@pytest.fixture
def model(toy: Toy) -> VirtualModel:
    return VirtualModel(toy)


def message(error: pytest.ExceptionInfo[Exception]) -> str:
    return str(error.value)


def test_a_later_routine_computes_a_virtual_node_again(
    context: Context, model: VirtualModel
) -> None:
    first = context.compile(model.first())
    assert first.placements[model.t.node].mode is MemoryMode.VIRTUAL
    second = context.compile(model.second())
    assert second.reads == {model.x.node, model.w.node}
    context.init_params(model.y)
    context[model.x] = X
    first()
    second()
    assert context[model.z].tolist() == (-0.5 * X).tolist()


def test_a_child_recomputes_virtual_nodes_of_its_parent(
    context: Context, model: VirtualModel
) -> None:
    first = context.compile(model.first())
    child = context.child()
    second = child.compile(model.second())
    context.init_params(model.y)
    context[model.x] = X
    first()
    second()
    assert child[model.z].tolist() == (-0.5 * X).tolist()


def test_a_later_routine_may_keep_recomputed_nodes(context: Context, model: VirtualModel) -> None:
    first = context.compile(model.first())
    second = context.compile(model.second(), keep=[model.t])
    assert second.placements[model.t.node].reason is Reason.KEPT
    context.init_params(model.y)
    context[model.x] = X
    first()
    second()
    assert context[model.t].tolist() == (0.5 * X).tolist()


def test_a_virtual_node_has_no_value_before_its_routine_runs(
    context: Context, model: VirtualModel
) -> None:
    context.compile(model.first())
    second = context.compile(model.second())
    context.init_params(model.y)
    context[model.x] = X
    with pytest.raises(LinkError) as caught:
        second()
    assert message(caught) == snapshot("""\
A tensor that a routine computes without storing it can be read later while its operands are unchanged.
  found  t: it is virtual in first, which has not run
  where  running second
  try    run first first\
""")


def test_new_host_data_makes_a_virtual_node_stale(context: Context, model: VirtualModel) -> None:
    first, second = context.compile(model.first()), context.compile(model.second())
    context.init_params(model.y)
    context[model.x] = X
    first()
    second()
    context[model.x] = 2 * X
    with pytest.raises(LinkError) as caught:
        second()
    assert message(caught) == snapshot("""\
A tensor that a routine computes without storing it can be read later while its operands are unchanged.
  found  t: it is virtual in first, and x, from which it is computed, has been written since that ran
  where  running second
  try    run first again first, or compile it with keep=[t, ...], which replaces its results\
""")
    first()
    second()
    assert context[model.z].tolist() == (-X).tolist()


def test_a_routine_that_writes_an_operand_makes_a_virtual_node_stale(
    context: Context, model: VirtualModel
) -> None:
    first, second = context.compile(model.first()), context.compile(model.second())
    update = context.compile(model.update())
    context.init_params(model.y)
    context[model.x] = X
    first()
    update()
    with pytest.raises(LinkError, match="w, from which it is computed"):
        second()


def test_a_definition_does_not_move_past_a_write_in_its_own_routine(
    context: Context, model: VirtualModel
) -> None:
    context.compile(model.first(updates=True))
    with pytest.raises(LinkError) as caught:
        context.compile(model.second())
    assert message(caught) == snapshot("""\
A tensor that a routine computes without storing it can be read later while its operands are unchanged.
  found  t: it is virtual in first, and something that it is computed from is written between its definition and a read of it: first writes w afterwards
  where  compiling second
  try    compile first with keep=[t, ...], which replaces its results, and run it\
""")


def test_memory_of_a_routine_is_not_there_for_others(context: Context, toy: Toy) -> None:
    x, h, t, y = (toy.placeholder("x", 3), *(toy.tensor(name, 3) for name in "hty"))
    pairs = toy.tensor("pairs", 3, 3)
    code = toy.code(
        toy.statement("i->i", h, UnaryOp.EXP, x),
        toy.statement("i,j->ij", pairs, BinaryOp.MUL, h, h),
        toy.statement("i->i", t, UnaryOp.NEG, h),
        toy.statement("i->i", y, UnaryOp.NEG, t),
        uses=[x],
        defines=[h, pairs, t, y],
        results=[pairs, y],
        name="first",
    )
    first = context.compile(code)
    assert first.placements[h.node].mode is MemoryMode.LOCAL
    z = toy.tensor("z", 3)
    after = toy.code(toy.statement("i->i", z, UnaryOp.NEG, t), uses=[t], defines=[z], name="second")
    with pytest.raises(LinkError, match="computed from h, which first does not keep"):
        context.compile(after)


def test_a_number_given_at_a_call_is_not_known_later(context: Context, toy: Toy) -> None:
    rows, t, y, z = toy.placeholder("rows", 2, 3), *(toy.tensor(name, 3) for name in "tyz")
    row = StaticIndex("row", 2)
    code = toy.code(
        toy.statement("ri->i", t, UnaryOp.EXP, rows, r=row),
        toy.statement("i->i", y, UnaryOp.NEG, t),
        uses=[rows],
        defines=[t, y],
        results=[y],
        name="first",
    )
    context.compile(code, bindings=[row])
    after = toy.code(toy.statement("i->i", z, UnaryOp.NEG, t), uses=[t], defines=[z], name="second")
    with pytest.raises(LinkError, match="static index row"):
        context.compile(after)
