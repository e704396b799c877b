"""Every pointwise operation that has a gradient has the right one: central differences of itself."""

from __future__ import annotations

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core import settings
from ocannl_core.ops import HASHES, LOGICAL, UnaryOp
from ocannl_core.tensor.operation import Operation
from ocannl_core.tensor.registry import operations

SMOOTH = {
    name: operation
    for name, operation in operations.items()
    if isinstance(operation, Operation)
    and operation.gradient is not None
    and operation.logic == "."
    and operation.primitive is not None
}


@pytest.mark.parametrize("name", sorted(SMOOTH))
def test_a_gradient_is_the_slope_of_its_operation(name: str) -> None:
    operation = SMOOTH[name]
    rng = np.random.default_rng(7)
    # between the kinks of gates and clamps, inside the domains of logarithms and roots
    points = [
        rng.permutation(np.linspace(0.15, 0.85, 4)) + 0.01 * i for i in range(operation.operands)
    ]
    weights = rng.uniform(0.5, 1.5, 4)
    with oc.Session():
        params = [
            oc.param(f"p{i}", init=oc.tensor(point, dtype="float64"), dtype="float64")
            for i, point in enumerate(points)
        ]
        loss = oc.einsum("i;i=>0", operation(*params), oc.tensor(weights, dtype="float64"))
        ctx = oc.Context("interp")
        gradients = ctx.compile(oc.train.grad_update(loss), keep=[loss, *(p.grad for p in params)])
        value = ctx.compile(oc.train.forward(loss))
        ctx.init_params(loss)
        gradients()
        found = [ctx[p.grad] for p in params]
        for parameter, point, gradient in zip(params, points, found, strict=True):
            for cell in range(4):
                ends = []
                for side in (1e-6, -1e-6):
                    moved = point.copy()
                    moved[cell] += side
                    ctx[parameter] = moved
                    value()
                    ends.append(ctx.item(loss))
                ctx[parameter] = point
                slope = (ends[0] - ends[1]) / 2e-6
                assert gradient[cell] == pytest.approx(slope, rel=1e-5, abs=1e-6)


def test_all_operations_with_gradients_are_covered() -> None:
    assert {"add", "mul", "div", "relu", "sat01", "recip_sqrt", "tanh", "where", "maximum"} <= set(
        SMOOTH
    )


# ----- where slopes jump, and where there are none ------------------------------------------------

NAN, INF = np.nan, np.inf


def gradients(target: str, operation: Operation, *operands: list[float]) -> list[list[float]]:
    """Returns the gradients of the sum of an operation's results in each operand."""
    with oc.Session(dtype="float64"), settings.overrides(allow_nan=True):
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
    assert gradients(target, oc.sat01, cells) == [[0, 0, 0, 1, 1, 0, 0, 0, 0]]
    ones = [1.0] * len(cells)
    assert gradients(target, oc.relu_gate, cells, ones)[1] == [0, 0, 0, 1, 1, 1, 1, 1, 0]
    assert gradients(target, oc.sat01_gate, cells, ones)[1] == [0, 0, 0, 1, 1, 0, 0, 0, 0]


def test_gates_conditions_and_selections_pass_nothing_to_the_other_operand(target: str) -> None:
    a, b, c = [1.0, -2.0, 0.5], [3.0, 4.0, 5.0], [6.0, 7.0, 8.0]
    assert gradients(target, oc.relu_gate, a, b) == [[0, 0, 0], [1, 0, 1]]
    assert gradients(target, oc.where, [1.0, 0.0, NAN], b, c) == [[0, 0, 0], [1, 0, 1], [0, 1, 0]]
    assert gradients(target, oc.first, a, b) == [[1, 1, 1], [0, 0, 0]]
    assert gradients(target, oc.second, a, b) == [[0, 0, 0], [1, 1, 1]]


def test_of_two_equal_numbers_the_first_is_the_extreme(target: str) -> None:
    a, b = [1.0, 2.0, 3.0], [2.0, 2.0, 2.0]
    assert gradients(target, oc.maximum, a, b) == [[0, 1, 1], [1, 0, 0]]
    assert gradients(target, oc.minimum, a, b) == [[1, 1, 0], [0, 0, 1]]


def test_powers_have_gradients_at_zero(target: str) -> None:
    power = operations["power_of_tensors"]
    assert isinstance(power, Operation)
    base, exponent = [0.0, 0.0, 3.0, 0.0], [1.0, 2.0, 1.0, 0.0]
    of_base, of_exponent = gradients(target, power, base, exponent)
    assert of_base == [1, 0, 1, 0]
    assert of_exponent == pytest.approx([0, 0, 3 * np.log(3), 0])


def test_the_rest_of_the_primitives_have_no_gradient() -> None:
    without = {
        operation.primitive
        for operation in operations.values()
        if isinstance(operation, Operation) and operation.gradient is None
    }
    assert {op for op in without if op is not None} == {
        UnaryOp.IDENTITY,  # stop_gradient
        UnaryOp.NOT,
        UnaryOp.TRUNC,
        *LOGICAL,
        *HASHES,
    }
