"""Random expressions against NumPy, and their gradients against central differences in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ocannl_core as oc
from tests.support.example_count import example_count

Array = np.ndarray[Any, Any]

OUTPUTS = [(3, 2), (1, 2), (2,), (3, 1), (1,), ()]


@dataclass(frozen=True)
class LeafTensor:
    """A parameter of the given output axes, or data with a batch axis in front."""

    output: tuple[int, ...]
    has_batch: bool
    seed: int

    def value(self) -> Array:
        """The cells with two output axes, and a batch axis where there is one."""
        batch = (2,) if self.has_batch else (1,)
        full = (*batch, *(1,) * (2 - len(self.output)), *self.output)
        return np.random.default_rng(self.seed).uniform(-1.5, 1.5, full)

    def tensor(self) -> oc.Tensor:
        cells = self.value()
        if self.has_batch:
            return oc.tensor(cells.reshape(2, *self.output), batch_axes=1, dtype=oc.float64)
        return oc.param(
            "p", init=oc.tensor(cells.reshape(self.output), dtype=oc.float64), dtype=oc.float64
        )


UNARY = {
    "neg": (lambda m, x: -x),
    "tanh": (lambda m, x: m.tanh(x)),
    "exp": (lambda m, x: m.exp(0.3 * x)),
    "sin": (lambda m, x: m.sin(x)),
    "cos": (lambda m, x: m.cos(x)),
    "log": (lambda m, x: m.log(1.5 + x * x)),
    "exp2": (lambda m, x: m.exp2(0.3 * x)),
    "log2": (lambda m, x: m.log2(1.5 + x * x)),
    "sqrt": (lambda m, x: m.sqrt(1.0 + x * x)),
    "square": (lambda m, x: x**2.0),
    "cube": (lambda m, x: x**3.0),
    "inverse": (lambda m, x: (2.0 + x * x) ** -1.0),
}
BINARY = {
    "add": (lambda m, x, y: x + y),
    "sub": (lambda m, x, y: x - y),
    "mul": (lambda m, x, y: x * y),
    "div": (lambda m, x, y: x / (1.5 + y * y)),
    "maximum": (lambda m, x, y: m.maximum(x, y)),
    "minimum": (lambda m, x, y: m.minimum(x, y)),
    "where": (lambda m, x, y: m.where(x < y, x, 2.0 * y)),
    "relu gap": (lambda m, x, y: m.maximum(x - y, 0.0)),
}


@dataclass(frozen=True)
class ExpressionProgram:
    """Leaves, then steps that each apply an operation to earlier values."""

    leaves: tuple[LeafTensor, ...]
    steps: tuple[tuple[str, int, int], ...]

    def run(self, module: Any, values: list[Any]) -> Any:
        for name, first, second in self.steps:
            a, b = values[first % len(values)], values[second % len(values)]
            values.append(UNARY[name](module, a) if name in UNARY else BINARY[name](module, a, b))
        return values[-1]


leaf = st.builds(LeafTensor, st.sampled_from(OUTPUTS), st.booleans(), st.integers(0, 1000))
step = st.tuples(st.sampled_from([*UNARY, *BINARY]), st.integers(0, 20), st.integers(0, 20))
program = st.builds(
    ExpressionProgram,
    st.lists(leaf, min_size=1, max_size=3, unique_by=lambda each: each.seed).map(
        lambda leaves: (
            LeafTensor((3, 2), False, 1001),
            *leaves,
        )  # equal cells would be kinks of maximum
    ),
    st.lists(step, min_size=1, max_size=5).map(tuple),
)


@given(program)
@settings(max_examples=example_count(13), deadline=None)
def test_random_expressions_and_their_gradients_agree_with_numpy(
    target: str, program: ExpressionProgram
) -> None:
    with oc.Session():
        tensors = [leaf.tensor() for leaf in program.leaves]
        result = program.run(oc, list(tensors))
        arrays = [leaf.value() for leaf in program.leaves]
        expected = program.run(np, list(arrays))
        ctx = oc.Context(target)
        if result.grad is None:
            ctx.init_params(result)
            ctx.compile(oc.train.forward(result))()
            np.testing.assert_allclose(
                ctx[result].reshape(expected.shape), expected, rtol=1e-12, atol=1e-13
            )
            return
        weights = np.random.default_rng(5).uniform(0.5, 1.5, expected.shape)
        weight = oc.tensor(weights, batch_axes=1, dtype=oc.float64)
        loss = oc.einsum("...|... => 0", result * weight)
        step = ctx.compile(oc.train.grad_update(loss), keep=[loss, *(p.grad for p in loss.params)])
        ctx.init_params(loss)
        step()

        def scalar(at: list[Array]) -> float:
            return float(np.sum(program.run(np, list(at)) * weights))

        assert ctx.item(loss) == pytest.approx(scalar(arrays), rel=1e-10, abs=1e-11)
        for position, tensor in enumerate(tensors):
            if tensor not in loss.params:
                continue
            gradient = central_difference(scalar, arrays, position)
            np.testing.assert_allclose(
                ctx[tensor.grad].reshape(gradient.shape), gradient, rtol=1e-5, atol=1e-6
            )


def central_difference(function: Any, arrays: list[Array], position: int) -> Array:
    step = 1e-6
    gradient = np.zeros_like(arrays[position])
    for cell in np.ndindex(gradient.shape):
        ends = []
        for sign in (1, -1):
            moved = [a.copy() for a in arrays]
            moved[position][cell] += sign * step
            ends.append(function(moved))
        gradient[cell] = (ends[0] - ends[1]) / (2 * step)
    return gradient


@pytest.mark.parametrize(
    ("spec", "shapes"),
    [
        ("ij;jk=>ik", [(2, 3), (3, 4)]),
        ("ij;kj=>ik", [(2, 3), (4, 3)]),
        ("ij;ij=>i", [(2, 3), (2, 3)]),
        ("i;j=>ij", [(2,), (3,)]),
        ("ijk;ikl=>ijl", [(2, 3, 4), (2, 4, 2)]),
        ("ii;i=>i", [(3, 3), (3,)]),
        ("ij=>j", [(2, 3)]),
        ("ijk=>ki", [(2, 3, 4)]),
        ("i=>ii", [(3,)]),
    ],
)
def test_einsum_and_its_gradients_agree_with_numpy(
    target: str, spec: str, shapes: list[tuple[int, ...]]
) -> None:
    rng = np.random.default_rng(3)
    arrays = [rng.normal(size=shape) for shape in shapes]

    def reference(at: list[Array]) -> Array:
        inputs, output = spec.split("=>")
        if output == "ii":
            return np.diag(at[0])
        return np.einsum(f"{inputs.replace(';', ',')}->{output}", *at)

    weights = rng.normal(size=reference(arrays).shape)
    with oc.Session():
        params = [
            oc.param(f"p{i}", init=oc.tensor(a, dtype=oc.float64), dtype=oc.float64)
            for i, a in enumerate(arrays)
        ]
        result = oc.einsum(spec, *params)
        loss = oc.einsum("...=>0", result * oc.tensor(weights, dtype=oc.float64))
        ctx = oc.Context(target)
        step = ctx.compile(oc.train.grad_update(loss), keep=[result, *(p.grad for p in params)])
        ctx.init_params(loss)
        step()
        np.testing.assert_allclose(ctx[result], reference(arrays), rtol=1e-12)
        for position, parameter in enumerate(params):
            gradient = central_difference(
                lambda at: float(np.sum(reference(at) * weights)), arrays, position
            )
            np.testing.assert_allclose(ctx[parameter.grad], gradient, rtol=1e-6, atol=1e-7)


def test_composition_contracts_all_input_axes_with_all_output_axes(target: str) -> None:
    rng = np.random.default_rng(0)
    w = rng.normal(size=(2, 3, 4)).astype(np.float32)
    x = rng.normal(size=(5, 3, 4)).astype(np.float32)
    bias = rng.normal(size=(2,)).astype(np.float32)
    with oc.Session():
        weight = oc.param("w", init=w, input=[3, 4])
        data = oc.tensor(x, batch_axes=1)
        b = oc.param("b", init=bias)
        y = weight @ data + b
        z = oc.fma(weight, data, b)
        ctx = oc.Context(target)
        run = ctx.compile(oc.train.forward(y) + oc.train.forward(z), keep=[y, z])
        ctx.init_params(y)
        run()
        expected = np.einsum("oij,bij->bo", w, x) + bias
        np.testing.assert_allclose(ctx[y], expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(ctx[z], expected, rtol=1e-5, atol=1e-5)
        assert str(y.shape) == "5|2"


def test_transposed_products_and_static_slices(target: str) -> None:
    data = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    with oc.Session():
        i = oc.static_index("i", range=4)
        x = oc.tensor(data, batch_axes=2)
        w = oc.param("w", init=np.ones((2, 3), np.float32), input=[3])
        y = w @ x[i]
        back = w.T @ y
        fixed = x[1]
        ctx = oc.Context(target)
        run = ctx.compile(
            oc.train.forward(back) + oc.train.forward(fixed), bindings=[i], keep=[y, back, fixed]
        )
        ctx.init_params(back)
        for position in (2, 0):
            run(i=position)
            sums = data[position].sum(-1, keepdims=True)
            np.testing.assert_array_equal(ctx[y], np.repeat(sums, 2, -1))
            np.testing.assert_array_equal(ctx[back], np.repeat(2 * sums, 3, -1))
        np.testing.assert_array_equal(ctx[fixed], data[1])


@pytest.mark.parametrize("dims", [(2, 3, 2), (3, 5, 7), (4, 8, 16), (2, 2, 3)])
@pytest.mark.parametrize("dtype", [oc.float32, oc.float64, oc.int32])
def test_a_choice_between_cells_is_right_in_every_cell(
    target: str, dims: tuple[int, ...], dtype: oc.DType
) -> None:
    """Load that depend on conditions are miscompiled by some compilers when loops are unrolled."""
    rng = np.random.default_rng(1)
    a, b = (rng.integers(1, 100, dims).astype(dtype.name) for _ in range(2))
    condition = (rng.random(dims) < 0.5).astype(dtype.name)
    with oc.Session():
        c, x, y = (oc.tensor(each, batch_axes=1) for each in (condition, a, b))
        results = [oc.where(c, x, y), oc.where(c, x, 0.0), oc.where(c, 1.0, y) + x]
        ctx = oc.Context(target)
        code = oc.train.forward(results[0])
        for result in results[1:]:
            code += oc.train.forward(result)
        ctx.compile(code, keep=results)()
        np.testing.assert_array_equal(ctx[results[0]], np.where(condition, a, b))
        np.testing.assert_array_equal(ctx[results[1]], np.where(condition, a, 0))
        np.testing.assert_array_equal(ctx[results[2]], np.where(condition, 1, b) + a)


@pytest.mark.parametrize("dims", [(1, 4, 4), (3, 5, 7), (4, 8, 16)])
@pytest.mark.parametrize("dtype", [oc.float32, oc.float64, oc.int32])
def test_a_conjunction_of_cells_is_right_in_every_cell(
    target: str, dims: tuple[int, ...], dtype: oc.DType
) -> None:
    """Compilers miscompile operands that are loaded conditionally, like the branches of a
    choice.
    """
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-1, 2, dims).astype(dtype.name) for _ in range(2))
    with oc.Session():
        x, y = (oc.tensor(each, batch_axes=1) for each in (a, b))
        both, either = oc.logical_and(x, y), oc.logical_or(x, y)
        ctx = oc.Context(target)
        code = oc.train.forward(both) + oc.train.forward(either)
        ctx.compile(code, keep=[both, either])()
        np.testing.assert_array_equal(ctx[both], np.logical_and(a, b))
        np.testing.assert_array_equal(ctx[either], np.logical_or(a, b))


@pytest.mark.parametrize("rows", [1, 11, 32])
@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gates_behind_other_conditions_are_right_in_every_cell(
    target: str, dtype: str, width: int, rows: int
) -> None:
    """The gate of a gradient reads cells that it has just computed, under a condition of theirs."""
    numbers = np.random.default_rng(rows)
    points = numbers.integers(-5, 6, (rows, 7)).astype(dtype)
    weights = numbers.integers(-5, 6, (width, 1)).astype(dtype)
    slopes = numbers.integers(1, 9, (rows, width)).astype(dtype)
    with oc.Session(dtype=dtype):
        x, w = (
            oc.tensor(points, batch_axes=1, requires_grad=True),
            oc.tensor(weights, input_axes=1, requires_grad=True),
        )
        y = oc.relu(w @ x[:, 3:4])
        loss = oc.sum(y * oc.tensor(slopes, batch_axes=1))
        ctx = oc.Context(target)
        ctx.compile(oc.train.grad_update(loss), keep=[y, x.grad, w.grad])()
        scores = points[:, 3:4] @ weights.T
        gated = np.where(scores > 0, slopes, 0)
        np.testing.assert_array_equal(ctx[y], np.maximum(scores, 0))
        np.testing.assert_array_equal(ctx[x.grad][:, 3:4], gated @ weights)
        np.testing.assert_array_equal(ctx[w.grad], gated.T @ points[:, 3:4])


@pytest.mark.parametrize("schedule", ["default", "none"])
@pytest.mark.parametrize("dims", [(4, 3, 2), (3, 5, 3), (2, 7, 5)])
def test_short_sums_are_right_in_every_cell(
    target: str, dims: tuple[int, ...], schedule: str
) -> None:
    """Compilers turn short loops into masked stores, which hide other stores from some of them."""
    cells = np.random.default_rng(1).integers(-3, 4, dims).astype(np.float64)
    with oc.Session(dtype="float64"), oc.settings.overrides(schedule=schedule):
        x = oc.tensor(cells, batch_axes=1, input_axes=2)
        y = x @ x
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(y), keep=[y])()
        np.testing.assert_array_equal(ctx[y], cells * cells.sum((1, 2), keepdims=True))
