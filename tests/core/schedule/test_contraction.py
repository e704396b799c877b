"""Default schedules of contractions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from ocannl_core.ir.indexing import AxisIndex, LoopVar, affine, fresh_var
from ocannl_core.ir.kernels.nest_recognition import kernel_nest
from ocannl_core.ir.kernels.transforms import schedule_text
from ocannl_core.ir.loops.nodes import Binary, Block, Const, Expr, Stmt
from ocannl_core.ir.numbers.dtypes import float32, float64, int32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.ir.target import Target
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.programs import Example
from ocannl_core.testing.subject import subject_named
from tests.support.schedules import contraction_schedule, schedule_by_rule

WIDE = Target(
    "wide", vector_bytes=64, vector_registers=32, has_fma=True, cache_bytes=(1 << 15, 1 << 20)
)
NARROW = Target("narrow", vector_bytes=32, vector_registers=16, has_fma=True)
PLAIN = Target("plain", vector_registers=16)

Place = AxisIndex | LoopVar


def chosen(
    axes: Sequence[tuple[LoopVar, int]],
    result: tuple[tuple[Place, ...], tuple[int, ...]],
    *operands: tuple[tuple[Place, ...], tuple[int, ...]],
    target: Target = WIDE,
    dtype: object = float32,
) -> str | None:
    """Return the schedule of a sum of products."""
    draft = Draft("contraction")
    kind = float64 if dtype is float64 else float32
    cell = draft.node("c", kind, *result[1])
    loads: list[Expr] = [
        draft.load(draft.node("x", kind, *dims), *places) for places, dims in operands
    ]
    term = loads[0]
    for load in loads[1:]:
        term = Binary(BinaryOp.MUL, term, load, kind)
    body: Stmt = draft.accumulate(cell, *result[0], op=BinaryOp.ADD, value=term)
    for var, extent in reversed(axes):
        body = loop(var, extent, body)
    nest = kernel_nest(Block((body,)))
    assert nest is not None
    schedule = contraction_schedule(nest, draft.nodes, target)
    return None if schedule is None else schedule_text(schedule)


B, I, J, K, Y, X, V, U = (fresh_var(name) for name in "bijkyxvu")  # noqa: E741


def strided(terms: int) -> str:
    """Return the schedule of a convolution with windows of one cell and stride 2."""
    found = chosen(
        [(I, 256), (J, 14), (X, 14), (K, terms)],
        ((I, J, X), (256, 14, 14)),
        ((K, affine([(2, J)]), affine([(2, X)])), (terms, 28, 28)),
        ((I, K), (256, terms)),
    )
    assert found is not None
    return found


def test_rows_that_compete_for_cache_sets_are_packed_for_all_iterations_outside() -> None:
    assert "pack 1 as i m" in strided(512)
    assert "pack 1" not in strided(500)


def weight_gradient(channels: int, size: int) -> str:
    """Return the schedule of the gradient of the weights of a convolution with windows of 3x3."""
    found = chosen(
        [(I, channels), (J, channels), (U, 3), (V, 3), (Y, size), (X, size)],
        ((I, J, U, V), (channels, channels, 3, 3)),
        ((I, Y, X), (channels, size, size)),
        ((J, affine([(1, Y), (1, U)]), affine([(1, X), (1, V)])), (channels, size + 2, size + 2)),
    )
    assert found is not None
    return found


def test_lanes_are_no_terms_that_every_tile_loads_from_a_distant_cache() -> None:
    assert "vectorize i" in weight_gradient(32, 128)
    assert "vectorize i" in weight_gradient(32, 256)


def product(size: int, target: Target = WIDE, dtype: object = float32) -> str | None:
    axes = [(I, size), (J, size), (K, size)]
    square = (size, size)
    return chosen(
        axes, ((I, J), square), ((I, K), square), ((K, J), square), target=target, dtype=dtype
    )


def test_a_small_product_reads_its_operands_in_place() -> None:
    assert product(64) == snapshot(
        "split j 16; split i 6; order i0 k i1 j0 j1; unroll i1; unroll j0; vectorize j1; accumulate over k fused"
    )


def test_a_large_product_packs_its_columns_and_takes_groups_of_them_to_each_block_of_rows() -> None:
    assert product(512) == snapshot(
        "split j 256; split j1 64; split j11 16; split i 6; order j0 i0 j10 k i1 j110 j111; unroll i1; unroll j110; vectorize j111; pack 1 inside j0 as j10 k j11; accumulate over k fused prefetch"
    )


def test_a_large_operand_can_be_broadcast_along_the_vector_axis() -> None:
    rows, columns, terms = 100_000, 200, 16
    axes = [(I, rows), (J, columns), (K, terms)]
    assert chosen(axes, ((I, J), (rows, columns)), ((I, K), (rows, terms))) == snapshot(
        "split j 64; split j1 16; split k 2; order j0 i k0 k1 j10 j11; unroll k1; unroll j10; vectorize j11; accumulate over k0 prefetch"
    )


def test_columns_that_stay_in_a_cache_are_one_group() -> None:
    roomy = replace(WIDE, cache_bytes=(1 << 15, 1 << 20, 1 << 25))
    assert product(1024, roomy) == snapshot(
        "split j 64; split j1 16; split i 6; order i0 j0 k i1 j10 j11; unroll i1; unroll j10; vectorize j11; pack 1 as j0 k j1; accumulate over k fused prefetch"
    )
    assert product(2048, roomy) == snapshot(
        "split j 512; split j1 64; split j11 16; split i 6; order j0 i0 j10 k i1 j110 j111; unroll i1; unroll j110; vectorize j111; pack 1 inside j0 as j10 k j11; accumulate over k fused prefetch"
    )
    assert product(256, roomy) == snapshot(
        "split j 64; split j1 16; split i 6; order j0 i0 k i1 j10 j11; unroll i1; unroll j10; vectorize j11; pack 1 inside j0 as k j1; accumulate over k fused prefetch"
    )


def test_a_long_sum_is_cut_so_that_panels_stay_in_the_cache() -> None:
    axes = [(I, 64), (J, 64), (K, 8192)]
    text = chosen(axes, ((I, J), (64, 64)), ((I, K), (64, 8192)), ((K, J), (8192, 64)))
    assert text == snapshot(
        "split j 16; split i 6; split k 512; order k0 i0 k1 i1 j0 j1; unroll i1; unroll j0; vectorize j1; accumulate over k1 fused"
    )


def transposed(rows: int, columns: int, terms: int, target: Target) -> str | None:
    """Return the schedule of a product whose first operand has its terms along rows of memory."""
    axes = [(I, rows), (J, columns), (K, terms)]
    operands = ((K, I), (terms, rows)), ((K, J), (terms, columns))
    return chosen(axes, ((I, J), (rows, columns)), *operands, target=target)


def test_numbers_whose_lines_take_half_of_a_step_to_arrive_are_packed() -> None:
    assert transposed(384, 384, 256, NARROW) == snapshot(
        "split j 192; split j1 16; split j11 8; split i 6; order j0 i0 j10 k i1 j110 j111; unroll i1; unroll j110; vectorize j111; pack 0 as i0 k i1; pack 1 inside j0 as j10 k j11; accumulate over k fused prefetch"
    )
    assert "pack 0" not in (transposed(384, 384, 64, NARROW) or "pack 0")  # they stay near
    assert "pack 0" not in (transposed(384, 384, 256, WIDE) or "pack 0")  # steps are longer


def test_vectors_that_evict_each_other_are_packed_for_fewer_rows() -> None:
    assert "pack 1" in (transposed(128, 512, 512, NARROW) or "")
    assert "pack 1" not in (transposed(128, 520, 512, NARROW) or "pack 1")
    assert "pack 1" not in (transposed(24, 512, 512, NARROW) or "pack 1")


def test_a_register_tile_leaves_a_register_to_the_compiler() -> None:
    # 12 accumulators, 3 vectors and a broadcast number would take all
    assert product(96, NARROW) == snapshot(
        "split j 16; split j1 8; split i 6; order j0 i0 k i1 j10 j11; unroll i1; unroll j10; vectorize j11; accumulate over k fused"
    )


def test_fewer_and_shorter_registers_make_smaller_blocks() -> None:
    assert product(64, NARROW) == snapshot(
        "split j 16; split j1 8; split i 6; order j0 i0 k i1 j10 j11; unroll i1; unroll j10; vectorize j11; accumulate over k fused"
    )
    assert product(64, PLAIN) == snapshot(
        "split j 2; split i 6; order j0 i0 k i1 j1; unroll i1; unroll j1; accumulate over k"
    )
    assert product(64, WIDE, float64) == snapshot(
        "split j 32; split j1 8; split i 6; order j0 i0 k i1 j10 j11; unroll i1; unroll j10; vectorize j11; accumulate over k fused"
    )


def test_a_depthwise_convolution_adds_up_rows_side_by_side() -> None:
    axes = [(I, 64), (Y, 14), (X, 14), (V, 3), (U, 3)]
    image = (I, affine([(1, Y), (1, V)]), affine([(1, X), (1, U)]))
    assert chosen(
        axes, ((I, Y, X), (64, 14, 14)), (image, (64, 16, 16)), ((I, V, U), (64, 3, 3))
    ) == snapshot("order i m n j k; unroll j; vectorize k; accumulate over m fused")


@pytest.mark.parametrize(("depth", "rows"), [(1024, 6), (1536, 12), (1000, 24)])
def test_rows_that_are_used_once_do_not_evict_each_other(depth: int, rows: int) -> None:
    axes = [(I, 16), (J, 720), (K, depth)]
    schedule = chosen(axes, ((I, J), (16, 720)), ((I, K), (16, depth)), ((J, K), (720, depth)))
    assert schedule.startswith(f"split j {rows};")


def test_an_axis_of_both_operands_is_no_vector_axis_where_both_would_be_gathered() -> None:
    axes = [(I, 16), (J, 720), (Y, 64), (K, 32)]
    left, right = ((I, Y, K), (16, 64, 32)), ((J, Y, K), (720, 64, 32))
    assert "vectorize i;" in chosen(axes, ((I, J, Y), (16, 720, 64)), left, right)


def test_packed_vectors_of_a_sum_that_cannot_be_cut_stay_in_the_second_cache() -> None:
    found = []
    for channels in (128, 512):
        draft = Draft("convolution")
        x = draft.node("x", float32, channels, 9, 9)
        w = draft.node("w", float32, channels, channels, 3, 3)
        y = draft.node("y", float32, channels, 7, 7)
        cell = draft.load(x, K, affine([(1, Y), (1, V)]), affine([(1, X), (1, U)]))
        term = Binary(BinaryOp.MUL, cell, draft.load(w, I, K, V, U), float32)
        body: Stmt = draft.accumulate(y, I, Y, X, op=BinaryOp.ADD, value=term)
        for var, extent in ((U, 3), (V, 3), (K, channels), (X, 7), (Y, 7), (I, channels)):
            body = loop(var, extent, body)
        nest = kernel_nest(Block((body,)))
        assert nest is not None
        (store,) = nest.epilogue
        clamped = Binary(BinaryOp.MAX, store.value, Const(0.0, float32), float32)
        nest = replace(nest, epilogue=(replace(store, value=clamped),))
        schedule = contraction_schedule(nest, draft.nodes, WIDE)
        assert schedule is not None
        found.append(schedule_text(schedule))
    assert found == snapshot(
        [
            "split i 32; split i1 16; order i0 j m n p k i10 i11; unroll k; unroll i10; vectorize i11; pack 1 inside i0 as m n p i1; accumulate over m fused prefetch",
            "split i 16; order i0 j m n p k i1; unroll k; vectorize i1; pack 1 inside i0 as m n p i1; accumulate over m fused prefetch",
        ]
    )


def test_a_weight_that_is_contiguous_along_the_sum_is_turned_while_it_is_packed() -> None:
    axes = [(B, 128), (J, 256), (K, 784)]
    text = chosen(axes, ((B, J), (128, 256)), ((J, K), (256, 784)), ((B, K), (128, 784)))
    assert text == snapshot(
        "split j 32; split j1 16; split i 12; order j0 i0 k i1 j10 j11; unroll i1; unroll j10; vectorize j11; pack 0 inside j0 as k j1; accumulate over k fused prefetch"
    )


def test_a_batch_runs_outside() -> None:
    axes = [(B, 16), (I, 64), (J, 64), (K, 32)]
    cube, left, right = (16, 64, 64), (16, 64, 32), (16, 32, 64)
    text = chosen(axes, ((B, I, J), cube), ((B, I, K), left), ((B, K, J), right))
    assert text == snapshot(
        "split k 16; split j 6; order i j0 m j1 k0 k1; unroll j1; unroll k0; vectorize k1; accumulate over m fused prefetch"
    )


def test_a_convolution_packs_its_weights_and_reads_the_image_in_place() -> None:
    axes = [(B, 8), (Y, 28), (X, 28), (J, 64), (V, 3), (U, 3), (K, 64)]
    rows, columns = affine([(1, Y), (1, V)]), affine([(1, X), (1, U)])
    text = chosen(
        axes,
        ((B, Y, X, J), (8, 28, 28, 64)),
        ((B, rows, columns, K), (8, 30, 30, 64)),
        ((J, V, U, K), (64, 3, 3, 64)),
    )
    assert text == snapshot(
        "split m 16; split k 6; order i j k0 n p q k1 m0 m1; unroll k1; unroll m0; vectorize m1; pack 1 as n p q m; accumulate over n fused prefetch"
    )


def gradient_of_weights(cores: int, *, stride: int = 1, window: int = 3) -> str | None:
    """Return the schedule of a sum over images of which threads take a share."""
    axes = [(V, window), (U, window), (J, 64), (K, 64), (B, 8), (Y, 28), (X, 28)]
    rows, columns = affine([(stride, Y), (1, V)]), affine([(stride, X), (1, U)])
    size = 28 * stride + window
    return chosen(
        axes,
        ((V, U, J, K), (window, window, 64, 64)),
        ((B, Y, X, J), (8, 28, 28, 64)),
        ((B, rows, columns, K), (8, size, size, 64)),
        target=replace(WIDE, cores=cores),
    )


def test_pieces_of_images_stay_in_the_cache_for_all_windows_of_a_gradient_of_weights() -> None:
    assert gradient_of_weights(1) == snapshot(
        "split m 16; split k 6; split p 14; order n p0 i j k0 p1 q k1 m0 m1; unroll k1; unroll m0; vectorize m1; accumulate over p1 fused"
    )
    assert gradient_of_weights(1, stride=2) == gradient_of_weights(1)


@pytest.mark.parametrize(("cores", "size"), [(2, 16), (3, 22), (4, 16)])
def test_threads_have_equal_shares_of_rows_outside_of_pieces_of_sums(cores: int, size: int) -> None:
    text = gradient_of_weights(cores)
    assert text is not None
    assert f"split k {size} evenly; split k1 6; split p 14; " in text
    assert "order k0 n p0 i j k10 " in text


def test_more_threads_than_rows_share_windows_as_well() -> None:
    text = gradient_of_weights(16)
    assert text is not None
    assert "order i k0 j n p0 k10 " in text


def test_windows_that_do_not_overlap_are_outside_of_pieces_of_sums() -> None:
    text = gradient_of_weights(1, stride=2, window=2)
    assert text is not None
    assert "order i j n p0 k0 " in text


def long_product(rows: int, columns: int, cores: int, batch: int = 1) -> str | None:
    axes = [(B, batch), (I, rows), (J, columns), (K, 4096)]
    return chosen(
        axes,
        ((B, I, J), (batch, rows, columns)),
        ((B, I, K), (batch, rows, 4096)),
        ((B, K, J), (batch, 4096, columns)),
        target=replace(WIDE, cores=cores),
    )


def test_threads_share_the_rows_of_a_long_product_with_few_columns() -> None:
    assert long_product(512, 64, 1) == snapshot(
        "split k 16; split j 6; split m 512; order m0 i j0 m1 j1 k0 k1; unroll j1; unroll k0; vectorize k1; accumulate over m1 fused"
    )
    assert long_product(512, 64, 2) == snapshot(
        "split k 16; split j 128 evenly; split j1 6; split m 512; order j0 m0 i j10 m1 j11 k0 k1; unroll j11; unroll k0; vectorize k1; accumulate over m1 fused"
    )


@pytest.mark.parametrize(("batch", "outside"), [(2, "i k0"), (3, "i j0 k0"), (4, "i k0")])
def test_rows_are_shared_where_a_batch_does_not_come_out_even(batch: int, outside: str) -> None:
    text = long_product(256, 64, 2, batch)
    assert text is not None
    assert f"order {outside.replace('k', 'm')} " in text


SMALL = Target(
    "small", vector_bytes=16, vector_registers=8, has_fma=True, cache_bytes=(1 << 8, 1 << 10)
)
"""A processor with caches so small that short sums are cut."""


@st.composite
def sums_over_windows(draw: st.DrawFn) -> Example:
    """Return `c[v, i, j] += x[b, y, i] * z[b, stride * y + v, j]` over small integers."""
    extents = {B: (1, 3), Y: (3, 40), V: (1, 2, 3), I: (7, 48, 51), J: (3, 5)}
    batch, height, window, rows, columns = (
        draw(st.sampled_from(extents[var])) for var in (B, Y, V, I, J)
    )
    stride = draw(st.sampled_from([1, 2]))
    draft = Draft("windows")
    c = draft.node("c", int32, window, rows, columns)
    x = draft.node("x", int32, batch, height, rows)
    z = draft.node("z", int32, batch, stride * height + window, columns)
    place = affine([(stride, Y), (1, V)])
    term = Binary(BinaryOp.MUL, draft.load(x, B, Y, I), draft.load(z, B, place, J), int32)
    body: Stmt = draft.accumulate(c, V, I, J, op=BinaryOp.ADD, value=term)
    axes = ((V, window), (I, rows), (J, columns), (B, batch), (Y, height))
    for var, extent in reversed(draw(st.permutations(axes))):
        body = loop(var, extent, body)
    numbers = np.random.default_rng(draw(st.integers(0, 99)))
    arrays = {
        node: numbers.integers(-2, 3, draft.nodes[node].buffer_dims).astype(np.int32)
        for node in draft.params
    }
    return Example(draft.program(body), arrays)


@hypothesis_settings(
    max_examples=20, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(example=sums_over_windows(), cores=st.sampled_from([1, 2, 3, 16]))
def test_partitions_for_any_number_of_threads_agree_with_plain_loops(
    example: Example, cores: int
) -> None:
    nest = kernel_nest(example.program.body)
    assert nest is not None
    target = replace(SMALL, cores=cores)
    schedule = contraction_schedule(nest, dict(example.program.nodes), target)
    assume(schedule is not None)
    subject = subject_named("interp")
    expected = subject.run(example.program, example.arrays)
    found = subject.run(
        example.program,
        example.arrays,
        (),
        lambda plan, target: schedule_by_rule(plan, lambda nest, nodes: schedule),
    )
    for node in example.program.params:
        np.testing.assert_array_equal(found[node], expected[node])


def test_the_gradient_of_an_image_is_written_window_by_window() -> None:
    axes = [(B, 8), (Y, 28), (X, 28), (J, 64), (V, 3), (U, 3), (K, 64)]
    rows, columns = affine([(1, Y), (1, V)]), affine([(1, X), (1, U)])
    text = chosen(
        axes,
        ((B, rows, columns, K), (8, 30, 30, 64)),
        ((B, Y, X, J), (8, 28, 28, 64)),
        ((J, V, U, K), (64, 3, 3, 64)),
    )
    assert text == snapshot(
        "split q 16; split k 6; order i j k0 n p m k1 q0 q1; unroll k1; unroll q0; vectorize q1; pack 1 as n p m q; accumulate over m fused prefetch"
    )


def test_sums_of_rows_have_several_vectors_of_accumulators() -> None:
    assert chosen([(I, 32), (K, 1024)], ((I,), (32,)), ((I, K), (32, 1024))) == snapshot(
        "split j 128; split j1 16; order i j0 j10 j11; unroll j10; vectorize j11; accumulate over j0"
    )


def test_sums_of_columns_have_lanes_along_the_result() -> None:
    assert chosen([(J, 1024), (K, 32)], ((J,), (1024,)), ((K, J), (32, 1024))) == snapshot(
        "split i 64; split i1 16; split j 2; order i0 j0 j1 i10 i11; unroll j1; unroll i10; vectorize i11; accumulate over j0"
    )


def test_a_matrix_times_a_vector_shares_the_vector_among_rows() -> None:
    text = chosen([(I, 512), (K, 512)], ((I,), (512,)), ((I, K), (512, 512)), ((K,), (512,)))
    assert text == snapshot(
        "split i 4; split j 32; split j1 16; order i0 j0 i1 j10 j11; unroll i1; unroll j10; vectorize j11; accumulate over j0 fused"
    )


def test_little_work_keeps_its_loops() -> None:
    assert product(3) is None
