"""The number formats of tensors: who decides one, and how one follows from others.

Formats are decided as a program is written; what rests on the default alone is decided anew when a
later use changes it, until code is made. A format that somebody stated is final. The result of an
operation has the format in which it computes: the promotion of its operands' formats. Tensors that
no operation computes and that state no format (parameters, placeholders, literals, numbers,
declared tensors, random numbers) have no say in this; they take the format of what uses them
instead, from the first use on, and widen it if a later use is wider. Only where no operand has a
say does the session's default float decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Protocol

import numpy as np

from ocannl_core import settings
from ocannl_core.dtypes import SHORT_RANGE, DType, constant_limit, dtype_of, float32, promote
from ocannl_core.errors import UsageError
from ocannl_core.fast_dataclass import dataclass, replace
from ocannl_core.ops import Op, TernaryOp
from ocannl_core.origin import Origin


class Why(Enum):
    """What decided a format."""

    STATED = "stated"
    """With `dtype=`, or by an array that has a format of its own."""
    OPERANDS = "operands"
    """The promotion of the operands' formats."""
    STORED = "param_dtype"
    """The format in which a session stores parameters; it has no say in what uses them."""
    USE = "use"
    """An operation that uses the tensor."""
    DEFAULT = "default"
    """The session's default, which a use may replace."""


@dataclass(frozen=True, slots=True)
class Precision:
    """The number format of a tensor and what decided it.

    Attributes:
        dtype: The format.
        why: What decided it.
        positions: For a result, the operands whose formats decided; empty where the default did.
        origin: For a format taken from a use, the operation that asked for it.
        rests_on_default: True of a result if nothing but the default is behind its format.
    """

    dtype: DType
    why: Why
    positions: tuple[int, ...] = ()
    origin: Origin | None = None
    rests_on_default: bool = False

    @classmethod
    def stated(cls, dtype: DType | str | np.dtype[Any]) -> Precision:
        """Returns a final format.

        Raises:
            UsageError: if there is none of this name.
        """
        return cls(dtype_of(dtype), Why.STATED)

    @classmethod
    def by_default(cls, dtype: DType) -> Precision:
        """Returns a format that the first use replaces."""
        return cls(dtype, Why.DEFAULT)

    @property
    def decides(self) -> bool:
        """True if operations on the tensor follow its format."""
        return self.why in (Why.STATED, Why.OPERANDS)

    @property
    def follows(self) -> bool:
        """True if the tensor follows the formats of operations on it."""
        return self.why in (Why.USE, Why.DEFAULT)

    @property
    def is_free(self) -> bool:
        """True if what the tensor is made for may choose its format."""
        return self.follows or self.rests_on_default

    def check_differentiable(self, origin: Origin) -> None:
        """Raises UsageError for a gradient of what is no real number."""
        if not self.dtype.is_float:
            raise UsageError(
                "Gradients are computed with respect to real numbers.",
                found=f"requires_grad=True for cells of {self.dtype}",
                where=str(origin),
                fix='state a float format, as in dtype="float32", or leave requires_grad out',
            )

    def used(self, dtype: DType, origin: Origin) -> Precision:
        """Returns the precision after a use in an operation that computes in a format.

        Integers and words stay what they are; a float becomes no integer.
        """
        if not (self.follows and dtype.is_float and self.dtype.is_float):
            return self
        wanted = promote(self.dtype, dtype) if self.why is Why.USE else dtype
        if wanted is self.dtype and self.why is Why.USE:
            return self
        return Precision(wanted, Why.USE, origin=origin)


def chosen(dtype: DType | str | np.dtype[Any] | None, default: DType) -> Precision:
    """Returns the format that is stated, or the default one, which uses may replace."""
    return Precision.by_default(default) if dtype is None else Precision.stated(dtype)


def of_result(op: Op | None, operands: Sequence[Precision], default: DType) -> Precision:
    """Returns the precision of an operation's result.

    Args:
        op: The primitive that the operation lifts, if it does.
        operands: The precisions of its operands; the condition of `where` has no say.
        default: The session's default float.
    """
    heard = [i for i in range(len(operands)) if not (op is TernaryOp.WHERE and i == 0)]
    deciding = [i for i in heard if operands[i].decides]
    if all(operands[i].rests_on_default for i in deciding):
        # where nobody stated a format, what uses have decided counts too
        deciding = [i for i in heard if i in deciding or operands[i].why is Why.USE]
    if not deciding:
        followers = [operands[i].dtype for i in heard if operands[i].follows]
        dtype = promote(*followers) if followers else default
        found = Precision(dtype, Why.OPERANDS, rests_on_default=True)
    else:
        found = _promotion(operands, deciding)
        if not found.dtype.is_float:
            # beside integers a float decides even if it is only the default
            floats = [i for i in heard if operands[i].dtype.is_float and i not in deciding]
            found = _promotion(operands, sorted([*deciding, *floats]))
    if op is not None and op.value.is_real and not found.dtype.is_float:
        return replace(found, dtype=default)
    return found


def _promotion(operands: Sequence[Precision], positions: Sequence[int]) -> Precision:
    dtype = promote(*(operands[i].dtype for i in positions))
    default = all(operands[i].rests_on_default for i in positions)
    return Precision(dtype, Why.OPERANDS, tuple(positions), rests_on_default=default)


def roomy(dtype: DType, cells: np.ndarray[Any, Any]) -> DType:
    """Returns the format, or float32 in its place if its range is narrow and literal cells come
    near the end of that. Files are not read for this.
    """
    if dtype not in SHORT_RANGE or isinstance(cells, np.memmap):
        return dtype
    cutoff = constant_limit(dtype, settings.current().half_constant_cutoff)
    sizes = np.abs(np.asarray(cells, np.float64))
    return float32 if np.any((sizes >= cutoff) & np.isfinite(sizes)) else dtype


class TypedOperand(Protocol):
    """What operations know of the number format of an operand."""

    @property
    def precision(self) -> Precision: ...

    @property
    def free_number(self) -> float | None:
        """The number that it stands for, if it is one that states no format."""


def among(op: Op | None, operands: Sequence[TypedOperand]) -> list[Precision]:
    """Return the precisions of operands beside each other: whole numbers that state no format are
    integers beside integers.
    """
    found = [operand.precision for operand in operands]
    beside = format_beside(op, operands)
    if beside is None or not beside.is_integer:
        return found
    numbers = [operand.free_number for operand in operands]
    return [
        precision if number is None or number % 1 else Precision.by_default(beside)
        for precision, number in zip(found, numbers, strict=True)
    ]


def format_beside(op: Op | None, operands: Sequence[TypedOperand | None]) -> DType | None:
    """Return the format that numbers among the operands of a primitive take, if there is one: the
    promotion of the others, of which the condition of `where` is none.

    Args:
        op: The primitive.
        operands: The operands; None for a number that is no tensor yet.
    """
    others = operands[1:] if op is TernaryOp.WHERE else operands
    formats = [e.precision.dtype for e in others if e is not None and e.free_number is None]
    return promote(*formats) if formats else None
