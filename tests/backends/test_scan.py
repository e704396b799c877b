"""Loops over time: results and gradients beside unrolled programs, NumPy and central differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import ocannl_core as oc
from ocannl_core.testing.subject import subject_named
from tests.support.example_count import example_count
from tests.support.loops import KEEP, Array, computed, differentiated, normal, recurrence, total


def test_a_pointwise_recurrence_gives_the_bits_of_the_same_operations_in_numpy(target: str) -> None:
    xs = oc.placeholder("xs", batch=[5, 2], output=[3])

    def step(c: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
        c = c + x
        return c, c * 2

    ys, last = oc.scan(step, 0.0, xs)
    cells = normal(5, 2, 3)
    (values, carry), _ = computed(target, {xs: cells}, ys, last)
    sums = np.cumsum(cells, axis=0, dtype=np.float32)
    assert np.array_equal(values, sums * 2)
    assert np.array_equal(carry, sums[-1])


def test_steps_exchange_two_carries(target: str) -> None:
    xs = oc.placeholder("xs", batch=[4], output=[3])
    start = np.arange(3, dtype=np.float32), np.full(3, 7, np.float32)
    init = tuple(map(oc.tensor, start))
    ys, (p, q) = oc.scan(lambda c, x: ((c[1], c[0] + x), c[0]), init, xs)
    cells = normal(4, 3)
    found, _ = computed(target, {xs: cells}, ys, p, q)
    one, two = start
    values = []
    for entry in cells:
        values.append(one)
        one, two = two, one + entry
    assert all(map(np.array_equal, found, [np.array(values), one, two]))


def test_a_reversed_loop_keeps_the_positions_of_values(target: str) -> None:
    xs = oc.placeholder("xs", batch=[4], output=[3])
    ys, last = oc.scan(lambda c, x: (c + x, c), 0.0, xs, reverse=True)
    cells = normal(4, 3)
    (values, carry), _ = computed(target, {xs: cells}, ys, last)
    sums = np.cumsum(cells[::-1], axis=0, dtype=np.float32)[::-1]
    assert np.array_equal(values, np.concatenate([sums[1:], np.zeros((1, 3), np.float32)]))
    assert np.array_equal(carry, sums[0])


@pytest.mark.parametrize("length", [0, 1, 5])
def test_a_stated_length_takes_the_place_of_a_time_axis(target: str, length: int) -> None:
    start = oc.tensor(np.ones(2, np.float32))
    ys, last = oc.scan(lambda c, x: (c * 2, c), start, length=length)
    (carry, values), _ = computed(target, {}, last, ys)
    assert values.tolist() == [[2.0**k] * 2 for k in range(length)]
    assert carry.tolist() == [2.0**length] * 2


def test_the_carry_takes_batch_axes_and_formats_of_its_own(target: str) -> None:
    xs = oc.placeholder("xs", batch=[4, 2, 5], output=[3])
    w, u = oc.param("w", output=[7], input=[3]), oc.param("u", output=[7], input=[7])
    init = {"h": oc.param("h0", output=[7]), "n": oc.tensor(np.zeros((), np.int32))}

    def step(c: dict[str, oc.Tensor], x: oc.Tensor) -> tuple[dict[str, oc.Tensor], oc.Tensor]:
        return {"n": c["n"] + 1, "h": oc.tanh(w @ x + u @ c["h"])}, c["n"]

    ys, last = oc.scan(step, init, xs)
    (count, counts, carry), _ = computed(target, {xs: normal(4, 2, 5, 3)}, last["n"], ys, last["h"])
    assert count == 4
    assert counts.dtype == np.int32
    assert counts.reshape(-1).tolist() == [0, 1, 2, 3]
    assert carry.shape == (2, 5, 7)


def test_a_loop_reads_a_static_index_of_the_routine(target: str) -> None:
    i = oc.static_index("i", range=5)
    xs = oc.placeholder("xs", batch=[5, 4], output=[3])
    scale = oc.placeholder("scale", batch=[5], output=[3])
    _, last = oc.scan(lambda c, x: (c + x * scale[i], None), 0.0, xs[i])
    cells, factors = normal(5, 4, 3), normal(5, 3, seed=1)
    ctx = oc.Context(target)
    ctx[xs], ctx[scale] = cells, factors
    routine = ctx.compile(oc.train.forward(last), bindings=[i])
    for row in (0, 3):
        routine(i=row)
        np.testing.assert_allclose(ctx[last], (cells[row] * factors[row]).sum(0), rtol=1e-5)
    with pytest.raises(oc.UsageError):
        routine(i=5)


def test_random_numbers_differ_from_step_to_step_and_between_nested_loops(target: str) -> None:
    def inner(c: oc.Tensor, x: None) -> tuple[oc.Tensor, oc.Tensor]:
        return c, oc.uniform() + c

    def outer(c: oc.Tensor, x: None) -> tuple[oc.Tensor, oc.Tensor]:
        ys, c = oc.scan(inner, c, length=3)
        return c, ys

    zeros = oc.tensor(np.zeros(8, np.float32))
    ys, _ = oc.scan(outer, zeros, length=4)
    (values,), _ = computed(target, {}, ys)
    assert values.shape == (4, 3, 8)
    assert len(np.unique(values)) == values.size


def test_random_numbers_are_the_same_in_every_run(target: str) -> None:
    def run() -> Array:
        with oc.Session(seed=5):
            zeros = oc.tensor(np.zeros(8, np.float32))
            ys, _ = oc.scan(lambda c, x: (c, oc.uniform() + c), zeros, length=3)
            (values,), _ = computed(target, {}, ys)
            return values

    assert np.array_equal(run(), run())


def test_a_loop_in_recorded_code_reads_tensors_made_there(target: str) -> None:
    xs, out = oc.placeholder("xs", batch=[4], output=[3]), oc.declare("out", output=[3])

    @oc.cd
    def code() -> None:
        doubled = xs * 2.0
        _, last = oc.scan(lambda c, x: (c + x, None), 0.0, doubled)
        out[:] = last + 1.0

    ctx = oc.Context(target)
    ctx[xs] = cells = normal(4, 3)
    ctx.compile(code())()
    np.testing.assert_allclose(ctx[out], 2 * cells.sum(0) + 1, rtol=1e-5)


def test_code_that_a_step_does_not_change_runs_once_outside(target: str) -> None:
    w = oc.param("w", output=[3], input=[3])
    xs = oc.placeholder("xs", batch=[4], output=[3])
    _, last = oc.scan(lambda c, x: (oc.tanh(w * 2) @ c + x, None), 0.0, xs)
    _, ctx = computed(target, {xs: normal(4, 3)}, last)
    text = ctx.compile(oc.train.forward(last)).assignments
    before, inside = text.split("repeat t in range(4):")
    assert "= tanh(" in before
    assert "= tanh(" not in inside


class Pair(NamedTuple):
    left: Any
    right: Any


def structures(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=2),
            st.lists(inner, min_size=1, max_size=2).map(tuple),
            st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=2),
            st.builds(Pair, inner, inner),
        ),
        max_leaves=3,
    )


def mapped(structure: Any, function: Callable[[Any], Any]) -> Any:
    match structure:
        case dict():
            return {key: mapped(each, function) for key, each in structure.items()}
        case Pair(left, right):
            return Pair(mapped(left, function), mapped(right, function))
        case list() | tuple():
            return type(structure)(mapped(each, function) for each in structure)
        case _:
            return function(structure)


def flat(structure: Any) -> list[Any]:
    found: list[Any] = []
    mapped(structure, found.append)
    return found


@hypothesis_settings(
    max_examples=example_count(6),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    structures(st.integers(1, 3)), structures(st.integers(1, 3)), st.booleans(), st.integers(1, 3)
)
def test_carries_and_values_have_any_structure(
    target: str, carry: Any, entries: Any, reverse: bool, length: int
) -> None:
    with oc.Session():
        widths = flat(entries)
        rows = [normal(length, width, seed=n) for n, width in enumerate(widths)]
        remaining = iter(rows)
        arrays = mapped(entries, lambda _: next(remaining))
        xs = mapped(arrays, lambda cells: oc.tensor(cells, batch_axes=1))
        init = mapped(carry, lambda width: oc.tensor(np.ones(width, np.float32)))

        def step(c: Any, x: Any) -> tuple[Any, Any]:
            shared = total(flat(x)[0])
            return mapped(c, lambda each: each * 0.5 + shared), mapped(
                x, lambda each: each + shared
            )

        ys, last = oc.scan(step, init, xs, reverse=reverse)
        assert mapped(ys, lambda _: 0) == mapped(entries, lambda _: 0)
        assert mapped(last, lambda _: 0) == mapped(carry, lambda _: 0)
        found, _ = computed(target, {}, *flat(last), *flat(ys))
        sums = rows[0].sum(axis=1)
        value = np.float32(1)
        for each in sums[::-1] if reverse else sums:
            value = value * np.float32(0.5) + each
        for cells in found[: len(flat(last))]:
            np.testing.assert_allclose(cells, np.full(cells.shape, value), rtol=1e-4, atol=1e-5)
        for cells, row in zip(found[len(flat(last)) :], rows, strict=True):
            np.testing.assert_allclose(cells, row + sums[:, None], rtol=1e-4, atol=1e-5)


def test_the_code_of_a_loop_has_the_same_size_for_any_number_of_steps(target: str) -> None:
    def sizes(steps: int) -> tuple[int, int, int]:
        with oc.Session():
            xs, loss = recurrence(steps)
            _, _, routine = differentiated(target, {xs: normal(steps, 2, 3)}, loss)
            lines = routine.source.count("\n"), routine.loop_ir.count("\n")
            return len(routine.plan.kernels), *lines

    if subject_named(target).target.thread_blocks is not None:
        pytest.skip("the threads of a block depend on the extents of loops")
    assert sizes(12) == sizes(48)


def test_gradients_are_the_same_for_every_choice_of_kept_values(target: str) -> None:
    def gradients(keep: str) -> dict[str, Array]:
        with oc.Session(seed=4):
            xs = oc.placeholder("xs", batch=[4, 2], output=[3])
            w, u = oc.param("w", output=[4], input=[3]), oc.param("u", output=[4], input=[4])

            def step(h: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
                return oc.tanh(w @ x + u @ h), h

            ys, _ = oc.scan(step, oc.param("h0", output=[4]), xs, keep=keep)
            return differentiated(target, {xs: normal(4, 2, 3)}, total(ys * ys))[1]

    first, *others = map(gradients, KEEP)
    for other in others:
        for name, cells in first.items():
            np.testing.assert_allclose(cells, other[name], rtol=1e-5, atol=1e-6)


def test_reports_of_a_routine_cover_the_steps_of_its_loops(target: str) -> None:
    with oc.Session():
        xs, loss = recurrence(6)
        _, _, routine = differentiated(target, {xs: normal(6, 2, 3)}, loss)
    count = len(routine.plan.kernels)
    assert count > len(routine.plan.steps)
    assert len(routine.profile(seconds=0.01).kernels) == count
    explained = oc.explain(routine)
    assert len(explained.kernels) == count
    assert any(each.reason == "the iterations of a loop compute it" for each in explained.nodes)
    assert routine.memory_plan.places.keys() == set(routine.plan.own_nodes)


def test_transformer_layers_compile_to_the_same_number_of_kernels_for_any_depth(
    target: str,
) -> None:
    def kernels(layers: int) -> int:
        with oc.Session(seed=1):
            x = oc.placeholder("x", batch=[1, 4], output=[6])
            mask = oc.nn.causal_mask(4)

            def layer(h: oc.Tensor) -> oc.Tensor:
                attended = oc.nn.multi_head_attention(oc.nn.layer_norm(h), mask, heads=1, width=3)
                h = h + attended
                found: oc.Tensor = h + oc.nn.dense(oc.relu(oc.nn.layer_norm(h)))
                return found

            y = oc.nn.repeat_layers(layer, x, layers=layers)
            (cells,), ctx = computed(target, {x: normal(1, 4, 6)}, y)
            assert np.isfinite(cells).all()
            assert all(ctx[p].shape[0] == layers for p in y.params)
            return len(ctx.compile(oc.train.forward(y)).plan.kernels)

    assert kernels(2) == kernels(5)


def test_dropout_drops_other_cells_in_each_step_and_each_backpropagation(target: str) -> None:
    with oc.Session(seed=1):
        start = oc.param("start", init=np.ones(16, np.float32))
        ys, _ = oc.scan(lambda c, x: (c, oc.nn.dropout(c, rate=0.5)), start, length=3)
        loss = total(ys)
        ctx = oc.Context(target)
        ctx.init_params(loss)
        routine = ctx.compile(oc.train.grad_update(loss), keep=[ys, loss, start.grad])
        seen = []
        for _ in range(2):
            routine()
            seen += list(ctx[ys])
            np.testing.assert_allclose(ctx[start.grad], ctx[ys].sum(0))
        assert len({each.tobytes() for each in seen}) == 6


def test_running_statistics_are_refused_in_a_step() -> None:
    xs = oc.placeholder("xs", batch=[3, 4], output=[2])
    with pytest.raises(oc.UsageError, match="batch_norm in the body of"):
        oc.scan(lambda c, x: (c + oc.nn.batch_norm(x), None), 0.0, xs)


@pytest.mark.parametrize("keep", KEEP)
def test_a_step_takes_rows_at_positions_of_its_entry(target: str, keep: str) -> None:
    ids = oc.placeholder("ids", batch=[5, 2], output=[], dtype="int32")
    table = oc.param("table", output=[4, 3], init=normal(4, 3))

    def step(c: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, None]:
        return c + oc.take(table, x, axis=0), None

    _, last = oc.scan(step, 0.0, ids, keep=keep)
    loss = oc.einsum("...|... => |", last)
    cells = np.array([[0, 1], [1, 3], [3, 3], [0, 2], [3, 1]], np.int32)
    ctx = oc.Context(target)
    ctx.init_params(loss)
    update = ctx.compile(oc.train.grad_update(loss), keep=[last, table.grad])
    ctx[ids] = cells
    update()
    rows = ctx[table]
    np.testing.assert_allclose(ctx[last], rows[cells].sum(axis=0), rtol=1e-6)
    counts = np.bincount(cells.reshape(-1), minlength=4)
    assert ctx[table.grad].tolist() == [[count] * 3 for count in counts.tolist()]


def test_a_wrong_position_at_a_later_step_is_an_error(target: str) -> None:
    ids = oc.placeholder("ids", batch=[5, 2], output=[], dtype="int32")
    table = oc.tensor(normal(4, 3))
    _, last = oc.scan(lambda c, x: (c + oc.take(table, x, axis=0), None), 0.0, ids)
    ctx = oc.Context(target)
    routine = ctx.compile(oc.train.forward(last), keep=[last])
    good = np.zeros((5, 2), np.int32)
    bad = good.copy()
    bad[3, 1] = 4
    ctx[ids] = bad
    with pytest.raises(oc.UsageError, match="4"):
        routine()
    ctx[ids] = good
    routine()
    np.testing.assert_allclose(ctx[last], 5 * ctx[table][good[0]], rtol=1e-6)


def test_wrong_positions_that_all_steps_share_are_refused_before_the_first(target: str) -> None:
    xs = oc.placeholder("xs", batch=[3], output=[2])
    ids = oc.placeholder("ids", output=[2], batch=[], dtype="int32")
    ys, _ = oc.scan(lambda c, x: (c + 1.0, oc.take(c + x, ids, axis=0)), oc.tensor([0.0, 0.0]), xs)
    ctx = oc.Context(target)
    routine = ctx.compile(oc.train.forward(ys), keep=[ys])
    ctx[xs], ctx[ids] = np.ones((3, 2), np.float32), np.array([1, 0], np.int32)
    routine()
    before = ctx[ys]
    assert before.tolist() == [[1, 1], [2, 2], [3, 3]]
    ctx[ids] = np.array([0, 2], np.int32)
    with pytest.raises(oc.UsageError, match="2"):
        routine()
    assert np.array_equal(ctx[ys], before)


@pytest.mark.parametrize("size", [6, 2, 0])
@pytest.mark.parametrize("keep", KEEP)
def test_entries_have_axes_with_extents_at_run_time(target: str, size: int, keep: str) -> None:
    n = oc.static_extent("n", max=6)
    xs = oc.placeholder("xs", batch=[4, n], output=[3])
    w = oc.param("w", output=[3], init=normal(3))
    ys, last = oc.scan(lambda c, x: (oc.tanh(c * w + x), c), 0.0, xs, keep=keep)
    loss = oc.einsum("...|... => |", last) + oc.einsum("...|... => |", ys)
    ctx = oc.Context(target)
    ctx.init_params(loss)
    update = ctx.compile(oc.train.grad_update(loss), keep=[last, w.grad])
    cells = normal(4, size, 3)
    ctx[xs] = cells
    update(n=size)
    weight = ctx[w].astype(np.float64)
    carry, slope = np.zeros((size, 3)), np.zeros((size, 3))
    total_slope = np.zeros(3)
    for entry in cells:
        total_slope += slope.sum(axis=0)
        slope = (carry + slope * weight) * (1 - np.tanh(carry * weight + entry) ** 2)
        carry = np.tanh(carry * weight + entry)
    total_slope += slope.sum(axis=0)
    np.testing.assert_allclose(ctx[last], carry, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ctx[w.grad], total_slope, rtol=1e-3, atol=1e-5)
