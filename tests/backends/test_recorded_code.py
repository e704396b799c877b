"""Recorded code computes what it says, in the order in which it says it; absorbing changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ocannl_core as oc

Array = np.ndarray[Any, Any]
Code = Callable[..., None]


def run(target: str, code: Code, initial: dict[str, Array]) -> dict[str, Array]:
    """Returns the tensors' values after the code ran once on declared tensors of these values."""
    with oc.Session():
        tensors = {
            name: oc.declare(name, batch=[], input=[], output=cells.shape, dtype=oc.float64)
            for name, cells in initial.items()
        }
        ctx = oc.Context(target)
        step = ctx.compile(oc.cd(code)(**tensors))
        for name, cells in initial.items():
            ctx[tensors[name]] = cells
        step()
        return {name: ctx[tensor] for name, tensor in tensors.items()}


X = np.array([1.0, 2.0, 4.0])


def test_an_expression_keeps_its_value_through_later_writes(target: str) -> None:
    @oc.op
    def double(x: oc.Tensor) -> oc.Tensor:
        return x * 2.0

    def code(c: oc.Tensor, d: oc.Tensor, e: oc.Tensor, f: oc.Tensor) -> None:
        negated, named, doubled = -c, oc.mul(c, 10.0, label="t"), double(c)
        c[:] = 0.0
        d[:] = negated
        e[:] = named
        f[:] = doubled

    zeros = np.zeros(3)
    found = run(target, code, {"c": X, "d": zeros, "e": zeros, "f": zeros})
    np.testing.assert_array_equal(found["d"], -X)
    np.testing.assert_array_equal(found["e"], 10 * X)
    np.testing.assert_array_equal(found["f"], 2 * X)


def test_an_expression_can_be_used_twice(target: str) -> None:
    def code(c: oc.Tensor, d: oc.Tensor, e: oc.Tensor) -> None:
        t = -c
        d[:] = t
        c[:] = t
        e[:] = t

    found = run(target, code, {"c": X, "d": np.zeros(3), "e": np.zeros(3)})
    for name in "cde":
        np.testing.assert_array_equal(found[name], -X)


def test_a_reset_does_not_clear_what_is_still_to_be_read(target: str) -> None:
    def code(c: oc.Tensor, d: oc.Tensor) -> None:
        c[oc.neutral] += c
        d[oc.neutral, oc.maximum] = d * 1.0

    found = run(target, code, {"c": X, "d": -X})
    np.testing.assert_array_equal(found["c"], X)
    np.testing.assert_array_equal(found["d"], -X)


def test_a_fused_product_adds_its_summand_once(target: str) -> None:
    a = np.array([[1.0, 2, 3], [4, 5, 6]])
    with oc.Session():
        w = oc.param("w", init=oc.tensor(a, input_axes=1, dtype="float64"), dtype="float64")
        x = oc.param("x", init=oc.tensor(np.ones(3), dtype="float64"), dtype="float64")
        c = oc.param("c", init=oc.tensor([10.0, 20.0], dtype="float64"), dtype="float64")
        loss = oc.einsum("...=>0", oc.fma(w, x, c))
        d = oc.declare("d", output=[2], dtype="float64")

        @oc.cd
        def code() -> None:
            d[:] = oc.fma(w, x, c)

        ctx = oc.Context(target)
        step = ctx.compile(oc.train.grad_update(loss) + code(), keep=[d, c.grad, w.grad])
        ctx.init_params(loss)
        step()
        np.testing.assert_array_equal(ctx[d], [16, 35])
        np.testing.assert_array_equal(ctx[c.grad], [1, 1])
        np.testing.assert_array_equal(ctx[w.grad], np.ones((2, 3)))


def test_a_single_position_is_repeated_when_it_is_assigned(target: str) -> None:
    def code(c: oc.Tensor, x: oc.Tensor) -> None:
        c[:] = oc.einsum("i=>0", x)

    np.testing.assert_array_equal(run(target, code, {"c": X, "x": X})["c"], [7, 7, 7])


def test_a_logic_of_its_own_is_reduced_by_the_assignment(target: str) -> None:
    def code(c: oc.Tensor, d: oc.Tensor, a: oc.Tensor, b: oc.Tensor) -> None:
        c[oc.neutral] += oc.mul(a, b, logic="ij;j=>i")
        d[oc.neutral, oc.maximum] = oc.add(a, b, logic="ij;j=>i")

    a, b = np.arange(6.0).reshape(2, 3), np.array([1.0, -5, 2])
    found = run(target, code, {"c": np.ones(2), "d": np.ones(2), "a": a, "b": b})
    np.testing.assert_array_equal(found["c"], a @ b)
    np.testing.assert_array_equal(found["d"], (a + b).max(1))


def test_a_reduction_that_nothing_states_is_refused() -> None:
    with oc.Session():
        a, b = oc.tensor([(1.0, 2.0), (3.0, 4.0)]), oc.tensor([1.0, 2.0])
        product = oc.mul(a, b, logic="@")
        with pytest.raises(oc.UsageError, match="cannot reduce axes"):
            oc.train.forward(product).resolve()

        @oc.cd
        def code() -> None:
            oc.declare("c")[:] = oc.mul(a, b, logic="@")

        with pytest.raises(oc.UsageError, match="must state one"):
            code()


def test_values_are_computed_in_their_own_format_and_converted_once(target: str) -> None:
    with oc.Session():
        x = oc.tensor([1.5, 2.5, 7.0])
        c = oc.declare("c", output=[3], dtype="int32")
        b = oc.declare("b", output=[3], dtype="uint8")

        @oc.cd
        def code() -> None:
            c[:] = x * 0.5
            b[:] = oc.exp(x * 0.5)

        ctx = oc.Context(target)
        ctx.compile(code())()
        np.testing.assert_array_equal(ctx[c], [0, 1, 3])
        np.testing.assert_array_equal(ctx[b], np.exp([0.75, 1.25, 3.5]).astype(np.uint8))


def test_recorded_code_reads_ranges_and_static_indices(target: str) -> None:
    with oc.Session():
        i = oc.static_index("i", range=4)
        c, d = oc.declare("c", output=[3]), oc.declare("d", output=[1])

        @oc.cd
        def code() -> None:
            c[:] = oc.arange(3)
            d[:] = oc.number(i) * 2.0

        ctx = oc.Context(target)
        ctx.compile(code(), bindings=[i])(i=3)
        np.testing.assert_array_equal(ctx[c], [0, 1, 2])
        assert ctx.item(d) == 6


def test_a_discarded_recording_takes_nothing_with_it(target: str) -> None:
    with oc.Session():
        y = oc.tensor([1.0, 2.0]) * 3.0
        c = oc.declare("c")

        @oc.cd
        def failing() -> None:
            c[:] = y
            raise ValueError("no")

        @oc.cd
        def code() -> None:
            c[:] = y

        with pytest.raises(ValueError, match="no"):
            failing()
        oc.train.forward(y)  # never compiled
        ctx = oc.Context(target)
        ctx.compile(code())()
        np.testing.assert_array_equal(ctx[c], [3, 6])


def test_accumulations_without_a_form_in_place_are_refused() -> None:
    with oc.Session():
        c = oc.declare("c", output=[2])
        with pytest.raises(oc.UsageError, match=r"c\[:\] = c % e"):
            c %= 3.0
        with pytest.raises(oc.UsageError, match=r"c\[:\] = c @ e"):
            c @= oc.tensor([(1.0, 2.0)])


def test_powers_have_finite_gradients_at_zero(target: str) -> None:
    with oc.Session():
        p, v = oc.param("p", init=[0.0, 2.0]), oc.param("v", init=[2.0, 3.0])
        loss = oc.einsum("...=>0", p**0 + p**v)
        ctx = oc.Context(target)
        step = ctx.compile(oc.train.grad_update(loss))
        ctx.init_params(loss)
        step()
        np.testing.assert_allclose(ctx[p.grad], [0, 12])
        np.testing.assert_allclose(ctx[v.grad], [0, 8 * np.log(2)], rtol=1e-6)


# ----- random code against NumPy ------------------------------------------------------------------

NAMES = "abcd"
statement = st.tuples(
    st.sampled_from(["set", "add", "sub", "mul", "fresh add", "max", "hold", "use"]),
    st.sampled_from(NAMES),
    st.sampled_from(["neg", "add", "mul", "sum", "dot", "twice"]),
    st.sampled_from(NAMES),
    st.sampled_from(NAMES),
)


def value_of(oc_or_np: Any, kind: str, x: Any, y: Any) -> Any:
    is_numpy = oc_or_np is np
    match kind:
        case "neg":
            return -x
        case "add":
            return x + y
        case "mul":
            return x * y
        case "sum":
            return np.full(3, x.sum()) if is_numpy else oc.einsum("i=>0", x)
        case "dot":
            return np.full(3, x @ y) if is_numpy else oc.einsum("i;i=>0", x, y)
        case _:
            return (x + y) * 2.0 - x


@given(st.lists(statement, min_size=1, max_size=7))
@settings(max_examples=100, deadline=None)
def test_random_code_agrees_with_numpy(statements: list[tuple[str, str, str, str, str]]) -> None:
    initial = {name: np.arange(3.0) * (i + 1) - 2 for i, name in enumerate(NAMES)}

    def apply(module: Any, cells: dict[str, Any]) -> None:
        held = value_of(module, "neg", cells["a"], cells["b"])
        for action, target, kind, first, second in statements:
            value = value_of(module, kind, cells[first], cells[second])
            c = cells[target]
            match action:
                case "set":
                    c[:] = value
                case "add":
                    c += value
                case "sub":
                    c -= value
                case "mul":
                    c *= value
                case "fresh add" if module is np:
                    c[:] = value
                case "fresh add":
                    c[oc.neutral] += value
                case "max" if module is np:
                    c[:] = np.maximum(c, value)
                case "max":
                    c[oc.maximum] = value
                case "hold":
                    held = value
                case _:
                    c[:] = held

    def code(a: oc.Tensor, b: oc.Tensor, c: oc.Tensor, d: oc.Tensor) -> None:
        apply(oc, {"a": a, "b": b, "c": c, "d": d})

    expected = {name: cells.copy() for name, cells in initial.items()}
    apply(np, expected)
    if any(np.abs(cells).max() > 1e12 for cells in expected.values()):
        return  # sums are exact only while they are small
    found = run("interp", code, initial)
    for name in NAMES:
        np.testing.assert_array_equal(found[name], expected[name])
