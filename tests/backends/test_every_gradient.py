"""Every operation that has a gradient has the right one: central differences of the operation itself."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ocannl_core as oc
from ocannl_core.ir.numbers.primitives import HASHES, LOGICAL, PRIMITIVES, BinaryOp, UnaryOp
from ocannl_core.tensor.graph.definitions import Applied, ancestors
from ocannl_core.tensor.primitives.operation import Operation
from ocannl_core.tensor.primitives.pointwise_operations import power_primitive
from ocannl_core.testing.central_differences import Point, check_gradients
from tests.support.example_count import example_count
from tests.support.primitive_operations import primitive_operations

POINTWISE = {
    operation.name: operation
    for operation in primitive_operations()
    if operation.gradient is not None
    and (operation.logic or ".") == "."
    and operation.name != "slice"
}


def cells(*shape: int) -> np.ndarray[Any, Any]:
    """Return numbers that differ: between the kinks of gates and clamps, inside every domain."""
    size = int(np.prod(shape))
    rng = np.random.default_rng(size)
    return rng.permutation(np.linspace(0.15, 0.85, size)).reshape(shape) + 0.003 * len(shape)


@pytest.mark.parametrize("name", sorted(POINTWISE))
def test_a_gradient_is_the_slope_of_its_operation(name: str) -> None:
    operation = POINTWISE[name]
    points = [cells(4) + 0.01 * i for i in range(operation.operands)]
    check_gradients(lambda *operands: operation(*operands), *points)


@pytest.mark.parametrize(
    "name", [name for name, each in sorted(POINTWISE.items()) if each.operands > 1]
)
@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_gradient_is_summed_where_operands_are_repeated(name: str, first: int) -> None:
    operation = POINTWISE[name]
    shapes = [(3, 1), (4,), (1, 4)]
    points = [cells(*shapes[(first + i) % 3]) + 0.01 * i for i in range(operation.operands)]
    check_gradients(lambda *operands: operation(*operands), *points)


NAN, INF = np.nan, np.inf


def gradients(target: str, operation: Operation, *operands: list[float]) -> list[list[float]]:
    """Return the gradients of the sum of an operation's results in each operand."""
    with oc.Session(dtype="float64"), oc.settings.overrides(allow_nan=True):
        params = [oc.param(f"p{i}", init=oc.tensor(cells)) for i, cells in enumerate(operands)]
        loss = oc.einsum("i => 0", operation(*params))
        ctx = oc.Context(target)
        wanted = [p.grad for p in params]
        step = ctx.compile(oc.train.grad_update(loss), keep=wanted)
        ctx.init_params(loss)
        step()
        return [ctx[grad].tolist() for grad in wanted]


def test_gates_are_closed_where_they_close(target: str) -> None:
    cells = [-1.0, -0.0, 0.0, 1e-300, 0.5, 1.0, 2.0, INF, NAN]
    assert gradients(target, oc.relu, cells) == [[0, 0, 0, 1, 1, 1, 1, 1, 0]]
    assert gradients(target, oc.primitives.sat01, cells) == [[0, 0, 0, 1, 1, 0, 0, 0, 0]]
    ones = [1.0] * len(cells)
    assert gradients(target, oc.primitives.relu_gate, cells, ones)[1] == [0, 0, 0, 1, 1, 1, 1, 1, 0]
    assert gradients(target, oc.primitives.sat01_gate, cells, ones)[1] == [
        0,
        0,
        0,
        1,
        1,
        0,
        0,
        0,
        0,
    ]


def test_gates_conditions_and_selections_pass_nothing_to_the_other_operand(target: str) -> None:
    a, b, c = [1.0, -2.0, 0.5], [3.0, 4.0, 5.0], [6.0, 7.0, 8.0]
    assert gradients(target, oc.primitives.relu_gate, a, b) == [[0, 0, 0], [1, 0, 1]]
    assert gradients(target, oc.where, [1.0, 0.0, NAN], b, c) == [[0, 0, 0], [1, 0, 1], [0, 1, 0]]
    assert gradients(target, oc.primitives.first, a, b) == [[1, 1, 1], [0, 0, 0]]
    assert gradients(target, oc.primitives.second, a, b) == [[0, 0, 0], [1, 1, 1]]


def test_of_two_equal_numbers_the_first_is_the_extreme(target: str) -> None:
    a, b = [1.0, 2.0, 3.0], [2.0, 2.0, 2.0]
    assert gradients(target, oc.maximum, a, b) == [[0, 1, 1], [1, 0, 0]]
    assert gradients(target, oc.minimum, a, b) == [[1, 1, 0], [0, 0, 1]]


def test_powers_have_gradients_at_zero(target: str) -> None:
    base, exponent = [0.0, 0.0, 3.0, 0.0], [1.0, 2.0, 1.0, 0.0]
    of_base, of_exponent = gradients(target, power_primitive, base, exponent)
    assert of_base == [1, 0, 1, 0]
    assert of_exponent == pytest.approx([0, 0, 3 * np.log(3), 0])


def test_the_rest_of_the_primitives_have_no_gradient() -> None:
    without = {
        operation.primitive for operation in primitive_operations() if operation.gradient is None
    }
    assert {op for op in without if op is not None} == {
        UnaryOp.IDENTITY,  # stop_gradient
        UnaryOp.NOT,
        UnaryOp.TRUNC,
        UnaryOp.FLOOR,
        UnaryOp.CEIL,
        UnaryOp.ROUND,
        UnaryOp.SIGN,
        UnaryOp.BIT_NOT,
        UnaryOp.BITCAST,
        BinaryOp.FLOOR_DIV,
        BinaryOp.BIT_AND,
        BinaryOp.BIT_OR,
        BinaryOp.BIT_XOR,
        UnaryOp.WORD,
        UnaryOp.UNIFORM,
        *LOGICAL,
        *HASHES,
    }


def softplus_forward(v: Any, v1: Any) -> None:
    v[:] = oc.log(1 + oc.exp(v1))


def softplus_gradient(g: Any, g1: Any, v1: Any) -> None:
    g1 += g / (1 + oc.exp(-v1))


def distance_forward(v: Any, v1: Any, v2: Any, difference_rhs1: Any) -> None:
    difference_rhs1[:] = v1 - v2
    v[oc.neutral] += difference_rhs1 * difference_rhs1


def distance_gradient(g: Any, g1: Any, g2: Any, v1: Any, v2: Any) -> None:
    g1 += g * (2 * (v1 - v2))
    g2 -= g * (2 * (v1 - v2))


softplus = oc.define_operation("softplus", forward=softplus_forward, gradient=softplus_gradient)
distance = oc.define_operation(
    "distance", forward=distance_forward, gradient=distance_gradient, logic="ij;j=>i"
)


def positions(*rows: int | list[int]) -> oc.Tensor:
    return oc.tensor(np.array(rows, np.int32))


CASES: dict[str, tuple[Callable[..., oc.Tensor], list[Point]]] = {
    "matmul": (lambda a, b: a @ b, [(cells(2, 3), 1), cells(3)]),
    "matmul of matrices": (lambda a, b: a @ b, [(cells(2, 3), 1), (cells(3, 2), 1)]),
    "transpose": (lambda a: a.T * a, [(cells(2, 2), 1)]),
    "sum": (lambda a: oc.einsum("ij=>i", a), [cells(2, 3)]),
    "diagonal": (lambda a: oc.einsum("ii=>i", a), [cells(3, 3)]),
    "placed on a diagonal": (lambda a: oc.einsum("i=>ii", a), [cells(3)]),
    "contraction": (lambda a, b: oc.einsum("...ik;kl=>il", a, b), [cells(2, 2, 3), cells(3, 2)]),
    "contraction of three": (
        lambda a, b, c: oc.einsum("ij;jk;k=>i", a, b, c),
        [cells(2, 3), cells(3, 2), cells(2)],
    ),
    "convolution": (lambda x, w: oc.einsum("2*o<+3*k; k => o", x, w), [cells(10), cells(2)]),
    "padded convolution": (lambda x, w: oc.einsum("o=+k; k => o", x, w), [cells(5), cells(3)]),
    "every second": (lambda x: oc.einsum("2*i+1 => i", x), [cells(6)]),
    "a position": (lambda x: oc.einsum("i,2 => i", x), [cells(2, 3)]),
    "placed at a position": (lambda x: oc.einsum("i => i,2", x), [cells(3)]),
    "outer sum": (
        lambda a, b: oc.primitives.outer_sum("i;j=>ij", a, b),
        [cells(2), cells(3) + 0.01],
    ),
    "reduced outer sum": (
        lambda a, b: oc.primitives.outer_sum("ij;jk=>ik", a, b),
        [cells(2, 3), cells(3, 2)],
    ),
    "einmax": (lambda a: oc.einmax("ij=>i", a), [cells(2, 4)]),
    "max pooling": (lambda a: oc.einmax("2*i<+k => i", a, values={"k": 2}), [cells(6)]),
    "padded max pooling": (lambda a: oc.einmax("i=+k => i", a, values={"k": 3}), [cells(5)]),
    "tropical": (
        lambda a, b: oc.primitives.tropical("ij;jk=>ik", a, b),
        [cells(2, 3), 0.37 * cells(3, 2)],
    ),
    "tropical window": (
        lambda a, b: oc.primitives.tropical("i<+k;k=>i", a, b),
        [cells(6), 0.37 * cells(2)],
    ),
    "concat": (lambda a, b: oc.concat("a;b=>a^b", a, b), [cells(2), cells(3)]),
    "blocks": (lambda a, b: oc.concat("i,k; j,l => i^j,k^l", a, b), [cells(2, 2), cells(1, 3)]),
    "a part of a concatenated axis": (
        lambda a: oc.einsum("a^b,c => c,b", a, values={"a": 1}),
        [cells(4, 2)],
    ),
    "stack": (lambda a, b: oc.stack(a, b), [cells(3), cells(3) + 0.01]),
    "stack along batch": (lambda a, b: oc.stack(a, b, axis="batch"), [cells(3), cells(3) + 0.01]),
    "stack of different shapes": (lambda a, b: oc.stack(a, b), [cells(2, 3), cells(3) + 0.01]),
    "interleave": (lambda a, b: oc.primitives.interleave(a, b), [cells(3), cells(3) + 0.01]),
    "slice": (lambda a: oc.einsum("ij=>i|j", a)[1], [cells(3, 2)]),
    "where": (lambda a, b: oc.where(a < b, a * b, b), [cells(4), 1 - cells(4)]),
    "where along a specification": (
        lambda c, a, b: oc.where(c < 0.5, a, b, logic="i;ij;j=>i"),
        [cells(3), cells(3, 2), cells(2)],
    ),
    "add along a specification": (
        lambda a, b: oc.add(a, b, logic="ij;i=>ji"),
        [cells(2, 3), cells(2)],
    ),
    "exp of the transposed": (lambda a: oc.exp(a, logic="ij=>ji"), [cells(2, 3)]),
    "composed and added": (lambda a, b, c: oc.fma(a, b, c), [(cells(2, 3), 1), cells(3), cells(2)]),
    "fused": (lambda a, b, c: oc.fma(a, b, c, logic="."), [cells(3), cells(3), cells(3)]),
    "power by a number": (lambda a: a**3.5, [cells(4)]),
    "power by 2, 1 and 0": (lambda a: a**2 + a**1 + a**0, [cells(4)]),
    "number to a power": (lambda a: 2.0**a, [cells(4)]),
    "stopped": (lambda a, b: oc.stop_gradient(oc.tensor([1.0, 2.0])) * a + b, [cells(2), cells(2)]),
    "used three times": (lambda a: a * a + oc.exp(a) * a, [cells(3)]),
    "stretched": (lambda a, b: a * b, [cells(2, 1), cells(2, 3)]),
    "softplus, defined here": (lambda a: softplus(a), [cells(4) - 0.5]),
    "distance, defined here": (lambda a, b: distance(a, b), [cells(2, 3), cells(3)]),
    "softmax": (lambda a: oc.softmax(a, logic="...|... => ...|0"), [cells(4)]),
    "layer norm": (lambda a: oc.nn.layer_norm(a), [cells(4)]),
    "sigmoid": (lambda a: oc.sigmoid(a), [cells(4) - 0.5]),
    "softplus": (lambda a: oc.softplus(a), [cells(4) - 0.5]),
    "log sigmoid": (lambda a: oc.log_sigmoid(a), [cells(4) - 0.5]),
    "silu": (lambda a: oc.silu(a), [cells(4) - 0.5]),
    "gelu": (lambda a: oc.gelu(a), [cells(4) - 0.5]),
    "gelu by tanh": (lambda a: oc.gelu(a, approximate="tanh"), [cells(4) - 0.5]),
    "mish": (lambda a: oc.mish(a), [cells(4) - 0.5]),
    "elu": (lambda a: oc.elu(a, 0.7), [cells(4) - 0.5]),
    "hardswish": (lambda a: oc.hardswish(a), [cells(4)]),
    "clip": (lambda a: oc.clip(a, 0.3, 0.7), [cells(4)]),
    "softsign": (lambda a: oc.softsign(a), [cells(4) - 0.5]),
    "logaddexp": (lambda a, b: oc.logaddexp(a, b), [cells(3), cells(3) + 0.07]),
    "binary_cross_entropy": (
        lambda a, b: oc.nn.binary_cross_entropy(a, b, reduction="none"),
        [3.0 * cells(4) - 1.5, cells(4)],
    ),
    "sum along an axis": (lambda a: a.sum(axis=0), [cells(2, 3)]),
    "mean": (lambda a: a.mean(axis=-1, keepdims=True), [cells(2, 3)]),
    "variance": (lambda a: a.var(axis=1, ddof=1), [cells(2, 3)]),
    "deviation": (lambda a: a.std(), [cells(2, 3)]),
    "min": (lambda a: a.min(axis=0), [cells(2, 3)]),
    "prod": (lambda a: a.prod(axis=1), [cells(2, 3)]),
    "prod with zeros": (
        lambda a: a.prod(axis=1),
        [np.array([[0.5, 0.0, 0.3], [0.0, 0.0, 0.7], [0.2, 0.4, 0.6]])],
    ),
    "prod over axes": (lambda a: a.prod(axis=(2, 0), keepdims=True), [cells(2, 2, 3)]),
    "prod of all": (lambda a: a.prod(), [np.array([[0.5, 0.0], [0.3, 0.7]])]),
    "logsumexp": (lambda a: a.logsumexp(axis=0), [cells(2, 3)]),
    "log softmax": (lambda a: a.log_softmax(), [cells(2, 3)]),
    "norm": (lambda a: a.norm(axis=0) + a.norm(3, axis=0), [cells(2, 3)]),
    "permute": (lambda a: a.permute(1, 0), [cells(2, 3)]),
    "reshape": (lambda a: a.reshape(3, 2), [cells(2, 3)]),
    "flip": (lambda a: a.flip(1), [cells(2, 3)]),
    "roll": (lambda a: a.roll(1, 1), [cells(2, 3)]),
    "pad": (lambda a: oc.pad(a, 1, value=2.0), [cells(2, 3)]),
    "pad, reflect": (lambda a: oc.pad(a, 1, mode="reflect"), [cells(2, 3)]),
    "pad, wrap": (lambda a: oc.pad(a, (1, 2), mode="wrap", axis=-1), [cells(2, 3)]),
    "repeat and tile": (lambda a: a.repeat(2, 0).tile((1, 2)), [cells(2, 3)]),
    "tril": (lambda a: a.tril(), [cells(3, 3)]),
    "concat along an axis": (lambda a: oc.concat([a, a * a], axis=1), [cells(2, 3)]),
    "cumsum": (lambda a: oc.cumsum(a, axis=1), [cells(2, 3)]),
    "cumprod": (lambda a: oc.cumprod(a, axis=1), [cells(2, 3)]),
    "cumprod with zeros": (
        lambda a: oc.cumprod(a, axis=1),
        [np.array([[0.5, 0.0, 0.3], [0.0, 0.0, 0.7], [0.2, 0.4, 0.6]])],
    ),
    "cummax": (lambda a: oc.cummax(a, axis=1), [cells(2, 3)]),
    "cummin": (lambda a: oc.cummin(a, axis=0), [cells(3, 2)]),
    "sort": (lambda a: a.sort(axis=0), [cells(2, 3)]),
    "topk": (lambda a: oc.topk(a, 2)[0], [cells(2, 3)]),
    "median": (lambda a: oc.median(a, axis=1), [cells(2, 4)]),
    "take": (lambda a: oc.take(a, positions(2, 0, 2)), [cells(3, 2)]),
    "take along": (lambda a: oc.take_along(a, positions([2, 0], [1, 1]), axis=1), [cells(2, 3)]),
    "put": (lambda a, b: oc.put(a, positions(2, 0, 2), b, 0), [cells(3, 2), cells(3, 2) + 0.05]),
    "put along": (
        lambda a, b: oc.put_along(a, positions([2, 0], [1, 1]), b, axis=1),
        [cells(2, 3), cells(2, 2) + 0.05],
    ),
    "scatter": (lambda a: oc.scatter(positions(2, 0, 2), a, size=4), [cells(3, 2)]),
    "scatter maxima": (
        lambda a: oc.scatter(positions(1, 0, 1), a, size=2, combine=oc.maximum),
        [cells(3, 2)],
    ),
}


def defined() -> set[Operation]:
    """Return every operation that a module defines."""
    packages = [import_module(f"ocannl_core.{name}") for name in ("tensor", "nn")]
    names = [m.name for p in packages for m in walk_packages(p.__path__, f"{p.__name__}.")]
    values = [value for name in names for value in vars(import_module(name)).values()]
    return {value for value in values if isinstance(value, Operation)}


def used(function: Callable[..., oc.Tensor], points: list[Point]) -> set[Operation]:
    """Return the operations that an expression consists of."""
    with oc.Session(dtype="float64"):
        cells = [point if isinstance(point, tuple) else (point, 0) for point in points]
        result = function(*(oc.tensor(array, input_axes=axes) for array, axes in cells))
        found = [each.definition for each in ancestors([result])]
    applied = [each.operation for each in found if isinstance(each, Applied)]
    return {each for each in applied if isinstance(each, Operation)}


def test_every_operation_with_a_gradient_is_compared() -> None:
    compared = set(POINTWISE.values()).union(*(used(*case) for case in CASES.values()))
    assert len(compared) > 40
    missing = {each for each in defined() if each.gradient is not None} - compared
    assert {each.name for each in missing} == set()


def test_every_primitive_is_an_operation_on_tensors() -> None:
    lifted = {each.primitive for each in defined()}
    assert set(PRIMITIVES) <= lifted


@pytest.mark.parametrize("case", CASES)
def test_a_gradient_is_the_slope_of_an_operation_over_axes(case: str) -> None:
    function, points = CASES[case]
    check_gradients(function, *points)


@pytest.mark.parametrize(
    "case",
    [
        "matmul",
        "padded convolution",
        "tropical",
        "concat",
        "softmax",
        "distance, defined here",
        "silu",
        "prod with zeros",
        "pad, reflect",
        "reshape",
        "cumprod with zeros",
        "cummax",
        "topk",
    ],
)
def test_compiled_gradients_are_slopes_too(case: str) -> None:
    function, points = CASES[case]
    check_gradients(function, *points, backend="cpu_c")


def test_no_gradient_passes_where_it_is_stopped() -> None:
    with oc.Session():
        p = oc.param("p", init=[2.0, 3.0])
        loss = oc.einsum("...=>0", oc.stop_gradient(p) * p)
        ctx = oc.Context("interp")
        step = ctx.compile(oc.train.grad_update(loss))
        ctx.init_params(loss)
        step()
        np.testing.assert_array_equal(ctx[p.grad], [2, 3])


def test_a_wrong_gradient_is_found_with_its_operand_and_cell() -> None:
    def forward(v: Any, v1: Any, v2: Any) -> None:
        v[:] = v1 * v2

    def gradient(g: Any, g1: Any, g2: Any, v1: Any, v2: Any) -> None:
        g1 += g * v2
        g2 += g * v2

    wrong = oc.define_operation("wrong", forward=forward, gradient=gradient)
    with pytest.raises(AssertionError, match=r"operand 2 at \[0\]"):
        check_gradients(lambda a, b: wrong(a, b), cells(2), cells(2) + 0.3)


def test_gradients_accumulate_over_the_uses_of_a_tensor_and_over_losses() -> None:
    with oc.Session():
        p = oc.param("p", init=[2.0])
        first, second = oc.einsum("...=>0", p * 3.0 + p * 4.0), oc.einsum("...=>0", p * p)

        @oc.cd
        def both() -> None:
            for loss in (first, second):
                loss.forward()
                loss.zero_grads()
            for loss in (first, second):
                loss.grad[:] = 1.0
                loss.backprop()

        ctx = oc.Context("interp")
        step = ctx.compile(both())
        ctx.init_params(first)
        step()
        assert ctx.item(p.grad) == 3 + 4 + 2 * 2
        step()
        assert ctx.item(p.grad) == 3 + 4 + 2 * 2


Form = Callable[[oc.Tensor, oc.Tensor], oc.Tensor]
FORMS: dict[str, Form] = {
    # squashed, so that deep compositions stay where functions are smooth and of order one
    "add": lambda a, b: oc.tanh(a + b),
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / (2.0 + b * b),
    "power": lambda a, b: oc.exp(oc.tanh(a) * 0.5) ** oc.tanh(b),
    "sin": lambda a, _: oc.sin(a),
    "log": lambda a, _: oc.log(1.0 + a * a),
    "sqrt": lambda a, _: oc.sqrt(1.0 + a * a),
    "tanh of a product": lambda a, b: oc.tanh(oc.einsum("ij;jk=>ik", a, b)),
    "row sums": lambda a, b: a * 0.5 + oc.einsum("ij=>i0", b) * 0.25,
    "turned": lambda a, b: oc.add(a, b, logic="ij;ji=>ij") * 0.5,
    "window": lambda a, _: oc.einsum("i,j=+k; k => i,j", a, oc.tensor([0.5, -0.25])),
    "parts exchanged": lambda a, b: oc.concat(
        "i,j; k,j => i^k,j", oc.einsum("1,j => 0,j", a), oc.einsum("0,j => 0,j", b)
    ),
    "fused": lambda a, b: oc.fma(a, b, a, logic=".") * 0.5,
    "where": lambda a, b: oc.where(oc.tensor([[1.0, 0.0], [0.0, 1.0]]), a, b),
}
step = st.tuples(st.sampled_from(sorted(FORMS)), st.integers(0, 9), st.integers(0, 9))


@given(st.lists(step, min_size=1, max_size=5))
@settings(max_examples=example_count(13), deadline=None)
def test_gradients_of_random_compositions_are_slopes(steps: list[tuple[str, int, int]]) -> None:
    check_composition(steps, "interp")


@given(st.lists(step, min_size=3, max_size=5))
@settings(max_examples=example_count(3), deadline=None)
def test_compiled_gradients_of_random_compositions_are_slopes(
    steps: list[tuple[str, int, int]],
) -> None:
    check_composition(steps, "cpu_c")


def check_composition(steps: list[tuple[str, int, int]], backend: str) -> None:
    """Compare the gradients of a composition: each step applies a form to two earlier values."""

    def function(a: oc.Tensor, b: oc.Tensor) -> oc.Tensor:
        made = [a, b]
        for name, first, second in steps:
            made.append(FORMS[name](made[first % len(made)], made[second % len(made)]))
        return made[-1] + 0.0 * made[-2] + a * b * 0.1

    points = cells(2, 2), cells(2, 2) + 0.05
    check_gradients(function, *points, backend=backend, tolerance=2e-5)
