"""The pointwise operations and their gradients: one entry per primitive of `ir.numbers`,
except for `fma`, words and hashes.

An operation with a gradient is its gradient function, decorated. The function reads like the
formula: `g` is the gradient of the result `v`, `g1` the gradient of the first operand `v1`.
Operands that need no gradient cost nothing: assignments to their slots are dropped. `ocannl_core`
exports the names in `__all__`, and some under the names of other libraries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ocannl_core.base.errors import UsageError
from ocannl_core.ir.numbers.dtypes import DType, Kind, dtype_of
from ocannl_core.ir.numbers.primitives import BinaryOp, Op, TernaryOp, UnaryOp, arity
from ocannl_core.tensor.graph.definitions import CAST
from ocannl_core.tensor.graph.expression import suggest_operand
from ocannl_core.tensor.graph.slots import (
    RESULT,
    Application,
    Code,
    SlotAssignment,
    operand_variables,
)
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.primitives.operation import Operation

# fmt: off
__all__ = [
    "abs", "acos", "add", "asin", "atan", "atan2", "bitcast", "bitwise_and", "bitwise_not",
    "bitwise_or", "bitwise_xor", "cast", "ceil", "cos", "cosh", "equal", "erf", "exp", "exp2",
    "expm1", "floor", "floor_divide", "less", "less_equal", "log", "log1p", "log2", "logical_and",
    "logical_not", "logical_or", "maximum", "minimum", "not_equal", "relu", "round", "sign", "sin",
    "sinh", "sqrt", "stop_gradient", "tan", "tanh", "trunc",
]
# fmt: on

_LN2 = math.log(2.0)
_SLOPE_OF_ERF = 2.0 / math.sqrt(math.pi)
"""The slope of the error function at 0."""


def lift(
    name: str,
    primitive: Op,
    gradient: Callable[..., None] | Code | None = None,
    *,
    combine: BinaryOp | None = None,
    logic: str | None = None,
    positions: int = 0,
) -> Operation:
    """Return the operation that applies a primitive cell by cell, and accumulates its values with
    `combine`, if given, along the axes that its logic drops. Without `combine`, the gradient is the
    primitive's in the chain rule, too.
    """
    operands = arity(primitive)
    values = operand_variables(operands)
    copies = primitive is UnaryOp.IDENTITY
    value = values[0] if copies else Application(primitive, values)
    result = SlotAssignment(RESULT, combine or BinaryOp.SECOND, combine is not None, value)
    if callable(gradient):
        gradient = Code.of_function(gradient, operands)
    if gradient is not None and combine is None:
        _GRADIENTS[primitive] = gradient
    return Operation(
        name=name,
        operands=operands,
        logic=logic,
        forward=Code.of((RESULT, *values), result),
        gradient=gradient,
        primitive=primitive,
        combine=combine,
        positions=positions,
    )


def lifted(primitive: Op, *, name: str = "") -> Callable[[Callable[..., None]], Operation]:
    """Return the decorator of a gradient that makes it the operation that lifts a primitive."""

    def operation(gradient: Callable[..., None]) -> Operation:
        return lift(name or str(getattr(gradient, "__name__", "")), primitive, gradient)

    return operation


_GRADIENTS: dict[Op, Code] = {}


def primitive_gradient(primitive: Op) -> Code | None:
    """Return the gradient code of a primitive; None where no gradient flows."""
    return _GRADIENTS.get(primitive)


@lifted(BinaryOp.ADD)
def add(g: Any, g1: Any, g2: Any) -> None:
    g1 += g
    g2 += g


@lifted(BinaryOp.SUB)
def sub(g: Any, g1: Any, g2: Any) -> None:
    g1 += g
    g2 -= g


@lifted(BinaryOp.MUL)
def mul(g: Any, g1: Any, g2: Any, v1: Any, v2: Any) -> None:
    g1 += g * v2
    g2 += g * v1


@lifted(BinaryOp.DIV)
def div(g: Any, g1: Any, g2: Any, v: Any, v2: Any) -> None:
    g1 += g / v2
    g2 -= g * (v / v2)


@lifted(BinaryOp.MOD)
def mod(g: Any, g1: Any, g2: Any, v1: Any, v2: Any) -> None:
    g1 += g
    g2 -= g * floor_divide(v1, v2)


@lifted(UnaryOp.NEG)
def neg(g: Any, g1: Any) -> None:
    g1 -= g


@lifted(BinaryOp.POW, name="power")
def power_primitive(g: Any, g1: Any, g2: Any, v: Any, v1: Any, v2: Any) -> None:
    g1 += g * where(v2 == 0.0, 0.0, v2 * power_primitive(v1, v2 - 1))
    g2 += g * (v * log(where((v1 == 0.0) * (v2 >= 0.0), 1.0, v1)))


@lifted(UnaryOp.IDENTITY)
def identity(g: Any, g1: Any) -> None:
    g1 += g


# results are as positive as the operands, and later code needs the results anyway


@lifted(UnaryOp.RELU)
def relu(g: Any, g1: Any, v: Any) -> None:
    g1 += relu_gate(v, g)


@lifted(UnaryOp.SAT01)
def sat01(g: Any, g1: Any, v: Any) -> None:
    g1 += sat01_gate(v, g)


@lifted(UnaryOp.EXP)
def exp(g: Any, g1: Any, v: Any) -> None:
    g1 += g * v


@lifted(UnaryOp.LOG)
def log(g: Any, g1: Any, v1: Any) -> None:
    g1 += g / v1


@lifted(UnaryOp.EXP2)
def exp2(g: Any, g1: Any, v: Any) -> None:
    g1 += g * (_LN2 * v)


@lifted(UnaryOp.LOG2)
def log2(g: Any, g1: Any, v1: Any) -> None:
    g1 += g / (_LN2 * v1)


@lifted(UnaryOp.SIN)
def sin(g: Any, g1: Any, v1: Any) -> None:
    g1 += g * cos(v1)


@lifted(UnaryOp.COS)
def cos(g: Any, g1: Any, v1: Any) -> None:
    g1 -= g * sin(v1)


@lifted(UnaryOp.SQRT)
def sqrt(g: Any, g1: Any, v: Any) -> None:
    g1 += g / (2.0 * v)


@lifted(UnaryOp.RECIP)
def recip(g: Any, g1: Any, v: Any) -> None:
    g1 -= g * (v * v)


@lifted(UnaryOp.RECIP_SQRT)
def recip_sqrt(g: Any, g1: Any, v: Any) -> None:
    g1 -= g * (0.5 * (v * (v * v)))


@lifted(UnaryOp.TANH)
def tanh(g: Any, g1: Any, v: Any) -> None:
    g1 += g * (1.0 - v * v)


@lifted(UnaryOp.ABS)
def abs(g: Any, g1: Any, v1: Any) -> None:
    g1 += g * sign(v1)


@lifted(UnaryOp.EXPM1)
def expm1(g: Any, g1: Any, v1: Any) -> None:
    g1 += g * exp(v1)


@lifted(UnaryOp.LOG1P)
def log1p(g: Any, g1: Any, v1: Any) -> None:
    g1 += g / (1.0 + v1)


@lifted(UnaryOp.ERF)
def erf(g: Any, g1: Any, v1: Any) -> None:
    g1 += g * (_SLOPE_OF_ERF * exp(neg(v1 * v1)))


@lifted(UnaryOp.TAN)
def tan(g: Any, g1: Any, v: Any) -> None:
    g1 += g * (1.0 + v * v)


@lifted(UnaryOp.ASIN)
def asin(g: Any, g1: Any, v1: Any) -> None:
    g1 += g * recip_sqrt((1.0 - v1) * (1.0 + v1))


@lifted(UnaryOp.ACOS)
def acos(g: Any, g1: Any, v1: Any) -> None:
    g1 -= g * recip_sqrt((1.0 - v1) * (1.0 + v1))


@lifted(UnaryOp.ATAN)
def atan(g: Any, g1: Any, v1: Any) -> None:
    g1 += g / (1.0 + v1 * v1)


@lifted(UnaryOp.SINH)
def sinh(g: Any, g1: Any, v1: Any) -> None:
    g1 += g * cosh(v1)


@lifted(UnaryOp.COSH)
def cosh(g: Any, g1: Any, v1: Any) -> None:
    g1 += g * sinh(v1)


def cast(x: Any, dtype: DType | str, *, label: str | None = None) -> Any:
    """Return a tensor in another number format; gradients flow back in the tensor's own format.

    Floats are rounded to the nearest number, and cut off to become integers, modulo the width:
    300.0 is 44 in `int8`. Infinities and NaN become 0, in `bool` 1.

    Args:
        x: A tensor or a number.
        dtype: A number format or its name, such as `oc.bfloat16` or `"bfloat16"`.

    Raises:
        UsageError: if there is no such format.
    """
    return identity(x, dtype=dtype, label=label or CAST)


_bitcast = lift("bitcast", UnaryOp.BITCAST)


def bitcast(x: Any, dtype: DType | str, *, label: str | None = None) -> Any:
    """Return the numbers of another format with the same bits, as `ndarray.view` does. All NaN have
    the bits of one.

    Args:
        x: A tensor.
        dtype: A format of the same width.

    Raises:
        UsageError: if the formats have different widths, or are packed, or words.
    """
    if not isinstance(x, Tensor):
        raise UsageError.at_caller(
            "The operand of bitcast is a tensor.", found=type(x).__name__, fix=suggest_operand(x)
        )
    source, target = x.dtype, dtype_of(dtype)
    if source.bits != target.bits or Kind.WORD in (source.kind, target.kind):
        raise UsageError.at_caller(
            "A bitcast is between formats of numbers of the same width.",
            found=f"{source}, of {source.bits} bits, as {target}, of {target.bits}",
            fix=f'oc.cast(x, "{target}") converts numbers',
        )
    return _bitcast(x, dtype=target, label=label)


stop_gradient = lift("stop_gradient", UnaryOp.IDENTITY)
sign = lift("sign", UnaryOp.SIGN)
floor = lift("floor", UnaryOp.FLOOR)
ceil = lift("ceil", UnaryOp.CEIL)
round = lift("round", UnaryOp.ROUND)
trunc = lift("trunc", UnaryOp.TRUNC)
bitwise_not = lift("bitwise_not", UnaryOp.BIT_NOT)
logical_not = lift("logical_not", UnaryOp.NOT)


@lifted(BinaryOp.SECOND)
def second(g: Any, g2: Any) -> None:
    g2 += g


@lifted(BinaryOp.RELU_GATE)
def relu_gate(g: Any, g2: Any, v1: Any) -> None:
    g2 += relu_gate(v1, g)


@lifted(BinaryOp.SAT01_GATE)
def sat01_gate(g: Any, g2: Any, v1: Any) -> None:
    g2 += sat01_gate(v1, g)


@lifted(BinaryOp.MAX)
def maximum(g: Any, g1: Any, g2: Any, v1: Any, v2: Any) -> None:
    g1 += where(v1 >= v2, g, 0.0)
    g2 += where(v1 >= v2, 0.0, g)


@lifted(BinaryOp.MIN)
def minimum(g: Any, g1: Any, g2: Any, v1: Any, v2: Any) -> None:
    g1 += where(v1 <= v2, g, 0.0)
    g2 += where(v1 <= v2, 0.0, g)


@lifted(TernaryOp.WHERE)
def where(g: Any, g2: Any, g3: Any, v1: Any) -> None:
    g2 += where(v1, g, 0.0)
    g3 += where(v1, 0.0, g)


@lifted(BinaryOp.ATAN2)
def atan2(
    g: Any, g1: Any, g2: Any, v1: Any, v2: Any, larger_lhs: Any, y_lhs: Any, x_lhs: Any
) -> None:
    # squares of the coordinates may overflow; at the origin and at infinity the slope counts as 0
    larger_lhs[:] = maximum(abs(v1), abs(v2))
    y_lhs[:] = v1 / larger_lhs
    x_lhs[:] = v2 / larger_lhs
    slope = g / (larger_lhs * (y_lhs * y_lhs + x_lhs * x_lhs))
    has_slope = (larger_lhs > 0.0) * (larger_lhs < math.inf)
    g1 += where(has_slope, slope * x_lhs, 0.0)
    g2 -= where(has_slope, slope * y_lhs, 0.0)


floor_divide = lift("floor_divide", BinaryOp.FLOOR_DIV)
bitwise_and = lift("bitwise_and", BinaryOp.BIT_AND)
bitwise_or = lift("bitwise_or", BinaryOp.BIT_OR)
bitwise_xor = lift("bitwise_xor", BinaryOp.BIT_XOR)
first = lift("first", BinaryOp.FIRST, identity.gradient)
less = lift("less", BinaryOp.LT)
less_equal = lift("less_equal", BinaryOp.LE)
equal = lift("equal", BinaryOp.EQ)
not_equal = lift("not_equal", BinaryOp.NE)
logical_or = lift("logical_or", BinaryOp.OR)
logical_and = lift("logical_and", BinaryOp.AND)
