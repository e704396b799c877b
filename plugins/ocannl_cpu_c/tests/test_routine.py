"""Whole routines: several kernels, calls out of the loop language, links, and the text for readers."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from inline_snapshot import snapshot

import ocannl_cpu_c as backend
from ocannl_core.backend.protocols import HOST, HostBuffer
from ocannl_core.base.errors import LinkError
from ocannl_core.ir.indexing import FixedIndex, StaticIndex, VarIndex, fresh_var
from ocannl_core.ir.kernels.nodes import HostCall, Kernel, Plan
from ocannl_core.ir.kernels.stream import KernelStream
from ocannl_core.ir.loops.nodes import (
    Binary,
    Block,
    CallExternal,
    Const,
    For,
    IndexValue,
    Load,
    LoadMerge,
    Stmt,
    Store,
)
from ocannl_core.ir.loops.traverse import nodes_of
from ocannl_core.ir.node import Margin, NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.ir.target import Target

TARGET = Target("cpu_c")
FOUR = NodeInfo(float32, (4,))


class Reversal:
    """Reverses its input; margins are not its business."""

    name = "reverse"

    def __init__(self) -> None:
        self.calls = 0

    def perform(self, inputs, outputs) -> None:
        self.calls += 1
        outputs[0][...] = inputs[0][::-1]


class Failure:
    name = "failure"

    def perform(self, inputs, outputs) -> None:
        raise RuntimeError("from inside")


def node(label: str) -> TensorNode:
    return TensorNode(0, (label,))


def nest(stmt: Stmt, title: str = "", indices=()) -> Kernel:
    body = Block((stmt,))
    return Kernel(body, nodes_of(body), indices, title)


def add(out: TensorNode, x: TensorNode, number: float, title: str = "") -> Kernel:
    """Return `out = x + number` over four cells."""
    var = fresh_var()
    value = Binary(
        BinaryOp.ADD, Load(x, (VarIndex(var),), float32), Const(number, float32), float32
    )
    return nest(For(var, 0, 4, Block((Store(out, (VarIndex(var),), value),))), title)


def linked(plan: Plan, **kwargs):
    buffers = {each: backend.ocannl_allocate(plan.nodes[each], TARGET) for each in plan.params}
    executable = backend.ocannl_compile(
        backend.ocannl_generate(KernelStream.of(plan), TARGET), TARGET
    )
    return executable.link(buffers, **kwargs), buffers


def test_steps_run_in_order_and_scratch_belongs_to_the_routine():
    x, middle, out = node("x"), node("middle"), node("out")
    nodes = {x: FOUR, middle: FOUR, out: FOUR}
    steps = (add(middle, x, 1.0), add(out, middle, 2.0))
    launch, buffers = linked(Plan("two", steps, (x, out), (middle,), (), nodes))
    buffers[x].array[...] = [1, 2, 3, 4]
    launch(())
    assert buffers[out].array.tolist() == [4.0, 5.0, 6.0, 7.0]
    buffers[x].array[...] = 0
    launch(())
    assert buffers[out].array.tolist() == [3.0] * 4


def test_equal_kernels_over_different_nodes_are_one():
    x, y, z = node("x"), node("y"), node("z")
    nodes = {x: FOUR, y: FOUR, z: FOUR}
    steps = (add(y, x, 1.0, "first"), add(z, y, 1.0, "second"))
    plan = Plan("shared", steps, (x, y, z), (), (), nodes)
    source = backend.ocannl_generate(KernelStream.of(plan), TARGET)
    assert len(source.kernels) == 1
    launch, buffers = linked(source.plan)
    launch(())
    assert buffers[z].array.tolist() == [2.0] * 4


def test_external_calls_happen_between_kernels_on_arrays_without_margins():
    x, y, z = node("x"), node("y"), node("z")
    padded = NodeInfo(float32, (4,), (Margin(1, 2),))
    nodes = {x: FOUR, y: padded, z: FOUR}
    op = Reversal()
    var = fresh_var()
    read = nest(
        For(var, 0, 4, Block((Store(z, (VarIndex(var),), Load(y, (VarIndex(var),), float32)),)))
    )
    call = HostCall(CallExternal(op, (x,), (y,)))
    plan = Plan("external", (add(x, x, 1.0), call, read), (x, y, z), (), (), nodes)
    launch, buffers = linked(plan)
    buffers[x].array[...] = [1, 2, 3, 4]
    launch(())
    launch(())
    assert op.calls == 2
    assert buffers[y].array.tolist() == [0.0, 6.0, 5.0, 4.0, 3.0, 0.0, 0.0]
    assert buffers[z].array.tolist() == [0.0, 6.0, 5.0, 4.0]


def test_an_exception_of_an_external_call_reaches_the_caller():
    x = node("x")
    call = HostCall(CallExternal(Failure(), (x,), (x,)))
    plan = Plan("failing", (add(x, x, 1.0), call, add(x, x, 1.0)), (x,), (), (), {x: FOUR})
    launch, buffers = linked(plan)
    with pytest.raises(RuntimeError, match="from inside"):
        launch(())
    assert buffers[x].array.tolist() == [1.0] * 4


def test_a_routine_of_external_calls_alone_needs_no_compiler(monkeypatch):
    monkeypatch.setenv("OCANNL_CPU_C__CC", "/nonexistent/cc")
    x, y, op = node("x"), node("y"), Reversal()
    steps = (HostCall(CallExternal(op, (x,), (y,))),)
    launch, buffers = linked(Plan("external", steps, (x, y), (), (), {x: FOUR, y: FOUR}))
    buffers[x].array[...] = [1, 2, 3, 4]
    launch(())
    assert buffers[y].array.tolist() == [4.0, 3.0, 2.0, 1.0]


def test_a_routine_without_steps_does_nothing():
    launch, _ = linked(Plan("empty", (), (), (), (), {}))
    launch(())


def test_kernels_get_the_static_indices_that_they_use():
    out, first, second = node("out"), StaticIndex("first"), StaticIndex("second")
    steps = [
        nest(
            Store(out, (FixedIndex(position),), IndexValue(VarIndex(index), float32)),
            indices=(index,),
        )
        for position, index in enumerate((second, first))
    ]
    plan = Plan("indices", tuple(steps), (out,), (), (first, second), {out: FOUR})
    launch, buffers = linked(plan)
    launch((5, 2**33))
    assert buffers[out].array.tolist() == [2.0**33, 5.0, 0.0, 0.0]
    with pytest.raises(LinkError) as error:
        launch((1,))
    assert str(error.value) == snapshot("""\
The routine takes 2 static indices.
  found  1 given\
""")


def test_a_merge_buffer_is_given_when_linking():
    x = node("x")
    read = LoadMerge(x, (FixedIndex(1),), float32)
    total = Binary(BinaryOp.ADD, Load(x, (FixedIndex(1),), float32), read, float32)
    plan = Plan("merge", (nest(Store(x, (FixedIndex(1),), total)),), (x,), (), (), {x: FOUR})
    merge = backend.ocannl_allocate(FOUR, TARGET)
    merge.array[...] = [1, 20, 3, 4]
    launch, buffers = linked(plan, merge_buffers={x: merge})
    buffers[x].array[...] = 1
    launch(())
    assert buffers[x].array.tolist() == [1.0, 21.0, 1.0, 1.0]
    with pytest.raises(LinkError) as error:
        linked(plan)
    assert str(error.value) == snapshot("""\
Linking gives a merge buffer of this backend for every node that needs one.
  found  none
  where  <node 0 x>
  try    allocate its merge buffer before linking\
""")


def test_a_launcher_keeps_its_memory_alive():
    x, out = node("x"), node("out")
    plan = Plan("alive", (add(out, x, 1.0),), (x, out), (), (), {x: FOUR, out: FOUR})
    launch, buffers = linked(plan)
    array = buffers[out].array
    buffers.clear()
    gc.collect()
    spoiled = [np.full(16, 99.0, np.float32) for _ in range(100)]
    launch(())
    assert array.tolist() == [1.0] * 4
    assert len(spoiled) == 100


def test_a_buffer_that_does_not_fit_is_an_error():
    x = node("x")
    plan = Plan("fit", (add(x, x, 1.0),), (x,), (), (), {x: FOUR})
    executable = backend.ocannl_compile(
        backend.ocannl_generate(KernelStream.of(plan), TARGET), TARGET
    )
    messages = []
    other = backend.ocannl_allocate(NodeInfo(float32, (5,)), TARGET)
    for buffers in ({}, {x: HostBuffer(np.zeros(4, np.float32), FOUR)}, {x: other}):
        with pytest.raises(LinkError) as error:
            executable.link(buffers)
        messages.append(str(error.value))
    assert messages == snapshot(
        [
            """\
Linking gives a buffer of this backend for every node that needs one.
  found  none
  where  <node 0 x>
  try    allocate its buffer before linking\
""",
            """\
Linking gives a buffer of this backend for every node that needs one.
  found  one of host:0
  where  <node 0 x>
  try    allocate its buffer before linking\
""",
            """\
A buffer has the number format and the extents of its node.
  found  float32 [5] for float32 [4]
  where  <node 0 x>\
""",
        ]
    )


def test_memory_is_aligned_and_zero():
    for size in (1, 3, 1000, 0):
        info = NodeInfo(float32, (size,), (Margin(1, 1),))
        buffer = backend.ocannl_allocate(info, TARGET)
        assert buffer.address % 64 == 0
        assert buffer.array.shape == (size + 2,)
        assert not buffer.array.any()
        assert buffer.target is TARGET
        assert buffer.info is info


def test_cells_travel_to_the_device_and_back_and_between_buffers():
    one, other = (backend.ocannl_allocate(FOUR, TARGET) for _ in range(2))
    host = HostBuffer(np.array([1, 2, 3, 4], np.float32), FOUR)
    back = HostBuffer(np.zeros(4, np.float32), FOUR)
    for destination, source in ((one, host), (other, one), (back, other)):
        event = backend.ocannl_transfer(destination, source)
        assert event is not None
        event.wait()
    assert back.array.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert back.target is HOST


def test_memory_of_another_backend_is_left_to_others():
    class Foreign:
        target = Target("elsewhere")
        info = FOUR

    own = backend.ocannl_allocate(FOUR, TARGET)
    assert backend.ocannl_transfer(own, Foreign()) is None
    assert backend.ocannl_transfer(Foreign(), own) is None


def test_the_source_lists_steps_with_their_arguments():
    x, y, out = node("x"), node("y"), node("out")
    step = StaticIndex("step")
    store = Store(out, (FixedIndex(0),), IndexValue(VarIndex(step), float32))
    steps = (
        add(y, x, 1.0, "the first\ntitle"),
        HostCall(CallExternal(Reversal(), (y,), (out,))),
        nest(store, "number the step", (step,)),
    )
    plan = Plan("show me", steps, (x, out), (y,), (step,), {x: FOUR, y: FOUR, out: FOUR})
    source = backend.ocannl_generate(KernelStream.of(plan), TARGET)
    assert source.language == "c"
    assert source.text == snapshot("""\
#include <stdint.h>

// multiply-adds round twice: the target has no fused ones

static void k_932e71727cf5b533_body(const float *restrict a0, float *restrict a1) {
  for (int64_t i = 0; i < 4; ++i) {
    a1[i] = a0[i] + 1.0f;
  }
}

void k_932e71727cf5b533(void *const *args) {
  k_932e71727cf5b533_body(args[0], args[1]);
}

static void k_e377ab3e9fa2622c_body(float *restrict a0, int64_t s0) {
  a0[0] = (float)s0;
}

void k_e377ab3e9fa2622c(void *const *args) {
  k_e377ab3e9fa2622c_body(args[0], *(const int64_t *)args[1]);
}

// show me runs:
//     1  k_932e71727cf5b533  the first title
//        a0 = x, a1 = y
//     2  reverse(y) -> out
//     3  k_e377ab3e9fa2622c  number the step
//        a0 = out, s0 = step
""")


def test_the_device_is_synchronous():
    assert not hasattr(backend, "ocannl_synchronize")
