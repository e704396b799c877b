"""A product, statistics of its rows and a second product are one kernel on thread blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import ocannl_core as oc
from ocannl_core.ir.indexing import as_affine
from ocannl_core.ir.kernels.nodes import Kernel, Plan
from ocannl_core.ir.kernels.transforms import (
    FuseRows,
    WalkTiles,
    parse_kernel_schedule,
    schedule_text,
)
from ocannl_core.ir.loops.nodes import AxisKind, Barrier, For, LoopProgram
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.ir.numbers.dtypes import int32
from ocannl_core.ir.target import Target, ThreadBlocks
from ocannl_core.nn.embeddings import positions_of
from ocannl_core.passes.kernels.pipeline import finish_for, plan_kernels, schedule_for
from ocannl_core.tensor.operations.axes import require_shape
from ocannl_core.tensor.operations.literals import offsets
from ocannl_core.testing.subject import subject_named
from tests.support.attention import Sizes, attention_program, expected, random_operands
from tests.support.verify_plans import verify

SMALL = ThreadBlocks(64, 16, 1 << 15, subgroup=8, processors=1, vector_bytes=16, has_shuffles=True)
DEVICES = {
    "shuffles": SMALL,
    "plain": ThreadBlocks(max_threads=16, threads=16, local_bytes=1 << 13),
    "tiny": ThreadBlocks(max_threads=4, threads=4, local_bytes=1 << 13),
}


def device(blocks: ThreadBlocks) -> Target:
    return Target("cuda", has_fma=True, thread_blocks=blocks)


def planned(program: LoopProgram, blocks: ThreadBlocks = SMALL) -> Plan:
    return plan_kernels(program, device(blocks)).plan()


def walks(plan: Plan) -> list[Kernel]:
    """Return the kernels that walk along tiles."""
    return [
        step
        for step in plan.steps
        if isinstance(step, Kernel) and any(isinstance(t, WalkTiles) for t in step.schedule)
    ]


def tiles_of(kernel: Kernel, keys: int) -> int:
    (walking,) = (each for each in kernel.schedule if isinstance(each, WalkTiles))
    return -(-keys // walking.size)


def check(sizes: Sizes, blocks: ThreadBlocks, *, causal: bool, seed: int = 0) -> None:
    """Assert that the kernels of an attention are right on the interpreter."""
    program = attention_program(sizes, causal=causal)
    arrays, result = random_operands(program, sizes, seed)

    def schedule(plan: Plan, runs_on: Target) -> Plan:
        target = device(blocks)
        found = schedule_for(plan, target, finish_for(target)).plan()
        if walks(found):
            verify(found)
        return found

    found = subject_named("interp").run(program, arrays, (), schedule)[result]
    walking = walks(planned(program, blocks))
    tiles = tiles_of(walking[0], sizes.keys) if walking else 1
    exact, bound = expected(list(arrays.values()), causal=causal, tiles=tiles)  # type: ignore[arg-type]
    assert (abs(found.astype(np.float64) - exact) <= bound).all()


def test_attention_is_one_kernel_that_stores_no_scores() -> None:
    sizes = Sizes(2, 12, 20, 3, 8, 8)
    for causal in (False, True):
        plan = planned(attention_program(sizes, causal=causal))
        (kernel,) = plan.steps
        assert walks(plan) == [kernel]
        assert not plan.scratch
        assert sorted(node.label[-1] for node in kernel.arguments)[1:] == ["k", "q", "v"]


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_by_tiles_is_attention(name: str, causal: bool) -> None:
    check(Sizes(1, 5, 11, 2, 3, 4), DEVICES[name], causal=causal)


@settings(
    max_examples=6, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(
    sizes=st.builds(
        Sizes,
        st.sampled_from([1, 2]),
        st.sampled_from([1, 2, 7, 9]),
        st.sampled_from([1, 2, 5, 17, 20]),
        st.sampled_from([1, 2]),
        st.sampled_from([1, 3, 4, 8]),
        st.sampled_from([1, 4, 5]),
    ),
    causal=st.booleans(),
    name=st.sampled_from(sorted(DEVICES)),
)
def test_any_extents_are_right(sizes: Sizes, causal: bool, name: str) -> None:
    check(sizes, DEVICES[name], causal=causal)


def tile_loop(kernel: Kernel) -> For:
    """Return the loop over tiles of columns: the one with barriers in it."""
    (found,) = (
        each
        for each in walk(kernel.body)
        if isinstance(each, For) and any(isinstance(stmt, Barrier) for stmt in each.body.stmts)
    )
    return found


def test_tiles_behind_the_diagonal_are_left_out() -> None:
    sizes = Sizes(1, 64, 64, 1, 4, 4)
    ends = {}
    for causal in (False, True):
        (kernel,) = walks(planned(attention_program(sizes, causal=causal)))
        ends[causal] = tile_loop(kernel).bound
    assert ends[False] is None
    assert ends[True] is not None
    sizes_of = {
        type(each): each.size for each in kernel.schedule if isinstance(each, FuseRows | WalkTiles)
    }
    rows, columns = sizes_of[FuseRows], sizes_of[WalkTiles]
    terms, _ = as_affine(ends[True].index)
    assert sorted(step for step, _ in terms) == sorted((rows, columns))


def test_a_mask_inside_of_a_score_with_a_bias_hides_tiles() -> None:
    """The value behind the diagonal decides, not the place of the mask in the score."""
    dims = {"q": (64, 1, 4), "k": (64, 1, 4), "v": (64, 1, 4), "bias": (64, 1)}
    with oc.Session():
        q, k, v = (oc.placeholder(name, batch=[64], output=[1, 4]) for name in "qkv")
        bias = oc.placeholder("bias", batch=[64], output=[1])
        keys = require_shape(offsets(dtype=int32), "|_->")
        scores = oc.einsum("s|h d; t|h d => s|t->h", q, k)
        scores = oc.where(oc.less_equal(keys, positions_of(None)), scores, -math.inf)
        scores = scores + oc.einsum("t|h => 0|t->h", bias)
        weights = oc.softmax(scores, logic="s|t->h => s|0->h")
        z = oc.einsum("s|t->h; t|h e => s|h e", weights, v)
        program = oc.Context("interp").compile(oc.train.forward(z))._build.program.loops
    (kernel,) = walks(planned(program))
    assert tile_loop(kernel).bound is not None
    random = np.random.default_rng(0)
    names = {node.label[-1]: node for node in program.params}
    arrays = {names[n]: random.normal(size=dims[n]).astype(np.float32) for n in dims}
    (result,) = set(program.params) - set(arrays)
    interp = subject_named("interp")
    before = interp.run(program, arrays)[result]
    after = interp.run(program, arrays, (), lambda plan, _: planned(program))[result]
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)


def test_blocks_with_the_longest_walks_come_first() -> None:
    (kernel,) = walks(planned(attention_program(Sizes(1, 64, 64, 1, 4, 4), causal=True)))
    (grid,) = (e for e in walk(kernel.body) if isinstance(e, For) and e.kind is AxisKind.GRID)
    walking = tile_loop(kernel)
    assert walking.bound is not None
    terms, offset = as_affine(walking.bound.index)
    steps = {var: step for step, var in terms}
    assert steps.keys() == {grid.var, walking.var}
    ends = [
        sum(
            offset + steps[grid.var] * block + steps[walking.var] * tile < 1
            for tile in range(walking.stop)
        )
        for block in range(grid.stop)
    ]
    assert ends[0] == walking.stop
    assert ends == sorted(ends, reverse=True)
    assert ends[-1] < ends[0]


MASKS = {
    "some": lambda row, column: column % 3 == row % 2,
    "first tiles": lambda row, column: column >= 12,
    "whole rows": lambda row, column: row % 2 == 1,
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("is_sanitized", [False, True])
def test_scores_of_minus_infinity_have_no_weight(name: str, is_sanitized: bool) -> None:
    """A row of nothing else has weights 0 by softmax; the plain quotient is no number there."""
    random = np.random.default_rng(0)
    x, y = (random.normal(size=(n, 4)).astype(np.float32) for n in (6, 20))
    keeps = np.fromfunction(MASKS[name], (6, 20), dtype=int)
    with oc.Session():
        a = oc.placeholder("a", batch=[6], output=[4])
        b = oc.placeholder("b", batch=[20], output=[4])
        mask = oc.placeholder("mask", batch=[6], output=[20])
        scores = oc.where(mask, oc.einsum("s|d; t|d => s|t", a, b), -math.inf)
        if is_sanitized:
            weights = oc.softmax(scores, logic="...|... => ...|0")
        else:
            greatest = oc.stop_gradient(oc.einmax("...|... => ...|0", scores))
            exponentials = oc.exp(scores - greatest)
            weights = exponentials / oc.einsum("...|... => ...|0", exponentials)
        z = oc.einsum("s|t; t|d => s|d", weights, b)
        program = oc.Context("interp").compile(oc.train.forward(z))._build.program.loops
    assert len(walks(planned(program))) == 1
    names = {node.label[-1]: node for node in program.params}
    arrays = {names["a"]: x, names["b"]: y, names["mask"]: keeps.astype(np.float32)}
    (result,) = set(program.params) - set(arrays)
    interp = subject_named("interp")
    before = interp.run(program, arrays)[result]
    after = interp.run(program, arrays, (), lambda plan, _: planned(program))[result]
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert np.isnan(after).any() == (name == "whole rows" and not is_sanitized)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_scores_that_are_no_numbers_show(value: float) -> None:
    sizes = Sizes(1, 4, 20, 1, 4, 4)
    program = attention_program(sizes)
    arrays, result = random_operands(program, sizes)
    (keys,) = (cells for node, cells in arrays.items() if node.label[-1] == "k")
    keys[0, 3, 0, 0] = value
    found = subject_named("interp").run(program, arrays, (), lambda plan, _: planned(program))
    before = subject_named("interp").run(program, arrays)[result]
    assert (np.isnan(found[result]) == np.isnan(before)).all()
    assert np.isnan(before).any()


def test_a_product_without_statistics_is_a_chain() -> None:
    random = np.random.default_rng(0)
    x, y = (random.normal(size=(n, 4)).astype(np.float32) for n in (6, 20))
    with oc.Session():
        a = oc.placeholder("a", batch=[6], output=[4])
        b = oc.placeholder("b", batch=[20], output=[4])
        scores = oc.relu(oc.einsum("s|d; t|d => s|t", a, b))
        z = oc.einsum("s|t; t|d => s|d", scores, b)
        program = oc.Context("interp").compile(oc.train.forward(z))._build.program.loops
    assert len(walks(planned(program))) == 1
    names = {node.label[-1]: node for node in program.params}
    arrays = {names["a"]: x, names["b"]: y}
    (result,) = set(program.params) - set(arrays)
    found = subject_named("interp").run(program, arrays, (), lambda plan, _: planned(program))
    np.testing.assert_allclose(found[result], np.maximum(x @ y.T, 0) @ y, rtol=1e-5, atol=1e-5)


def test_gradients_of_a_layer_that_is_applied_twice_are_no_chain() -> None:
    """The second product is added to the first one, and sums over an axis that neither has."""
    with oc.Session():
        w = oc.param("w", output=[3], input=[3])
        x = oc.tensor(np.ones((4, 3)), batch_axes=1)
        loss = oc.einsum("...|...->... => 0", oc.tanh(w @ oc.tanh(w @ x)))
        step = oc.Context("interp").compile(oc.train.grad_update(loss), keep=[w.grad])
        program = step._build.program.loops
    plan = planned(program)
    assert walks(plan) == []
    verify(plan)


@pytest.mark.parametrize("is_kept", [False, True])
def test_weights_that_are_kept_are_stored(is_kept: bool) -> None:
    with oc.Session():
        x = oc.placeholder("x", batch=[16], output=[8])
        y = oc.placeholder("y", batch=[12], output=[8])
        scores = oc.einsum("s|d; t|d => s|t", x, y)
        weights = oc.softmax(scores, logic="...|... => ...|0")
        z = oc.einsum("s|t; t|d => s|d", weights, y)
        kept = [z, weights] if is_kept else [z]
        program = oc.Context("interp").compile(oc.train.forward(z), keep=kept)._build.program.loops
    assert len(walks(planned(program))) == (not is_kept)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_that_are_rounded_after_they_are_computed_are_not_stored(dtype: str) -> None:
    with oc.Session(dtype=dtype):
        x = oc.placeholder("x", batch=[16], output=[8])
        y = oc.placeholder("y", batch=[12], output=[8])
        scores = oc.cast(oc.einsum("s|d; t|d => s|t", x, y), "float32")
        weights = oc.cast(oc.softmax(scores, logic="...|... => ...|0"), dtype)
        z = oc.einsum("s|t; t|d => s|d", weights, y)
        program = oc.Context("interp").compile(oc.train.forward(z))._build.program.loops
    plan = planned(program)
    assert walks(plan) == list(plan.steps)
    assert not plan.scratch


ROWS = {
    "softmax": lambda x: oc.softmax(x),
    "log-softmax": lambda x: oc.log_softmax(x),
    "sum of exponentials": lambda x: oc.logsumexp(x, axis=-1),
    "layer norm": lambda x: oc.nn.layer_norm(x),
    "RMS norm": lambda x: oc.nn.rms_norm(x),
}


@pytest.mark.parametrize("extents", [(16, 64), (3, 4096)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ROWS)
def test_functions_of_rows_are_one_kernel(name: str, dtype: str, extents: tuple[int, int]) -> None:
    with oc.Session(dtype=dtype):
        x = oc.placeholder("x", batch=[extents[0]], output=[extents[1]])
        y = ROWS[name](x)
        program = oc.Context("interp").compile(oc.train.forward(y))._build.program.loops
    assert len(planned(program).steps) == 1


def test_the_notation_of_walks_is_complete() -> None:
    for text in ("rows i k j by 64 on 128; walk m by 32", "walk m by 64 on tiles"):
        assert schedule_text(parse_kernel_schedule(text)) == text
