"""The gradient of a maximum goes to one cell: the first one of equal cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.testing.central_differences import check_gradients
from tests.support.example_count import example_count

Array = np.ndarray[Any, Any]
INF, NAN = np.inf, np.nan


def windows(numbers: Array, axis: int, size: int, *, stride: int = 1, gap: int = 1, left: int = 0):
    """Return windows over an axis, whose cells are the last axis; -1 outside."""
    span = gap * (size - 1) + 1
    length = numbers.shape[axis]
    count = length // stride if left else (length - span) // stride + 1
    padding = [(0, 0)] * numbers.ndim
    padding[axis] = (left, span)
    padded = np.pad(numbers, padding, constant_values=-1)
    starts = stride * np.arange(count)[:, None] + gap * np.arange(size)
    return np.moveaxis(padded.take(starts, axis=axis), axis + 1, -1)


@dataclass(frozen=True)
class Maximum:
    """A way to take maxima.

    Attributes:
        shape: The extents of the operand.
        take: Takes the maxima of a tensor.
        cells: The cells that a result is taken from along the last axis, of those that are numbered
            in row-major order; -1 for none.
    """

    shape: tuple[int, ...]
    take: Callable[[oc.Tensor], oc.Tensor]
    cells: Callable[[Array], Array]


def einmax(spec: str, **values: int) -> Callable[[oc.Tensor], oc.Tensor]:
    return lambda x: oc.einmax(spec, x, values=values)


MAXIMA = {
    "rows": Maximum((3, 5), einmax("i,j => i"), lambda n: n),
    "columns": Maximum((3, 5), einmax("i,j => j"), lambda n: n.T),
    "long rows": Maximum((2, 70), einmax("i,j => i"), lambda n: n),
    "long columns": Maximum((9, 40), einmax("i,j => j"), lambda n: n.T),
    "all cells": Maximum((3, 4), einmax("i,j => 0"), lambda n: n.reshape(1, -1)),
    "outer and inner axes": Maximum(
        (3, 4, 2), einmax("i,j,k => j"), lambda n: n.transpose(1, 0, 2).reshape(4, -1)
    ),
    "kept axes exchanged": Maximum(
        (2, 3, 4), einmax("i,j,k => k,i"), lambda n: n.transpose(2, 0, 1)
    ),
    "one cell": Maximum((4,), einmax("i => i"), lambda n: n[:, None]),
    "windows": Maximum((6,), einmax("2*i<+k => i", k=2), lambda n: windows(n, 0, 2, stride=2)),
    "overlapping windows": Maximum((7,), einmax("i<+k => i", k=3), lambda n: windows(n, 0, 3)),
    "windows with gaps": Maximum(
        (8, 3), einmax("2*i<+3*k,c => i,c", k=2), lambda n: windows(n, 0, 2, stride=2, gap=3)
    ),
    "padded windows": Maximum(
        (5, 2), einmax("i=+k,c => i,c", k=3), lambda n: windows(n, 0, 3, left=1)
    ),
    "windows of which rows are reduced": Maximum(
        (6, 2),
        einmax("2*i<+k,c => i", k=2),
        lambda n: windows(n, 0, 2, stride=2).transpose(0, 2, 1).reshape(3, -1),
    ),
    "pooling": Maximum(
        (4, 6, 3),
        lambda x: oc.nn.max_pool2d(x),
        lambda n: windows(windows(n, 0, 2, stride=2), 1, 2, stride=2).reshape(2, 3, 3, 4),
    ),
    "overlapping pooling": Maximum(
        (5, 5, 2),
        lambda x: oc.nn.max_pool2d(x, window=3, stride=1),
        lambda n: windows(windows(n, 0, 3), 1, 3).reshape(3, 3, 2, 9),
    ),
    "the first of two parts": Maximum((5,), einmax("i^j => 0", i=2), lambda n: n.reshape(1, -1)),
    "a position of an axis": Maximum((3, 4), einmax("i,2 => 0"), lambda n: n[:, 2].reshape(1, -1)),
    "repeated along a new axis": Maximum(
        (1, 3), einmax("i,j => j", i=4), lambda n: n.reshape(3, 1)
    ),
}


def expected(maximum: Maximum, cells: Array, weights: Array) -> Array:
    """Return the gradient of a weighted sum of the maxima."""
    numbers = maximum.cells(np.arange(cells.size).reshape(maximum.shape))
    found = np.where(numbers < 0, -INF, cells.ravel()[numbers])
    is_greatest = (numbers >= 0) & (found == found.max(axis=-1, keepdims=True))
    chosen = np.take_along_axis(numbers, is_greatest.argmax(axis=-1)[..., None], -1).ravel()
    gradient = np.zeros(cells.size)
    np.add.at(gradient, chosen, weights.ravel())
    return gradient.reshape(maximum.shape)


def gradient_of(
    target: str, take: Callable[[oc.Tensor], oc.Tensor], cells: Array, weights: Array | float = 1.0
) -> Array:
    """Return the gradient of a weighted sum of results in the cells of their operand."""
    with oc.Session(dtype="float64"), settings.overrides(allow_nan=True):
        x = oc.param("x", init=oc.tensor(cells, dtype=str(cells.dtype)))
        factor = weights if isinstance(weights, float) else oc.tensor(weights, dtype="float64")
        loss = oc.einsum("...|... => 0", take(x) * factor)
        ctx = oc.Context(target)
        step = ctx.compile(oc.train.grad_update(loss))
        ctx.init_params(loss)
        step()
        return np.asarray(ctx[x.grad], np.float64)


@pytest.mark.parametrize("name", MAXIMA)
@hypothesis_settings(
    max_examples=example_count(3),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32 - 1), kinds=st.integers(1, 4))
def test_the_first_of_equal_cells_gets_the_gradient(
    target: str, name: str, seed: int, kinds: int
) -> None:
    maximum = MAXIMA[name]
    random = np.random.default_rng(seed)
    cells = random.integers(0, kinds, maximum.shape).astype(np.float64)
    cells[cells == 0] = -INF  # as in margins
    results = maximum.cells(np.arange(cells.size).reshape(maximum.shape)).shape[:-1]
    weights = random.integers(1, 9, results).astype(np.float64)
    found = gradient_of(target, maximum.take, cells, weights)
    np.testing.assert_array_equal(found, expected(maximum, cells, weights))


def test_the_whole_gradient_of_a_maximum_is_handed_out_once(target: str) -> None:
    zeros = [0.0, 0.0, 0.0]
    check_gradients(
        lambda b: oc.einmax("i=>0", oc.tensor(zeros) + b), np.array(0.5), backend=target
    )
    check_gradients(
        lambda b: oc.nn.max_pool2d(oc.tensor([[[0.0]] * 4] * 4) + b), np.array(0.5), backend=target
    )
    check_gradients(
        lambda a, b: oc.primitives.tropical("i,j; j,k => i,k", oc.tensor([zeros] * 2) + a, b),
        np.array(0.5),
        np.zeros((3, 1)),
        backend=target,
        step=1e-9,
        tolerance=2.0,  # the function has a kink in the second operand
    )


@hypothesis_settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_first_pair_of_equal_sums_gets_the_gradient(target: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    a = random.integers(0, 3, (4, 5)).astype(np.float64)
    b = random.integers(0, 3, (5, 3)).astype(np.float64)
    weights = random.integers(1, 9, (4, 3)).astype(np.float64)
    chosen = (a[:, :, None] + b[None]).argmax(axis=1)
    of_a, of_b = np.zeros(a.shape), np.zeros(b.shape)
    for i, k in np.ndindex(*chosen.shape):
        of_a[i, chosen[i, k]] += weights[i, k]
        of_b[chosen[i, k], k] += weights[i, k]
    with oc.Session(dtype="float64"):
        p, q = oc.param("p", init=oc.tensor(a)), oc.param("q", init=oc.tensor(b))
        sums = oc.primitives.tropical("i,j; j,k => i,k", p, q)
        loss = oc.einsum("i,k; i,k => 0", sums, oc.tensor(weights))
        ctx = oc.Context(target)
        step = ctx.compile(oc.train.grad_update(loss))
        ctx.init_params(loss)
        step()
        np.testing.assert_array_equal(ctx[p.grad], of_a)
        np.testing.assert_array_equal(ctx[q.grad], of_b)


def test_zeros_of_both_signs_are_equal(target: str) -> None:
    for cells in ([0.0, -0.0], [-0.0, 0.0]):
        assert gradient_of(target, einmax("i => 0"), np.array(cells)).tolist() == [1, 0]


def test_of_cells_that_are_all_minus_infinity_the_first_gets_the_gradient(target: str) -> None:
    cells = np.array([[-INF, -INF, -INF], [-INF, 1.0, -INF]])
    assert gradient_of(target, einmax("i,j => i"), cells).tolist() == [[1, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize("expression", [False, True])
@pytest.mark.parametrize("sign", [1, -1])
def test_of_cells_as_in_margins_the_first_one_inside_gets_the_gradient(
    target: str, expression: bool, sign: int
) -> None:
    def forward(v: Any, v1: Any) -> None:
        v[oc.neutral, oc.maximum if sign > 0 else oc.minimum] = v1

    def gradient(g: Any, g1: Any, selected: Any) -> None:
        g1 += g * selected

    extreme = oc.define_operation("extreme", forward=forward, gradient=gradient)
    with oc.Session(), settings.overrides(allow_nan=True):
        x = oc.placeholder("x", output=[3, 4], requires_grad=True)
        y = extreme(x, logic="3*i+k, l+m => i,l", values={"k": 3, "m": 3}, padded=True)
        slope = oc.gradients(y.sum(), [x])[0] if expression else x.grad
        code = oc.train.forward(slope) if expression else oc.train.grad_update(y.sum())
        ctx = oc.Context(target)
        step = ctx.compile(code, keep=[slope])
        ctx[x] = np.full((3, 4), -INF * sign)
        step()
        assert ctx[slope].tolist() == [[2, 1, 1, 0], [0] * 4, [0] * 4]


def test_of_a_maximum_that_is_not_a_number_the_first_cell_gets_the_gradient(target: str) -> None:
    cells = np.array([[1.0, NAN, 2.0], [1.0, 3.0, 2.0]])
    assert gradient_of(target, einmax("i,j => i"), cells).tolist() == [[1, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize("wide", ["float64", "float32"])
@pytest.mark.parametrize("narrow", ["float32", "bfloat16", "float16", "float8_e5m2"])
def test_cells_are_compared_in_the_format_of_the_maximum(
    target: str, wide: str, narrow: str
) -> None:
    """Numbers that round to equal numbers are equal."""
    cells = np.array([[1.0, 1.0 + 2.0**-20, 3.0, 3.0 + 2.0**-20]], wide)
    with oc.Session():
        p = oc.param("p", init=oc.tensor(cells, dtype=wide), dtype=wide)
        q = oc.param("q", init=oc.tensor([0.25] * 4, dtype=wide), dtype=wide)
        maxima = oc.einmax("i,j => i", p, dtype=narrow)
        sums = oc.primitives.tropical("i,j; j => i", p, q, dtype=narrow)
        loss = oc.einsum("i => 0", oc.cast(maxima, wide) + oc.cast(sums, wide))
        ctx = oc.Context(target)
        step = ctx.compile(oc.train.grad_update(loss), keep=[p.grad, q.grad])
        ctx.init_params(loss)
        step()
        of_maxima = 3 if narrow == "float32" else 2
        of_sums = 2 if narrow in ("bfloat16", "float16") else 3  # 3.25 is between two of the others
        one_hot = np.eye(4)
        np.testing.assert_array_equal(ctx[p.grad], [one_hot[of_maxima] + one_hot[of_sums]])
        np.testing.assert_array_equal(ctx[q.grad], one_hot[of_sums])


@pytest.mark.parametrize(
    ("narrow", "count"),
    [("bfloat16", 1027), ("float16", 4099), ("float8_e5m2", 500), ("float8_e4m3fn", 500)],
)
def test_positions_are_counted_in_integers_in_every_format(
    target: str, narrow: str, count: int
) -> None:
    cells = np.zeros(count)
    cells[-1] = 1.0
    with oc.Session(dtype=narrow):
        p = oc.param("p", init=oc.tensor(cells, dtype=narrow))
        loss = oc.einmax("i => 0", p)
        ctx = oc.Context(target)
        step = ctx.compile(oc.train.grad_update(loss))
        ctx.init_params(loss)
        step()
        np.testing.assert_array_equal(np.asarray(ctx[p.grad], np.float64), cells)


@pytest.mark.parametrize("floor", [False, True])
@pytest.mark.parametrize("cells", [[-1.0, -2.0, -0.5, -3.0, -4.0], [-448.0] * 5])
def test_padded_windows_have_maxima_in_a_format_without_infinities(
    target: str, cells: list[float], floor: bool
) -> None:
    def found(dtype: str) -> tuple[list[float], list[float], list[float]]:
        with oc.Session(dtype=dtype):
            x = oc.param("x", init=np.array(cells)[:, None])
            stride = 2 if floor else 1
            y = oc.nn.max_pool(x, axes=1, window=3, stride=stride, padded=True, floor=floor)
            loss = oc.einsum("...|... => 0", y)
            (expression,) = oc.gradients(loss, [x])
            ctx = oc.Context(target)
            step = ctx.compile(
                oc.train.grad_update(loss) + oc.train.forward(expression),
                keep=[y, x.grad, expression],
            )
            ctx.init_params(loss)
            step()
            kept = [np.asarray(ctx[each], float) for each in (y, x.grad, expression)]
            return tuple(each.ravel().tolist() for each in kept)

    assert found("float8_e4m3fn") == found("float32")


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int32"])
def test_padded_windows_are_not_converted_to_a_format_without_infinities(dtype: str) -> None:
    x = oc.param("x", init=[-1.0, -2.0, -0.5, -3.0])
    maxima = oc.einmax("i=+k => i", x, values={"k": 3}, dtype=dtype)
    with pytest.raises(oc.LoweringError, match="a format with infinities") as error:
        oc.Context("interp").compile(oc.train.forward(maxima))
    assert error.value.fix == f'convert the result in place of the cells: oc.cast(y, "{dtype}")'


@pytest.mark.parametrize("accumulation", ["exact", "float32"])
@pytest.mark.parametrize("form", ["bfloat16", "float16", "float32", "float64"])
def test_gradients_of_computed_cells_are_handed_out_once(
    target: str, form: str, accumulation: str
) -> None:
    """Recomputed cells have the bits of which the maximum was computed."""
    random = np.random.default_rng(3)
    a, b, c = (random.standard_normal((17, 33)) for _ in range(3))
    with oc.Session(), settings.overrides(accumulation=accumulation):
        p, q, r = (
            oc.param("pqr"[k], init=oc.tensor(x, dtype=form)) for k, x in enumerate((a, b, c))
        )
        for cells in (p * q + r, oc.tanh(p * q) + r, oc.exp(p) / (q * q + 1.0), p**2.0 * q - r):
            maxima = oc.einmax("i,j => i", cells) + oc.einmax("i,j => 0", cells)
            loss = oc.einsum("i => 0", oc.cast(maxima, "float64"))
            ctx = oc.Context(target)
            step = ctx.compile(oc.train.grad_update(loss), keep=[cells.grad])
            ctx.init_params(loss)
            step()
            assert np.asarray(ctx[cells.grad], np.float64).sum() == 17 + 17


def test_threads_and_schedules_select_the_same_cells() -> None:
    """The number of cells is large enough for several threads."""
    cells = np.random.default_rng(5).integers(0, 3, (64, 40, 40)).astype(np.float32)

    def found(threads: int, schedule: str) -> Array:
        with oc.Session(), settings.overrides(threads=threads, schedule=schedule):
            x = oc.param("x", init=oc.tensor(cells))
            pooled = oc.einmax("b, 2*h<+k, 2*w<+l => b, h, w", x, values={"k": 2, "l": 2})
            total = oc.einmax("b, h, w => b", x)
            loss = oc.einsum(
                "b, h, w => 0", oc.multiply(pooled, total, logic="b, h, w; b => b, h, w")
            )
            ctx = oc.Context("cpu_c")
            step = ctx.compile(oc.train.grad_update(loss))
            ctx.init_params(loss)
            step()
            return np.asarray(ctx[x.grad])

    first = found(1, "default")
    for threads, schedule in [(2, "default"), (4, "default"), (1, "none")]:
        np.testing.assert_array_equal(found(threads, schedule), first)


@pytest.mark.parametrize(("stride", "width"), [(2, 2), (1, 2), (2, 3), (3, 2)])
@pytest.mark.parametrize("mark", ["<", "="])
def test_pooling_of_large_images_runs_by_rows(stride: int, width: int, mark: str) -> None:
    """An image is larger than a near cache, so that maxima and positions run row by row."""
    high = stride * 17 + width if mark == "<" else stride * 18
    cells = np.random.default_rng(7).integers(0, 3, (2, high, stride * 30 + width, 96))
    spec = f"b | {stride}*h{mark}+k, {stride}*w<+l, c => b | h, w, c"

    def found(schedule: str) -> tuple[Array, Array]:
        with oc.Session(), settings.overrides(threads=1, schedule=schedule):
            x = oc.tensor(cells.astype(np.float32), batch_axes=1, requires_grad=True)
            pooled = oc.einmax(spec, x, values={"k": width, "l": width})
            loss = oc.einsum("...|... => 0", pooled * (pooled + 1.0))
            ctx = oc.Context("cpu_c")
            ctx.compile(oc.train.grad_update(loss), keep=[pooled, x.grad])()
            return np.asarray(ctx[pooled]), np.asarray(ctx[x.grad])

    for some, others in zip(found("default"), found("none"), strict=True):
        np.testing.assert_array_equal(some, others)


def test_backpropagation_in_a_routine_of_its_own_hands_out_the_gradient_once(target: str) -> None:
    with oc.Session():
        p = oc.param("p", init=[1.0, 3.0, 3.0, 0.0])
        m = oc.einmax("i => 0", p)
        loss = m * 2.0

        @oc.cd
        def backward() -> None:
            loss.zero_grads()
            loss.grad[:] = 1.0
            loss.backprop()

        ctx = oc.Context(target)
        ctx.init_params(loss)
        forward = ctx.compile(oc.train.forward(loss), keep=[m])
        back = ctx.compile(backward(), keep=[p.grad])
        forward()
        back()
        assert ctx[p.grad].tolist() == [0, 2, 0, 0]


def test_cells_that_change_before_backpropagation_are_searched_again(target: str) -> None:
    with oc.Session():
        p = oc.param("p", init=[1.0, 3.0, 3.0, 0.0])
        loss = oc.einmax("i => 0", p)

        @oc.cd
        def code() -> None:
            loss.forward()
            p[:] = oc.tensor([3.0, 1.0, 0.0, 3.0])
            loss.zero_grads()
            loss.grad[:] = 1.0
            loss.backprop()

        ctx = oc.Context(target)
        ctx.init_params(loss)
        step = ctx.compile(code(), keep=[p.grad])
        step()
        assert ctx[p.grad].tolist() == [1, 0, 0, 0]


def test_operations_of_users_hand_the_gradient_of_a_minimum_out_once(target: str) -> None:
    def forward(v: Any, v1: Any, v2: Any) -> None:
        v[oc.neutral, oc.minimum] = v1 * v2

    def gradient(g: Any, g1: Any, g2: Any, v1: Any, v2: Any, selected: Any) -> None:
        g1 += oc.where(selected, g * v2, 0.0)
        g2 += oc.where(selected, g * v1, 0.0)

    smallest = oc.define_operation(
        "smallest", forward=forward, gradient=gradient, logic="i,j; j => i"
    )
    with oc.Session():
        p = oc.param("p", init=[[4.0, 2.0, 1.0], [3.0, 3.0, 3.0]])
        q = oc.param("q", init=[1.0, 2.0, 4.0])
        loss = oc.einsum("i => 0", smallest(p, q) * oc.tensor([10.0, 1.0]))
        ctx = oc.Context(target)
        step = ctx.compile(oc.train.grad_update(loss))
        ctx.init_params(loss)
        step()
        assert ctx[p.grad].tolist() == [[10, 0, 0], [1, 0, 0]]
        assert ctx[q.grad].tolist() == [43, 0, 0]


def scaled_forward(v: Any, v1: Any) -> None:
    v[oc.neutral, oc.maximum] = v1


def scaled_gradient(g: Any, g1: Any, v: Any, v1: Any) -> None:
    g1 += g * (v / v1)


SCALED = oc.define_operation("scaled", forward=scaled_forward, gradient=scaled_gradient)
BEYOND: dict[str, Callable[[oc.Tensor], oc.Tensor]] = {
    "a maximum": einmax("k => i=+k", i=1),
    "a maximum of sums": lambda x: oc.primitives.tropical("k; k => i=+k", x, x, values={"i": 1}),
    "an operation of a user": lambda x: SCALED(x, logic="k => i=+k", values={"i": 1}),
}


@pytest.mark.parametrize("dtype", ["float32", "float8_e4m3fn"])
@pytest.mark.parametrize("name", BEYOND)
def test_cells_that_go_beyond_the_axis_of_a_maximum_get_no_gradient(
    target: str, name: str, dtype: str
) -> None:
    with oc.Session(dtype=dtype):
        x = oc.param("x", init=[1.5, 2.0, 3.0])
        y = BEYOND[name](x)
        (expression,) = oc.gradients(y, [x])
        ctx = oc.Context(target)
        step = ctx.compile(oc.train.grad_update(y) + oc.train.forward(expression))
        ctx.init_params(y)
        step()
        added = 2 if "sums" in name else 1
        assert ctx[y].tolist() == [added * 2]
        assert ctx[x.grad].tolist() == ctx[expression].tolist() == [0, added, 0]


def test_selected_of_a_sum_is_refused() -> None:
    def forward(v: Any, v1: Any) -> None:
        v[oc.neutral] += v1

    def gradient(g: Any, g1: Any, selected: Any) -> None:
        g1 += oc.where(selected, g, 0.0)

    wrong = oc.define_operation("wrong", forward=forward, gradient=gradient, logic="i => 0")
    p = oc.param("p", init=[1.0, 2.0])
    with pytest.raises(oc.UsageError, match="does not accumulate one into v"):
        oc.train.grad_update(wrong(p)).resolve()


def test_a_forward_function_selects_nothing() -> None:
    def forward(v: Any, v1: Any, selected: Any) -> None:
        v[oc.neutral, oc.maximum] = v1

    with pytest.raises(oc.UsageError, match="in the gradient function only") as error:
        oc.define_operation("wrong", forward=forward, logic="i => 0")
    assert error.value.found == "selected in wrong"
