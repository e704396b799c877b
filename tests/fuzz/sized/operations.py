"""Operations of a program and their gradients, with bounds of the error.

Operations with a specification enumerate its products, as the reference of small programs does; the
others are written here from the tables of the documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import ml_dtypes  # noqa: F401 - registers bfloat16 in NumPy
import numpy as np

from ..contraction import Contraction, Points
from ..notation import Rows
from ..reference import Call, Value, rearranged, stretched
from . import bounds
from .bounds import FUNCTIONS, Array, Bounded, Format, promoted, rounded

LARGEST_DOMAIN = 1 << 22
SPECIFIED = ("einsum", "einmax", "outer_sum", "tropical", "concat")
COMPOSITION = "...|..m..->..o..; ...|..i..->..m.. => ...|..i..->..o.."
REARRANGING = ("transpose", "stack", "slice")


@dataclass(frozen=True)
class Cells:
    """Cells with bounds, and the row of each of their axes."""

    cells: Bounded
    rows: Rows


def _dims(rows: Rows) -> tuple[int, ...]:
    return tuple(n for row in rows for n in row)


def _spread(operand: Cells, rows: Rows) -> Bounded:
    """Return the cells repeated along the additional axes of `rows`."""
    own = operand.cells
    value, error = (stretched(Value(each, operand.rows), rows) for each in (own.value, own.error))
    return Bounded(value, error, own.step, own.format)


def evaluate(call: Call, operands: Sequence[Cells], rows: Rows) -> Cells:
    """Return the value of an operation whose result has the given rows.

    Raises:
        TooLarge: if there are too many products to enumerate.
    """
    form = promoted(*(each.cells.format for each in operands))
    call = _specified(call)
    if call.operation in SPECIFIED:
        wide = [Cells(bounds.widened(each.cells, form), each.rows) for each in operands]
        return Cells(_contracted(call, wide, rows, form), rows)
    if call.operation in REARRANGING:
        return Cells(_rearranged(call, operands, rows, form), rows)
    return Cells(_pointwise(call, [_spread(each, rows) for each in operands], form), rows)


def _specified(call: Call) -> Call:
    """Return a composite operation as the call of its specification."""
    return Call("einsum", COMPOSITION) if call.operation == "matmul" else call


def _pointwise(call: Call, operands: Sequence[Bounded], form: Format) -> Bounded:
    match call.operation:
        case "cast":
            return bounds.converted(operands[0], bounds.FORMATS[call.spec])
        case "times":
            return bounds.mul(operands[0], _constant(float(call.spec), operands[0]))
        case "plus":
            return bounds.add(operands[0], _constant(float(call.spec), operands[0]))
        case "square":
            return bounds.mul(operands[0], operands[0])
        case "clamp":
            low, high = (_constant(limit, operands[0]) for limit in (-3.0, 3.0))
            return bounds.minimum(bounds.maximum(operands[0], low), high)
        case "where":
            form = promoted(*(each.format for each in operands[1:]))
            wide = [bounds.widened(each, form) for each in operands[1:]]
            return bounds.where(operands[0], *wide)
        case "stop_gradient":
            return operands[0]
        case name:
            function: Callable[..., Bounded] = FUNCTIONS[name]
            return function(*(bounds.widened(each, form) for each in operands))


def _constant(number: float, like: Bounded) -> Bounded:
    cells = np.full(like.value.shape, number)
    if not like.format.is_integer:
        cells = cells.astype(like.format.name).astype(np.float64)
    return bounds.exact(cells, like.format)


def _rearranged(call: Call, operands: Sequence[Cells], rows: Rows, form: Format) -> Bounded:
    wide = [bounds.widened(each.cells, form) for each in operands]
    parts = [
        rearranged(
            call, [Value(cells, o.rows) for cells, o in zip(found, operands, strict=True)], rows
        )
        for found in ([each.value for each in wide], [each.error for each in wide])
    ]
    return Bounded(parts[0], parts[1], min(each.step for each in wide), form)


# ----- sums of products ---------------------------------------------------------------------------


def _summed(size: int, at: Array, parts: Array) -> Array:
    """Return the sum of the parts that belong to each of `size` cells."""
    if parts.dtype == np.int64:
        found = np.zeros(size, dtype=np.int64)
        np.add.at(found, at, parts)
        return found
    return np.bincount(at, weights=parts, minlength=size)


def _read(points: Points, operands: Sequence[Bounded], beyond: float) -> list[Bounded]:
    found = []
    for read in points.reads:
        own = operands[read.operand]
        missing: Any = int(beyond) if own.format.is_integer and np.isfinite(beyond) else beyond
        value = read.values(own.value, missing)
        found.append(Bounded(value, read.values(own.error, 0.0), own.step, own.format))
    return found


def _product(terms: Sequence[Bounded]) -> tuple[Array, Array]:
    """Return the products, and their errors without those of rounding them."""
    value, error = terms[0].value, terms[0].error
    for term in terms[1:]:
        error = bounds.product_error(value, error, term.value, term.error)
        value = value * term.value
    return value, error


def _contracted(call: Call, operands: Sequence[Cells], rows: Rows, form: Format) -> Bounded:
    size = prod(_dims(rows))
    shapes = [each.rows for each in operands]
    is_greatest = call.operation in ("einmax", "tropical")
    is_sum = call.operation in ("outer_sum", "tropical")
    kind: Any = np.int64 if form.is_integer else np.float64
    lowest = (-(2**31)) if form.is_integer else -np.inf
    value = np.full(size, lowest if is_greatest else 0, dtype=kind)
    error, magnitude, count = np.zeros(size), np.zeros(size), np.zeros(size)
    contraction = Contraction(call.spec, shapes, call.context)
    steps = [each.cells.step for each in operands]
    step = min(steps) if is_sum or call.operation in ("concat", "einmax") else prod(steps)
    beyond = lowest if is_greatest else 0.0
    for points in contraction.points(
        shapes, rows, apart=call.operation == "concat", most=LARGEST_DOMAIN
    ):
        terms = _read(points, [each.cells for each in operands], beyond)
        if is_sum:
            part, wrong = sum(t.value for t in terms), sum(t.error for t in terms)
        else:
            part, wrong = _product(terms)
        part = np.asarray(part)
        if is_greatest:
            part = bounds.wrapped(part, form) if form.is_integer else part
            np.maximum.at(value, points.target, part)
            np.maximum.at(error, points.target, wrong)
        else:
            value += _summed(size, points.target, part)
            error += _summed(size, points.target, np.asarray(wrong, dtype=np.float64))
            far = np.abs(part).astype(np.float64) + wrong
            magnitude += _summed(size, points.target, far)
            count += np.bincount(points.target, minlength=size)
    rounds = np.maximum(count - 1, 0) + (len(operands) - 1 if call.operation != "concat" else 0)
    if is_greatest:
        rounds = np.full(size, 1.0 if is_sum and len(operands) > 1 else 0.0)
        magnitude = np.where(np.isfinite(value), np.abs(value), 0.0)
    dims = _dims(rows)
    found = rounded(form, value, error, magnitude=magnitude, rounds=rounds, step=step)
    return Bounded(found.value.reshape(dims), found.error.reshape(dims), found.step, form)


# ----- gradients ----------------------------------------------------------------------------------


@dataclass
class Slope:
    """The gradient of a tensor while it is being added up."""

    shape: tuple[int, ...]
    value: Array = field(init=False)
    error: Array = field(init=False)
    magnitude: Array = field(init=False)
    rounds: Array = field(init=False)
    step: float = np.inf
    digits: int = 0
    """Significant bits of the widest format of the terms."""

    def __post_init__(self) -> None:
        self.value, self.error, self.magnitude, self.rounds = (
            np.zeros(prod(self.shape)) for _ in range(4)
        )

    def add(self, at: Array, part: Bounded, more_rounds: float = 0.0) -> None:
        """Add parts to cells.

        Args:
            at: The cells, flat.
            part: The terms.
            more_rounds: The number of roundings of each term.
        """
        size = len(self.value)
        at = at.ravel()
        self.value += _summed(size, at, part.value.ravel())
        self.error += _summed(size, at, part.error.ravel())
        self.magnitude += _summed(size, at, part.magnitude.ravel())
        count = np.bincount(at, minlength=size)
        self.rounds += count + np.where(count > 0, more_rounds, 0.0)
        self.step = min(self.step, part.step)
        self.digits = max(self.digits, part.format.digits)

    def total(self, form: Format) -> Bounded:
        rounds = np.maximum(self.rounds - (0 if self.digits > form.digits else 1), 0)
        step = self.step if np.isfinite(self.step) else 1.0
        found = rounded(
            form, self.value, self.error, magnitude=self.magnitude, rounds=rounds, step=step
        )
        value, error = found.value.reshape(self.shape), found.error.reshape(self.shape)
        return Bounded(value, error, found.step, form)


def pull_back(
    call: Call, operands: Sequence[Cells], result: Cells, gradient: Bounded, slopes: Sequence[Slope]
) -> None:
    """Add to the gradient of each operand its share of the gradient of the result."""
    call = _specified(call)
    if call.operation in SPECIFIED:
        _pull_contraction(call, operands, result, gradient, slopes)
    elif call.operation in REARRANGING:
        sizes = [each.cells.value.size for each in operands]
        starts = [sum(sizes[:position]) for position in range(len(sizes))]
        numbered = [
            Value(np.arange(start, start + size).reshape(each.cells.value.shape), each.rows)
            for start, size, each in zip(starts, sizes, operands, strict=True)
        ]
        places = rearranged(call, numbered, result.rows).astype(int).ravel()
        for start, size, slope in zip(starts, sizes, slopes, strict=True):
            inside = (places >= start) & (places < start + size)
            slope.add(places[inside] - start, _at(gradient, inside))
    else:
        parts = _pointwise_slopes(call, operands, result, gradient)
        for operand, part, slope in zip(operands, parts, slopes, strict=True):
            if part is not None:
                size = operand.cells.value.size
                numbers = np.arange(size).reshape(operand.cells.value.shape)
                slope.add(stretched(Value(numbers, operand.rows), result.rows), part)


def _at(cells: Bounded, inside: Array) -> Bounded:
    value, error = cells.value.ravel()[inside], cells.error.ravel()[inside]
    return Bounded(value, error, cells.step, cells.format)


def _pull_contraction(
    call: Call, operands: Sequence[Cells], result: Cells, gradient: Bounded, slopes: Sequence[Slope]
) -> None:
    shapes = [each.rows for each in operands]
    is_greatest = call.operation in ("einmax", "tropical")
    beyond = -np.inf if is_greatest else 0.0
    contraction = Contraction(call.spec, shapes, call.context)
    for points in contraction.points(
        shapes, result.rows, apart=call.operation == "concat", most=LARGEST_DOMAIN
    ):
        arriving = _at(gradient, points.target)
        terms = _read(points, [each.cells for each in operands], beyond)
        if is_greatest:
            arriving = _where_greatest(terms, points.target, result.cells, arriving)
        for position, read in enumerate(points.reads):
            others = (
                [*terms[:position], *terms[position + 1 :]] if call.operation == "einsum" else []
            )
            value, error = _product([arriving, *others])
            step = prod([arriving.step, *(each.step for each in others)])
            part = _at(Bounded(value, error, step, gradient.format), read.inside)
            slopes[read.operand].add(read.at[read.inside], part, float(len(others)))


def _where_greatest(
    terms: Sequence[Bounded], target: Array, result: Bounded, arriving: Bounded
) -> Bounded:
    """Return the gradients that reach cells that are the greatest, as far as that is sure.

    A term and the greatest of all, which may both be rounded, can become equal.
    """
    total, wrong = sum(t.value for t in terms), sum(t.error for t in terms)
    greatest, slack = result.value.ravel()[target], 2.0 * result.error.ravel()[target] + wrong
    may_be = (total == greatest) | (total + slack >= greatest)
    count = np.bincount(target[may_be], minlength=result.value.size)[target]
    unsure = may_be & (count > 1) & (slack > 0)
    value = np.where(total == greatest, arriving.value, 0.0)
    error = np.where(total == greatest, arriving.error, 0.0)
    error = np.where(unsure, np.abs(arriving.value) + arriving.error, error)
    return Bounded(value, error, arriving.step, arriving.format)


def _pointwise_slopes(
    call: Call, operands: Sequence[Cells], result: Cells, gradient: Bounded
) -> tuple[Bounded | None, ...]:
    """Return the gradient of each operand, in the shape of the result."""
    form = gradient.format
    g = gradient
    wide = [
        bounds.widened(_spread(each, result.rows), promoted(form, each.cells.format))
        for each in operands
    ]
    v = result.cells
    zero = Bounded(np.zeros_like(g.value), np.zeros(g.value.shape), 1.0, form)
    a = wide[0]
    b = wide[1] if len(wide) > 1 else a
    match call.operation:
        case "cast":
            return (bounds.converted(g, operands[0].cells.format),)
        case "times":
            return (bounds.mul(g, _constant(float(call.spec), g)),)
        case "square":
            return (bounds.mul(g, bounds.mul(_constant(2.0, a), a)),)
        case "plus":
            return (g,)
        case "clamp":
            low, high = (_constant(limit, a) for limit in (-3.0, 3.0))
            inner = bounds.where(bounds.less_equal(bounds.maximum(a, low), high), g, zero)
            return (bounds.where(bounds.less_equal(low, a), inner, zero),)
        case "neg":
            return (bounds.neg(g),)
        case "relu":
            return (bounds.relu_gate(v, g),)
        case "sat01":
            return (bounds.sat01_gate(v, g),)
        case "exp":
            return (bounds.mul(g, v),)
        case "log":
            return (bounds.div(g, a),)
        case "tanh":
            return (bounds.mul(g, bounds.sub(_constant(1.0, v), bounds.mul(v, v))),)
        case "sin":
            return (bounds.mul(g, bounds.cos(a)),)
        case "cos":
            return (bounds.neg(bounds.mul(g, bounds.sin(a))),)
        case "sqrt":
            return (bounds.div(g, bounds.mul(_constant(2.0, v), v)),)
        case "recip":
            return (bounds.neg(bounds.mul(g, bounds.mul(v, v))),)
        case "add":
            return g, g
        case "sub":
            return g, bounds.neg(g)
        case "mul":
            return bounds.mul(g, b), bounds.mul(g, a)
        case "div":
            return bounds.div(g, b), bounds.neg(bounds.mul(g, bounds.div(v, b)))
        case "maximum":
            chosen = bounds.less_equal(b, a)
            return bounds.where(chosen, g, zero), bounds.where(chosen, zero, g)
        case "minimum":
            chosen = bounds.less_equal(a, b)
            return bounds.where(chosen, g, zero), bounds.where(chosen, zero, g)
        case "relu_gate":
            return None, bounds.relu_gate(a, g)
        case "where":
            return None, bounds.where(a, g, zero), bounds.where(a, zero, g)
        case _:
            return (None,) * len(operands)
