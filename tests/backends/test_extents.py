"""Extents at run time: one routine for every size of an axis up to a maximum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ocannl_core as oc
from tests.support.example_count import example_count

Array = npt.NDArray[Any]
Axis = int | oc.StaticExtent

SIZES = (6, 4, 1, 0)
ROWS = "...|... => ...|0"


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def whole_numbers(*shape: int, seed: int = 0) -> Array:
    """Return small integers, whose sums and products are exact."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True, initial=-np.inf))
    return e / e.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("size", SIZES)
def test_pointwise_operations_give_the_prefix(target: str, size: int) -> None:
    oc.reset()
    n, ctx = oc.static_extent("n", max=6), oc.Context(target)
    x = oc.placeholder("x", batch=[n], output=[5])
    y = oc.relu(x) * 2.0 + 1.0
    step = ctx.compile(oc.train.forward(y))
    cells = whole_numbers(size, 5)
    ctx[x] = cells
    step(n=size)
    np.testing.assert_array_equal(ctx[y], np.maximum(cells, 0) * 2 + 1)
    np.testing.assert_array_equal(ctx[x], cells)


@pytest.mark.parametrize("size", SIZES)
def test_results_without_cells_have_the_extent_of_the_call(target: str, size: int) -> None:
    oc.reset()
    n, ctx = oc.static_extent("n", max=6), oc.Context(target)
    x = oc.placeholder("x", batch=[n], output=[5])
    y = x[:, :0]
    step = ctx.compile(oc.train.forward(y) + oc.train.forward(x * 2.0))
    other = ctx.compile(oc.train.forward(y))
    ctx[x] = whole_numbers(5, 5)
    step(n=5)
    assert ctx[y].shape == (5, 0)
    ctx[x] = whole_numbers(size, 5)
    other(n=size)
    assert ctx[y].shape == (size, 0)


@pytest.mark.parametrize("size", SIZES)
def test_reductions_see_the_valid_part_only(target: str, size: int) -> None:
    oc.reset()
    n, ctx = oc.static_extent("n", max=6), oc.Context(target)
    x = oc.placeholder("x", batch=[n], output=[5])
    total, largest = oc.einsum("b|o => |o", x), oc.einmax("b|o => |o", x)
    whole, rows = oc.einsum("b|o => 0", x), oc.einsum("b|o => b|0", x)
    code = sum(map(oc.train.forward, (largest, whole, rows)), oc.train.forward(total))
    step = ctx.compile(code)
    ctx[x] = np.full((6, 5), 1e30, np.float32)  # what earlier calls leave behind
    step()
    cells = whole_numbers(size, 5)
    ctx[x] = cells
    step(n=size)
    np.testing.assert_array_equal(ctx[total], cells.sum(axis=0))
    np.testing.assert_array_equal(ctx[largest], cells.max(axis=0, initial=-np.inf))
    np.testing.assert_array_equal(ctx[whole], [cells.sum()])
    np.testing.assert_array_equal(ctx[rows], cells.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("size", SIZES)
def test_products_are_exact_with_the_extent_in_every_place(target: str, size: int) -> None:
    oc.reset()
    n, ctx = oc.static_extent("n", max=6), oc.Context(target)
    a = oc.placeholder("a", batch=[n], output=[7])
    b = oc.placeholder("b", batch=[n], output=[9])
    w = oc.tensor(whole_numbers(9, 7, seed=5), input_axes=1)
    rows = w @ a
    inner = oc.einsum("t|i; t|j => i|j", a, b)
    outer = oc.einsum("s|i; t|i => s|t", a, a)
    both = oc.einsum("s|t; t|j => s|j", outer, b)
    code = sum(map(oc.train.forward, (inner, outer, both)), oc.train.forward(rows))
    step = ctx.compile(code)
    ctx[a], ctx[b] = np.full((6, 7), 3e38, np.float32), np.full((6, 9), -3e38, np.float32)
    step()
    x, y = whole_numbers(size, 7), whole_numbers(size, 9, seed=1)
    ctx[a], ctx[b] = x, y
    step(n=size)
    np.testing.assert_array_equal(ctx[rows], x @ whole_numbers(9, 7, seed=5).T)
    np.testing.assert_array_equal(ctx[inner], x.T @ y)
    np.testing.assert_array_equal(ctx[outer], x @ x.T)
    np.testing.assert_array_equal(ctx[both], x @ x.T @ y)


@pytest.mark.parametrize("size", SIZES)
def test_softmax_and_normalization_run_along_an_extent(target: str, size: int) -> None:
    oc.reset()
    n, ctx = oc.static_extent("n", max=6), oc.Context(target)
    x = oc.placeholder("x", batch=[3], output=[n])
    weights = oc.softmax(x, logic=ROWS)
    centered = x - oc.mean(x, logic=ROWS)
    step = ctx.compile(oc.train.forward(weights) + oc.train.forward(centered))
    cells = numbers(3, size)
    ctx[x] = cells
    step(n=size)
    np.testing.assert_allclose(ctx[weights], softmax(cells), rtol=1e-6)
    expected = cells - cells.mean(axis=1, keepdims=True) if size else cells
    np.testing.assert_allclose(ctx[centered], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_causal_attention_looks_at_positions_before_the_extent(target: str, size: int) -> None:
    oc.reset()
    most, heads, depth = 6, 2, 4
    n, ctx = oc.static_extent("n", max=most), oc.Context(target)
    q, k, v = (oc.placeholder(each, batch=[n], output=[heads, depth]) for each in "qkv")
    positions = oc.placeholder("positions", batch=[n])
    scores = oc.einsum("s|h d; t|h d => s|t->h", q, k)
    later = oc.einsum("s|; t| => s|t->0", positions * 0.0 + 1.0, positions)
    now = oc.einsum("s|; t| => s|t->0", positions, positions * 0.0 + 1.0)
    masked = oc.where(oc.less(now, later), -1e9, scores)
    weights = oc.softmax(masked, logic="s|t->h => s|0->h")
    y = oc.einsum("s|t->h; t|h d => s|h d", weights, v)
    step = ctx.compile(oc.train.forward(y))
    for tensor in (q, k, v):
        ctx[tensor] = np.full((most, heads, depth), 1e18, np.float32)
    ctx[positions] = np.arange(most, dtype=np.float32)
    step()
    a, b, c = (numbers(size, heads, depth, seed=seed) for seed in range(3))
    for tensor, cells in zip((q, k, v), (a, b, c), strict=True):
        ctx[tensor] = cells
    ctx[positions] = np.arange(size, dtype=np.float32)
    step(n=size)
    s = np.einsum("shd,thd->hst", a, b)
    s = np.where(np.arange(size)[:, None] < np.arange(size), -1e9, s)
    np.testing.assert_allclose(
        ctx[y], np.einsum("hst,thd->shd", softmax(s), c), rtol=1e-5, atol=1e-6
    )


@dataclass(frozen=True)
class Perceptron:
    """A network and its training step in a context."""

    ctx: oc.Context
    x: oc.Tensor
    classes: oc.Tensor
    loss: oc.Tensor
    parameters: Sequence[oc.Tensor]
    step: oc.Routine


def perceptron(target: str, size: Axis, width: int = 20) -> Perceptron:
    """Return a network that is trained by the mean of the squared errors over a batch."""
    oc.reset(seed=3)
    x = oc.placeholder("x", batch=[size], output=[5])
    wanted = oc.placeholder("wanted", batch=[size], output=[3])
    w1, b1 = oc.param("w1", output=[width]), oc.param("b1", output=[width], init=0.1)
    w2 = oc.param("w2", output=[3])
    y = oc.softmax(w2 @ oc.relu(w1 @ x + b1), logic=ROWS)
    loss = oc.mean((y - wanted) * (y - wanted), logic="b|... => |0")
    ctx = oc.Context(target)
    ctx.init_params(loss)
    code = oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.5)
    return Perceptron(ctx, x, wanted, loss, (w1, b1, w2), ctx.compile(code))


def state(network: Perceptron) -> list[Array]:
    cells = [network.ctx[each] for each in network.parameters]
    return [network.ctx[network.loss], *cells, *(network.ctx[p.grad] for p in network.parameters)]


@pytest.mark.parametrize("size", SIZES)
def test_a_training_step_is_that_of_the_minibatch(target: str, size: int) -> None:
    network = perceptron(target, oc.static_extent("n", max=6))
    for seed, now in enumerate((6, 3, size)):
        network.ctx[network.x] = numbers(now, 5, seed=seed)
        network.ctx[network.classes] = softmax(numbers(now, 3, seed=seed + 9))
        before = [network.ctx[p].astype(np.float64) for p in network.parameters]
        network.step(n=now)
    cells, wanted = numbers(size, 5, seed=2), softmax(numbers(size, 3, seed=11))
    w1, b1, w2 = before
    h = np.maximum(cells @ w1.T + b1, 0)
    y = softmax(h @ w2.T)
    loss = ((y - wanted) ** 2).sum() / (3 * size) if size else np.nan
    d_y = 2 * (y - wanted) / (3 * max(size, 1))
    d_z = y * (d_y - (d_y * y).sum(axis=1, keepdims=True))
    d_h = (d_z @ w2) * (h > 0)
    found, *parameters = state(network)
    np.testing.assert_allclose(found, [loss], rtol=1e-5)
    gradients = [d_h.T @ cells, d_h.sum(axis=0), d_z.T @ h]
    for value, gradient, old, expected in zip(
        parameters[:3], parameters[3:], before, gradients, strict=True
    ):
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(value, old - 0.5 * expected, rtol=1e-5, atol=1e-6)


def test_the_gradient_of_a_table_adds_the_rows_that_are_read(target: str) -> None:
    oc.reset()
    n, ctx = oc.static_extent("n", max=6), oc.Context(target)
    ids = oc.placeholder("ids", batch=[n], dtype="int32")
    table = oc.param("table", input=[4], output=[3], init=numbers(3, 4))
    entries = oc.tensor(np.arange(4), dtype="int32", label="entries")
    rows = table @ oc.cast(oc.equal(entries, oc.einsum("b| => b|0", ids)), dtype="float32")
    loss = oc.einsum("b|o => 0", rows)
    ctx.init_params(loss)
    step = ctx.compile(oc.train.grad_update(loss) + oc.train.forward(rows))
    for read in ([1, 3, 1, 1, 0, 2], [2, 2], []):
        ctx[ids] = np.array(read, np.int32)
        step(n=len(read))
        np.testing.assert_array_equal(ctx[rows], numbers(3, 4).T[read].reshape(-1, 3))
        counts = np.bincount(np.array(read, int), minlength=4)
        np.testing.assert_array_equal(ctx[table.grad], np.tile(counts, (3, 1)))


def assert_same_bits(found: Sequence[Array], expected: Sequence[Array]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert one.tobytes() == other.tobytes()


def trained(target: str, size: Axis, rows: int, **given: int) -> list[Array]:
    network = perceptron(target, size, width=33)
    for seed in range(2):
        network.ctx[network.x] = numbers(rows, 5, seed=seed)
        network.ctx[network.classes] = softmax(numbers(rows, 3, seed=seed + 9))
        network.step(**given)
    return state(network)


@settings(max_examples=example_count(4), deadline=None)
@given(data=st.data())
def test_bits_are_those_of_the_routine_of_this_size(target: str, data: st.DataObject) -> None:
    most = data.draw(st.integers(2, 8))
    size = data.draw(st.integers(1, most))
    with oc.settings.overrides(schedule="none"):
        n = oc.static_extent("n", max=most)
        assert_same_bits(trained(target, n, size, n=size), trained(target, size, size))


@settings(max_examples=example_count(3), deadline=None)
@given(most=st.integers(2, 70))
def test_at_the_maximum_schedules_give_the_bits_of_a_constant_size(target: str, most: int) -> None:
    if target.startswith("interp"):
        most = min(most, 5)
    n = oc.static_extent("n", max=most)
    assert_same_bits(trained(target, n, most), trained(target, most, most))


def forward_of(target: str, most: int) -> Callable[[int], list[Array]]:
    """Return a function that computes rows of several layers, as many as it is given."""
    oc.reset(seed=1)
    n, ctx = oc.static_extent("n", max=most), oc.Context(target)
    x = oc.placeholder("x", batch=[n], output=[40])
    y = oc.param("w", output=[33]) @ x
    z = oc.softmax(y, logic=ROWS)
    ctx.init_params(z)
    step = ctx.compile(oc.train.forward(y) + oc.train.forward(z))

    def run(size: int) -> list[Array]:
        ctx[x] = numbers(most, 40)[:size]
        step(n=size)
        return [ctx[y], ctx[z]]

    return run


def test_bits_of_a_row_do_not_depend_on_the_number_of_rows(target: str) -> None:
    most = 7 if target.startswith("interp") else 67
    run = forward_of(target, most)
    whole = run(most)
    for size in (1, 2, most // 2, most - 1):
        assert_same_bits(run(size), [each[:size] for each in whole])


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    found: list[list[Array]] = []
    for threads in (1, 2, 3):
        with oc.settings.overrides(threads=threads):
            oc.reset(seed=1)
            n, ctx = oc.static_extent("n", max=200), oc.Context("cpu_c")
            x = oc.placeholder("x", batch=[n], output=[128])
            loss = oc.einsum("b|o => 0", oc.relu(oc.param("w", output=[256]) @ x))
            ctx.init_params(loss)
            step = ctx.compile(oc.train.grad_update(loss))
            assert any(each.is_parallel for each in step.plan.steps if hasattr(each, "is_parallel"))
            cells: list[Array] = []
            for size in (200, 131, 7, 1, 0):
                ctx[x] = numbers(200, 128)[:size]
                step(n=size)
                cells += [ctx[loss], *(ctx[p.grad] for p in loss.parameters())]
            found.append(cells)
    assert_same_bits(found[1], found[0])
    assert_same_bits(found[2], found[0])


@settings(max_examples=example_count(13), deadline=None)
@given(
    most=st.integers(2, 40),
    fixed=st.integers(1, 40),
    spec=st.sampled_from(
        [
            "s|d; t|d => s|t",
            "s|d; t|d => t|s",
            "s|d; t|d => |d",
            "s|d; t|d => s|0",
            "s|d; s|d => |d",
            "s|d; s|d => 0",
        ]
    ),
    data=st.data(),
)
def test_products_of_every_size_are_those_of_numpy(
    target: str, most: int, fixed: int, spec: str, data: st.DataObject
) -> None:
    if target.startswith("interp"):
        most, fixed = min(most, 6), min(fixed, 6)
    oc.reset()
    n, m = oc.static_extent("n", max=most), oc.static_extent("m", max=most + 1)
    has_two = "t" in spec
    sizes = {"n": data.draw(st.integers(0, most)), "m": data.draw(st.integers(0, most + 1))}
    ctx = oc.Context(target)
    x = oc.placeholder("x", batch=[n], output=[fixed])
    y = oc.placeholder("y", batch=[m if has_two else n], output=[fixed])
    with oc.settings.overrides(warn_summed_once=False):
        z = oc.einsum(spec, x, y)
    step = ctx.compile(oc.train.forward(z))
    ctx[x] = np.full((most, fixed), 1e30, np.float32)
    ctx[y] = np.full((most + has_two, fixed), 1e30, np.float32)
    step()
    a = whole_numbers(sizes["n"], fixed)
    b = whole_numbers(sizes["m" if has_two else "n"], fixed, seed=1)
    ctx[x], ctx[y] = a, b
    step(**(sizes if has_two else {"n": sizes["n"]}))
    left, right = spec.replace("|", "").replace(" ", "").split("=>")
    first, second = left.split(";")
    expected = np.einsum(f"{first},{second}->{right.replace('0', '')}", a, b)
    np.testing.assert_array_equal(ctx[z], expected.reshape(ctx[z].shape))


def test_several_extents_are_arguments_of_one_routine(target: str) -> None:
    oc.reset()
    n, m = oc.static_extent("n", max=6), oc.static_extent("m", max=5)
    ctx = oc.Context(target)
    x, y = oc.placeholder("x", batch=[n], output=[3]), oc.placeholder("y", batch=[m], output=[3])
    z = oc.einsum("a|i; b|i => a|b", x, y)
    mean = oc.mean(z, logic="a|b => 0")
    step = ctx.compile(oc.train.forward(z) + oc.train.forward(mean))
    assert "forward(n, m)" in repr(step)
    for sizes in ((6, 5), (4, 2), (1, 5), (0, 3)):
        a, b = whole_numbers(sizes[0], 3), whole_numbers(sizes[1], 3, seed=1)
        ctx[x], ctx[y] = a, b
        step(n=sizes[0], m=sizes[1])
        np.testing.assert_array_equal(ctx[z], a @ b.T)
        expected = np.float32((a @ b.T).sum()) / np.float32(sizes[0] * sizes[1]) if a.size else 0
        np.testing.assert_allclose(ctx[mean], [expected if a.size else np.nan], rtol=1e-6)


def test_an_extent_without_a_value_is_its_maximum(target: str) -> None:
    oc.reset()
    n, ctx = oc.static_extent("n", max=6), oc.Context(target)
    x = oc.placeholder("x", output=[n])
    total = oc.einsum("o => 0", x)
    step = ctx.compile(oc.train.forward(total))
    ctx[x] = np.arange(6.0)
    step()
    assert ctx.item(total) == 15
    step(n=3)
    assert ctx.item(total) == 3
    step()
    assert ctx.item(total) == 15


def test_a_captured_size_is_that_of_the_call(target: str) -> None:
    oc.reset()
    n, ctx = oc.static_extent("n", max=6), oc.Context(target)
    x, size = oc.placeholder("x", batch=[n], output=[2]), oc.dim("b")
    mean = oc.einsum("b|o => |o", x, capture=[size]) / size
    assert size.size == 6
    doubled = x * oc.number(n)
    step = ctx.compile(oc.train.forward(mean) + oc.train.forward(doubled))
    ctx[x] = np.arange(12.0).reshape(6, 2)
    for now in (6, 4, 1):
        step(n=now)
        np.testing.assert_array_equal(ctx[mean], np.arange(12.0).reshape(6, 2)[:now].mean(axis=0))
        np.testing.assert_array_equal(ctx[doubled], np.arange(2.0 * now).reshape(now, 2) * now)


def test_declared_tensors_keep_the_cells_up_to_the_extent(target: str) -> None:
    """A cache of keys grows by one row each call, and is read up to the row just written."""
    oc.reset()
    n, i, ctx = oc.static_extent("n", max=6), oc.static_index("i"), oc.Context(target)
    row, cache = oc.placeholder("row", output=[3]), oc.declare("cache", batch=[n], output=[3])
    total = oc.einsum("t|d => |d", cache)

    positions = oc.placeholder("positions", batch=[n])
    is_now = oc.equal(positions, oc.number(i))

    @oc.cd
    def store() -> None:
        cache[:] = oc.where(is_now, row, cache)

    step = ctx.compile(store() + oc.train.forward(total), bindings=[i])
    ctx[positions] = np.arange(6.0)
    for now in range(6):
        ctx[row] = np.full(3, 10.0**now)
        step(n=now + 1, i=now)
        expected = [[10.0**each] * 3 for each in range(now + 1)]
        np.testing.assert_array_equal(ctx[cache], expected)
        np.testing.assert_array_equal(ctx[total], np.sum(expected, axis=0))


def test_one_number_fills_all_cells(target: str) -> None:
    oc.reset()
    n, ctx = oc.static_extent("n", max=6), oc.Context(target)
    x = oc.placeholder("x", batch=[n], output=[2])
    y = x + 1.0
    step = ctx.compile(oc.train.forward(y))
    ctx[x] = 5.0
    assert ctx[x].shape == (6, 2)
    step(n=3)
    np.testing.assert_array_equal(ctx[y], np.full((3, 2), 6.0))


def test_equal_kernels_of_different_extents_are_generated_once(target: str) -> None:
    oc.reset()
    n, m = oc.static_extent("n", max=40), oc.static_extent("m", max=40)
    ctx = oc.Context(target)
    x, y = oc.placeholder("x", batch=[n], output=[33]), oc.placeholder("y", batch=[m], output=[33])
    sums = [oc.einsum("b|o => |o", each) for each in (x, y)]
    step = ctx.compile(oc.train.forward(sums[0]) + oc.train.forward(sums[1]))
    for sizes in ((40, 7), (3, 40), (0, 1)):
        ctx[x], ctx[y] = whole_numbers(sizes[0], 33), whole_numbers(sizes[1], 33, seed=1)
        step(n=sizes[0], m=sizes[1])
        np.testing.assert_array_equal(ctx[sums[0]], whole_numbers(sizes[0], 33).sum(axis=0))
        np.testing.assert_array_equal(ctx[sums[1]], whole_numbers(sizes[1], 33, seed=1).sum(axis=0))


@pytest.mark.usefixtures("saved_routines")
def test_code_on_disk_keeps_extents(tmp_path: Path) -> None:
    found: list[list[Array]] = []
    entries: list[int] = []
    with oc.settings.overrides(cache_dir=str(tmp_path)):
        for _ in range(2):
            found.append(trained("cpu_c", oc.static_extent("n", max=6), 4, n=4))
            entries.append(len(list(tmp_path.glob("**/routines/*"))))
    assert entries[0] == entries[1] > 0  # the second program was found
    assert_same_bits(found[1], found[0])


def test_tables_and_explanations_show_the_extent() -> None:
    oc.reset()
    n, ctx = oc.static_extent("n", max=20), oc.Context("interp")
    x = oc.placeholder("x", batch=[n], output=[2])
    y = x * 2.0
    step = ctx.compile(oc.train.forward(y))
    ctx[x] = np.arange(6.0).reshape(3, 2)
    step(n=3)
    text = str(oc.table(y, ctx))
    assert text.splitlines()[0] == "mul: n<=20|2, float32"
    assert [line.split()[-1] for line in text.splitlines()[-3:]] == ["2.0", "6.0", "10.0"]
    assert "10.0" in str(oc.table(y, ctx, recompute=True))
    assert "n<=20|2" in str(oc.tree(y, ctx))
    assert "n<=20 x 2" in str(oc.explain(step))
    assert "batch axis -1: n<=20" in str(oc.explain(y))
    assert step.profile(seconds=0.001, n=3).kernels
