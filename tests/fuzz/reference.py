"""Reference evaluation of programs from their texts and concrete shapes.

Nothing here uses the project: the notation is parsed anew, rows broadcast by rules of this module,
and values come from NumPy. A shape is a triple of rows in buffer order: batch, output, input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from .contraction import LARGEST_DOMAIN, Contraction, ExpectedRow, Freedom, Undetermined, certain
from .grid import TooLarge
from .notation import ALONE, Invalid, Row, Rows, SpecContext

Array = np.ndarray[Any, Any]

LARGEST_CELL = 2.0**15
"""Sums of products of three such integers are exact in float64 over any domain met here."""


@dataclass(frozen=True)
class Value:
    """Cells, and the row of each of their axes."""

    cells: Array
    rows: Rows


def broadcast(rows: Sequence[Row]) -> Row:
    """Return the row of a pointwise result: aligned at the right, 1 and missing axes stretch."""
    sizes = []
    for axis in range(max(map(len, rows), default=0)):
        here = {row[-1 - axis] for row in rows if axis < len(row)} - {1}
        if len(here) > 1:
            raise Invalid(f"sizes {here} meet")
        sizes.append(here.pop() if here else 1)
    return tuple(reversed(sizes))


def is_scalar(own: Row, wanted: Row) -> bool:
    """Return True for one axis of size 1 where no axes are required: either is a scalar."""
    return own == (1,) and not wanted


def stretched(value: Value, rows: Rows) -> Array:
    """Return the cells repeated along the additional axes of `rows`."""
    dims = [
        n
        for own, wanted in zip(value.rows, rows, strict=True)
        for n in (1,) * (len(wanted) - len(own)) + (() if is_scalar(own, wanted) else own)
    ]
    return np.broadcast_to(value.cells.reshape(dims), [n for row in rows for n in row])


POINTWISE: dict[str, Callable[..., Array]] = {
    "neg": lambda a: -a,
    "relu": lambda a: np.where(a < 0, 0.0, a),
    "sat01": lambda a: np.where(a <= 0, 0.0, np.where(a >= 1, 1.0, a)),
    "trunc": np.trunc,
    "logical_not": lambda a: np.where(a == 0, 1.0, 0.0),
    "clamp": lambda a: np.minimum(np.maximum(a, -3.0), 3.0),
    "twice": lambda a: a * 2.0,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "less": lambda a, b: np.where(a < b, 1.0, 0.0),
    "less_equal": lambda a, b: np.where(a <= b, 1.0, 0.0),
    "equal": lambda a, b: np.where(a == b, 1.0, 0.0),
    "not_equal": lambda a, b: np.where(a != b, 1.0, 0.0),
    "logical_and": lambda a, b: np.where((a != 0) & (b != 0), 1.0, 0.0),
    "logical_or": lambda a, b: np.where((a != 0) | (b != 0), 1.0, 0.0),
    "relu_gate": lambda a, b: np.where(a > 0, b, 0.0),
    "sat01_gate": lambda a, b: np.where((a > 0) & (a < 1), b, 0.0),
    "where": lambda a, b, c: np.asarray(np.where(a != 0, b, c)),
}


CONTRACTIONS = ("einsum", "einmax", "outer_sum", "tropical", "concat", "max_pool2d")
MAXIMA = ("einmax", "tropical", "max_pool2d")
"""The contractions of which a cell is the greatest of terms."""


@dataclass(frozen=True)
class Slice:
    """One key: a position and the size it demands of the axis (None: any), or the bounds and the
    step of a part of the axis.
    """

    value: int = 0
    extent: int | None = None
    bounds: tuple[int | None, int | None, int | None] | None = None

    @property
    def key(self) -> int | slice:
        return self.value if self.bounds is None else slice(*self.bounds)

    def sizes(self, size: int) -> tuple[int, ...]:
        """Return the sizes of the axes left of one of a given size; raises Invalid."""
        if self.bounds is not None:
            return (len(range(*slice(*self.bounds).indices(size))),)
        if self.value >= size or self.extent not in (None, size):
            raise Invalid(f"index {self} of {size}")
        return ()


@dataclass(frozen=True)
class Call:
    """An operation and the context of its operands.

    Attributes:
        operation: Its name.
        spec: A specification, or the kind of the new axis of a stack.
        slices: Keys of the first axes, in the order batch, output, input.
        context: The context of the specification.
        format: The stated number format of the result, or none.
    """

    operation: str
    spec: str = ""
    slices: tuple[Slice, ...] = ()
    context: SpecContext = ALONE
    format: str = ""


def expected_rows(
    call: Call, operands: Sequence[Rows]
) -> tuple[ExpectedRow, ExpectedRow, ExpectedRow]:
    """Return the shape that a result has; raises Invalid if the operation is impossible."""
    match call.operation:
        case operation if operation in CONTRACTIONS:
            contraction = Contraction(call.spec, operands, call.context)
            if not contraction.is_determined:
                raise Undetermined
            return contraction.expected()
        case "matmul" | "fma":
            rows = _composed(operands[0], operands[1])
            if call.operation == "fma":
                rows = _pointwise_rows([rows, operands[2]])
        case "transpose":
            batch, output, inputs = operands[0]
            rows = (batch, inputs, output)
        case "slice":
            rows = sliced_rows(operands[0], call.slices)
        case "stack":
            if len(set(operands)) > 1:
                raise Undetermined  # whether shapes that differ are repeated is not promised
            rows = with_new_axis(_pointwise_rows(operands), call.spec, len(operands))
            found = [certain(row) for row in rows]
            kind = KINDS.index(call.spec)
            freedoms = (Freedom.NONE, *found[kind].freedoms[1:])
            found[kind] = ExpectedRow(rows[kind], freedoms, longer_at=1)
            return found[0], found[1], found[2]
        case _:
            rows = _pointwise_rows(operands)
    batch, output, inputs = rows
    return certain(batch), certain(output), certain(inputs)


KINDS = ("batch", "output", "input")


def sliced_rows(rows: Rows, slices: Sequence[Slice]) -> Rows:
    """Return the rows that keys leave; raises Invalid if they do not fit."""
    if sum(map(len, rows)) < len(slices):
        raise Invalid("too few axes")
    left = list(slices)
    found: list[tuple[int, ...]] = []
    for row in rows:
        kept: tuple[int, ...] = ()
        for size in row:
            kept += left.pop(0).sizes(size) if left else (size,)
        found.append(kept)
    return found[0], found[1], found[2]


def with_new_axis(rows: Rows, kind: str, size: int) -> Rows:
    """Return rows with one more axis on the left of a row of some kind."""
    found = list(rows)
    found[KINDS.index(kind)] = (size, *found[KINDS.index(kind)])
    return found[0], found[1], found[2]


def _pointwise_rows(operands: Sequence[Rows]) -> Rows:
    batch, output, inputs = (broadcast(rows) for rows in zip(*operands, strict=True))
    return batch, output, inputs


def _composed(left: Rows, right: Rows) -> Rows:
    """Return the rows of `left @ right`: the outputs of the right one go into the left one."""
    meeting, arriving = left[2], right[1]
    if (meeting, arriving) != ((), (1,)) and broadcast([meeting, arriving]) != meeting:
        raise Invalid(f"{arriving} goes into {meeting}")
    return broadcast([left[0], right[0]]), left[1], right[2]


def evaluate(call: Call, operands: Sequence[Value], result: Rows) -> Value:
    """Return the value of an operation whose result has the given rows."""
    if prod(n for row in result for n in row) > LARGEST_DOMAIN:
        raise TooLarge
    with np.errstate(all="ignore"):
        cells = _cells(call, operands, result)
    finite = cells[np.isfinite(cells)]
    if finite.size and np.abs(finite).max() > LARGEST_CELL:
        raise TooLarge
    return Value(np.array(cells), result)


def _cells(call: Call, operands: Sequence[Value], result: Rows) -> Array:
    match call.operation:
        case operation if operation in CONTRACTIONS:
            return _contracted(call, operands, result)
        case "matmul":
            return stretched(_product(operands[0], operands[1]), result)
        case "fma":
            product = _product(operands[0], operands[1])
            return stretched(product, result) + stretched(operands[2], result)
        case "transpose" | "slice" | "stack":
            return rearranged(call, operands, result)
        case operation:
            return POINTWISE[operation](*(stretched(operand, result) for operand in operands))


def _contracted(call: Call, operands: Sequence[Value], result: Rows) -> Array:
    contraction = Contraction(call.spec, [operand.rows for operand in operands], call.context)
    is_greatest = call.operation in MAXIMA
    neutral = -np.inf if is_greatest else 0.0
    dims = [n for row in result for n in row]
    cells = np.full(prod(dims), neutral)
    shapes = [operand.rows for operand in operands]
    for points in contraction.points(shapes, result, apart=call.operation == "concat"):
        terms = [read.values(operands[read.operand].cells, neutral) for read in points.reads]
        joined = sum(terms) if call.operation in ("outer_sum", "tropical") else prod(terms)
        combine: Any = np.maximum if is_greatest else np.add
        combine.at(cells, points.target, joined)
    return cells.reshape(dims)


def rearranged(call: Call, operands: Sequence[Value], result: Rows) -> Array:
    """Return the cells of an operation that only puts cells elsewhere."""
    own = operands[0]
    match call.operation:
        case "transpose":
            batch, output, _ = (len(row) for row in own.rows)
            axes = list(range(own.cells.ndim))
            order = axes[:batch] + axes[batch + output :] + axes[batch : batch + output]
            rows = (own.rows[0], own.rows[2], own.rows[1])
            return stretched(Value(own.cells.transpose(order), rows), result)
        case "slice":
            part = own.cells[tuple(each.key for each in call.slices)]
            rows = sliced_rows(own.rows, call.slices)
            return stretched(Value(np.asarray(part), rows), result)
        case "stack":
            kind = KINDS.index(call.spec)
            count = len(operands)
            more = len(result[kind]) - 1 - max(len(operand.rows[kind]) for operand in operands)
            if more < 0 or result[kind][0] != count:
                raise Undetermined  # further axes stand where the new one was put
            within = tuple(row[1:] if each == kind else row for each, row in enumerate(result))
            axis = sum(len(row) for row in result[:kind])
            return np.stack(
                [stretched(o, (within[0], within[1], within[2])) for o in operands], axis
            )
        case _:
            raise AssertionError(call.operation)


def _product(left: Value, right: Value) -> Value:
    batch = broadcast([left.rows[0], right.rows[0]])
    meeting = left.rows[2]
    if meeting == ():
        right = Value(
            right.cells.reshape([n for r in (right.rows[0], right.rows[2]) for n in r]),
            (right.rows[0], (), right.rows[2]),
        )
    one = stretched(left, (batch, left.rows[1], meeting))
    other = stretched(right, (batch, meeting, right.rows[2]))
    one = one.reshape(*batch, prod(left.rows[1]), prod(meeting))
    other = other.reshape(*batch, prod(meeting), prod(right.rows[2]))
    rows = (batch, left.rows[1], right.rows[2])
    return Value((one @ other).reshape([n for row in rows for n in row]), rows)
