"""The pointwise operations and their gradients: one entry per primitive of `ir.numbers`.

A gradient function reads like the formula: `g` is the gradient of the result `v`, `g1` the gradient
of the first operand `v1`. Operands that need no gradient cost nothing: assignments to their slots
are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.ir.numbers.primitives import BinaryOp, Op, TernaryOp, UnaryOp, arity
from ocannl_core.tensor.graph.formulas import RESULT, Application, operand_variables
from ocannl_core.tensor.graph.slots import Code, SlotAssignment
from ocannl_core.tensor.primitives.operation import Operation

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
    `combine`, if given, along the axes that its logic drops.
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


_GRADIENTS: dict[Op, Code] = {}


def primitive_gradient(primitive: Op) -> Code | None:
    """Return the gradient code of a primitive; None where no gradient flows."""
    return _GRADIENTS.get(primitive)


def _add(g: Any, g1: Any, g2: Any) -> None:
    g1 += g
    g2 += g


def _sub(g: Any, g1: Any, g2: Any) -> None:
    g1 += g
    g2 -= g


def _mul(g: Any, g1: Any, g2: Any, v1: Any, v2: Any) -> None:
    g1 += g * v2
    g2 += g * v1


def _div(g: Any, g1: Any, g2: Any, v: Any, v2: Any) -> None:
    g1 += g / v2
    g2 -= g * (v / v2)


def _mod(g: Any, g1: Any, g2: Any, v1: Any, v2: Any) -> None:
    g1 += g
    g2 -= g * floor_divide(v1, v2)


def _neg(g: Any, g1: Any) -> None:
    g1 -= g


def _power(g: Any, g1: Any, g2: Any, v: Any, v1: Any, v2: Any) -> None:
    g1 += g * where(v2 == 0.0, 0.0, v2 * power_primitive(v1, v2 - 1))
    g2 += g * where((v1 == 0.0) * (v2 >= 0.0), 0.0, v * log(v1))


add = lift("add", BinaryOp.ADD, _add)
sub = lift("sub", BinaryOp.SUB, _sub)
mul = lift("mul", BinaryOp.MUL, _mul)
div = lift("div", BinaryOp.DIV, _div)
mod = lift("mod", BinaryOp.MOD, _mod)
neg = lift("neg", UnaryOp.NEG, _neg)
power_primitive = lift("power", BinaryOp.POW, _power)


def _identity(g: Any, g1: Any) -> None:
    g1 += g


# results are as positive as the operands, and later code needs the results anyway


def _relu(g: Any, g1: Any, v: Any) -> None:
    g1 += relu_gate(v, g)


def _sat01(g: Any, g1: Any, v: Any) -> None:
    g1 += sat01_gate(v, g)


def _exp(g: Any, g1: Any, v: Any) -> None:
    g1 += g * v


def _log(g: Any, g1: Any, v1: Any) -> None:
    g1 += g / v1


def _exp2(g: Any, g1: Any, v: Any) -> None:
    g1 += g * (_LN2 * v)


def _log2(g: Any, g1: Any, v1: Any) -> None:
    g1 += g / (_LN2 * v1)


def _sin(g: Any, g1: Any, v1: Any) -> None:
    g1 += g * cos(v1)


def _cos(g: Any, g1: Any, v1: Any) -> None:
    g1 -= g * sin(v1)


def _sqrt(g: Any, g1: Any, v: Any) -> None:
    g1 += g / (2.0 * v)


def _recip(g: Any, g1: Any, v: Any) -> None:
    g1 -= g * (v * v)


def _recip_sqrt(g: Any, g1: Any, v: Any) -> None:
    g1 -= g * (0.5 * (v * (v * v)))


def _tanh(g: Any, g1: Any, v: Any) -> None:
    g1 += g * (1.0 - v * v)


def _abs(g: Any, g1: Any, v1: Any) -> None:
    g1 += g * sign(v1)


def _expm1(g: Any, g1: Any, v1: Any) -> None:
    g1 += g * exp(v1)


def _log1p(g: Any, g1: Any, v1: Any) -> None:
    g1 += g / (1.0 + v1)


def _erf(g: Any, g1: Any, v1: Any) -> None:
    g1 += g * (_SLOPE_OF_ERF * exp(neg(v1 * v1)))


def _tan(g: Any, g1: Any, v: Any) -> None:
    g1 += g * (1.0 + v * v)


def _asin(g: Any, g1: Any, v1: Any) -> None:
    g1 += g * recip_sqrt((1.0 - v1) * (1.0 + v1))


def _acos(g: Any, g1: Any, v1: Any) -> None:
    g1 -= g * recip_sqrt((1.0 - v1) * (1.0 + v1))


def _atan(g: Any, g1: Any, v1: Any) -> None:
    g1 += g / (1.0 + v1 * v1)


def _sinh(g: Any, g1: Any, v1: Any) -> None:
    g1 += g * cosh(v1)


def _cosh(g: Any, g1: Any, v1: Any) -> None:
    g1 += g * sinh(v1)


identity = lift("identity", UnaryOp.IDENTITY, _identity)


def cast(x: Any, dtype: DType | str, *, label: str | None = None) -> Any:
    """Return a tensor in another number format; gradients flow back in the tensor's own format."""
    return identity(x, dtype=dtype, label=label or "cast")


stop_gradient = lift("stop_gradient", UnaryOp.IDENTITY)
relu = lift("relu", UnaryOp.RELU, _relu)
sat01 = lift("sat01", UnaryOp.SAT01, _sat01)
exp = lift("exp", UnaryOp.EXP, _exp)
log = lift("log", UnaryOp.LOG, _log)
exp2 = lift("exp2", UnaryOp.EXP2, _exp2)
log2 = lift("log2", UnaryOp.LOG2, _log2)
sin = lift("sin", UnaryOp.SIN, _sin)
cos = lift("cos", UnaryOp.COS, _cos)
sqrt = lift("sqrt", UnaryOp.SQRT, _sqrt)
recip = lift("recip", UnaryOp.RECIP, _recip)
recip_sqrt = lift("recip_sqrt", UnaryOp.RECIP_SQRT, _recip_sqrt)
tanh = lift("tanh", UnaryOp.TANH, _tanh)
expm1 = lift("expm1", UnaryOp.EXPM1, _expm1)
log1p = lift("log1p", UnaryOp.LOG1P, _log1p)
erf = lift("erf", UnaryOp.ERF, _erf)
tan = lift("tan", UnaryOp.TAN, _tan)
asin = lift("asin", UnaryOp.ASIN, _asin)
acos = lift("acos", UnaryOp.ACOS, _acos)
atan = lift("atan", UnaryOp.ATAN, _atan)
sinh = lift("sinh", UnaryOp.SINH, _sinh)
cosh = lift("cosh", UnaryOp.COSH, _cosh)
abs = lift("abs", UnaryOp.ABS, _abs)
sign = lift("sign", UnaryOp.SIGN)
floor = lift("floor", UnaryOp.FLOOR)
ceil = lift("ceil", UnaryOp.CEIL)
round = lift("round", UnaryOp.ROUND)
trunc = lift("trunc", UnaryOp.TRUNC)
bitwise_not = lift("bitwise_not", UnaryOp.BIT_NOT)
logical_not = lift("logical_not", UnaryOp.NOT)


def _second(g: Any, g2: Any) -> None:
    g2 += g


def _relu_gate(g: Any, g2: Any, v1: Any) -> None:
    g2 += relu_gate(v1, g)


def _sat01_gate(g: Any, g2: Any, v1: Any) -> None:
    g2 += sat01_gate(v1, g)


def _maximum(g: Any, g1: Any, g2: Any, v1: Any, v2: Any) -> None:
    g1 += where(v1 >= v2, g, 0.0)
    g2 += where(v1 >= v2, 0.0, g)


def _minimum(g: Any, g1: Any, g2: Any, v1: Any, v2: Any) -> None:
    g1 += where(v1 <= v2, g, 0.0)
    g2 += where(v1 <= v2, 0.0, g)


def _where(g: Any, g2: Any, g3: Any, v1: Any) -> None:
    g2 += where(v1, g, 0.0)
    g3 += where(v1, 0.0, g)


def _atan2(
    g: Any, g1: Any, g2: Any, v1: Any, v2: Any, larger_rhs1: Any, y_rhs1: Any, x_rhs1: Any
) -> None:
    # squares of the coordinates may overflow; at the origin and at infinity the slope counts as 0
    larger_rhs1[:] = maximum(abs(v1), abs(v2))
    y_rhs1[:] = v1 / larger_rhs1
    x_rhs1[:] = v2 / larger_rhs1
    slope = g / (larger_rhs1 * (y_rhs1 * y_rhs1 + x_rhs1 * x_rhs1))
    has_slope = (larger_rhs1 > 0.0) * (larger_rhs1 < math.inf)
    g1 += where(has_slope, slope * x_rhs1, 0.0)
    g2 -= where(has_slope, slope * y_rhs1, 0.0)


atan2 = lift("atan2", BinaryOp.ATAN2, _atan2)
floor_divide = lift("floor_divide", BinaryOp.FLOOR_DIV)
bitwise_and = lift("bitwise_and", BinaryOp.BIT_AND)
bitwise_or = lift("bitwise_or", BinaryOp.BIT_OR)
bitwise_xor = lift("bitwise_xor", BinaryOp.BIT_XOR)
first = lift("first", BinaryOp.FIRST, _identity)
second = lift("second", BinaryOp.SECOND, _second)
less = lift("less", BinaryOp.LT)
less_equal = lift("less_equal", BinaryOp.LE)
equal = lift("equal", BinaryOp.EQ)
not_equal = lift("not_equal", BinaryOp.NE)
logical_or = lift("logical_or", BinaryOp.OR)
logical_and = lift("logical_and", BinaryOp.AND)
relu_gate = lift("relu_gate", BinaryOp.RELU_GATE, _relu_gate)
sat01_gate = lift("sat01_gate", BinaryOp.SAT01_GATE, _sat01_gate)
maximum = lift("maximum", BinaryOp.MAX, _maximum)
minimum = lift("minimum", BinaryOp.MIN, _minimum)
where = lift("where", TernaryOp.WHERE, _where)
