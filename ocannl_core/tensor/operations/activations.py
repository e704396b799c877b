"""Activation functions, powers, and other functions composed of primitives.

Formulas are chosen so that no exponential overflows where the result is finite, and gradients are
finite wherever the slope is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from numbers import Real
from typing import Any, TypeGuard

from ocannl_core.base.errors import UsageError
from ocannl_core.base.renamed import takes_old_keywords
from ocannl_core.ir.host_arrays import plain_number
from ocannl_core.ir.numbers.dtypes import DType, float32
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.expression import Operand
from ocannl_core.tensor.graph.slots import Slot, SlotApplication
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.primitives.dimension import Capture
from ocannl_core.tensor.primitives.operands import exact_number
from ocannl_core.tensor.primitives.operation import Operation, define_operation
from ocannl_core.tensor.primitives.pointwise_operations import (
    abs,
    cast,
    equal,
    erf,
    exp,
    expm1,
    identity,
    less,
    less_equal,
    log1p,
    logical_and,
    logical_not,
    maximum,
    minimum,
    mul,
    neg,
    not_equal,
    power_primitive,
    recip_sqrt,
    sat01,
    tanh,
    where,
)

_SQRT_HALF = math.sqrt(0.5)
_DENSITY = 1.0 / math.sqrt(2.0 * math.pi)
"""The density of the normal distribution at its mean."""
_SELU_ALPHA = 1.6732632423543772
_SELU_SCALE = 1.0507009873554805


def _logistic(v1: Any) -> Any:
    """Return `1 / (1 + exp(-v1))`. No exponential is above 1, so that none leaves a short range."""
    return _share(v1, exp(neg(abs(v1))))


def _slope(v1: Any) -> Any:
    """Return `_logistic(v1)` by a formula with derivatives at 0, where `abs` has none: at a tie the
    gradient of a minimum flows to its first operand, that of positive numbers.
    """
    return _share(v1, exp(minimum(neg(v1), v1)))


def _share(v1: Any, small: Any) -> Any:
    return where(less(v1, 0.0), small, 1.0) / (1.0 + small)


def _sigmoid(v: Any, v1: Any) -> None:
    v[:] = _logistic(v1)


def _sigmoid_gradient(g: Any, g1: Any, v: Any) -> None:
    g1 += g * (v * (1.0 - v))


def _softplus(v: Any, v1: Any) -> None:
    v[:] = maximum(v1, 0.0) + log1p(exp(neg(abs(v1))))


def _softplus_gradient(g: Any, g1: Any, v1: Any) -> None:
    g1 += g * _slope(v1)


def _log_sigmoid(v: Any, v1: Any) -> None:
    v[:] = minimum(v1, 0.0) - log1p(exp(neg(abs(v1))))


def _log_sigmoid_gradient(g: Any, g1: Any, v1: Any) -> None:
    g1 += g * _slope(neg(v1))


def _silu(v: Any, v1: Any) -> None:
    v[:] = v1 * _logistic(v1)


def _silu_gradient(g: Any, g1: Any, v1: Any, gate_rhs1: Any) -> None:
    gate_rhs1[:] = _slope(v1)
    g1 += g * (gate_rhs1 * (1.0 + v1 * (1.0 - gate_rhs1)))


def _gelu(v: Any, v1: Any) -> None:
    v[:] = v1 * (0.5 + 0.5 * erf(_SQRT_HALF * v1))


def _gelu_gradient(g: Any, g1: Any, v1: Any) -> None:
    density = _DENSITY * exp(-0.5 * (v1 * v1))
    g1 += g * (0.5 + 0.5 * erf(_SQRT_HALF * v1) + v1 * density)


def _softsign(v: Any, v1: Any) -> None:
    v[:] = v1 / (1.0 + abs(v1))


def _softsign_gradient(g: Any, g1: Any, v1: Any) -> None:
    # the difference of two terms would cancel
    root = 1.0 + abs(v1)
    g1 += g / root / root


def _logaddexp(v: Any, v1: Any, v2: Any) -> None:
    # equal infinities have no difference
    distance = where(equal(v1, v2), 0.0, abs(v1 - v2))
    v[:] = maximum(v1, v2) + log1p(exp(neg(distance)))


def _logaddexp_gradient(g: Any, g1: Any, g2: Any, v1: Any, v2: Any) -> None:
    difference = v1 - v2
    is_infinite = logical_and(equal(v1, v2), not_equal(difference, difference))
    distance = where(is_infinite, 0.0, difference)
    g1 += g * _slope(distance)
    g2 += g * _slope(neg(distance))


sigmoid = define_operation("sigmoid", forward=_sigmoid, gradient=_sigmoid_gradient)
softplus = define_operation("softplus", forward=_softplus, gradient=_softplus_gradient)
log_sigmoid = define_operation("log_sigmoid", forward=_log_sigmoid, gradient=_log_sigmoid_gradient)
silu = define_operation("silu", forward=_silu, gradient=_silu_gradient)
softsign = define_operation("softsign", forward=_softsign, gradient=_softsign_gradient)
_log_of_sum = define_operation("logaddexp", forward=_logaddexp, gradient=_logaddexp_gradient)
_exact_gelu = define_operation("gelu", forward=_gelu, gradient=_gelu_gradient)


def gelu(x: Operand, *, approximate: str = "none") -> Any:
    """Return `x` times the share of the normal distribution below it.

    Args:
        approximate: "none" for the error function, "tanh" for the approximation
            `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))`.
    """
    if approximate == "tanh":
        x = as_float(x)
        narrow, x = formats_of(x)[1], widened(x)
        square = minimum(mul(x, x), 400.0)  # the tangent is 1 beyond; no cube overflows
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * (square * x))
        return mul(0.5 * x, 1.0 + tanh(inner), dtype=narrow)
    if approximate != "none":
        raise UsageError.at_caller(
            "gelu is computed by the error function, or approximated by a hyperbolic tangent.",
            found=f"approximate={approximate!r}",
            fix='approximate="none" or approximate="tanh"',
        )
    return _exact_gelu(x)


def mish(x: Operand) -> Any:
    """Return `x * tanh(softplus(x))`."""
    narrow, x = formats_of(x)[1], widened(x)
    return mul(x, tanh(softplus(x)), dtype=narrow)


def leaky_relu(x: Operand, slope: float = 0.01) -> Any:
    """Return `x` above 0, and `slope * x` below."""
    return where(x > 0.0, x, slope * x)


def elu(x: Operand, alpha: float = 1.0) -> Any:
    """Return `x` above 0, and `alpha * (exp(x) - 1)` below."""
    narrow, x = formats_of(x)[1], widened(x)
    return where(x > 0.0, x, alpha * expm1(minimum(x, 0.0)), dtype=narrow)


def selu(x: Operand) -> Any:
    """Return `elu`, scaled so that mean 0 and variance 1 are kept (Klambauer et al. 2017)."""
    return mul(_SELU_SCALE, elu(widened(x), _SELU_ALPHA), dtype=formats_of(x)[1])


@takes_old_keywords("oc.hardtanh")
def hardtanh(x: Operand, min: float = -1.0, max: float = 1.0) -> Any:
    """Return `x` between two bounds, and the bounds outside. No gradient flows at a bound."""
    return minimum(max, maximum(min, x))


def hardsigmoid(x: Operand) -> Any:
    """Return `(x + 3) / 6`, bounded by 0 and 1."""
    return sat01((widened(as_float(x)) + 3.0) * (1.0 / 6.0), dtype=formats_of(x)[1])


def hardswish(x: Operand) -> Any:
    """Return `x * hardsigmoid(x)`."""
    narrow, x = formats_of(x)[1], widened(x)
    return mul(x, hardsigmoid(x), dtype=narrow)


def relu6(x: Operand) -> Any:
    """Return `x`, bounded by 0 and 6. No gradient flows at a bound."""
    return hardtanh(x, 0, 6)


@takes_old_keywords("oc.clip")
def clip(x: Operand, min: Any = None, max: Any = None) -> Any:
    """Return `x` limited to a range: `min` where it is less, `max` where it is greater.

    NaN stays. The gradient of a cell at a bound flows to `x`.

    Args:
        min: A number or a tensor, or None for no bound.
        max: A number, a tensor, or None for no bound; where below `min`, it is the result.
    """
    if min is None and max is None:
        raise UsageError.at_caller(
            "clip takes a bound or two.",
            found="none",
            fix="oc.clip(x, 0.0, 1.0), or oc.clip(x, min=0.0)",
        )
    bounded = x if min is None else maximum(x, min)
    return bounded if max is None else minimum(bounded, max)


def square(x: Operand) -> Any:
    """Return `x * x`."""
    return mul(x, x)


rsqrt = recip_sqrt


def greater(
    a: Operand,
    b: Operand,
    *,
    logic: str | None = None,
    values: Mapping[str, int] | None = None,
    capture: Capture = (),
    label: str | None = None,
    dtype: DType | str | None = None,
) -> Any:
    """Return 1 where `a` is greater than `b`, and 0 elsewhere."""
    exchanged = _exchanged(logic)
    return less(b, a, logic=exchanged, values=values, capture=capture, label=label, dtype=dtype)


def greater_equal(
    a: Operand,
    b: Operand,
    *,
    logic: str | None = None,
    values: Mapping[str, int] | None = None,
    capture: Capture = (),
    label: str | None = None,
    dtype: DType | str | None = None,
) -> Any:
    """Return 1 where `a` is at least `b`, and 0 elsewhere, as for NaN."""
    exchanged = _exchanged(logic)
    return less_equal(
        b, a, logic=exchanged, values=values, capture=capture, label=label, dtype=dtype
    )


def _exchanged(logic: str | None) -> str | None:
    """Return a logic with the operands of its specification exchanged."""
    if logic is None or logic.count(";") != 1:
        return logic
    operands, arrow, result = logic.partition("=>")
    return ";".join(reversed(operands.split(";"))) + arrow + result


def logical_xor(a: Operand, b: Operand) -> Any:
    """Return 1 where exactly one of the two is 0, and 0 elsewhere."""
    return not_equal(logical_not(a), logical_not(b))


def isnan(x: Operand) -> Any:
    """Return 1 where a cell is NaN, and 0 elsewhere."""
    return not_equal(x, x)


def isfinite(x: Operand) -> Any:
    """Return 1 where a cell is neither infinite nor NaN, and 0 elsewhere."""
    return equal(x, x) if _holds_integers(x) else equal(x - x, 0.0)


def isinf(x: Operand) -> Any:
    """Return 1 where a cell is infinite, and 0 elsewhere."""
    if isinstance(x, Tensor) and not x.dtype.has_infinities:
        return less(x, x)
    return equal(abs(x), math.inf)


def _holds_integers(x: object) -> TypeGuard[Tensor]:
    return isinstance(x, Tensor) and x.dtype.holds_integers


def as_float(x: Operand) -> Any:
    """Return floats; integers are converted to the session's default format."""
    return cast(x, x.session.default_dtype) if _holds_integers(x) else x


def formats_of(x: Operand) -> tuple[DType, DType] | tuple[None, None]:
    """Return `float32`, and the format of a narrow float: a function of its cells is computed in
    the one and has the other. None where both follow from the operands.

    Sums and differences of narrow floats lose digits that their means, roots and shares have, and
    leave their range.
    """
    if isinstance(x, Tensor) and x.dtype.is_narrow:
        return float32, x.dtype
    return None, None


def widened(x: Operand) -> Any:
    """Return a narrow float in `float32`, and other operands as they are. The terms of its gradient
    are added there and rounded once.
    """
    wide, _ = formats_of(x)
    return x if wide is None else cast(x, wide)


def logaddexp(a: Operand, b: Operand) -> Any:
    """Return `log(exp(a) + exp(b))` without overflow. The gradient of equal numbers, infinite ones
    too, flows to both by halves.
    """
    if isinstance(a, Real) and isinstance(b, Real):
        raise UsageError.at_caller(
            "logaddexp takes a tensor.",
            found="two numbers",
            fix="numpy.logaddexp adds numbers of the host",
        )
    return _log_of_sum(a, b)


@lru_cache(maxsize=None, typed=True)  # of integers, a float makes floats
def _power_by(exponent: float) -> Operation:
    """Return the operation that raises to a fixed power; no gradient flows into the exponent."""

    def forward(v: Any, v1: Any) -> None:
        v[:] = power_primitive(v1, exponent)

    def gradient(g: Any, g1: Any, v1: Any) -> None:
        if exponent == 0:
            return
        if exponent == 1:
            g1 += g
        elif exponent == 2:
            g1 += g * (2.0 * v1)
        else:
            g1 += g * (exponent * power_primitive(v1, exponent - 1))

    return define_operation("power", forward=forward, gradient=gradient)


def power(
    base: Any,
    exponent: Any,
    *,
    logic: str | None = None,
    padded: bool | None = None,
    values: Mapping[str, int] | None = None,
    projections: str | None = None,
    capture: Capture = (),
    label: str | None = None,
    dtype: DType | str | None = None,
    requires_grad: bool | None = None,
) -> Any:
    """Return `base ** exponent` cell by cell; an integral exponent means repeated multiplication.

    Args:
        exponent: A number without a gradient, or a tensor. A float makes floats of integers.
        logic: The correspondence of axes, with one operand for each tensor; the other arguments are
            as for all operations on cells, such as `add`.
    """
    if isinstance(base, Slot | SlotApplication) or isinstance(exponent, Slot | SlotApplication):
        return power_primitive(base, exponent)
    is_recorded = sessions.current().recorder is not None  # where no gradient flows anyway
    is_by_number = isinstance(exponent, Real) and projections is None
    keywords: dict[str, Any] = {
        "logic": logic,
        "padded": padded,
        "values": values,
        "capture": capture,
        "label": label,
        "dtype": dtype,
        "requires_grad": requires_grad,
    }
    if is_by_number and is_recorded and logic is not None:
        return identity(power_primitive(base, exponent), **keywords)  # one tensor has the logic
    if is_by_number and not is_recorded and isinstance(exact_number(exponent), float):
        return _power_by(plain_number(exponent, "power"))(base, **keywords)
    return power_primitive(base, exponent, projections=projections, **keywords)
