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
from ocannl_core.testing.gradients import check_gradients
from tests.support.sample_ops import Product

Array = np.ndarray[Any, Any]
Step = Callable[[Any, Any], tuple[Any, Any]]
KEEP = ("carry", "reductions", "all")


def total(x: oc.Tensor) -> oc.Tensor:
    found: oc.Tensor = oc.einsum("...|...->... => 0", x)
    return found


def normal(*dims: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=dims).astype(np.float32)


def unrolled(step: Step, carry: Any, xs: oc.Tensor, count: int, *, reverse: bool = False) -> Any:
    """Return the values of all steps, in the order of positions, and the last carry."""
    values: list[Any] = [None] * count
    for position in reversed(range(count)) if reverse else range(count):
        carry, values[position] = step(carry, xs[position])
    return values, carry


def computed(
    target: str, feeds: dict[oc.Tensor, Array], *results: oc.Tensor
) -> tuple[list[Array], oc.Context]:
    """Return the cells of some tensors."""
    ctx = oc.Context(target)
    for placeholder, cells in feeds.items():
        ctx[placeholder] = cells
    code = oc.train.forward(results[0])
    for each in results[1:]:
        code += oc.train.forward(each)
    for each in results:
        ctx.init_params(each)
    ctx.compile(code)()
    return [ctx[each] for each in results], ctx


def differentiated(
    target: str, feeds: dict[oc.Tensor, Array], loss: oc.Tensor
) -> tuple[float, dict[str, Array], Any]:
    """Return a loss, the gradients of its parameters by name, and the routine."""
    ctx = oc.Context(target)
    for placeholder, cells in feeds.items():
        ctx[placeholder] = cells
    ctx.init_params(loss)
    routine = ctx.compile(oc.train.grad_update(loss))
    routine()
    gradients = {p.label[0]: ctx[p.grad] for p in loss.params if p.grad is not None}
    return ctx.item(loss), gradients, routine


def assert_same_gradients(
    target: str, feeds: dict[oc.Tensor, Array], loss: oc.Tensor, expected: oc.Tensor
) -> None:
    found, gradients, _ = differentiated(target, feeds, loss)
    wanted, others, _ = differentiated(target, feeds, expected)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert gradients.keys() >= others.keys()
    for name, cells in gradients.items():
        wanted_cells = others.get(name, np.zeros_like(cells))  # a loop reads every initial carry
        np.testing.assert_allclose(cells, wanted_cells, rtol=2e-4, atol=1e-5, err_msg=name)


# ----- results ------------------------------------------------------------------------------------


def test_a_pointwise_recurrence_gives_the_bits_of_the_same_operations_in_numpy(
    target: str,
) -> None:
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


# ----- gradients ----------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", KEEP)
@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_of_a_gated_recurrence_are_those_of_the_unrolled_one(
    target: str, keep: str, reverse: bool
) -> None:
    with oc.Session(seed=1):
        xs = oc.placeholder("xs", batch=[5, 2], output=[3])
        gate, new = oc.param("gate", output=[4], input=[3]), oc.param("new", output=[4], input=[3])
        u, v = oc.param("u", output=[4], input=[4]), oc.param("v", output=[4], input=[4])

        def step(h: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
            z = oc.recip(1 + oc.exp(-(gate @ x + u @ h)))
            h = (1 - z) * oc.tanh(new @ x + v @ (z * h)) + z * h
            return h, h * 2

        start = oc.param("start", output=[4], init=0.3)
        ys, last = oc.scan(step, start, xs, keep=keep, reverse=reverse)
        values, carry = unrolled(step, start, xs, 5, reverse=reverse)
        loss = total(ys * ys) + total(last)
        expected = total(carry)
        for each in values:
            expected = expected + total(each * each)
        assert_same_gradients(target, {xs: normal(5, 2, 3)}, loss, expected)


@pytest.mark.parametrize("keep", KEEP)
def test_gradients_are_those_of_central_differences(target: str, keep: str) -> None:
    def function(xs: oc.Tensor, w: oc.Tensor, start: oc.Tensor) -> oc.Tensor:
        def step(h: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
            h = oc.tanh(w @ h + x)
            return h, h * x

        stacked = oc.einsum("ti => t|i", xs)
        ys, last = oc.scan(step, start, stacked, keep=keep)
        result: oc.Tensor = oc.einsum("t|i => i", ys) + last * last
        return result

    points = normal(3, 2), (normal(2, 2, seed=1) / 2, 1), normal(2, seed=2)
    check_gradients(function, *points, backend=target)


@pytest.mark.parametrize("keep", KEEP)
def test_gradients_flow_through_nested_loops(target: str, keep: str) -> None:
    with oc.Session(seed=1):
        xs = oc.placeholder("xs", batch=[2, 3, 2], output=[2])
        w = oc.param("w", init=[(0.5, 0.1), (-0.2, 0.3)])

        def innermost(c: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
            c = oc.tanh(w @ c + x)
            return c, c * c

        def inner(c: oc.Tensor, row: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
            ys, c = oc.scan(innermost, c, row, keep=keep)
            return c * 0.5, ys

        def outer(c: oc.Tensor, rows: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
            ys, c = oc.scan(inner, c, rows, keep=keep, reverse=True)
            return c + w @ c, ys

        start = oc.param("start", output=[2], init=0.1)
        ys, last = oc.scan(outer, start, xs, keep=keep)
        expected: Any = 0.0
        c = start
        for i in range(2):
            for j in reversed(range(3)):
                for k in range(2):
                    c, y = innermost(c, xs[i, j, k])
                    expected = total(y) + expected
                c = c * 0.5
            c = c + w @ c
        loss, expected = total(ys) + total(last), expected + total(c)
        assert_same_gradients(target, {xs: normal(2, 3, 2, 2)}, loss, expected)


def test_gradients_flow_from_one_loop_to_another(target: str) -> None:
    def function(xs: oc.Tensor, w: oc.Tensor) -> oc.Tensor:
        stacked = oc.einsum("ti => t|i", xs)
        ys, _ = oc.scan(lambda c, x: (c * w + x, c), 0.0, stacked)
        zs, last = oc.scan(lambda c, x: (c * w + x, c * x), w, ys, reverse=True)
        result: oc.Tensor = oc.einsum("t|i => i", zs) + last
        return result

    check_gradients(function, normal(4, 2), normal(2, seed=3), backend=target)


@pytest.mark.parametrize("keep", KEEP)
def test_gradients_flow_through_maxima_windows_and_calls_inside_a_step(
    target: str, keep: str
) -> None:
    with oc.Session(seed=1):
        xs = oc.placeholder("xs", batch=[4], output=[6])
        kernel = oc.param("kernel", init=[0.2, 0.5, -0.1])
        product = Product()

        def step(c: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
            c = oc.tanh(oc.einsum("i=+k; k => i", c, kernel)) + x
            most = oc.einmax("i => 0", c)
            return product(c, x) * 0.25 + most * 0.1, most

        start = oc.tensor(normal(6, seed=4))
        ys, last = oc.scan(step, start, xs, keep=keep)
        values, carry = unrolled(step, start, xs, 4)
        expected = total(carry)
        for each in values:
            expected = expected + total(each * each)
        feeds = {xs: normal(4, 6)}
        assert_same_gradients(target, feeds, total(last) + total(ys * ys), expected)


def test_loops_without_steps_pass_gradients_from_the_last_carry_to_the_first(target: str) -> None:
    w = oc.param("w", init=[2.0, 3.0])
    _, last = oc.scan(lambda c, x: (c * w, None), w, length=0)
    _, gradients, _ = differentiated(target, {}, total(last * 5))
    assert gradients["w"].tolist() == [5.0, 5.0]


def test_training_steps_are_those_of_the_unrolled_program(target: str) -> None:
    def losses(scans: bool) -> list[float]:
        with oc.Session(seed=2):
            xs = oc.placeholder("xs", batch=[4], output=[3])
            w = oc.param("w", output=[3], input=[3])

            def step(c: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
                return oc.tanh(w @ c + x), c

            zeros = oc.tensor(np.zeros(3, np.float32))
            if scans:
                _, last = oc.scan(step, zeros, xs)
            else:
                _, last = unrolled(step, zeros, xs, 4)
            loss = total(last * last)
            ctx = oc.Context(target)
            ctx[xs] = normal(4, 3)
            code = oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.1)
            routine = ctx.compile(code)
            ctx.init_params(loss)
            found = []
            for _ in range(4):
                routine()
                found.append(ctx.item(loss))
            return found

    found = losses(True)
    np.testing.assert_allclose(found, losses(False), rtol=1e-5)
    assert found[-1] < found[0]


def test_gradients_are_equal_whether_forward_code_is_compiled_with_them_or_before(
    target: str,
) -> None:
    xs = oc.placeholder("xs", batch=[4], output=[3])
    w = oc.param("w", output=[3], input=[3])
    ys, last = oc.scan(lambda c, x: (oc.tanh(w @ c + x), c), 0.0, xs)
    loss = total(ys * ys) + total(last)
    _, expected, _ = differentiated(target, {xs: normal(4, 3)}, loss)

    @oc.cd
    def backpropagate() -> None:
        loss.zero_grads()
        loss.grad[:] = 1.0
        loss.backprop()

    ctx = oc.Context(target)
    ctx[xs] = normal(4, 3)
    ctx.init_params(loss)
    ctx.compile(oc.train.forward(loss), keep=[loss, ys, last])()
    ctx.compile(loss.forward() + backpropagate())()
    assert np.array_equal(ctx[w.grad], expected["w"])


# ----- structures ---------------------------------------------------------------------------------


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
    max_examples=12,
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


# ----- random steps -------------------------------------------------------------------------------

OPERATIONS: tuple[Callable[..., oc.Tensor], ...] = (
    lambda a, b, w: a + b,
    lambda a, b, w: a * b * 0.5,
    lambda a, b, w: oc.tanh(a - b),
    lambda a, b, w: w @ a,
    lambda a, b, w: oc.maximum(a, b),
    lambda a, b, w: oc.einsum("...|i => ...|0", a) * 0.3 + b,
    lambda a, b, w: oc.where(a < b, a, b * 0.5),
    lambda a, b, w: oc.relu(a) + 0.25 * oc.stop_gradient(b),
)

PLANS = st.lists(
    st.tuples(st.integers(0, len(OPERATIONS) - 1), st.integers(0, 9), st.integers(0, 9)),
    min_size=1,
    max_size=7,
)


@hypothesis_settings(
    max_examples=4,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(PLANS, st.sampled_from(KEEP), st.booleans(), st.integers(1, 3))
def test_random_steps_give_the_results_of_the_unrolled_program(
    target: str, plan: list[tuple[int, int, int]], keep: str, reverse: bool, length: int
) -> None:
    with oc.Session(seed=3):
        xs = oc.placeholder("xs", batch=[length, 2], output=[3])
        w = oc.param("w", output=[3], input=[3])
        zeros = oc.tensor(np.zeros((2, 3), np.float32), batch_axes=1)
        init = zeros + oc.param("start", output=[3]), zeros + oc.param("second", output=[3])

        def step(carry: Any, x: oc.Tensor) -> tuple[Any, Any]:
            made = [*carry, x, w @ x]
            for operation, first, other in plan:
                one, two = made[-1 - first % len(made)], made[-1 - other % len(made)]
                made.append(OPERATIONS[operation](one, two, w))
            return (made[-1] * 0.5 + x, carry[0] * 0.5 + made[-2]), made[-1]

        ys, last = oc.scan(step, init, xs, keep=keep, reverse=reverse)
        values, carry = unrolled(step, init, xs, length, reverse=reverse)
        loss = total(ys * ys) + total(last[0]) + total(last[1])
        expected = total(carry[0]) + total(carry[1])
        for each in values:
            expected = expected + total(each * each)
        assert_same_gradients(target, {xs: normal(length, 2, 3)}, loss, expected)


# ----- the work of the compiler -------------------------------------------------------------------


def recurrence(steps: int) -> tuple[oc.Tensor, oc.Tensor]:
    xs = oc.placeholder("xs", batch=[steps, 2], output=[3])
    w, u = oc.param("w", output=[4], input=[3]), oc.param("u", output=[4], input=[4])
    ys, _ = oc.scan(lambda h, x: (oc.tanh(w @ x + u @ h), h), oc.param("h0", output=[4]), xs)
    return xs, total(ys * ys)


def test_the_code_of_a_loop_has_the_same_size_for_any_number_of_steps(target: str) -> None:
    def sizes(steps: int) -> tuple[int, int, int]:
        with oc.Session():
            xs, loss = recurrence(steps)
            _, _, routine = differentiated(target, {xs: normal(steps, 2, 3)}, loss)
            lines = routine.source.count("\n"), routine.loop_ir.count("\n")
            return len(routine.plan.kernels), *lines

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


# ----- layers -------------------------------------------------------------------------------------


def test_equal_layers_have_parameters_of_their_own_with_a_layer_axis(target: str) -> None:
    with oc.Session(seed=2):
        x = oc.placeholder("x", batch=[3], output=[4])
        layer = oc.nn.repeat_layers(lambda h: oc.relu(oc.nn.dense(h)) + h, x, layers=5)
        loss = total(layer * layer)
        ctx = oc.Context(target)
        ctx[x] = cells = normal(3, 4)
        ctx.init_params(loss)
        routine = ctx.compile(oc.train.grad_update(loss))
        routine()
        parameters = {p.label[0]: p for p in loss.params}
        weight, bias = ctx[parameters["weight"]], ctx[parameters["bias"]]
        assert weight.shape == (5, 4, 4)
        assert len(np.unique(weight)) == weight.size
        h = cells
        for w, b in zip(weight, bias, strict=True):
            h = np.maximum(h @ w.T + b, 0) + h
        np.testing.assert_allclose(ctx.item(loss), (h * h).sum(), rtol=1e-5)
        assert ctx[parameters["weight"].grad].shape == (5, 4, 4)


def test_layers_over_stacked_weights_have_the_gradients_of_layers_one_by_one(target: str) -> None:
    def function(x: oc.Tensor, w: oc.Tensor) -> oc.Tensor:
        stacked = oc.einsum("i->lo => l|i->o", w)
        _, y = oc.scan(lambda h, w: (oc.tanh(w @ h), None), x, stacked)
        result: oc.Tensor = y
        return result

    check_gradients(function, normal(2), (normal(3, 2, 2, seed=1), 1), backend=target)


def test_a_block_of_layers_applied_twice_shares_its_parameters(target: str) -> None:
    @oc.op
    def stack(x: oc.Tensor) -> oc.Tensor:
        found: oc.Tensor = oc.nn.repeat_layers(lambda h: oc.tanh(oc.nn.dense(h)), x, layers=3)
        return found

    x = oc.placeholder("x", batch=[2], output=[3])
    block = stack()
    once, twice = block(x), block(block(x))
    assert len((once + twice).params) == 2
    (first, second), ctx = computed(target, {x: normal(2, 3)}, once, twice)
    parameters = {p.label[0]: ctx[p] for p in once.params}
    h = normal(2, 3)
    for repetition in range(2):
        for w, b in zip(parameters["weight"], parameters["bias"], strict=True):
            h = np.tanh(h @ w.T + b)
        np.testing.assert_allclose((first, second)[repetition], h, rtol=1e-5)


def test_loops_of_steps_that_call_python_run_every_step(target: str) -> None:
    product = Product()
    xs = oc.placeholder("xs", batch=[3], output=[2])

    def inner(c: oc.Tensor, x: None) -> tuple[oc.Tensor, None]:
        return product(c, c), None

    def step(c: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
        _, c = oc.scan(inner, c + x, length=2)
        return c, c

    ys, _ = oc.scan(step, oc.tensor(np.zeros(2, np.float32)), xs)
    cells = normal(3, 2)
    (values,), _ = computed(target, {xs: cells}, ys)
    carry = np.zeros(2, np.float32)
    expected = []
    for entry in cells:
        carry = (carry + entry) ** 4
        expected.append(carry)
    np.testing.assert_allclose(values, expected, rtol=1e-5)


# ----- reports ------------------------------------------------------------------------------------


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
