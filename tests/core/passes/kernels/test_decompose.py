"""Primitives that a target lacks become others, with the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from ocannl_core.ir.kernels.nodes import Kernel, unchanged
from ocannl_core.ir.kernels.stream import map_steps
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.dtypes import DType, float32
from ocannl_core.ir.numbers.expansions import DECOMPOSITIONS, TWICE_ROUNDED, decomposable
from ocannl_core.ir.numbers.primitives import (
    EVERY_PRIMITIVE,
    BinaryOp,
    Op,
    TernaryOp,
    UnaryOp,
    primitives_of,
)
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.decompose import with_decomposition
from ocannl_core.passes.kernels.pipeline import finish_for, finish_kernel
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.testing import number_programs
from ocannl_core.testing.compare import Tolerance, assert_same
from ocannl_core.testing.primitive_tables import primitives, tolerance
from ocannl_core.testing.subject import subject_named
from tests.support.limited_backend import all_but

NUMBERS = tuple(
    each for each in dtypes.ALL if each.kind is not dtypes.Kind.WORD and not each.is_packed
)


def target_without(*lacking: Op) -> Target:
    return Target("interp", primitives=all_but(*lacking))


def finished(program: ir.LoopProgram, target: Target) -> list[str]:
    """Return the names of the primitives in the kernels of a program for a target."""
    plan = map_steps(split_kernels(program), with_decomposition(unchanged, target))
    ops = set()
    for step in plan.kernels:
        assert isinstance(step, Kernel)
        for each in walk(step.body):
            if isinstance(each, ir.Unary | ir.Binary | ir.Ternary):
                ops.add(each.op.value.name)
    return sorted(ops)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("op", DECOMPOSITIONS, ids=lambda op: op.value.name)
def test_a_decomposition_has_the_bits_of_the_primitive(op: Op, dtype: DType) -> None:
    if op not in primitives(dtype) or (op is BinaryOp.SUB and dtype is dtypes.bool_):
        return
    interp = subject_named("interp")
    program, arrays, outputs = number_programs.every_primitive(dtype, [op])
    expected = interp.run(program, arrays)[outputs[op]]
    rule = with_decomposition(unchanged, target_without(op))
    found = interp.run(program, arrays, schedule=lambda plan, target: map_steps(plan, rule))
    assert op.value.name not in finished(program, target_without(op))
    if op in TWICE_ROUNDED and dtype in (dtypes.float32, dtypes.float64):
        a, b, c = arrays.values()
        with np.errstate(all="ignore"):
            expected = a * b + c
    accepted = (
        Tolerance(ulps=1) if op in TWICE_ROUNDED and dtype.is_narrow else tolerance(op, dtype)
    )
    assert_same(found[outputs[op]], expected, dtype, accepted, str(op))


def test_bools_are_subtracted_by_the_primitive_alone() -> None:
    program, _, _ = number_programs.every_primitive(dtypes.bool_, [BinaryOp.SUB])
    assert finished(program, target_without(BinaryOp.SUB)) == ["sub"]


def test_decompositions_use_others_in_turn() -> None:
    lacking = (UnaryOp.RECIP_SQRT, BinaryOp.MAX, BinaryOp.LE)
    assert set(lacking) <= decomposable(frozenset(lacking))
    program, _, _ = number_programs.every_primitive(float32, lacking)
    found = finished(program, target_without(*lacking))
    assert found == ["add", "div", "eq", "lt", "or", "sqrt", "where"]


def test_circles_and_dead_ends_are_not_decomposed() -> None:
    assert not decomposable(frozenset({UnaryOp.NEG, BinaryOp.SUB}))
    assert not decomposable(frozenset({BinaryOp.ADD, TernaryOp.FMA}))
    assert not decomposable(frozenset({UnaryOp.TANH}))


def test_a_narrow_format_needs_float32_for_functions() -> None:
    program, _, _ = number_programs.every_primitive(dtypes.bfloat16, [UnaryOp.RECIP_SQRT])
    lacking = all_but(UnaryOp.RECIP_SQRT)
    assert "recip_sqrt" not in finished(program, Target("t", primitives=lacking))
    narrow = Target("t", primitives=lacking, formats=(dtypes.bfloat16,))
    assert "recip_sqrt" in finished(program, narrow)


def test_an_earlier_version_has_the_primitives_of_its_time() -> None:
    assert primitives_of((1, 1)) == EVERY_PRIMITIVE
    assert set(EVERY_PRIMITIVE) - set(primitives_of((1, 0))) == {UnaryOp.BITCAST}
    assert primitives_of((0, 9)) == ()


def test_targets_that_state_nothing_keep_their_rule() -> None:
    target = Target("t")
    assert with_decomposition(unchanged, target) is unchanged
    assert finish_for(target) is finish_kernel
