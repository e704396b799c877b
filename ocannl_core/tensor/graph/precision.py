"""Number formats of tensors, and their propagation along operations.

Formats are decided as a program is written. A format that rests on the default alone is decided
anew when a later use changes it, until code is made. A stated format is final. The result of an
operation has the format in which it computes: the promotion of its operands' formats.

Leaves without a stated format (parameters, placeholders, literals, numbers, declared tensors,
random numbers) do not take part in the promotion; they take the format of their first use instead,
and widen it if a later use is wider. The session's default float decides only where no operand
does.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from ocannl_core.base import settings
from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.origin import Origin
from ocannl_core.ir.numbers.dtypes import (
    SHORT_RANGE,
    DType,
    Kind,
    bool_,
    constant_limit,
    dtype_of,
    float32,
    int8,
    int32,
    promote,
    uint32,
)
from ocannl_core.ir.numbers.primitives import LOGICAL, BinaryOp, Op, TernaryOp, UnaryOp
from ocannl_core.shape.translation.logic import Logic, reduces_axes
from ocannl_core.tensor.graph.index_maps import IndexMaps

if TYPE_CHECKING:
    from ocannl_core.tensor.graph.tensor import Tensor


class Why(Enum):
    """The source of a format."""

    STATED = "stated"
    """Stated with `dtype=`, or by an array with a format of its own."""
    OPERANDS = "operands"
    """The promotion of the operands' formats."""
    STORED = "param_dtype"
    """The format in which a session stores parameters. It does not decide the formats of their
    uses, except where cells are only moved: slices, transposes and the like keep it.
    """
    USE = "use"
    """An operation that uses the tensor."""
    DEFAULT = "default"
    """The session's default, which a use may replace."""


@dataclass(frozen=True, slots=True)
class Precision:
    """The number format of a tensor and its source."""

    dtype: DType
    why: Why
    positions: tuple[int, ...] = ()
    """For a result, the operands whose formats decided; empty where the default did."""
    origin: Origin | None = None
    """For a format taken from a use, the operation."""
    rests_on_default: bool = False
    """True for a result if its format follows from defaults alone."""

    @classmethod
    def stated(cls, dtype: DType | str | np.dtype[Any]) -> Precision:
        """Return a final format."""
        return cls(dtype_of(dtype), Why.STATED)

    @classmethod
    def by_default(cls, dtype: DType) -> Precision:
        """Return a format that the first use replaces."""
        return cls(dtype, Why.DEFAULT)

    @property
    def decides(self) -> bool:
        """Return True if operations on the tensor follow its format."""
        return self.why in (Why.STATED, Why.OPERANDS)

    @property
    def follows(self) -> bool:
        """Return True if the tensor follows the formats of operations on it."""
        return self.why in (Why.USE, Why.DEFAULT)

    @property
    def is_free(self) -> bool:
        """Return True if the format may still follow from the use of the tensor."""
        return self.follows or self.rests_on_default

    def check_differentiable(self, origin: Origin) -> None:
        """Raise UsageError for a gradient in a format that is no float."""
        if not self.dtype.is_float:
            raise UsageError(
                "Gradients are computed with respect to real numbers.",
                found=f"requires_grad=True for cells of {self.dtype}",
                where=str(origin),
                fix='state a float format, as in dtype="float32", or leave requires_grad out',
            )

    def check_computable(self, origin: Origin) -> None:
        """Raise UsageError for a computed tensor in a packed format."""
        if self.dtype.packed_bits:
            raise UsageError(
                "Formats of 4 bits are for data: routines read them, and write whole bytes.",
                found=f"{origin.operation} in {self.dtype}",
                where=str(origin),
                fix=f"compute in {self.dtype.unpacked}; ctx[x] = values stores cells in oc.declare("
                f'"x", dtype="{self.dtype}")',
            )

    def after_use(self, dtype: DType, origin: Origin) -> Precision:
        """Return the precision after a use in an operation that computes in a format.

        Integers and words keep their formats; a float becomes no integer.
        """
        if not (self.follows and dtype.is_float and self.dtype.is_float):
            return self
        wanted = promote(self.dtype, dtype) if self.why is Why.USE else dtype
        if wanted is self.dtype and self.why is Why.USE:
            return self
        return Precision(wanted, Why.USE, origin=origin)


def choose_precision(dtype: DType | str | np.dtype[Any] | None, default: DType) -> Precision:
    """Return the format that is stated, or the default one, which uses may replace."""
    return Precision.by_default(default) if dtype is None else Precision.stated(dtype)


def result_precision(
    op: Op | None,
    operands: Sequence[Precision],
    default: DType,
    *,
    is_reduction: bool,
    moves_cells: bool = False,
) -> Precision:
    """Return the precision of an operation's result.

    Args:
        operands: The precisions of its operands; the condition of `where` is ignored.
        is_reduction: True for sums and products along axes.
        moves_cells: True if the result consists of cells of operands, whatever the primitive.
    """
    heard = [i for i in range(len(operands)) if not (op is TernaryOp.WHERE and i == 0)]
    deciding = [i for i in heard if operands[i].decides]
    if not [i for i in deciding if not operands[i].rests_on_default]:
        # where no format is stated, formats decided by uses count too
        deciding = [i for i in heard if i in deciding or operands[i].why is Why.USE]
    if not deciding:
        stored = [i for i in heard if operands[i].why is Why.STORED]
        if stored and (moves_cells or (op in _MOVING and not is_reduction)):
            return replace(_promotion(operands, stored), why=Why.STORED)
        followers = [operands[i].dtype for i in heard if operands[i].follows]
        dtype = promote(*followers) if followers else default
        found = Precision(dtype, Why.OPERANDS, rests_on_default=True)
    else:
        found = _promotion(operands, deciding)
        if not found.dtype.is_float:
            # beside integers a float decides even if it is only the default
            floats = [i for i in heard if operands[i].dtype.is_float and i not in deciding]
            if found.dtype is bool_:  # and so does a whole number beside truths
                floats += [i for i in heard if operands[i].dtype is int32 and i not in deciding]
            found = _promotion(operands, sorted([*deciding, *floats]))
    dtype = _computed_format(op, found.dtype, default)
    dtype = reduced_format(dtype) if is_reduction else dtype
    return found if dtype is found.dtype else replace(found, dtype=dtype)


def reduced_format(dtype: DType) -> DType:
    """Return the format of sums and products along axes: 32 bits for shorter integers and bool."""
    if not dtype.is_short_integer:
        return dtype
    return uint32 if dtype.kind is Kind.UNSIGNED else int32


def is_reduction(combine: BinaryOp | None, logic: Logic | IndexMaps) -> bool:
    """Return True for an operation whose results are sums or products of several terms."""
    if combine not in (BinaryOp.ADD, BinaryOp.MUL):
        return False
    return isinstance(logic, IndexMaps) or reduces_axes(logic)


_MOVING = frozenset({UnaryOp.IDENTITY, BinaryOp.FIRST, TernaryOp.WHERE})
"""Primitives whose results are cells of their operands."""


def _computed_format(op: Op | None, promoted: DType, default: DType) -> DType:
    """Return the format of a primitive's result from the promotion of its operands: a float where
    the primitive needs one, and int8 for quotients, remainders and powers of truths.
    """
    if op is not None and op.value.is_real and not promoted.is_float:
        return default
    return int8 if promoted is bool_ and op in _BEYOND_TRUTH else promoted


_BEYOND_TRUTH = frozenset({BinaryOp.FLOOR_DIV, BinaryOp.MOD, BinaryOp.POW})
"""Primitives whose results for truths are integers, as in NumPy."""


def _promotion(operands: Sequence[Precision], positions: Sequence[int]) -> Precision:
    dtype = promote(*[operands[i].dtype for i in positions])
    default = not [i for i in positions if not operands[i].rests_on_default]
    return Precision(dtype, Why.OPERANDS, tuple(positions), rests_on_default=default)


def check_truths(op: Op | None, operands: Sequence[Tensor], origin: Origin) -> None:
    """Raise UsageError for a difference of truths in their own format, which NumPy refuses, too."""
    if op in _DIFFERENCES and all(each.precision.dtype is bool_ for each in operands):
        raise UsageError(
            "Differences are taken of numbers, and bool holds truths.",
            found=f"{origin.operation} of bool",
            where=str(origin),
            fix=f'write {_DIFFERENCES[op]}, or convert: oc.cast(x, "int32")',
        )


_DIFFERENCES: dict[Op | None, str] = {BinaryOp.SUB: "x ^ y", UnaryOp.NEG: "~x", UnaryOp.SIGN: "x"}
"""Primitives that are not defined for truths, and what is meant with them."""


def widen_for_range(dtype: DType, cells: np.ndarray[Any, Any]) -> DType:
    """Return the format, or float32 in its place if its range is short and literal cells come near
    its end. Files are not read for this.
    """
    if dtype not in SHORT_RANGE or isinstance(cells, np.memmap):
        return dtype
    cutoff = constant_limit(dtype, settings.current().half_constant_cutoff)
    sizes = np.abs(np.asarray(cells, np.float64))
    return float32 if np.any((sizes >= cutoff) & np.isfinite(sizes)) else dtype


def operand_precisions(
    op: Op | None, operands: Sequence[Tensor], beside: DType | None
) -> list[Precision]:
    """Return operands' formats, those of numbers beside others in the format `beside`."""
    found = [operand.precision for operand in operands]
    if beside is None or not beside.holds_integers:
        return found
    for i, operand in enumerate(operands):
        number = operand.free_number
        if number is not None and (dtype := number_format(op, number, beside)) is not None:
            found[i] = Precision.by_default(dtype)
    return found


def number_format(op: Op | None, number: float, beside: DType) -> DType | None:
    """Return the format of a number beside integers or truths; None for the default float.

    A Python float is a float, whatever its value, but comparisons take whole ones exactly.
    Beside bool only a Python bool is one.
    """
    if isinstance(number, float) and (op not in LOGICAL or number % 1):
        return None
    return int32 if beside is bool_ and not isinstance(number, bool) else beside


def format_for_numbers(op: Op | None, operands: Sequence[Tensor | None]) -> DType | None:
    """Return the format for numbers among the operands of a primitive: the promotion of the other
    operands, or None. The condition of `where` is ignored.

    Args:
        operands: The operands; None for a number that is no tensor yet.
    """
    others = operands[1:] if op is TernaryOp.WHERE else operands
    formats = [e.precision.dtype for e in others if e is not None and e.free_number is None]
    return promote(*formats) if formats else None


def result_dtype(op: Op | None, dtypes: Sequence[DType], default: DType) -> DType:
    """Return the format of a primitive's result from the formats of its operands."""
    if op is TernaryOp.WHERE:
        dtypes = dtypes[1:]
    return _computed_format(op, promote(*dtypes), default)
