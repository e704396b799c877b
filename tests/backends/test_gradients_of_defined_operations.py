"""Operations that users define, as `define_operation` or `Op`, are differentiated again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base.errors import MissingGradientError, UsageError
from ocannl_core.testing.central_differences import Point
from tests.backends.test_every_gradient import cells
from tests.backends.test_gradients_as_expressions import check_second_gradients, evaluate, squashed


def parts_forward(v: Any, v1: Any, v2: Any) -> None:
    v[oc.neutral] += oc.multiply(v1, v2, logic="i;j => ij")
    v.accumulate(v1, logic="i => ij")


def parts_gradient(g: Any, g1: Any, g2: Any, v1: Any, v2: Any) -> None:
    g1 += oc.multiply(g, v2, logic="ij;j => i")
    g1.accumulate(g, logic="ij => i")
    g2 += oc.multiply(g, v1, logic="ij;i => j")


def squares_forward(v: Any, v1: Any) -> None:
    v[oc.neutral] += oc.multiply(v1, v1, logic="i;j => ij")


def squares_gradient(g: Any, g1: Any, v1: Any) -> None:
    g1 += oc.multiply(g, v1, logic="ij;j => i")
    g1 += oc.multiply(g, v1, logic="ij;i => j")


def halves_forward(v: Any, v1: Any) -> None:
    v[oc.neutral] += v1 * v1 * v1


def halves_gradient(g: Any, g1: Any, v1: Any, square_rhs1: Any, scaled_lhs: Any) -> None:
    square_rhs1[:] = v1 * v1
    square_rhs1 += square_rhs1
    scaled_lhs[:] = 1.5 * g
    g1 += scaled_lhs * square_rhs1


def largest_forward(v: Any, v1: Any) -> None:
    v[oc.neutral, oc.maximum] = v1


def largest_gradient(g: Any, g1: Any, v: Any, v1: Any) -> None:
    g1 += oc.where(v1 == v, g, 0.0)


DEFINED: dict[str, tuple[oc.Operation, list[Point]]] = {
    "a logic for each assignment": (
        oc.define_operation("parts", forward=parts_forward, gradient=parts_gradient),
        [cells(3), cells(2)],
    ),
    "one operand along two axes": (
        oc.define_operation("squares", forward=squares_forward, gradient=squares_gradient),
        [cells(3)],
    ),
    "intermediate slots": (
        oc.define_operation(
            "halves", forward=halves_forward, gradient=halves_gradient, logic="ij=>i"
        ),
        [cells(2, 3)],
    ),
    "a maximum of padded windows, compared": (
        oc.define_operation(
            "largest", forward=largest_forward, gradient=largest_gradient, logic="i=+k=>i"
        ),
        [cells(4)],
    ),
}


@pytest.mark.parametrize("backend", ["interp", "cpu_c"])
@pytest.mark.parametrize("case", DEFINED)
def test_operations_that_users_define_are_differentiated_twice(case: str, backend: str) -> None:
    operation, points = DEFINED[case]
    values = {"values": {"k": 3}} if "windows" in case else {}
    check_second_gradients(lambda *x: squashed(operation(*x, **values)), points, backend)


class Cube(oc.custom.Op):
    """A user-written operation whose gradient is an expression."""

    spec = "... => ..."

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = inputs[0] ** 3

    def grad(self, inputs: Any, output_gradients: Any) -> Any:
        return [3.0 * inputs[0] * inputs[0] * output_gradients[0]]


class OpaqueSlope(Cube):
    """An operation whose gradient is one without a gradient."""

    def grad(self, inputs: Any, output_gradients: Any) -> Any:
        return [Opaque()(inputs[0]) * output_gradients[0]]


class Opaque(oc.custom.Op):
    """An operation without a gradient."""

    spec = "... => ..."

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = 3 * inputs[0] ** 2


class Wave(oc.custom.Op):
    """A sine, ahead by quarters of a period: each gradient is the operation of the next quarter."""

    __props__ = ("quarters",)
    spec = "... => ..."

    def __init__(self, quarters: int = 0) -> None:
        self.quarters = quarters

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        found = np.sin(inputs[0] + self.quarters * np.pi / 2)
        output_storage[0][0] = found.astype(inputs[0].dtype)

    def c_code(self, node: Any) -> str:
        ahead = self.quarters * np.pi / 2
        return f"for (int64_t i = 0; i < in0_size; ++i) out0[i] = sin(in0[i] + {ahead!r});"

    c_headers = ("<math.h>",)

    def grad(self, inputs: Any, output_gradients: Any) -> Any:
        return [output_gradients[0] * Wave(self.quarters + 1)(inputs[0])]


class ProductAndQuotient(oc.custom.Op):
    """An operation with two outputs, one of which its gradient computes again."""

    __props__ = ()
    spec = "...; ... => ...; ..."

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        (x, y), (product, quotient) = inputs, output_storage
        product[0], quotient[0] = x * y, x / y

    def grad(self, inputs: Any, output_gradients: Any) -> Any:
        (x, y), (g, h) = inputs, output_gradients
        _, quotient = self(x, y)
        return [g * y + h / y, g * x - h * quotient / y]


def product_slopes(inputs: Any, output_gradients: Any) -> Any:
    (x, y), (g,) = inputs, output_gradients
    return [g * y, g * x]


BROADCAST = oc.custom.Broadcast(np.multiply, gradient=product_slopes)

USER_WRITTEN: dict[str, tuple[Callable[..., Any], list[Point]]] = {
    "an expression": (lambda x: Cube()(x), [cells(3)]),
    "itself": (lambda x: Wave()(x) * Wave()(x + 0.3), [cells(3)]),
    "two outputs": (
        lambda x, y: (lambda both: both[0] * both[1] + both[1])(ProductAndQuotient()(x, y)),
        [cells(3), cells(3) + 1.5],
    ),
    "repeated cells": (lambda x, y: BROADCAST(x, oc.tanh(y)), [cells(2, 3), cells(3)]),
}
"""Functions of user-written operations whose gradients consist of what the key says."""


@pytest.mark.parametrize("backend", ["interp", "cpu_c"])
@pytest.mark.parametrize("case", USER_WRITTEN)
def test_user_written_operations_are_differentiated_by_their_grad(case: str, backend: str) -> None:
    function, points = USER_WRITTEN[case]
    check_second_gradients(lambda *x: squashed(function(*x)), points, backend)


def test_a_user_written_operation_without_a_second_gradient_is_an_error() -> None:
    with oc.Session():
        x = oc.param("x", init=[2.0])
        (g,) = oc.gradients(OpaqueSlope()(x), [x])
        assert evaluate("interp", g)[0].tolist() == [12.0]
        with pytest.raises(MissingGradientError, match="Opaque"):
            oc.gradients(g, [x])


@pytest.mark.parametrize("backend", ["interp", "cpu_c"])
def test_a_primitive_whose_gradient_has_intermediate_values_is_differentiated(backend: str) -> None:
    def forward(v: Any, v1: Any, v2: Any) -> None:
        v[:] = v1 * oc.atan2(v1, v2)

    def gradient(g: Any, g1: Any, g2: Any, v1: Any, v2: Any) -> None:
        squares = v1 * v1 + v2 * v2
        g1 += g * (oc.atan2(v1, v2) + v1 * v2 / squares)
        g2 -= g * (v1 * v1 / squares)

    scaled = oc.define_operation("scaled_angle", forward=forward, gradient=gradient)
    check_second_gradients(scaled, [cells(3), cells(3) + 1.0], backend)


def test_an_accumulation_without_a_derivative_is_named() -> None:
    def forward(v: Any, v1: Any) -> None:
        v[:] = v1

    def gradient(g: Any, g1: Any, bound_lhs: Any) -> None:
        bound_lhs[oc.neutral, oc.maximum] = g
        g1 += bound_lhs

    bounded = oc.define_operation("bounded", forward=forward, gradient=gradient)
    with oc.Session():
        x = oc.param("x", init=[1.0, 2.0])
        with pytest.raises(UsageError, match=r"(?s)max into bound_lhs in the gradient of bounded"):
            oc.gradients(bounded(x), [x])


def test_a_merge_buffer_is_not_differentiated() -> None:
    def forward(v: Any, v1: Any) -> None:
        v[:] = v1

    def gradient(g: Any, g1: Any, v1: Any) -> None:
        g1 += g * v1.merge

    with oc.Session():
        x = oc.param("x", init=[1.0])
        merging = oc.define_operation("merging", forward=forward, gradient=gradient)
        with pytest.raises(UsageError, match=r"v1\.merge in the gradient function"):
            oc.gradients(merging(x), [x])


def test_a_read_before_a_write_is_refused() -> None:
    def forward(v: Any, v1: Any) -> None:
        v[:] = v1

    def gradient(g: Any, g1: Any, mask_rhs1: Any) -> None:
        g1 += g * mask_rhs1

    with oc.Session():
        x = oc.param("x", init=[1.0])
        early = oc.define_operation("early", forward=forward, gradient=gradient)
        with pytest.raises(UsageError, match="a read of mask_rhs1 in the gradient of early"):
            oc.gradients(early(x), [x])


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_terms_of_gradients_that_differ_in_the_sign_of_zero_are_different(zero: float) -> None:
    def copy(v: Any, v1: Any) -> None:
        v[:] = v1

    def divided(g: Any, g1: Any) -> None:
        g1 += g / zero

    def constant(g: Any, g1: Any) -> None:
        g1 += zero

    for gradient in (divided, constant):
        x = oc.tensor([1.0, 2.0], requires_grad=True)
        y = oc.define_operation("copy", forward=copy, gradient=gradient)(x)
        (found,) = oc.gradients(oc.sum(y), [x])
        (cells,) = evaluate("interp", found if gradient is divided else 1.0 / found)
        assert cells.tolist() == [np.copysign(np.inf, zero)] * 2
