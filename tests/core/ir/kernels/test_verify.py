"""Every invariant of the kernel language, broken once; plans between kernel passes keep them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ocannl_core.base.errors import VerifyError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.indexing import StaticIndex, VarIndex, affine, fresh_var
from ocannl_core.ir.kernels.nest import Reduction
from ocannl_core.ir.kernels.nest_plan import NestKernel, NestPlan, NestStep
from ocannl_core.ir.kernels.nest_recognition import kernel_nest
from ocannl_core.ir.kernels.nodes import HostCall, kernel_of
from ocannl_core.ir.kernels.row_fusion import Member, RowFusion
from ocannl_core.ir.loops.nodes import (
    Block,
    CallExternal,
    Const,
    Fill,
    IndexValue,
    Load,
    Local,
    LocalRead,
)
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.ir.target import Target
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.programs import Example
from tests.support.example_count import example_count
from tests.support.external_calls import CopyCall
from tests.support.plans import ANY_PROGRAM, HAND_MADE, TARGETS, plans
from tests.support.verify_plans import verify

A, C, S, T, UNKNOWN = (TensorNode(n, (name,)) for n, name in enumerate("acstu"))
NODES = {node: NodeInfo(float32, (4, 4)) for node in (A, C, S, T)}
I, J = fresh_var("i"), fresh_var("j")  # noqa: E741
STEP = StaticIndex("step", 4)
AT = (VarIndex(I), VarIndex(J))
STORE = Draft("d", dict(NODES)).store(C, I, J, value=Load(A, AT, float32))
FOUND = kernel_nest(Block((loop(I, 4, loop(J, 4, STORE)),)))
assert FOUND is not None
NEST = FOUND
TO_S = replace(NEST, epilogue=(replace(STORE, node=S),))
FILL = kernel_of(Block((Fill(S, 0.0),)))
SUM = replace(
    NEST,
    axes=(NEST.axes[0], replace(NEST.axes[1], is_reduced=True)),
    reduction=Reduction(BinaryOp.ADD, Load(A, AT, float32), Const(0.0, float32), Local(0, float32)),
    epilogue=(replace(STORE, indices=AT[:1] * 2, value=LocalRead(Local(0, float32))),),
)
assert SUM.reduction is not None


def plan(*steps: NestStep) -> NestPlan:
    return NestPlan("broken", (*steps, FILL), (A, C), (S,), (STEP,), NODES)


def nest(**changes: Any) -> NestPlan:
    return plan(NestKernel(replace(NEST, **changes)))


def group(**changes: Any) -> NestPlan:
    members = tuple(Member(each, ("i",)) for each in (TO_S, NEST))
    fusion = replace(RowFusion(members, folded=(S,)), **changes)
    return plan(fusion)


def summed(**changes: Any) -> NestPlan:
    assert SUM.reduction is not None
    return plan(NestKernel(replace(SUM, reduction=replace(SUM.reduction, **changes))))


I_AXIS, J_AXIS = NEST.axes
COPY = HostCall(CallExternal(CopyCall(), (A,), (C,)))
BROKEN = {
    "is a parameter twice": replace(plan(), params=(A, C, A)),
    "is both a parameter and a scratch node": replace(plan(), params=(A, C, S)),
    "is a parameter but not in the table of nodes": replace(plan(), params=(A, C, UNKNOWN)),
    "is mentioned by no step": replace(plan(), scratch=(S, T)),
    "is listed twice": plan(replace(FILL, arguments=(S, S))),
    "is not mentioned by the body": plan(replace(FILL, arguments=(S, A))),
    "which is no argument": plan(replace(FILL, arguments=())),
    "static index StaticIndex": plan(replace(FILL, indices=(STEP,))),
    "neither a parameter nor a scratch node": plan(kernel_of(Block((Fill(T, 0.0),)))),
    "statements outside parallel loops": plan(replace(FILL, is_parallel=True)),
    "is not one of the program": nest(
        epilogue=(replace(STORE, value=IndexValue(VarIndex(StaticIndex("other")), float32)),)
    ),
    "two axes have the name i": nest(axes=(I_AXIS, replace(J_AXIS, name="i"))),
    "two axes have the variable": nest(axes=(I_AXIS, replace(J_AXIS, var=I))),
    "is no name of an axis": nest(axes=(I_AXIS, replace(J_AXIS, name="x"))),
    "has the extent -1": nest(axes=(I_AXIS, replace(J_AXIS, extent=-1))),
    "is shifting, but not reduced": nest(axes=(I_AXIS, replace(J_AXIS, is_shifting=True))),
    "the nest has no reduction": nest(axes=(I_AXIS, replace(J_AXIS, is_reduced=True))),
    "the nest stores nothing": nest(epilogue=()),
    "an iteration depends on": nest(
        epilogue=(replace(STORE, value=Load(C, (AT[1], AT[0]), float32)),)
    ),
    "axis 1 reaches 1..4": nest(epilogue=(replace(STORE, indices=(AT[0], affine([(1, J)], 1))),)),
    "the term of the reduction reads its result": summed(term=LocalRead(Local(0, float32))),
    "is not associative": summed(op=BinaryOp.SUB),
    "has no axis k": group(members=(Member(TO_S, ("k",)), Member(NEST, ("i",)))),
    "a row group of 0 rows": group(size=0),
    "runs along no earlier one": group(along=frozenset({0})),
    "is folded, but no scratch node": group(folded=(C,)),
    "is streamed, but not written row by row": group(streamed=(A,)),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_invariant_is_found(rule: str) -> None:
    with pytest.raises(VerifyError) as caught:
        verify(BROKEN[rule])
    assert rule in caught.value.found


@pytest.mark.parametrize("valid", [plan(), nest(), group(), summed(), plan(COPY)])
def test_valid_plans_pass(valid: NestPlan) -> None:
    verify(valid)


@pytest.mark.parametrize("make", HAND_MADE, ids=lambda make: make.__name__)
def test_kernel_passes_keep_the_invariants_of_programs_made_by_hand(
    make: Callable[[], Example],
) -> None:
    for found in plans(make().program, TARGETS[0]):
        verify(found)


@settings(max_examples=example_count(50), deadline=None, suppress_health_check=list(HealthCheck))
@given(example=ANY_PROGRAM, target=st.sampled_from(TARGETS))
def test_kernel_passes_keep_the_invariants(example: Example, target: Target) -> None:
    for found in plans(example.program, target):
        verify(found)
