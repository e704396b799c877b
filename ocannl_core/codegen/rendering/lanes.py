"""Lanes of vector loops: their types in C, and the limits of what they hold."""

from __future__ import annotations

from functools import cache

from ocannl_core.codegen.prelude.vector_types import ELEMENTS
from ocannl_core.codegen.text.precedence import CExpr
from ocannl_core.ir.numbers.dtypes import DType, uint4x32

MOST_LANES = 16


class NotVectorisedError(Exception):
    """A vector loop has an operation without a vector form; it is rendered as a plain loop."""


@cache
def vector_type(dtype: DType, lanes: int) -> str:
    """Return the type in C of a vector of numbers, or of words.

    Raises:
        NotVectorisedError: for formats without vectors.
    """
    computed = dtype.in_lanes
    if computed.name not in ELEMENTS and computed is not uint4x32:
        raise NotVectorisedError
    return f"{computed}x{lanes}"


def raise_if_inexact(index: CExpr, limit: int) -> None:
    """Raise NotVectorisedError unless a position is a constant below a limit."""
    if not (index.code.isdigit() and int(index.code) + MOST_LANES < limit):
        raise NotVectorisedError
