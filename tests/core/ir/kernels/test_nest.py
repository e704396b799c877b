"""Kernel nests read from loops, and loops that are refused."""

from __future__ import annotations

from ocannl_core.ir.indexing import VarIndex, affine, fresh_var
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_recognition import kernel_nest
from ocannl_core.ir.loops.nodes import (
    AxisKind,
    Binary,
    Block,
    Const,
    DeclareLocal,
    Expr,
    For,
    IndexValue,
    Load,
    Local,
    LocalRead,
    Remark,
    Scoped,
    SetLocal,
    Stmt,
    Store,
    Ternary,
    Unary,
)
from ocannl_core.ir.numbers.dtypes import DType, bfloat16, float32, int64
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp
from ocannl_core.testing.drafts import Draft, at, loop

I, J, K = fresh_var("i"), fresh_var("j"), fresh_var("k")  # noqa: E741
DRAFT = Draft("cells")
A, B, C = (DRAFT.node(name, float32, 8, 8) for name in "abc")
V = DRAFT.node("v", float32, 8)
AIK, BKJ, CIJ = DRAFT.load(A, I, K), DRAFT.load(B, K, J), DRAFT.load(C, I, J)
PRODUCT = Binary(BinaryOp.MUL, AIK, BKJ, float32)


def nested(stmt: Stmt) -> Block:
    return Block((Remark("why"), loop(I, 4, loop(J, 5, loop(K, 6, stmt)))))


def read(body: Block) -> Nest:
    nest = kernel_nest(body)
    assert nest is not None
    return nest


def test_a_matrix_product_is_cells_and_a_reduced_axis() -> None:
    nest = read(nested(DRAFT.accumulate(C, I, J, op=BinaryOp.ADD, value=PRODUCT)))
    assert [(axis.name, axis.extent, axis.is_reduced) for axis in nest.axes] == [
        ("i", 4, False),
        ("j", 5, False),
        ("k", 6, True),
    ]
    assert nest.reduction is not None
    assert nest.reduction.factors == (AIK, BKJ)
    assert nest.is_resumable


def test_a_fused_accumulation_is_a_sum_of_products() -> None:
    fused = Ternary(TernaryOp.FMA, AIK, BKJ, CIJ, float32)
    plain = read(nested(DRAFT.accumulate(C, I, J, op=BinaryOp.ADD, value=PRODUCT)))
    assert read(nested(DRAFT.store(C, I, J, value=fused))) == plain


def test_a_difference_is_a_sum_with_the_negated_subtrahend() -> None:
    nest = read(nested(DRAFT.accumulate(C, I, J, op=BinaryOp.SUB, value=AIK)))
    assert nest.reduction is not None
    assert (nest.reduction.op, nest.reduction.term) == (
        BinaryOp.ADD,
        Unary(UnaryOp.NEG, AIK, float32),
    )


def test_an_inlined_reduction_is_finished_by_its_reader() -> None:
    total = Local(3, float32)
    added = Binary(BinaryOp.ADD, LocalRead(total), PRODUCT, float32)
    body = Block((SetLocal(total, Const(0.0, float32)), loop(K, 6, SetLocal(total, added))))
    summed = Binary(BinaryOp.ADD, Scoped(total, body), DRAFT.load(V, J), float32)
    stmt = DRAFT.store(C, I, J, value=Unary(UnaryOp.RELU, summed, float32))
    nest = read(Block((loop(I, 4, loop(J, 5, stmt)),)))
    assert nest.reduction is not None
    assert nest.reduction.term == PRODUCT
    assert nest.reduction.starts_neutral
    assert [axis.name for axis in nest.reduced] == ["k"]
    result = LocalRead(nest.reduction.result)
    finished = Binary(BinaryOp.ADD, result, DRAFT.load(V, J), float32)
    assert nest.epilogue == (Store(C, at(I, J), Unary(UnaryOp.RELU, finished, float32)),)
    assert not nest.is_resumable


def test_assignments_behind_an_inlined_reduction_are_part_of_its_finish() -> None:
    total, copy, power = Local(3, float32), Local(4, float32), Local(5, float32)
    added = Binary(BinaryOp.ADD, LocalRead(total), PRODUCT, float32)
    sums = (SetLocal(total, Const(0.0, float32)), loop(K, 6, SetLocal(total, added)))

    def square(of: Local) -> Expr:
        return Binary(BinaryOp.MUL, LocalRead(of), LocalRead(of), float32)

    squared = Scoped(total, Block((*sums, SetLocal(total, square(total)))))
    copied = SetLocal(copy, Scoped(total, Block(sums)))
    cubed = Binary(BinaryOp.MUL, square(copy), LocalRead(copy), float32)
    steps = (DeclareLocal(copy), copied, SetLocal(power, cubed))
    for value, factors in ((squared, 2), (Scoped(power, Block(steps)), 3)):
        nest = read(Block((loop(I, 4, loop(J, 5, DRAFT.store(C, I, J, value=value))),)))
        assert nest.reduction is not None
        assert nest.reduction.term == PRODUCT
        result: Expr = LocalRead(nest.reduction.result)
        finish = result
        for _ in range(factors - 1):
            finish = Binary(BinaryOp.MUL, finish, result, float32)
        assert nest.epilogue == (Store(C, at(I, J), finish),)


def test_an_inlined_value_with_many_copies_stays_as_it_is() -> None:
    v = Local(3, float32)
    doubled = SetLocal(v, Binary(BinaryOp.ADD, LocalRead(v), LocalRead(v), float32))
    for times, is_nest in ((4, True), (5, False)):
        body = Block((SetLocal(v, DRAFT.load(V, I)), *[doubled] * times))
        stmt = DRAFT.store(A, I, 0, value=Scoped(v, body))
        assert (kernel_nest(Block((loop(I, 4, stmt),))) is not None) is is_nest


def test_an_inlined_reduction_without_outer_loops_is_a_nest_of_one_cell() -> None:
    total = Local(3, float32)
    added = Binary(BinaryOp.ADD, LocalRead(total), DRAFT.load(V, K), float32)
    body = Block((SetLocal(total, Const(0.0, float32)), loop(K, 6, SetLocal(total, added))))
    half = Const(0.5, float32)
    store = DRAFT.store(C, 0, 0, value=Binary(BinaryOp.MUL, Scoped(total, body), half, float32))
    nest = read(Block((Remark("why"), store)))
    assert nest.output_axes == ()
    assert [(axis.name, axis.extent) for axis in nest.reduced] == [("i", 6)]
    assert nest.reduction is not None
    assert nest.reduction.term == DRAFT.load(V, K)
    result = LocalRead(nest.reduction.result)
    assert nest.epilogue == (Store(C, at(0, 0), Binary(BinaryOp.MUL, result, half, float32)),)
    assert kernel_nest(Block((DRAFT.store(C, 0, 0, value=half),))) is None
    assert kernel_nest(Block((DRAFT.accumulate(C, 0, 0, op=BinaryOp.ADD, value=half),))) is None


def test_an_update_by_an_inlined_reduction_is_its_finish() -> None:
    total = Local(3, float32)
    added = Binary(BinaryOp.ADD, LocalRead(total), PRODUCT, float32)
    body = Block((SetLocal(total, Const(0.0, float32)), loop(K, 6, SetLocal(total, added))))
    rate = Const(-0.1, float32)
    stepped = Ternary(TernaryOp.FMA, rate, Scoped(total, body), CIJ, float32)
    plain = Binary(BinaryOp.ADD, CIJ, Scoped(total, body), float32)
    for value in (stepped, plain):
        nest = read(Block((loop(I, 4, loop(J, 5, DRAFT.store(C, I, J, value=value))),)))
        assert nest.reduction is not None
        assert nest.reduction.term == PRODUCT
        assert [axis.name for axis in nest.reduced] == ["k"]


def test_a_sum_that_numbers_choose_runs_always_and_one_that_positions_guard_does_not() -> None:
    total = Local(3, float32)
    added = Binary(BinaryOp.ADD, LocalRead(total), PRODUCT, float32)
    body = Block((SetLocal(total, Const(0.0, float32)), loop(K, 6, SetLocal(total, added))))

    def chosen(condition: Expr) -> Nest | None:
        rest = Const(-9.0, float32)
        value = Ternary(TernaryOp.WHERE, condition, Scoped(total, body), rest, float32)
        store = DRAFT.store(C, I, J, value=value)
        return kernel_nest(Block((loop(I, 4, loop(J, 5, store)),)))

    nest = chosen(DRAFT.load(V, J))
    assert nest is not None
    assert nest.reduction is not None
    assert nest.reduction.term == PRODUCT
    assert chosen(IndexValue(VarIndex(J), float32)) is None


def test_stores_without_a_reduction_are_all_finish() -> None:
    store = DRAFT.store(C, I, J, value=DRAFT.load(V, J))
    nest = read(Block((loop(I, 4, loop(J, 5, store)),)))
    assert (nest.reduction, nest.epilogue) == (None, (store,))


def test_one_number_added_to_each_cell_is_no_reduction() -> None:
    store = DRAFT.accumulate(C, I, J, op=BinaryOp.ADD, value=DRAFT.load(V, J))
    nest = read(Block((loop(I, 4, loop(J, 5, store)),)))
    assert (nest.reduction, nest.epilogue) == (None, (store,))


def test_the_shorter_axis_of_a_window_shifts_the_cells() -> None:
    index = affine([(1, I), (1, K)])
    update = DRAFT.accumulate(V, index, op=BinaryOp.ADD, value=DRAFT.load(A, I, K))
    nest = read(Block((loop(I, 5, loop(K, 3, update)),)))
    assert [(axis.name, axis.is_shifting) for axis in nest.axes] == [("i", False), ("j", True)]


def unreadable(body: Block) -> bool:
    return kernel_nest(body) is None


def test_a_term_that_reads_the_result_is_refused() -> None:
    term = Binary(BinaryOp.MUL, AIK, DRAFT.load(C, I, K), float32)
    assert unreadable(nested(DRAFT.accumulate(C, I, J, op=BinaryOp.ADD, value=term)))


def test_a_running_sum_is_refused() -> None:
    previous = DRAFT.load(V, I)
    update = DRAFT.accumulate(V, affine([(1, I)], 1), op=BinaryOp.ADD, value=previous)
    assert unreadable(Block((loop(I, 5, update),)))


def test_a_cell_that_is_stored_again_and_again_is_refused() -> None:
    assert unreadable(nested(DRAFT.store(C, I, J, value=AIK)))


def test_operations_whose_order_matters_are_refused() -> None:
    for op in (BinaryOp.DIV, BinaryOp.POW, BinaryOp.RELU_GATE):
        assert unreadable(nested(DRAFT.accumulate(C, I, J, op=op, value=AIK)))


def of_format(dtype: DType, op: BinaryOp) -> Stmt:
    draft = Draft("formats")
    a, c = draft.node("a", dtype, 8, 8), draft.node("c", dtype, 8, 8)
    return nested(draft.accumulate(c, I, J, op=op, value=draft.load(a, I, K)))


def test_the_limits_of_wide_integers_are_refused() -> None:
    assert unreadable(of_format(int64, BinaryOp.MAX))


def test_sums_of_narrow_floats_round_often_and_their_limits_do_not() -> None:
    for op, rounds in ((BinaryOp.ADD, True), (BinaryOp.MUL, True), (BinaryOp.MAX, False)):
        nest = kernel_nest(Block((of_format(bfloat16, op),)))
        assert nest is not None
        assert nest.rounds_often == rounds


def test_loops_that_a_device_runs_are_left_alone() -> None:
    update = DRAFT.accumulate(C, I, J, op=BinaryOp.ADD, value=AIK)
    inner = loop(J, 5, loop(K, 6, update))
    assert unreadable(Block((For(I, 0, 4, Block((inner,)), AxisKind.GRID),)))


def test_several_statements_in_a_loop_are_refused_unless_all_store() -> None:
    store = DRAFT.store(C, I, J, value=Load(V, at(J), float32))
    inner = loop(K, 2, DRAFT.accumulate(V, J, op=BinaryOp.ADD, value=AIK))
    assert unreadable(Block((loop(I, 4, loop(J, 5, store, inner)),)))


def test_a_disjunction_is_the_greatest_of_truths_and_a_conjunction_the_least() -> None:
    for op, limit in ((BinaryOp.OR, BinaryOp.MAX), (BinaryOp.AND, BinaryOp.MIN)):
        nest = read(Block((nested(DRAFT.accumulate(C, I, J, op=op, value=AIK)),)))
        assert nest.reduction is not None
        zero = Const(0, float32)
        assert nest.reduction.op is limit
        assert nest.reduction.term == Binary(BinaryOp.NE, AIK, zero, float32)
        assert nest.reduction.initial == Binary(BinaryOp.NE, CIJ, zero, float32)
