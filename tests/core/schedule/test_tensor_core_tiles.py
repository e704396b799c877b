"""Schedules with matrix instructions of subgroups: their meaning, their form, and their choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from inline_snapshot import snapshot

from ocannl_core.base import settings as core_settings
from ocannl_core.base.errors import UsageError
from ocannl_core.ir.canonical import canonical_text
from ocannl_core.ir.indexing import fresh_var
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_plan import NestKernel, NestPlan
from ocannl_core.ir.kernels.nest_recognition import kernel_nest
from ocannl_core.ir.kernels.printer import to_text as plan_text
from ocannl_core.ir.kernels.transforms import Schedule, StageForm, parse_schedule, schedule_text
from ocannl_core.ir.loops.nodes import Binary, Block, Expr, LoopProgram, Stmt, Unary
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.loops.verify import verify
from ocannl_core.ir.matrix_units import Digit, Fragment, MatrixInstruction
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType, bfloat16, float16, float32
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.ir.target import Target, ThreadBlocks
from ocannl_core.passes.kernels.pipeline import nest_plan, plan_kernels
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.passes.kernels.widen_accumulators import widen_accumulators
from ocannl_core.schedule.apply.apply_schedule import apply_schedule
from ocannl_core.schedule.rules.block_rules import block_schedule, block_schedules
from ocannl_core.schedule.rules.tensor_core_schedules import (
    candidate_tiles,
    conflicts,
    schedule_tensor_core_tile,
    skip_after,
)
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.parser.loops import parse
from ocannl_core.testing.parser.plans import parse as parse_plan
from ocannl_core.testing.programs import Example
from tests.support.products import random_products
from tests.support.reductions import in_format

Interpret = Callable[..., dict[TensorNode, Any]]
I, J, K = fresh_var("i"), fresh_var("j"), fresh_var("k")  # noqa: E741

SUMS = Fragment((Digit(2, rows=1), Digit(2, columns=2)), (Digit(2, rows=2), Digit(2, columns=1)))
LEFT = Fragment((Digit(2, rows=1), Digit(2, columns=2)), (Digit(2, rows=2), Digit(2, columns=1)))
SMALL = tuple(
    MatrixInstruction(str(dtype), dtype, LEFT, LEFT, SUMS, 2 if dtype is float32 else 1)
    for dtype in (bfloat16, float32)
)
"""Instructions of four threads, for products of 4 x 4 cells and 4 terms."""
EIGHTS = Digit(8, rows=1), Digit(4, columns=2)
WIDE = MatrixInstruction(
    "wide",
    bfloat16,
    Fragment(EIGHTS, (Digit(2, columns=8), Digit(2, rows=8), Digit(2, columns=1))),
    Fragment((Digit(8, columns=1), Digit(4, rows=2)), (Digit(2, rows=8), Digit(2, rows=1))),
    Fragment(EIGHTS, (Digit(2, rows=8), Digit(2, columns=1))),
)
"""An instruction of 32 threads, for 16 rows, 8 columns and 16 terms."""


def device(*instructions: MatrixInstruction, processors: int = 4) -> Target:
    blocks = ThreadBlocks(1024, 256, 48 << 10, 255, 32, processors, asynchronous_copies=(16, 8, 4))
    return Target("warps", thread_blocks=blocks, has_fma=True, matrix_units=instructions)


def product(
    rows: int, terms: int, columns: int, dtype: DType = bfloat16, sums: DType | None = None
) -> tuple[Draft, Nest]:
    """Return `c[i, j] += a[i, k] * b[k, j]`, with cells of the format of the factors or another
    one.
    """
    total = dtype if sums is None else sums
    draft = Draft("product")
    a, b = draft.node("a", dtype, rows, terms), draft.node("b", dtype, terms, columns)
    c = draft.node("c", total, rows, columns)
    factors: list[Expr] = [draft.load(a, I, K), draft.load(b, K, J)]
    if total is not dtype:
        factors = [Unary(UnaryOp.IDENTITY, each, total) for each in factors]
    term = Binary(BinaryOp.MUL, factors[0], factors[1], total)
    body = draft.accumulate(c, I, J, op=BinaryOp.ADD, value=term)
    nest = kernel_nest(Block((loop(I, rows, loop(J, columns, loop(K, terms, body))),)))
    assert nest is not None
    return draft, nest


def widened(draft: Draft, nest: Nest, *, is_fast: bool = False) -> NestPlan:
    plan = NestPlan("p", (NestKernel(nest),), (), (), (), draft.nodes)
    return widen_accumulators(plan, is_fast=is_fast, in_pieces=False)


def chosen(*sizes: int, target: Target, dtype: DType = bfloat16, is_fast: bool = False) -> str:
    draft, nest = product(*sizes, dtype=dtype)
    (kernel,) = widened(draft, nest, is_fast=is_fast).kernels
    return schedule_text(block_schedule(kernel.nest, draft.nodes, target) or ())


def applied(draft: Draft, nest: Nest, schedule: Schedule) -> LoopProgram:
    scheduled = apply_schedule(nest, schedule)
    draft.nodes.update(scheduled.nodes)
    program = draft.program(*scheduled.body.stmts)
    verify(program)
    return program


def test_a_barrier_may_leave_copies_pending() -> None:
    text = """\
routine copy(a: float32[8], b: float32[8]):
    for i in grid(1):
        group t: float32[8]
        for j in block(2):
            for c in copy(4):
                t[4*j + c] = where(int32(4*j + c) < int32(7), a[4*j + c], 0.0)
            barrier(2)
            barrier()
            for c in range(4):
                b[4*j + c] = t[-4*j - c + 7]
"""
    program = parse(text)
    verify(program)
    assert to_text(program) == text.rstrip()


def test_copies_and_tiles_are_loops_to_the_interpreter(interpret: Interpret) -> None:
    program = parse("""\
routine copy(a: float32[8], b: float32[8]):
    for i in grid(1):
        group t: float32[8]
        for j in block(2):
            for c in copy(4):
                t[4*j + c] = where(int32(4*j + c) < int32(7), a[4*j + c], 0.0)
            barrier(0)
            for c1 in tile(4):
                b[4*j + c1] = t[-4*j - c1 + 7]
""")
    a, b = program.params
    found = interpret(program, {a: np.arange(1, 9, dtype=np.float32)})
    np.testing.assert_array_equal(found[b], [0, 7, 6, 5, 4, 3, 2, 1])


def test_a_widened_nest_prints_as_one_and_has_its_own_canonical_text() -> None:
    draft, nest = product(4, 5, 6)
    plan = replace(widened(draft, nest, is_fast=True), params=tuple(draft.nodes))
    text = plan_text(plan)
    assert "widened fast nest" in text
    assert plan_text(parse_plan(text)) == text
    (kernel,) = plan.kernels
    assert kernel.nest.reduction is not None
    plain = replace(kernel.nest, reduction=replace(kernel.nest.reduction, is_widened=False))
    assert canonical_text(kernel.nest, draft.nodes) != canonical_text(plain, draft.nodes)


@pytest.mark.parametrize("fragment", [SUMS, WIDE.left, WIDE.right, WIDE.sums])
def test_every_cell_of_a_fragment_has_one_thread_and_one_place(fragment: Fragment) -> None:
    threads = int(np.prod([each.count for each in fragment.threads]))
    places = int(np.prod([each.count for each in fragment.places]))
    cells = {fragment.cell(thread, place) for thread in range(threads) for place in range(places)}
    assert cells == {(i, j) for i in range(fragment.rows) for j in range(fragment.columns)}
    assert len(cells) == threads * places


@pytest.mark.parametrize("sizes", [(512, 512, 512), (100, 37, 61), (2048, 2048, 2048)])
def test_threads_of_a_warp_load_from_different_banks(sizes: tuple[int, int, int]) -> None:
    draft, nest = product(*sizes)
    (kernel,) = widened(draft, nest).kernels
    assert kernel.nest.reduction is not None
    tiles = list(candidate_tiles(kernel.nest, kernel.nest.reduction, draft.nodes, device(WIDE)))
    assert len(tiles) == 4
    for tile in tiles:
        for operand in tile.operands:
            is_across = operand.axes[1] != tile.axes.term.name
            cells = tile.extent(operand.axes[1])
            form = operand.fragment, operand.dtype
            assert conflicts(*form, tile.pitch(operand), is_across) == 1
            assert conflicts(*form, cells, is_across) > 1  # without padding
            assert tile.pitch(operand) * operand.dtype.nbytes % 16 == 0


@pytest.mark.parametrize("pitch", [40, 72, 136])
def test_rows_of_groups_are_in_different_banks(pitch: int) -> None:
    """Threads load two rows of each of four groups of eight; plainly, these are in two places."""
    skip = skip_after(8, pitch, 4, bfloat16)
    places = [
        {
            (group * (8 * pitch + more) + row * pitch) // 8 % 8
            for group in range(4)
            for row in (0, 1)
        }
        for more in (0, skip)
    ]
    assert [len(each) for each in places] == [2, 8]
    assert skip % 8 == 0


@pytest.mark.parametrize("dtype", [bfloat16, float32], ids=str)
def test_tiles_of_warps_mean_the_product(interpret: Interpret, dtype: DType) -> None:
    tiled = 0

    @settings(
        max_examples=5,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(random_products(most_steps=2000))
    def check(example: Example) -> None:
        """Compare with exact results: small integers add exactly in any order."""
        nonlocal tiled
        program = in_format(example, dtype).program
        nest = kernel_nest(program.body)
        if nest is None or nest.reduction is None or nest.reduction.op is not BinaryOp.ADD:
            return
        plan = NestPlan("p", (NestKernel(nest),), (), (), (), program.nodes)
        found = widen_accumulators(plan, is_fast=True, in_pieces=False)
        if found.scratch or any(axis.is_shifting for axis in nest.axes):
            return
        (kernel,) = found.kernels
        reduction, target = kernel.nest.reduction, device(*SMALL)
        assert reduction is not None
        tiles = list(candidate_tiles(kernel.nest, reduction, program.nodes, target))
        if not tiles:
            return
        tiled += 1
        little = replace(tiles[-1], warps=(2, 1), tiles=(1, 2), depth=8, stages=2 + tiled % 2)
        schedule = schedule_tensor_core_tile(kernel.nest, little)
        scheduled = apply_schedule(kernel.nest, schedule)
        body: Stmt = scheduled.body
        nodes = {**program.nodes, **scheduled.nodes}
        whole = replace(program, nodes=nodes, body=Block((body,)))
        verify(whole)
        arrays = in_format(example, dtype).arrays
        expected = interpret(example.program, example.arrays)
        for (ours, cells), theirs in zip(
            interpret(whole, arrays).items(), example.program.params, strict=True
        ):
            rounded = expected[theirs].astype(dtype.numpy)
            np.testing.assert_array_equal(cells, rounded, err_msg=str(ours))

    check()
    assert tiled > 2


def transposed(rows: int, terms: int, columns: int) -> tuple[Draft, Nest]:
    """Return `c[i, j] += a[i, k] * b[j, k]` of bfloat16."""
    draft = Draft("product")
    a, b = draft.node("a", bfloat16, rows, terms), draft.node("b", bfloat16, columns, terms)
    c = draft.node("c", bfloat16, rows, columns)
    term = Binary(BinaryOp.MUL, draft.load(a, I, K), draft.load(b, J, K), bfloat16)
    body = draft.accumulate(c, I, J, op=BinaryOp.ADD, value=term)
    nest = kernel_nest(Block((loop(I, rows, loop(J, columns, loop(K, terms, body))),)))
    assert nest is not None
    return draft, nest


JOINED = (
    "split i 16; split i1 16; split i11 16; split i111 8; split j 32; split j1 32; split j11 32; "
    "split j111 8; split j1111 2; split k 16; split k1 16; grid i0 j0; "
    "block i10 j10 i1111 j1110; order i0 j0 i10 j10 i1111 j1110 k0 k10 i110 j110 j11110 i1110 "
    "j11111 k11; unroll k10; unroll i110; unroll j110; unroll j11110; unroll i1110; "
    "unroll j11111; vectorize j1111; tile i1110 j11111 k11; pack 0 inside k0 as i1 k1; "
    "pack 1 inside k0 as j1 k1; pipeline k0 in 2; stage 0 by 4 pitch 24; "
    "stage 1 by 4 pitch 24 skip 16 after 8; accumulate over k0 fused"
)


@pytest.mark.parametrize("columns", [32, 40, 61])
def test_cells_of_several_tiles_are_one_vector(interpret: Interpret, columns: int) -> None:
    draft, nest = transposed(20, 24, columns)
    (kernel,) = widened(draft, nest).kernels
    scheduled = apply_schedule(kernel.nest, parse_schedule(JOINED), draft.nodes)
    program = draft.program(*nest_body(nest).stmts)
    assert isinstance(scheduled.body, Block)
    tiled = replace(program, nodes={**program.nodes, **scheduled.nodes}, body=scheduled.body)
    verify(tiled)
    assert ("(8):  # vector" in to_text(tiled) or "in vector(8)" in to_text(tiled)) == (
        columns != 61
    )
    numbers = np.random.default_rng(columns)
    a, b = (numbers.integers(-3, 4, shape) for shape in ((20, 24), (columns, 24)))
    left, right, result = program.params
    arrays = {left: a.astype(bfloat16.numpy), right: b.astype(bfloat16.numpy)}
    found = interpret(tiled, arrays)[result]
    np.testing.assert_array_equal(
        found.astype(np.float32), (a @ b.T).astype(bfloat16.numpy).astype(np.float32)
    )


@pytest.mark.parametrize("after", [2, 3, 64])
def test_groups_of_rows_are_those_of_digits_of_threads(after: int) -> None:
    draft, nest = transposed(20, 24, 32)
    (kernel,) = widened(draft, nest).kernels
    text = JOINED.replace("after 8", f"after {after}")
    with pytest.raises(UsageError, match=r"rows|Rows"):
        apply_schedule(kernel.nest, parse_schedule(text), draft.nodes)


LONG = (
    "split i 8; split i1 4; split i11 4; split i111 2; split j 8; split j1 4; split j11 4; "
    "split j111 2; split k 4; split k1 4; grid i0 j0; block i10 j10 i1111 j1110; "
    "order i0 j0 i10 j10 i1111 j1110 k0 k10 i110 j110 i1110 j1111 k11; unroll k10; unroll i110; "
    "unroll j110; unroll i1110; unroll j1111; tile i1110 j1111 k11; pack 0 inside k0 as i1 k1; "
    "pack 1 inside k0 as k1 j1; pipeline k0 in STAGES; stage 0 by 2 pitch 8; stage 1 pitch 8; "
    "accumulate over k0 fused"
)


@pytest.mark.parametrize("stages", [2, 3, 4, 5])
@pytest.mark.parametrize("terms", [4, 8, 12, 30, 33])
def test_every_number_of_stages_and_terms_is_right(
    interpret: Interpret, stages: int, terms: int
) -> None:
    draft, nest = product(7, terms, 9, float32)
    program = applied(draft, nest, parse_schedule(LONG.replace("STAGES", str(stages))))
    a, b, c = program.params
    numbers = np.random.default_rng(terms)
    left, right = (numbers.integers(-3, 4, shape) for shape in ((7, terms), (terms, 9)))
    found = interpret(program, {a: left.astype(np.float32), b: right.astype(np.float32)})
    np.testing.assert_array_equal(found[c], left @ right)


def test_a_pipeline_copies_ahead_of_the_barrier_that_waits() -> None:
    draft, nest = product(8, 18, 8, float32)
    text = to_text(applied(draft, nest, parse_schedule(LONG.replace("STAGES", "3"))))
    lines = [
        line.strip()
        for line in text.splitlines()
        if any(
            word in line for word in ("barrier", "staged[", "for k", "while 3", "in tile", "copy(")
        )
        and "sums" not in line
    ]
    assert "\n".join(lines) == snapshot("""\
for lane in copy(2):
staged[0, i1 + 2*j + 4*i, 2*j1 + lane] = where(int32(2*j1 + lane) < int32(18), a[i1 + 2*j + 4*i, 2*j1 + lane], 0.0)
barrier(1)
for lane in copy(2):
staged[1, i1 + 2*j + 4*i, 2*j1 + lane] = where(int32(2*j1 + lane + 4) < int32(18), a[i1 + 2*j + 4*i, 2*j1 + lane + 4], 0.0)
for k in range(2):
barrier(1)
for once in range(1) while 3*k + once + 2 < 5:
for lane in copy(2):
staged[2, i1 + 2*j + 4*i, 2*j1 + lane] = where(int32(12*k + 2*j1 + lane + 8) < int32(18), a[i1 + 2*j + 4*i, 12*k + 2*j1 + lane + 8], 0.0)
for i2 in tile(2):
for j2 in tile(2):
for k1 in tile(4):
barrier(1)
for once in range(1) while 3*k + once + 3 < 5:
for lane in copy(2):
staged[0, i1 + 2*j + 4*i, 2*j1 + lane] = where(int32(12*k + 2*j1 + lane + 12) < int32(18), a[i1 + 2*j + 4*i, 12*k + 2*j1 + lane + 12], 0.0)
for i2 in tile(2):
for j2 in tile(2):
for k1 in tile(4):
for once in range(1) while 3*k + once + 2 < 5:
barrier(1)
for once1 in range(1) while 3*k + once1 + 4 < 5:
for lane in copy(2):
staged[1, i1 + 2*j + 4*i, 2*j1 + lane] = where(int32(12*k + 2*j1 + lane + 16) < int32(18), a[i1 + 2*j + 4*i, 12*k + 2*j1 + lane + 16], 0.0)
for i2 in tile(2):
for j2 in tile(2):
for k1 in tile(4):\
""")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tile i1110 j1111 k11; ", "tile i1110 j1111 k11; tile i1110 j1111 k11; "),
        ("pipeline k0 in STAGES; ", ""),
        ("in STAGES", "in 1"),
        ("pipeline k0", "pipeline k10"),
        ("stage 1 pitch 8; ", ""),
        ("pack 1 inside k0 as k1 j1; ", ""),
        ("stage 0 by 2 pitch 8", "stage 0 by 2 pitch 3"),
        ("stage 0 by 2 pitch 8", "stage 0 by 3 pitch 8"),
        ("i1110 j1111 k11; unroll", "i1110 k11 j1111; unroll"),
        ("block i10 j10 i1111 j1110", "block i10 j10 i1111 j1110 k0"),
    ],
)
def test_schedules_that_are_no_tiles_of_warps_are_refused(old: str, new: str) -> None:
    _, nest = product(8, 16, 8, float32)
    assert old in LONG
    text = LONG.replace(old, new).replace("STAGES", "2")
    with pytest.raises(UsageError):
        apply_schedule(nest, parse_schedule(text))


def test_warps_refuse_sums_of_one_factor() -> None:
    draft = Draft("sum")
    a, c = draft.node("a", float32, 8, 16), draft.node("c", float32, 8, 8)
    body = draft.accumulate(c, I, J, op=BinaryOp.ADD, value=draft.load(a, I, K))
    nest = kernel_nest(Block((loop(I, 8, loop(J, 8, loop(K, 16, body))),)))
    assert nest is not None
    text = LONG.replace("STAGES", "2").replace("pack 1 inside k0 as k1 j1; ", "")
    with pytest.raises(UsageError) as caught:
        apply_schedule(nest, parse_schedule(text))
    assert caught.value.rule == snapshot("Operands of a pipeline are two factors.")


def test_large_products_get_large_blocks_and_stages_that_fit() -> None:
    assert chosen(2048, 2048, 2048, target=device(WIDE, processors=132)) == snapshot(
        "split i 128; split j 128; split i1 64; split i11 16; split i111 8; split j1 32; split j11 8; split j111 2; split k 32; split k1 16; grid i0 j0; block i10 j10 i1111 j1110; order i0 j0 i10 j10 i1111 j1110 k0 k10 i110 j110 i1110 j1111 k11; unroll k10; unroll i110; unroll j110; unroll i1110; unroll j1111; vectorize j1111; tile i1110 j1111 k11; pack 0 inside k0 as i1 k1; pack 1 inside k0 as k1 j1; pipeline k0 in 2; stage 0 by 8 pitch 40; stage 1 by 8 pitch 136; accumulate over k0 fused"
    )
    assert chosen(100, 37, 61, target=device(WIDE, processors=132)) == snapshot(
        "split i 32; split j 32; split i1 16; split i11 16; split i111 8; split j1 16; split j11 8; split j111 2; split k 32; split k1 16; grid i0 j0; block i10 j10 i1111 j1110; order i0 j0 i10 j10 i1111 j1110 k0 k10 i110 j110 i1110 j1111 k11; unroll k10; unroll i110; unroll j110; unroll i1110; unroll j1111; vectorize j1111; tile i1110 j1111 k11; pack 0 inside k0 as i1 k1; pack 1 inside k0 as k1 j1; pipeline k0 in 2; stage 0 pitch 40; stage 1 pitch 40; accumulate over k0 fused"
    )


def test_products_too_small_or_of_other_formats_have_no_tiles() -> None:
    for sizes in ((15, 64, 64), (64, 64, 15), (64, 15, 64)):
        assert "tile" not in chosen(*sizes, target=device(WIDE))
    assert "tile" not in chosen(64, 64, 64, target=device(WIDE), dtype=float16)
    assert "tile" not in chosen(64, 64, 64, target=device())


def test_sums_of_float32_have_tiles_only_if_accumulation_is_fast() -> None:
    small = device(*SMALL)
    assert "tile" not in chosen(64, 64, 64, target=small, dtype=float32)
    assert "tile" in chosen(64, 64, 64, target=small, dtype=float32, is_fast=True)
    # a sum of narrow factors that is float32 is one of float32
    draft, nest = product(64, 64, 64, bfloat16, float32)
    (kernel,) = widened(draft, nest).kernels
    assert "tile" not in schedule_text(block_schedule(kernel.nest, draft.nodes, small) or ())


@pytest.mark.parametrize("accumulation", ["exact", "float32", "fast"])
def test_the_setting_decides_which_sums_run_on_matrix_instructions(accumulation: str) -> None:
    target = device(WIDE, *SMALL)

    def has_tiles(dtype: DType) -> bool:
        draft, nest = product(64, 64, 64, dtype)
        stream = plan_kernels(draft.program(*nest_body(nest).stmts), target)
        return any("tile" in schedule_text(each.schedule) for each in stream.plan().kernels)

    with core_settings.overrides(accumulation=accumulation):
        assert has_tiles(bfloat16) == (accumulation != "exact")
        assert has_tiles(float32) == (accumulation == "fast")


def nest_body(nest: Nest) -> Block:
    """Return the loops of a sum into cells."""
    assert nest.reduction is not None
    (store,) = nest.epilogue
    cell = nest.reduction.initial
    body: Stmt = replace(
        store, value=Binary(nest.reduction.op, cell, nest.reduction.term, nest.reduction.dtype)
    )
    for axis in reversed(nest.axes):
        body = axis.loop(Block((body,)))
    return Block((body,))


def test_long_sums_of_narrow_numbers_stay_in_registers() -> None:
    draft, nest = product(1024, 4096, 1024)
    program = draft.program(*nest_body(nest).stmts)
    plan = nest_plan(split_kernels(program), device(WIDE))
    assert len(plan.kernels) == 1


def test_a_search_tries_every_size_of_blocks() -> None:
    draft, nest = product(512, 512, 512)
    (kernel,) = widened(draft, nest).kernels
    found = list(block_schedules(kernel.nest, draft.nodes, device(WIDE)))
    assert sum(any(isinstance(each, StageForm) for each in schedule) for schedule in found) == 4
    assert len(set(found)) == len(found)
