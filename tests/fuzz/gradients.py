"""Gradients of operations, written from their definitions.

Every operand receives the gradient of the result for the cells it contributed. Where several cells
are the greatest, the first of them receives all of it; of two equal operands, the first one does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from .contraction import Contraction
from .grid import TooLarge
from .notation import Rows
from .reference import CONTRACTIONS, MAXIMA, Array, Call, Value, broadcast, rearranged, stretched

LARGEST_GRADIENT = 2.0**20

POINTWISE: dict[str, Callable[..., tuple[Array | None, ...]]] = {
    "neg": lambda g, a: (-g,),
    "relu": lambda g, a: (np.where(a > 0, g, 0.0),),
    "sat01": lambda g, a: (np.where((a > 0) & (a < 1), g, 0.0),),
    "clamp": lambda g, a: (np.where((a >= -3) & (a <= 3), g, 0.0),),
    "twice": lambda g, a: (2.0 * g,),
    "add": lambda g, a, b: (g, g),
    "sub": lambda g, a, b: (g, -g),
    "mul": lambda g, a, b: (g * b, g * a),
    "maximum": lambda g, a, b: (np.where(a >= b, g, 0.0), np.where(a >= b, 0.0, g)),
    "minimum": lambda g, a, b: (np.where(a <= b, g, 0.0), np.where(a <= b, 0.0, g)),
    "relu_gate": lambda g, a, b: (None, np.where(a > 0, g, 0.0)),
    "sat01_gate": lambda g, a, b: (None, np.where((a > 0) & (a < 1), g, 0.0)),
    "where": lambda g, a, b, c: (None, np.where(a != 0, g, 0.0), np.where(a != 0, 0.0, g)),
}
"""Gradients of operands; other pointwise operations, such as comparisons, have none."""

EACH: dict[str, Callable[..., tuple[Array | None, ...]]] = {
    "maximum": lambda g, a, b: (np.where(a >= b, g, 0.0), np.where(b >= a, g, 0.0)),
    "minimum": lambda g, a, b: (np.where(a <= b, g, 0.0), np.where(b <= a, g, 0.0)),
}
"""Gradients of operands if each of several equal ones gets the whole gradient."""

TIED = frozenset({*MAXIMA, *EACH})
"""The operations that choose between equal cells."""


def pulled_back(
    call: Call,
    operands: Sequence[Value],
    result: Value,
    gradient: Array,
    each: frozenset[str] = frozenset(),
) -> list[Array]:
    """Return the gradient of each operand, given that of the result.

    Args:
        call: The operation.
        operands: The values of the operands.
        result: The value of the result.
        gradient: The gradient of the result.
        each: Maxima of which each of equal cells gets the whole gradient.

    Raises:
        TooLarge: if sums may be inexact.
    """
    match call.operation:
        case operation if operation in CONTRACTIONS:
            found = _contraction(call, operands, result, gradient, each)
        case "matmul":
            found = _product(operands[0], operands[1], result.rows, gradient)
        case "fma":
            found = _product(operands[0], operands[1], result.rows, gradient)
            found.append(
                _gathered(operands[2], stretched(_places(operands[2]), result.rows), gradient)
            )
        case "transpose" | "slice" | "stack":
            found = _rearranged(call, operands, result.rows, gradient)
        case operation:
            rule = (EACH if operation in each else POINTWISE).get(operation)
            found = _pointwise(rule, operands, result.rows, gradient)
    for part in found:
        if part.size and np.abs(part).max() > LARGEST_GRADIENT:
            raise TooLarge
    return found


def _places(value: Value, first: int = 0) -> Value:
    """Return a value whose cells are their own numbers."""
    numbers = np.arange(first, first + value.cells.size).reshape(value.cells.shape)
    return Value(numbers, value.rows)


def _gathered(operand: Value, places: Array, gradient: Array) -> Array:
    """Return the gradient of each cell of an operand; `places` are the cells by number."""
    found = np.zeros(operand.cells.size)
    np.add.at(found, places.astype(int).ravel(), gradient.ravel())
    return found.reshape(operand.cells.shape)


def _pointwise(
    rule: Callable[..., tuple[Array | None, ...]] | None,
    operands: Sequence[Value],
    rows: Rows,
    gradient: Array,
) -> list[Array]:
    cells = [stretched(operand, rows) for operand in operands]
    passed = rule(gradient, *cells) if rule else (None,) * len(operands)
    return [
        np.zeros(operand.cells.shape)
        if part is None
        else _gathered(operand, stretched(_places(operand), rows), part)
        for operand, part in zip(operands, passed, strict=True)
    ]


def _rearranged(call: Call, operands: Sequence[Value], rows: Rows, gradient: Array) -> list[Array]:
    """Every cell of the result is one of the operands'."""
    sizes = [operand.cells.size for operand in operands]
    numbered = [
        _places(operand, sum(sizes[:position])) for position, operand in enumerate(operands)
    ]
    places = rearranged(call, numbered, rows).astype(int).ravel()
    found = np.zeros(sum(sizes))
    np.add.at(found, places, gradient.ravel())
    parts = np.split(found, np.cumsum(sizes)[:-1])
    return [part.reshape(o.cells.shape) for part, o in zip(parts, operands, strict=True)]


def _product(left: Value, right: Value, rows: Rows, gradient: Array) -> list[Array]:
    batch = broadcast([left.rows[0], right.rows[0]])
    meeting, out, inputs = left.rows[2], left.rows[1], right.rows[2]
    if meeting == ():  # a scalar is one axis of size 1, too
        right = Value(right.cells, (right.rows[0], (), inputs))
    own: Rows = (batch, out, inputs)
    count = prod(n for row in own for n in row)
    numbers = Value(np.arange(count).reshape([n for row in own for n in row]), own)
    arriving = np.zeros(count)
    np.add.at(arriving, stretched(numbers, rows).ravel(), gradient.ravel())
    g = arriving.reshape(*batch, prod(out), prod(inputs))

    def matrices(value: Value, shape: Rows) -> tuple[Array, Array]:
        dims = (*shape[0], prod(shape[1]), prod(shape[2]))
        return stretched(value, shape).reshape(dims), stretched(_places(value), shape)

    one, one_places = matrices(left, (batch, out, meeting))
    other, other_places = matrices(right, (batch, meeting, inputs))
    return [
        _gathered(left, one_places, g @ other.swapaxes(-1, -2)),
        _gathered(right, other_places, one.swapaxes(-1, -2) @ g),
    ]


def _contraction(
    call: Call, operands: Sequence[Value], result: Value, gradient: Array, each: frozenset[str]
) -> list[Array]:
    shapes = [operand.rows for operand in operands]
    contraction = Contraction(call.spec, shapes, call.context)
    found = [np.zeros(operand.cells.size) for operand in operands]
    is_greatest = call.operation in MAXIMA
    beyond = -np.inf if is_greatest else 0.0
    is_open = np.ones(gradient.size, dtype=bool)  # nothing has been selected for these cells yet
    for points in contraction.points(shapes, result.rows, apart=call.operation == "concat"):
        arriving = gradient.ravel()[points.target]
        terms = [read.values(operands[read.operand].cells, beyond) for read in points.reads]
        if is_greatest:
            reached = np.flatnonzero(sum(terms) == result.cells.ravel()[points.target])
            found_cells, firsts = np.unique(points.target[reached], return_index=True)
            firsts = reached if call.operation in each else reached[firsts[is_open[found_cells]]]
            is_open[found_cells] = False
            arriving = np.where(np.isin(np.arange(arriving.size), firsts), arriving, 0.0)
        for position, read in enumerate(points.reads):
            part = arriving
            if call.operation == "einsum":
                part = arriving * prod([*terms[:position], *terms[position + 1 :]])
            np.add.at(found[read.operand], read.at[read.inside], part[read.inside])
    return [part.reshape(o.cells.shape) for part, o in zip(found, operands, strict=True)]
