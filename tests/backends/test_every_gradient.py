"""Every pointwise operation that has a gradient has the right one: central differences of itself."""

from __future__ import annotations

import numpy as np
import pytest

import ocannl_core as oc
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
