"""Recorded code runs in program order, and absorbing operations changes no result."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ocannl_core as oc
from tests.support.example_count import example_count

Array = np.ndarray[Any, Any]
Code = Callable[..., None]


def run(target: str, code: Code, initial: dict[str, Array]) -> dict[str, Array]:
    """Return the tensors' values after the code ran once on declared tensors of these values."""
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
        negated, named, doubled = -c, oc.multiply(c, 10.0, label="t"), double(c)
        c[:] = 0.0
        d[:] = negated
        e[:] = named
        f[:] = doubled

    zeros = np.zeros(3)
    found = run(target, code, {"c": X, "d": zeros, "e": zeros, "f": zeros})
    np.testing.assert_array_equal(found["d"], -X)
    np.testing.assert_array_equal(found["e"], 10 * X)
    np.testing.assert_array_equal(found["f"], 2 * X)


def test_a_tensor_from_outside_is_computed_at_its_first_use_and_again_by_forward(
    target: str,
) -> None:
    with oc.Session():
        c, found = oc.declare("c", output=[1]), [oc.declare(f"found{i}") for i in range(4)]
        square, later = c * c, c + 1.0

        @oc.cd
        def code() -> None:
            found[0][:] = square
            c[:] = 3.0
            found[1][:] = square
            found[2][:] = later
            square.forward()
            found[3][:] = square

        ctx = oc.Context(target)
        step = ctx.compile(code())
        ctx[c] = 2.0
        step()
        assert [ctx.item(each) for each in found] == [4, 4, 4, 9]


def test_all_cells_are_read_with_brackets(target: str) -> None:
    def code(c: oc.Tensor, d: oc.Tensor, e: oc.Tensor, f: oc.Tensor) -> None:
        d[:] = c[:]
        e[:] = oc.maximum(c[:], 2.0) * c[:]
        f += c[:][::-1]
        f[:] = -f[:]

    ones = np.ones(3)
    found = run(target, code, {"c": X, "d": ones, "e": ones, "f": ones})
    np.testing.assert_array_equal(found["d"], X)
    np.testing.assert_array_equal(found["e"], np.maximum(X, 2) * X)
    np.testing.assert_array_equal(found["f"], -(1 + X[::-1]))


def test_an_expression_can_be_used_twice(target: str) -> None:
    def code(c: oc.Tensor, d: oc.Tensor, e: oc.Tensor) -> None:
        t = -c
        d[:] = t
        c[:] = t
        e[:] = t

    found = run(target, code, {"c": X, "d": np.zeros(3), "e": np.zeros(3)})
    for name in "cde":
        np.testing.assert_array_equal(found[name], -X)


def test_a_reset_does_not_clear_cells_with_later_reads(target: str) -> None:
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
        c[oc.neutral] += oc.multiply(a, b, logic="ij;j=>i")
        d[oc.neutral, oc.maximum] = oc.add(a, b, logic="ij;j=>i")

    a, b = np.arange(6.0).reshape(2, 3), np.array([1.0, -5, 2])
    found = run(target, code, {"c": np.ones(2), "d": np.ones(2), "a": a, "b": b})
    np.testing.assert_array_equal(found["c"], a @ b)
    np.testing.assert_array_equal(found["d"], (a + b).max(1))


def test_a_reduction_that_nothing_states_is_refused() -> None:
    with oc.Session():
        a, b = oc.tensor([(1.0, 2.0), (3.0, 4.0)]), oc.tensor([1.0, 2.0])
        product = oc.multiply(a, b, logic="@")
        with pytest.raises(oc.UsageError, match="cannot reduce axes"):
            oc.train.forward(product).resolve()

        @oc.cd
        def code() -> None:
            oc.declare("c")[:] = oc.multiply(a, b, logic="@")

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


FORMS: dict[str, tuple[Code, Code, Callable[[Array, Array], Array], float]] = {}


def form(
    name: str, reference: Callable[[Array, Array], Array], neutral: float
) -> Callable[..., None]:
    """Record a form of accumulation, with and without a reset, and its reference."""

    def note(keeping: Code, resetting: Code) -> None:
        FORMS[name] = (keeping, resetting, reference, neutral)

    return note


def in_place(symbol: str) -> tuple[Code, Code]:
    """Return the code `c += e` and `c[oc.neutral] += e` for an operator."""
    names: dict[str, Any] = {"oc": oc}
    exec(
        f"def keeping(c, e):\n    c {symbol}= e\n"
        f"def resetting(c, e):\n    c[oc.neutral] {symbol}= e\n",
        names,
    )
    return names["keeping"], names["resetting"]


def with_operation(operation: Any) -> tuple[Code, Code]:
    def keeping(c: oc.Tensor, e: oc.Tensor) -> None:
        c[operation] = e

    def resetting(c: oc.Tensor, e: oc.Tensor) -> None:
        c[oc.neutral, operation] = e

    return keeping, resetting


form("add", lambda c, e: c + e, 0)(*in_place("+"))
form("sub", lambda c, e: c - e, 0)(*in_place("-"))
form("mul", lambda c, e: c * e, 1)(*in_place("*"))
form("div", lambda c, e: c / e, 1)(*in_place("/"))
form("pow", lambda c, e: c**e, 1)(*in_place("**"))
form("or", lambda c, e: ((c != 0) | (e != 0)) * 1.0, 0)(*in_place("|"))
form("and", lambda c, e: ((c != 0) & (e != 0)) * 1.0, 1)(*in_place("&"))
form("maximum", np.maximum, -np.inf)(*with_operation(oc.maximum))
form("minimum", np.minimum, np.inf)(*with_operation(oc.minimum))
form("relu_gate", lambda c, e: np.where(c > 0, e, 0), 1)(*with_operation(oc.primitives.relu_gate))
form("sat01_gate", lambda c, e: np.where((c > 0) & (c < 1), e, 0), 0.5)(
    *with_operation(oc.primitives.sat01_gate)
)
form("pow by name", lambda c, e: c**e, 1)(*with_operation(oc.pow))
form("add by name", lambda c, e: c + e, 0)(*with_operation(oc.add))


@pytest.mark.parametrize("name", FORMS)
def test_an_accumulation_applies_its_primitive(target: str, name: str) -> None:
    keeping, resetting, reference, neutral = FORMS[name]
    c, e = np.array([2.0, 0.5, -1.0, 0.0]), np.array([3.0, 2.0, 2.0, 1.0])
    initial = {"c": c, "e": e}
    np.testing.assert_allclose(run(target, keeping, initial)["c"], reference(c, e), rtol=1e-14)
    np.testing.assert_allclose(
        run(target, resetting, initial)["c"], reference(np.full(4, neutral), e), rtol=1e-14
    )


def test_an_accumulation_with_a_logic_of_its_own_goes_over_every_pair(target: str) -> None:
    def code(c: oc.Tensor, d: oc.Tensor, a: oc.Tensor, b: oc.Tensor) -> None:
        c.accumulate(oc.multiply(a, b, logic="ij;j=>i"), with_=oc.minimum, reset=True)
        d.accumulate(a, with_=oc.maximum, logic="ij=>i")

    a, b = np.arange(6.0).reshape(2, 3), np.array([1.0, -5, 2])
    found = run(target, code, {"c": np.ones(2), "d": np.full(2, 3.0), "a": a, "b": b})
    np.testing.assert_array_equal(found["c"], (a * b).min(1))
    np.testing.assert_array_equal(found["d"], [3, 5])


ACCUMULATORS = {
    "add": oc.add,
    "sub": oc.subtract,
    "mul": oc.multiply,
    "div": oc.divide,
    "relu_gate": oc.primitives.relu_gate,
    "sat01_gate": oc.primitives.sat01_gate,
    "or": oc.logical_or,
    "and": oc.logical_and,
    "maximum": oc.maximum,
    "minimum": oc.minimum,
}


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("name", ACCUMULATORS)
def test_any_accumulation_reduces_a_primitive_along_a_specification(
    target: str, name: str, reset: bool
) -> None:
    accumulator = ACCUMULATORS[name]

    def code(c: oc.Tensor, a: oc.Tensor, b: oc.Tensor) -> None:
        c.accumulate(oc.subtract(a, b, logic="ij;j=>i"), with_=accumulator, reset=reset)

    a, b = np.array([[1.0, 2.5, 0.5], [-1.0, 4.0, 2.0]]), np.array([0.5, 2.0, 1.0])
    meaning, neutral = accumulator.primitive.value.meaning, accumulator.primitive.value.neutral
    expected = []
    for start, row in zip([0.25, 3.0], a, strict=True):
        total = neutral if reset else start
        for left, right in zip(row, b, strict=True):
            total = meaning(total, left - right)
        expected.append(total)
    found = run(target, code, {"c": np.array([0.25, 3.0]), "a": a, "b": b})
    np.testing.assert_allclose(found["c"], expected, rtol=1e-14)


def test_a_plain_assignment_may_rearrange_axes(target: str) -> None:
    def code(c: oc.Tensor, d: oc.Tensor, a: oc.Tensor) -> None:
        c[:] = oc.exp(a, logic="ij=>ji")
        d.assign(a, logic="ij=>ji")

    a = np.arange(6.0).reshape(2, 3)
    found = run(target, code, {"c": np.ones((3, 2)), "d": np.ones((3, 2)), "a": a})
    np.testing.assert_allclose(found["c"], np.exp(a.T), rtol=1e-14)
    np.testing.assert_array_equal(found["d"], a.T)


def test_a_part_of_an_axis_is_assigned_and_the_rest_stays(target: str) -> None:
    def code(c: oc.Tensor, d: oc.Tensor, a: oc.Tensor) -> None:
        c.assign(a, logic="a => a^b")
        d.accumulate(a, logic="b => a^b")

    nines, a = np.full(5, 9.0), np.array([1.0, 2.0])
    found = run(target, code, {"c": nines, "d": nines, "a": a})
    np.testing.assert_array_equal(found["c"], [1, 2, 9, 9, 9])
    np.testing.assert_array_equal(found["d"], [9, 9, 9, 10, 11])


def test_stated_projections_are_followed(target: str) -> None:
    def code(c: oc.Tensor, d: oc.Tensor, x: oc.Tensor, w: oc.Tensor) -> None:
        c[oc.neutral] += oc.multiply(x, w, projections="2*o + k; k => o over o<3, k<2")
        d.assign(x, projections="-1*i + 5 => i over i<6")

    x, w = np.arange(6.0), np.array([1.0, 10.0])
    found = run(target, code, {"c": np.ones(3), "d": np.ones(6), "x": x, "w": w})
    np.testing.assert_array_equal(found["c"], [10, 32, 54])
    np.testing.assert_array_equal(found["d"], x[::-1])


def test_merge_buffers_are_operands_of_the_primitive_that_an_assignment_applies() -> None:
    with oc.Session():
        p = oc.param("p", init=[1.0, 2.0])

        @oc.cd
        def average() -> None:
            p.grad[:] = p.grad.merge
            p.grad += p.grad.merge * 0.5
            p.grad += oc.multiply(p.grad.merge, 0.5, logic=".")

        text = str(average())
        assert "p_grad[o] = p_grad.merge[o]" in text
        assert text.count("p_grad[o] += p_grad.merge[o] * 0.5") == 2


def test_appended_code_recomputes_tensors_whose_operands_changed(target: str) -> None:
    with oc.Session():
        p = oc.param("p", init=[1.0])
        loss = oc.einsum("...=>0", (p - 3.0) ** 2)
        step = oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.25)
        ctx = oc.Context(target)
        twice = ctx.compile(step + step)
        ctx.init_params(loss)
        twice()
        assert ctx.item(p) == 2.5
        assert ctx.item(loss) == 1.0


def test_declared_tensors_keep_their_cells_only_where_they_are_read_first(target: str) -> None:
    with oc.Session():
        x, out = oc.placeholder("x", output=[2]), oc.declare("out")

        @oc.cd
        def code() -> None:
            twice = oc.declare("twice")
            twice[:] = x * 2.0
            total = oc.declare("total")
            total += twice
            out[:] = total

        ctx = oc.Context(target)
        step = ctx.compile(code())
        ctx[x] = [1.0, 2.0]
        step()
        step()
        np.testing.assert_array_equal(ctx[out], [4, 8])
        lines = step.assignments.splitlines()
        assert "  total_x: float32[2]  # kept" in lines
        assert "  twice_x: float32[2]" in lines


def test_nodes_of_removed_accumulations_stay_readable(target: str) -> None:
    with oc.Session():
        c = oc.declare("c", output=[2], dtype="int32")
        p = oc.param("p", init=[1.0, 2.0])

        @oc.cd
        def code() -> None:
            c.accumulate(0.5)
            p.accumulate(1.0, with_=oc.multiply)

        ctx = oc.Context(target)
        step = ctx.compile(code())
        ctx.init_params(p)
        step()
        assert ctx[c].tolist() == [0, 0]
        assert ctx[p].tolist() == [1, 2]
        ctx[c] = [3, 4]
        step()
        assert ctx[c].tolist() == [3, 4]


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
@settings(max_examples=example_count(50), deadline=None)
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
        a[:] = a  # code without an assignment warns
        apply(oc, {"a": a, "b": b, "c": c, "d": d})

    expected = {name: cells.copy() for name, cells in initial.items()}
    apply(np, expected)
    if any(np.abs(cells).max() > 1e12 for cells in expected.values()):
        return  # sums are exact only while they are small
    found = run("interp", code, initial)
    for name in NAMES:
        np.testing.assert_array_equal(found[name], expected[name])


piece = st.one_of(
    st.lists(statement, min_size=1, max_size=3),
    st.tuples(st.sampled_from(["neg", "add", "mul", "sum"]), st.sampled_from(NAMES)),
)


@given(st.lists(piece, min_size=1, max_size=4))
@settings(max_examples=example_count(30), deadline=None)
def test_code_after_code_is_the_same_as_one_routine_after_another(pieces: list[Any]) -> None:
    found = []
    for is_one_routine in (True, False):
        with oc.Session():
            cells = {
                name: oc.declare(name, batch=[], input=[], output=[3], dtype=oc.float64)
                for name in NAMES
            }
            values = [value_of(oc, "mul", cells["a"], cells["b"])]
            codes = []
            for each in pieces:
                if isinstance(each, tuple):
                    values.append(value_of(oc, each[0], values[-1], cells[each[1]]))
                    codes.append(oc.train.forward(values[-1]))
                else:
                    codes.append(recorded(each, cells))
            ctx = oc.Context("interp")
            for i, tensor in enumerate(cells.values()):
                ctx[tensor] = np.arange(3.0) * (i + 1) - 2
            together = [reduce(add, codes)] if is_one_routine else codes
            for code in together:
                ctx.compile(code)()
            results = [*cells.values(), *values[1:]]
            found.append([ctx[tensor] for tensor in results])
    for together, apart in zip(*found, strict=True):
        np.testing.assert_array_equal(together, apart)


def recorded(
    statements: list[tuple[str, str, str, str, str]], cells: dict[str, oc.Tensor]
) -> oc.Computation:
    @oc.cd
    def code() -> None:
        for action, target, kind, first, second in statements:
            value = value_of(oc, kind, cells[first], cells[second])
            if action in ("add", "fresh add"):
                cells[target].accumulate(value, reset=action == "fresh add")
            else:
                cells[target].assign(value)

    return code()


def test_a_primitive_with_a_logic_of_its_own_is_an_operand_like_any_other(target: str) -> None:
    cells = np.array([1, 2, 3], np.float32)
    pairs = np.add.outer(cells, cells)
    with oc.Session():
        v = oc.declare("v", batch=[], output=[3], input=[])
        squares, sums, greatest = (oc.declare(name) for name in ("squares", "sums", "greatest"))

        @oc.cd
        def code() -> None:
            pair = oc.add(v, v, logic="i; j => ij")
            squares[:] = pair * pair + pair[:, ::-1]
            sums[:] = oc.take(pair, oc.argmax(pair, axis=0), axis=0)[0] + pair.sum(axis=0)

            def step(x: oc.Tensor, _: None) -> tuple[oc.Tensor, None]:
                return oc.add(x, v, logic="i; j => ij").max(axis=1), None

            greatest[:] = oc.scan(step, v, length=2)[1]

        context = oc.Context(target)
        context[v] = cells
        context.compile(code())()
        np.testing.assert_array_equal(context[squares], pairs * pairs + pairs[:, ::-1])
        np.testing.assert_array_equal(context[sums], pairs[2] + pairs.sum(axis=0))
        np.testing.assert_array_equal(context[greatest], cells + 6)


def test_an_operand_with_a_logic_is_computed_before_its_tensors_are_written() -> None:
    with oc.Session():
        v, sums = oc.declare("v", output=[3]), oc.declare("sums", output=[3, 3])

        @oc.cd
        def code() -> None:
            pair = oc.add(v, v, logic="i; j => ij")
            v[:] = 1.0
            sums[:] = pair * 2

        with pytest.raises(oc.UsageError, match="an operand has been written since"):
            code()
