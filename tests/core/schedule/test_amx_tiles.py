"""Schedules with matrix tiles: their semantics, and their choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from inline_snapshot import snapshot

from ocannl_core.base import settings as core_settings
from ocannl_core.base.errors import UsageError
from ocannl_core.ir.indexing import fresh_var
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_plan import NestKernel, NestPlan
from ocannl_core.ir.kernels.nest_recognition import kernel_nest
from ocannl_core.ir.kernels.product_status import Obstacle
from ocannl_core.ir.kernels.transforms import parse_schedule
from ocannl_core.ir.kernels.transforms import schedule_text as schedule_text
from ocannl_core.ir.loops.nodes import Binary, Block, LoopProgram, Stmt
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.matrix_units import TileProduct
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType, bfloat16, float16, float32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.widen_accumulators import widen_accumulators
from ocannl_core.schedule.apply.apply_schedule import apply_schedule
from ocannl_core.schedule.cost_model import estimated_cycles
from ocannl_core.schedule.rules.amx_schedules import amx_schedules, find_amx_schedule
from ocannl_core.schedule.tuning.schedule_candidates import first_candidates
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.programs import Example
from tests.support import matrix_units
from tests.support.products import random_products
from tests.support.reductions import in_format

Interpret = Callable[..., dict[TensorNode, Any]]
I, J, K = fresh_var("i"), fresh_var("j"), fresh_var("k")  # noqa: E741
TILES = Target(
    "tiles",
    vector_bytes=64,
    vector_registers=32,
    has_fma=True,
    cache_bytes=(48 << 10, 2 << 20),
    matrix_units=matrix_units.TILES,
)


def product(
    rows: int, terms: int, columns: int, dtype: DType = bfloat16, *, is_fast: bool = True
) -> tuple[Draft, Nest]:
    """Return `c[i, j] += a[i, k] * b[k, j]`, with sums in float32."""
    draft = Draft("product")
    a, b = draft.node("a", dtype, rows, terms), draft.node("b", dtype, terms, columns)
    c = draft.node("c", dtype, rows, columns)
    term = Binary(BinaryOp.MUL, draft.load(a, I, K), draft.load(b, K, J), dtype)
    body = draft.accumulate(c, I, J, op=BinaryOp.ADD, value=term)
    nest = kernel_nest(Block((loop(I, rows, loop(J, columns, loop(K, terms, body))),)))
    assert nest is not None
    return draft, wide(nest, draft, is_fast=is_fast)


def wide(nest: Nest, draft: Draft, *, is_fast: bool = True) -> Nest:
    plan = NestPlan("p", (NestKernel(nest),), (), (), (), draft.nodes)
    (kernel,) = widen_accumulators(plan, is_fast=is_fast).kernels
    return kernel.nest


def run(draft: Draft, nest: Nest, schedule: str) -> LoopProgram:
    scheduled = apply_schedule(nest, parse_schedule(schedule))
    draft.nodes.update(scheduled.nodes)
    return draft.program(*scheduled.body.stmts)


SMALL = (
    "split k 32; split k1 2; order k0 i j k10 k11; tile i j k10; dot k11; "
    "pack 0 as k0 i k1; pack 1 as k0 k10 j k11; accumulate over k0 fused"
)


def test_partial_tiles_are_padded_with_zeros() -> None:
    draft, nest = product(5, 35, 16)
    text = to_text(run(draft, nest, SMALL))
    assert "\n".join(text.splitlines()[1:]) == snapshot("""\
    kernel packed0: bfloat16[2, 1, 16, 32]
    for k in range(2):
        for x in range(5, 16):
            for k1 in range(32):
                packed0[k, 0, x, k1] = 0.0
    for x in range(16):
        for k in range(3, 32):
            packed0[1, 0, x, k] = 0.0
    for x in range(5):
        for l in vector(16):
            packed0[0, 0, x, l] = a[x, l]
        for l in vector(16):
            packed0[0, 0, x, l + 16] = a[x, l + 16]
    for x in range(5):
        for l in vector(3):
            packed0[1, 0, x, l] = a[x, l + 32]
    kernel packed1: bfloat16[2, 1, 16, 16, 2]
    for k in range(1, 16):
        for x in range(16):
            for p in range(2):
                packed1[1, 0, k, x, p] = 0.0
    for x in range(16):
        for l in vector(16):
            for p in dot(2):
                packed1[0, 0, x, l, p] = b[2*x + p, l]
    for x in range(1):
        for l in vector(16):
            for p in dot(2):
                packed1[1, 0, x, l, p] = b[2*x + p + 32, l]
    for l in vector(16):
        packed1[1, 0, 1, l, 0] = b[34, l]
    block:
        thread sums: float32[16, 16]
        for i in tile(16):
            for j in tile(16):
                sums[i, j] = 0.0
        for k in range(2):
            for i in tile(16):
                for j in tile(16):
                    for k1 in tile(16):
                        for k2 in dot(2):
                            sums[i, j] = fma(float32(packed0[k, 0, i, 2*k1 + k2]), float32(packed1[k, 0, k1, j, k2]), sums[i, j])
        kernel results: float32[16, 16]
        for i in tile(16):
            for j in tile(16):
                results[i, j] = sums[i, j]
        for i in range(5):
            for j in vector(16):
                c[i, j] = bfloat16(float32(c[i, j]) + results[i, j])\
""")


def test_factors_of_float32_are_sums_of_three_parts() -> None:
    draft, nest = product(16, 32, 16, float32)
    schedule = (
        "split k 2; order i j k0 k1; tile i j k0 in 3 parts; dot k1; "
        "pack 0 as i k; pack 1 as k0 j k1; accumulate over i fused"
    )
    text = to_text(run(draft, nest, schedule))
    assert "\n".join(text.splitlines()[1:]) == snapshot("""\
    kernel packed0: bfloat16[3, 16, 32]
    block:
        kernel wide0: float32[16, 32]
        for x in range(16):
            for l in vector(16):
                wide0[x, l] = a[x, l]
                packed0[0, x, l] = bfloat16(wide0[x, l])
                wide0[x, l] -= float32(bfloat16(wide0[x, l]))
                packed0[1, x, l] = bfloat16(wide0[x, l])
                wide0[x, l] -= float32(bfloat16(wide0[x, l]))
                packed0[2, x, l] = bfloat16(wide0[x, l])
            for l in vector(16):
                wide0[x, l + 16] = a[x, l + 16]
                packed0[0, x, l + 16] = bfloat16(wide0[x, l + 16])
                wide0[x, l + 16] -= float32(bfloat16(wide0[x, l + 16]))
                packed0[1, x, l + 16] = bfloat16(wide0[x, l + 16])
                wide0[x, l + 16] -= float32(bfloat16(wide0[x, l + 16]))
                packed0[2, x, l + 16] = bfloat16(wide0[x, l + 16])
    kernel packed1: bfloat16[3, 16, 16, 2]
    block:
        kernel wide1: float32[32, 16]
        for x in range(16):
            for l in vector(16):
                wide1[2*x, l] = b[2*x, l]
                wide1[2*x + 1, l] = b[2*x + 1, l]
                for p in dot(2):
                    packed1[0, x, l, p] = bfloat16(wide1[2*x + p, l])
                wide1[2*x, l] -= float32(bfloat16(wide1[2*x, l]))
                wide1[2*x + 1, l] -= float32(bfloat16(wide1[2*x + 1, l]))
                for p in dot(2):
                    packed1[1, x, l, p] = bfloat16(wide1[2*x + p, l])
                wide1[2*x, l] -= float32(bfloat16(wide1[2*x, l]))
                wide1[2*x + 1, l] -= float32(bfloat16(wide1[2*x + 1, l]))
                for p in dot(2):
                    packed1[2, x, l, p] = bfloat16(wide1[2*x + p, l])
    block:
        thread sums: float32[16, 16]
        for i in tile(16):
            for j in tile(16):
                sums[i, j] = 0.0
        for i in tile(16):
            for j in tile(16):
                for k in tile(16):
                    for k1 in dot(2):
                        sums[i, j] = fma(float32(packed0[2, i, 2*k + k1]), float32(packed1[0, k, j, k1]), sums[i, j])
        for i in tile(16):
            for j in tile(16):
                for k in tile(16):
                    for k1 in dot(2):
                        sums[i, j] = fma(float32(packed0[1, i, 2*k + k1]), float32(packed1[0, k, j, k1]), sums[i, j])
        for i in tile(16):
            for j in tile(16):
                for k in tile(16):
                    for k1 in dot(2):
                        sums[i, j] = fma(float32(packed0[1, i, 2*k + k1]), float32(packed1[1, k, j, k1]), sums[i, j])
        for i in tile(16):
            for j in tile(16):
                for k in tile(16):
                    for k1 in dot(2):
                        sums[i, j] = fma(float32(packed0[0, i, 2*k + k1]), float32(packed1[1, k, j, k1]), sums[i, j])
        for i in tile(16):
            for j in tile(16):
                for k in tile(16):
                    for k1 in dot(2):
                        sums[i, j] = fma(float32(packed0[0, i, 2*k + k1]), float32(packed1[2, k, j, k1]), sums[i, j])
        for i in tile(16):
            for j in tile(16):
                for k in tile(16):
                    for k1 in dot(2):
                        sums[i, j] = fma(float32(packed0[0, i, 2*k + k1]), float32(packed1[0, k, j, k1]), sums[i, j])
        kernel results: float32[16, 16]
        for i in tile(16):
            for j in tile(16):
                results[i, j] = sums[i, j]
        for i in range(16):
            for j in vector(16):
                c[i, j] += results[i, j]\
""")


def test_a_product_of_tiles_counts_as_one_instruction() -> None:
    draft, nest = product(16, 32 * 64, 16)
    program = run(draft, nest, SMALL)
    sums = next(stmt for stmt in program.body.stmts if isinstance(stmt, Block))
    assert (
        64 * 16 <= estimated_cycles(sums, draft.nodes) <= 64 * 16 * 32
    )  # of 64 * 16 * 16 * 32 products


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("order k0 i j k10 k11", "order k0 j i k10 k11"),
        ("split k 32; ", "split k 24; "),
        ("split k 32; ", "split k 32 evenly; "),
        ("split k1 2", "split k1 4"),
        ("; dot k11", ""),
        ("tile i j k10", "tile i j k10 in 2 parts"),
        ("tile i j k10", "tile k10 j i"),
        ("pack 0 as k0 i k1; ", ""),
        ("pack 0 as k0 i k1; ", "pack 0 as i k0 k1; "),
        ("pack 0 as k0 i k1; ", "pack 0 inside k0 as i k1; "),
        (" fused", ""),
        ("accumulate over k0", "accumulate over k10"),
    ],
)
def test_tiles_that_do_not_fit_are_refused(old: str, new: str) -> None:
    _, nest = product(16, 64, 16)
    apply_schedule(nest, parse_schedule(SMALL))
    assert old in SMALL
    with pytest.raises(UsageError):
        apply_schedule(nest, parse_schedule(SMALL.replace(old, new)))


def test_larger_blocks_than_a_tile_are_refused() -> None:
    _, nest = product(17, 64, 16)
    with pytest.raises(UsageError) as caught:
        apply_schedule(nest, parse_schedule(SMALL))
    assert caught.value.rule == snapshot(
        "Rows, columns and pairs of terms of whole tiles are the innermost loops."
    )


@pytest.mark.parametrize(
    "unit", [matrix_units.TILES[0], matrix_units.OTHER_TILES], ids=["16 x 16 x 32", "4 x 8 x 12"]
)
def test_tiles_in_any_order_mean_the_product(interpret: Interpret, unit: TileProduct) -> None:
    tiled, target = 0, replace(TILES, matrix_units=(unit,))

    @settings(
        max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(random_products(most_steps=4000))
    def check(example: Example) -> None:
        """Compare with exact results: small integers add exactly in any order."""
        nonlocal tiled
        program = in_format(example, unit.dtype).program
        nest = kernel_nest(program.body)
        if nest is None or nest.reduction is None or nest.reduction.op is not BinaryOp.ADD:
            return
        plan = NestPlan("p", (NestKernel(nest),), (), (), (), program.nodes)
        found = widen_accumulators(plan, is_fast=True)
        if found.scratch:
            return
        (kernel,) = found.kernels
        schedule = next(amx_schedules(kernel.nest, program.nodes, target), None)
        if schedule is None:
            return
        tiled += 1
        scheduled = apply_schedule(kernel.nest, schedule)
        body: Stmt = scheduled.body
        nodes = {**program.nodes, **scheduled.nodes}
        whole = replace(program, nodes=nodes, body=Block((body,)))
        arrays = in_format(example, unit.dtype).arrays
        expected = interpret(example.program, example.arrays)
        for (ours, cells), theirs in zip(
            interpret(whole, arrays).items(), example.program.params, strict=True
        ):
            rounded = expected[theirs].astype(unit.dtype.numpy)
            np.testing.assert_array_equal(cells, rounded, err_msg=str(ours))

    check()
    assert tiled > 4


def chosen(*sizes: int, dtype: DType = bfloat16, is_fast: bool = True) -> str:
    draft, nest = product(*sizes, dtype=dtype, is_fast=is_fast)
    found = find_amx_schedule(nest, draft.nodes, TILES)
    return "" if isinstance(found, Obstacle) else schedule_text(found)


def test_tiles_are_chosen_where_they_are_allowed_and_pay() -> None:
    assert chosen(1000, 1000, 1000) == snapshot(
        "split k 32; split j 512; split j1 32; split j11 16; split i 32; split i1 16; split k1 2; order j0 i0 j10 k0 i10 j110 i11 j111 k10 k11; unroll i10; unroll j110; tile i11 j111 k10; dot k11; pack 0 as i0 k0 i10 i11 k1; pack 1 inside j0 as j10 k0 j110 k10 j111 k11; accumulate over k0 fused"
    )
    assert chosen(2048, 2048, 2048, dtype=float32) == snapshot(
        "split k 512; split k1 32; split j 320; split j1 32; split j11 16; split i 256; split i1 32; split i11 16; split k11 2; order j0 i0 k0 i10 j10 k10 i110 j110 i111 j111 k110 k111; unroll i110; unroll j110; tile i111 j111 k110 in 3 parts; dot k111; pack 0 as i0 k0 i10 k10 i110 i111 k11; pack 1 inside j0 as k0 j10 k10 j110 k110 j111 k111; accumulate over k10 fused"
    )
    assert chosen(40, 1000, 1000) == snapshot(
        "split k 32; split j 512; split j1 32; split j11 16; split i 32; split i1 16; split k1 2; order j0 i0 j10 k0 i10 j110 i11 j111 k10 k11; unroll i10; unroll j110; tile i11 j111 k10; dot k11; pack 0 as i0 k0 i10 i11 k1; pack 1 inside j0 as j10 k0 j110 k10 j111 k11; accumulate over k0 fused"
    )
    assert chosen(1000, 1000, 1000, is_fast=False) == ""
    assert chosen(1000, 1000, 1000, dtype=float16) == ""
    assert chosen(64, 64, 64, dtype=float32) == ""
    assert chosen(2, 1000, 1000, dtype=float32) == ""
    draft, nest = product(1000, 1000, 1000)
    other = replace(TILES, matrix_units=())
    assert find_amx_schedule(nest, draft.nodes, other) is Obstacle.ABSENT


def test_a_search_begins_with_tiles_and_goes_on_from_vectors() -> None:
    draft, nest = product(512, 512, 512)
    first, second, *others, last = first_candidates(nest, draft.nodes, TILES)
    assert first.schedule == find_amx_schedule(nest, draft.nodes, TILES)
    assert (first.parameters, last.parameters, last.schedule) == (None, None, ())
    assert second.parameters is not None
    # the rows of one factor and the columns of the other one, or the other way round
    (turned,) = others
    assert "tile j11 i11 k10" in schedule_text(turned.schedule)


def test_only_fast_accumulation_allows_tiles() -> None:
    from ocannl_core.passes.kernels.pipeline import nest_plan
    from ocannl_core.passes.kernels.split_kernels import split_kernels

    draft = Draft("product")
    a, b, c = (draft.node(name, float32, 300, 300) for name in "abc")
    term = Binary(BinaryOp.MUL, draft.load(a, I, K), draft.load(b, K, J), float32)
    body = draft.accumulate(c, I, J, op=BinaryOp.ADD, value=term)
    plan = split_kernels(draft.program(loop(I, 300, loop(J, 300, loop(K, 300, body)))))
    for accumulation in ("exact", "float32", "fast"):
        with core_settings.overrides(accumulation=accumulation):
            (kernel,) = nest_plan(plan, TILES).kernels
        found = find_amx_schedule(kernel.nest, plan.nodes, TILES)
        assert (found is Obstacle.ACCUMULATION) == (accumulation != "fast")
