"""Conversions between number formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import ocannl_core as oc
from ocannl_core import Tensor
from ocannl_onnx.formats import Format, format_numbered
from ocannl_onnx.registry import folded, operator
from ocannl_onnx.values import Value

if TYPE_CHECKING:
    from ocannl_onnx.graphs import Node

_GREATEST = {
    "float8_e4m3fn": 448.0,
    "float8_e4m3fnuz": 240.0,
    "float8_e5m2": 57344.0,
    "float8_e5m2fnuz": 57344.0,
    "float4_e2m1fn": 6.0,
}


def _target(node: Node, number: int) -> Format:
    found = format_numbered(number)
    if found is None:
        node.invalid("`to` is an element type of the standard.", str(number))
    return found


@operator("Cast", since=6)
def cast(node: Node, x: Value) -> Any:
    target = _target(node, node.attr("to", 0))
    return convert(node, x, target, bool(node.attr("saturate", 1)), node.attr("round_mode", "up"))


@operator("CastLike", since=15)
def cast_like(node: Node, x: Value, like: Value) -> Any:
    return convert(
        node, x, like.format, bool(node.attr("saturate", 1)), node.attr("round_mode", "up")
    )


def convert(
    node: Node, x: Value, target: Format, saturate: bool = True, rounding: str = "up"
) -> Any:
    """Return a value in another format, by the rules of `Cast`."""
    if x.format == target:
        return x
    if not x.format.carrier or not target.carrier:
        if x.array is None:
            node.refuse(
                f"numbers of {x.format} computed at run time do not become {target}: "
                "the language has no such format"
            )
        return Value.of_array(_converted_text(node, x.array, target), target)
    return Value.of_tensor(
        rounded(node, x.tensor, target, saturate, rounding), target, shape=x.shape
    )


def _converted_text(node: Node, array: Any, target: Format) -> Any:
    if target.name == "string":
        texts = np.empty(array.size, object)
        texts[:] = [_text(each) for each in array.reshape(-1)]
        return texts.reshape(array.shape)
    if array.dtype == object:
        numbers = [float(each) for each in array.reshape(-1)]
        return np.array(numbers, np.float64).reshape(array.shape).astype(target.numpy)
    return array.astype(target.numpy)


def _text(number: Any) -> str:
    if isinstance(number, np.bool_):
        return "True" if number else "False"
    if isinstance(number, np.integer):
        return str(int(number))
    value = np.float32(number) if number.dtype.itemsize < 8 else number
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "INF" if value > 0 else "-INF"
    return (
        np.format_float_positional(value, trim="-")
        if 1e-4 <= abs(value) < 1e16 or value == 0
        else repr(float(value))
    )


def rounded(
    node: Node, x: Tensor, target: Format, saturate: bool = True, rounding: str = "up"
) -> Tensor:
    """Return numbers rounded to a format, in its carrier."""
    name = target.name
    if name in ("int4", "uint4", "int2", "uint2"):
        return _wrapped(x, target)
    if name not in _GREATEST and name != "float8_e8m0fnu":
        return oc.cast(x, target.carrier)
    wide = oc.cast(x, "float32")
    if name == "float8_e8m0fnu":
        return _power_of_two(wide, saturate, rounding)
    greatest = _GREATEST[name]
    if name == "float4_e2m1fn":
        return _float4(wide)
    if name == "float8_e4m3fn":
        result = oc.cast(oc.clip(wide, -greatest, greatest) if saturate else wide, name)
        return result
    if name == "float8_e5m2":
        return oc.cast(oc.clip(wide, -greatest, greatest) if saturate else wide, name)
    # formats without infinities and -0, whose exponents are shifted by one
    near = "float8_e4m3fn" if name == "float8_e4m3fnuz" else "float8_e5m2"
    limit = 64.0 if name == "float8_e4m3fnuz" else 2.0**14
    low = oc.cast(oc.cast(oc.clip(wide, -limit, limit) * 2.0, near), "float32") * 0.5
    bound = greatest * 1.25
    high = oc.cast(oc.cast(oc.clip(wide, -bound, bound) * 0.25, near), "float32") * 4.0
    result = oc.where(oc.less(oc.abs(wide), limit, dtype="bool"), low, high)
    result = oc.where(oc.equal(result, 0.0, dtype="bool"), 0.0, result)
    if saturate:
        result = oc.clip(result, -greatest, greatest)
    else:
        result = oc.where(oc.less(greatest, oc.abs(result), dtype="bool"), float("nan"), result)
        result = oc.where(oc.isinf(wide), float("nan"), result)
    return oc.where(oc.isnan(wide), wide, result)


def _wrapped(x: Tensor, target: Format) -> Tensor:
    """Return whole numbers modulo the width of a short format."""
    whole = oc.cast(x, "int32")
    low, _ = target.range
    return oc.cast(oc.remainder(whole - low, 2**target.bits) + low, target.carrier)


def _float4(x: Tensor) -> Tensor:
    """Return the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6; of two the one with an even code."""
    size = oc.abs(x)
    steps = [
        (0.25, False, 0.5),
        (0.75, True, 0.5),
        (1.25, False, 0.5),
        (1.75, True, 0.5),
        (2.5, False, 1.0),
        (3.5, True, 1.0),
        (5.0, False, 2.0),
    ]
    result: Any = 0.0
    for bound, inclusive, step in steps:
        above = (
            oc.less_equal(bound, size, dtype="bool")
            if inclusive
            else oc.less(bound, size, dtype="bool")
        )
        result = result + oc.where(above, step, 0.0)
    # the sign of zero is kept; there is no NaN, in whose place `ml_dtypes` has -0
    is_negative = oc.less(x, 0.0, dtype="bool") | oc.less(oc.reciprocal(x), 0.0, dtype="bool")
    return oc.where(oc.isnan(x), -0.0, oc.where(is_negative, -result, result))


def _power_of_two(x: Tensor, saturate: bool, rounding: str) -> Tensor:
    """Return powers of two from 2**-127 to 2**127, without a sign."""
    powers = oc.tensor(
        np.exp2(np.arange(-127, 128, dtype=np.float64)).astype(np.float32), dtype="float32"
    )
    size = oc.abs(x)
    above = oc.searchsorted(powers, size, side="left")  # the first power that is not less
    above = oc.minimum(above, 254)
    upper = oc.take(powers, above)
    lower = oc.take(powers, oc.maximum(above - 1, 0))
    if rounding == "up":
        result = upper
    elif rounding == "down":
        result = oc.where(oc.equal(upper, size, dtype="bool"), upper, oc.minimum(lower, upper))
        result = oc.where(oc.less(upper, size, dtype="bool"), upper, result)
    else:
        result = oc.where(oc.less(size, lower * 1.5, dtype="bool"), lower, upper)
        result = oc.where(oc.equal(upper, size, dtype="bool"), upper, result)
    bad = oc.cast(oc.isnan(x), "bool")
    if not saturate:
        bad = bad | oc.less(2.0**127, size, dtype="bool")
    return oc.where(bad, float("nan"), result)


@operator("BitCast", since=26)
def bit_cast(node: Node, x: Value) -> Any:
    target = _target(node, node.attr("to", 0))
    if target.bits != x.format.bits:
        node.invalid("Both formats have as many bits.", f"{x.format} and {target}")
    if all(each.is_integer or each.name == "bool" for each in (x.format, target)):
        return convert(node, x, target)
    has_other_bits = any(
        each.is_carried or not each.carrier or each.name == "bool" for each in (x.format, target)
    )
    if has_other_bits:
        node.refuse(f"numbers of {x.format} and {target} do not have their bits in memory")
    return Value.of_tensor(oc.bitcast(x.tensor, target.carrier), target, shape=x.shape)


@folded("Cast")
def fold_cast(node: Node, x: Any) -> Any:
    target = _target(node, node.attr("to", 0))
    plain = {
        "float32",
        "float64",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "bool",
        "float16",
    }
    if target.name in plain and x.dtype.name in plain:
        return x.astype(target.numpy)
    return cast(node, Value.of_array(x))
