"""The printed text of plans."""

from __future__ import annotations

from inline_snapshot import snapshot

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.indexing import StaticIndex, fresh_var
from ocannl_core.ir.kernels.nest import LoopAxis
from ocannl_core.ir.kernels.nest_plan import NestKernel, NestPlan, NestStep
from ocannl_core.ir.kernels.nest_recognition import kernel_nest
from ocannl_core.ir.kernels.nodes import HostCall, Plan, kernel_of
from ocannl_core.ir.kernels.printer import to_text
from ocannl_core.ir.kernels.row_fusion import Member, RowFusion
from ocannl_core.ir.kernels.transforms import parse_schedule
from ocannl_core.ir.loops.nodes import (
    AxisKind,
    Binary,
    Block,
    CallExternal,
    Const,
    Fill,
    IndexValue,
    Stmt,
    Unary,
)
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import float32, int32
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.testing.drafts import Draft, at, loop
from tests.support.external_calls import CopyCall

I, J, K = fresh_var("i"), fresh_var("j"), fresh_var("k")  # noqa: E741
STEP = StaticIndex("step", 10)


def nest_plan(draft: Draft, *steps: NestStep, indices: tuple[StaticIndex, ...] = ()) -> NestPlan:
    program = draft.program()
    return NestPlan(
        "demo", steps, program.params, tuple(draft_scratch(draft)), indices, draft.nodes
    )


def draft_scratch(draft: Draft) -> list[TensorNode]:
    params = draft.program().params
    return [node for node in draft.nodes if node not in params]


def nest(stmt: Stmt, title: str = "") -> NestKernel:
    found = kernel_nest(Block((stmt,)))
    assert found is not None
    return NestKernel(found, title)


def product(draft: Draft) -> NestKernel:
    a, b = draft.node("a", float32, 4, 6), draft.node("b", float32, 6, 5)
    c = draft.node("c", float32, 4, 5)
    value = Binary(BinaryOp.MUL, draft.load(a, I, K), draft.load(b, K, J), float32)
    update = draft.accumulate(c, I, J, op=BinaryOp.ADD, value=value)
    return nest(loop(I, 4, loop(J, 5, loop(K, 6, update))), "c = a @ b")


def test_a_nest_has_axes_a_reduction_and_an_epilogue() -> None:
    draft = Draft("demo")
    kernel = product(draft)
    assert to_text(nest_plan(draft, kernel)) == snapshot("""\
plan demo(a: float32[4, 6], b: float32[6, 5], c: float32[4, 5]):
    nest c = a @ b:
        axes i in range(4), j in range(5), reduce k in range(6)
        result: float32 = c[i, j]
        result += a[i, k] * b[k, j]
        c[i, j] = result\
""")
    reduction = kernel.nest.reduction
    assert reduction is not None
    relaxed = replace(reduction, is_fast=True, initial=Const(0.0, float32))
    fast = NestKernel(replace(kernel.nest, reduction=relaxed), "of\ntwo  lines")
    assert to_text(nest_plan(draft, fast)) == snapshot("""\
plan demo(a: float32[4, 6], b: float32[6, 5], c: float32[4, 5]):
    fast nest of two lines:
        axes i in range(4), j in range(5), reduce k in range(6)
        result: float32 = 0.0
        result += a[i, k] * b[k, j]
        c[i, j] = result\
""")


def test_axes_have_starts_kinds_and_the_letters_of_schedules() -> None:
    draft = Draft("demo")
    i, source = draft.node("i", int32, 12), draft.node("j", int32, 4)
    store = draft.accumulate(i, I, op=BinaryOp.ADD, value=draft.load(source, J))
    found = nest(loop(I, 4, loop(J, 3, store))).nest
    axes = (
        LoopAxis("i", I, 2, 4),
        LoopAxis("j", J, 0, 3, is_reduced=True),
        LoopAxis("k", K, 1, 2, is_reduced=True, is_shifting=True),
    )
    assert to_text(nest_plan(draft, NestKernel(replace(found, axes=axes)))) == snapshot("""\
plan demo(i: int32[12], j: int32[4]):
    nest:
        axes i as i1 in range(2, 6), reduce j as j1 in range(3), shift k in range(1, 3)
        result: int32 = i[i1]
        result += j[j1]
        i[i1] = result\
""")


def test_a_kernel_has_a_schedule_and_a_call_its_title() -> None:
    draft = Draft("demo")
    a, b = draft.node("a", float32, 8), draft.node("b", float32, 8)
    t = draft.scratch("t", float32, 8)
    parallel = loop(I, 8, draft.store(b, I, value=draft.load(t, I)), kind=AxisKind.PARALLEL)
    stepped = loop(
        I, 8, draft.store(a, I, value=IndexValue(at(STEP)[0], float32)), kind=AxisKind.VECTOR
    )
    steps = (
        replace(kernel_of(Block((stepped,)), "a = step"), schedule=parse_schedule("vectorize i")),
        HostCall(CallExternal(CopyCall(), (a,), (t,)), "copy"),
        replace(kernel_of(Block((parallel, Fill(a, 0.0)))), is_parallel=True),
    )
    plan = Plan("demo", steps, (a, b), (t,), (STEP,), draft.nodes)
    assert to_text(plan) == snapshot("""\
plan demo(a: float32[8], b: float32[8], static step < 10):
    scratch t: float32[8]
    kernel a = step:
        schedule vectorize i
        for i in vector(8):
            a[i] = float32(step)
    host copy:
        t = call copy(a)
    parallel kernel:
        for i in parallel(8):
            b[i] = t[i]
        a[:] = 0.0\
""")


def test_a_row_group_has_members_with_their_rows() -> None:
    draft = Draft("demo")
    x, y = draft.node("x", float32, 4, 6), draft.node("y", float32, 4, 6)
    e = draft.scratch("e", float32, 4, 6)
    first = draft.store(e, I, J, value=Unary(UnaryOp.EXP, draft.load(x, I, J), float32))
    second = draft.store(y, I, J, value=Unary(UnaryOp.NEG, draft.load(e, I, J), float32))
    kernels = tuple(
        nest(loop(I, 4, loop(J, 6, stmt)), title) for stmt, title in ((first, "e"), (second, "y"))
    )
    members = tuple(Member(each.nest, ("i",), each.title) for each in kernels)
    fusion = RowFusion(members, 2, 3, frozenset({1}), (e,), (), (y,))
    assert to_text(nest_plan(draft, fusion)) == snapshot("""\
plan demo(x: float32[4, 6], y: float32[4, 6]):
    scratch e: float32[4, 6]
    rows:
        fold e
        stream y
        nest e:
            rows i by 2 in 3
            axes i in range(4), j in range(6)
            e[i, j] = exp(x[i, j])
        nest y:
            rows i along
            axes i in range(4), j in range(6)
            y[i, j] = -e[i, j]\
""")


def test_a_plan_without_steps_is_a_header() -> None:
    assert to_text(Plan("nothing", (), (), (), (), {})) == snapshot("""\
plan nothing():
    pass\
""")
