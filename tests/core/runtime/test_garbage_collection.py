"""Unreachable cells, host arrays and routines are freed, and reachable ones are not."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base import garbage
from ocannl_core.ir.node import NodeTable, TensorNode
from ocannl_core.tensor.custom import Apply, Op, TensorType
from ocannl_core.tensor.graph.definitions import Literal
from ocannl_core.testing.children import succeeds_in_child

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def session() -> Iterator[oc.Session]:
    with oc.Session() as session:
        yield session


def is_gone(*references: weakref.ref[Any]) -> bool:
    gc.collect()
    return all(reference() is None for reference in references)


def memory_of(ctx: oc.Context, tensor: oc.Tensor) -> Any:
    """Return the array in which a context has the cells of a tensor."""
    stored = ctx._store.find(tensor.node)
    assert stored is not None
    return stored.buffer.array


def array_of(tensor: oc.Tensor) -> weakref.ref[Array]:
    """Return a reference to the host's array behind a literal."""
    assert isinstance(tensor.definition, Literal)
    return weakref.ref(tensor.definition.array)


def test_an_entry_lives_as_long_as_its_node_and_its_table() -> None:
    class Value:
        def __init__(self, node: TensorNode) -> None:
            self.node = node

    def made(node: TensorNode, table: NodeTable[Value]) -> weakref.ref[Value]:
        value = table[node] = Value(node)
        return weakref.ref(value)

    node, table = TensorNode(0), NodeTable[Value]()
    held = made(node, table)
    assert not is_gone(held)
    assert (len(table), node in table, [each.node for each in table.values()]) == (1, True, [node])
    del node
    assert is_gone(held)
    assert len(table) == 0
    node, other = TensorNode(1), NodeTable[Value]()
    first, second = made(node, table), made(node, other)
    assert table.get(node) is first()
    del table
    assert is_gone(first)
    assert other.get(node) is second() is not None


def literal() -> oc.Tensor:
    return oc.tensor(np.arange(3, dtype=np.float32))


def summed(x: oc.Tensor) -> oc.Computation:
    return oc.train.forward(oc.einsum("i => 0", oc.exp(x)))


def trained(x: oc.Tensor) -> oc.Computation:
    loss = oc.einsum("i => 0", oc.param("w", init=1.0, output=[3]) * x)
    return oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.1, momentum=0.9)


def recorded(x: oc.Tensor) -> oc.Computation:
    c = oc.declare("c", output=[3])

    @oc.cd
    def code() -> None:
        c[:] = x * 2.0 + c

    return code()


def called(x: oc.Tensor) -> oc.Computation:
    return oc.train.forward(Doubled()(x))


class Doubled(Op):
    __props__ = ()
    spec = "...|... => ...|..."

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = inputs[0] + inputs[0]


CODE = [summed, trained, recorded, called]


@pytest.mark.parametrize("code", CODE)
@pytest.mark.parametrize("make", [literal, lambda: oc.placeholder("x", output=[3])])
def test_cells_of_dropped_tensors_and_routines_are_freed(
    code: Callable[[oc.Tensor], oc.Computation], make: Callable[[], oc.Tensor]
) -> None:
    ctx = oc.Context("interp")
    for _ in range(3):
        x = make()
        computation = code(x)
        step = ctx.compile(computation)
        if x.literal is None:
            ctx[x] = [0, 1, 2]
        for parameter in computation.params.values():
            ctx[parameter] = 1.0
        step()
        found = [weakref.ref(each) for each in (x, step, memory_of(ctx, x))]
        del x, computation, step
        parameter = None
        assert is_gone(*found)
        assert len(ctx._store) == 0


def test_the_array_of_a_literal_goes_before_the_routine_that_has_its_cells() -> None:
    ctx = oc.Context("interp")
    x = literal()
    y = oc.einsum("i => 0", x)
    step = ctx.compile(oc.train.forward(y))
    array, cells = array_of(x), weakref.ref(memory_of(ctx, x))
    del x
    assert y.operands[0] is not None
    del y
    assert is_gone(array)
    assert not is_gone(cells)
    step()


def test_tensors_of_the_session_keep_no_model() -> None:
    class Ones(Op):
        def make_node(self) -> Apply:
            return Apply(self, [], [TensorType.sized("float32", output=[3])])

        def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
            output_storage[0][0] = np.ones(3, np.float32)

    ones = Ones()

    @oc.op
    def noisy(x: oc.Tensor) -> oc.Tensor:
        hidden = oc.nn.dropout(oc.relu(oc.param("w", output=[3]) @ x), rate=0.5)
        return hidden + oc.normal() + ones()

    ctx = oc.Context("interp")
    for _ in range(2):
        model = noisy()
        loss = oc.einsum("... => 0", model(literal()))
        ctx.init_params(loss)
        ctx.compile(oc.train.grad_update(loss))()
        (parameter,) = model.params.values()
        found = [weakref.ref(each) for each in (model, parameter, memory_of(ctx, parameter))]
        del model, loss, parameter
        assert is_gone(*found)


def test_cells_go_with_their_context() -> None:
    x = oc.placeholder("x", output=[3])
    ctx, other = oc.Context("interp"), oc.Context("interp")
    held = []
    for each in (ctx, other):
        each[x] = 1.0
        each.compile(summed(x))()
        held.append(weakref.ref(memory_of(each, x)))
    del ctx, each
    assert is_gone(held[0])
    assert not is_gone(held[1])


def test_cells_of_a_literal_go_with_the_last_context_on_their_device() -> None:
    x = literal()
    ctx, other = oc.Context("interp"), oc.Context("interp")
    ctx.compile(summed(x))()
    other.compile(summed(x))()
    cells = weakref.ref(memory_of(ctx, x))
    assert memory_of(other, x) is cells()
    del ctx
    assert not is_gone(cells)
    del other
    assert is_gone(cells)


def test_parameters_that_a_program_references_keep_their_cells() -> None:
    ctx = oc.Context("interp")
    p = oc.param("p", init=[1.0, 2.0])
    for k in range(4):
        loss = oc.einsum("i => 0", p * float(k))
        step = ctx.compile(oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=1))
        ctx.init_params(loss)
        step()
        del loss, step
        gc.collect()
    assert ctx[p].tolist() == [1 - 6, 2 - 6]
    stored = ctx._store.find(p.node)
    assert stored is not None
    assert len(stored.runs) <= 2  # the last one, and one that is being added


def test_notes_about_code_keep_no_tensor_alive(session: oc.Session) -> None:
    x = literal()
    y = oc.exp(x)
    oc.train.forward(y).resolve()
    assert y in session.consumed
    with oc.train.unchanged_roots():
        oc.train.forward(oc.sin(y)).resolve()
    found = weakref.ref(y)
    assert y in session.consumed
    del y
    assert is_gone(found)
    assert len(session.consumed) == 1  # the literal


def test_equal_operations_are_one_as_long_as_an_input_is_held() -> None:
    x = literal()
    first = weakref.ref(Doubled()(x))
    assert not is_gone(first)
    assert Doubled()(x) is first()
    array = array_of(x)
    del x
    assert is_gone(first, array)


def test_identities_do_not_depend_on_freed_tensors() -> None:
    """Random numbers are keyed by them."""

    def made(collects: bool) -> list[int]:
        with oc.Session() as session:
            x = literal()
            for _ in range(3):
                Doubled()(x)
                Doubled()(oc.tensor([1.0, 2.0]))
                oc.custom.Broadcast(np.hypot)(x, 3.0)
                if collects:
                    gc.collect()
            return [x.id, session.next_id()]

    assert made(True) == made(False)


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Little memory counts as much, and the collector does not run by itself."""
    monkeypatch.setattr(garbage, "_LARGE", 1 << 10)
    monkeypatch.setattr(garbage, "_LEAST", 1 << 14)
    monkeypatch.setattr(garbage, "_counts", garbage._Counts())
    threshold = gc.get_threshold()
    gc.set_threshold(100_000_000)
    yield
    gc.set_threshold(*threshold)


def rebuilt(times: int) -> list[bool]:
    """Return which literals are left of programs that were built one after the other."""
    ctx = oc.Context("interp")
    arrays = []
    for _ in range(times):
        x = oc.tensor(np.zeros(1 << 10, np.float32))
        loss = oc.einsum("i => 0", x * oc.param("w", init=1.0, output=[1 << 10]))
        ctx.compile(oc.train.grad_update(loss))
        arrays.append(array_of(x))
    return [each() is not None for each in arrays]


@pytest.mark.usefixtures("little")
def test_dropped_memory_is_collected_when_much_has_been_made() -> None:
    left = rebuilt(40)
    assert sum(left) < 12
    assert not any(left[:20])


@pytest.mark.usefixtures("little")
def test_a_program_that_switches_the_collector_off_is_left_alone() -> None:
    gc.disable()
    try:
        assert all(rebuilt(12))
    finally:
        gc.enable()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_the_child_of_a_fork_collects_although_a_thread_of_its_parent_compiles() -> None:
    inside, may_go_on = threading.Event(), threading.Event()

    def compile_slowly() -> None:
        with garbage.without_collections():
            inside.set()
            may_go_on.wait()

    def require_collector() -> None:
        assert gc.isenabled()

    thread = threading.Thread(target=compile_slowly)
    thread.start()
    inside.wait()
    assert not gc.isenabled()
    assert succeeds_in_child(require_collector)
    may_go_on.set()
    thread.join()
    assert gc.isenabled()
