"""Number formats that the printed text of an expression leaves out.

The text states the formats of arrays, variables and conversions alone. The others follow: a value
has the format of the place that it is stored to, operands have the format of their operation, and
an operand that may have any format (`is_free`) has the first format that its text states.
"""

from __future__ import annotations

from collections.abc import Sequence

from ocannl_core.ir.numbers.dtypes import DType, uint4x32
from ocannl_core.ir.numbers.primitives import COMPARISONS, HASHES, BinaryOp, Op, TernaryOp, UnaryOp

_FREE = frozenset(
    {
        (UnaryOp.IDENTITY, 0),
        (UnaryOp.WORD, 0),
        (BinaryOp.FIRST, 1),
        (BinaryOp.SECOND, 0),
        (TernaryOp.WHERE, 0),
    }
)


def is_free(op: Op, position: int) -> bool:
    """Return True if an operand may have any format, independently of the other operands."""
    return (op, position) in _FREE


def stated_format(op: Op, operands: Sequence[DType | None]) -> DType | None:
    """Return the format that the text of an operation states; None if it states none.

    Args:
        op: The primitive; a conversion states its format by itself.
        operands: The formats that the texts of its operands state.
    """
    if op is UnaryOp.WORD or op in HASHES:
        return uint4x32
    if op is UnaryOp.UNIFORM:
        return None
    stated = (each for place, each in enumerate(operands) if each and not is_free(op, place))
    return next(stated, None)


def operand_formats(
    op: Op, result: DType, operands: Sequence[DType | None]
) -> tuple[DType | None, ...]:
    """Return the formats that operands have by their position; None for a free operand.

    Args:
        result: The format of the operation.
        operands: The formats that the texts of its operands state.
    """
    if op in COMPARISONS:
        return (stated_format(op, operands),) * 2
    common = uint4x32 if op is UnaryOp.UNIFORM or op in HASHES else result
    return tuple([None if is_free(op, n) else common for n in range(len(operands))])
