"""Lanes of vector loops: types in C, limits of what they hold, and operations on random words."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ocannl_core.codegen.prelude.vector_types import ELEMENTS
from ocannl_core.codegen.text.precedence import CExpr, call, cast
from ocannl_core.ir.loops.nodes import Binary, Expr, Unary
from ocannl_core.ir.numbers.dtypes import DType, float16, int32, uint4x32, uint32
from ocannl_core.ir.numbers.primitives import HASHES, UnaryOp
from ocannl_core.schedule.rules.vectorisable import DRAWN_FORMATS, HASHED_FORMATS

MOST_LANES = 16


class NotVectorisedError(Exception):
    """A vector loop has an operation without a vector form; it is rendered as a plain loop."""


@cache
def vector_type(dtype: DType, lanes: int) -> str:
    """Return the type in C of a vector of numbers, or of words."""
    computed = dtype.in_lanes
    if computed.name not in ELEMENTS and computed is not uint4x32:
        raise NotVectorisedError
    return f"{computed}x{lanes}"


def raise_if_inexact(index: CExpr, limit: int) -> None:
    """Raise NotVectorisedError unless a position is a constant below a limit."""
    if not (index.code.isdigit() and int(index.code) + MOST_LANES < limit):
        raise NotVectorisedError


def render_words(
    expr: Expr, value: Callable[[Expr], CExpr], vector: Callable[[DType], str]
) -> tuple[CExpr, str] | None:
    """Render an operation on a vector of words, and name its helper; None if it is another one."""
    match expr:
        case Unary(UnaryOp.WORD, arg) if arg.dtype in HASHED_FORMATS:
            spread, bits = f"{vector(uint4x32)}_spread", value(arg)
            return call(spread, cast(vector(uint32), bits)), spread
        case Unary(UnaryOp.UNIFORM, arg, dtype) if dtype in DRAWN_FORMATS:
            function = "low" if not dtype.is_float else "uniform"
            drawn = f"{vector(uint4x32)}_{function}{'_16' * (dtype is float16)}"
            number = call(drawn, value(arg))
            return cast(vector(int32), number) if dtype is int32 else number, drawn
        case Binary(op, left, right) if op in HASHES:
            hashed = f"{vector(uint4x32)}_{op.value.name}"
            return call(hashed, value(left), value(right)), hashed
        case _:
            return None
