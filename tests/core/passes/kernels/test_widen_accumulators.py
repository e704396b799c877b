"""Sum of narrow floats in float32, and products of pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from ocannl_core.base.errors import UsageError
from ocannl_core.ir.indexing import fresh_var
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_plan import NestKernel, NestPlan
from ocannl_core.ir.kernels.nest_recognition import kernel_nest
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.kernels.transforms import parse_schedule
from ocannl_core.ir.kernels.transforms import schedule_text as schedule_text
from ocannl_core.ir.loops.nodes import Allocate, Binary, Block, Const, LoopProgram, Scope, Stmt
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import NARROW, DType, bfloat16, float16, float32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.widen_accumulators import widen_accumulators
from ocannl_core.schedule.apply.apply_schedule import apply_schedule
from ocannl_core.testing.drafts import Draft, Place, loop
from ocannl_core.testing.programs import Example
from tests.support import matrix_units
from tests.support.reductions import in_format, random_reductions
from tests.support.schedules import contraction_schedule

Interpret = Callable[..., dict[TensorNode, Any]]
I, J, K = fresh_var("i"), fresh_var("j"), fresh_var("k")  # noqa: E741
PAIRS = Target(
    "pairs",
    vector_bytes=64,
    vector_registers=32,
    has_fma=True,
    cache_bytes=(1 << 15, 1 << 20),
    matrix_units=(matrix_units.PAIRS,),
)


def product(
    rows: int, terms: int, columns: int, dtype: DType = bfloat16, first: str = "ik"
) -> tuple[Draft, Nest]:
    """Return `c[i, j] += a[i, k] * b[k, j]`, the first operand maybe transposed."""
    draft = Draft("product")
    extents = {"i": rows, "k": terms}
    places: dict[str, Place] = {"i": I, "k": K}
    a = draft.node("a", dtype, *(extents[each] for each in first))
    b, c = draft.node("b", dtype, terms, columns), draft.node("c", dtype, rows, columns)
    left = draft.load(a, *(places[each] for each in first))
    term = Binary(BinaryOp.MUL, left, draft.load(b, K, J), dtype)
    body = draft.accumulate(c, I, J, op=BinaryOp.ADD, value=term)
    nest = kernel_nest(Block((loop(I, rows, loop(J, columns, loop(K, terms, body))),)))
    assert nest is not None
    return draft, nest


def plan_of(nest: Nest, nodes: NodeInfos) -> NestPlan:
    return NestPlan("p", (NestKernel(nest),), (), (), (), nodes)


def nests(draft: Draft, nest: Nest, *, is_fast: bool = False) -> list[Nest]:
    """Return a nest in float32; adds what that needs to a draft."""
    found = widen_accumulators(plan_of(nest, draft.nodes), is_fast=is_fast)
    draft.nodes.update(found.nodes)
    return [kernel.nest for kernel in found.kernels]


def texts(draft: Draft, found: list[Nest]) -> list[str]:
    result = []
    for nest in found:
        scheduled = apply_schedule(nest, ())
        draft.nodes.update(scheduled.nodes)
        text = to_text(draft.program(*scheduled.body.stmts))
        result.append("\n".join(line for line in text.splitlines() if line.startswith("  ")))
    return result


def test_registers_hold_float32_and_results_are_rounded() -> None:
    draft, nest = product(2, 3, 4)
    assert "\n---\n".join(texts(draft, nests(draft, nest))) == snapshot("""\
    for i in range(2):
        for j in range(4):
            block:
                thread sums: float32[]
                sums = 0.0
                for k in range(3):
                    sums += float32(a[i, k]) * float32(b[k, j])
                c[i, j] = bfloat16(float32(c[i, j]) + sums)\
""")


def test_cells_hold_float32_while_a_long_sum_runs_in_pieces() -> None:
    draft, nest = product(512, 9000, 512)
    found = nests(draft, nest)
    assert len(found) == 3
    assert [store.value.dtype for each in found for store in each.epilogue] == [
        float32,
        float32,
        bfloat16,
    ]
    sums = found[1]
    assert sums.is_resumable
    assert "split k" in schedule_text(contraction_schedule(sums, draft.nodes, PAIRS) or ())


def test_the_greatest_and_the_least_start_from_numbers_of_the_format() -> None:
    draft = Draft("limits")
    a, c = draft.node("a", float16, 4, 5), draft.node("c", float16, 4)
    body = draft.accumulate(c, I, op=BinaryOp.MAX, value=draft.load(a, I, J))
    nest = kernel_nest(Block((loop(I, 4, loop(J, 5, body)),)))
    assert nest is not None
    assert nest.reduction is not None
    start = replace(nest.reduction, initial=Const(-65504.0, float16))
    (wide,) = nests(draft, replace(nest, reduction=start))
    assert wide.reduction is not None
    assert wide.reduction.initial == Const(-65504.0, float32)


def test_wide_arithmetic_is_unchanged() -> None:
    draft, nest = product(2, 3, 4, float32)
    before = plan_of(nest, draft.nodes)
    assert widen_accumulators(before) == before


def chosen(first: str, *sizes: int, is_fast: bool = True, dtype: DType = bfloat16) -> str:
    draft, nest = product(*sizes, dtype=dtype, first=first)
    (wide,) = nests(draft, nest, is_fast=is_fast)
    return schedule_text(contraction_schedule(wide, draft.nodes, PAIRS) or ())


def test_pairs_are_chosen_where_they_are_allowed_and_there() -> None:
    assert chosen("ik", 256, 256, 256) == snapshot(
        "split j 64; split j1 16; split i 6; split k 2; order j0 i0 k0 i1 j10 j11 k1; unroll i1; unroll j10; vectorize j11; dot k1; pack 1 inside j0 as k0 j1 k1; accumulate over k0 fused"
    )
    assert chosen("ki", 256, 256, 256) == snapshot(
        "split j 64; split j1 16; split i 6; split k 2; order j0 i0 k0 i1 j10 j11 k1; unroll i1; unroll j10; vectorize j11; dot k1; pack 0 as i0 k0 i1 k1; pack 1 inside j0 as k0 j1 k1; accumulate over k0 fused"
    )
    assert "dot" not in chosen("ik", 256, 256, 256, is_fast=False)
    assert "dot" not in chosen("ik", 256, 256, 256, dtype=float16)
    assert "dot" not in chosen("ik", 4, 256, 256)  # copies of the second would be used four times


@pytest.mark.parametrize(
    "schedule",
    [
        "split k 2; order i k0 k1 j; vectorize j; dot k1; accumulate over k0 fused",
        "split k 3; order i k0 j k1; vectorize j; dot k1; accumulate over k0 fused",
        "split k 2; order i k0 j k1; dot k1; accumulate over k0 fused",
        "split j 2; order i k j0 j1; vectorize j0; dot j1; accumulate over k fused",
    ],
)
def test_dot_products_are_the_inside_of_vectors(schedule: str) -> None:
    draft, nest = product(4, 6, 8)
    (wide,) = nests(draft, nest)
    with pytest.raises(UsageError, match=r"is the inside of a reduced axis|innermost axis alone"):
        apply_schedule(wide, parse_schedule(schedule))


def run(draft: Draft, nest: Nest, schedule: str) -> LoopProgram:
    scheduled = apply_schedule(nest, parse_schedule(schedule))
    draft.nodes.update(scheduled.nodes)
    return draft.program(*scheduled.body.stmts)


@pytest.mark.parametrize("terms", [8, 9])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("first", ["ik", "ki"])
def test_pairs_mean_steps_of_the_sum(
    interpret: Interpret, first: str, size: int, terms: int
) -> None:
    draft, nest = product(5, terms, 8, first=first)
    (wide,) = nests(draft, nest)
    program = run(
        draft,
        wide,
        f"split j 4; split k {size}; order j0 i k0 j1 k1; vectorize j1; dot k1; pack 0 as k0 i k1; "
        "pack 1 inside j0 as k0 j1 k1; accumulate over k0 fused",
    )
    numbers = np.random.default_rng(1)
    a, b, _ = program.params
    arrays = {node: numbers.integers(-2, 3, draft.nodes[node].dims) for node in (a, b)}
    found = interpret(program, {n: each.astype(bfloat16.numpy) for n, each in arrays.items()})
    left = arrays[a] if first == "ik" else arrays[a].T
    np.testing.assert_array_equal(found[program.params[2]].astype(int), left @ arrays[b])


def test_sums_in_float32_are_those_of_the_interpreter_rounded(interpret: Interpret) -> None:
    through_memory = 0

    @settings(
        max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(
        random_reductions(float32), st.sampled_from([each for each in NARROW if each.nbytes > 1])
    )
    def check(example: Example, dtype: DType) -> None:
        """Compare with exact results: small integers add exactly in float32 in any order."""
        nonlocal through_memory
        narrow = in_format(example, dtype)
        program = narrow.program
        nest = kernel_nest(program.body)
        if nest is None or nest.reduction is None:
            return
        found = widen_accumulators(plan_of(nest, program.nodes))
        through_memory += len(found.steps) > 1
        stmts: list[Stmt] = [Allocate(node, Scope.ROUTINE) for node in found.scratch]
        nodes = dict(found.nodes)
        for kernel in found.kernels:
            result = apply_schedule(kernel.nest, ())
            stmts.append(result.body)
            nodes.update(result.nodes)
        wide = LoopProgram(program.name, program.params, (), nodes, Block(tuple(stmts)))
        expected = interpret(example.program, example.arrays)
        for node, cells in interpret(wide, narrow.arrays).items():
            np.testing.assert_array_equal(
                cells.astype(np.float32), expected[node].astype(dtype.numpy).astype(np.float32)
            )

    check()
    assert through_memory
