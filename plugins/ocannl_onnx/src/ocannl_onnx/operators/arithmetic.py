"""Operators that work cell by cell."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

import ocannl_core as oc
from ocannl_core import Tensor
from ocannl_onnx.registry import folded, operator
from ocannl_onnx.values import Value

if TYPE_CHECKING:
    from ocannl_onnx.graphs import Node

_UNARY: dict[str, Callable[[Any], Any]] = {
    "Abs": oc.abs,
    "Acos": oc.acos,
    "Asin": oc.asin,
    "Atan": oc.atan,
    "Ceil": oc.ceil,
    "Cos": oc.cos,
    "Cosh": oc.cosh,
    "Erf": oc.erf,
    "Exp": oc.exp,
    "Floor": oc.floor,
    "Log": oc.log,
    "Neg": oc.negative,
    "Reciprocal": oc.reciprocal,
    "Round": oc.round,
    "Sign": oc.sign,
    "Sin": oc.sin,
    "Sinh": oc.sinh,
    "Sqrt": oc.sqrt,
    "Tan": oc.tan,
    "Tanh": oc.tanh,
    "Acosh": lambda x: oc.log(x + oc.sqrt(x - 1) * oc.sqrt(x + 1)),
    "Asinh": lambda x: oc.sign(x) * oc.log1p(oc.abs(x) + x * x / (1 + oc.sqrt(x * x + 1))),
    "Atanh": lambda x: 0.5 * (oc.log1p(x) - oc.log1p(-x)),
}


def _register_unary(name: str, function: Callable[[Any], Any]) -> None:
    @operator(name, pointwise=True)
    def unary(node: Node, x: Value) -> Tensor:
        return function(x.tensor)


for _name, _function in _UNARY.items():
    _register_unary(_name, _function)


@operator("Identity")
def identity(node: Node, x: Any) -> Any:
    return x


def same_format(node: Node, a: Value, b: Value) -> None:
    if a.format != b.format:
        node.invalid("The operands have one number format.", f"{a.format} and {b.format}")


def operands(node: Node, a: Value, b: Value) -> tuple[Tensor, Tensor]:
    """Return the operands of one format, aligned as the version of the operator says."""
    same_format(node, a, b)
    return a.tensor, aligned(node, a, b)


def aligned(node: Node, a: Value, b: Value) -> Tensor:
    """Return the second operand: before version 7 its axes were placed by an attribute."""
    axis = node.attr("axis")
    if node.version >= 7 or axis is None or not node.attr("broadcast", 0):
        return b.tensor
    first = axis + a.rank if axis < 0 else axis
    return oc.reshape(b.tensor, output=[*b.shape, *[1] * (a.rank - first - b.rank)])


@operator("Add", pointwise=True)
def add(node: Node, a: Value, b: Value) -> Tensor:
    x, y = operands(node, a, b)
    return x + y


@operator("Sub", pointwise=True)
def sub(node: Node, a: Value, b: Value) -> Tensor:
    x, y = operands(node, a, b)
    return x - y


@operator("Mul", pointwise=True)
def mul(node: Node, a: Value, b: Value) -> Tensor:
    x, y = operands(node, a, b)
    return x * y


@operator("Div", pointwise=True)
def div(node: Node, a: Value, b: Value) -> Tensor:
    x, y = operands(node, a, b)
    if not a.format.is_integer:
        return x / y
    quotient = oc.floor_divide(x, y)
    if a.format.is_unsigned:
        return quotient
    # rounded towards zero
    exact = oc.equal(quotient * y, x, dtype="bool")
    negative = oc.less(x, 0, dtype="bool") ^ oc.less(y, 0, dtype="bool")
    return oc.where(negative & ~exact, quotient + 1, quotient)


@operator("Mod", since=10, pointwise=True)
def mod(node: Node, a: Value, b: Value) -> Tensor:
    x, y = operands(node, a, b)
    if not node.attr("fmod", 0):
        return oc.remainder(x, y)
    if a.format.is_unsigned:
        return oc.remainder(x, y)
    rest = oc.remainder(oc.abs(x), oc.abs(y))
    return oc.where(oc.less(x, 0, dtype="bool"), -rest, rest)


@operator("Pow", pointwise=True)
def pow(node: Node, a: Value, b: Value) -> Tensor:
    base, exponent = a.tensor, aligned(node, a, b)
    if a.format.is_integer:
        if b.format.is_integer:
            return oc.cast(
                oc.pow(oc.cast(base, "float64"), oc.cast(exponent, "float64")), a.format.carrier
            )
        wide = oc.pow(oc.cast(base, b.format.carrier), exponent)
        return oc.cast(wide, a.format.carrier)
    if b.is_known and b.array is not None and b.array.size == 1 and b.rank == 0:
        number = float(b.array.reshape(()))
        return base**number
    return oc.pow(base, oc.cast(exponent, a.format.carrier))


def variadic(node: Node, values: tuple[Value, ...], combine: Callable[[Any, Any], Any]) -> Any:
    for each in values[1:]:
        same_format(node, values[0], each)
    return functools.reduce(combine, [each.tensor for each in values])


@operator("Max", pointwise=True)
def maximum(node: Node, *values: Value) -> Any:
    return values[0] if len(values) == 1 else variadic(node, values, oc.maximum)


@operator("Min", pointwise=True)
def minimum(node: Node, *values: Value) -> Any:
    return values[0] if len(values) == 1 else variadic(node, values, oc.minimum)


@operator("Sum", pointwise=True)
def total(node: Node, *values: Value) -> Any:
    return values[0] if len(values) == 1 else variadic(node, values, oc.add)


@operator("Mean", pointwise=True)
def mean(node: Node, *values: Value) -> Any:
    return variadic(node, values, oc.add) / float(len(values))


@operator("Clip", pointwise=True)
def clip(node: Node, x: Value, low: Value | None = None, high: Value | None = None) -> Any:
    lowest: Any = low.tensor if low is not None else node.attr("min") if node.version < 11 else None
    highest: Any = (
        high.tensor if high is not None else node.attr("max") if node.version < 11 else None
    )
    result = x.tensor
    if lowest is not None:
        result = oc.maximum(result, lowest)
    if highest is not None:
        result = oc.minimum(result, highest)
    return oc.primitives.identity(result) if result is x.tensor else result


# comparisons and truths


def _register_comparison(name: str, compare: Callable[[Any, Any], Any]) -> None:
    @operator(name, pointwise=True)
    def comparison(node: Node, a: Value, b: Value) -> Tensor:
        return compare(*operands(node, a, b))


_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "Equal": lambda a, b: oc.equal(a, b, dtype="bool"),
    "Less": lambda a, b: oc.less(a, b, dtype="bool"),
    "LessOrEqual": lambda a, b: oc.less_equal(a, b, dtype="bool"),
    "Greater": lambda a, b: oc.less(b, a, dtype="bool"),
    "GreaterOrEqual": lambda a, b: oc.less_equal(b, a, dtype="bool"),
    "And": lambda a, b: a & b,
    "Or": lambda a, b: a | b,
    "Xor": lambda a, b: a ^ b,
    "BitwiseAnd": oc.bitwise_and,
    "BitwiseOr": oc.bitwise_or,
    "BitwiseXor": oc.bitwise_xor,
}
for _name, _compare in _COMPARISONS.items():
    _register_comparison(_name, _compare)


@operator("Not", pointwise=True)
def logical_not(node: Node, x: Value) -> Tensor:
    return ~x.tensor


@operator("BitwiseNot", since=18, pointwise=True)
def bitwise_not(node: Node, x: Value) -> Tensor:
    return oc.bitwise_not(x.tensor)


@operator("BitShift", since=11, pointwise=True)
def bit_shift(node: Node, x: Value, amount: Value) -> Tensor:
    """Shift by products with powers of two, which wrap around, and by quotients."""
    same_format(node, x, amount)
    bits, carrier = x.format.bits, x.format.carrier
    low, high = x.format.range
    powers = np.array([(1 << k) if (1 << k) <= high else low for k in range(bits)], x.format.numpy)
    count = amount.tensor
    inside = oc.less(count, bits, dtype="bool")
    if not x.format.is_unsigned:
        inside = inside & oc.less_equal(0, count, dtype="bool")
    position = oc.where(inside, oc.cast(count, "int32"), 0)
    factor = oc.take(oc.tensor(powers, dtype=carrier), position)
    if node.attr("direction") == "LEFT":
        return oc.where(inside, oc.multiply(x.tensor, factor, dtype=carrier), 0)
    shifted = oc.floor_divide(x.tensor, factor)
    if x.format.is_unsigned:
        return oc.where(inside, shifted, 0)
    sign = oc.where(oc.less(x.tensor, 0, dtype="bool"), -1, 0)
    top = oc.equal(position, bits - 1, dtype="bool")
    return oc.cast(oc.where(inside & ~top, shifted, sign), carrier)


@operator("Where", since=9, pointwise=True)
def where(node: Node, condition: Value, a: Value, b: Value) -> Tensor:
    same_format(node, a, b)
    return oc.where(condition.tensor, a.tensor, b.tensor)


@operator("IsNaN", since=9, pointwise=True)
def is_nan(node: Node, x: Value) -> Tensor:
    return oc.cast(oc.isnan(x.tensor), "bool")


@operator("IsInf", since=10, pointwise=True)
def is_inf(node: Node, x: Value) -> Tensor:
    found = oc.cast(oc.isinf(x.tensor), "bool")
    negative = oc.less(x.tensor, 0, dtype="bool")
    if not node.attr("detect_negative", 1):
        found = found & ~negative
    if not node.attr("detect_positive", 1):
        found = found & negative
    return found


@operator("Det", since=11)
def determinant(node: Node, x: Value) -> Tensor:
    """Expand along the first row; larger matrices are refused."""
    n = x.shape[-1]
    if x.shape[-2] != n or n > 4:
        node.refuse(
            f"the determinant of a matrix of {list(x.shape[-2:])} has no expression in the language"
        )

    def minor(rows: tuple[int, ...], columns: tuple[int, ...]) -> Tensor:
        first = rows[0]
        if len(rows) == 1:
            return x.tensor[..., first, columns[0]]
        terms = [
            x.tensor[..., first, column]
            * minor(rows[1:], columns[:k] + columns[k + 1 :])
            * (-1.0) ** k
            for k, column in enumerate(columns)
        ]
        return functools.reduce(oc.add, terms)

    every = tuple(range(n))
    return minor(every, every)


# known values


def _fold_binary(name: str, function: Callable[[Any, Any], Any]) -> None:
    @folded(name)
    def binary(node: Node, a: Any, b: Any) -> Any:
        return np.asarray(function(a, b))


def _divided(a: Any, b: Any) -> Any:
    if a.dtype.kind not in "iu":
        return a / b
    return (
        np.where(b == 0, 0, np.trunc(np.divide(a, np.where(b == 0, 1, b)))).astype(a.dtype)
        if a.dtype.itemsize < 8
        else _integer_quotient(a, b)
    )


def _integer_quotient(a: Any, b: Any) -> Any:
    safe = np.where(b == 0, 1, b)
    quotient = np.abs(a) // np.abs(safe)
    return np.where(b == 0, 0, quotient * np.sign(a) * np.sign(safe)).astype(a.dtype)


_FOLDED_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": _divided,
    "Equal": np.equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
}
for _name, _fold in _FOLDED_BINARY.items():
    _fold_binary(_name, _fold)


@folded("Mod")
def fold_mod(node: Node, a: Any, b: Any) -> Any:
    return np.fmod(a, b) if node.attr("fmod", 0) else np.mod(a, b)


@folded("Pow")
def fold_pow(node: Node, a: Any, b: Any) -> Any:
    return np.power(a, b).astype(a.dtype)


def _fold_unary(name: str, function: Callable[[Any], Any]) -> None:
    @folded(name)
    def unary(node: Node, x: Any) -> Any:
        return np.asarray(function(x)).astype(x.dtype)


_FOLDED_UNARY: dict[str, Callable[[Any], Any]] = {
    "Abs": np.abs,
    "Neg": np.negative,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Sqrt": np.sqrt,
    "Not": np.logical_not,
    "Round": np.round,
    "Sign": np.sign,
    "Identity": np.array,
    "Exp": np.exp,
    "Log": np.log,
    "Reciprocal": np.reciprocal,
}
for _name, _one in _FOLDED_UNARY.items():
    _fold_unary(_name, _one)


@folded("Where")
def fold_where(node: Node, condition: Any, a: Any, b: Any) -> Any:
    return np.where(condition, a, b)


@folded("Max")
def fold_max(node: Node, *arrays: Any) -> Any:
    return functools.reduce(np.maximum, arrays)


@folded("Min")
def fold_min(node: Node, *arrays: Any) -> Any:
    return functools.reduce(np.minimum, arrays)


@folded("Clip")
def fold_clip(node: Node, x: Any, low: Any = None, high: Any = None) -> Any:
    low = node.attr("min", -math.inf) if low is None and node.version < 11 else low
    high = node.attr("max", math.inf) if high is None and node.version < 11 else high
    result = x if low is None else np.maximum(x, low)
    return (result if high is None else np.minimum(result, high)).astype(x.dtype)
