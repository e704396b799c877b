"""Operations of a program and their gradients, with bounds of the error.

Operations with a specification enumerate its products, as the reference of small programs does; the
others are written here from the tables of the documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import ml_dtypes  # noqa: F401 - registers the narrow formats in NumPy
import numpy as np

from ..contraction import Contraction, Points
from ..notation import Rows
from ..reference import MAXIMA, Call, Value, rearranged, stretched
from . import bounds
from .bounds import FUNCTIONS, Array, Bounded, NumberFormat, promoted, rounded, summed
from .formats import result_format

LARGEST_DOMAIN = 1 << 22
SPECIFIED = ("einsum", "einmax", "outer_sum", "tropical", "concat", "max_pool2d")
COMPOSITION = "...|..m..->..o..; ...|..i..->..m.. => ...|..i..->..o.."
REARRANGING = ("transpose", "stack", "slice")


@dataclass(frozen=True)
class BoundedCells:
    """Cells with bounds, and the row of each of their axes."""

    cells: Bounded
    rows: Rows


def _dims(rows: Rows) -> tuple[int, ...]:
    return tuple(n for row in rows for n in row)


def _spread(operand: BoundedCells, rows: Rows) -> Bounded:
    """Return the cells repeated along the additional axes of `rows`."""
    own = operand.cells
    value, error = (stretched(Value(each, operand.rows), rows) for each in (own.value, own.error))
    return Bounded(value, error, own.step, own.format)


def evaluate(
    call: Call, operands: Sequence[BoundedCells], rows: Rows, *, is_wide: bool = False
) -> BoundedCells:
    """Return the value of an operation whose result has the given rows.

    Args:
        call: The operation.
        rows: The shape of the result.
        is_wide: True if sums of narrow floats accumulate in float32 and are rounded once.

    Raises:
        TooLarge: if there are too many products to enumerate.
    """
    operands = _in_stated_format(call, operands)
    form = promoted(*(each.cells.format for each in operands))
    call = _specified(call)
    if call.operation in SPECIFIED:
        form = result_format(call, [each.cells.format for each in operands])
        wide = [BoundedCells(bounds.widened(each.cells, form), each.rows) for each in operands]
        return BoundedCells(_contracted(call, wide, rows, form, is_wide=is_wide), rows)
    if call.operation in REARRANGING:
        return BoundedCells(_rearranged(call, operands, rows, form), rows)
    return BoundedCells(_pointwise(call, [_spread(each, rows) for each in operands], form), rows)


def _specified(call: Call) -> Call:
    """Return a composite operation as the call of its specification."""
    return (
        replace(call, operation="einsum", spec=COMPOSITION) if call.operation == "matmul" else call
    )


def _in_stated_format(call: Call, operands: Sequence[BoundedCells]) -> list[BoundedCells]:
    """Return the operands in the format that is stated for the result, which holds them."""
    if not call.format:
        return list(operands)
    form = bounds.FORMATS[call.format]
    return [replace(each, cells=bounds.widened(each.cells, form)) for each in operands]


def _pointwise(call: Call, operands: Sequence[Bounded], form: NumberFormat) -> Bounded:
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


def _rearranged(
    call: Call, operands: Sequence[BoundedCells], rows: Rows, form: NumberFormat
) -> Bounded:
    wide = [bounds.widened(each.cells, form) for each in operands]
    parts = [
        rearranged(
            call, [Value(cells, o.rows) for cells, o in zip(found, operands, strict=True)], rows
        )
        for found in ([each.value for each in wide], [each.error for each in wide])
    ]
    return Bounded(parts[0], parts[1], min(each.step for each in wide), form)


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


def _term_error(
    form: NumberFormat, value: Array, error: Array, factors: int, step: float, *, is_product: bool
) -> Array:
    """Return the errors of the terms of a sum that is rounded once.

    The sum of two cells is rounded before it is added, and so may be products of all factors but
    the last.
    """
    rounds = factors - 2 if is_product else factors - 1
    if rounds <= 0:
        return error
    far = np.abs(value) + error
    return rounded(form, value, error, magnitude=far, rounds=rounds, step=step).error


def _contracted(
    call: Call, operands: Sequence[BoundedCells], rows: Rows, form: NumberFormat, *, is_wide: bool
) -> Bounded:
    size = prod(_dims(rows))
    shapes = [each.rows for each in operands]
    is_greatest = call.operation in MAXIMA
    is_sum = call.operation in ("outer_sum", "tropical")
    is_once = is_wide and form.is_narrow and not is_greatest
    kind: Any = np.int64 if form.is_integer else np.float64
    lowest = bounds.lowest(form)
    value = np.full(size, lowest if is_greatest else 0, dtype=kind)
    error, magnitude, count = np.zeros(size), np.zeros(size), np.zeros(size)
    contraction = Contraction(call.spec, shapes, call.context)
    steps = [each.cells.step for each in operands]
    is_kept = is_sum or is_greatest or call.operation == "concat"
    step = min(steps) if is_kept else prod(steps)
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
        if is_once and call.operation != "concat":
            wrong = _term_error(form, part, wrong, len(operands), step, is_product=not is_sum)
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
    finished = summed if is_once else rounded
    found = finished(form, value, error, magnitude=magnitude, rounds=rounds, step=step)
    return Bounded(found.value.reshape(dims), found.error.reshape(dims), found.step, form)


@dataclass
class Slope:
    """The gradient of a tensor during accumulation.

    Attributes:
        shape: The shape of the tensor.
        narrow: The format of the tensor if the contributions of uses accumulate in float32 and are
            rounded once.
    """

    shape: tuple[int, ...]
    narrow: NumberFormat | None = None
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
        if self.narrow is not None:
            self._add_once(self.narrow, at, part, more_rounds)
            return
        self.value += _summed(size, at, part.value.ravel())
        self.error += _summed(size, at, part.error.ravel())
        self.magnitude += _summed(size, at, part.magnitude.ravel())
        count = np.bincount(at, minlength=size)
        self.rounds += count + np.where(count > 0, more_rounds, 0.0)
        self.step = min(self.step, part.step)
        self.digits = max(self.digits, part.format.digits)

    def _add_once(self, form: NumberFormat, at: Array, part: Bounded, more_rounds: float) -> None:
        size = len(self.value)
        value, error, magnitude = (
            _summed(size, at, cells.ravel()) for cells in (part.value, part.error, part.magnitude)
        )
        count = np.bincount(at, minlength=size)
        if count.max(initial=0) > 1 or more_rounds or part.format != form:
            rounds = count - 1.0 + more_rounds
            whole = summed(
                form,
                value,
                error,
                magnitude=magnitude,
                rounds=np.maximum(rounds, 0.0),
                step=part.step,
            )
            value, error = whole.value, whole.error
        self.value += value
        self.error += error
        self.magnitude += np.abs(value) + error
        self.rounds += count > 0
        self.step = min(self.step, part.step)

    def total(self, form: NumberFormat) -> Bounded:
        rounds = np.maximum(self.rounds - (0 if self.digits > form.digits else 1), 0)
        step = self.step if np.isfinite(self.step) else 1.0
        found = rounded(
            form, self.value, self.error, magnitude=self.magnitude, rounds=rounds, step=step
        )
        value, error = found.value.reshape(self.shape), found.error.reshape(self.shape)
        return Bounded(value, error, found.step, form)


def pull_back(
    call: Call,
    operands: Sequence[BoundedCells],
    result: BoundedCells,
    gradient: Bounded,
    slopes: Sequence[Slope],
) -> None:
    """Add to the gradient of each operand its share of the gradient of the result."""
    operands = _in_stated_format(call, operands)
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
    call: Call,
    operands: Sequence[BoundedCells],
    result: BoundedCells,
    gradient: Bounded,
    slopes: Sequence[Slope],
) -> None:
    shapes = [each.rows for each in operands]
    is_greatest = call.operation in MAXIMA
    beyond = -np.inf if is_greatest else 0.0
    contraction = Contraction(call.spec, shapes, call.context)
    everything = contraction.points(
        shapes, result.rows, apart=call.operation == "concat", most=LARGEST_DOMAIN
    )
    read = [
        (points, _read(points, [each.cells for each in operands], beyond)) for points in everything
    ]
    greatest = Greatest.of(read, result.cells) if is_greatest else None
    for points, terms in read:
        arriving = _at(gradient, points.target)
        if greatest is not None:
            arriving = greatest.reached(terms, points.target, arriving)
        for position, read in enumerate(points.reads):
            others = (
                [*terms[:position], *terms[position + 1 :]] if call.operation == "einsum" else []
            )
            value, error = _product([arriving, *others])
            step = prod([arriving.step, *(each.step for each in others)])
            form = slopes[read.operand].narrow
            if form is not None:
                error = _term_error(form, value, error, len(others) + 1, step, is_product=True)
            part = _at(Bounded(value, error, step, gradient.format), read.inside)
            slopes[read.operand].add(read.at[read.inside], part, float(len(others)))


@dataclass
class Greatest:
    """The cells of which maxima are, as far as that is sure: the first of equal ones.

    A term and the greatest of all, which may both be rounded, can become equal.

    Attributes:
        result: The maxima.
        is_unsure: True for maxima of which any of several terms may be the first.
        is_open: True for maxima of which no term has been found yet.
    """

    result: Bounded
    is_unsure: Array
    is_open: Array

    @staticmethod
    def of(read: Sequence[tuple[Points, Sequence[Bounded]]], result: Bounded) -> Greatest:
        """Return the maxima of terms."""
        size = result.value.size
        found = Greatest(result, np.zeros(size, dtype=bool), np.ones(size, dtype=bool))
        count, slack = np.zeros(size, dtype=int), np.zeros(size)
        for points, terms in read:
            may_be, error = found._candidates(terms, points.target)
            at = points.target[may_be]
            count += np.bincount(at, minlength=size)
            np.maximum.at(slack, at, error[may_be])
        found.is_unsure = ((count > 1) & (slack > 0)) | ~np.isfinite(slack)
        return found

    def _candidates(self, terms: Sequence[Bounded], target: Array) -> tuple[Array, Array]:
        """Return the terms that may be the greatest, and the errors of comparing them."""
        total, wrong = sum(t.value for t in terms), sum(t.error for t in terms)
        slack = 2.0 * self.result.error.ravel()[target] + wrong
        greatest = self.result.value.ravel()[target]
        return (total == greatest) | (total + slack >= greatest) | ~np.isfinite(slack), slack

    def reached(self, terms: Sequence[Bounded], target: Array, arriving: Bounded) -> Bounded:
        """Return the part of the gradients of the maxima that reaches the terms."""
        total = np.asarray(sum(t.value for t in terms))
        equal = np.flatnonzero(total == self.result.value.ravel()[target])
        cells, places = np.unique(target[equal], return_index=True)
        firsts = equal[places[self.is_open[cells]]]
        self.is_open[cells] = False
        is_first = np.zeros(total.shape, dtype=bool)
        is_first[firsts] = True
        value = np.where(is_first, arriving.value, 0.0)
        error = np.where(is_first, arriving.error, 0.0)
        may_be, _ = self._candidates(terms, target)
        unsure = may_be & self.is_unsure[target]
        error = np.where(unsure, np.abs(arriving.value) + arriving.error, error)
        return Bounded(value, error, arriving.step, arriving.format)


def _pointwise_slopes(
    call: Call, operands: Sequence[BoundedCells], result: BoundedCells, gradient: Bounded
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
