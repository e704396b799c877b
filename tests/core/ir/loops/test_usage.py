"""Read and writes of a loop program, and the bounds of its static indices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ocannl_core.ir.indexing import (
    AxisIndex,
    FixedIndex,
    StaticIndex,
    VarIndex,
    affine,
    fresh_var,
    value_of,
)
from ocannl_core.ir.loops.nodes import (
    Allocate,
    Binary,
    Block,
    CallExternal,
    Const,
    DeclareLocal,
    Expr,
    Fill,
    For,
    Gather,
    IndexValue,
    Load,
    Local,
    LocalRead,
    LoopProgram,
    Scope,
    Scoped,
    SetLocal,
    Stmt,
    Store,
    StoreVector,
)
from ocannl_core.ir.loops.usage import Usage, usage_of
from ocannl_core.ir.node import Margin, NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import float32, int32
from ocannl_core.ir.numbers.primitives import BinaryOp

A, B, C = (TensorNode(i, (name,)) for i, name in enumerate("abc"))
ONE = Const(1.0, float32)


def load(node: TensorNode, *indices: AxisIndex) -> Load:
    return Load(node, indices, float32)


def store(node: TensorNode, value: Expr, *indices: AxisIndex) -> Store:
    return Store(node, indices, value)


def usage(
    *stmts: Stmt, dims: tuple[int, ...] = (10,), params: tuple[TensorNode, ...] = (A, B, C)
) -> Usage:
    infos = {node: NodeInfo(float32, dims) for node in (A, B, C)}
    return usage_of(LoopProgram("test", params, (), infos, Block(stmts)))


def test_a_node_stored_before_it_is_loaded_needs_no_value() -> None:
    i = FixedIndex(0)
    found = usage(store(A, load(B, i), i), store(C, load(A, i), i))
    assert found.reads == {A, B}
    assert found.reads_first == {B}
    assert found.writes == {A, C}


def test_an_accumulation_reads_its_target() -> None:
    i = FixedIndex(0)
    add = store(A, Binary(BinaryOp.ADD, load(A, i), ONE, float32), i)
    assert usage(add).reads_first == {A}
    assert usage(Fill(A, 0.0), add).reads_first == frozenset()


def test_a_loop_that_never_runs_does_nothing() -> None:
    var = fresh_var()
    body = Block((store(A, load(B, VarIndex(var)), VarIndex(var)),))
    found = usage(For(var, 3, 3, body), store(C, load(A, FixedIndex(0)), FixedIndex(0)))
    assert found.reads == {A}
    assert found.writes == {C}
    assert found.reads_first == {A}


@pytest.mark.parametrize(("start", "is_interior"), [(0, False), (3, True), (12, False)])
def test_filling_the_margins_of_a_node_gives_it_no_value(start: int, is_interior: bool) -> None:
    var = fresh_var()
    info = NodeInfo(float32, (10,), (Margin(2, 2),))
    fill = For(var, start, start + 2, Block((store(A, ONE, VarIndex(var)),)))
    read = store(B, load(A, VarIndex(var)), FixedIndex(0))
    infos = {A: info, B: NodeInfo(float32, (1,))}
    stmts = Block((fill, For(var, 0, 14, Block((read,)))))
    found = usage_of(LoopProgram("test", (A, B), (), infos, stmts))
    assert found.writes == ({A, B} if is_interior else {B})
    assert found.reads_first == (set() if is_interior else {A})


def test_scratch_is_no_business_of_the_context() -> None:
    i = FixedIndex(0)
    found = usage(
        Allocate(B, Scope.ROUTINE), store(B, ONE, i), store(A, load(B, i), i), params=(A,)
    )
    assert found.reads == frozenset()
    assert found.writes == {A}


def test_inlined_code_and_computed_positions_read() -> None:
    i = FixedIndex(0)
    local = Local(0, float32)
    inlined = Scoped(local, Block((DeclareLocal(local), SetLocal(local, load(B, i)))))
    gathered = Gather(C, (i,), 0, LocalRead(local), float32)
    assert usage(store(A, inlined, i)).reads == {B}
    assert usage(store(A, gathered, i)).reads == {C}


def test_an_external_call_reads_its_inputs_and_writes_its_outputs() -> None:
    class Nothing:
        name = "nothing"

        def perform(self, inputs: object, outputs: object) -> None:
            return

    found = usage(CallExternal(Nothing(), (A, B), (C,)))
    assert (found.reads_first, found.writes) == ({A, B}, {C})


def test_deeply_nested_expressions_do_not_exhaust_the_stack() -> None:
    value: Expr = load(A, FixedIndex(0))
    for _ in range(20_000):
        value = Binary(BinaryOp.ADD, value, ONE, float32)
    assert usage(store(B, value, FixedIndex(0))).reads == {A}


def test_an_index_that_addresses_an_axis_is_bounded_by_it() -> None:
    index = StaticIndex("i")
    (limit,) = usage(store(A, ONE, VarIndex(index))).limits
    assert limit.as_range() == range(10)
    assert limit.node is A


def test_an_index_that_is_only_a_number_is_not_bounded() -> None:
    value = IndexValue(VarIndex(StaticIndex("i")), int32)
    assert usage(store(A, value, FixedIndex(0))).limits == ()


def test_a_computed_position_bounds_nothing() -> None:
    index = VarIndex(StaticIndex("i"))
    gathered = Gather(C, (FixedIndex(0),), 0, IndexValue(index, float32), float32)
    assert usage(store(A, gathered, FixedIndex(0))).limits == ()


def test_a_vector_store_needs_room_for_all_its_cells() -> None:
    index = StaticIndex("i")
    (limit,) = usage(StoreVector(A, (VarIndex(index),), 4, ONE)).limits
    assert limit.as_range() == range(7)


@given(
    coefficient=st.integers(-3, 3).filter(bool),
    loop_coefficient=st.integers(-2, 2),
    offset=st.integers(-6, 6),
    start=st.integers(0, 2),
    length=st.integers(1, 4),
    extent=st.integers(1, 10),
)
def test_a_limit_allows_exactly_the_values_that_stay_inside(
    coefficient: int, loop_coefficient: int, offset: int, start: int, length: int, extent: int
) -> None:
    index, var = StaticIndex("i"), fresh_var()
    position = affine([(coefficient, index), (loop_coefficient, var)], offset)
    loop = For(var, start, start + length, Block((store(A, ONE, position),)))
    limits = usage(loop, dims=(extent,)).limits
    (limit,) = limits
    for value in range(-30, 30):
        stays = all(
            0 <= value_of(position, {index: value, var: at}) < extent
            for at in range(start, start + length)
        )
        assert (value in limit.as_range()) == stays


def test_two_indices_on_one_axis_are_bounded_together() -> None:
    i, j = StaticIndex("i"), StaticIndex("j")
    (limit,) = usage(store(A, ONE, affine([(2, i), (1, j)], 1))).limits
    assert {var: coefficient for coefficient, var in limit.terms} == {i: 2, j: 1}
    assert (limit.low, limit.high) == (-1, 8)
