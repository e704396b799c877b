"""Loops whose number of steps follows from data, beside loops of Python that end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.testing.central_differences import check_gradients
from tests.support.loops import KEEP, assert_same_gradients, computed, normal, total


def test_steps_end_with_the_condition_or_at_the_bound(target: str) -> None:
    start = oc.placeholder("start", output=[2])
    values, last, count = oc.scan_while(
        lambda x: oc.sum(x) > 1, lambda x, _: (x / 2, {"x": x, "n": 1}), start, length=6
    )
    ctx = oc.Context(target)
    results = [values["x"], values["n"], last, count]
    code = oc.train.forward(results[0])
    for each in results[1:]:
        code += oc.train.forward(each)
    routine = ctx.compile(code)
    for cells, wanted in (([8, 2], 4), ([1, 0], 0), ([1000, 1], 6)):
        ctx[start] = np.array(cells, np.float32)
        routine()
        rows = [[cell / 2**k for cell in cells] for k in range(wanted)]
        assert ctx[values["x"]].tolist() == rows + [[0, 0]] * (6 - wanted)
        assert ctx[values["n"]].tolist() == [1] * wanted + [0] * (6 - wanted)
        assert ctx[last].tolist() == [cell / 2**wanted for cell in cells]
        assert ctx.item(count) == wanted


def test_each_cell_of_a_condition_ends_its_own_steps(target: str) -> None:
    start = oc.placeholder("start", batch=[4], output=[], dtype="int32")

    def collatz(n: Any, _: None) -> Any:
        return oc.where(oc.equal(n % 2, 0), n // 2, 3 * n + 1), None

    _, last, count = oc.scan_while(lambda n: oc.not_equal(n, 1), collatz, start, length=20)
    numbers = np.array([1, 6, 7, 27], np.int32)
    (ends, counts), _ = computed(target, {start: numbers}, last, count)
    assert ends[:3].tolist() == [1, 1, 1]
    assert ends[3] != 1  # 27 takes 111 steps
    assert counts.tolist() == [0, 8, 16, 20]


def test_masked_steps_read_no_positions_beyond_an_axis(target: str) -> None:
    table = oc.placeholder("table", output=[5])
    xs = oc.placeholder("xs", batch=[9], output=[], dtype="int32")

    def step(carry: Any, x: Any) -> Any:
        at, sum = carry
        return (at + 1, sum + oc.take(table, at) * oc.take(table, x)), sum

    init = (oc.number(0, dtype="int32"), 0.0)
    _, (_, sum), count = oc.scan_while(lambda carry: carry[0] < 5, step, init, xs)
    cells, places = normal(5), np.array([4, 3, 2, 1, 0, 99, -1, 77, 1000], np.int32)
    (found, steps), _ = computed(target, {table: cells, xs: places}, sum, count)
    assert steps == 5
    assert found == pytest.approx(cells @ cells[::-1], rel=1e-5)


@pytest.mark.parametrize("keep", KEEP)
def test_gradients_are_those_of_the_steps_that_run(target: str, keep: str) -> None:
    with oc.Session(seed=1):
        xs = oc.placeholder("xs", batch=[6, 2], output=[3])
        w = oc.param("w", output=[3], input=[3])
        start = oc.param("start", output=[3], init=0.3)

        def step(h: Any, x: Any) -> Any:
            h = oc.tanh(w @ h + x)
            return h, h * x

        def state_and_position(carry: Any, x: Any) -> Any:
            (h, value) = step(carry["h"], x)
            return {"h": h, "n": carry["n"] + 1}, value

        init = {"h": start, "n": oc.number(0, dtype="int32")}
        values, last, _ = oc.scan_while(
            lambda carry: carry["n"] < 4, state_and_position, init, xs, keep=keep
        )
        loss = total(values * values) + total(last["h"])
        expected, h = oc.number(0.0), start
        for position in range(4):
            h, value = step(h, xs[position])
            expected = expected + total(value * value)
        assert_same_gradients(target, {xs: normal(6, 2, 3)}, loss, expected + total(h))


def test_masked_steps_put_no_infinite_slope_into_gradients(target: str) -> None:
    """At the last carry, 0, the square root has an infinite slope."""

    def function(x: oc.Tensor, w: oc.Tensor) -> oc.Tensor:
        values, _, _ = oc.scan_while(
            lambda c: c > 0,
            lambda c, _: (oc.maximum(oc.sqrt(c * w) - 1.0, 0.0), oc.sqrt(c * w)),
            x,
            length=5,
        )
        result: oc.Tensor = oc.einsum("t| => 0", values)
        return result

    check_gradients(function, np.array(20.0), np.array(1.5), backend=target)


@pytest.mark.parametrize("keep", KEEP)
def test_gradients_pass_through_loops_whose_count_is_read(target: str, keep: str) -> None:
    """The count is an older result of the loop than the values, and has no gradient."""
    with oc.Session(dtype="float64"):
        x = oc.param("x", init=[0.5, 0.25])
        values, _, count = oc.scan_while(
            lambda c: oc.sum(c) < 4.0, lambda c, _: (c * 2.0, c * c), x, length=6, keep=keep
        )
        loss = total(values) * oc.cast(count, "float64")
        (gradient,) = oc.gradients(loss, [x])
        ctx = oc.Context(target)
        ctx.init_params(loss)
        code = oc.train.grad_update(loss) + oc.train.forward(gradient)
        ctx.compile(code, keep=[gradient, x.grad])()
        assert ctx[x.grad].tolist() == ctx[gradient].tolist() == [63.0, 31.5]
        penalty = total(gradient * gradient)
        ctx.compile(oc.train.grad_update(penalty))()
        assert ctx[x.grad].tolist() == [15876.0, 7938.0]


def test_gradients_as_expressions_are_those_of_backpropagation() -> None:
    with oc.Session():
        x = oc.param("x", init=[3.0, 5.0])
        _, last, _ = oc.scan_while(
            lambda c: oc.sum(c) < 100.0, lambda c, _: (c * c, None), x, length=4
        )
        loss = oc.sum(last)
        (gradient,) = oc.gradients(loss, [x])
        ctx = oc.Context("interp")
        ctx.init_params(loss)
        ctx.compile(oc.train.forward(gradient))()
        # 3, 5 -> 9, 25 -> 81, 625
        assert ctx[gradient].tolist() == [4 * 3.0**3, 4 * 5.0**3]


def test_a_condition_that_draws_numbers_does_not_begin_again(target: str) -> None:
    values, _, count = oc.scan_while(
        lambda _: oc.less(oc.uniform(), 0.7), lambda c, _: (c + 1.0, 1.0), 0.0, length=40
    )
    (ones, steps), _ = computed(target, {}, values, count)
    assert ones.tolist() == [1.0] * int(steps) + [0.0] * (40 - int(steps))
    assert steps < 40


def test_loops_that_end_nest_in_loops_and_in_recorded_code(target: str) -> None:
    starts = oc.placeholder("starts", batch=[3], output=[])
    counts = oc.declare("counts", batch=[3], output=[], dtype="int32")

    def outer(total: Any, x: Any) -> Any:
        _, _, count = oc.scan_while(lambda c: c < 10.0, lambda c, _: (c * 2, None), x, length=8)
        return total + count, count

    @oc.cd
    def counting() -> None:
        rows, _ = oc.scan(outer, oc.number(0, dtype="int32"), starts)
        counts[:] = rows

    ctx = oc.Context(target)
    ctx[starts] = np.array([1, 9, 12], np.float32)
    ctx.compile(counting())()
    assert ctx[counts].tolist() == [4, 1, 0]


def test_odd_conditions_and_steps_are_refused() -> None:
    def step(c: Any, _: None) -> Any:
        return c + 1.0, None

    with pytest.raises(oc.UsageError, match="condition of a loop is a function of the carry"):
        oc.scan_while(True, step, 0.0, length=3)  # type: ignore[arg-type]
    with pytest.raises(oc.UsageError, match="is a tensor that is not 0 as long as steps run"):
        oc.scan_while(lambda c: None, step, 0.0, length=3)
    with pytest.raises(oc.UsageError, match="number of steps of a loop is the extent"):
        oc.scan_while(lambda c: c < 3, step, 0.0)
    with pytest.raises(oc.UsageError, match="differs from init: it is a tuple"):
        oc.scan_while(lambda c: c < 3, lambda c, _: ((c, c), None), 0.0, length=3)
    wide = oc.tensor([1.0, 2.0])
    with pytest.raises(oc.ShapeError):
        oc.scan_while(lambda c: True, lambda c, _: (oc.concat([c, c]), None), wide, length=3)
