"""Interval arithmetic: numbers with a bound of the error of computed values.

The bounds follow the computation: every operation propagates the errors of its operands by its
slope, and adds those of its own roundings. A sum of n terms adds n roundings of the sum of all
magnitudes, so the bound holds for each order of the terms and whether products are rounded or not.
Where a comparison may have either result, both are within the bound; where all partial results are
multiples of one number that the format holds, nothing is rounded and the bound is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class NumberFormat:
    """A number format.

    Attributes:
        name: Its name in the project and in NumPy or ml_dtypes.
        digits: Significant bits of a float; all bits of an integer.
        least: The least positive number.
        greatest: The greatest number.
        is_integer: True if numbers wrap around.
    """

    name: str
    digits: int
    least: float
    greatest: float
    is_integer: bool = False

    @property
    def is_narrow(self) -> bool:
        """True for floats whose sums may be added up in float32."""
        return not self.is_integer and self.digits < 24

    @property
    def rounds_of_functions(self) -> float:
        """The error of `exp` and similar functions in roundings: 4 units, or the rounding of a
        float32.
        """
        return 9.0 if self.digits >= 24 else 1.1


FORMATS = {
    each.name: each
    for each in (
        NumberFormat("float64", 53, 2.0**-1074, 1.7e308),
        NumberFormat("float32", 24, 2.0**-149, 3.4e38),
        NumberFormat("bfloat16", 8, 2.0**-133, 3.3e38),
        NumberFormat("float16", 11, 2.0**-24, 65504.0),
        NumberFormat("float8_e5m2", 3, 2.0**-16, 57344.0),
        NumberFormat("float8_e4m3fn", 4, 2.0**-9, 448.0),
        NumberFormat("uint32", 32, 1.0, 2.0**32 - 1, is_integer=True),
        NumberFormat("int32", 32, 1.0, 2.0**31 - 1, is_integer=True),
        NumberFormat("int16", 16, 1.0, 2.0**15 - 1, is_integer=True),
        NumberFormat("int8", 8, 1.0, 127.0, is_integer=True),
        NumberFormat("uint8", 8, 1.0, 255.0, is_integer=True),
    )
}
PROMOTION = (
    "float64", "float32", "bfloat16", "float16", "float8_e5m2", "float8_e4m3fn", "uint32", "int32",
    "int16", "int8", "uint8",
)  # fmt: skip
"""The format of a result is the first of these that an operand has."""


def lowest(form: NumberFormat) -> float:
    """Return the maximum of no cells."""
    if not form.is_integer:
        return -np.inf
    return 0 if form.name.startswith("u") else -int(form.greatest) - 1


def promoted(*formats: NumberFormat) -> NumberFormat:
    return FORMATS[min((each.name for each in formats), key=PROMOTION.index)]


@dataclass(frozen=True)
class Bounded:
    """Cells, and bounds of the errors of computed cells.

    Attributes:
        value: The cells: 64-bit floats, or integers for a format of integers.
        error: The bound; infinite where there is none.
        step: All cells and computed values are multiples of it; 0 if unknown.
        format: The number format that they are computed in.
    """

    value: Array
    error: Array
    step: float
    format: NumberFormat

    @property
    def magnitude(self) -> Array:
        return np.abs(self.value) + self.error


def exact(value: Array, form: NumberFormat) -> Bounded:
    """Return cells that the format holds."""
    value = value.astype(np.int64 if form.is_integer else np.float64)
    return Bounded(value, np.zeros(value.shape), _step(value, form), form)


def _step(value: Array, form: NumberFormat) -> float:
    if form.is_integer:
        return 1.0
    for step in (1.0, 2.0**-1, 2.0**-2, 2.0**-4, 2.0**-8):
        if np.array_equal(np.trunc(value / step), value / step):
            return step
    return 0.0


def rounded(
    form: NumberFormat,
    value: Array,
    error: Array,
    *,
    magnitude: Array,
    rounds: Array | float,
    step: float = 0.0,
) -> Bounded:
    """Return results rounded to a format.

    Args:
        form: The format.
        value: The exact results.
        error: A bound of their errors from those of operands.
        magnitude: A bound of the magnitudes of all partial results.
        rounds: The largest number of roundings of each.
        step: A common divisor of all partial results; 0 if unknown.
    """
    if form.is_integer:
        return Bounded(wrapped(value, form), error, 1.0, form)
    most = float(np.max(magnitude, initial=0.0))
    is_exact = step >= form.least and most <= step * 2.0**form.digits and most <= form.greatest
    if is_exact and not np.any(error):
        return Bounded(value, error, step, form)
    unit = np.asarray(rounds) * (2.0**-form.digits + 2.0**-53)
    with np.errstate(all="ignore"):
        growth = np.where(unit < 0.5, unit / (1.0 - unit), np.inf)
        added = np.where(np.asarray(rounds) > 0, growth * magnitude + rounds * form.least, 0.0)
        error = np.where(np.isnan(error + added), np.inf, error + added)
        error = np.where((magnitude > form.greatest) & np.isfinite(value), np.inf, error)
    return Bounded(value, np.broadcast_to(error, value.shape), 0.0, form)


def summed(
    form: NumberFormat, value: Array, error: Array, *, magnitude: Array, rounds: Array, step: float
) -> Bounded:
    """Return sums of a narrow format that were added up in float32 and rounded once; the arguments
    are those of `rounded`.
    """
    single = FORMATS["float32"]
    found = rounded(single, value, error, magnitude=magnitude, rounds=rounds, step=step)
    far = np.abs(found.value) + found.error
    return rounded(form, found.value, found.error, magnitude=far, rounds=1, step=found.step)


def wrapped(value: Array, form: NumberFormat) -> Array:
    """Return whole numbers modulo the width of a format of integers."""
    return value.astype(form.name).astype(np.int64)


def converted(a: Bounded, form: NumberFormat) -> Bounded:
    """Return the cells in another format; from floats to integers there is no way."""
    if form == a.format:
        return a
    assert not (form.is_integer and not a.format.is_integer)
    value = a.value if form.is_integer else a.value.astype(np.float64)
    return rounded(form, value, a.error, magnitude=np.abs(value), rounds=1, step=a.step)


def widened(a: Bounded, form: NumberFormat) -> Bounded:
    """Return the cells in a format that holds them."""
    return converted(a, form)


def _least_step(*operands: Bounded) -> float:
    return min(each.step for each in operands)


def add(a: Bounded, b: Bounded) -> Bounded:
    return _sum(a, b, a.value + b.value)


def sub(a: Bounded, b: Bounded) -> Bounded:
    return _sum(a, b, a.value - b.value)


def _sum(a: Bounded, b: Bounded, value: Array) -> Bounded:
    error = a.error + b.error
    step = _least_step(a, b)
    return rounded(a.format, value, error, magnitude=np.abs(value), rounds=1, step=step)


def mul(a: Bounded, b: Bounded) -> Bounded:
    value = a.value * b.value
    error = product_error(a.value, a.error, b.value, b.error)
    step = a.step * b.step
    return rounded(a.format, value, error, magnitude=np.abs(value) + error, rounds=1, step=step)


def product_error(a: Array, error_a: Array, b: Array, error_b: Array) -> Array:
    """Return how far a product may be from that of the exact factors."""
    with np.errstate(invalid="ignore"):
        error = np.abs(a) * error_b + np.abs(b) * error_a + error_a * error_b
    return np.where(np.isnan(error), np.inf, error)


def div(a: Bounded, b: Bounded) -> Bounded:
    least = np.abs(b.value) - b.error
    with np.errstate(all="ignore"):
        value = a.value / b.value
        error = np.where(least > 0, (a.error + np.abs(value) * b.error) / least, np.inf)
    return _function(a.format, value, error, 1.0)


def neg(a: Bounded) -> Bounded:
    value = -a.value
    if a.format.is_integer:
        value = wrapped(value, a.format)
    return Bounded(value, a.error, a.step, a.format)


def relu(a: Bounded) -> Bounded:
    error = np.where(a.value + a.error < 0, 0.0, a.error)
    return Bounded(np.maximum(a.value, 0), error, a.step, a.format)


def sat01(a: Bounded) -> Bounded:
    is_cut = (a.value + a.error < 0) | (a.value - a.error > 1)
    error = np.where(is_cut, 0.0, a.error)
    return Bounded(np.clip(a.value, 0, 1), error, min(a.step, 1.0), a.format)


def maximum(a: Bounded, b: Bounded) -> Bounded:
    return _chosen(a.value >= b.value, a, b)


def minimum(a: Bounded, b: Bounded) -> Bounded:
    return _chosen(a.value <= b.value, a, b)


def _chosen(is_first: Array, a: Bounded, b: Bounded) -> Bounded:
    """Return the cells of one operand or the other; the error is its own where the others are far."""
    value = np.where(is_first, a.value, b.value)
    error = np.where(is_first, a.error, b.error)
    is_far = np.abs(a.value - b.value) > (a.error + b.error) * (1.0 + 2.0**-40)
    error = np.where(is_far, error, np.maximum(a.error, b.error))
    return Bounded(value, error, _least_step(a, b), a.format)


def _unsure(distance: Array, error: Array) -> Array:
    """True where a comparison may come out either way."""
    return (error > 0) & (np.abs(distance) <= error)


def _truth(form: NumberFormat, value: Array, unsure: Array) -> Bounded:
    cells = value.astype(np.int64 if form.is_integer else np.float64)
    return Bounded(cells, unsure.astype(np.float64), 1.0, form)


def less(a: Bounded, b: Bounded) -> Bounded:
    return _truth(a.format, a.value < b.value, _unsure(a.value - b.value, a.error + b.error))


def less_equal(a: Bounded, b: Bounded) -> Bounded:
    return _truth(a.format, a.value <= b.value, _unsure(a.value - b.value, a.error + b.error))


def equal(a: Bounded, b: Bounded) -> Bounded:
    return _truth(a.format, a.value == b.value, _unsure(a.value - b.value, a.error + b.error))


def not_equal(a: Bounded, b: Bounded) -> Bounded:
    return _truth(a.format, a.value != b.value, _unsure(a.value - b.value, a.error + b.error))


def where(condition: Bounded, a: Bounded, b: Bounded) -> Bounded:
    """Return `a` where the condition is not 0, else `b`; both bounds where it may be either."""
    chosen = condition.value != 0
    error = np.where(chosen, a.error, b.error)
    either = np.maximum(a.error, b.error) + np.abs(a.value - b.value)
    error = np.where(_unsure(condition.value, condition.error), either, error)
    return Bounded(np.where(chosen, a.value, b.value), error, _least_step(a, b), a.format)


def relu_gate(a: Bounded, b: Bounded) -> Bounded:
    return where(less(_zeros(a), a), b, _zeros(b))


def sat01_gate(a: Bounded, b: Bounded) -> Bounded:
    one = Bounded(a.value * 0 + 1, a.error * 0, 1.0, a.format)
    return where(less(_zeros(a), a), where(less(a, one), b, _zeros(b)), _zeros(b))


def _zeros(a: Bounded) -> Bounded:
    return Bounded(np.zeros_like(a.value), np.zeros(a.value.shape), 1.0, a.format)


def _function(
    form: NumberFormat, value: Array, error: Array, rounds: float | None = None
) -> Bounded:
    with np.errstate(all="ignore"):
        error = np.where(np.isfinite(value), error, np.inf)
        value = np.where(np.isfinite(value), value, 0.0)
    rounds = form.rounds_of_functions if rounds is None else rounds
    return rounded(form, value, error, magnitude=np.abs(value) + error, rounds=rounds)


def exp(a: Bounded) -> Bounded:
    with np.errstate(all="ignore"):
        value = np.exp(a.value)
        return _function(a.format, value, value * np.expm1(a.error))


def log(a: Bounded) -> Bounded:
    least = a.value - a.error
    with np.errstate(all="ignore"):
        return _function(a.format, np.log(a.value), np.where(least > 0, a.error / least, np.inf))


def tanh(a: Bounded) -> Bounded:
    return _function(a.format, np.tanh(a.value), _at_most_2(a.error))


def sin(a: Bounded) -> Bounded:
    return _function(a.format, np.sin(a.value), _at_most_2(a.error))


def cos(a: Bounded) -> Bounded:
    return _function(a.format, np.cos(a.value), _at_most_2(a.error))


def _at_most_2(error: Array) -> Array:
    """Return errors up to 2, and those that nothing is promised for: of NaN, functions are NaN."""
    return np.where(np.isfinite(error), np.minimum(error, 2.0), np.inf)


def sqrt(a: Bounded) -> Bounded:
    with np.errstate(all="ignore"):
        value = np.sqrt(a.value)
        error = np.where(a.value >= a.error, a.error / np.maximum(value, np.sqrt(a.error)), np.inf)
        error = np.where(a.error == 0, 0.0, error)
    return _function(a.format, value, error, 1.0)


def recip(a: Bounded) -> Bounded:
    return div(Bounded(np.ones(a.value.shape), np.zeros(a.value.shape), 1.0, a.format), a)


FUNCTIONS = {
    "neg": neg, "relu": relu, "sat01": sat01, "exp": exp, "log": log, "tanh": tanh, "sin": sin,
    "cos": cos, "sqrt": sqrt, "recip": recip, "add": add, "sub": sub, "mul": mul, "div": div,
    "maximum": maximum, "minimum": minimum, "less": less, "less_equal": less_equal,
    "equal": equal, "not_equal": not_equal, "relu_gate": relu_gate, "sat01_gate": sat01_gate,
    "where": where,
}  # fmt: skip
