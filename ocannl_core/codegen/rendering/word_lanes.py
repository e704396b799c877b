"""Random words in the lanes of a vector loop: operations from numbers to words and back."""

from __future__ import annotations

from collections.abc import Callable

from ocannl_core.codegen.text.precedence import CExpr, call, cast
from ocannl_core.ir.loops.nodes import Binary, Expr, Unary
from ocannl_core.ir.numbers.dtypes import DType, float16, int32, uint4x32, uint32
from ocannl_core.ir.numbers.primitives import HASHES, UnaryOp
from ocannl_core.schedule.rules.vectorisable import DRAWN_FORMATS, HASHED_FORMATS


def render_words(
    expr: Expr, value: Callable[[Expr], CExpr], vector: Callable[[DType], str]
) -> tuple[CExpr, str] | None:
    """Render an operation on a vector of words, and name its helper; None if it is another one.

    Args:
        value: Renders its operands as vectors.
        vector: Returns the type of vectors of a format.
    """
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
